# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's side of a privileged hibernator, over a driver that does as it is told."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu import checkpoint_helper, checkpoint_runner
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Hibernator
from jupyter_gpushare.scheduler.gpu.checkpoint_runner import Hibernations
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.gpu.drivers import Driver
from jupyter_gpushare.scheduler.gpu.helper_process import BUSY, HelperError
from jupyter_gpushare.scheduler.gpu.remote_helper import RemoteHelper
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.scheduler.stand_in import FINE, said, wait_for
from tests.support.checkpoints import StandIn
from tests.support.folders import socket_folder

PATIENCE = 60.0


class Service:
    """A hibernator as a service, which can be killed and started again."""

    def __init__(self, folder: Path, stand_in: StandIn) -> None:
        self.path = folder / "h.sock"
        self._stand_in = stand_in
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                *(LIBRARIES / "gpushare-hibernator", "--driver", self._stand_in.library),
                *("--listen", self.path),
            ]
        )

    async def started(self) -> None:
        self.start()
        await wait_for(self.path.exists)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)


@pytest.fixture
def service(stand_in: StandIn) -> Iterator[Service]:
    with socket_folder() as folder:
        made = Service(Path(folder), stand_in)
        yield made
        made.kill()


@pytest.fixture
async def one(service: Service, stand_in: StandIn) -> AsyncIterator[Hibernator]:
    hibernator = Hibernator(Driver(stand_in.library, None, False), service=service.path)
    yield hibernator
    await hibernator.close()


async def test_it_hibernates_and_wakes(
    one: Hibernator, service: Service, stand_in: StandIn, pid: int
) -> None:
    await service.started()
    assert (await one.probe(("580.65.06", ["A"]))).able
    assert said(await one.hibernate(Target(pid))) == FINE
    assert stand_in.state(pid) == "checkpointed"
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"


@pytest.mark.parametrize("step", ["lock", "checkpoint", "restore", "unlock"])
async def test_a_service_that_dies_in_a_step_is_waited_for(
    one: Hibernator, service: Service, stand_in: StandIn, pid: int, step: str
) -> None:
    await service.started()
    if step in ("restore", "unlock"):
        assert said(await one.hibernate(Target(pid))) == FINE
    stand_in.tell(step, "die")
    work = asyncio.create_task(
        one.wake(Target(pid)) if step in ("restore", "unlock") else one.hibernate(Target(pid))
    )
    await wait_for(service.has_ended)
    service.start()
    outcome = await work
    if step in ("restore", "unlock"):
        assert said(outcome) == FINE
    else:
        # It is not hibernated this time, and works.
        assert not outcome.ok
    assert stand_in.state(pid) == "running"
    assert said(await one.hibernate(Target(pid))) == FINE


async def test_a_service_that_does_not_come_back_is_reported(
    one: Hibernator, service: Service, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_helper, "RETURN", 0.1)
    await service.started()
    assert said(await one.hibernate(Target(pid))) == FINE
    service.kill()
    outcome = await one.wake(Target(pid))
    assert said(outcome) == (False, "helper")
    assert f"no hibernator answers on {service.path}" in outcome.text
    await service.started()
    assert said(await one.wake(Target(pid))) == FINE


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
async def test_a_process_that_may_be_locked_is_not_taken_as_awake(
    one: Hibernator,
    service: Service,
    stand_in: StandIn,
    pid: int,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """With "helper", the core lets a process use the driver again. A locked one would hang there."""
    monkeypatch.setattr(checkpoint_helper, "RETURN", 0.1)
    await service.started()
    stand_in.tell(step, "die")
    assert said(await one.hibernate(Target(pid))) == (False, "stuck")
    assert said(await one.wake(Target(pid))) == (False, "stuck")
    service.kill()
    await service.started()
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"
    # Nothing was done to it this time.
    service.kill()
    await wait_for(lambda: one._helper is not None and one._helper.ended)
    assert said(await one.hibernate(Target(pid))) == (False, "helper")


async def test_a_process_that_has_ended_is_reported(
    one: Hibernator,
    service: Service,
    stand_in: StandIn,
    processes: Callable[[], subprocess.Popen[bytes]],
) -> None:
    process = processes()
    await service.started()
    assert said(await one.hibernate(Target(process.pid))) == FINE
    process.kill()
    process.wait()
    outcome = await one.wake(Target(process.pid))
    assert (said(outcome), outcome.text) == (
        (False, "failed"),
        f"process {process.pid} has ended",
    )
    assert "restore" not in stand_in.calls(process.pid)


async def test_a_process_without_a_pidfd_for_now_has_not_ended(
    one: Hibernator, service: Service, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.started()
    with monkeypatch.context() as patch:
        patch.setattr(Target, "open", lambda _: None)
        outcome = await one.hibernate(Target(pid))
        assert said(outcome) == (False, "stuck")
        assert "has to wait" in outcome.text
    assert said(await one.hibernate(Target(pid))) == FINE


async def test_a_service_without_permission_is_reported(
    one: Hibernator, service: Service, stand_in: StandIn, pid: int
) -> None:
    await service.started()
    stand_in.tell("lock", "304")
    outcome = await one.hibernate(Target(pid))
    assert said(outcome) == (False, "permission")
    assert "the hibernator may lack CAP_SYS_PTRACE" in outcome.text


async def test_a_service_is_found_whenever_it_starts(
    service: Service, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_runner, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(checkpoint_runner, "LAST_PAUSE", 0.05)
    monkeypatch.setattr(checkpoint_helper, "RETURN", 0.1)
    events: list[ev.Event] = []
    driver = Driver(stand_in.library, None, False)
    steps = Hibernations(driver, Devices(None), events.append, lambda client: None, service.path)
    steps.probe()
    await wait_for(lambda: events)
    await service.started()
    await wait_for(lambda: len(events) == 2)
    first, second = events
    assert isinstance(first, ev.Hibernatable)
    assert isinstance(second, ev.Hibernatable)
    assert (first.able, first.code) == (False, "helper")
    assert "an administrator can start it: gpushare hibernator" in first.text
    assert second.able
    service.kill()
    await wait_for(lambda: len(events) >= 3)
    third = events[2]
    assert isinstance(third, ev.Hibernatable)
    assert (third.able, third.code) == (False, "helper")
    await service.started()
    await wait_for(lambda: events[-1] == second)
    await steps.close()


async def test_a_service_with_too_many_steps_is_asked_again(
    one: Hibernator, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.started()
    with monkeypatch.context() as patch:
        patch.setattr(RemoteHelper, "_send", lambda *_: BUSY)
        assert (await one.probe(("580.65.06", ["A"]))).code == "helper"
    assert (await one.probe(("580.65.06", ["A"]))).able


async def test_a_service_of_another_user_is_not_trusted(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.started()
    monkeypatch.setattr("jupyter_gpushare.scheduler.gpu.remote_helper.peer_uid", lambda _: 65534)
    with pytest.raises(HelperError, match="belongs to another user"):
        RemoteHelper.connect(service.path)


async def test_a_service_that_answers_nonsense_counts_as_ended(service: Service) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fsencode(service.path))
        listener.listen()
        helper = RemoteHelper.connect(service.path)
        peer, _ = listener.accept()
        with peer:
            asked = asyncio.create_task(helper.ask("driver"))
            await asyncio.sleep(0)
            assert peer.recv(256) == b"1 driver"
            peer.send(b"yes")
            with pytest.raises(HelperError, match="sent an invalid answer"):
                await asked


async def test_a_service_that_ends_before_it_is_asked_leaves_no_error_behind(
    service: Service,
) -> None:
    """An error that nothing retrieves would end the scheduler."""
    left: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: left.append(context))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(os.fsencode(service.path))
        listener.listen()
        helper = RemoteHelper.connect(service.path)
        peer, _ = listener.accept()
        peer.close()
        with pytest.raises(HelperError, match="Broken pipe"):
            await helper.ask("driver")
    del helper
    gc.collect()
    assert left == []
