# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for a kubelet with DRA: finds drivers' registration sockets, registers them, calls them, and watches them.

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
from jupyter_gpushare.deploy.kubernetes.dra import health_pb2 as api
from jupyter_gpushare.deploy.kubernetes.dra import registration_pb2 as registration
from jupyter_gpushare.deploy.kubernetes.rpc import identity

SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
#: The services for device health that a kubelet knows, the best one first.
HEALTH = {
    # 1.37
    "v1": ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"),
    # 1.34 to 1.36
    "v1alpha1": ("v1alpha1.DRAResourceHealth",),
    # Without the feature gate.
    "off": (),
}
METHODS = {
    "NodePrepareResources": (dra.NodePrepareResourcesRequest, dra.NodePrepareResourcesResponse),
    "NodeUnprepareResources": (
        dra.NodeUnprepareResourcesRequest,
        dra.NodeUnprepareResourcesResponse,
    ),
}


def tell(what: str, value: Any) -> None:
    # In one piece, because threads tell, too.
    sys.stdout.write(json.dumps({what: value}) + "\n")
    sys.stdout.flush()


def plain(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


def connected(socket: str) -> grpc.Channel:
    # A separate pool: a shared one remembers that an earlier driver did not respond.
    return grpc.insecure_channel(f"unix:{socket}", (("grpc.use_local_subchannel_pool", 1),))


def call(socket: str, method: str, request: Any, answer: Any) -> Any:
    with connected(socket) as channel:
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
    health
        The newest version of the services for device health that it knows: a key of `HEALTH`.
    """

    def __init__(self, folder: Path, refuse: int, health: str) -> None:
        self._registry = folder / "plugins_registry"
        self._refuse = refuse
        self._health = HEALTH[health]
        self._endpoint = ""
        self._stream: Any = None
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
            assert info.type == "DRAPlugin"
            assert "v1.DRAPlugin" in info.supported_versions
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
        first, self._endpoint = not self._endpoint, info.endpoint
        tell("registered", plain(info))
        if first and self._health:
            service = next(each for each in self._health if each in info.supported_versions)
            threading.Thread(target=self._watch_health, args=(service,), daemon=True).start()
        return True

    def _watch_health(self, service: str) -> None:
        while True:
            with connected(self._endpoint) as channel:
                self._stream = channel.unary_stream(
                    f"/{service}/NodeWatchResources",
                    request_serializer=api.NodeWatchResourcesRequest.SerializeToString,
                    response_deserializer=api.NodeWatchResourcesResponse.FromString,
                )(api.NodeWatchResourcesRequest())
                known = None
                try:
                    for report in self._stream:
                        told = [service, *(self._device(each) for each in report.devices)]
                        if told != known:
                            tell("health", told)
                        known = told
                except grpc.RpcError as error:
                    if known is not None:
                        tell("health ended", error.code().name)
            # The kubelet waits for 5 s.
            time.sleep(0.02)

    def _device(self, reported: api.DeviceHealth) -> list[str]:
        assert abs(reported.last_updated_time - time.time()) < 60
        name = f"{reported.device.pool_name}/{reported.device.device_name}"
        return [name, api.HealthStatus.Name(reported.health), reported.message]

    def end_stream(self) -> None:
        """End the stream of health reports, as after another registration."""
        self._stream.cancel()

    def call(self, method: str, request: dict[str, Any]) -> Any:
        asks, answers = METHODS[method]
        try:
            message = ParseDict(request, asks())
            return plain(call(self._endpoint, f"/{SERVICE}/{method}", message, answers))
        except grpc.RpcError as error:
            return {"error": f"{error.code().name}: {error.details()}"}


def main() -> None:
    kubelet = Kubelet(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    tell("ready", None)
    for line in sys.stdin:
        method, request = json.loads(line)
        if method == "EndStream":
            # The answer comes first, so that the test sees the end after it.
            tell("answer", None)
            kubelet.end_stream()
        else:
            tell("answer", kubelet.call(method, request))


if __name__ == "__main__":
    main()
