# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare hibernate``, ``wake`` and ``set hibernate-after``, and how hibernated programs are shown."""

from __future__ import annotations

import json
import re

from jupyter_gpushare.scheduler.core import messages as ev
from tests.cli.conftest import Command
from tests.cli.steer.program import Program
from tests.support.scheduler import GIB, Scheduler, Start, can_hibernate, until


def shown(gpushare: Command, beginning: str) -> str:
    """Wait for a line of the status that begins with some words, and return it."""
    found: list[str] = []

    def look() -> bool:
        lines = gpushare("status").stdout.splitlines()
        found[:] = [line for line in lines if line.startswith(beginning)]
        return bool(found)

    until(look)
    return found[0]


def test_users_hibernate_and_wake_a_program(program: Program, gpushare: Command) -> None:
    done = gpushare("hibernate", "work")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Hibernated work, which freed [\d.]+ MiB\.\n", done.stdout)
    line = shown(gpushare, "hibernated")
    assert "work" in line
    assert "freed " in line
    assert "wakes in about" in line
    (group,) = json.loads(gpushare("status", "--json").stdout)["groups"]
    assert group["hibernation"]["state"] == "hibernated"
    # The name is optional while there is only one.
    assert gpushare("wake").stdout == "Waking work.\n"
    assert "freed" not in shown(gpushare, "idle")
    assert gpushare("hibernate").returncode == 0
    shown(gpushare, "hibernated")
    # Its own use of the GPU wakes it, too.
    assert program.use()
    assert gpushare("history").stdout.count("was hibernated") == 2


def test_hibernation_is_set_and_turned_off(program: Program, gpushare: Command) -> None:
    assert "hibernate after 10 min" in gpushare("status").stdout
    done = gpushare("set", "--hibernate-after", "0.2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Set hibernate-after to 0.2.\n"
    shown(gpushare, "hibernated")
    assert "Set hibernate-after to off." in gpushare("set", "hibernate-after", "off").stdout
    assert "hibernation off" in gpushare("status").stdout
    assert program.use()
    # Users cannot hibernate either; the error gives the reason.
    done = gpushare("hibernate")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hibernation is switched off" in done.stderr
    for wrong in ("soon", "-1", "inf"):
        done = gpushare("set", "hibernate-after", wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert "use off or a positive number of seconds" in done.stderr


def test_a_notebook_that_cannot_hibernate_is_shown_with_the_reason(
    scheduler: Scheduler, gpushare: Command
) -> None:
    with scheduler.client("kernel-1", name="plain.ipynb", backend="plain") as client:
        client.change(ev.Usage(scheduler.gpu, unevictable=GIB, context=16 << 20))
        until(lambda: "1 GiB" in gpushare("status").stdout)
        until(lambda: gpushare("hibernate", "plain.ipynb").returncode == 2)
        assert "plain.ipynb does not hibernate" in gpushare("hibernate", "plain.ipynb").stderr
        gpushare("set", "hibernate-after", "0.1")
        until(lambda: "cannot hibernate: " in shown(gpushare, "idle"))


def test_the_result_of_each_hibernation_is_printed(scheduler: Scheduler, gpushare: Command) -> None:
    until(lambda: can_hibernate(scheduler))
    with scheduler.client("kernel-1", name="a.ipynb") as client:
        client.grow(1 << 20, context=16 << 20)
        client.run()
        done = gpushare("hibernate", "a.ipynb")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "a.ipynb will hibernate as soon as it is idle.\n"
        client.end_burst()
        client.release("release")
        # The client does not respond, and the command does not wait for it.
        started = gpushare("hibernate", "a.ipynb")
        assert started.returncode == 0
        assert started.stdout.startswith("a.ipynb is still being hibernated.")
        with scheduler.control() as control:
            control.request("adjust", group="kernel-1", keep=True)
        until(lambda: "(keep)" in gpushare("hibernate", "a.ipynb").stderr)
        gpushare("set", "--hibernate-after", "off")
        assert "switched off; an administrator" in gpushare("hibernate", "a.ipynb").stderr


def test_the_status_shows_why_hibernation_is_unavailable(start: Start, gpushare: Command) -> None:
    start(GPUSHARE_SIM_DRIVER_VERSION="565")
    until(lambda: "Hibernation is unavailable: " in gpushare("status").stdout)
    assert "older than 570" in gpushare("status").stdout
