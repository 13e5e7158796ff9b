# SPDX-License-Identifier: BSD-3-Clause
"""Memory of other processes: a process that does not answer holds up only the thread that asks it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path

from tests.interposer.raw_calls import TOKEN
from tests.interposer.rows import Runner
from tests.support.machine import UNIT, Machine
from tests.support.sim import sim_env
from tests.support.stopping import stop

MEMORY_TYPE = 2


def receives(pid: int) -> bool:
    """Tell whether a thread of the process waits for a message over a connection."""
    tasks = Path(f"/proc/{pid}/task").glob("*/wchan")
    return any("wait_for_more_packets" in task.read_text() for task in tasks)


def test_other_threads_continue_while_a_stopped_process_is_queried(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    pointer = a.filled(UNIT, 7)
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=["out", pointer])
    assert exported["result"] == 0
    stop(a.pid)
    opening = b.start("open_ipc", handle=exported["out"][0], thread="opens")
    assert b.waits(opening)
    b.call("attribute", pointer=0x1000, attribute=MEMORY_TYPE)
    os.kill(a.pid, signal.SIGCONT)
    opened = b.result(opening)
    assert opened["result"] == 0
    assert b.holds(opened["pointer"], UNIT, 7)


def test_a_stop_does_not_end_an_answer_in_progress(machine: Machine) -> None:
    """Where a socket has a time limit, a process that is stopped and goes on finds its call interrupted."""
    a = machine.program("a")
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=["out", a.filled(UNIT, 7)])
    token = bytes.fromhex(exported["out"][0])[: TOKEN.size]
    nonce = TOKEN.unpack(token)[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(60)
        asking.connect(f"\0gpushare-ipc-{nonce:016x}")
        machine.until(lambda: receives(a.pid))
        stop(a.pid)
        os.kill(a.pid, signal.SIGCONT)
        asking.sendall(token)
        assert asking.recv(64)


def test_a_capture_that_begins_while_memory_is_closed_continues(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=["out", a.filled(UNIT, 7)])
    opened = b.call("open_ipc", handle=exported["out"][0])
    assert b.holds(opened["pointer"], UNIT, 7)
    stream = b.call("stream")["stream"]
    # The work is not over yet.
    b.call("fail", rules="cuCtxSynchronize/hang,cuEventSynchronize/hang")
    closing = b.start(
        "raw", function="cuIpcCloseMemHandle", arguments=[opened["pointer"]], thread="closes"
    )
    assert b.waits(closing)
    beginning = b.call("raw", function="cuStreamBeginCapture_v2", arguments=[stream, 2])
    assert beginning["result"] == 0
    b.call("fail", rules="")
    assert b.result(closing)["result"] == 0
    ending = b.call("raw", function="cuStreamEndCapture", arguments=[stream, "out"])
    assert ending["result"] == 0


EXPORTS = """
use()
block = filled(16 * MIB, 1)
say(raw(ok(driver.cuIpcGetMemHandle(block))).hex())
hear()
"""

#: What was opened in a context goes with it.
CONTEXTS_END = """
use()
handle = made(driver.CUipcMemHandle, sys.stdin.readline().strip())
primary = ok(driver.cuCtxGetCurrent())
M = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE

def is_unknown(address):
    return (
        error(driver.cuPointerGetAttribute(M, address)) == 1
        and error(driver.cuMemGetAddressRange(address)) == 500
        and error(driver.cuIpcCloseMemHandle(address)) == 1
    )

kept = ok(driver.cuIpcOpenMemHandle(handle, 1))
other = ok(driver.cuCtxCreate(None, 0, 0))
opened = ok(driver.cuIpcOpenMemHandle(handle, 1))
assert int(opened) != int(kept) and holds(opened, 16 * MIB, 1)
ok(driver.cuCtxDestroy(other))
ok(driver.cuCtxSetCurrent(primary))
assert is_unknown(opened) and holds(kept, 16 * MIB, 1)
ok(driver.cuDevicePrimaryCtxReset(0))
use()
assert is_unknown(kept)
again = ok(driver.cuIpcOpenMemHandle(handle, 1))
assert holds(again, 16 * MIB, 1)
ok(driver.cuIpcCloseMemHandle(again))
"""


def open_in_contexts_that_end(exporting: dict[str, str], importing: dict[str, str]) -> None:
    with (
        contextlib.closing(Runner(exporting, EXPORTS)) as exporter,
        contextlib.closing(Runner(importing, CONTEXTS_END)) as importer,
    ):
        handle = exporter.heard()
        assert handle is not None
        importer.tell(handle)
        assert importer.heard() is None
        exporter.tell()
        assert exporter.heard() is None


def test_memory_opened_in_a_context_is_closed_with_it(machine: Machine) -> None:
    with sim_env(memory="64MiB", context="1MiB") as environ:
        open_in_contexts_that_end(environ, environ)
    open_in_contexts_that_end(machine.environment("a"), machine.environment("b"))
