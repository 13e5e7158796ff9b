# SPDX-License-Identifier: BSD-3-Clause
"""The books: what is counted, what of it outlives the process, and how long."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import given

from jupyter_gpushare.cli.report import line
from jupyter_gpushare.scheduler.observability import usage_report as bookkeeping
from jupyter_gpushare.scheduler.observability.usage_report import HOUR, Books, File, Hour, read
from tests.scheduler.test_quotas import Node

NOON = 1_000_000 * HOUR


def test_hours_are_used_and_shared_as_they_are_defined() -> None:
    node, books = Node(2), Books()
    ada, ben = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")
    alone = node.kernel("c", "ada", "GPU-1")

    clock = itertools.count(NOON)

    def look(seconds: int) -> None:
        for now in itertools.islice(clock, seconds):
            books.look(node.core, now)

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
    found = books.report(NOON, NOON + HOUR)
    assert (found["gpus"], found["present"]) == (2, 200)
    assert (found["used"], found["shared"]) == (90, 50)
    # Of what two had at once, each has half.
    assert found["users"] == {"ada": 20 + 15 + 40, "ben": 15}
    # Nobody knows what was while nobody looked.
    books.look(node.core, next(clock) + 500)
    assert books.report(NOON, NOON + HOUR)["used"] == 90


def test_waits_are_those_that_people_notice() -> None:
    books = Books()
    for waited in (0.0, 0.05, 0.1, 3.9):
        books.granted(waited, NOON)
    found = books.report(NOON, NOON + 1)
    assert (found["leases"], found["waits"], found["waited"], found["longest"]) == (4, 2, 4.0, 3.9)


def test_what_was_counted_outlives_the_process_and_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    first = File(path, NOON)
    first.books.count(NOON, avoided=3, given=1, moved=7)
    first.write(NOON + 1)
    assert not path.exists()
    first.write(NOON + 301)
    assert path.stat().st_mode & 0o777 == 0o600
    first.books.count(NOON + 400, avoided=1)
    first.books.granted(2.0, NOON + HOUR)
    first.write(NOON + 401, at_once=True)
    with path.open("a") as file:
        file.write('{"hour": 1000000, "avoid')
    second = File(path, NOON + HOUR)
    found = second.books.report(NOON, NOON + 2 * HOUR)
    assert (found["avoided"], found["given"], found["moved"], found["waits"]) == (4, 1, 7, 1)
    assert (found["since"], found["until"]) == (NOON, NOON + 2 * HOUR)
    assert second.books.report(NOON + HOUR, NOON + 2 * HOUR)["avoided"] == 0


def test_the_file_is_bounded_and_so_are_the_hours(tmp_path: Path) -> None:
    path = tmp_path / "books.jsonl"
    file = File(path, NOON, most=20)
    for step in range(60):
        file.books.count(NOON + step % 2 * HOUR, avoided=1)
        file.write(NOON + step, at_once=True)
    assert len(path.read_text().splitlines()) <= 20
    assert File(path, NOON).books.report(NOON, NOON + 2 * HOUR)["avoided"] == 60
    file.books.count(NOON + bookkeeping.KEPT * HOUR, avoided=1)
    file.write(NOON, at_once=True)
    assert min(file.books.hours) == NOON // HOUR + 1


@given(st.lists(st.one_of(st.text(), st.dictionaries(st.text(), st.integers()).map(json.dumps))))
def test_no_file_is_too_broken(lines: list[str]) -> None:
    hours, count = read(lines, NOON)
    assert count == len(lines)
    assert all(isinstance(hour, Hour) for hour in hours.values())


def test_a_report_is_one_line() -> None:
    books = Books()
    node = Node(1)
    kernels = [node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ben", "GPU-0")]
    for kernel in kernels:
        kernel.run()
    for second in range(3601):
        books.look(node.core, NOON + second)
    books.granted(0.0, NOON)
    books.granted(4.0, NOON)
    books.count(NOON, avoided=1, given=2)
    text = line(books.report(NOON, NOON + HOUR))
    assert "\n" not in text
    assert text.partition(": ")[2] == (
        "1 GPU, 2 users, 1.0 of 1.0 GPU hours used (100 %), 1.0 of these shared by several users (100 %); "
        "2 turns, 1 waited for, 4.0 s on average and 4.0 s at most; 1 out-of-memory error avoided, 2 given"
    )
    assert line(Books().report(0, NOON)).startswith("nothing is known of that time")
