# SPDX-License-Identifier: BSD-3-Clause
"""The hibernator's helper: killed, missing or silent, and what of that is reported."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core.messages import Event, Hibernatable
from jupyter_gpushare.scheduler.core.refusals import WHY
from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu.checkpoint_runner import Hibernations
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.scheduler.stand_in import FINE, PATIENCE, Make, helper_of, put_program, said, wait_for
from tests.support.checkpoints import StandIn


async def test_a_killed_helper_is_replaced_and_the_state_queried(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    stand_in.tell("checkpoint", "hang")
    hibernating = asyncio.create_task(one.hibernate(Target(pid)))
    await wait_for(lambda: "checkpoint" in stand_in.calls(pid))
    first = helper_of(one)
    os.kill(first, signal.SIGKILL)
    outcome = await hibernating
    assert said(outcome) == (False, "helper")
    assert "ended with status -9" in outcome.text
    assert stand_in.state(pid) == "running"
    assert stand_in.calls(pid) == ["lock", "checkpoint", "state", "unlock"]
    assert helper_of(one) != first
    stand_in.let_go("checkpoint")
    assert said(await one.hibernate(Target(pid))) == FINE


@pytest.mark.parametrize("step", ["state", "restore", "unlock"])
async def test_a_driver_that_crashes_the_helper_only_delays_a_wake(
    make_hibernator: Make, stand_in: StandIn, pid: int, step: str
) -> None:
    one = make_hibernator()
    await one.hibernate(Target(pid))
    stand_in.tell(step, "die")
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"


async def test_a_crash_in_the_lock_loses_nothing(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    stand_in.tell("lock", "die")
    assert said(await one.hibernate(Target(pid))) == (False, "helper")
    assert stand_in.state(pid) == "running"
    assert said(await one.hibernate(Target(pid))) == FINE


async def test_a_helper_that_cannot_load_the_driver_is_reported_and_started_again_later(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    await one.hibernate(Target(pid))
    stand_in.library.rename(stand_in.library.with_name("gone"))
    try:
        os.kill(helper_of(one), signal.SIGKILL)
        outcome = await one.wake(Target(pid))
        assert said(outcome) == (False, "helper")
        assert "the driver cannot be loaded" in outcome.text
        assert (await one.probe()).code == "helper"
    finally:
        stand_in.library.with_name("gone").rename(stand_in.library)
    assert said(await one.wake(Target(pid))) == FINE


async def test_a_missing_helper_is_reported(
    make_hibernator: Make, pid: int, tmp_path: Path
) -> None:
    one = make_hibernator(program=tmp_path / "none")
    outcome = await one.hibernate(Target(pid))
    assert said(outcome) == (False, "helper")
    assert "none cannot be run: No such file or directory" in outcome.text
    found = await one.probe()
    assert not found.able
    assert found.code == "helper"
    assert found.text.endswith("install jupyter-gpushare again")


@pytest.mark.parametrize("said_instead", ["nonsense", "1", "one 0 RUNNING", "1 0 A B C"])
async def test_a_helper_that_does_not_answer_is_killed(
    make_hibernator: Make, pid: int, tmp_path: Path, said_instead: str
) -> None:
    program = put_program(tmp_path, "read line", f"echo {said_instead}", "exec sleep 1000")
    one = make_hibernator(program=program)
    outcome = await asyncio.wait_for(one.hibernate(Target(pid)), PATIENCE)
    # It may have locked the process.
    assert said(outcome) == (False, "stuck")
    assert "ended with status -9" in outcome.text


async def test_other_output_of_a_driver_is_read_whatever_its_length(
    make_hibernator: Make, pid: int, tmp_path: Path
) -> None:
    flood = "head -c 1000000 /dev/zero | tr '\\0' x >&2"
    program = put_program(tmp_path, flood, "read number rest", "echo $number 801 NO")
    outcome = await asyncio.wait_for(
        make_hibernator(program=program).hibernate(Target(pid)), PATIENCE
    )
    assert said(outcome) == (False, "failed")
    assert "failed with NO" in outcome.text


async def test_an_internal_error_is_reported_as_an_outcome(
    make_hibernator: Make, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make_hibernator()

    async def fails(*words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(one, "_step", fails)
    assert said(await one.hibernate(Target(pid))) == (False, "helper")


async def test_a_driver_that_answers_nonsense_counts_as_unable(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path, "read number rest", "echo $number 0 YES none", "exec cat").rename(
        tmp_path / "gpushare-hibernator"
    )
    monkeypatch.setattr(hibernator, "libraries", lambda: Libraries(*[tmp_path / "library"] * 3))
    events: list[Event] = []
    driver = Driver(stand_in.library, None, False)
    steps = Hibernations(driver, Devices(None), events.append, lambda client: None)
    steps.probe()
    await wait_for(lambda: events)
    assert events == [Hibernatable(False, False, "helper", WHY["helper"])]
    await steps.close()
