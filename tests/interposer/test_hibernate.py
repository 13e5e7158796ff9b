# SPDX-License-Identifier: BSD-3-Clause
"""A process that is parked, checkpointed and woken: permitted calls, ways to wake it, and no lost data."""

from __future__ import annotations

import os
import queue
import signal
import struct
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.bed import (
    INVALID_DEVICE,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    Bed,
    Hibernator,
    attached_again,
)
from tests.interposer.scripted import PIECE, evicted, filled
from tests.support.machine import PATIENCE, UNIT, Machine, Program, Script

SMALL = 64 << 10


def test_waiting_calls_send_one_wake_request_and_continue_when_awake(bed: Bed) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    assert evicted(bed.script, PIECE).usage.resident == 0
    needs = bed.hibernate()
    assert needs.gpu == bed.script.gpu
    assert needs.context > 0
    assert needs.resident == 0
    calls = [bed.a.start("attribute", pointer=pointer, attribute=2, thread="1")]
    calls += [bed.a.start("free", pointer=pointer + 1, thread="2"), bed.a.start("info")]
    calls.append(bed.a.start("oversubscribe", on=False, thread="3"))
    assert all(bed.a.waits(call, 0.1) for call in calls)
    asked = bed.wake()
    assert asked.cause == "call"
    assert asked.needs.context == needs.context
    assert [bed.a.result(call)["result"] for call in calls] == [0, 1, 0, 0]
    with pytest.raises(TimeoutError):
        bed.script.next(ev.Wake, 0.05)


def test_a_client_states_its_pid_namespace(bed: Bed) -> None:
    """The scheduler may not be permitted to look it up."""
    assert bed.script.pid_namespace == os.stat("/proc/self/ns/pid").st_ino


def test_memory_leaves_the_gpu_and_is_unchanged_afterwards(
    make_bed: Callable[..., Bed],
) -> None:
    bed = make_bed(GPUSHARE_SIM_CHECKPOINT_LEFT="0")
    plain = bed.machine.program("plain", GPUSHARE_DISABLE="1")
    before = plain.call("info")["free"]
    large, small = (filled(bed.script, bed.a, size, 7) for size in (PIECE, SMALL))
    stream = bed.a.call("stream")["stream"]
    assert bed.run("load", path=str(LIBRARIES / "bench/empty.so"))["result"] == 0
    assert bed.run("capture", stream=stream, count=3)["result"] == 0
    for cycle in range(3):
        evicted(bed.script, 1 << 40)
        bed.hibernate()
        assert plain.call("info")["free"] > before
        checking = bed.a.start("check", pointer=large, bytes=PIECE, value=7 + cycle)
        bed.wake()
        bed.lend()
        assert bed.a.result(checking)["equal"]
        assert bed.a.holds(small, SMALL, 7 + cycle)
        ran = bed.a.call("counters")["kernels"]
        assert bed.a.call("launch_graph", stream=stream, count=2)["result"] == 0
        assert bed.a.call("raw", function="cuStreamSynchronize", arguments=[stream])["result"] == 0
        assert bed.a.call("counters")["kernels"] == ran + 6
        for pointer, size in ((large, PIECE), (small, SMALL)):
            filling = bed.a.call("fill", pointer=pointer, bytes=size, value=8 + cycle)
            assert filling["result"] == 0
        bed.take_back()
    assert not bed.a.errors


def test_the_driver_may_lose_address_reservations(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(
        program={
            "GPUSHARE_LOG": "debug",
            "GPUSHARE_SIM_FAIL": "cuCheckpointProcessRestore/forget",
        }
    )
    large, small = (filled(bed.script, bed.a, size, 7) for size in (PIECE, SMALL))
    for _ in range(2):
        evicted(bed.script, 1 << 40)
        bed.hibernate()
        checking = bed.a.start("check", pointer=large, bytes=PIECE, value=7)
        bed.wake()
        bed.lend()
        assert bed.a.result(checking)["equal"]
        assert bed.a.holds(small, SMALL, 7)
        bed.take_back()
    said = [line for line in bed.a.errors if "reserved again" in line]
    assert len(said) == 4, bed.a.errors


def test_lost_addresses_are_reserved_again_with_retries(make_bed: Callable[..., Bed]) -> None:
    refused = "cuCheckpointProcessRestore/forget,cuMemAddressReserve%gpushare:1=OUT_OF_MEMORY"
    bed = make_bed(program={"GPUSHARE_SIM_FAIL": refused})
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.wake()
    bed.lend()
    bed.machine.until_said(bed.a, "No data is lost, and the process keeps trying")
    assert bed.a.waits(checking, 0.1)
    bed.script.send(*bed.script.grant(filling=False))
    assert bed.a.result(checking)["equal"]
    bed.take_back()
    assert bed.a.call("free", pointer=pointer)["result"] == 0


def made(program: Program, function: str, *arguments: int | str) -> int:
    """Return what a function hands out."""
    answer = program.call("raw", function=function, arguments=["out", *arguments])
    assert answer["result"] == 0, function
    return int.from_bytes(bytes.fromhex(answer["out"][0])[:8], "little")


def test_arenas_that_the_program_maps_itself_are_restored(make_bed: Callable[..., Bed]) -> None:
    """A reservation of several mappings, and a reservation without any when the process hibernates."""
    bed = make_bed(program={"GPUSHARE_SIM_FAIL": "cuCheckpointProcessRestore/forget"})
    size = 2 << 20
    properties = struct.pack("=5i4xQQ", 1, 0, 1, 0, 0, 0, 0).hex()
    access = struct.pack("=3i", 1, 0, 3).hex()
    place = made(bed.a, "cuMemAddressReserve", 4 * size, 0, 0, 0)
    handles = [made(bed.a, "cuMemCreate", size, properties, 0) for _ in range(3)]

    def map_at(index: int) -> None:
        at = place + index * size
        for function, *arguments in (
            ("cuMemMap", at, size, 0, handles[index], 0),
            ("cuMemSetAccess", at, size, access, 1),
        ):
            done = bed.a.call("raw", function=function, arguments=arguments)
            assert done["result"] == 0, function

    for index in range(2):
        map_at(index)
        assert bed.run("fill", pointer=place + index * size, bytes=size, value=index)["result"] == 0
    for cycle in range(2):
        bed.hibernate()
        started = bed.a.start("info")
        bed.wake()
        assert bed.a.result(started)["result"] == 0
        if cycle == 0:
            map_at(2)
            filling = bed.run("fill", pointer=place + 2 * size, bytes=size, value=2)
            assert filling["result"] == 0
        for index in range(3):
            checking = {"pointer": place + index * size, "bytes": size, "value": index}
            assert bed.run("check", **checking)["equal"]
    assert not bed.a.errors


def test_a_cancelled_park_leaves_the_process_as_it_was(bed: Bed) -> None:
    bed.parked()
    waiting = bed.a.start("info")
    assert bed.a.waits(waiting, 0.1)
    bed.script.send(protocol.hibernated(bed.serial, done=False))
    assert bed.a.result(waiting)["result"] == 0
    asked = bed.script.next(ev.Wake)
    bed.script.send(protocol.awake(ev.Awake(1, asked.serial)))
    bed.hibernate()
    bed.hibernator.restore(bed.a.pid)
    bed.script.send(protocol.awake(ev.Awake(1, 0)))
    assert bed.a.call("info")["result"] == 0


def test_a_failed_wake_is_reported_and_requested_again(bed: Bed) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    assert [bed.a.call("info", thread=str(i))["result"] for i in range(2)] == [0, 0]
    bed.hibernate()
    calls = [bed.a.start("info", thread=str(i)) for i in range(2)]
    assert all(bed.a.waits(call, 0.1) for call in calls)
    start = time.monotonic()
    bed.fail("no room now")
    assert [bed.a.result(call)["result"] for call in calls] == [OUT_OF_MEMORY] * 2
    assert sum("no room now" in line for line in bed.a.errors) == 1
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.wake()
    assert time.monotonic() - start >= 1
    bed.lend()
    assert bed.a.result(checking)["equal"]


def test_an_awake_message_holds_for_all_calls(bed: Bed) -> None:
    bed.hibernate()
    calling = bed.a.start("info")
    asked = bed.script.next(ev.Wake)
    other = asked.serial + 1
    bed.script.send(protocol.awake(ev.Awake(1, other, OUT_OF_MEMORY, text="to another call")))
    assert bed.a.waits(calling, 0.2)
    bed.hibernator.restore(bed.a.pid)
    bed.script.send(protocol.awake(ev.Awake(1, other)))
    assert bed.a.result(calling)["result"] == 0


@pytest.mark.parametrize("how", ["frame", "signal"])
def test_an_interrupt_ends_the_wait_and_leaves_the_process_hibernated(bed: Bed, how: str) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    freeing = bed.a.start("free", pointer=pointer)
    bed.script.next(ev.Wake)
    if how == "frame":
        bed.script.send(protocol.cancel())
        assert bed.a.result(freeing)["result"] == OPERATING_SYSTEM
    else:
        os.kill(bed.a.pid, signal.SIGINT)
        assert bed.a.result(freeing).get("interrupted")
    # It is still on its way: what is asked next need not ask again.
    checking = bed.a.start("attribute", pointer=pointer, attribute=2)
    bed.hibernator.restore(bed.a.pid)
    bed.script.send(protocol.awake(ev.Awake(1, 0)))
    assert bed.a.result(checking)["result"] == 0
    assert bed.a.call("free", pointer=pointer)["result"] == 0


def test_cells_and_the_driver_version_do_not_wake_a_process(bed: Bed) -> None:
    bed.hibernate()
    bed.a.call("cell", phase="begin")
    bed.a.call("cell", phase="end")
    assert bed.a.call("attached")["attached"] == 1
    assert bed.a.call("raw", function="cuDriverGetVersion", arguments=["out"])["result"] == 0
    with pytest.raises(TimeoutError):
        bed.script.next(ev.Wake, 0.1)
    assert bed.hibernator.state(bed.a.pid) == "checkpointed"


def test_a_forked_child_is_not_parked(bed: Bed) -> None:
    bed.hibernate()
    child = bed.a.call("fork")["child"]
    os.kill(child, signal.SIGKILL)
    with pytest.raises(TimeoutError):
        bed.script.next(ev.Wake, 0.1)


def test_a_hibernated_process_can_be_killed(bed: Bed) -> None:
    plain = bed.machine.program("plain", GPUSHARE_DISABLE="1")
    bed.hibernate()
    bed.a.close()
    assert plain.call("info")["result"] == 0


# --- Processes that wait for a lease ---


def waits_hibernated(bed: Bed) -> tuple[int, Any]:
    """Hibernate a process while one of its threads waits for a lease; return its memory and that call."""
    pointer = filled(bed.script, bed.a, PIECE, 7)
    assert evicted(bed.script, PIECE).usage.resident == 0
    waiting = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7, thread="1")
    bed.script.next(ev.Request)
    needs = bed.hibernate()
    assert needs.context > 0
    assert bed.a.waits(waiting, 0.1)
    return pointer, waiting


def test_a_process_that_waits_for_a_lease_hibernates_and_keeps_waiting(bed: Bed) -> None:
    _, waiting = waits_hibernated(bed)
    bed.wake()
    assert bed.a.waits(waiting, 0.1)
    # It has asked, and does not ask again.
    bed.script.send(*bed.script.grant(filling=False))
    assert bed.a.result(waiting)["equal"]
    with pytest.raises(TimeoutError):
        bed.script.next(ev.Wake, 0.05)
    bed.take_back()
    # The process can be parked again.
    bed.hibernate()


def test_a_process_that_calls_all_the_time_is_parked_and_requests_to_wake(bed: Bed) -> None:
    """Or it could not make way for others; and the scheduler can still let it go on."""
    calls = [bed.a.start("info", thread="2") for _ in range(200)]
    bed.serial += 1
    bed.script.send(protocol.park(bed.serial))
    # Which comes first depends on where the thread is.
    asked = parked = None
    deadline = time.monotonic() + PATIENCE
    while asked is None or parked is None:
        assert time.monotonic() < deadline, (asked, parked)
        calls.append(bed.a.start("info", thread="2"))
        try:
            event = bed.script.events.get(timeout=0.01)
        except queue.Empty:
            continue
        asked = event if isinstance(event, ev.Wake) else asked
        parked = event if isinstance(event, ev.Parked) else parked
    assert parked.status == "done"
    bed.script.send(protocol.hibernated(bed.serial, done=False))
    bed.script.send(protocol.awake(ev.Awake(1, asked.serial)))
    assert all(bed.a.result(call)["result"] == 0 for call in calls)


@pytest.mark.parametrize("how", ["frame", "signal"])
def test_an_interrupt_ends_the_wait_of_a_hibernated_process(bed: Bed, how: str) -> None:
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    waiting = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.script.next(ev.Request)
    bed.hibernate()
    bed.script.next(ev.Wake)
    if how == "frame":
        bed.script.send(protocol.cancel())
        assert bed.a.result(waiting)["result"] == OPERATING_SYSTEM
    else:
        os.kill(bed.a.pid, signal.SIGINT)
        assert bed.a.result(waiting).get("interrupted")
    assert bed.hibernator.state(bed.a.pid) == "checkpointed"
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.wake()
    bed.lend()
    assert bed.a.result(checking)["equal"]


def test_a_wake_that_fails_ends_the_wait_for_the_lease(bed: Bed) -> None:
    pointer, waiting = waits_hibernated(bed)
    bed.fail("no room now")
    assert bed.a.result(waiting)["result"] == OUT_OF_MEMORY
    assert sum("no room now" in line for line in bed.a.errors) == 1
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.wake()
    bed.lend()
    assert bed.a.result(checking)["equal"]


def test_the_next_scheduler_is_sent_the_wait_of_a_hibernated_process(bed: Bed) -> None:
    _, waiting = waits_hibernated(bed)
    bed.script.next(ev.Wake)
    bed.script.disconnect()
    assert attached_again(bed).hibernated
    bed.script.next(ev.Request)
    bed.wake()
    bed.script.send(*bed.script.grant(filling=False))
    assert bed.a.result(waiting)["equal"]


def test_a_waiting_process_wakes_itself_without_a_scheduler(bed: Bed) -> None:
    _, waiting = waits_hibernated(bed)
    bed.script.close()
    bed.machine.socket.unlink()
    assert bed.a.result(waiting)["equal"]
    assert bed.hibernator.state(bed.a.pid) == "running"
    bed.script = Script(bed.machine)


def test_a_process_continues_on_another_gpu(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(GPUSHARE_SIM_DEVICES="2", GPUSHARE_PLACE="0")
    home, away = (f"GPU-{uuid.UUID(text)}" for text in bed.a.call("devices")["uuids"])
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    first, second = [["0000:01:00.0", [0, 1, 0]], ["0000:02:00.0", [0, 2, 0]]]
    seen = bed.a.call("buses")
    assert (seen["result"], seen["nobody"]) == (0, INVALID_DEVICE)
    assert seen["buses"] == [[*first, [0, 0]], [*second, [1, 1]]]
    assert bed.hibernate().gpu == home
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    bed.wake(home, away)
    bed.lend()
    assert bed.a.result(checking)["equal"]
    bed.script.send(protocol.revoke(bed.script.lease))
    bed.script.next(ev.Released)
    bed.script.gpu = away
    assert evicted(bed.script, PIECE).bytes == PIECE
    # The driver alone would tell the first one's bus id. Its attributes, which CUDA's runtime checks, go on doing so.
    assert bed.a.call("devices")["uuids"] == [uuid.UUID(gpu[4:]).hex for gpu in (away, home)]
    seen = bed.a.call("buses")
    assert (seen["result"], seen["nobody"]) == (0, INVALID_DEVICE)
    assert seen["buses"] == [[second[0], first[1], [0, 0]], [first[0], second[1], [1, 1]]]
    assert bed.parked().gpu == away


def test_a_process_detects_that_it_is_on_another_gpu(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(GPUSHARE_SIM_DEVICES="2", GPUSHARE_PLACE="0")
    home, away = (f"GPU-{uuid.UUID(text)}" for text in bed.a.call("devices")["uuids"])
    pointer = filled(bed.script, bed.a, PIECE, 7)
    evicted(bed.script, PIECE)
    bed.hibernate()
    checking = bed.a.start("check", pointer=pointer, bytes=PIECE, value=7)
    # The scheduler that had it moved has ended, and this one has found it awake.
    asked = bed.script.next(ev.Wake)
    bed.hibernator.restore(bed.a.pid, home, away)
    bed.script.send(protocol.awake(ev.Awake(1, asked.serial)))
    attach = bed.script.next(ev.Attach)
    assert [(usage.gpu, usage.promised) for usage in attach.usages if usage.promised] == [
        (away, PIECE)
    ]
    assert not attach.hibernated
    bed.lend()
    assert bed.a.result(checking)["equal"]


@pytest.mark.parametrize("visible", [None, "1"])
def test_a_process_states_which_gpus_it_may_use(
    make_bed: Callable[..., Bed], visible: str | None
) -> None:
    given = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    bed = make_bed(GPUSHARE_SIM_DEVICES="2", GPUSHARE_PLACE="0", **given)
    own = tuple(f"GPU-{uuid.UUID(text)}" for text in bed.a.call("devices")["uuids"])
    assert len(own) == (2 if visible is None else 1)
    parked = bed.park()
    assert (parked.status, parked.sees) == ("done", own)
    bed.hibernator.checkpoint(bed.a.pid)
    bed.script.send(protocol.hibernated(bed.serial, done=True))
    # Also to the next scheduler.
    bed.script.close()
    bed.machine.socket.unlink()
    bed.script = Script(bed.machine)
    attach = bed.script.next(ev.Attach)
    assert (attach.hibernated, attach.sees) == (True, own)


# --- With the scheduler ---


def states(machine: Machine) -> list[str]:
    return [group["state"] for group in machine.control("status")["status"]["groups"]]


def test_the_scheduler_hibernates_and_wakes(machine: Machine) -> None:
    a, plain = machine.program("a"), machine.program("plain", GPUSHARE_DISABLE="1")
    pointer = a.filled(PIECE, 7)
    used = plain.call("info")["free"]
    for _ in range(2):
        machine.hibernate("a")
        assert plain.call("info")["free"] >= used + PIECE
        assert a.holds(pointer, PIECE, 7)
        assert machine.group("a")["state"] != "hibernated"
    machine.hibernate("a")
    machine.kill_scheduler()
    machine.start_scheduler()
    machine.until(lambda: states(machine) == ["hibernated"])
    assert a.holds(pointer, PIECE, 7)
    machine.hibernate("a")
    assert a.process.stdin is not None
    a.process.stdin.close()
    assert a.process.wait(PATIENCE) == 0
    assert not a.errors


def test_a_scheduler_without_a_record_of_the_move_is_sent_it(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(GPUSHARE_SIM_DEVICES="2")
    a = machine.program("a")
    pointer = a.filled(PIECE, 7)
    home, away = (f"GPU-{uuid.UUID(text)}" for text in a.call("devices")["uuids"])
    machine.hibernate("a")
    other = Hibernator(machine)
    try:
        other.restore(a.pid, home, away)
    finally:
        other.close()
    assert a.holds(pointer, PIECE, 7)
    machine.until(lambda: [gpu["uuid"] for gpu in machine.group("a")["gpus"]] == [away])
    machine.hibernate("a")
    assert a.holds(pointer, PIECE, 7)
    assert not a.errors


def test_a_hibernated_process_makes_room_for_another(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(200 * UNIT, 1)
    machine.hibernate("a")
    at_b = b.filled(200 * UNIT, 2)
    for _ in range(3):
        assert a.holds(at_a, 200 * UNIT, 1)
        machine.hibernate("a")
        assert b.holds(at_b, 200 * UNIT, 2)
        machine.hibernate("b")
