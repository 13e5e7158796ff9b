# SPDX-License-Identifier: BSD-3-Clause
"""Hibernated processes without a scheduler: they wake themselves, or wait for the next one."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.bed import OUT_OF_MEMORY, Bed, attached_again
from tests.interposer.scripted import PIECE, evicted, filled
from tests.support.machine import UNIT, Script

SMALL = 64 << 10


#: A library that calls the driver as soon as it is loaded, when its thread holds the linker's lock.
EAGER = """
#include <dlfcn.h>
__attribute__((constructor)) static void begin(void)
{
    unsigned long free_bytes, total;
    int (*call)() = (int (*)())dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemGetInfo_v2");
    call(&free_bytes, &total);
}
"""


@pytest.fixture
def eager(tmp_path: Path) -> Path:
    """Return the library."""
    library = tmp_path / "libeager.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=EAGER, text=True, check=True)
    return library


@pytest.mark.parametrize("ignores_children", [False, True])
def test_a_process_wakes_itself_without_a_scheduler(
    bed: Bed, eager: Path, ignores_children: bool
) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    bed.script.close()
    bed.machine.socket.unlink()
    if ignores_children:
        bed.a.call("raw", function="signal", arguments=[signal.SIGCHLD, 1])
    bed.a.call("load_library", path=str(eager))
    assert bed.a.call("info")["result"] == 0
    assert bed.hibernator.state(bed.a.pid) == "running"
    assert bed.a.holds(pointer, PIECE, 7)
    bed.script = Script(bed.machine)
    again = bed.script.next(ev.Attach)
    assert again.reattach
    assert not again.hibernated


def test_a_restarted_scheduler_finds_the_process_hibernated(bed: Bed) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    # More than it had been admitted with, as the scheduler has found.
    took = bed.parked().context + UNIT
    bed.hibernator.checkpoint(bed.a.pid)
    bed.script.send(protocol.hibernated(bed.serial, done=True, context=took))
    bed.script.disconnect()
    again = attached_again(bed)
    assert again.hibernated
    assert [usage.context for usage in again.usages] == [took]
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    asked = bed.wake()
    assert asked.needs.context == took
    bed.lend()
    assert bed.a.result(checking)["equal"]


def test_a_park_whose_scheduler_is_lost_stays_until_it_is_woken(bed: Bed) -> None:
    """The lost scheduler's hibernator may still checkpoint it."""
    bed.parked()
    bed.script.disconnect()
    assert attached_again(bed).hibernated
    bed.hibernator.checkpoint(bed.a.pid)
    waiting = bed.a.start("info")
    assert bed.a.waits(waiting, 0.1)
    bed.wake()
    assert bed.a.result(waiting)["result"] == 0


def test_a_process_that_cannot_wake_itself_reports_it_and_waits_for_the_next_scheduler(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(program={"GPUSHARE_SIM_FAIL": "cuCheckpointProcessRestore=OUT_OF_MEMORY"})
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    bed.script.close()
    bed.machine.socket.unlink()
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.machine.until_said(bed.a, "No data is lost")
    assert bed.a.waits(checking, 0.1)
    bed.script = Script(bed.machine)
    assert bed.script.next(ev.Attach).hibernated
    bed.fail("not yet")
    assert bed.a.result(checking)["result"] == OUT_OF_MEMORY
    assert bed.hibernator.state(bed.a.pid) == "checkpointed"


def test_a_process_that_ignores_its_children_mistakes_no_exit_for_a_wake(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(program={"GPUSHARE_SIM_FAIL": "cuCheckpointProcessRestore/die"})
    bed.a.call("raw", function="signal", arguments=[signal.SIGCHLD, 1])
    bed.hibernate()
    bed.script.close()
    bed.machine.socket.unlink()
    waiting = bed.a.start("info")
    bed.machine.until_said(bed.a, "the hibernator ended without a reason")
    assert bed.hibernator.state(bed.a.pid) == "checkpointed"
    bed.script = Script(bed.machine)
    bed.fail()
    assert bed.a.result(waiting)["result"] == OUT_OF_MEMORY


def test_a_process_waits_for_room_before_it_wakes_itself(make_bed: Callable[..., Bed]) -> None:
    """A driver that has no room for a restore may never restore that process again."""
    bed = make_bed(GPUSHARE_SIM_CHECKPOINT_LEFT="0")
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    plain = bed.machine.program("plain", GPUSHARE_DISABLE="1")
    filler = plain.call("alloc", bytes=plain.call("info")["free"] - SMALL)["pointer"]
    bed.script.close()
    bed.machine.socket.unlink()
    waiting = bed.a.start("info")
    bed.machine.until_said(bed.a, "its GPU has 0 MiB free, and it needs 1 MiB")
    assert bed.hibernator.state(bed.a.pid) == "checkpointed"
    assert plain.call("free", pointer=filler)["result"] == 0
    assert bed.a.result(waiting)["result"] == 0
    assert bed.a.holds(pointer, PIECE, 7)
    bed.script = Script(bed.machine)
