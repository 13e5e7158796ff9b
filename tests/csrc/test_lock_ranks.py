# SPDX-License-Identifier: BSD-3-Clause
"""Debug builds check the order in which locks are taken; other builds have plain mutexes."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

#: What a library says that checks the order, and what no other contains.
SAYS = b"locks out of order"


@pytest.fixture(scope="module")
def take(root: Path, compile_c: Callable[..., Path]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that takes locks in a given way: its status, and what it writes to both streams."""
    interposer = root / "csrc/interposer"
    common = ("-g", "-pthread", f"-I{interposer}")
    checks = ("-DGS_LOCK_RANKS", str(interposer / "base/lock.c"), str(interposer / "base/print.c"))
    checked = compile_c("lock_ranks.c", "checked", *common, *checks)
    plain = compile_c("lock_ranks.c", "plain", *common)

    def run(way: str, *, checks: bool = True) -> tuple[int, str, str]:
        program = checked if checks else plain
        done = subprocess.run([program, way], capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    return run


ALLOWED = ("in-order", "tried", "waited", "two-threads")
#: What is said of each, with R for a rank and P for a place.
FORBIDDEN = {
    "reversed": "a thread takes gs_memory_lock (rank R) at P while it holds gs_client_lock "
    "(rank R), which it took at P",
    "twice": "a thread takes beginning (rank R) at P while it holds beginning (rank R), which it "
    "took at P",
    "after-tried": "a thread takes gs_memory_lock (rank R) at P while it holds gs_client_lock "
    "(rank R), which it took at P",
    "wait-under-another": "a thread waits at P, where it may hold vmm.lock (rank R) and nothing "
    "after it, while it holds beginning (rank R), which it took at P",
    "not-held": "a thread releases gs_memory_lock (rank R) at P, which it does not hold",
    "wait-for-another-process": "a thread waits at P, where it may hold figures.growth (rank R) "
    "and nothing after it, while it holds gs_memory_lock (rank R), which it took at P",
}


@pytest.mark.parametrize("way", ALLOWED)
def test_locks_taken_in_order_are_accepted(
    take: Callable[..., tuple[int, str, str]], way: str
) -> None:
    assert take(way) == (0, "done\n", "")


@pytest.mark.parametrize("way", FORBIDDEN)
def test_a_violation_ends_the_process_and_names_both_locks_and_both_places(
    take: Callable[..., tuple[int, str, str]], root: Path, way: str
) -> None:
    status, out, said = take(way)
    assert (status, out) == (-signal.SIGABRT, "")
    places = re.findall(r"\S*lock_ranks\.c:(\d+)", said)
    pattern = re.sub(r"\S*lock_ranks\.c:\d+", "P", re.sub(r"rank \d+", "rank R", said))
    assert pattern == f"gpushare: locks out of order: {FORBIDDEN[way]}\n"
    # The places are lines of the function that takes the locks; the later one comes first.
    source = (root / "tests/csrc/lock_ranks.c").read_text().splitlines()
    begin = source.index(f"static void {way.replace('-', '_')}(void)") + 1
    end = source.index("}", begin)
    within = [int(place) for place in places]
    if way != "wait-under-another":  # it waits in another function
        assert all(begin < line <= end for line in within)
        assert within == sorted(within, reverse=True)
    assert len(within) == pattern.count("P")


def test_a_child_does_not_hold_the_locks_of_its_parent(
    take: Callable[..., tuple[int, str, str]],
) -> None:
    assert take("fork-while-held") == (0, "the child goes on\ndone\n", "")


@pytest.mark.parametrize("way", ["reversed", "after-tried"])
def test_other_builds_check_nothing(take: Callable[..., tuple[int, str, str]], way: str) -> None:
    assert take(way, checks=False) == (0, "done\n", "")


def test_the_shipped_library_has_plain_mutexes(libraries: Path) -> None:
    library = (libraries / "libgpushare.so").read_bytes()
    assert SAYS not in library
    assert re.search(rb"interposer/client/lease\.c:\d+\0", library) is None


def test_every_lock_of_the_interposer_has_a_rank(root: Path) -> None:
    own = re.compile(
        r"\bpthread_(mutex|rwlock|spin)_|\bPTHREAD_(MUTEX|RWLOCK)_|\bpthread_cond_\w*wait\("
    )
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted((root / "csrc/interposer").rglob("*.[ch]"))
        if path.stem != "lock"
        for line in path.read_text().splitlines()
        if own.search(line)
    ]
    assert found == []


def test_every_lock_is_free_in_a_child(root: Path) -> None:
    """Threads that held them stay in the parent."""
    sources = (root / "csrc/interposer").rglob("*.c")
    text = "\n".join(path.read_text() for path in sources if path.stem != "lock")
    freed = set(re.findall(r"gs_(?:mutex|rwlock)_after_fork\(&([\w.]+)\)", text))
    header = (root / "csrc/interposer/base/lock.h").read_text()
    declared = set(re.findall(r'^    RANK\(\w+, "(.+)"\)', header, re.MULTILINE))
    # A population is on the stack of the thread that moves memory.
    assert freed == declared - {"population->lock"}


def test_every_lock_and_its_place_are_documented(root: Path) -> None:
    header = (root / "csrc/interposer/base/lock.h").read_text()
    declared = re.findall(r'^    RANK\(\w+, "(.+)"\)', header, re.MULTILINE)
    text = (root / "docs/contributing/ordering.md").read_text()
    documented = re.findall(r"^\| \d+ \| `(.+?)` ", text, re.MULTILINE)
    assert len(declared) > 20
    assert documented == declared
