# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's hibernator over a driver that fails, hangs and dies as it is told, with real processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core.messages import Event, Hibernatable
from jupyter_gpushare.scheduler.core.refusals import WHY
from jupyter_gpushare.scheduler.gpu import checked_drivers
from jupyter_gpushare.scheduler.gpu import checkpoint_helper as hibernator
from jupyter_gpushare.scheduler.gpu import checkpoint_runner as hibernations
from jupyter_gpushare.scheduler.gpu import checkpoint_support as ability
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Deadlines, Hibernator, Outcome
from jupyter_gpushare.scheduler.gpu.checkpoint_runner import Hibernations
from jupyter_gpushare.scheduler.gpu.checkpoint_support import judge
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries
from tests.support.checkpoints import StandIn, build_stand_in

PATIENCE = 60.0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    monkeypatch.setattr(hibernator, "PAUSES", (0.01, 0.01, 0.01))
    return StandIn(tmp_path, library)


Make = Callable[..., Hibernator]


@pytest.fixture
async def make(stand_in: StandIn) -> AsyncIterator[Make]:
    made = []

    def one(deadlines: Deadlines | None = None, **options: object) -> Hibernator:
        driver = Driver(stand_in.library, None, False)
        made.append(Hibernator(driver, deadlines=deadlines, **options))  # type: ignore[arg-type]
        return made[-1]

    yield one
    for step in ("state", "lock", "checkpoint", "restore", "unlock"):
        (stand_in.folder / step).unlink(missing_ok=True)
    for each in made:
        await each.close()


@pytest.fixture
def processes() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    started = []

    def one() -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["sleep", "1000"]))
        return started[-1]

    yield one
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def pid(processes: Callable[[], subprocess.Popen[bytes]]) -> int:
    return processes().pid


async def wait_for(met: Callable[[], object]) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not met():
        assert loop.time() < deadline
        await asyncio.sleep(0.01)


def helper_of(one: Hibernator) -> int:
    """The helper's process."""
    assert one._helper is not None
    return one._helper.process.pid


def said(outcome: Outcome) -> tuple[bool, str]:
    assert outcome.seconds >= 0
    assert bool(outcome.text) != outcome.ok
    assert "\n" not in outcome.text
    return outcome.ok, outcome.code


FINE = (True, "")


async def test_a_process_is_hibernated_and_woken(make: Make, stand_in: StandIn, pid: int) -> None:
    one = make()
    assert said(await one.hibernate(pid)) == FINE
    assert stand_in.state(pid) == "checkpointed"
    assert said(await one.wake(pid)) == FINE
    assert stand_in.state(pid) == "running"
    assert stand_in.calls(pid) == ["lock", "checkpoint", "state", "restore", "unlock"]
    # Awake already: a wake that is late does nothing.
    assert said(await one.wake(pid)) == FINE
    assert stand_in.calls(pid)[5:] == ["state"]


async def test_one_helper_serves_all(
    make: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    one = make()
    pids = [processes().pid for _ in range(20)]
    for _ in range(2):
        outcomes = await asyncio.gather(*map(one.hibernate, pids))
        assert [said(outcome) for outcome in outcomes] == [FINE] * 20
        assert {stand_in.state(pid) for pid in pids} == {"checkpointed"}
        outcomes = await asyncio.gather(*map(one.wake, pids))
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
    make: Make, stand_in: StandIn, pid: int, result: int, code: str, why: str
) -> None:
    stand_in.tell("lock", str(result))
    outcome = await make().hibernate(pid)
    assert said(outcome) == (False, code)
    assert why in outcome.text
    assert stand_in.calls(pid) == ["lock"]
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_checkpointed_is_unlocked(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.tell("checkpoint", "801")
    stand_in.tell("unlock", "once 2")
    outcome = await make().hibernate(pid)
    assert said(outcome) == (False, "failed")
    assert "checkpoint" in outcome.text
    assert "CUDA_ERROR_NOT_SUPPORTED" in outcome.text
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_unlocked_is_reported_and_woken_later(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.tell("checkpoint", "801")
    stand_in.tell("unlock", "2")
    one = make()
    outcome = await one.hibernate(pid)
    assert said(outcome) == (False, "stuck")
    assert "CUDA_ERROR_NOT_SUPPORTED; and it is not awake again: " in outcome.text
    assert stand_in.state(pid) == "locked"
    stand_in.let_go("unlock")
    assert said(await one.wake(pid)) == FINE
    assert stand_in.state(pid) == "running"


async def test_a_failed_restore_is_retried(make: Make, stand_in: StandIn, pid: int) -> None:
    one = make()
    await one.hibernate(pid)
    stand_in.tell("restore", "once 2")
    assert said(await one.wake(pid)) == FINE
    assert stand_in.calls(pid).count("restore") == 2
    assert stand_in.state(pid) == "running"


async def test_a_process_that_cannot_be_restored_stays_hibernated(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make()
    await one.hibernate(pid)
    stand_in.tell("restore", "2")
    outcome = await one.wake(pid)
    assert said(outcome) == (False, "failed")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in outcome.text
    assert stand_in.calls(pid).count("restore") == 4
    assert stand_in.state(pid) == "checkpointed"
    stand_in.let_go("restore")
    assert said(await one.wake(pid)) == FINE


@pytest.mark.parametrize("result", [304, 800])
async def test_a_permission_error_while_waking_is_a_failure(
    make: Make, stand_in: StandIn, pid: int, result: int
) -> None:
    stand_in.put(pid, "checkpointed")
    stand_in.tell("restore", str(result))
    assert said(await make().wake(pid)) == (False, "failed")


async def test_a_process_is_woken_on_another_gpu(make: Make, stand_in: StandIn, pid: int) -> None:
    stand_in.tell("gpus", "123")
    one = make()
    await one.hibernate(pid)
    stand_in.tell("restore", "801")
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    assert said(await one.wake(pid, pair)) == (False, "failed")
    # Once: it may be woken where it was.
    assert stand_in.lines("pairs") == ["12 21 33 "]
    assert stand_in.state(pid) == "checkpointed"
    stand_in.let_go("restore")
    assert said(await one.wake(pid, pair)) == FINE
    assert stand_in.state(pid) == "running"
    # A repeated order finds it done.
    assert said(await one.wake(pid, pair)) == FINE


@pytest.mark.parametrize("state", ["running", "locked"])
async def test_a_process_that_is_not_hibernated_is_not_moved(
    make: Make, stand_in: StandIn, pid: int, state: str
) -> None:
    stand_in.put(pid, state)
    one = make()
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    outcome = await one.wake(pid, pair)
    assert said(outcome) == (False, "failed")
    assert "stays on the GPU that it is on" in outcome.text
    assert said(await one.wake(pid)) == FINE
    assert stand_in.state(pid) == "running"


@pytest.mark.parametrize("ending", ["hang", "die"])
async def test_a_move_whose_answer_was_lost_counts(
    make: Make, stand_in: StandIn, pid: int, ending: str
) -> None:
    stand_in.tell("gpus", "12")
    one = make(Deadlines(restore=0.2)) if ending == "hang" else make()
    pair = (f"GPU-{uuid.UUID('01' * 16)}", f"GPU-{uuid.UUID('02' * 16)}")
    await one.hibernate(pid)
    stand_in.tell("restore" if ending == "hang" else "unlock", ending)
    outcome = await one.wake(pid, pair)
    if ending == "hang":
        assert said(outcome) == (False, "stuck")
        stand_in.let_go("restore")
        outcome = await one.wake(pid, pair)
    assert said(outcome) == FINE
    assert stand_in.lines("pairs") == ["12 21 "]
    # Hibernated again, it is on the other GPU.
    await one.hibernate(pid)
    assert said(await one.wake(pid)) == FINE
    assert said(await one.wake(pid, pair)) == (False, "failed")


@pytest.mark.parametrize(
    ("state", "steps"),
    [("locked", ["lock", "state", "checkpoint"]), ("checkpointed", ["lock", "state"])],
)
async def test_the_steps_of_an_earlier_scheduler_are_continued(
    make: Make, stand_in: StandIn, pid: int, state: str, steps: list[str]
) -> None:
    stand_in.put(pid, state)
    one = make()
    assert said(await one.hibernate(pid)) == FINE
    assert stand_in.calls(pid) == steps
    stand_in.put(pid, "restoring")
    waking = asyncio.create_task(one.wake(pid))
    await wait_for(lambda: stand_in.calls(pid).count("state") > 3)
    stand_in.put(pid, "locked")
    assert said(await waking) == FINE
    assert stand_in.state(pid) == "running"


async def test_an_outdated_state_is_queried_again(make: Make, stand_in: StandIn, pid: int) -> None:
    stand_in.put(pid, "locked")
    stand_in.tell("unlock", "once 401")
    assert said(await make().wake(pid)) == FINE
    assert stand_in.calls(pid) == ["state", "unlock", "state", "unlock"]


async def test_a_process_whose_driver_has_failed_is_reported(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    stand_in.put(pid, "failed")
    one = make()
    assert said(await one.hibernate(pid)) == (False, "failed")
    outcome = await one.wake(pid)
    assert said(outcome) == (False, "failed")
    assert outcome.text.endswith("has failed")


async def test_a_process_that_has_exited_is_reported(
    make: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = processes()
    one = make()
    await one.hibernate(process.pid)
    stand_in.tell("restore", "2")
    process.kill()
    process.wait()
    outcome = await one.wake(process.pid)
    assert said(outcome) == (False, "failed")
    assert outcome.text == f"process {process.pid} has ended"
    assert stand_in.calls(process.pid).count("restore") == 1


# --- Steps that do not end ---


@pytest.mark.parametrize("step", ["lock", "checkpoint"])
async def test_a_hibernation_that_hangs_is_undone_when_it_ends(
    make: Make, stand_in: StandIn, pid: int, step: str
) -> None:
    stand_in.tell(step, "hang")
    one = (
        make(Deadlines(lock=0.1), lock_timeout=0.1)
        if step == "lock"
        else make(Deadlines(checkpoint=0.2))
    )
    outcome = await one.hibernate(pid)
    assert said(outcome) == (False, "stuck")
    assert f"the {step} of process {pid} has not ended" in outcome.text
    stand_in.let_go(step)
    await wait_for(lambda: "unlock" in stand_in.calls(pid))
    # And then the next call begins.
    assert said(await one.wake(pid)) == FINE
    assert stand_in.state(pid) == "running"
    assert ("restore" in stand_in.calls(pid)) == (step == "checkpoint")


async def test_a_wake_that_hangs_is_carried_on(make: Make, stand_in: StandIn, pid: int) -> None:
    one = make(Deadlines(restore=0.2))
    await one.hibernate(pid)
    stand_in.tell("restore", "hang")
    assert said(await one.wake(pid)) == (False, "stuck")
    again = asyncio.create_task(one.wake(pid))
    await asyncio.sleep(0)
    assert stand_in.calls(pid).count("restore") == 1
    stand_in.let_go("restore")
    assert said(await again) == FINE
    assert stand_in.calls(pid).count("restore") == 1
    assert stand_in.state(pid) == "running"


async def test_a_hanging_step_is_not_waited_for_without_end(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make(Deadlines(checkpoint=0.1, restore=0.1))
    stand_in.tell("checkpoint", "hang")
    assert said(await one.hibernate(pid)) == (False, "stuck")
    outcome = await one.wake(pid)
    assert said(outcome) == (False, "stuck")
    assert "an earlier step" in outcome.text


async def test_a_hanging_process_delays_no_other(
    make: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]]
) -> None:
    one = make(Deadlines(checkpoint=0.2))
    stand_in.tell("checkpoint", "hang")
    stuck = [processes().pid for _ in range(2 * hibernator.HIBERNATING)]
    outcomes = await asyncio.gather(*map(one.hibernate, stuck))
    assert {said(outcome) for outcome in outcomes} == {(False, "stuck")}
    other = processes().pid
    stand_in.put(other, "checkpointed")
    assert said(await one.wake(other)) == FINE


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_hibernation_that_has_not_begun_is_dropped_for_a_wake(
    make: Make, stand_in: StandIn, processes: Callable[[], subprocess.Popen[bytes]], rounds: int
) -> None:
    one = make()
    stand_in.tell("lock", "hang")
    first = [processes().pid for _ in range(hibernator.HIBERNATING)]
    tasks = [asyncio.create_task(one.hibernate(pid)) for pid in first]
    await wait_for(lambda: all(stand_in.calls(pid) for pid in first))
    late = processes().pid
    hibernating = asyncio.create_task(one.hibernate(late))
    for _ in range(rounds):
        await asyncio.sleep(0)
    assert said(await one.wake(late)) == FINE
    assert said(await hibernating) == (False, "busy")
    assert "lock" not in stand_in.calls(late)
    stand_in.let_go("lock")
    assert [said(outcome) for outcome in await asyncio.gather(*tasks)] == [FINE] * len(first)


async def test_a_step_may_be_ordered_without_waiting_for_it(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make()
    stand_in.tell("checkpoint", "hang")
    hibernating = asyncio.create_task(one.hibernate(pid))
    await wait_for(lambda: "checkpoint" in stand_in.calls(pid))
    hibernating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hibernating
    stand_in.let_go("checkpoint")
    await wait_for(lambda: stand_in.state(pid) == "checkpointed")
    assert said(await one.wake(pid)) == FINE


# --- A helper that ends ---


async def test_a_killed_helper_is_replaced_and_the_state_queried(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make()
    stand_in.tell("checkpoint", "hang")
    hibernating = asyncio.create_task(one.hibernate(pid))
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
    assert said(await one.hibernate(pid)) == FINE


@pytest.mark.parametrize("step", ["state", "restore", "unlock"])
async def test_a_driver_that_crashes_the_helper_only_delays_a_wake(
    make: Make, stand_in: StandIn, pid: int, step: str
) -> None:
    one = make()
    await one.hibernate(pid)
    stand_in.tell(step, "die")
    assert said(await one.wake(pid)) == FINE
    assert stand_in.state(pid) == "running"


async def test_a_crash_in_the_lock_loses_nothing(make: Make, stand_in: StandIn, pid: int) -> None:
    one = make()
    stand_in.tell("lock", "die")
    assert said(await one.hibernate(pid)) == (False, "helper")
    assert stand_in.state(pid) == "running"
    assert said(await one.hibernate(pid)) == FINE


async def test_a_helper_that_cannot_load_the_driver_is_reported_and_started_again_later(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make()
    await one.hibernate(pid)
    stand_in.library.rename(stand_in.library.with_name("gone"))
    try:
        os.kill(helper_of(one), signal.SIGKILL)
        outcome = await one.wake(pid)
        assert said(outcome) == (False, "helper")
        assert "the driver cannot be loaded" in outcome.text
        assert (await one.probe()).code == "helper"
    finally:
        stand_in.library.with_name("gone").rename(stand_in.library)
    assert said(await one.wake(pid)) == FINE


async def test_a_missing_helper_is_reported(make: Make, pid: int, tmp_path: Path) -> None:
    one = make(program=tmp_path / "none")
    outcome = await one.hibernate(pid)
    assert said(outcome) == (False, "helper")
    assert "none cannot be run: No such file or directory" in outcome.text
    found = await one.probe()
    assert not found.able
    assert found.code == "helper"
    assert found.text.endswith("install jupyter-gpushare again")


def put_program(folder: Path, *lines: str) -> Path:
    program = folder / "program"
    program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    program.chmod(0o700)
    return program


@pytest.mark.parametrize("said_instead", ["nonsense", "1", "one 0 RUNNING", "1 0 A B C"])
async def test_a_helper_that_does_not_answer_is_killed(
    make: Make, pid: int, tmp_path: Path, said_instead: str
) -> None:
    program = put_program(tmp_path, "read line", f"echo {said_instead}", "exec sleep 1000")
    one = make(program=program)
    outcome = await asyncio.wait_for(one.hibernate(pid), PATIENCE)
    assert said(outcome) == (False, "helper")
    assert "ended with status -9" in outcome.text


async def test_other_output_of_a_driver_is_read_whatever_its_length(
    make: Make, pid: int, tmp_path: Path
) -> None:
    flood = "head -c 1000000 /dev/zero | tr '\\0' x >&2"
    program = put_program(tmp_path, flood, "read number rest", "echo $number 801 NO")
    outcome = await asyncio.wait_for(make(program=program).hibernate(pid), PATIENCE)
    assert said(outcome) == (False, "failed")
    assert "failed with NO" in outcome.text


async def test_an_internal_error_is_reported_as_an_outcome(
    make: Make, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()

    async def fails(*words: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(one, "_step", fails)
    assert said(await one.hibernate(pid)) == (False, "helper")


async def test_a_driver_that_answers_nonsense_counts_as_unable(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_program(tmp_path, "read number rest", "echo $number 0 YES none", "exec cat").rename(
        tmp_path / "gpushare-hibernator"
    )
    monkeypatch.setattr(hibernator, "libraries", lambda: Libraries(*[tmp_path / "library"] * 3))
    events: list[Event] = []
    steps = Hibernations(Driver(stand_in.library, None, False), Devices(None), events.append)
    steps.probe()
    await wait_for(lambda: events)
    assert events == [Hibernatable(False, False, "helper", WHY["helper"])]
    await steps.close()


async def test_no_restore_is_requested_without_room(
    make: Make, stand_in: StandIn, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernator, "ROOM_PATIENCE", 0.0)
    one = make()
    assert said(await one.hibernate(pid)) == FINE
    outcome = await one.wake(pid, None, lambda: False)
    assert said(outcome) == (False, "failed")
    assert "no room" in outcome.text
    assert "restore" not in stand_in.calls(pid)
    answers = iter([False, True])
    monkeypatch.setattr(hibernator, "ROOM_PATIENCE", 60.0)
    assert said(await one.wake(pid, None, lambda: next(answers))) == FINE
    assert "restore" in stand_in.calls(pid)


async def test_closing_waits_for_the_step_in_progress(
    make: Make, stand_in: StandIn, pid: int
) -> None:
    one = make()
    stand_in.tell("lock", "hang")
    hibernating = asyncio.create_task(one.hibernate(pid))
    await wait_for(lambda: "lock" in stand_in.calls(pid))
    closing = asyncio.create_task(one.close())
    stand_in.let_go("lock")
    await closing
    assert stand_in.state(pid) == "locked"
    assert said(await hibernating)[0] is False
    # The next scheduler has what this one left.
    assert said(await make().wake(pid)) == FINE


async def test_closing_ends_although_a_step_hangs(make: Make, stand_in: StandIn, pid: int) -> None:
    one = make(Deadlines(close=0.1))
    stand_in.tell("lock", "hang")
    hibernating = asyncio.create_task(one.hibernate(pid))
    await wait_for(lambda: "lock" in stand_in.calls(pid))
    helper = helper_of(one)
    await one.close()
    assert not Path(f"/proc/{helper}").exists()
    assert said(await hibernating)[0] is False
    assert said(await one.wake(pid)) == (False, "helper")


def test_the_scheduler_exits_before_systemd_kills_it(root: Path) -> None:
    unit = (root / "deploy" / "systemd" / "gpushare.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.M)
    assert hibernations.PATIENCE + Deadlines().close <= int(seconds) - 2


# --- Processes that are left alone ---


async def test_a_process_that_is_debugged_is_left_alone(
    make: Make, stand_in: StandIn, tmp_path: Path
) -> None:
    traced = "import ctypes, sys; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", traced], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        one = make()
        assert one.refuses(process.pid) == "debugger"
        assert said(await one.hibernate(process.pid)) == (False, "debugger")
        assert stand_in.calls(process.pid) == []


def test_a_process_of_another_container_is_left_alone() -> None:
    inside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; sleep 1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with inside:
        assert inside.stdout is not None
        try:
            if not inside.stdout.readline():
                pytest.skip("no PID namespace can be made here")
            children = Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()
            assert ability.refuses(int(children[0])) == "container"
            # Also to a scheduler that may not look into it.
            assert refuses_as_nobody(int(children[0])) == "container"
        finally:
            inside.kill()
    # What SO_PEERCRED says of a process that cannot be seen from here.
    assert ability.refuses(0) == "container"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_process_of_another_user_is_left_alone(pid: int) -> None:
    assert refuses_as_nobody(pid) == "permission"


def refuses_as_nobody(pid: int) -> str:
    become = "os.setuid(65534)" if os.getuid() == 0 else ""
    # What has to be imported is, before that user cannot read it.
    code = "import os; from jupyter_gpushare.scheduler.gpu.checkpoint_support import refuses; refuses(os.getpid())"
    code += f"; {become}; print(refuses({pid}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_ordinary_processes_may_be_checkpointed(pid: int) -> None:
    assert ability.refuses(pid) is None
    assert ability.refuses(2**22 + 1) == "failed"


# --- What a driver is able to ---


@pytest.mark.parametrize(
    ("cuda", "functions", "driver", "gpus", "code", "moves"),
    [
        (13000, True, "580.65.06", ["A"], "", False),
        (13000, True, "580.65.06", ["A", "B"], "", False),
        (13000, True, "580.65.06", ["A", "B", "A"], "", True),
        (13000, True, None, ["A", "A"], "", True),
        # Not tested by us, nor here.
        (12080, True, "570.86.10", ["A"], "driver", False),
        (12080, True, None, [], "driver", False),
        (13010, True, None, ["A"], "driver", False),
        (13030, True, "610.57.04", ["A", "A"], "driver", False),
        # Tested here, but not on another GPU.
        (13020, True, "595.45.04", ["A", "A"], "", False),
        (12060, True, None, [], "driver", False),
        (12060, False, "560.35.03", ["A", "A"], "driver", False),
        # A library of a compatibility package over an older driver.
        (13000, True, "535.183.01", ["A"], "driver", False),
        (13000, False, "580.65.06", ["A"], "driver", False),
        (13020, False, "595.45.04", ["A"], "driver", False),
    ],
)
def test_the_abilities_of_a_driver_follow_from_its_version(
    cuda: int, functions: bool, driver: str | None, gpus: list[str], code: str, moves: bool
) -> None:
    found = judge(cuda, functions, driver, gpus, {"595.45.04"})
    assert (found.able, found.code, found.moves) == (not code, code, moves)
    assert bool(found.text) == bool(code)


def test_each_tested_driver_is_listed_once(tmp_path: Path) -> None:
    file = tmp_path / "state" / "drivers"
    environ = {checked_drivers.VARIABLE: str(file)}
    assert checked_drivers.allowed(environ) == frozenset()
    for _ in range(2):
        assert checked_drivers.allow("595.45.04", environ) == file
    checked_drivers.allow("600.1", environ)
    file.write_text(file.read_text() + "\n  # by hand\n 601.2 \n")
    assert checked_drivers.allowed(environ) == {"595.45.04", "600.1", "601.2"}
    assert file.read_text().count("595.45.04") == 1


async def test_the_driver_is_queried_for_its_abilities(make: Make, stand_in: StandIn) -> None:
    one = make()
    assert (await one.probe(("580.65.06", ["A", "A"]))) == ability.Ability(True, moves=True)
    # Without NVML, its CUDA version says it.
    assert (await one.probe()) == ability.Ability(True)
    stand_in.tell("version", "12040")
    found = await one.probe()
    assert (found.able, found.code) == (False, "driver")
    assert found.text.startswith("the driver (CUDA 12.4) is older than 570")
    stand_in.tell("driver", "999")
    assert (await one.probe()).code == "driver"
    stand_in.tell("driver", "hang")
    assert (await make(Deadlines(start=0.1)).probe()).code == "helper"
    stand_in.let_go("driver")


def test_each_code_has_its_sentence() -> None:
    assert {"driver", "helper", "permission", "container", "debugger", "failed", "stuck"} <= set(
        WHY
    )
