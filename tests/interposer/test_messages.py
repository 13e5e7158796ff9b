# SPDX-License-Identifier: BSD-3-Clause
"""Messages to a scheduler that does not read: none is lost while the connection lasts, and no thread waits for it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.raw_calls import POOL, PROPERTIES
from tests.interposer.rows import Runner
from tests.support.machine import UNIT, Machine, Script, Scripted

MakeScript = Callable[..., Scripted]
#: The socket has room for some 280 of them.
MORE_THAN_THE_SOCKET_TAKES = 2_000
#: The process keeps about 7,700 of them besides.
MORE_THAN_IS_KEPT = 20_000
#: CUDA_ERROR_OUT_OF_MEMORY
OUT_OF_MEMORY = 2


def test_no_message_is_lost_while_the_scheduler_is_stopped(make_script: MakeScript) -> None:
    script, a, _ = make_script()
    pointer = a.call("alloc", bytes=UNIT)["pointer"]
    script.reading.clear()
    a.call("cells", count=MORE_THAN_THE_SOCKET_TAKES)
    filling = a.start("fill", pointer=pointer, bytes=UNIT, value=1)
    script.reading.set()
    for number in range(MORE_THAN_THE_SOCKET_TAKES):
        assert script.next(ev.Cell).msg_id == str(number)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert a.result(filling)["result"] == 0


def test_a_scheduler_that_reads_nothing_for_long_is_disconnected(make_script: MakeScript) -> None:
    script, a, _ = make_script()
    pointer = a.call("alloc", bytes=UNIT)["pointer"]
    script.next(ev.Grow)
    script.reading.clear()
    a.call("cells", count=MORE_THAN_IS_KEPT)
    filling = a.start("fill", pointer=pointer, bytes=UNIT, value=1)
    script.reading.set()
    assert script.next(ev.Attach).reattach
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert a.result(filling)["result"] == 0
    assert a.holds(pointer, UNIT, 1)


def test_no_impossible_size_is_stated(make_script: MakeScript) -> None:
    """The scheduler would disconnect the sender of such a size."""
    script, a, _ = make_script()
    assert a.call("alloc", bytes=UNIT)["result"] == 0
    for size in (1 << 63, (1 << 64) - 8 * UNIT):
        asked = a.call("raw", function="cuMemCreate", arguments=["out", size, PROPERTIES, 0])
        assert asked["result"] == OUT_OF_MEMORY
    assert a.call("alloc", bytes=32 * UNIT)["result"] == 0
    for _ in range(2):
        assert script.next(ev.Grow).least.promised < 256 * UNIT


@pytest.mark.parametrize("refused", [False, True])
def test_memory_of_a_graph_is_counted_once_it_is_launched(
    make_script: MakeScript, refused: bool
) -> None:
    """What graphs do not use is given back while one of them waits to be admitted."""
    script, a, _ = make_script()
    node = POOL + struct.pack("<QQQQ", 0, 0, 8 * UNIT, 0).hex()

    def call(function: str, *arguments: int | str | None) -> list[bytes]:
        answer = a.call("raw", function=function, arguments=list(arguments))
        assert answer["result"] == 0, (function, a.errors)
        return [bytes.fromhex(room) for room in answer["out"]]

    def first(room: bytes) -> int:
        return int.from_bytes(room[:8], "little")

    def launch() -> int:
        return a.start(
            "raw", function="cuGraphLaunch", arguments=[executable, None], thread="launches"
        )

    def admitted() -> ev.Grow:
        growth = script.next(ev.Grow)
        assert growth.least.unevictable == 8 * UNIT
        return growth

    def stated() -> int:
        script.send(protocol.evict(1, script.gpu, UNIT))
        return script.next(ev.Evicted).usage.unevictable

    graph = first(call("cuGraphCreate", "out", 0)[0])
    memory = first(call("cuGraphAddMemAllocNode", "out", graph, None, 0, node)[1][-8:])
    instantiating = a.start(
        "raw", function="cuGraphInstantiateWithFlags", arguments=["out", graph, 0]
    )
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    executable = first(bytes.fromhex(a.result(instantiating)["out"][0]))
    script.growth = None
    launching = launch()
    growth = admitted()
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)
    assert stated() == 0
    if refused:
        script.send(protocol.grown(growth.serial, "device", 0))
        assert a.result(launching)["result"] == OUT_OF_MEMORY
        assert stated() == 0
        launching = launch()
        growth = admitted()
    script.send(protocol.grown(growth.serial, "resident", growth.most))
    script.next(ev.Request)
    # It waits for a lease, and another thread gives back what it has not taken yet.
    call("cuDeviceGraphMemTrim", 0)
    assert stated() == 0
    script.send(*script.grant(filling=False))
    assert a.result(launching)["result"] == 0
    assert stated() == 8 * UNIT
    call("cuMemFree_v2", memory)
    call("cuGraphExecDestroy", executable)
    call("cuDeviceGraphMemTrim", 0)
    assert stated() == 0


def test_memory_of_a_pool_is_counted_for_no_other_pool(make_script: MakeScript) -> None:
    """A pool is destroyed while it is to grow, and another GPU's pool gets its handle."""
    script, a, _ = make_script(GPUSHARE_SIM_DEVICES="2", GPUSHARE_SIM_REUSE="1", GPUSHARE_PLACE="0")

    def create(gpu: int) -> int:
        properties = struct.pack("<iiiiQQ56x", 1, 1, 1, gpu, 0, 0).hex()
        answer = a.call("raw", function="cuMemPoolCreate", arguments=["out", properties])
        assert answer["result"] == 0, a.errors
        return int.from_bytes(bytes.fromhex(answer["out"][0])[:8], "little")

    assert script.next(ev.Grow).least.context > 0
    pool = create(0)
    script.growth = None
    allocating = a.start(
        "raw",
        function="cuMemAllocFromPoolAsync",
        arguments=["out", 8 * UNIT, pool, None],
        thread="allocates",
    )
    growth = script.next(ev.Grow)
    assert growth.least.unevictable == 8 * UNIT
    assert a.call("raw", function="cuMemPoolDestroy", arguments=[pool])["result"] == 0
    assert create(1) == pool
    a.call("fail", rules="cuMemAllocFromPoolAsync")
    script.send(protocol.grown(growth.serial, "resident", growth.most))
    assert a.result(allocating)["result"] == OUT_OF_MEMORY
    while (
        stated := script.next(ev.UsageChanged).usage
    ).gpu != growth.least.gpu or stated.unevictable:
        assert stated.unevictable <= 8 * UNIT


#: A program that allocates and frees all the time blocks that share a slab with no other.
CHURNS = """
use()
cuda, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64()
kept = ok(driver.cuMemAlloc(4096))
say("begins")
hear()
for number in range(1000):
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_uint64(MIB)) == 0
    assert cuda.cuMemFree_v2(pointer) == 0
say("ends")
hear()
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_uint64(32 * MIB)) == 0
assert cuda.cuMemFree_v2(pointer) == 0
say("has freed")
hear()
"""
#: Seconds between two statements.
GAP = 0.005


def test_memory_in_use_is_not_sent_at_each_allocation(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(GPUSHARE_SIM_MEMORY="1GiB")
    machine.kill_scheduler()
    script = Script(machine, welcome=protocol.welcome(1, 0, 0.02, 1 << 23))
    runner = Runner(machine.environment("a"), CHURNS)
    try:
        assert runner.heard() == "begins"
        begun = time.monotonic()
        runner.tell()
        assert runner.heard() == "ends"
        statements = 0
        while not script.events.empty():
            statements += isinstance(script.events.get(), ev.UsageChanged)
        assert statements < 10 + (time.monotonic() - begun) / GAP
        runner.tell()
        assert runner.heard() == "has freed"
        # What is within the headroom, which is promised already, needs no statement; this was not.
        while script.next(ev.Grow).most < 32 << 20:
            pass
        while script.next(ev.UsageChanged).usage.promised >= 32 << 20:
            pass
    finally:
        runner.close()
        script.close()


def usage(gpu: int, promised: int) -> bytes:
    figures = (promised, 0, 0, 0, 0, 0, 0, 0)
    return bytes([gpu]) * 16 + b"".join(figure.to_bytes(8, "little") for figure in figures)


def test_only_the_last_statement_of_memory_is_kept(tmp_path: Path) -> None:
    """A program that allocates and frees all the time fills no outbox."""
    interposer = Path(__file__).parents[2] / "csrc/interposer"
    library = tmp_path / "connection.so"
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-shared", "-fPIC", "-o", str(library)]
    sources = [str(interposer / "client/connection.c"), str(interposer / "base/print.c")]
    subprocess.run([*command, f"-I{interposer}", f"-I{interposer.parent}", *sources], check=True)
    connection = ctypes.CDLL(str(library))
    outbox = ctypes.create_string_buffer(2 << 20)
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        ours.setblocking(False)

        def post(kind: int, body: bytes) -> None:
            size = ctypes.c_size_t(len(body))
            assert connection.gs_post(ours.fileno(), outbox, ctypes.c_uint16(kind), body, size)

        def statements() -> list[bytes]:
            """Return what arrives before the first CELL whose identifier is "last"."""
            post(protocol.CELL, bytes(16) + b"last".ljust(112, b"\0"))
            reader = protocol.FrameReader()
            found: list[bytes] = []
            while True:
                assert connection.gs_flush(ours.fileno(), outbox)
                for frame in reader.feed(theirs.recv(65536)):
                    if frame.type == protocol.CELL and b"last" in bytes(frame.body):
                        return found
                    if frame.type == protocol.USAGE:
                        found.append(bytes(frame.body))

        for _ in range(MORE_THAN_THE_SOCKET_TAKES):
            post(protocol.CELL, bytes(128))
        for promised in range(100_000):
            post(protocol.USAGE, usage(promised % 2, promised))
        post(protocol.CELL, bytes(128))
        post(protocol.USAGE, usage(0, 7))
        assert statements() == [usage(0, 99_998), usage(1, 99_999), usage(0, 7)]
