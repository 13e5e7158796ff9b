# SPDX-License-Identifier: BSD-3-Clause
"""A server leaves while it has decisions to carry out."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.server.options import Options
from jupyter_gpushare.scheduler.server.server import Server

GIB = 1 << 30
GPU = "GPU-00000000-0000-0000-0000-000000000001"


class OneGpu(Devices):
    """A machine with one GPU."""

    def __init__(self) -> None:
        super().__init__(None)

    def start(self) -> list[ev.Device]:
        return [self.read(GPU)]

    def read(self, gpu: str) -> ev.Device:
        return ev.Device(gpu, 16 * GIB, 0)

    def poll(self, gpu: str) -> ev.Device:
        return self.read(gpu)


@pytest.mark.parametrize("broken", [False, True])
async def test_a_broken_core_gets_no_reading_for_a_client_that_has_just_attached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    core, events = Core(REGISTRY, Rules()), []
    server = Server(core, OneGpu(), Options(path=tmp_path / "s"))
    await server.start()

    def handle(event: ev.Event, now: float) -> list[ev.Decision]:
        events.append(event)
        if broken:
            raise RuntimeError("the state of the core is wrong")
        return []

    monkeypatch.setattr(core, "handle", handle)
    server._defer([ev.ReadDevice(GPU, 0.0)])
    await server.stop(lambda: None, broken=broken)
    assert (ev.Device(GPU, 16 * GIB, 0) in events) is not broken
    assert not (tmp_path / "s").exists()
