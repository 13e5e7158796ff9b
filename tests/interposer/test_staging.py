# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is not page-locked: after a hibernation, and where the driver refuses to page-lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.bed import Bed
from tests.interposer.pool_clients import until
from tests.interposer.scripted import evicted
from tests.support.sanitizers import SANITIZERS

#: More than what is page-locked rather than copied through the ring, and not a multiple of its slots.
LARGE = 163 << 20
SMALL = 32 << 20
MEMORY = {"GPUSHARE_SIM_MEMORY": "256MiB"}
#: The driver refuses the pool's chunks and the ring, but allocates page-locked memory itself.
REFUSING = "cuMemHostRegister:1+=OUT_OF_MEMORY"


def threads(bed: Bed) -> list[str]:
    """Return the names of the process's threads."""
    tasks = Path(f"/proc/{bed.a.pid}/task").glob("*/comm")
    return [task.read_text().strip() for task in tasks]


def scattered(bed: Bed, bytes: int) -> int:
    """Let the program write memory of which no two parts are equal; return its address."""
    pointer = int(bed.a.call("alloc", bytes=bytes)["pointer"])
    assert bed.run("scatter", pointer=pointer, bytes=bytes, seed=7)["result"] == 0
    return pointer


def hibernated(bed: Bed) -> None:
    """Have the evicted process hibernated, and wake it with a call."""
    bed.hibernate()
    waiting = bed.a.start("info")
    bed.wake()
    assert bed.a.result(waiting)["result"] == 0
    # Digests have a buffer of their own.
    assert bed.a.call("counters")["kept_locked"] < 2 << 20


def compare(bed: Bed, pointer: int, bytes: int) -> None:
    assert bed.run("scattered", pointer=pointer, bytes=bytes, seed=7)["equal"]


def test_a_process_is_hibernated_without_page_locks_and_restored_through_the_ring(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(**MEMORY)
    pointer = scattered(bed, LARGE)
    assert bed.a.call("counters")["page_locked"] >= LARGE
    hibernated(bed)
    comparing = bed.a.start("scattered", pointer=pointer, bytes=LARGE, seed=7)
    bed.lend()
    until(lambda: "gpushare-copies" in threads(bed))
    assert bed.a.result(comparing)["equal"]
    bed.take_back()
    hibernated(bed)
    assert "gpushare-copies" not in threads(bed)
    compare(bed, pointer, LARGE)
    assert not bed.a.errors


def test_little_memory_is_page_locked_rather_than_copied_twice(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(**MEMORY)
    pointer = scattered(bed, SMALL)
    hibernated(bed)
    locked = bed.a.call("counters")["page_locked"]
    compare(bed, pointer, SMALL)
    assert bed.a.call("counters")["page_locked"] - locked >= SMALL
    assert "gpushare-copies" not in threads(bed)


def test_memory_moves_through_the_ring_if_the_driver_refuses_page_locks(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(**MEMORY, program={"GPUSHARE_SIM_FAIL": REFUSING})
    pointer = int(bed.a.call("alloc", bytes=LARGE)["pointer"])
    writing = bed.a.start("scatter", pointer=pointer, bytes=LARGE, seed=7)
    bed.lend()
    assert bed.a.result(writing)["result"] == 0
    bed.script.send(protocol.revoke(bed.script.lease))
    bed.script.next(ev.Released)
    bed.script.send(protocol.evict(1, bed.script.gpu, 1 << 40))
    until(lambda: "gpushare-copies" in threads(bed))
    assert bed.script.next(ev.Evicted).usage.resident == 0
    for _ in range(2):
        compare(bed, pointer, LARGE)
    # The ring ends by itself, and then at once for a hibernation.
    until(lambda: "gpushare-copies" not in threads(bed))
    for _ in range(2):
        hibernated(bed)
        compare(bed, pointer, LARGE)
    assert sum("slower" in line for line in bed.a.errors) == len(bed.a.errors) == 1


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        ("cuStreamWaitValue32", 1),
        ("cuStreamWriteValue32", 7),
        ("cuMemcpyDtoHAsync", 1),
        ("cuMemcpyHtoDAsync", 7),
        pytest.param("cuStreamWaitValue32", 7, marks=pytest.mark.slow),
        pytest.param("cuStreamWriteValue32", 1, marks=pytest.mark.slow),
        pytest.param("cuMemcpyDtoHAsync", 7, marks=pytest.mark.slow),
        pytest.param("cuMemcpyHtoDAsync", 1, marks=pytest.mark.slow),
    ],
)
def test_a_copy_that_fails_loses_no_data(make_bed: Callable[..., Bed], call: str, nth: int) -> None:
    bed = make_bed(**MEMORY, program={"GPUSHARE_SIM_FAIL": REFUSING})
    pointer = int(bed.a.call("alloc", bytes=LARGE)["pointer"])
    writing = bed.a.start("scatter", pointer=pointer, bytes=LARGE, seed=7)
    bed.lend()
    assert bed.a.result(writing)["result"] == 0
    bed.a.call("fail", rules=f"{REFUSING},{call}%gpushare:{nth}=OUT_OF_MEMORY")
    bed.script.send(protocol.revoke(bed.script.lease))
    bed.script.next(ev.Released)
    while evicted(bed.script, 1 << 40).usage.resident != 0:
        pass
    comparing = bed.a.start("scattered", pointer=pointer, bytes=LARGE, seed=7)
    bed.lend()
    while bed.a.waits(comparing, 1.0):
        bed.script.send(*bed.script.grant(filling=False))
    assert bed.a.result(comparing)["equal"]


@pytest.mark.slow
def test_the_thread_sanitizer_finds_nothing(
    make_bed: Callable[..., Bed], sanitized: Callable[[str], tuple[Path, str]]
) -> None:
    found, _, settings, _ = SANITIZERS["thread"]
    libraries, runtime = sanitized("thread")
    for rules in ("", REFUSING):
        bed = make_bed(
            libraries, runtime, **MEMORY, program={"GPUSHARE_SIM_FAIL": rules, **settings}
        )
        pointer = scattered(bed, LARGE)
        for _ in range(2):
            hibernated(bed)
            compare(bed, pointer, LARGE)
        said = "".join(bed.a.errors)
        assert not any(words in said for words in found), said
