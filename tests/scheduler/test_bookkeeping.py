# SPDX-License-Identifier: BSD-3-Clause
"""The usage history: what is counted, what of it outlives the process, and how long."""

from __future__ import annotations

import math
import re
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.show.report import line, use_table
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.node.prices import Prices
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
from tests.scheduler.usage_histories import NOON, Clock, Opener


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
        "disk_byte_seconds": 0,
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
