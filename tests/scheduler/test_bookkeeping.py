# SPDX-License-Identifier: BSD-3-Clause
"""The usage history: what is counted, what of it outlives the process, and how long."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cli.show.report import line
from jupyter_gpushare.scheduler.observability.usage_report import HOUR, KEPT, WRITE, History, Hour
from tests.scheduler.quota_node import Node

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


def test_used_and_shared_hours_follow_their_definition(open_history: Opener) -> None:
    node, history = Node(2), open_history(None)
    ada, ben = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")
    alone = node.kernel("c", "ada", "GPU-1")

    clock = itertools.count(NOON)

    def look(seconds: int) -> None:
        for now in itertools.islice(clock, seconds):
            history.usage.update(node.core, now)

    look(1)
    look(10)
    ada.run()
    look(20)
    ben.run()
    look(30)
    ada.end()
    ben.end()
    alone.run()
    look(40)
    found = history.report(NOON, NOON + HOUR)
    assert (found["gpus"], found["present"]) == (2, 200)
    assert (found["used"], found["shared"]) == (90, 50)
    # Of what two had at once, each has half.
    assert found["users"] == {"ada": 20 + 15 + 40, "ben": 15}
    # Nothing is known about a time without samples.
    history.usage.update(node.core, next(clock) + 500)
    assert history.report(NOON, NOON + HOUR)["used"] == 90


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
    for second in range(3601):
        history.usage.update(node.core, NOON + second)
    history.usage.granted(0.0, NOON)
    history.usage.granted(4.0, NOON)
    history.usage.count(NOON, avoided=1, given=2)
    text = line(history.report(NOON, NOON + HOUR))
    assert "\n" not in text
    assert text.partition(": ")[2] == (
        "1 GPU, 2 users, 1.0 of 1.0 GPU hours used (100%), 1.0 of them shared by several users (100%); "
        "2 leases, 1 wait of 4.0 s on average and 4.0 s at most; 1 out-of-memory error avoided, 2 raised"
    )
    assert line(open_history(None).report(0, NOON)).startswith("no data for this period")
