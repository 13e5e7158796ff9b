# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare ready``, with programs whose memory is not on the GPU."""

from __future__ import annotations

import json
from typing import Any

from jupyter_gpushare.cli.steer.groups import follow
from tests.cli.conftest import Command
from tests.cli.steer.program import Program
from tests.support.scheduler import GIB, Scheduler, until


def group(scheduler: Scheduler, name: str) -> dict[str, Any]:
    with scheduler.control() as control:
        groups = control.request("status")["status"]["groups"]
    (found,) = (one for one in groups if one["name"] == name)
    return found  # type: ignore[no-any-return]


def evict(program: str, scheduler: Scheduler, gpushare: Command) -> None:
    """Evict all memory of a program."""
    assert gpushare("evict", program).returncode == 0
    until(lambda: group(scheduler, program)["gpus"][0]["resident"] == 0)


def test_a_program_is_ready_before_it_uses_the_gpu(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    evict("work", scheduler, gpushare)
    bursts = group(scheduler, "work")["totals"]["bursts"]
    done = gpushare("ready", "work")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "work is ready: all of its memory is on the GPU.\n"
    found = group(scheduler, "work")
    assert found["gpus"][0]["swapped"] == 0
    assert found["prefetch"]["hint"] == "ready"
    assert found["totals"]["bursts"] == bursts
    assert program.use()
    # There is nothing left to do. The name is optional while there is only one.
    assert gpushare("ready").stdout == done.stdout


def test_a_hibernated_program_is_woken(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    assert gpushare("hibernate", "work").returncode == 0
    until(lambda: group(scheduler, "work")["state"] == "hibernated")
    assert gpushare("ready", "work").stdout == "work is ready: all of its memory is on the GPU.\n"
    assert program.use()


def test_a_program_that_cannot_get_ready_is_reported(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    evict("work", scheduler, gpushare)
    assert gpushare("freeze", "work").returncode == 0
    done = gpushare("ready", "work")
    assert (done.returncode, done.stdout) == (2, "")
    assert "work is not getting ready: it is frozen or on hold" in done.stderr
    assert group(scheduler, "work")["gpus"][0]["resident"] == 0


def test_nothing_is_done_while_prefetch_is_off(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    assert gpushare("set", "prefetch", "off").returncode == 0
    evict("work", scheduler, gpushare)
    done = gpushare("ready", "work")
    assert (done.returncode, done.stdout) == (2, "")
    assert "work is not getting ready: prefetch is off" in done.stderr


def test_a_program_that_uses_the_gpu_is_not_prefetched(
    scheduler: Scheduler, gpushare: Command
) -> None:
    with scheduler.client("k", name="a.ipynb") as running:
        running.grow(GIB)
        running.run()
        said = "a.ipynb is ready: it is using the GPU or waiting for it.\n"
        assert gpushare("ready").stdout == said
        assert json.loads(gpushare("status", "--json").stdout)["groups"][0]["prefetch"] is None


def test_a_command_follows_a_program_until_it_ends(scheduler: Scheduler) -> None:
    with scheduler.control() as control:
        with scheduler.client("k", name="a.ipynb") as client:
            client.grow(GIB)
            states = follow(control, "k")
            assert next(states)[0]["name"] == "a.ipynb"
        until(lambda: not control.request("status")["status"]["groups"])
        assert list(states) == []
