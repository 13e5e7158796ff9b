# SPDX-License-Identifier: BSD-3-Clause
"""Reports about the health of GPUs: what the conditions say, heartbeats, and checks that do not end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest

from jupyter_gpushare.deploy.kubernetes.dra import driver
from jupyter_gpushare.deploy.kubernetes.dra import health_pb2 as messages
from jupyter_gpushare.deploy.kubernetes.dra.cluster import Cluster
from jupyter_gpushare.deploy.kubernetes.dra.conditions import CONDITIONS, taints
from jupyter_gpushare.deploy.kubernetes.dra.driver import Options
from jupyter_gpushare.deploy.kubernetes.dra.health import HEARTBEAT, SERVICES, HealthReports
from jupyter_gpushare.deploy.kubernetes.dra.inspection import Inspection
from jupyter_gpushare.deploy.kubernetes.dra.prepared import Mounts, PreparedClaims
from jupyter_gpushare.deploy.kubernetes.dra.registrar import Registrar
from jupyter_gpushare.deploy.kubernetes.dra.slices import Gpu, Sharing
from jupyter_gpushare.deploy.kubernetes.node import Fault
from jupyter_gpushare.deploy.kubernetes.rpc import Listener
from tests.deploy.api_server import NODE, ApiServer
from tests.support.client import PATIENCE
from tests.support.scheduler import GIB

GPU = Gpu("GPU-0A", "T4", GIB)
#: The kubelet takes a GPU for unknown after that many seconds without a report.
TIMEOUT = 30
#: Characters of a message that the kubelet shows.
LONGEST = 1024


def test_each_fault_has_a_taint_and_an_explanation() -> None:
    assert {*CONDITIONS} == {*get_args(Fault)}
    for fault, condition in CONDITIONS.items():
        message = condition.message("GPU-" + "f" * 60)
        assert len(message) < LONGEST
        assert bool(taints(fault)) == bool(message) == (condition.health != "HEALTHY")
        assert not message or "GPU-" in message


async def reports(socket: Path, service: str) -> AsyncIterator[list[tuple[str, str]]]:
    """Watch the health of devices as the kubelet does."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    async with grpc.aio.insecure_channel(f"unix:{socket}", options) as channel:
        watch = channel.unary_stream(
            f"/{service}/NodeWatchResources",
            request_serializer=messages.NodeWatchResourcesRequest.SerializeToString,
            response_deserializer=messages.NodeWatchResourcesResponse.FromString,
        )
        async for report in watch(messages.NodeWatchResourcesRequest()):
            yield [
                (each.device.device_name, messages.HealthStatus.Name(each.health))
                for each in report.devices
            ]


def test_the_kubelet_gets_a_report_at_intervals_and_at_once_after_a_change(node: Path) -> None:
    assert 2 * HEARTBEAT < TIMEOUT
    socket = node / "dra.sock"

    async def watch() -> None:
        often, rarely = HealthReports("n", 0.02), HealthReports("n", 2 * PATIENCE)
        for each in (often, rarely):
            each.update([GPU])
            listener = Listener(socket, each.handlers(), "")
            await listener.keep()
            for service in SERVICES:
                found = reports(socket, service)
                assert await anext(found) == [("gpu-0a", "HEALTHY")]
                if each is often:
                    assert await anext(found) == [("gpu-0a", "HEALTHY")]
                else:
                    each.update([])
                    assert await anext(found) == []
                    each.update([GPU])
                await found.aclose()
            await listener.close()

    asyncio.run(asyncio.wait_for(watch(), PATIENCE))


class HangingInspection(Inspection):
    """A GPU that NVML describes only while it responds."""

    def __init__(self) -> None:
        self.responding = threading.Event()
        self.responding.set()

    def look(self) -> list[Gpu]:
        assert self.responding.wait(PATIENCE)
        return [GPU]

    @property
    def host_budget(self) -> int | None:
        return None

    def stop(self) -> None:
        pass


def test_gpus_are_unknown_and_tainted_while_nvml_hangs(
    node: Path, api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig())
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(driver, "STALLED", 0.1)
    options = Options(NODE, node, Sharing(4, 1), None, 0.02, 0.2)
    for socket in (options.endpoint, options.registry):
        socket.parent.mkdir(parents=True)
    inspection = HangingInspection()
    mounts = Mounts(node / "gpushare" / "s.sock", node, "env")
    claims = PreparedClaims(tmp_path / "state", tmp_path / "cdi", mounts)

    async def tainted(*keys: str) -> None:
        def met(specs: list[dict[str, Any]]) -> bool:
            devices = [found for each in specs for found in each["devices"]]
            found = [taint["key"] for each in devices for taint in each.get("taints", ())]
            return len(devices) == 1 and found == [*keys]

        await asyncio.to_thread(api.until, met)

    async def watch() -> None:
        ours = driver.Driver(options, inspection, claims, Registrar(mounts.socket), Cluster())
        running = asyncio.create_task(ours.run())
        await tainted()
        found = reports(options.endpoint, SERVICES[0])

        async def until(health: str) -> None:
            # On a busy machine, another check may take long, too.
            while await anext(found) != [("gpu-0a", health)]:
                pass

        await until("HEALTHY")
        for _ in range(2):
            inspection.responding.clear()
            await until("UNKNOWN")
            await tainted("jupyter-gpushare/unchecked")
            inspection.responding.set()
            await until("HEALTHY")
            await tainted()
        await found.aclose()
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(watch(), PATIENCE))
