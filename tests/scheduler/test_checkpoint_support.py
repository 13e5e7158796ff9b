# SPDX-License-Identifier: BSD-3-Clause
"""Processes and drivers of which the hibernator makes no checkpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core.refusals import WHY
from jupyter_gpushare.scheduler.gpu import checked_drivers
from jupyter_gpushare.scheduler.gpu import checkpoint_support as ability
from jupyter_gpushare.scheduler.gpu.checkpoint_helper import Deadlines
from jupyter_gpushare.scheduler.gpu.checkpoint_support import judge
from jupyter_gpushare.scheduler.gpu.targets import Target
from tests.scheduler.stand_in import Make, said
from tests.support.checkpoints import StandIn

# --- Processes that are left alone ---


async def test_a_process_that_is_debugged_is_left_alone(
    make_hibernator: Make, stand_in: StandIn, tmp_path: Path
) -> None:
    traced = "import ctypes, sys; ctypes.CDLL(None).ptrace(0, 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", traced], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        one = make_hibernator()
        assert one.refuses(Target(process.pid)) == "debugger"
        assert said(await one.hibernate(Target(process.pid))) == (False, "debugger")
        assert stand_in.calls(process.pid) == []


@pytest.fixture
def contained() -> Iterator[int]:
    """A process in another PID namespace, by its number here."""
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
            yield int(Path(f"/proc/{inside.pid}/task/{inside.pid}/children").read_text().split()[0])
        finally:
            inside.kill()


def test_a_process_of_another_container_is_left_alone_if_it_cannot_be_reached(
    contained: int,
) -> None:
    # The Linux kernel lets root reach it.
    assert ability.refuses(contained) is None
    assert refuses_as_nobody(contained) == "container"
    # What SO_PEERCRED says of a process that cannot be seen from here.
    assert ability.refuses(0) == "container"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_where_proc_hides_processes_their_statements_tell_the_reasons_apart(
    pid: int, contained: int
) -> None:
    own = os.stat("/proc/self/ns/pid").st_ino
    other = os.stat(f"/proc/{contained}/ns/pid").st_ino
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    for process, stated, code in (
        (pid, own, "permission"),
        (contained, other, "container"),
        # Clients of older versions state nothing, so the reason stays unknown.
        (contained, 0, "failed"),
    ):
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-c", hide, "sh", *as_nobody(process, stated)],
            capture_output=True,
            text=True,
        )
        if "mount:" in done.stderr:
            pytest.skip("no /proc can be mounted here")
        assert done.stdout.strip() == code, done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_process_of_another_user_is_left_alone(pid: int) -> None:
    assert refuses_as_nobody(pid) == "permission"


def refuses_as_nobody(pid: int) -> str:
    done = subprocess.run(as_nobody(pid, 0), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def as_nobody(pid: int, namespace: int) -> list[str]:
    """A command that prints why a process is refused."""
    become = "os.setgroups([]); os.setgid(65534); os.setuid(65534)" if os.getuid() == 0 else ""
    # What has to be imported is, before that user cannot read it.
    code = "import os; from jupyter_gpushare.scheduler.gpu.checkpoint_support import refuses; refuses(os.getpid())"
    return [sys.executable, "-c", f"{code}; {become}; print(refuses({pid}, {namespace}))"]


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


async def test_the_driver_is_queried_for_its_abilities(
    make_hibernator: Make, stand_in: StandIn
) -> None:
    one = make_hibernator()
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
    assert (await make_hibernator(Deadlines(start=0.1)).probe()).code == "helper"
    stand_in.let_go("driver")


def test_each_code_has_its_sentence() -> None:
    assert {"driver", "helper", "permission", "container", "debugger", "failed", "stuck"} <= set(
        WHY
    )
