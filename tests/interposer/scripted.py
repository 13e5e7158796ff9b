# SPDX-License-Identifier: BSD-3-Clause
"""Steps of tests in which a script stands in for the scheduler."""

from __future__ import annotations

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import UNIT, Program, Script

#: The GPU's pieces and the least that may leave or come.
PIECE = 8 * UNIT


def filled(script: Script, a: Program, bytes: int, value: int, *, scattered: bool = False) -> int:
    """Let the program fill new memory under a lease, and take the lease back.

    With ``scattered``, no two parts of the data are equal, so that all of it has to be copied and stored.
    """
    pointer = int(a.call("alloc", bytes=bytes)["pointer"])
    if scattered:
        filling = a.start("scatter", pointer=pointer, bytes=bytes, seed=value)
    else:
        filling = a.start("fill", pointer=pointer, bytes=bytes, value=value)
    script.next(ev.Request)
    script.send(*script.grant(filling=False))
    assert a.result(filling)["result"] == 0
    script.send(protocol.revoke(script.lease))
    script.next(ev.Released)
    return pointer


def evicted(script: Script, bytes: int) -> ev.Evicted:
    script.send(protocol.evict(1, script.gpu, bytes))
    return script.next(ev.Evicted)
