# SPDX-License-Identifier: BSD-3-Clause
"""The device plugin: speaks the kubelet's API (v1beta1) over Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc

from . import api_pb2 as api
from .node import Health, NodeError
from .rpc import Listener, identity, unary
from .slots import Slots, UnknownSlot

log = logging.getLogger(__name__)

#: The version of the API, and the name of the kubelet's socket.
VERSION = "v1beta1"
KUBELET = "kubelet.sock"
#: Seconds that the kubelet may take to answer a registration.
PATIENCE = 10.0
#: The kind of NVIDIA's devices in the Container Device Interface.
CDI_KIND = "nvidia.com/gpu"

#: Paths inside containers, wherever the folders are on the node.
SOCKETS = Path("/run/gpushare")
LIBRARIES = Path("/opt/gpushare/lib")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a plugin.

    Attributes
    ----------
    resource
        Name of the extended resource.
    kubelet
        The kubelet's folder for device plugins' sockets.
    socket
        The node scheduler's socket, on the node.
    libraries
        The folder with the interposer, on the node.
    expose
        How containers get their GPUs: by NVIDIA_VISIBLE_DEVICES, or by names of the Container Device Interface.
    interval
        Seconds between two checks of GPUs, scheduler and kubelet.
    """

    resource: str
    kubelet: Path
    socket: Path
    libraries: Path
    expose: Literal["env", "cdi"]
    interval: float

    @property
    def endpoint(self) -> Path:
        """The plugin's own socket; each resource has its own."""
        return self.kubelet / f"{self.resource.replace('/', '_')}.sock"


class Plugin:
    """Offers slots to the kubelet until it is stopped.

    Parameters
    ----------
    options
        The plugin's options.
    slots
        The slots.
    health
        Checks which GPUs can be used.
    """

    def __init__(self, options: Options, slots: Slots, health: Health) -> None:
        self._options = options
        self._slots = slots
        self._health = health
        self._changed = asyncio.Condition()
        self._version = 0
        self._listener = Listener(
            options.endpoint,
            [self._handlers()],
            "--kubelet-dir has to name the kubelet's folder for device plugins, and the plugin has to run as root",
        )
        self._registered: object = None
        self._fault = ""

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises
        ------
        NodeError
            If there is no GPU, or the socket cannot be created.
        """
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await self._look()
        if not self._slots.offered():
            raise NodeError("NVML shows no GPU on this node; run `gpushare doctor` for details")
        try:
            while not ended.is_set():
                await self._be_registered()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._options.interval)
                await self._look()
        finally:
            await self._listener.close()
            self._health.stop()

    async def _look(self) -> None:
        known, working = await asyncio.to_thread(self._health.look)
        changes = self._slots.update(known, working)
        for gpu, well in changes.items():
            log.info("%s is %s", gpu, "healthy" if well else "not healthy")
        if changes:
            async with self._changed:
                self._version += 1
                self._changed.notify_all()

    async def _be_registered(self) -> None:
        """Serve, and register again if the kubelet has restarted: it removes all sockets when it starts."""
        if await self._listener.keep():
            self._registered = None
        kubelet = identity(self._options.kubelet / KUBELET)
        if kubelet and kubelet == self._registered:
            return
        fault = (
            "" if kubelet else f"no kubelet is listening at {self._options.kubelet / KUBELET} yet"
        )
        if kubelet:
            try:
                await self._register()
            except grpc.aio.AioRpcError as error:
                fault = f"the kubelet did not register {self._options.resource}: {error.details()}"
            else:
                self._registered = kubelet
                log.info("the kubelet has registered %s", self._options.resource)
        if fault and fault != self._fault:
            log.warning("%s; trying again", fault)
        self._fault = fault

    async def _register(self) -> None:
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=self._options.endpoint.name,
            resource_name=self._options.resource,
            options=_plugin_options(),
        )
        # A separate pool: a shared one remembers that the previous kubelet did not respond.
        options = (("grpc.use_local_subchannel_pool", 1),)
        target = f"unix:{self._options.kubelet / KUBELET}"
        async with grpc.aio.insecure_channel(target, options) as channel:
            register = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            await register(request, timeout=PATIENCE)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(
                    self._get_options, api.Empty, api.DevicePluginOptions
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch,
                    api.Empty.FromString,
                    api.ListAndWatchResponse.SerializeToString,
                ),
                "GetPreferredAllocation": unary(
                    self._prefer, api.PreferredAllocationRequest, api.PreferredAllocationResponse
                ),
                "Allocate": unary(self._allocate, api.AllocateRequest, api.AllocateResponse),
                "PreStartContainer": unary(
                    self._pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse
                ),
            },
        )

    async def _get_options(self, request: api.Empty, context: Any) -> api.DevicePluginOptions:
        return _plugin_options()

    async def _list_and_watch(
        self, request: api.Empty, context: Any
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        while True:
            sent = self._version
            yield api.ListAndWatchResponse(
                devices=[
                    api.Device(ID=slot, health="Healthy" if well else "Unhealthy")
                    for slot, well in self._slots.offered()
                ]
            )
            async with self._changed:
                while self._version == sent:
                    await self._changed.wait()

    async def _prefer(
        self, request: api.PreferredAllocationRequest, context: Any
    ) -> api.PreferredAllocationResponse:
        answer = api.PreferredAllocationResponse()
        try:
            for container in request.container_requests:
                answer.container_responses.add(
                    deviceIDs=self._slots.preferred(
                        container.available_deviceIDs,
                        container.must_include_deviceIDs,
                        container.allocation_size,
                    )
                )
        except UnknownSlot as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return answer

    async def _allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        # The kubelet offers healthy slots only. A pod does not fail because the scheduler is restarting: its kernels
        # attach when the scheduler is back.
        answer = api.AllocateResponse()
        try:
            for container in request.container_requests:
                answer.container_responses.append(self._container(container.devices_ids))
        except UnknownSlot as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return answer

    def _container(self, slots: Any) -> api.ContainerAllocateResponse:
        gpus = self._slots.gpus(slots)
        options = self._options
        by_cdi = options.expose == "cdi"
        return api.ContainerAllocateResponse(
            envs={
                "GPUSHARE_SOCKET": str(SOCKETS / options.socket.name),
                "GPUSHARE_LIBRARIES": str(LIBRARIES),
                # "void": NVIDIA's runtime adds no GPU, even if the image asks for some.
                "NVIDIA_VISIBLE_DEVICES": "void" if by_cdi else ",".join(gpus),
            },
            mounts=[
                # A process can connect to a socket on a read-only mount, but not remove it. The folder is mounted,
                # because a new scheduler creates the socket again.
                api.Mount(
                    container_path=str(SOCKETS),
                    host_path=str(options.socket.parent),
                    read_only=True,
                ),
                api.Mount(
                    container_path=str(LIBRARIES), host_path=str(options.libraries), read_only=True
                ),
            ],
            cdi_devices=[api.CDIDevice(name=f"{CDI_KIND}={gpu}") for gpu in gpus if by_cdi],
        )

    async def _pre_start(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()


def _plugin_options() -> api.DevicePluginOptions:
    return api.DevicePluginOptions(
        pre_start_required=False, get_preferred_allocation_available=True
    )
