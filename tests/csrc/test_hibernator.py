# SPDX-License-Identifier: BSD-3-Clause
"""The hibernator's program: its requests and answers, and `--wake`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import StandIn, build_stand_in

PATIENCE = 60
#: A process that is there, and that nothing really happens to.
PID = os.getpid()

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stand_in(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stand_in(driver: Path, tmp_path: Path) -> StandIn:
    return StandIn(tmp_path, driver)


@pytest.fixture
def start(libraries: Path, stand_in: StandIn) -> Iterator[Start]:
    started = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(libraries / "gpushare-hibernator"), "--driver", str(stand_in.library), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "STAND_IN": str(stand_in.folder), **environment},
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with process:
            process.kill()


def ask(process: subprocess.Popen[str], *requests: str) -> list[str]:
    """Send all requests and its end; return the answers by their numbers."""
    answers, _ = process.communicate("".join(f"{line}\n" for line in requests), timeout=PATIENCE)
    assert process.returncode == 0
    return sorted(answers.splitlines(), key=lambda line: int(line.split()[0]))


def wait_for(met: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_steps_reach_the_driver_and_are_answered(start: Start, stand_in: StandIn) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for step, answer in {
        f"11 state {PID}": "11 0 CUDA_SUCCESS running",
        f"12 lock {PID} 500": "12 0 CUDA_SUCCESS",
        f"13 checkpoint {PID}": "13 0 CUDA_SUCCESS",
        f"14 state {PID}": "14 0 CUDA_SUCCESS checkpointed",
        f"15 unlock {PID}": "15 401 CUDA_ERROR_ILLEGAL_STATE",
        f"16 restore {PID}": "16 0 CUDA_SUCCESS",
        f"17 unlock {PID}": "17 0 CUDA_SUCCESS",
        "18 driver": "18 0 CUDA_SUCCESS 13000",
    }.items():
        process.stdin.write(f"{step}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{answer}\n"
    assert stand_in.state(PID) == "running"


def test_a_driver_that_does_not_initialise_is_retried(start: Start, stand_in: StandIn) -> None:
    stand_in.tell("init", "once 999")
    stand_in.put(PID, "checkpointed")
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for number, step in enumerate(("restore", "unlock", "lock", "checkpoint", "restore")):
        words = "100" if step == "lock" else ""
        process.stdin.write(f"{number} {step} {PID} {words}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{number} 0 CUDA_SUCCESS\n"
    assert stand_in.calls(0) == ["init", "init"]
    _, said = process.communicate(timeout=PATIENCE)
    assert said.count("cannot initialise the driver") == 1, said


def test_an_invalid_request_is_answered_and_harms_nothing(start: Start) -> None:
    requests = [
        "1",
        "2 sleep",
        "3 state",
        "4 state 0",
        "5 state -1",
        "6 state 99999999999",
        f"7 lock {PID}",
        f"8 lock {PID} 0",
        f"9 lock {PID} 1 2",
        f"10 restore {PID} 12=34",
        f"11 restore {PID} {'g' * 32}={'0' * 32}",
        f"12 unlock {PID} now or never",
        "13 driver 5",
        "no request",
        "",
        f"14 state {'0' * 300}",
        "999999999999999999999999 driver",
        "15 driver",
    ]
    *bad, good = ask(start(), *requests)
    assert bad == [f"{number} 1 CUDA_ERROR_INVALID_VALUE" for number in range(1, 14)]
    assert good == "15 0 CUDA_SUCCESS 13000"


def test_the_helper_does_not_checkpoint_itself(start: Start, stand_in: StandIn) -> None:
    process = start()
    assert ask(process, f"1 lock {process.pid} 100") == ["1 1 CUDA_ERROR_INVALID_VALUE"]
    assert stand_in.calls(process.pid) == []


def test_a_hanging_step_delays_no_other(start: Start, stand_in: StandIn) -> None:
    stand_in.tell("lock", "hang")
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"1 lock {PID} 100\n2 state {PID}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "2 0 CUDA_SUCCESS running\n"
    # Its input ends: what is under way may end first.
    process.stdin.close()
    stand_in.let_go("lock")
    assert process.stdout.readline() == "1 0 CUDA_SUCCESS\n"
    assert process.wait(PATIENCE) == 0


def test_the_helper_exits_although_a_step_hangs(start: Start, stand_in: StandIn) -> None:
    stand_in.tell("lock", "hang")
    process = start()
    assert process.stdin is not None
    process.stdin.write(f"1 lock {PID} 100\n")
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    assert process.stderr is not None
    assert "driver calls are still running: 1" in process.stderr.read()


def test_too_many_steps_at_a_time_are_refused(start: Start, stand_in: StandIn) -> None:
    stand_in.tell("state", "hang")
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("".join(f"{number} state {PID}\n" for number in range(1, 66)))
    process.stdin.flush()
    assert process.stdout.readline() == "65 600 CUDA_ERROR_NOT_READY busy\n"
    stand_in.let_go("state")
    answers = [process.stdout.readline() for _ in range(64)]
    assert {answer.split(maxsplit=1)[1] for answer in answers} == {"0 CUDA_SUCCESS running\n"}
    process.stdin.write(f"66 state {PID}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "66 0 CUDA_SUCCESS running\n"


def test_the_helper_survives_signals_that_end_a_session(start: Start) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("1 driver\n")
    process.stdin.flush()
    assert process.stdout.readline() == "1 0 CUDA_SUCCESS 13000\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        process.send_signal(number)
    assert ask(process, "2 driver") == ["2 0 CUDA_SUCCESS 13000"]


def test_a_pair_becomes_one_for_each_gpu(start: Start, stand_in: StandIn) -> None:
    stand_in.tell("gpus", "1234")
    stand_in.put(PID, "checkpointed")
    assert ask(start(), f"1 restore {PID} {'04' * 16}={'02' * 16}") == ["1 0 CUDA_SUCCESS"]
    assert stand_in.lines("pairs") == ["11 24 33 42 "]


def test_the_helper_is_not_a_client(start: Start, stand_in: StandIn, libraries: Path) -> None:
    process = start(LD_PRELOAD=str(libraries / "libgpushare.so"), CUDA_VISIBLE_DEVICES="7")
    stand_in.put(PID, "locked")
    # Which takes that the driver is initialised.
    assert ask(process, f"1 checkpoint {PID}") == ["1 0 CUDA_SUCCESS"]
    assert stand_in.lines("begun") == ["- -"]


def test_an_old_driver_is_recognised(
    start: Start, stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stand_in.library = build_stand_in(tmp_path_factory.mktemp("old"), "-DOLD_DRIVER", "-Wno-unused")
    stand_in.tell("version", "12040")
    assert ask(start(), "1 driver", f"2 state {PID}", f"3 lock {PID} 5") == [
        "1 801 CUDA_ERROR_NOT_SUPPORTED 12040",
        "2 801 CUDA_ERROR_NOT_SUPPORTED",
        "3 801 CUDA_ERROR_NOT_SUPPORTED",
    ]


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("libcuda.so.1", "needs an absolute path"),
        ("/none/libcuda.so.1", "the driver cannot be loaded: /none/libcuda.so.1"),
        ("{lib}/libgpushare.so", "is the shim of gpushare"),
        ("{lib}/sim/libnvidia-ml.so.1", "is not a CUDA driver"),
    ],
)
def test_a_file_that_is_not_a_driver_is_reported(libraries: Path, library: str, said: str) -> None:
    done = subprocess.run(
        [str(libraries / "gpushare-hibernator"), "--driver", library.format(lib=libraries)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("state", "steps"),
    [
        # A lock that another asked for may still be under way.
        ("running", ["state", "lock", "state", "unlock", "state"]),
        ("locked", ["state", "unlock", "state"]),
        ("checkpointed", ["state", "restore", "state", "unlock", "state"]),
    ],
)
def test_waking_depends_on_the_state(
    start: Start, stand_in: StandIn, state: str, steps: list[str]
) -> None:
    stand_in.put(PID, state)
    process = start("--wake", str(PID))
    assert process.wait(PATIENCE) == 0
    assert stand_in.calls(PID) == steps
    assert stand_in.state(PID) == "running"


def test_waking_retries_a_restore(start: Start, stand_in: StandIn) -> None:
    stand_in.put(PID, "checkpointed")
    stand_in.tell("restore", "once 2")
    assert start("--wake", str(PID)).wait(PATIENCE) == 0
    assert stand_in.state(PID) == "running"


def test_waking_queries_the_state_repeatedly(start: Start, stand_in: StandIn) -> None:
    stand_in.put(PID, "locked")
    stand_in.tell("unlock", "once 401")
    assert start("--wake", str(PID)).wait(PATIENCE) == 0
    assert stand_in.calls(PID) == ["state", "unlock", "state", "unlock", "state"]


def test_waking_waits_for_a_step_in_progress(start: Start, stand_in: StandIn) -> None:
    stand_in.put(PID, "restoring")
    process = start("--wake", str(PID))
    wait_for(lambda: len(stand_in.calls(PID)) > 2)
    stand_in.put(PID, "locked")
    assert process.wait(PATIENCE) == 0
    assert stand_in.state(PID) == "running"


@pytest.mark.parametrize(
    ("state", "step", "said"),
    [
        ("failed", "none", "its driver failed when it was checkpointed or restored"),
        ("locked", "unlock", "cuCheckpointProcessUnlock returned CUDA_ERROR_OUT_OF_MEMORY"),
        ("running", "state", "cuCheckpointProcessGetState returned CUDA_ERROR_OUT_OF_MEMORY"),
    ],
)
def test_waking_reports_a_failure_in_one_sentence(
    start: Start, stand_in: StandIn, state: str, step: str, said: str
) -> None:
    stand_in.put(PID, state)
    stand_in.tell(step, "2")
    process = start("--wake", str(PID))
    output, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert output == ""
    assert error.startswith(f"gpushare: process {PID} cannot be woken: ")
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--wake"], ["--wake", "x"], ["--wake", "0"], ["--wake", "1", "2=3"], ["more"]]
)
def test_the_helper_prints_its_usage(start: Start, arguments: list[str]) -> None:
    process = start(*arguments)
    assert process.communicate(timeout=PATIENCE)[1].startswith("gpushare: usage: ")
    assert process.returncode == 2
