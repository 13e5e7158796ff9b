# SPDX-License-Identifier: BSD-3-Clause
"""The driver checkpoints and restores processes, succeeds, fails or does not finish."""

from __future__ import annotations

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.obedience import ObedientProcesses
from tests.scheduler.world.processes import Process


class CheckpointingDriver(ObedientProcesses):
    """A node whose driver can checkpoint."""

    def driver_steps(self, process: Process, outcome: str = "") -> None:
        order = process.steps.popleft()
        away = any(m.away for m in process.memory.values())
        if outcome == "room" and not (away and isinstance(order, ev.Wakeup) and order.gpu):
            outcome = ""
        if outcome in ("", "late") and not self.finds_room(order, away):
            outcome = "room"
        if process.stopped:
            outcome = "stuck"
        if outcome == "failed" and away == isinstance(order, ev.Hibernate):
            outcome = ""  # a driver that has nothing to do does not fail
        if isinstance(order, ev.Wakeup) and order.gpu_to and not away:
            pair = order.gpu_from, order.gpu_to
            # The hibernator remembers its moves, and does not restore a process elsewhere that is not away.
            outcome = outcome if process.moved == pair else "failed"
        said = "stuck" if outcome == "late" else outcome
        held = sum(memory.fixed for memory in process.memory.values())
        if outcome in ("", "late") and not self.carry_out(process, order):
            said = "failed"
        kind = ev.Checkpointed if isinstance(order, ev.Hibernate) else ev.Woken
        if kind is ev.Checkpointed:
            self.feed(ev.Checkpointed(process.number, not said, said, said, 0.5, held))
        else:
            self.feed(ev.Woken(process.number, not said, said, said, 0.5))

    def finds_room(self, order: ev.Hibernate | ev.Wakeup, away: bool) -> bool:
        """Whether the hibernator finds the room that a restore needs."""
        if isinstance(order, ev.Hibernate) or not (order.gpu and away):
            return True
        room = self.room(order.gpu)
        if self.steady and not self.floated:
            known = room + self.surplus(order.gpu) + self.unseen(order.gpu)
            assert order.needs <= known, "woken into room that is not there"
        return order.needs <= room

    def carry_out(self, process: Process, order: ev.Hibernate | ev.Wakeup) -> bool:
        if isinstance(order, ev.Hibernate):
            for memory in process.memory.values():
                memory.away = True
                memory.left = min(self.residue, memory.context + memory.surplus)
            return True
        if not any(m.away for m in process.memory.values()):
            return True
        if order.gpu_to:
            assert order.gpu_to in process.sees
            old, new = process.memory.pop(order.gpu_from), process.on(order.gpu_to)
            assert not new.physical
            process.on(order.gpu_from)
            new.promised, new.host = new.promised + old.promised, new.host + old.host
            new.unevictable, new.context, new.surplus = old.unevictable, old.context, old.surplus
            new.away, new.left = True, 0
            process.moved = order.gpu_from, order.gpu_to
        for gpu, memory in process.memory.items():
            fixed = memory.unevictable + memory.context + memory.surplus
            if memory.away and fixed:
                if self.steady and not self.floated:
                    # A measured context is admitted by its measured size, which may be less than it states.
                    least = fixed - max(0, memory.surplus)
                    assert least <= self.room(gpu) + memory.left, "no room for what was restored"
                if fixed > self.room(gpu) + memory.left:
                    return False
        for memory in process.memory.values():
            memory.away, memory.left = False, 0
        return True

    def settle(self) -> None:
        """Deliver all messages, and let all moves and steps of the driver end."""
        for _ in range(5000):
            busy = False
            for process in list(self.processes.values()):
                while process.inbox and self.may_receive(process):
                    self.receive_next(process)
                    busy = True
                busy = self.move_piece(process) or busy
                while process.steps and not process.stopped:
                    self.driver_steps(process)
                    busy = True
                while self.may_send(process):
                    self.send_next(process)
                    busy = True
            if not busy:
                # No process returns host memory: a process that waits for some gives up now.
                short = [p for p in self.processes.values() if p.leaving and not p.stopped]
                if not short:
                    return
                self.move_piece(short[0], patient=False)
        raise AssertionError("processes exchange messages without end")
