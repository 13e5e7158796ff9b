# SPDX-License-Identifier: BSD-3-Clause
"""The DRA driver: speaks the kubelet's APIs for plugin registration, DRA and device health over Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import grpc

from ..node import NodeError
from ..rpc import Listener, unary
from . import dra_pb2 as dra
from . import registration_pb2 as registration
from .cluster import Cluster, ClusterError
from .configuration import DRIVER
from .health import SERVICES, HealthReports
from .inspection import Inspection
from .preparation import by_device, prepared_claim
from .prepared import ClaimError, PreparedClaim, PreparedClaims, is_uid
from .publisher import Publisher
from .registrar import Registrar
from .slices import Gpu, Sharing, device

log = logging.getLogger(__name__)

#: What the driver calls itself when the kubelet asks, and the service that it offers.
TYPE, VERSION = "DRAPlugin", "v1.DRAPlugin"
SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

#: Seconds after which a check counts as stalled. NVML takes a while to start on a node with many GPUs.
STALLED = 20.0


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a driver.

    Attributes
    ----------
    node
        The name of the Node.
    kubelet
        The kubelet's folder.
    sharing
        How GPUs are shared.
    host_memory
        Bytes of host memory for evicted data; None: as the scheduler states.
    interval
        Seconds between two checks of GPUs and scheduler.
    resync
        Seconds between two checks of the ResourceSlices.
    """

    node: str
    kubelet: Path
    sharing: Sharing
    host_memory: int | None
    interval: float
    resync: float

    @property
    def registry(self) -> Path:
        """The socket at which the kubelet finds the driver."""
        return self.kubelet / "plugins_registry" / f"{DRIVER}-reg.sock"

    @property
    def endpoint(self) -> Path:
        """The socket of the service."""
        return self.kubelet / "plugins" / DRIVER / "dra.sock"


class Driver:
    """Publishes GPUs and prepares claims until it is stopped.

    Parameters
    ----------
    options
        The driver's options.
    inspection
        Describes the GPUs.
    claims
        The record of prepared claims.
    registrar
        Registers claims at the scheduler.
    cluster
        The Kubernetes API.
    """

    def __init__(
        self,
        options: Options,
        inspection: Inspection,
        claims: PreparedClaims,
        registrar: Registrar,
        cluster: Cluster,
    ) -> None:
        self._options = options
        self._inspection = inspection
        self._claims = claims
        self._registrar = registrar
        self._cluster = cluster
        self._publisher = Publisher(cluster, options.node)
        self._health = HealthReports(options.node)
        self._gpus: list[Gpu] = []
        self._changed = asyncio.Event()
        self._fault = ""
        #: One request for a claim at a time, and one conversation with the scheduler.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._registering = asyncio.Lock()
        hint = "--kubelet-dir has to name the kubelet's folder, and the driver has to run as root"
        services = [self._service_handlers(), *self._health.handlers()]
        self._service = Listener(options.endpoint, services, hint)
        self._registry = Listener(options.registry, [self._registry_handlers()], hint)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT.

        Raises
        ------
        NodeError
            There is no GPU, or a socket cannot be created.
        """
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        try:
            await self._check()
            if not self._gpus:
                raise NodeError("NVML shows no GPU on this node; run `gpushare doctor` for details")
            work = [asyncio.create_task(each) for each in (self._keep_checking(), self._publish())]
            waiting = asyncio.create_task(ended.wait())
            done, _ = await asyncio.wait({*work, waiting}, return_when=asyncio.FIRST_COMPLETED)
            for task in (*work, waiting):
                task.cancel()
            await asyncio.gather(*work, waiting, return_exceptions=True)
            for task in done:
                task.result()
        finally:
            # The kubelet must not find a driver whose service has ended.
            await self._registry.close()
            await self._service.close()
            await self._cluster.close()
            self._inspection.stop()

    async def _keep_checking(self) -> None:
        while True:
            await self._service.keep()
            await self._registry.keep()
            await asyncio.sleep(self._options.interval)
            await self._check()

    async def _check(self) -> None:
        """Look at the GPUs, and make specifications and the scheduler's claims follow from the record."""
        self._update(await self._look())
        fault = ""
        try:
            for claim, _ in self._claims:
                self._claims.specify(claim)
        except OSError as error:
            fault = f"cannot write the specifications of claims ({error}); trying again"
        if fault and fault != self._fault:
            log.warning("%s", fault)
        self._fault = fault
        await self._register()

    async def _look(self) -> list[Gpu]:
        """Inspect the GPUs. If that takes long, their state counts as unknown until it ends."""
        looking = asyncio.create_task(asyncio.to_thread(self._inspection.look))
        done, _ = await asyncio.wait({looking}, timeout=STALLED)
        if not done:
            self._update([replace(gpu, fault="unchecked") for gpu in self._gpus])
        return await looking

    def _update(self, gpus: list[Gpu]) -> None:
        """Make taints and health follow from the result of a check."""
        before = {gpu.uuid: gpu.fault for gpu in self._gpus}
        for gpu in gpus:
            if before.get(gpu.uuid) != gpu.fault:
                log.info("%s is %s", gpu.uuid, gpu.fault or "healthy")
        if gpus != self._gpus:
            self._gpus = gpus
            self._changed.set()
        self._health.update(gpus)

    async def _register(self) -> None:
        async with self._registering:
            await asyncio.to_thread(self._registrar.synchronize, [*self._claims])

    # --- ResourceSlices -----------------------------------------------------------------------

    async def _publish(self) -> None:
        known, pause = "", self._options.interval
        while True:
            self._changed.clear()
            fault = ""
            try:
                await self._publisher.publish(self._devices())
                pause = self._options.interval
            except ClusterError as error:
                fault = str(error)
                pause = min(2 * pause, self._options.resync)
            if fault and fault != known:
                log.warning("cannot publish the GPUs: %s; trying again", fault)
            known = fault
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    self._changed.wait(), pause if fault else self._options.resync
                )

    def _devices(self) -> list[dict[str, Any]]:
        host = self._options.host_memory or self._inspection.host_budget
        each = None if host is None else host // len(self._gpus)
        return [device(gpu, self._options.sharing, each) for gpu in self._gpus]

    # --- The kubelet's requests ---------------------------------------------------------------

    def _registry_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": unary(self._get_info, registration.InfoRequest, registration.PluginInfo),
                "NotifyRegistrationStatus": unary(
                    self._registered,
                    registration.RegistrationStatus,
                    registration.RegistrationStatusResponse,
                ),
            },
        )

    def _service_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "NodePrepareResources": unary(
                    self._prepare_all,
                    dra.NodePrepareResourcesRequest,
                    dra.NodePrepareResourcesResponse,
                ),
                "NodeUnprepareResources": unary(
                    self._unprepare_all,
                    dra.NodeUnprepareResourcesRequest,
                    dra.NodeUnprepareResourcesResponse,
                ),
            },
        )

    async def _get_info(
        self, request: registration.InfoRequest, context: Any
    ) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=TYPE,
            name=DRIVER,
            endpoint=str(self._options.endpoint),
            supported_versions=[VERSION, *SERVICES],
        )

    async def _registered(
        self, status: registration.RegistrationStatus, context: Any
    ) -> registration.RegistrationStatusResponse:
        if status.plugin_registered:
            log.info("the kubelet has registered %s", DRIVER)
        else:
            log.warning("the kubelet did not register %s: %s", DRIVER, status.error)
        return registration.RegistrationStatusResponse()

    async def _prepare_all(
        self, request: dra.NodePrepareResourcesRequest, context: Any
    ) -> dra.NodePrepareResourcesResponse:
        answer = dra.NodePrepareResourcesResponse()
        for asked in request.claims:
            answer.claims[asked.uid].CopyFrom(await self._prepare(asked))
        await self._register()
        return answer

    async def _prepare(self, asked: dra.Claim) -> dra.NodePrepareResourceResponse:
        try:
            async with self._lock(asked.uid):
                claim = self._claims.get(asked.uid) or await self._record(asked)
                self._claims.specify(claim)
        except (ClaimError, ClusterError) as error:
            return self._failed(asked, str(error))
        except OSError as error:
            return self._failed(asked, f"the node cannot record the claim: {error}")
        answer = dra.NodePrepareResourceResponse()
        for gpu, names in zip(claim.gpus, self._claims.devices(claim), strict=True):
            answer.devices.add(
                request_names=[gpu.request] if gpu.request else [],
                pool_name=gpu.pool,
                device_name=gpu.device,
                cdi_device_ids=names,
            )
        return answer

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _record(self, asked: dra.Claim) -> PreparedClaim:
        if not is_uid(asked.uid):
            raise ClaimError(f"{asked.uid!r} is not the uid of a claim")
        found = await self._cluster.claim(asked.namespace, asked.name)
        gpus = by_device([gpu.uuid for gpu in self._gpus])
        claim = prepared_claim(found, asked.uid, self._options.node, gpus)
        self._claims.add(claim)
        log.info("prepared the claim %s/%s for %s", claim.namespace, claim.name, claim.user)
        return claim

    def _failed(self, asked: dra.Claim, fault: str) -> dra.NodePrepareResourceResponse:
        log.warning("cannot prepare the claim %s/%s: %s", asked.namespace, asked.name, fault)
        return dra.NodePrepareResourceResponse(error=fault)

    async def _unprepare_all(
        self, request: dra.NodeUnprepareResourcesRequest, context: Any
    ) -> dra.NodeUnprepareResourcesResponse:
        answer = dra.NodeUnprepareResourcesResponse()
        for asked in request.claims:
            fault = ""
            try:
                async with self._lock(asked.uid):
                    self._claims.remove(asked.uid)
            except OSError as error:
                fault = f"the node cannot delete the record of the claim: {error}"
                log.warning("%s", fault)
            answer.claims[asked.uid].CopyFrom(dra.NodeUnprepareResourceResponse(error=fault))
        await self._register()
        return answer
