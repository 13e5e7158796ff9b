# SPDX-License-Identifier: BSD-3-Clause
"""Every process that can be served is served in bounded time."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.eligibility import NOTHING, unfit_code
from jupyter_gpushare.scheduler.core.model import Group
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.scheduler.world.constants import GPUS, GROUPS, PIECE, RESERVE, TOTAL
from tests.scheduler.world.node_rules import NodeRules
from tests.scheduler.world.processes import Memory, Process


class ServiceRules(NodeRules):
    """Rules that wait until all that can be served is served."""

    def work(self, seconds: float) -> None:
        """Report the GPU time of metered running processes: as much as their pace allows."""
        for process in self.processes.values():
            pace = process.pace
            if process.busy and not process.stopped and pace is not None and pace.meter:
                for gpu in process.memory:
                    process.had[gpu] += seconds * (0.01 if pace.inflight == 0.0 else pace.share)
                    had = process.had[gpu]
                    self.feed(ev.Meter(process.number, gpu, had, int(had * 1000), self.now))

    def host_is_short(self, surplus: bool = True) -> bool:
        """Whether the host cannot hold all memory that does not fit on the GPUs.

        Without ``surplus``, contexts count with the sizes with which they were admitted, as when memory was promised.
        """
        over = 0
        for gpu in GPUS:
            memories = [p.memory[gpu] for p in self.processes.values() if gpu in p.memory]
            fixed = sum(m.unevictable + m.context + m.surplus for m in memories) + self.foreign[gpu]
            if not surplus:
                fixed -= sum(max(0, m.surplus) for m in memories)
            over += max(0, sum(m.promised for m in memories) + fixed - (TOTAL - RESERVE))
        return over + PIECE > self.host

    def can_be_served(self, process: Process) -> bool:
        if self.host_is_short():
            # What contexts take beyond that shows only afterwards.
            assert not (self.steady and self.host_is_short(surplus=False)), (
                "host memory was promised twice"
            )
            return False
        mine = [p for p in self.processes.values() if p.group == process.group]
        stopped = {p.group for p in self.processes.values() if p.stopped}
        group = self.core.groups[process.group]
        used = {uuid for uuid, share in group.shares.items() if share.used}
        if process.group in stopped or any(s.gpu.drained for s in group.shares.values()):
            return False
        for holder, entitlement in self.quotas_of(group):
            lost = {
                uuid
                for g in self.leased_by(holder)
                if g.id in stopped
                for uuid, share in g.shares.items()
                if share.used
            }
            if len(used | lost) > entitlement.gpus:
                return False
        for gpu in GPUS:
            fixed = sum(
                self.stays(p, gpu)
                if p.group != process.group and self.can_leave(p.group)
                else p.memory[gpu].unevictable
                + p.memory[gpu].context
                + max(0, p.memory[gpu].surplus)
                for p in self.processes.values()
                if gpu in p.memory and p.group not in stopped
            )
            # A group with a stopped process cannot release its lease: it keeps all that it has or was promised.
            fixed += sum(
                self.most_of(p, gpu) for p in self.processes.values() if p.group in stopped
            )
            growth = max(
                (p.growing.least.unevictable + p.growing.least.context * 9 // 8 for p in self.processes.values()
                 if p.growing and p.growing.least.gpu == gpu), default=0,
            )  # fmt: skip
            footprint = sum(
                p.memory[gpu].promised
                for p in mine
                if gpu in p.memory and not self.core.clients[p.number].oversubscribes
            )
            if footprint + fixed + growth + self.foreign[gpu] > TOTAL - RESERVE:
                return False
        return True

    def stays(self, process: Process, gpu: str) -> int:
        """Return the bytes that a hibernated process leaves on a GPU, or that the core expects, if those are more."""
        memory = process.memory[gpu]
        context = memory.context + max(0, memory.surplus)
        return max(min(self.residue, context), self.core.gpus[gpu].context_sizes.leaves(context))

    def sleeps_for_lease(self, group: Group) -> bool:
        """Whether a group would wake up for its lease, but is frozen and gets none."""
        return group.preferences.stopped and group.wait is not None and not group.ends

    def can_leave(self, name: str) -> bool:
        """Whether its processes and the driver allow an idle group to hibernate."""
        group = self.core.groups[name]
        processes = [p for p in self.processes.values() if p.group == name]
        if not self.hibernates or not self.core.rules.hibernate_after:
            return False
        if any(p.old or p.growing is not None or p.stopped for p in processes):
            return False
        return group.unfit is None and unfit_code(group) in ("", NOTHING)

    def most_of(self, process: Process, gpu: str) -> int:
        memory = process.memory.get(gpu, Memory())
        holding = self.core.clients[process.number].holdings.get(gpu)
        grow = process.growing
        said = [memory.usage(gpu)]
        if holding is not None:
            said.append(ev.Usage(gpu, holding.promised, 0, holding.unevictable, holding.context))
        if grow is not None and grow.least.gpu == gpu:
            said.append(replace(grow.least, promised=grow.most))
        return (
            max(u.promised for u in said)
            + max(u.unevictable for u in said)
            + max(u.context for u in said)
        )

    @precondition(lambda self: self.processes)
    @rule()
    def all_processes_are_served(self) -> None:
        """All waiting processes that are not frozen are served, although lease holders always return at once.

        They are also served beside stopped processes, if they can run without the memory of those.
        """
        self.dead.clear()
        self.settle()
        for gpu in GPUS:
            self.contexts_are_measured(gpu)
        waiting = {
            p.number
            for p in self.processes.values()
            if p.waiting and not self.core.groups[p.group].preferences.stopped
        }
        growing = {p.number for p in self.processes.values() if p.growing}
        # A process that wakes up for a lease is frozen together with its wait.
        calling = {
            p.number: p.asks
            for p in self.processes.values()
            if p.asks and not self.sleeps_for_lease(self.core.groups[p.group])
        }
        arriving = {p.number: p.lease for p in self.processes.values() if p.arriving}
        self.served.clear()
        rounds = (len(self.processes) + 2) * 3
        # Low priority comes later, kept memory and each whole cell are waited for once, and users are entitled to more
        # than there is, until the longest patience ends (``test_shares.py`` derives that bound).
        limit = self.now + rounds * 62.0 + 200.0 + 150.0 * len(GROUPS) + 700.0
        # Each stopped process may be granted once, or told to evict, and is then waited for.
        limit += 150.0 * sum(p.stopped for p in self.processes.values())
        # A step of the driver that does not end is repeated at growing intervals.
        limit += 150.0 * len(self.processes)
        while self.now < limit:
            for process in self.processes.values():
                self.submit_from(process)
            self.settle()
            open_ = {n for n in waiting if not self.served[n] and self.processes[n].waiting}
            asked = {n for n in growing if self.processes[n].growing}
            stuck = {
                n
                for n, lease in arriving.items()
                if self.processes[n].arriving and self.processes[n].lease == lease
            }
            stuck |= {n for n, serial in calling.items() if self.processes[n].asks == serial}
            late = [p for n in open_ | asked | stuck if self.can_be_served(p := self.processes[n])]
            if not late:
                return
            before, deadline = self.now, self.core.deadline()
            self.advance(self.now + 1.0 if deadline is None else min(deadline, self.now + 5.0))
            self.work(self.now - before)
        raise AssertionError(f"{late} are not served: {snapshot.status(self.core, self.now)}")

    @precondition(lambda self: len(self.processes) > 1)
    @rule(data=st.data(), for_ever=st.booleans())
    def others_are_served_beside_a_stopped_process(self, data: Any, for_ever: bool) -> None:
        """Stop a process, preferably a lease holder, whatever it is doing; all others are served."""
        having = [p for p in self.processes.values() if p.lease is not None]
        process = self.pick(data, having or list(self.processes.values()))
        process.stopped = True
        self.all_processes_are_served()
        process.stopped = for_ever
