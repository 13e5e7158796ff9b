# SPDX-License-Identifier: BSD-3-Clause
"""Memory that is freed while other calls use it."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from jupyter_gpushare.scheduler.core import messages as ev
from tests.interposer.raw_calls import TOKEN, raw
from tests.support.machine import UNIT, Machine, Program, Script

#: Large enough not to share a block with other allocations, and small enough to share one.
SIZE, SMALL = 8 * UNIT, 4096
#: CUmemAllocationProp: memory of GPU 0 that can be exported as a file descriptor.
EXPORTABLE = struct.pack("<iiiiQQ", 1, 1, 1, 0, 0, 0).hex()
FILE_DESCRIPTOR = 1
SUCCESS, INVALID_VALUE = 0, 1


def is_held_up(program: Program) -> bool:
    return int(program.call("counters")["injected"]) > 0


def sleeps_in_the_interposer(program: Program, thread: int) -> bool:
    """Tell whether the thread is waiting at one of the interposer's own locks or conditions."""
    call = Path(f"/proc/{program.pid}/task/{thread}/syscall").read_text().split()
    waits_at = int(call[1], 16) if len(call) > 1 else 0
    end = 0
    for line in Path(f"/proc/{program.pid}/maps").read_text().splitlines():
        addresses, *_, last = line.split()
        first, after = (int(address, 16) for address in addresses.split("-"))
        # Variables without a value in the file are right behind it, in a mapping without a name.
        if last.endswith("/libgpushare.so") or (last == "0" and first == end):
            end = after
            if first <= waits_at < after:
                return True
    return False


def free_while_pinning(machine: Machine, a: Program) -> None:
    pointer = a.filled(SIZE, 7)
    thread = a.call("thread_id", thread="pins")["id"]
    arguments = ["out", pointer]
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=arguments)
    assert exported["result"] == SUCCESS, a.errors
    token = bytes.fromhex(exported["out"][0])[: TOKEN.size]
    a.call("fail", rules="cuMemExportToShareableHandle/hang")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as opens:
        # The thread that answers keeps the block from moving while it asks the driver.
        opens.connect(f"\0gpushare-ipc-{TOKEN.unpack(token)[1]:016x}")
        opens.sendall(token)
        machine.until(lambda: is_held_up(a))
        pinning = a.start("raw", function="cuIpcGetMemHandle", arguments=arguments, thread="pins")
        machine.until(lambda: sleeps_in_the_interposer(a, thread))
        assert a.call("free", pointer=pointer)["result"] == SUCCESS
        a.call("fail", rules="")
        assert a.result(pinning)["result"] == SUCCESS
    assert a.holds(a.filled(SIZE, 8), SIZE, 8)


def free_while_allocating(machine: Machine, a: Program, size: int = SIZE) -> None:
    """Let the driver give the address of freed memory to the next allocation (``GPUSHARE_SIM_REUSE``)."""
    pointer = a.filled(size, 7)
    assert a.call("free", pointer=pointer)["result"] == SUCCESS
    a.call("fail", rules="cuMemCreate%!gpushare:1/hang")
    allocating = a.start("alloc", bytes=size, thread="allocates")
    machine.until(lambda: is_held_up(a))
    # A program that frees its memory twice frees what has the address by then.
    assert a.call("free", pointer=pointer)["result"] == SUCCESS
    a.call("fail", rules="")
    allocated = a.result(allocating)
    assert (allocated["result"], allocated["pointer"]) == (SUCCESS, pointer)
    assert a.holds(a.filled(size, 8), size, 8)


def release_while_exporting(script: Script, a: Program) -> None:
    handle = raw(a, "cuMemCreate", "out", SIZE, EXPORTABLE, 0)
    arguments = ["out", handle, FILE_DESCRIPTOR, 0]
    exporting = a.start(
        "raw", function="cuMemExportToShareableHandle", arguments=arguments, thread="exports"
    )
    script.next(ev.Request)
    released = [
        a.call("raw", function="cuMemRelease", arguments=[handle])["result"] for _ in range(2)
    ]
    assert released == [SUCCESS, INVALID_VALUE]
    script.send(*script.grant(filling=False))
    # The driver's own answer: it was asked for memory that is gone.
    assert a.result(exporting)["result"] == INVALID_VALUE
