# SPDX-License-Identifier: BSD-3-Clause
"""Memory of other processes: a process that does not answer holds up only the thread that asks it."""

from __future__ import annotations

import os
import signal

from tests.interposer.conftest import UNIT, Machine

MEMORY_TYPE = 2


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
