# SPDX-License-Identifier: BSD-3-Clause
"""Reports the health of GPUs to the kubelet, which shows it in the status of their pods (KEP-4680)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from . import health_pb2 as api
from .conditions import CONDITIONS
from .slices import Gpu, device_name

#: The services, as the kubelet calls them in registrations and in gRPC. Kubelets before 1.37 know only the last one.
SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")

#: Seconds after which the kubelet gets a report although nothing has changed. For the kubelet, a GPU is unknown if the
#: last report is older than 30 s.
HEARTBEAT = 10.0


class HealthReports:
    """The service from which the kubelet gets reports.

    Parameters
    ----------
    pool
        The name of the pool with the devices.
    heartbeat
        The longest time between two reports, in seconds.
    """

    def __init__(self, pool: str, heartbeat: float = HEARTBEAT) -> None:
        self._pool = pool
        self._heartbeat = heartbeat
        self._gpus: list[Gpu] = []
        self._checked = 0.0
        self._changed = asyncio.Event()

    def update(self, gpus: Sequence[Gpu]) -> None:
        """Set the result of a check. If it has changed, the kubelet gets a report at once."""
        self._checked = time.time()
        if [*gpus] != self._gpus:
            self._gpus = [*gpus]
            self._changed.set()
            self._changed = asyncio.Event()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of all versions, which have the same messages."""
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch,
            api.NodeWatchResourcesRequest.FromString,
            api.NodeWatchResourcesResponse.SerializeToString,
        )
        return [
            grpc.method_handlers_generic_handler(name, {"NodeWatchResources": watch})
            for name in SERVICES
        ]

    async def _watch(
        self, request: api.NodeWatchResourcesRequest, context: Any
    ) -> AsyncIterator[api.NodeWatchResourcesResponse]:
        while True:
            # Before the report, so that no change is missed while the kubelet is reading it.
            changed = self._changed
            yield self._report()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), self._heartbeat)

    def _report(self) -> api.NodeWatchResourcesResponse:
        report = api.NodeWatchResourcesResponse()
        for gpu in self._gpus:
            condition = CONDITIONS[gpu.fault]
            report.devices.add(
                device=api.DeviceIdentifier(
                    pool_name=self._pool, device_name=device_name(gpu.uuid)
                ),
                health=condition.health,
                last_updated_time=int(self._checked),
                message=condition.message(gpu.uuid),
            )
        return report
