# SPDX-License-Identifier: BSD-3-Clause
"""The state of the world, and questions about it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.model import Group, Holding, Wait
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from tests.scheduler.world.constants import GPUS, RESERVE, SLOW, TOTAL
from tests.scheduler.world.processes import Process


def is_limited(holding: Holding) -> bool:
    """Whether less may come in than is promised."""
    share = holding.share
    return share.gpu.filling is share or share.ceiling is not None


class State(RuleBasedStateMachine):
    """A node with processes, other programs and a scheduler."""

    # The first rule, ``NodeRules.start``, and ``Machine.boot`` set these.
    core: Core
    #: Bytes of the host's memory for evicted data.
    host: int
    #: Whether the driver can checkpoint; bytes that each hibernated process leaves on its GPU.
    hibernates: bool
    residue: int
    #: Whether contexts take more than they were admitted with.
    dearer: bool
    #: The settings that the rules change, and all settings of the running scheduler.
    settings: dict[str, Any]
    settings_at_boot: dict[str, Any]

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.processes: dict[int, Process] = {}
        self.dead: list[tuple[str, int]] = []
        self.foreign = dict.fromkeys(GPUS, 0)
        #: Bytes that were on their way to or from each GPU at its last reading, as far as the scheduler knew.
        self.on_its_way = dict.fromkeys(GPUS, 0)
        self.last = 0
        self.serial = 0
        self.tape: list[tuple[ev.Event, float, list[ev.Decision]]] = []
        self.in_since: dict[str, float] = {}
        self.over_since: dict[str, float] = {}
        #: For how long memory stays, as of before the event: a grant makes the time slices of others longer.
        self.residency: dict[str, float] = {}
        self.evicted: set[str] = set()
        self.served: Counter[int] = Counter()
        self.steady = True
        #: Groups that lost memory since their last grant: they cannot run with the rest.
        self.broken: set[str] = set()
        #: Groups whose lease was revoked when their memory might leave. New work may have overtaken that.
        self.leaving: set[str] = set()
        #: Anti-thrash was off: groups were allowed to overcommit the GPU, and do so for a while.
        self.floated = False
        self.cells = 0
        #: What users prefer for each group; the server reports it again to a new scheduler.
        self.preferences: dict[str, dict[str, Any]] = {}

    @staticmethod
    def make_core(settings: dict[str, Any]) -> Core:
        return Core(REGISTRY, Rules(**SLOW, **settings))

    def used(self, gpu: str) -> int:
        ours = sum(p.memory[gpu].physical for p in self.processes.values() if gpu in p.memory)
        return ours + self.foreign[gpu] + sum(size for g, size in self.dead if g == gpu)

    def surplus(self, gpu: str) -> int:
        found = [p.memory[gpu] for p in self.processes.values() if gpu in p.memory]
        return sum(max(0, m.surplus) for m in found)

    def room(self, gpu: str) -> int:
        return TOTAL - self.used(gpu)

    def host_used(self) -> int:
        return sum(m.host for p in self.processes.values() for m in p.memory.values())

    def quotas_of(self, group: Group) -> list[tuple[str, ev.Entitlement]]:
        """Return the quotas of GPUs that apply to a group, by the user or team that has them."""
        return [
            (claim.whose, claim.entitlement)
            for claim in self.core.times.of(group)[:-1]
            if claim.entitlement.gpus
        ]

    def leased_by(self, holder: str) -> list[Group]:
        """Return the groups of a user or team that hold leases."""
        return [g for g in self.core.model.leased.values() if self.core.times.applies(holder, g)]

    def charged(self, gpu: str) -> int:
        """The left side of the inequality, from the processes' own memory."""
        total = self.foreign[gpu] + sum(size for g, size in self.dead if g == gpu)
        for process in self.processes.values():
            memory = process.memory.get(gpu)
            if memory is not None:
                group = self.core.groups[process.group]
                holding = self.core.clients[process.number].holdings.get(gpu)
                if group.lease is None or (group.yielding and self.has_left(process)):
                    total += memory.mapped
                elif holding is not None and is_limited(holding):
                    total += min(max(holding.room, memory.mapped), memory.promised)
                else:
                    total += memory.promised
                if not self.is_off(process, gpu):
                    total += memory.unevictable + memory.context + memory.surplus
        # Half of the reserve is there for what hibernated processes are expected to leave.
        known = min(self.core.gpus[gpu].left, RESERVE // 2)
        return total + self.residues(gpu) - known - self.unseen(gpu)

    def is_off(self, process: Process, gpu: str) -> bool:
        """Whether a process is hibernated, or is being restored on another GPU, which is charged for it then."""
        client = self.core.clients[process.number]
        return client.gone or (process.memory[gpu].away and gpu not in client.holdings)

    def residues(self, gpu: str) -> int:
        """What the processes left that are off a GPU."""
        off = [p for p in self.processes.values() if gpu in p.memory and self.is_off(p, gpu)]
        return sum(p.memory[gpu].left for p in off if p.memory[gpu].away)

    def unseen(self, gpu: str) -> int:
        """What processes that are off a GPU left beyond the expected residues, as far as no reading could show it.

        Until residues are measured, a reading shows only what exceeds the memory that was on its way: that may have
        left already, or have arrived. A restore that finds no room because of this fails, and is tried again.
        """
        if self.core.gpus[gpu].context_sizes.residues:
            return 0
        more = self.residues(gpu) - self.core.gpus[gpu].left
        return min(max(0, more), self.on_its_way[gpu])

    def has_left(self, process: Process) -> bool:
        """Whether a process has no lease and no grant on its way: no more of its memory is restored."""
        return process.lease is None and not any(isinstance(d, ev.Grant) for d in process.inbox)

    def head_that_needs(self, group: Group) -> Wait | None:
        """Return the head of a queue for which a group makes room by leaving the GPU."""
        head = None if group.hibernation is None else group.hibernation.head
        if head is None or not head.queued:
            return None
        assert head.group is not group
        return head

    def may_leave(self, group: Group) -> bool:
        """Whether its residency is over, or it has had no work for a while."""
        if self.core.policy.name not in ("burst", "fcfs"):
            return True  # its quanta may be as short as it likes
        away, since = group.away_since, self.in_since.get(group.id)
        residency = self.core.residency.residency(group)
        residency = min(residency, self.residency.get(group.id, residency))
        # A group that has had its request also makes way for one that has not.
        if group.activity_class != "interactive" or self.core.times.active:
            residency = min(residency, self.core.rules.background_quantum)
        return (
            since is None
            or self.now >= since + residency - 1e-9
            or (away is not None and self.now >= away + self.core.rules.debounce - 1e-9)
        )

    def pick(self, data: Any, among: list[Process]) -> Process:
        process: Process = data.draw(st.sampled_from(sorted(among, key=lambda p: p.number)))
        return process

    def pick_gpu(self, data: Any, process: Process) -> str:
        gpu: str = data.draw(st.sampled_from(sorted(process.memory)))
        return gpu

    def idle_processes(self) -> list[Process]:
        return [
            p
            for p in self.processes.values()
            if p.growing is None and not p.waiting and not p.parked
        ]
