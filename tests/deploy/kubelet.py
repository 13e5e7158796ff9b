# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for a kubelet: takes registrations, watches what registered, and calls it as the test says.

A process of its own, as the kubelet is. Commands are JSON lines on standard input, at whose end it ends; what happens
is told as JSON lines on standard output.
"""

from __future__ import annotations

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from jupyter_gpushare.deploy.kubernetes import api_pb2 as api

METHODS = {
    "GetDevicePluginOptions": (api.Empty, api.DevicePluginOptions),
    "GetPreferredAllocation": (api.PreferredAllocationRequest, api.PreferredAllocationResponse),
    "Allocate": (api.AllocateRequest, api.AllocateResponse),
    "PreStartContainer": (api.PreStartContainerRequest, api.PreStartContainerResponse),
}


def tell(what: str, value: Any) -> None:
    print(json.dumps({what: value}), flush=True)


def plain(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


class Kubelet:
    """Takes registrations in a folder.

    Parameters
    ----------
    folder
        For the sockets; what lies there is removed first.
    refuse
        How many registrations are refused.
    """

    def __init__(self, folder: Path, refuse: int) -> None:
        self._folder = folder
        self._refuse = refuse
        self._channel: grpc.Channel | None = None
        for path in folder.iterdir():
            path.unlink()
        server = grpc.server(ThreadPoolExecutor(4))
        register = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, api.Empty.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.Registration", {"Register": register}),)
        )
        server.add_insecure_port(f"unix:{folder / 'kubelet.sock'}")
        server.start()
        self.server = server

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self._refuse > 0:
            self._refuse -= 1
            tell("refused", plain(request))
            context.abort(grpc.StatusCode.UNKNOWN, "the name is taken")
        tell("registered", plain(request))
        self._channel = grpc.insecure_channel(f"unix:{self._folder / request.endpoint}")
        threading.Thread(target=self._watch, args=(self._channel,), daemon=True).start()
        return api.Empty()

    def _watch(self, channel: grpc.Channel) -> None:
        tell("options", self.call("GetDevicePluginOptions", {}))
        watch = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )
        try:
            for answer in watch(api.Empty()):
                tell("devices", {device.ID: device.health for device in answer.devices})
        except grpc.RpcError:
            tell("gone", None)

    def call(self, method: str, request: dict[str, Any]) -> Any:
        assert self._channel is not None
        asks, answers = METHODS[method]
        call = self._channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=asks.SerializeToString,
            response_deserializer=answers.FromString,
        )
        try:
            return plain(call(ParseDict(request, asks()), timeout=30))
        except grpc.RpcError as error:
            return {"error": f"{error.code().name}: {error.details()}"}


def main() -> None:
    kubelet = Kubelet(Path(sys.argv[1]), int(sys.argv[2]))
    tell("ready", None)
    for line in sys.stdin:
        method, request = json.loads(line)
        tell("answer", kubelet.call(method, request))


if __name__ == "__main__":
    main()
