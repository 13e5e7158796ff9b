# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's hibernator over a driver that fails and hangs as it is told, with real processes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu import checkpoint_runner as hibernations
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Deadlines
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.scheduler.stand_in import FINE, Make, helper_of, said, wait_for
from tests.support.checkpoints import StandIn


async def test_a_process_is_hibernated_and_woken(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    assert said(await one.hibernate(Target(pid))) == FINE
    assert stand_in.state(pid) == "checkpointed"
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"
    assert stand_in.calls(pid) == ["lock", "checkpoint", "state", "restore", "unlock"]
    # Awake already: a wake that is late does nothing.
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.calls(pid)[5:] == ["state"]


async def test_one_helper_serves_all(
    make_hibernator: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    one = make_hibernator()
    pids = [processes().pid for _ in range(20)]
    for _ in range(2):
        outcomes = await asyncio.gather(*(one.hibernate(Target(pid)) for pid in pids))
        assert [said(outcome) for outcome in outcomes] == [FINE] * 20
        assert {stand_in.state(pid) for pid in pids} == {"checkpointed"}
        outcomes = await asyncio.gather(*(one.wake(Target(pid)) for pid in pids))
        assert [said(outcome) for outcome in outcomes] == [FINE] * 20
        assert {stand_in.state(pid) for pid in pids} == {"running"}
    helper = helper_of(one)
    await one.close()
    assert not Path(f"/proc/{helper}").exists()


@pytest.mark.parametrize(
    ("result", "code", "why"),
    [
        (600, "busy", "was at work for 2 s"),
        (800, "permission", "failed with CUDA_ERROR_NOT_PERMITTED: "),
        (304, "permission", "the driver's lock of process"),
        (801, "failed", "the driver's lock of process"),
        (3, "failed", "the driver's lock of process"),
    ],
)
async def test_a_process_that_cannot_be_locked_continues(
    make_hibernator: Make, stand_in: StandIn, pid: int, result: int, code: str, why: str
) -> None:
    stand_in.tell("lock", str(result))
    outcome = await make_hibernator().hibernate(Target(pid))
    assert said(outcome) == (False, code)
    assert why in outcome.text
    assert stand_in.calls(pid) == ["lock"]
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_checkpointed_is_unlocked(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.tell("checkpoint", "801")
    stand_in.tell("unlock", "once 2")
    outcome = await make_hibernator().hibernate(Target(pid))
    assert said(outcome) == (False, "failed")
    assert "checkpoint" in outcome.text
    assert "CUDA_ERROR_NOT_SUPPORTED" in outcome.text
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_unlocked_is_reported_and_woken_later(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.tell("checkpoint", "801")
    stand_in.tell("unlock", "2")
    one = make_hibernator()
    outcome = await one.hibernate(Target(pid))
    assert said(outcome) == (False, "stuck")
    assert "CUDA_ERROR_NOT_SUPPORTED; and it is not awake again: " in outcome.text
    assert stand_in.state(pid) == "locked"
    stand_in.let_go("unlock")
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"


async def test_a_failed_restore_is_retried(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    await one.hibernate(Target(pid))
    stand_in.tell("restore", "once 2")
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.calls(pid).count("restore") == 2
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_restored_stays_hibernated(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    await one.hibernate(Target(pid))
    stand_in.tell("restore", "2")
    outcome = await one.wake(Target(pid))
    assert said(outcome) == (False, "failed")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in outcome.text
    assert stand_in.calls(pid).count("restore") == 4
    assert stand_in.state(pid) == "checkpointed"
    stand_in.let_go("restore")
    assert said(await one.wake(Target(pid))) == FINE


@pytest.mark.parametrize("result", [304, 800])
async def test_a_permission_error_while_waking_is_a_failure(
    make_hibernator: Make, stand_in: StandIn, pid: int, result: int
) -> None:
    stand_in.put(pid, "checkpointed")
    stand_in.tell("restore", str(result))
    assert said(await make_hibernator().wake(Target(pid))) == (False, "failed")


async def test_a_process_is_woken_on_another_gpu(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.tell("gpus", "123")
    one = make_hibernator()
    await one.hibernate(Target(pid))
    stand_in.tell("restore", "801")
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    assert said(await one.wake(Target(pid), pair)) == (False, "failed")
    # Once: it may be woken where it was.
    assert stand_in.lines("pairs") == ["12 21 33 "]
    assert stand_in.state(pid) == "checkpointed"
    stand_in.let_go("restore")
    assert said(await one.wake(Target(pid), pair)) == FINE
    assert stand_in.state(pid) == "running"
    # A repeated order finds it done.
    assert said(await one.wake(Target(pid), pair)) == FINE


@pytest.mark.parametrize("state", ["running", "locked"])
async def test_a_process_that_is_not_hibernated_is_not_moved(
    make_hibernator: Make, stand_in: StandIn, pid: int, state: str
) -> None:
    stand_in.put(pid, state)
    one = make_hibernator()
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    outcome = await one.wake(Target(pid), pair)
    assert said(outcome) == (False, "failed")
    assert "stays on the GPU that it is on" in outcome.text
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"


@pytest.mark.parametrize("ending", ["hang", "die"])
async def test_a_move_whose_answer_was_lost_counts(
    make_hibernator: Make, stand_in: StandIn, pid: int, ending: str
) -> None:
    stand_in.tell("gpus", "12")
    one = make_hibernator(Deadlines(restore=0.2)) if ending == "hang" else make_hibernator()
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    await one.hibernate(Target(pid))
    stand_in.tell("restore" if ending == "hang" else "unlock", ending)
    outcome = await one.wake(Target(pid), pair)
    if ending == "hang":
        assert said(outcome) == (False, "stuck")
        stand_in.let_go("restore")
        outcome = await one.wake(Target(pid), pair)
    assert said(outcome) == FINE
    assert stand_in.lines("pairs") == ["12 21 "]
    # Hibernated again, it is on the other GPU.
    await one.hibernate(Target(pid))
    assert said(await one.wake(Target(pid))) == FINE
    assert said(await one.wake(Target(pid), pair)) == (False, "failed")


@pytest.mark.parametrize(
    ("state", "steps"),
    [("locked", ["lock", "state", "checkpoint"]), ("checkpointed", ["lock", "state"])],
)
async def test_the_steps_of_an_earlier_scheduler_are_continued(
    make_hibernator: Make, stand_in: StandIn, pid: int, state: str, steps: list[str]
) -> None:
    stand_in.put(pid, state)
    one = make_hibernator()
    assert said(await one.hibernate(Target(pid))) == FINE
    assert stand_in.calls(pid) == steps
    stand_in.put(pid, "restoring")
    waking = asyncio.create_task(one.wake(Target(pid)))
    await wait_for(lambda: stand_in.calls(pid).count("state") > 3)
    stand_in.put(pid, "locked")
    assert said(await waking) == FINE
    assert stand_in.state(pid) == "running"


async def test_an_outdated_state_is_queried_again(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.put(pid, "locked")
    stand_in.tell("unlock", "once 401")
    assert said(await make_hibernator().wake(Target(pid))) == FINE
    assert stand_in.calls(pid) == ["state", "unlock", "state", "unlock"]


async def test_a_process_whose_driver_has_failed_is_reported(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.put(pid, "failed")
    one = make_hibernator()
    assert said(await one.hibernate(Target(pid))) == (False, "failed")
    outcome = await one.wake(Target(pid))
    assert said(outcome) == (False, "failed")
    assert outcome.text.endswith("has failed")


async def test_a_process_that_has_exited_is_reported(
    make_hibernator: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = processes()
    one = make_hibernator()
    await one.hibernate(Target(process.pid))
    process.kill()
    process.wait()
    outcome = await one.wake(Target(process.pid))
    assert said(outcome) == (False, "failed")
    assert outcome.text == f"process {process.pid} has ended"
    # Another process may have its number by now.
    assert stand_in.calls(process.pid) == ["lock", "checkpoint"]


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
async def test_a_hibernation_that_hangs_is_undone_when_it_ends(
    make_hibernator: Make, stand_in: StandIn, pid: int, step: str
) -> None:
    stand_in.tell(step, "hang")
    one = (
        make_hibernator(Deadlines(lock=0.1), lock_timeout=0.1)
        if step == "lock"
        else make_hibernator(Deadlines(checkpoint=0.2))
    )
    outcome = await one.hibernate(Target(pid))
    assert said(outcome) == (False, "stuck")
    assert f"the {step} of process {pid} has not ended" in outcome.text
    stand_in.let_go(step)
    await wait_for(lambda: "unlock" in stand_in.calls(pid))
    # And then the next call begins.
    assert said(await one.wake(Target(pid))) == FINE
    assert stand_in.state(pid) == "running"
    assert ("restore" in stand_in.calls(pid)) == (step == "checkpoint")


async def test_a_wake_that_hangs_is_carried_on(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator(Deadlines(restore=0.2))
    await one.hibernate(Target(pid))
    stand_in.tell("restore", "hang")
    assert said(await one.wake(Target(pid))) == (False, "stuck")
    again = asyncio.create_task(one.wake(Target(pid)))
    await asyncio.sleep(0)
    assert stand_in.calls(pid).count("restore") == 1
    stand_in.let_go("restore")
    assert said(await again) == FINE
    assert stand_in.calls(pid).count("restore") == 1
    assert stand_in.state(pid) == "running"


async def test_a_hanging_step_is_not_waited_for_without_end(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator(Deadlines(checkpoint=0.1, restore=0.1))
    stand_in.tell("checkpoint", "hang")
    assert said(await one.hibernate(Target(pid))) == (False, "stuck")
    outcome = await one.wake(Target(pid))
    assert said(outcome) == (False, "stuck")
    assert "an earlier step" in outcome.text


async def test_a_hanging_process_delays_no_other(
    make_hibernator: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    one = make_hibernator(Deadlines(checkpoint=0.2))
    stand_in.tell("checkpoint", "hang")
    stuck = [processes().pid for _ in range(2 * hibernator.HIBERNATING)]
    outcomes = await asyncio.gather(*(one.hibernate(Target(pid)) for pid in stuck))
    assert {said(outcome) for outcome in outcomes} == {(False, "stuck")}
    other = processes().pid
    stand_in.put(other, "checkpointed")
    assert said(await one.wake(Target(other))) == FINE


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_hibernation_that_has_not_begun_is_dropped_for_a_wake(
    make_hibernator: Make,
    stand_in: StandIn,
    processes: Callable[[], subprocess.Popen[bytes]],
    rounds: int,
) -> None:
    one = make_hibernator()
    stand_in.tell("lock", "hang")
    first = [processes().pid for _ in range(hibernator.HIBERNATING)]
    tasks = [asyncio.create_task(one.hibernate(Target(pid))) for pid in first]
    await wait_for(lambda: all(stand_in.calls(pid) for pid in first))
    late = processes().pid
    hibernating = asyncio.create_task(one.hibernate(Target(late)))
    for _ in range(rounds):
        await asyncio.sleep(0)
    assert said(await one.wake(Target(late))) == FINE
    assert said(await hibernating) == (False, "busy")
    assert "lock" not in stand_in.calls(late)
    stand_in.let_go("lock")
    assert [said(outcome) for outcome in await asyncio.gather(*tasks)] == [FINE] * len(first)


async def test_a_step_may_be_ordered_without_waiting_for_it(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    stand_in.tell("checkpoint", "hang")
    hibernating = asyncio.create_task(one.hibernate(Target(pid)))
    await wait_for(lambda: "checkpoint" in stand_in.calls(pid))
    hibernating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hibernating
    stand_in.let_go("checkpoint")
    await wait_for(lambda: stand_in.state(pid) == "checkpointed")
    assert said(await one.wake(Target(pid))) == FINE


async def test_no_restore_is_requested_without_room(
    make_hibernator: Make, stand_in: StandIn, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernator, "ROOM_PATIENCE", 0.0)
    one = make_hibernator()
    assert said(await one.hibernate(Target(pid))) == FINE
    outcome = await one.wake(Target(pid), None, lambda: False)
    assert said(outcome) == (False, "room")
    assert "no room" in outcome.text
    assert "restore" not in stand_in.calls(pid)
    answers = iter([False, True])
    monkeypatch.setattr(hibernator, "ROOM_PATIENCE", 60.0)
    assert said(await one.wake(Target(pid), None, lambda: next(answers))) == FINE
    assert "restore" in stand_in.calls(pid)


async def test_closing_waits_for_the_step_in_progress(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator()
    stand_in.tell("lock", "hang")
    hibernating = asyncio.create_task(one.hibernate(Target(pid)))
    await wait_for(lambda: "lock" in stand_in.calls(pid))
    closing = asyncio.create_task(one.close())
    stand_in.let_go("lock")
    await closing
    assert stand_in.state(pid) == "locked"
    assert said(await hibernating)[0] is False
    # The next scheduler has what this one left.
    assert said(await make_hibernator().wake(Target(pid))) == FINE


async def test_closing_ends_although_a_step_hangs(
    make_hibernator: Make, stand_in: StandIn, pid: int
) -> None:
    one = make_hibernator(Deadlines(close=0.1))
    stand_in.tell("lock", "hang")
    hibernating = asyncio.create_task(one.hibernate(Target(pid)))
    await wait_for(lambda: "lock" in stand_in.calls(pid))
    helper = helper_of(one)
    await one.close()
    assert not Path(f"/proc/{helper}").exists()
    assert said(await hibernating)[0] is False
    # It may be locked.
    assert said(await one.wake(Target(pid))) == (False, "stuck")


def test_the_scheduler_exits_before_systemd_kills_it(root: Path) -> None:
    unit = (root / "deploy" / "systemd" / "gpushare.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert hibernations.PATIENCE + Deadlines().close <= int(seconds) - 2
