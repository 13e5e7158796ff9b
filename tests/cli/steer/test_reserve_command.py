# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare reserve`` and ``reservations``, with a program that uses the GPU afterwards."""

from __future__ import annotations

import json

from tests.cli.conftest import Command
from tests.cli.steer.program import Program
from tests.support.scheduler import Scheduler, until


def test_a_reservation_is_made_listed_and_used(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    assert gpushare("reservations").stdout == "No notebook or program has a reservation.\n"
    assert gpushare("evict", "work").returncode == 0
    done = gpushare("reserve", "work")
    assert (done.returncode, done.stderr) == (0, "")

    def ready() -> bool:
        (found,) = json.loads(gpushare("reservations", "--json").stdout)
        return (found["name"], found["reservation"]["state"]) == ("work", "ready")

    until(ready)
    assert "The GPU is reserved for work for another" in gpushare("reserve").stdout
    head, row = gpushare("reservations").stdout.splitlines()
    assert (head.split()[:2], row.split()[:2]) == (["NAME", "RESERVATION"], ["work", "ready"])
    assert program.use()
    assert gpushare("reservations", "--json").stdout == "[]\n"


def test_a_reservation_is_cancelled(
    scheduler: Scheduler, program: Program, gpushare: Command
) -> None:
    with scheduler.client("other") as other:
        with scheduler.control() as control:
            total = control.request("status")["status"]["gpus"][0]["total"]
        other.grow(total // 100 * 95)
        other.run()
        assert gpushare("evict", "work").returncode == 0
        waits = gpushare("reserve", "work")
        assert waits.stdout.startswith("work is in the queue.")
        cancelled = gpushare("reserve", "--cancel", "work")
        assert cancelled.stdout == "Cancelled the reservation of work.\n"
        assert gpushare("reserve", "--cancel", "work").stdout == "work has no reservation.\n"


def test_an_unknown_program_is_refused(scheduler: Scheduler, gpushare: Command) -> None:
    done = gpushare("reserve", "nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no group" in done.stderr
