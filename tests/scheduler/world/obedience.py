# SPDX-License-Identifier: BSD-3-Clause
"""Processes receive decisions, obey them and send events."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import GPUS, RESERVE, SPEED, TEAMS, USERS
from tests.scheduler.world.moves import MemoryMoves
from tests.scheduler.world.processes import Eviction, Process, Restore


class ObedientProcesses(MemoryMoves):
    """A node whose processes obey the scheduler."""

    def join(self, group: str, gpus: tuple[str, ...], over: bool = False) -> Process:
        self.last += 1
        # Every third process can use only the GPUs that it begins on.
        process = Process(self.last, group, over=over, sees=gpus if self.last % 3 == 0 else GPUS)
        process.old = self.last % 5 == 0
        self.processes[self.last] = process
        for gpu in gpus:
            process.on(gpu)
        usages = tuple(m.usage(g) for g, m in process.memory.items())
        self.feed(
            ev.Attach(
                self.last,
                100 + self.last,
                group,
                group,
                "swap",
                usages=usages,
                oversubscribe=over,
                user=USERS[group],
                teams=TEAMS[group],
            )
        )
        return process

    def ask(
        self,
        process: Process,
        gpu: str,
        promised: int,
        unevictable: int,
        extra: int,
        context: int | None = None,
        urgent: bool = False,
    ) -> None:
        self.serial += 1
        memory = process.on(gpu)
        context = memory.context if context is None else context
        least = ev.Usage(gpu, promised, memory.mapped, unevictable, context)
        process.growing = ev.Grow(
            process.number, self.serial, least, promised + extra, process.over, urgent
        )
        process.outbox.append(process.growing)

    def submit_from(self, process: Process) -> None:
        if process.waiting or process.busy or process.stopped:
            return
        if process.parked:
            self.request_wake(process)
            return
        arriving = process.arriving
        if arriving is not None and not arriving.wanted:
            # Its memory is being restored by a prefetch. It waits for that, and reports this.
            process.busy = arriving.wanted = True
            self.serial += 1
            process.outbox.append(ev.Request(process.number, self.serial))
        elif process.lease is not None:
            process.busy = True
            process.outbox.append(ev.Burst(process.number, "begin", "none", self.now))
        else:
            process.waiting = True
            self.serial += 1
            process.outbox.append(ev.Request(process.number, self.serial))

    def request_wake(self, process: Process, cause: Any = "call") -> None:
        """A thread of a parked process waits to enter the driver."""
        if process.asks == 0:
            self.serial += 1
            process.asks = self.serial
            needs = process.needs()
            process.outbox.append(ev.Wake(process.number, process.asks, cause, needs))

    def may_send(self, process: Process) -> bool:
        return bool(process.outbox) and not process.stopped

    def send_next(self, process: Process) -> None:
        event = process.outbox.popleft()
        group = process.group
        if isinstance(event, ev.Burst) and self.core.clients[process.number].lease is not None:
            alone = not any(
                c.busy for n, c in self.core.groups[group].clients.items() if n != process.number
            )
            if event.phase == "end" and event.cause != "quiet" and alone:
                self.over_since[group] = self.now
            elif event.phase == "begin" or alone:
                self.over_since.pop(group, None)
        if isinstance(event, ev.Restored):
            if event.status != "done":
                self.in_since.pop(group, None)
                self.over_since.pop(group, None)
            elif event.bytes and self.core.clients[process.number].lease == event.lease:
                # Memory that is restored late does not prolong a time slice that goes on (Run All).
                lease = self.core.groups[group]
                if not lease.yielding and lease.turn == lease.lease:
                    self.in_since[group] = self.now
        self.feed(event)

    def may_receive(self, process: Process) -> bool:
        """Whether a process takes its next decision: changes of its memory wait for the end of a move."""
        if process.stopped:
            return False
        first = process.inbox[0]
        if process.leaving:
            return not isinstance(first, (ev.Grant, ev.Step))
        if process.arriving is None:
            return True
        # A restore without a limit is completed first.
        ends = isinstance(first, ev.Revoke) and not process.arriving.filling
        return not isinstance(first, ev.Evict) and not ends

    def receive_next(self, process: Process, well: bool = True) -> None:
        number, out = process.number, process.outbox
        decision = process.inbox.popleft()
        match decision:
            case ev.Grant():
                if process.lease == decision.lease:
                    if process.arriving is not None:
                        process.arriving.again = True
                    return
                assert process.lease is None
                process.lease = decision.lease
                process.pace = None
                process.busy, wanted = process.waiting, process.waiting
                process.waiting = False
                rooms = {
                    gpu: memory.mapped if decision.filling else ev.ALL
                    for gpu, memory in process.memory.items()
                }
                process.arriving = Restore(decision.filling, rooms, wanted=wanted)
            case ev.Room():
                if process.lease == decision.lease and process.arriving is not None:
                    assert process.arriving.filling or decision.last
                    more = decision.resident > process.arriving.gpus.get(decision.gpu, 0)
                    assert more or decision.last or process.arriving.again
                    process.arriving.gpus[decision.gpu] = decision.resident
                    if decision.last:
                        process.arriving.last.add(decision.gpu)
                if decision.last:
                    assert process.over
                    assert decision.resident >= process.on(decision.gpu).mapped
                    process.limits[decision.gpu] = decision.resident
            case ev.Revoke():
                if process.lease == decision.lease:
                    cause: Any = "revoke"
                    arriving, process.arriving = process.arriving, None
                    process.lease, process.busy = None, False
                    if arriving is not None:
                        cause = "failed"
                        for gpu, memory in process.memory.items():
                            came = arriving.came[gpu]
                            out.append(
                                ev.Restored(
                                    number, decision.lease, memory.usage(gpu), came, came,
                                    came / SPEED, "partial",
                                )
                            )  # fmt: skip
                    out.append(ev.Released(number, decision.lease, cause))
                    if arriving is not None and arriving.wanted:
                        self.submit_from(process)
            case ev.Step():
                if process.lease is None and decision.again:
                    self.take_step(process, decision.lease)
            case ev.Evict():
                assert process.lease is None, "evicted under a lease"
                whole = min(decision.bytes, process.on(decision.gpu).mapped)
                process.leaving.append(Eviction(decision, whole if well else whole // 2))
            case ev.Grown():
                self.take_growth(process, decision)
            case ev.CancelWaits():
                process.waiting = False
                if not any(isinstance(e, ev.Wake) for e in out):
                    process.asks = 0
                if process.growing is not None and process.growing not in out:
                    process.growing = None
            case ev.EndBurst():
                if process.busy:
                    process.busy = False
                    out.append(ev.Burst(number, "end", "idle", self.now))
            case ev.Contended():
                process.contended = decision.waiting
            case ev.Pace():
                process.pace = decision
            case ev.Park():
                self.try_to_park(process, decision, well)
            case ev.Hibernated():
                if decision.serial == process.park and not decision.done:
                    assert not any(m.away for m in process.memory.values())
                    process.parked = False
                    process.asks = 0
            case ev.Awake():
                if decision.status and decision.serial not in (0, process.asks):
                    return
                if decision.status == 0:
                    assert not any(m.away for m in process.memory.values())
                    if process.parked:
                        assert (decision.gpu_from, decision.gpu_to) == process.moved
                    process.parked, process.moved = False, ("", "")
                elif process.parked:
                    process.waiting = False  # the call that waited for a lease gets the error
                process.asks = 0

    def try_to_park(self, process: Process, order: ev.Park, well: bool) -> None:
        working = process.busy or process.growing is not None or (process.old and process.waiting)
        status: Any = "done" if well else "ipc"
        if working or process.lease is not None or process.leaving:
            status = "busy"
        process.park, process.parked = order.serial, status == "done"
        parked = ev.Parked(process.number, order.serial, status, process.needs(), process.sees)
        process.outbox.append(parked)
        if process.parked and process.waiting:
            self.request_wake(process)

    def take_step(self, process: Process, lease: int) -> None:
        """Submit once under a lease that the group gives back, and wait at the gate again."""
        for gpu, memory in process.memory.items():
            more = memory.promised - memory.mapped
            if more and process.waiting and not process.over:
                if self.steady and not self.floated:
                    assert more <= self.room(gpu), "no room for what was let through"
                memory.mapped += min(more, max(0, self.room(gpu)))
                memory.host = min(memory.host, memory.promised - memory.mapped)
                process.outbox.append(ev.UsageChanged(process.number, memory.usage(gpu)))
        process.outbox.append(ev.Released(process.number, lease, "revoke"))
        if process.waiting:
            self.serial += 1
            process.outbox.append(ev.Request(process.number, self.serial))

    def take_growth(self, process: Process, answer: ev.Grown) -> None:
        grow = process.growing
        if grow is None or grow.serial != answer.serial:
            # The wait was cancelled: the process returns the promise.
            for gpu, memory in process.memory.items():
                process.outbox.append(ev.UsageChanged(process.number, memory.usage(gpu)))
            return
        process.growing = None
        assert not process.parked
        if answer.status not in ("resident", "swapped"):
            return
        gpu = grow.least.gpu
        memory = process.on(gpu)
        memory.promised = max(memory.promised, answer.promised)
        assert memory.promised >= grow.least.promised
        context = grow.least.context - memory.context
        # A context takes more than was admitted, which the reserve is for; or less.
        fixed = grow.least.unevictable - memory.unevictable + context
        left = min(RESERVE - self.surplus(gpu), self.room(gpu) - fixed)
        surplus = max(0, min(context // 8, left)) if self.dearer else -context // 2
        # The core has learned how much less that is.
        taken = fixed + min(0, surplus)
        if self.steady and not self.floated:
            assert taken <= self.room(gpu), "no room for what was unevictable"
        if taken <= self.room(gpu):
            memory.unevictable = grow.least.unevictable
            memory.context += context
            memory.surplus += surplus
        if answer.status == "resident" and process.lease is not None and not process.arriving:
            more = min(memory.promised, process.limit(gpu)) - memory.mapped
            if self.steady and not self.floated:
                assert more <= self.room(gpu), "no room for what was grown"
            memory.mapped += min(more, max(0, self.room(gpu)))
        process.outbox.append(ev.UsageChanged(process.number, memory.usage(gpu)))
        if answer.status == "swapped" and process.lease is not None:
            lease, process.lease, process.busy = process.lease, None, False
            process.arriving = None
            process.outbox.append(ev.Released(process.number, lease, "growth"))
            self.submit_from(process)

    def cut_off(self, process: Process) -> None:
        """Lose all messages to and from a process; the driver still carries out its orders."""
        while process.steps:
            self.carry_out(process, process.steps.popleft())
        process.asks, process.moved = 0, ("", "")
        process.inbox.clear()
        process.outbox.clear()
        process.contended = 0
        process.pace = None
        process.had.clear()
        process.leaving.clear()
        if process.arriving is not None:
            # The restore is incomplete, and the scheduler that would have announced room is gone.
            process.waiting = process.arriving.wanted
            process.lease, process.busy, process.arriving = None, False, None

    def hello_again(self, process: Process) -> ev.Attach:
        return ev.Attach(
            process.number, 100 + process.number, process.group, process.group, "swap",
            usages=tuple(m.usage(g) for g, m in process.memory.items()),
            reattach=True, leased=process.lease is not None, busy=process.busy,
            lease=process.lease or 0, oversubscribe=process.over,
            user=USERS[process.group], teams=TEAMS[process.group], hibernated=process.parked,
            sees=process.sees if process.parked else (),
        )  # fmt: skip

    def ask_again(self, process: Process) -> None:
        if process.waiting:
            process.outbox.append(ev.Request(process.number, 0))
        if process.growing is not None:
            process.outbox.append(process.growing)
