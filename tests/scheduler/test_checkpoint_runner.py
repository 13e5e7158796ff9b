# SPDX-License-Identifier: BSD-3-Clause
"""How the scheduler carries out orders to checkpoint and restore, with a driver that does as it is told."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu.checkpoint_runner import Hibernations
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.gpu.drivers import Driver
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.scheduler.stand_in import wait_for
from tests.support.checkpoints import StandIn

GPU = "GPU-0"


class FullGpu(Devices):
    """A GPU with 10 free bytes, which does not show what is being restored."""

    def __init__(self) -> None:
        super().__init__(None)

    def read(self, gpu: str) -> ev.Device | None:
        return ev.Device(gpu, 100, 90)


async def test_two_restores_do_not_take_the_same_room(
    stand_in: StandIn,
    processes: Callable[[], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[ev.Event] = []
    pids = {client: processes().pid for client in (1, 2, 3)}
    driver = Driver(stand_in.library, None, False)
    steps = Hibernations(driver, FullGpu(), events.append, lambda client: Target(pids[client]))
    for client in pids:
        steps.hibernate(ev.Hibernate(client, GPU))
    await wait_for(lambda: len(events) == 3)
    monkeypatch.setattr(hibernator, "ROOM_PATIENCE", 0.0)
    stand_in.tell("restore", "hang")
    steps.wake(ev.Wakeup(1, gpu=GPU, needs=6))
    await wait_for(lambda: "restore" in stand_in.calls(pids[1]))
    steps.wake(ev.Wakeup(2, gpu=GPU, needs=6))
    await wait_for(lambda: len(events) == 4)
    answer = events[-1]
    assert isinstance(answer, ev.Woken)
    assert (answer.client, answer.ok, answer.code) == (2, False, "room")
    # The rest is enough for a third one.
    steps.wake(ev.Wakeup(3, gpu=GPU, needs=4))
    await wait_for(lambda: "restore" in stand_in.calls(pids[3]))
    stand_in.let_go("restore")
    await wait_for(lambda: len(events) == 6)
    steps.wake(ev.Wakeup(2, gpu=GPU, needs=6))
    await wait_for(lambda: len(events) == 7)
    assert [event.ok for event in events[4:] if isinstance(event, ev.Woken)] == [True] * 3
    await steps.close()
