# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for a kubelet with DRA: finds drivers' registration sockets, registers them, and calls them.

A process of its own, as `kubelet` is. Commands are JSON lines on standard input; what happens is told as JSON lines.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from jupyter_gpushare.deploy.kubernetes.dra import dra_pb2 as dra
from jupyter_gpushare.deploy.kubernetes.dra import registration_pb2 as registration
from jupyter_gpushare.deploy.kubernetes.rpc import identity

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
METHODS = {
    "NodePrepareResources": (dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse),
    "NodeUnprepareResources": (
        dra.NodeUnprepareResourcesRequest,
        dra.NodeUnprepareResourcesResponse,
    ),
}


def tell(what: str, value: Any) -> None:
    print(json.dumps({what: value}), flush=True)


def plain(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


def call(socket: str, method: str, request: Any, answer: Any) -> Any:
    # A separate pool: a shared one remembers that an earlier driver did not respond.
    options = (("grpc.use_local_subchannel_pool", 1),)
    with grpc.insecure_channel(f"unix:{socket}", options) as channel:
        stub = channel.unary_unary(
            method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return stub(request, timeout=30)


class Kubelet:
    """Registers drivers.

    Parameters
    ----------
    folder
        The kubelet's folder.
    refuse
        How many registrations are refused.
    """

    def __init__(self, folder: Path, refuse: int) -> None:
        self._registry = folder / "plugins_registry"
        self._refuse = refuse
        self._endpoint = ""
        self._known: dict[Path, object] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for path in self._registry.glob("*.sock"):
                found = identity(path)
                if found is not None and self._known.get(path) != found and self._register(path):
                    self._known[path] = found
            time.sleep(0.02)

    def _register(self, path: Path) -> bool:
        service = "/pluginregistration.Registration/"
        try:
            info = call(
                str(path),
                service + "GetInfo",
                registration.InfoRequest(),
                registration.PluginInfo,
            )
            refused, self._refuse = self._refuse > 0, self._refuse - 1
            status = registration.RegistrationStatus(
                plugin_registered=not refused, error="the name is taken" if refused else ""
            )
            call(
                str(path),
                service + "NotifyRegistrationStatus",
                status,
                registration.RegistrationStatusResponse,
            )
        except grpc.RpcError:
            # A socket that a killed driver left behind.
            return False
        if refused:
            tell("refused", plain(info))
            return False
        self._endpoint = info.endpoint
        tell("registered", plain(info))
        return True

    def call(self, method: str, request: dict[str, Any]) -> Any:
        asks, answers = METHODS[method]
        try:
            message = ParseDict(request, asks())
            return plain(call(self._endpoint, f"/{SERVICE}/{method}", message, answers))
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
