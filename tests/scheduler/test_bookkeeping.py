# SPDX-License-Identifier: BSD-3-Clause
"""The usage history: what is counted, what of it outlives the process, and how long."""

from __future__ import annotations

import math
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jupyter_gpushare.cli.show.report import energy_text, line, use_table
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.node.prices import Prices
from jupyter_gpushare.scheduler.observability.energy import Divided, EnergyMeter, Part
from jupyter_gpushare.scheduler.observability.usage_report import (
    HOUR,
    KEPT,
    MOST_NOTEBOOKS,
    WRITE,
    By,
    History,
    Hour,
    Owner,
    Use,
)
from tests.scheduler.quota_node import GIB, Node

NOON = 1_000_000 * HOUR

Opener = Callable[[Path | None], History]


@pytest.fixture
def open_history() -> Iterator[Opener]:
    """Return what opens a history at noon, and close all of them at the end."""
    opened: list[History] = []

    def open_one(path: Path | None) -> History:
        opened.append(History(path, NOON))
        return opened[-1]

    yield open_one
    for history in opened:
        history.close()


class Clock:
    """Adds up the use of a node in steps of a second.

    Parameters
    ----------
    node, history
        What is added up, and where.
    watts
        The power of each GPU in the following steps; None: its energy is not measured.
    """

    def __init__(
        self, node: Node, history: History, watts: dict[str, float | None] | None = None
    ) -> None:
        self.node, self.history, self.wall = node, history, float(NOON)
        self.watts = watts or {}
        self.joules = dict.fromkeys(self.watts, 1000.0)
        self.counts = True
        self.began: dict[int, float] = {}
        self.look()

    def look(self) -> None:
        readings = {
            gpu: Reading(self.node.now, self.joules[gpu] if self.counts else None, watts)
            for gpu, watts in self.watts.items()
            if watts is not None
        }
        self.history.usage.update(self.node.core, self.wall, self.node.now, readings)

    def run(self, seconds: float, step: float = 1.0) -> None:
        for _ in range(round(seconds / step)):
            self.node.sleep(step)
            self.report_meters()
            self.wall += step
            for gpu, watts in self.watts.items():
                self.joules[gpu] += (watts or 0.0) * step
            self.look()

    def report_meters(self) -> None:
        """Let all busy processes report the GPU time that they have had."""
        for number, kernel in self.node.kernels.items():
            client = self.node.core.clients[number]
            if client.busy and client.group.metered:
                busy = self.node.now - self.began.setdefault(number, client.burst_at)
                for gpu in kernel.usages:
                    self.node.do(ev.Meter(number, gpu, busy, self.node.now, 0))

    def report(self, *by: By, user: str | None = None) -> dict[str, Any]:
        found = self.history.report(NOON, self.wall)
        return (
            {**found, "rows": self.history.uses(NOON, self.wall, by, user, self.wall)()}
            if by
            else found
        )


class Reading(NamedTuple):
    at: float
    joules: float | None
    watts: float | None


def test_used_and_shared_hours_follow_their_definition(open_history: Opener) -> None:
    node, history = Node(2), open_history(None)
    ada, ben = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")
    alone = node.kernel("c", "ada", "GPU-1")
    clock = Clock(node, history)
    clock.run(10)
    ada.run()
    clock.run(20)
    ben.run()
    clock.run(30)
    ada.end()
    ben.end()
    alone.run()
    clock.run(39)
    found = history.report(NOON, NOON + HOUR)
    assert (found["gpus"], found["present"]) == (2, 198)
    assert (found["used"], found["shared"]) == (89, 50)
    # Of what two had at once, each has half.
    assert found["users"] == {"ada": 20 + 15 + 39, "ben": 15}
    # Nothing is known about a time in which the machine was asleep.
    node.sleep(500)
    clock.look()
    assert history.report(NOON, NOON + HOUR)["used"] == 89


def test_short_bursts_count_for_their_length(open_history: Opener) -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    clock = Clock(node, open_history(None))
    for _ in range(10):
        node.sleep(0.3)
        kernel.run()
        node.sleep(0.25)
        kernel.end()
        node.sleep(0.45)
        clock.wall += 1
        clock.look()
    (row,) = clock.report("notebook")["rows"]
    assert row["seconds"] == pytest.approx(2.5)
    # A group's last burst counts, although the group has left before the next look.
    kernel.run()
    node.sleep(0.5)
    clock.history.usage.leave(node.core, node.core.groups["a"], node.now)
    node.do(ev.Detach(kernel.number))
    node.sleep(0.5)
    clock.look()
    (row,) = clock.report("notebook")["rows"]
    assert row["seconds"] == pytest.approx(3.0)


def test_energy_is_divided_in_proportion_to_gpu_time(open_history: Opener) -> None:
    node = Node(1)
    ada, ben = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(10)
    clock.watts["GPU-0"] = 400.0
    ada.run()
    clock.run(10)
    ben.run()
    clock.run(10)
    ada.end()
    ben.end()
    clock.watts["GPU-0"] = 100.0
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["idle_energy"], found["measured"]) == (10_000, 2_000, 40)
    assert {row["user"]: (row["seconds"], row["energy"]) for row in found["rows"]} == {
        "ada": (15, 6_000),
        "ben": (5, 2_000),
    }


def test_idle_energy_is_what_the_gpu_consumes_without_work(open_history: Opener) -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(10)
    for _ in range(10):
        # A tenth of a second at 700 W, and the rest at 100 W.
        clock.joules["GPU-0"] += 160.0
        clock.wall += 1
        kernel.run()
        node.sleep(0.1)
        kernel.end()
        node.sleep(0.9)
        clock.look()
    found = clock.report("user")
    assert (found["energy"], found["idle_energy"]) == (2_600, 1_900)
    assert [row["energy"] for row in found["rows"]] == [700]


def test_without_a_counter_the_power_is_integrated(open_history: Opener) -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    clock = Clock(node, open_history(None), {"GPU-0": 200.0})
    clock.counts = False
    clock.look()
    kernel.run()
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["measured"]) == (2_000, 10)
    # A machine that was asleep consumed an unknown amount.
    node.sleep(60)
    clock.look()
    assert clock.report()["energy"] == 2_000


def test_energy_without_readings_is_not_measured(open_history: Opener) -> None:
    node = Node(2)
    kernels = [node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-1")]
    clock = Clock(node, open_history(None), {"GPU-0": 300.0, "GPU-1": None})
    for kernel in kernels:
        kernel.run()
    clock.run(10)
    found = clock.report("user")
    assert (found["energy"], found["measured"], found["present"]) == (3_000, 10, 20)
    energies = {row["user"]: (row["energy"], row["measured"]) for row in found["rows"]}
    assert energies == {"ada": (3_000, 10), "ben": (None, 0)}
    text = energy_text({**found, "prices": None})
    assert text == "0.001 kWh (0.000 idle), 50% of the GPU hours not measured"
    bare = open_history(None)
    Clock(node, bare).run(5)
    found = bare.report(NOON, NOON + HOUR)
    assert (found["energy"], found["idle_energy"]) == (None, None)
    assert energy_text({**found, "prices": None}) == "energy not measured"


def test_a_reset_of_the_counter_is_not_energy(open_history: Opener) -> None:
    node = Node(1)
    clock = Clock(node, open_history(None), {"GPU-0": 100.0})
    clock.run(5)
    # The driver was loaded again. The power bridges the gap.
    clock.joules["GPU-0"] = 0.0
    clock.run(5)
    assert clock.report()["energy"] == 1_000


def test_energy_waits_for_gpu_time_that_is_reported_afterwards() -> None:
    meter: EnergyMeter[str] = EnergyMeter()
    now, joules = 0.0, 0.0

    def look(**busy: float) -> Divided[str] | None:
        nonlocal now, joules
        now, joules = now + 1, joules + 500
        meter.add_time(1.0, Reading(now, joules, None))
        for user, seconds in busy.items():
            meter.add_busy(user, seconds)
        return meter.divide(["ada", "ben"])

    meter.add_time(0.0, Reading(0.0, 0.0, None))
    for _ in range(5):
        assert look(ben=0.5) is None
    divided = look(ben=0.5, ada=3.0)
    assert divided == Divided({"ada": Part(3.0, 1500), "ben": Part(3.0, 1500)}, 3000, 0, 6)
    # Work that is never reported counts as long as it runs.
    for _ in range(29):
        assert look() is None
    divided = look()
    assert divided == Divided({"ada": Part(15.0, 7500), "ben": Part(15.0, 7500)}, 15000, 0, 30)
    # When it is reported at last, it does not count twice.
    assert look(ben=31.0, ada=31.0) == Divided(
        {"ada": Part(0.5, 250), "ben": Part(0.5, 250)}, 500, 0, 1
    )


def test_a_late_reading_is_waited_for() -> None:
    meter: EnergyMeter[str] = EnergyMeter()
    first, second = Reading(0.0, 0.0, None), Reading(2.0, 800.0, None)
    meter.add_time(0.0, first)
    meter.add_busy("ada", 1.0)
    meter.add_time(1.0, first)
    assert meter.divide() is None
    meter.add_busy("ben", 1.0)
    meter.add_time(1.0, second)
    assert meter.divide() == Divided({"ada": Part(1.0, 400), "ben": Part(1.0, 400)}, 800, 0, 2)


def test_memory_counts_by_time_and_place(open_history: Opener) -> None:
    node = Node(1)
    ada = node.kernel("a", "ada", "GPU-0", 60)
    clock = Clock(node, open_history(None))
    clock.run(10)
    assert clock.report("user")["rows"] == []
    ada.run()
    clock.run(10)
    ada.end()
    ben = node.kernel("b", "ben", "GPU-0", 60)
    ben.run()
    clock.run(5)
    for entry in node.history:
        if entry.kind in ("evict", "restore"):
            clock.history.usage.moved(node.core, entry.group, entry.fields["bytes"], NOON)
    rows = {row["user"]: row for row in clock.report("user")["rows"]}
    evicted = next(e.fields["bytes"] for e in node.history if e.kind == "evict")
    assert rows["ada"]["gpu_byte_seconds"] == 10 * 60 * GIB + 5 * (60 * GIB - evicted)
    assert rows["ada"]["host_byte_seconds"] == 5 * evicted
    assert rows["ben"]["gpu_byte_seconds"] == 5 * 60 * GIB
    assert rows["ada"]["moved"] == 60 * GIB + evicted
    assert rows["ben"]["moved"] == 60 * GIB


def test_reports_are_divided_by_user_team_notebook_and_day(
    open_history: Opener, tmp_path: Path
) -> None:
    path = tmp_path / "usage.sqlite3"
    day = 24 * HOUR
    for number in range(3):
        history = open_history(path)
        hour = history.usage.hours.setdefault(NOON // HOUR + 24 * number, Hour())
        for user, team, notebook in (
            ("ada", "course", "a.ipynb"),
            ("ada", "course", "b.ipynb"),
            ("ben", "course", "a.ipynb"),
            ("eve", "", "a.ipynb"),
        ):
            seconds = 10.0 if user == "ada" else 1.0
            hour.uses[Owner(user, team, notebook)] = Use(seconds, seconds, 2, 3, 4, 5)
        # A scheduler that is restarted loses nothing.
        history.write(NOON, at_once=True)
        history.close()
    history = open_history(path)

    def rows(*by: By, user: str | None = None) -> list[tuple[Any, ...]]:
        found = history.uses(NOON, NOON + 3 * day, by, user, NOON)()
        keys = [key for key in ("user", "team", "notebook") if key in found[0]]
        return [(*(row[key] for key in keys), row["seconds"]) for row in found]

    assert rows("user") == [("ada", 60), ("ben", 3), ("eve", 3)]
    assert rows("team") == [("course", 63), ("", 3)]
    # Notebooks of two users with one name are two notebooks.
    assert rows("notebook") == [
        ("ada", "a.ipynb", 30),
        ("ada", "b.ipynb", 30),
        ("ben", "a.ipynb", 3),
        ("eve", "a.ipynb", 3),
    ]
    assert rows("notebook", user="eve") == [("eve", "a.ipynb", 3)]
    days = history.uses(NOON, NOON + 3 * day, ("day", "user"), None, NOON)()
    assert len({row["day"] for row in days}) == 3
    assert len(days) == 9
    (first,) = history.uses(NOON, NOON + HOUR, ("day",), "ada", NOON)()
    assert first == {
        "day": time.strftime("%Y-%m-%d", time.localtime(NOON)),
        "seconds": 20,
        "measured": 20,
        "gpu_byte_seconds": 4,
        "host_byte_seconds": 6,
        "moved": 8,
        "energy": 10,
    }
    text = use_table(
        {"rows": [{**first, "cost": 1.5, "user": "ada"}], "prices": {"currency": "EUR"}},
        ["user"],
    ).plain
    head, row = text.splitlines()
    assert head.split() == [
        *("DAY", "USER", "GPU", "HOURS", "GPU", "GIB-HOURS", "HOST", "GIB-HOURS", "MOVED", "KWH"),
        "COST",
    ]
    assert row.split()[1:] == ["ada", "0.01", "0.00", "0.00", "8", "B", "0.000", "1.50", "EUR"]


def test_rows_are_read_in_another_thread(open_history: Opener, tmp_path: Path) -> None:
    history = open_history(tmp_path / "usage.sqlite3")
    for number in range(2):
        hour = history.usage.hours.setdefault(NOON // HOUR, Hour())
        hour.uses[Owner("ada", "", "a.ipynb")] = Use(seconds=1.0)
        find = history.uses(NOON, NOON + HOUR, ("user",), None, NOON)
        # Meanwhile, the scheduler may write.
        history.usage.count(NOON, avoided=1)
        history.write(NOON, at_once=True)
        with ThreadPoolExecutor() as threads:
            (row,) = threads.submit(find).result()
        assert (row["user"], row["seconds"]) == ("ada", number + 1)


def test_rows_fail_while_the_database_cannot_be_written(
    open_history: Opener, tmp_path: Path
) -> None:
    path = tmp_path / "usage.sqlite3"
    history = open_history(path)
    history.usage.hours[NOON // HOUR] = Hour(uses={Owner("ada", "", "a.ipynb"): Use(seconds=1.0)})
    (pages,) = history._database.execute("PRAGMA page_count").fetchone()
    history._database.execute(f"PRAGMA max_page_count={pages}")
    history.usage.hours[NOON // HOUR].users.update((f"user{n}", 1.0) for n in range(1000))
    with pytest.raises(sqlite3.OperationalError, match="full"):
        history.uses(NOON, NOON + HOUR, ("user",), None, NOON)
    history._database.execute("PRAGMA max_page_count=100000")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        history.uses(NOON, NOON + HOUR, ("user",), None, NOON)
    other.execute("COMMIT")
    other.close()
    (row,) = history.uses(NOON, NOON + HOUR, ("user",), None, NOON)()
    assert (row["user"], row["seconds"]) == ("ada", 1)


def test_a_notebook_that_changes_its_name_all_the_time_does_not_fill_the_disk(
    open_history: Opener,
) -> None:
    node = Node(1)
    node.kernel("a", "ada", "GPU-0").run()
    clock = Clock(node, open_history(None))
    for number in range(MOST_NOTEBOOKS + 50):
        node.do(ev.Rename("a", f"{number}.ipynb"))
        clock.run(1)
    rows = clock.report("notebook")["rows"]
    assert len(rows) == MOST_NOTEBOOKS + 1
    assert rows[0]["notebook"] == ""
    assert sum(row["seconds"] for row in rows) == MOST_NOTEBOOKS + 50


def test_prices() -> None:
    prices = Prices.parsed({"gpu_hour": 2, "gpu_gib_hour": 0.1, "host_gib_hour": 0.01, "kwh": 0.5})
    row = {
        "seconds": 1800,
        "gpu_byte_seconds": 10 * 3600 * GIB,
        "host_byte_seconds": 100 * 3600 * GIB,
        "energy": 3.6e6,
    }
    assert prices.cost(row) == 1 + 1 + 1 + 0.5
    assert prices.cost({**row, "energy": None}) == 3
    assert prices
    assert not Prices.parsed({"currency": "EUR"})
    for stated, words in (
        ({"gpu": 1}, "unknown price 'gpu'; use gpu_hour, "),
        ({"kwh": -1}, "'kwh' must be a number, 0 or more, not -1"),
        ({"kwh": math.nan}, "'kwh' must be a number, 0 or more, not nan"),
        ({"kwh": True}, "'kwh' must be a number"),
        ({"currency": 1}, "'currency' must be text"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            Prices.parsed(stated)


def test_only_noticeable_waits_are_counted(open_history: Opener) -> None:
    history = open_history(None)
    for waited in (0.0, 0.05, 0.1, 3.9):
        history.usage.granted(waited, NOON)
    found = history.report(NOON, NOON + 1)
    assert (found["leases"], found["waits"], found["waited"], found["longest"]) == (4, 2, 4.0, 3.9)


def avoided(history: History) -> int:
    return int(history.report(NOON, NOON + 2 * HOUR)["avoided"])


def test_counts_survive_a_restart(open_history: Opener, tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite3"
    first = open_history(path)
    first.usage.count(NOON, avoided=3, given=1, moved=7)
    first.write(NOON + 1)
    assert first.usage.hours, "It is too early to write."
    first.write(NOON + WRITE + 1)
    assert not first.usage.hours
    first.usage.count(NOON + 400, avoided=1)
    first.usage.granted(2.0, NOON + HOUR)
    # What is not written yet is in reports, once.
    assert avoided(first) == avoided(first) == 4
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    first.write(NOON + 401, at_once=True)
    first.close()
    second = open_history(path)
    found = second.report(NOON, NOON + 2 * HOUR)
    assert (found["avoided"], found["given"], found["moved"], found["waits"]) == (4, 1, 7, 1)
    assert (found["since"], found["until"], found["hours"]) == (NOON, NOON + 2 * HOUR, 2)
    assert second.report(NOON + HOUR, NOON + 2 * HOUR)["avoided"] == 0
    second.close()


def test_hours_add_up_and_the_oldest_are_deleted(open_history: Opener, tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite3"
    for step in range(6):
        history = open_history(path)
        hour = history.usage.hours.setdefault(NOON // HOUR + step % 2, Hour(gpus=step % 4))
        hour.users["ada"] = hour.used = hour.longest = step
        history.write(NOON, at_once=True)
        history.close()
    history = open_history(path)
    found = history.report(NOON, NOON + 2 * HOUR)
    assert (found["gpus"], found["used"], found["longest"]) == (3, 15, 5)
    assert found["users"] == {"ada": 15}
    history.usage.count(NOON + KEPT * HOUR, avoided=1)
    history.write(NOON + KEPT * HOUR, at_once=True)
    assert history.report(0, NOON + HOUR)["hours"] == 0
    assert history.report(0, NOON + HOUR)["users"] == {}
    assert history.report(0, NOON + 2 * HOUR)["hours"] == 1
    history.close()


KILLED_WHILE_IT_WRITES = """
import os, pathlib, sys
from jupyter_gpushare.scheduler.observability.usage_report import History
history = History(pathlib.Path(sys.argv[1]), 0)
history.usage.count(float(sys.argv[2]), avoided=2)
history.write(float(sys.argv[2]), at_once=True)
history.usage.count(float(sys.argv[2]), avoided=5)
history._add()
os.kill(os.getpid(), 9)
"""


def test_a_scheduler_that_is_killed_while_it_writes_loses_what_it_had_not_committed(
    open_history: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage.sqlite3"
    script = [sys.executable, "-c", KILLED_WHILE_IT_WRITES, str(path), str(NOON)]
    assert subprocess.run(script, check=False).returncode == -9
    # As after a power failure: the end of the log is cut off.
    with Path(f"{path}-wal").open("ab") as log:
        log.write(b"torn" * 100)
    history = open_history(path)
    assert avoided(history) == 2
    assert not caplog.records
    history.close()


def test_a_full_disk_loses_nothing(
    open_history: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage.sqlite3"
    history = open_history(path)
    (pages,) = history._database.execute("PRAGMA page_count").fetchone()
    history._database.execute(f"PRAGMA max_page_count={pages}")
    history.usage.count(NOON, avoided=1)
    history.usage.hours[NOON // HOUR].users.update((f"user{n}", 1.0) for n in range(1000))
    history.write(NOON, at_once=True)
    (record,) = caplog.records
    assert f"Cannot write the usage history {path}, will retry: database or disk is full" in (
        record.getMessage()
    )
    history._database.execute("PRAGMA max_page_count=100000")
    assert avoided(history) == 1
    history.write(NOON + WRITE, at_once=True)
    history.close()
    assert avoided(open_history(path)) == 1


def test_another_program_may_read_and_write(
    open_history: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "usage.sqlite3"
    history = open_history(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN")
    assert other.execute("SELECT count(*) FROM hours").fetchone() == (0,)
    history.usage.count(NOON, avoided=1)
    history.write(NOON, at_once=True)
    assert not caplog.records
    other.execute("COMMIT")
    other.execute("BEGIN IMMEDIATE")
    history.usage.count(NOON, avoided=1)
    history.write(NOON, at_once=True)
    assert "will retry: database is locked" in caplog.text
    other.execute("COMMIT")
    other.close()
    history.write(NOON, at_once=True)
    assert avoided(history) == 2
    history.close()


@pytest.mark.parametrize("damage", [slice(0, 16), slice(4096, 8192), slice(0, None)])
def test_a_damaged_database_is_kept_and_a_new_one_started(
    open_history: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: slice
) -> None:
    path = tmp_path / "usage.sqlite3"
    history = open_history(path)
    history.usage.count(NOON, avoided=1)
    history.write(NOON, at_once=True)
    history.close()
    content = bytearray(path.read_bytes())
    content[damage] = b"\xa5" * len(content[damage])
    path.write_bytes(content)
    history = open_history(path)
    history.usage.count(NOON, avoided=5)
    history.write(NOON, at_once=True)
    history.write(NOON, at_once=True)
    (record,) = caplog.records
    (kept,) = tmp_path.glob("usage.sqlite3.damaged-*")
    assert f"The usage history {path} is damaged: " in record.getMessage()
    assert f"The scheduler starts a new one, and keeps it as {kept}." in record.getMessage()
    assert kept.read_bytes() == content
    history.close()
    assert avoided(open_history(path)) == 5


def test_a_scheduler_without_a_usable_folder_keeps_its_own_time(
    open_history: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = open_history(tmp_path / "none" / "usage.sqlite3")
    assert "No such file or directory. Reports cover only the time since this" in caplog.text
    history.usage.count(NOON, avoided=1)
    history.write(NOON, at_once=True)
    assert avoided(history) == 1


def test_a_report_is_one_line(open_history: Opener) -> None:
    history = open_history(None)
    node = Node(1)
    kernels = [node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")]
    for kernel in kernels:
        kernel.run()
    # Of the first hour, all but one second is over.
    Clock(node, history).run(3599)
    history.usage.granted(0.0, NOON)
    history.usage.granted(4.0, NOON)
    history.usage.count(NOON, avoided=1, given=2)
    text = line(history.report(NOON, NOON + HOUR))
    assert "\n" not in text
    assert text.partition(": ")[2] == (
        "1 GPU, 2 users, 1.0 of 1.0 GPU hours used (100%), 1.0 of them shared by several users (100%); "
        "2 leases, 1 wait of 4.0 s on average and 4.0 s at most; 1 out-of-memory error avoided, 2 raised; "
        "energy not measured"
    )
    assert line(open_history(None).report(0, NOON)).startswith("no data for this period")
