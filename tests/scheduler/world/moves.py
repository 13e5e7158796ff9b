# SPDX-License-Identifier: BSD-3-Clause
"""Processes evict and restore their memory, piece by piece."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import PIECE, SPEED
from tests.scheduler.world.machine import Machine
from tests.scheduler.world.processes import Process, Restore


class MemoryMoves(Machine):
    """A node whose processes move memory between GPU and host."""

    def move_piece(self, process: Process, patient: bool = True) -> bool:
        """Move one piece; return False if the process has to wait for that."""
        if process.stopped:
            return False
        if process.leaving:
            return self.move_out(process, patient)
        if process.arriving is not None:
            return self.move_in(process, process.arriving)
        return False

    def move_out(self, process: Process, patient: bool) -> bool:
        leaving, out = process.leaving[0], process.outbox
        memory = process.on(leaving.order.gpu)
        piece = min(PIECE, leaving.size - leaving.done, memory.mapped)
        short = piece > self.host - self.host_used()
        if short and patient:
            return False
        if short:
            piece = 0
        leaving.copied += memory.move_out(piece)
        leaving.done += piece
        report: Any = ev.Moving
        over = short or leaving.done >= leaving.size or not memory.mapped
        if over:
            process.leaving.popleft()
            report = ev.Evicted
        whole = leaving.done >= leaving.order.bytes or not memory.mapped
        done = leaving.done
        out.append(
            report(
                process.number, leaving.order.serial, memory.usage(leaving.order.gpu), done,
                leaving.copied, leaving.copied / SPEED, "done" if whole or not over else "partial",
                hashed=done,
            )
        )  # fmt: skip
        return True

    def move_in(self, process: Process, arriving: Restore) -> bool:
        lease, out = process.lease, process.outbox
        assert lease is not None
        waits = False
        for gpu, memory in process.memory.items():
            limit = arriving.gpus.get(gpu, memory.mapped if arriving.filling else ev.ALL)
            need = memory.promised - memory.mapped
            piece = min(PIECE, need, limit - memory.mapped)
            if piece > 0:
                fits = piece <= self.room(gpu)
                if self.steady and not self.floated:
                    assert fits or self.unseen(gpu), "no room for what was granted"
                if not fits:
                    came = arriving.came[gpu]
                    # If no thread waits for it, there is no reason to try again.
                    status: Any = "failed" if arriving.wanted else "partial"
                    out.append(
                        ev.Restored(
                            process.number, lease, memory.usage(gpu), came, came, came / SPEED,
                            status,
                        )
                    )  # fmt: skip
                    process.lease, process.busy = None, False
                    process.waiting = arriving.wanted
                    process.arriving = None
                    if not arriving.wanted:
                        out.append(ev.Released(process.number, lease, "release"))
                    return True
                memory.move_in(piece)
                arriving.came[gpu] += piece
                return True
            waits = waits or (need > 0 and gpu not in arriving.last)
        if waits:
            return False
        process.arriving = None
        for gpu, memory in process.memory.items():
            came = arriving.came[gpu]
            out.append(
                ev.Restored(
                    process.number, lease, memory.usage(gpu), came, came, came / SPEED, "done"
                )
            )
        if not arriving.wanted:
            out.append(ev.Burst(process.number, "end", "quiet", self.now))
        return True
