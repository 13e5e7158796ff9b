# SPDX-License-Identifier: BSD-3-Clause
"""Memory of other processes: a process that does not answer holds up only the thread that asks it."""

from __future__ import annotations

import os
import signal
import socket
import struct
from pathlib import Path

from tests.interposer.conftest import UNIT, Machine

MEMORY_TYPE = 2
#: What is in a handle: a mark, the name of the process's socket, and whose memory it is.
TOKEN = struct.Struct("<8sQQQQiI")


def receives(pid: int) -> bool:
    """Tell whether a thread of the process waits for a message over a connection."""
    tasks = Path(f"/proc/{pid}/task").glob("*/wchan")
    return any("wait_for_more_packets" in task.read_text() for task in tasks)


def test_other_threads_go_on_while_a_stopped_process_is_asked(machine: Machine) -> None:
    a, b = machine.program("a"), machine.program("b")
    pointer = a.filled(UNIT, 7)
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=["out", pointer])
    assert exported["result"] == 0
    os.kill(a.pid, signal.SIGSTOP)
    opening = b.start("open_ipc", handle=exported["out"][0], thread="opens")
    assert b.waits(opening)
    b.call("attribute", pointer=0x1000, attribute=MEMORY_TYPE)
    os.kill(a.pid, signal.SIGCONT)
    opened = b.result(opening)
    assert opened["result"] == 0
    assert b.holds(opened["pointer"], UNIT, 7)


def test_a_stop_does_not_end_an_answer_that_is_under_way(machine: Machine) -> None:
    """Where a socket has a time limit, a process that is stopped and goes on finds its call interrupted."""
    a = machine.program("a")
    exported = a.call("raw", function="cuIpcGetMemHandle", arguments=["out", a.filled(UNIT, 7)])
    token = bytes.fromhex(exported["out"][0])[: TOKEN.size]
    nonce = TOKEN.unpack(token)[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(60)
        asking.connect(f"\0gpushare-ipc-{nonce:016x}")
        machine.until(lambda: receives(a.pid))
        os.kill(a.pid, signal.SIGSTOP)
        machine.until(lambda: "T (stopped)" in Path(f"/proc/{a.pid}/status").read_text())
        os.kill(a.pid, signal.SIGCONT)
        asking.sendall(token)
        assert asking.recv(64)
