# SPDX-License-Identifier: BSD-3-Clause
"""The hard rules of docs/contributing/design.md, in any order of events.

A world of obedient processes surrounds the core. They have physical memory of their own and answer truthfully, but when
they like: what the core decides waits in a process's inbox, what the process says waits in its outbox. They die with
their memory still on the GPU, other programs take and free memory, and the core is replaced in mid-flight.

Memory moves in pieces: what leaves takes host memory when its copy starts, what arrives gives host memory back when its
copy has ended, and under a grant that fills nothing arrives beyond the room that was told. A process that finds no host
memory waits for some, and in the end answers that only a part has left. Some processes may hold more than a GPU has:
of theirs, what has no room is used from where it is.

Where the driver can checkpoint, those that are idle are told to park. Parked, a process does nothing before it was told
to be awake; the driver takes its contexts off the GPU and puts them back when it likes, fails at it, or does not end.
A part of each context stays on the GPU meanwhile.

Some processes are stopped for a while, or for ever: they hear nothing, say nothing and hold what they have.

Users change their preferences at any time, also for absent groups. Shares, the focus and the policy change, too.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from msgspec.structs import replace

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.contention import subscribers_of
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.eligibility import NOTHING, unfit_code
from jupyter_gpushare.scheduler.core.model import Group, Holding, Wait
from jupyter_gpushare.scheduler.core.queue import place
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.core.victims import Victims
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views import status as snapshot
from tests.support.consistency import check_status, validate

MIB = 1 << 20
TOTAL = 1000 * MIB
RESERVE = 20 * MIB
GPUS = ("GPU-0", "GPU-1")
GROUPS = ("a", "b", "c", "d")
USERS = {"a": "ada", "b": "ada", "c": "ben", "d": "cy"}
#: As the system knows them.
TEAMS = {"a": (), "b": (), "c": ("lab",), "d": ("lab", "all")}
SPEED = 1e9
PIECE = 64 * MIB
#: Seconds: shorter than people would have them, so that they matter as often as all else does.
PATIENCE = {
    "keep_patience": 50.0,
    "exclusive_limit": 80.0,
    "revoke_deadline": 20.0,
    "hibernate_after": 30.0,
}

#: What becomes of the driver's steps: done, failed, not ended, or not ended in time and done all the same.
OUTCOMES = ["", "", "failed", "helper", "stuck", "late"]

sizes = st.integers(1, 900).map(lambda n: n * MIB)
#: Submissions are let through more rarely than people would like: otherwise they are all that happens.
SLOW = {"shortest_step": 0.2, "room_step": 0.2, "own_step": 0.2, "longest_step": 1.6}


@dataclass
class Memory:
    promised: int = 0
    mapped: int = 0
    #: Copies in host memory: of what left the GPU.
    host: int = 0
    unevictable: int = 0
    #: What its contexts were admitted with, as it states; and what they take beyond that (less if negative).
    context: int = 0
    surplus: int = 0
    #: It was checkpointed: what cannot move is not on the GPU, but for what the driver leaves of the context.
    away: bool = False
    left: int = 0

    def usage(self, gpu: str) -> ev.Usage:
        return ev.Usage(gpu, self.promised, self.mapped, self.unevictable, self.context, self.host)

    @property
    def physical(self) -> int:
        return self.mapped + self.fixed

    @property
    def fixed(self) -> int:
        return self.left if self.away else self.unevictable + self.context + self.surplus


@dataclass
class Leaving:
    """An eviction that a process carries out."""

    order: ev.Evict
    #: What it will move in all; less than asked for if it fails.
    size: int
    done: int = 0


@dataclass
class Arriving:
    """A restore that a process carries out: what is yet to come, and where it may be by now."""

    filling: bool
    gpus: dict[str, int]
    #: Where no more will come than that.
    last: set[str] = field(default_factory=set)
    came: Counter[str] = field(default_factory=Counter)
    wanted: bool = True
    #: It asked once more while it was granted, and is told all again.
    again: bool = False


@dataclass(eq=False)
class Process:
    """An obedient client, with its physical memory."""

    number: int
    group: str
    memory: dict[str, Memory] = field(default_factory=dict)
    lease: int | None = None
    busy: bool = False
    waiting: bool = False
    growing: ev.Grow | None = None
    contended: int = 0
    inbox: deque[ev.Decision] = field(default_factory=deque)
    outbox: deque[ev.Event] = field(default_factory=deque)
    leaving: deque[Leaving] = field(default_factory=deque)
    arriving: Arriving | None = None
    pace: ev.Pace | None = None
    #: Seconds of each GPU that it had.
    had: Counter[str] = field(default_factory=Counter)
    #: It may hold more than a GPU has; and what it may have on each, as last told for good.
    over: bool = False
    limits: dict[str, int] = field(default_factory=dict)
    #: It hears, says and does nothing.
    stopped: bool = False
    #: It stays out of the driver, as it was told to (the order's number), and has asked to be awake (its own number).
    parked: bool = False
    park: int = 0
    asks: int = 0
    #: The GPUs that it may use.
    sees: tuple[str, ...] = ()
    #: Its library is an older one, which does not park while it waits for a lease.
    old: bool = False
    #: It was put from one GPU on another, and does not know yet.
    moved: tuple[str, str] = ("", "")
    #: What the driver is to do with it.
    steps: deque[ev.Hibernate | ev.Wakeup] = field(default_factory=deque)

    def needs(self) -> ev.Usage:
        """What it needs to be awake, on the GPU that it was on."""
        gpu, memory = max(self.memory.items(), key=lambda m: m[1].unevictable + m[1].context)
        return ev.Usage(gpu, 0, 0, memory.unevictable, memory.context)

    def limit(self, gpu: str) -> int:
        return self.limits.get(gpu, ev.ALL)

    def on(self, gpu: str) -> Memory:
        return self.memory.setdefault(gpu, Memory())


def limited(holding: Holding) -> bool:
    """Whether less may come in than is promised."""
    share = holding.share
    return share.gpu.filling is share or share.ceiling is not None


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.processes: dict[int, Process] = {}
        self.dead: list[tuple[str, int]] = []
        self.foreign = dict.fromkeys(GPUS, 0)
        self.last = 0
        self.serial = 0
        self.tape: list[tuple[ev.Event, float, list[ev.Decision]]] = []
        self.in_since: dict[str, float] = {}
        self.over_since: dict[str, float] = {}
        #: For how long memory stays, as it was before the event: who is granted now makes the others' turns longer.
        self.residency: dict[str, float] = {}
        self.evicted: set[str] = set()
        self.served: Counter[int] = Counter()
        self.steady = True
        #: Groups that lost memory since they were last granted: what is left serves nobody.
        self.broken: set[str] = set()
        #: Groups that were revoked when their memory might leave; they may have had work again before they heard of it.
        self.leaving: set[str] = set()
        #: ``off`` was on: groups were over-committed with leave, and remain so for a while.
        self.floated = False
        self.cells = 0
        #: What users prefer for each group; the server reports it again to a new scheduler.
        self.preferences: dict[str, dict[str, Any]] = {}

    # --- The machine ------------------------------------------------------------------------------

    @initialize(
        quantum=st.sampled_from(["auto", 0.5, 5.0]),
        anti_thrash=st.sampled_from(["auto", "auto", "on", "off"]),
        policy=st.sampled_from(["burst", "burst", *sorted(policies.OURS)]),
        steady=st.booleans(),
        foreign=st.integers(0, 100),
        host=st.sampled_from([400, 1000, 4000]),
        footprints=st.lists(st.integers(100, 850), min_size=2, max_size=4),
        context=st.sampled_from([20, 20, 100, 200]) | st.integers(1, 450),
        hibernates=st.booleans(),
        residue=st.sampled_from([0, 4, 4, 20]) | st.integers(0, 150),
        dearer=st.booleans(),
        preferences=st.lists(
            st.sampled_from([{}, {"keep": True}, {"priority": "background"}, {"exclusive": True}]),
            max_size=len(GROUPS),
        ),
    )
    def start(
        self,
        quantum: Any,
        anti_thrash: Any,
        policy: str,
        steady: bool,
        foreign: int,
        host: int,
        footprints: list[int],
        context: int,
        hibernates: bool,
        residue: int,
        dearer: bool,
        preferences: list[dict[str, Any]],
    ) -> None:
        self.hibernates, self.dearer = hibernates, dearer
        self.residue = residue * MIB
        self.host = host * MIB
        self.settings = {"quantum": quantum, "anti_thrash": anti_thrash, "policy": policy}
        self.steady = steady
        self.floated = anti_thrash == "off"
        self.foreign = dict.fromkeys(GPUS, foreign * MIB)
        self.boot()
        for group, preference in zip(GROUPS, preferences, strict=False):
            if "exclusive" not in preference:
                self.adjust_as(group, preference)
        for group, size in zip(GROUPS, footprints, strict=False):
            process = self.join(group, GPUS[:1])
            if hibernates:
                self.ask(process, GPUS[0], 0, 0, 0, context * MIB)
                self.settle()
            self.ask(process, GPUS[0], size * MIB, 0, 0)
            self.settle()
            self.submit_as(process)
        for group, preference in zip(GROUPS[: len(footprints)], preferences, strict=False):
            if "exclusive" in preference:
                self.adjust_as(group, preference)
                self.feed(ev.Cell(group, "begin", group, self.now, from_kernel=True))

    def boot(self) -> None:
        self.settings_at_boot = {"bandwidth": SPEED, **PATIENCE, **self.settings}
        self.core = self.make_core(self.settings_at_boot)
        self.tape = []
        for gpu in GPUS:
            self.feed(self.reading(gpu))
        self.feed(ev.HostMemory(self.host))
        if self.hibernates:
            self.feed(ev.Hibernatable(True, moves=True))

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

    def reading(self, gpu: str) -> ev.Device:
        return ev.Device(gpu, TOTAL, self.used(gpu), "Test GPU", GPUS.index(gpu))

    def feed(self, event: ev.Event) -> None:
        """Give an event to the core; check and deliver what it decides."""
        before = {
            g.id: (g.lease, {u: s.need for u, s in g.shares.items()},
                   {u: s.promised for u, s in g.shares.items()}, g.exclusive)
            for g in self.core.groups.values()
        }  # fmt: skip
        self.residency = {g.id: self.core.residency.residency(g) for g in self.core.groups.values()}
        decisions = self.core.handle(event, self.now)
        self.tape.append((event, self.now, decisions))
        readings = []
        for decision in decisions:
            if isinstance(decision, ev.ReadDevice):
                readings.append(decision.gpu)
            elif isinstance(decision, ev.PreparePool):
                assert 0 <= decision.bytes <= self.host
            elif not isinstance(decision, ev.Log):
                process = self.processes.get(decision.client)
                assert process is not None, f"{decision} is for nobody"
                self.check(process, decision, before, event)
                if isinstance(decision, ev.Hibernate | ev.Wakeup):
                    process.steps.append(decision)
                else:
                    process.inbox.append(decision)
        for gpu in readings:
            self.feed(self.reading(gpu))

    # --- The rules --------------------------------------------------------------------------------

    def check(
        self, process: Process, decision: ev.Decision, before: dict[str, Any], event: ev.Event
    ) -> None:
        group = self.core.groups[process.group]
        lease, needs, promised, exclusive = before.get(group.id, (None, {}, {}, False))
        if isinstance(decision, ev.Grant):
            assert not group.preferences.stopped, "granted although frozen"
            assert not self.core.clients[process.number].silent, "granted although it says nothing"
            assert self.core.clients[process.number].stage == "awake", "granted although it sleeps"
            self.served[process.number] += 1
            if lease is not None or (isinstance(event, ev.Attach) and event.leased):
                return  # joins a lease that was granted before, or that came back
            drained = [s.gpu.uuid for s in group.shares.values() if s.gpu.drained]
            assert not drained, "granted on a GPU that is drained"
            for whose, entitlement in self.quotas_of(group):
                on = {u for g in self.held_by(whose) for u, s in g.shares.items() if s.used}
                assert len(on) <= entitlement.gpus, "granted beyond the quota"
            self.evicted.discard(group.id)
            self.broken.discard(group.id)
            self.leaving.discard(group.id)
            if any(n > 0 for n in needs.values()) and group.turn == group.lease:
                self.in_since[group.id] = self.now
            self.over_since.pop(group.id, None)
            for share in group.shares.values():
                first = share.gpu.filling
                if first is not None and first.group is not group and not first.group.yielding:
                    # What it has freed meanwhile does not leave any more.
                    assert not (first.unallotted and share.evicting and share.resident), (
                        "granted what leaves for another"
                    )
            if self.core.residency.one_at_a_time:
                for other in self.core.groups.values():
                    if other.overdue:
                        continue
                    shared = other.shares.keys() & group.shares.keys()
                    assert other is group or other.lease is None or not shared, "two at a time"
            if self.steady:
                for gpu, need in needs.items():
                    most = TOTAL - RESERVE + self.surplus(gpu)
                    assert need <= 0 or self.charged(gpu) <= most, "granted without room"
        elif isinstance(decision, ev.Evict):
            # One whose connection broke may hear with it that its lease is none.
            assert (
                process.lease is None or ev.Revoke(process.number, process.lease) in process.inbox
            )
            assert not any(isinstance(d, ev.Grant) for d in process.inbox)
            if group.id in self.evicted or group.id in self.broken:
                return
            if group.preferences.stopped or self.core.gpus[decision.gpu].drained:
                self.broken.add(group.id)
                return  # it cannot go on with it, nor with what it has elsewhere
            self.broken.add(group.id)
            if group.hibernation is not None:
                return  # it has had nothing to do for long
            if group.wait is not None:
                return  # it waits itself: one that grows within its turn may take its memory
            if any(p.growing is not None and p.growing.urgent for p in self.processes.values()):
                return  # a capture's need is everybody's: nobody runs before it ends
            if group.preferences.keep and not group.spent:
                self.check_kept(group, decision.gpu)
            over = self.over_since.get(group.id)
            if over is not None and not group.cells:
                assert self.now >= over + self.core.rules.debounce - 1e-9, (
                    "evicted within the debounce"
                )
            else:
                assert group.id in self.leaving or self.may_leave(group), "within residency"
        elif isinstance(decision, ev.Revoke):
            known = self.core.clients[process.number].lease
            if known is None:
                assert isinstance(event, ev.Attach)
                assert decision.lease == process.lease
                return
            assert decision.lease == known
            if self.may_leave(group):
                self.leaving.add(group.id)
            over = group.turn_at + self.core.rules.exclusive_limit
            calm = isinstance(event, ev.Tick | ev.Request | ev.Burst)
            bounded = self.core.times.counted or any(s.gpu.drained for s in group.shares.values())
            if exclusive and calm and self.now < over - 1e-9 and not bounded:
                grows = any(p.growing for p in self.processes.values() if p.group == group.id)
                too_much = any(gpu.free < 0 for gpu in self.core.gpus.values())
                assert grows or too_much or group.filling, "interrupted within a whole cell"
        elif isinstance(decision, ev.Park):
            assert group.lease is None, "parked under a lease"
            head = self.presses(group)
            if head is None:
                assert group.wait is None, "parked while it waits"
                assert not group.cells, "parked within a cell"
                assert not group.preferences.keep, "parked though it is kept"
            elif group.preferences.keep and not group.preferences.stopped:
                patient = head.since + self.core.rules.keep_patience
                assert self.now >= patient - 1e-9, "parked though it is kept"
            assert not any(s.resident for s in group.shares.values()), "parked with memory in"
        elif isinstance(decision, ev.Hibernate):
            assert process.parked or process.park != self.core.clients[process.number].park
            waits = [w for w in self.core.queue if w.group is group]
            # A client that was parked for an earlier scheduler is only checked.
            verified = self.core.clients[process.number].gone
            if self.presses(group) is None:
                assert not waits or verified, "checkpointed while it waits"
            assert all(w.grow is None for w in waits), "checkpointed within an allocation"
            assert group.lease is None or verified, "checkpointed under a lease"
        elif isinstance(decision, ev.Grown) and group.preferences.memory:
            for gpu, share in group.shares.items():
                most = max(group.preferences.memory, promised.get(gpu, 0))
                assert share.promised <= most, "grown beyond the limit"
        if isinstance(decision, ev.Grown) and decision.status in ("resident", "swapped"):
            for claim in self.core.times.of(group)[:-1]:
                groups = [
                    g for g in self.core.groups.values() if self.core.times.applies(claim.whose, g)
                ]
                total = sum(s.promised for g in groups for s in g.shares.values())
                was = sum(sum(before[g.id][2].values()) for g in groups if g.id in before)
                host = claim.entitlement.host
                assert not host or total <= max(host, was), "grown beyond the bound for all GPUs"

    def presses(self, group: Group) -> Wait | None:
        """The head of a queue that a group makes room for by leaving the GPU."""
        head = None if group.hibernation is None else group.hibernation.head
        if head is None or not head.queued:
            return None
        assert head.group is not group
        return head

    def quotas_of(self, group: Group) -> list[tuple[str, ev.Entitlement]]:
        """Who of its user and team may have leases on so many GPUs, and no more."""
        return [
            (claim.whose, claim.entitlement)
            for claim in self.core.times.of(group)[:-1]
            if claim.entitlement.gpus
        ]

    def held_by(self, whose: str) -> list[Group]:
        """Groups of somebody that hold leases."""
        return [g for g in self.core.model.leased.values() if self.core.times.applies(whose, g)]

    def may_leave(self, group: Group) -> bool:
        """Whether its residency is over, or it has had no work for a while."""
        if self.core.policy.name not in ("burst", "fcfs"):
            return True  # its quanta may be as short as it likes
        away, since = group.away_since, self.in_since.get(group.id)
        residency = self.core.residency.residency(group)
        residency = min(residency, self.residency.get(group.id, residency))
        # So does one that is not below its request make way for one that is.
        if group.activity_class == "background" or self.core.times.active:
            residency = min(residency, self.core.rules.background_quantum)
        return (
            since is None
            or self.now >= since + residency - 1e-9
            or (away is not None and self.now >= away + self.core.rules.debounce - 1e-9)
        )

    def check_kept(self, group: Group, gpu: str) -> None:
        """What people keep is taken for one that has waited for long, or that is one of its own."""
        if self.core.gpus[gpu].free < 0:
            return
        waits = [w for w in self.core.queue if not w.frozen]
        waits += [g.filling for g in self.core.groups.values() if g.filling is not None]
        assert any(
            w.group is group or self.now >= w.since + self.core.rules.keep_patience - 1e-9
            for w in waits
        ), "taken although people keep it"

    def has_left(self, process: Process) -> bool:
        """Whether a process holds no lease and will not hear that it does: no more of its memory comes in."""
        return process.lease is None and not any(isinstance(d, ev.Grant) for d in process.inbox)

    def charged(self, gpu: str) -> int:
        """The left side of the inequality, from the processes' own memory."""
        total = self.foreign[gpu] + sum(size for g, size in self.dead if g == gpu)
        left = 0
        for process in self.processes.values():
            memory = process.memory.get(gpu)
            if memory is not None:
                group = self.core.groups[process.group]
                holding = self.core.clients[process.number].holdings.get(gpu)
                if group.lease is None or (group.yielding and self.has_left(process)):
                    total += memory.mapped
                elif holding is not None and limited(holding):
                    total += min(max(holding.room, memory.mapped), memory.promised)
                else:
                    total += memory.promised
                # One that is being restored on another GPU is charged there.
                elsewhere = memory.away and holding is None
                if not self.core.clients[process.number].gone and not elsewhere:
                    total += memory.unevictable + memory.context + memory.surplus
                elif memory.away:
                    left += memory.left
        # Half of the reserve is there for what hibernated processes are expected to leave.
        return total + left - min(self.core.gpus[gpu].left + self.expected(gpu), RESERVE // 2)

    def expected(self, gpu: str) -> int:
        """What waking processes were expected to leave, until a reading has shown what processes leave.

        The core took that part of the last reading for their residues. It may be other programs' use.
        """
        sizes = self.core.gpus[gpu].context_sizes
        waking = [
            p.memory[gpu].context
            for p in self.processes.values()
            if gpu in p.memory
            and p.memory[gpu].away
            and gpu in self.core.clients[p.number].holdings
        ]
        return 0 if sizes.residues else sum(map(sizes.leaves, waking))

    @invariant()
    def physical_memory_is_never_exceeded(self) -> None:
        for gpu in GPUS:
            assert self.used(gpu) <= TOTAL

    def host_used(self) -> int:
        return sum(m.host for p in self.processes.values() for m in p.memory.values())

    @invariant()
    def host_memory_is_never_exceeded(self) -> None:
        if hasattr(self, "core"):
            assert self.host_used() <= self.host

    @invariant()
    def sums_are_right(self) -> None:
        if not hasattr(self, "core"):
            return
        validate(self.core)
        for gpu in self.core.gpus.values():
            if gpu.filling is not None:
                assert gpu.filling.group.filling is not None
                assert gpu.shares[gpu.filling.group.id] is gpu.filling
            # All room goes to the one that fills.
            assert gpu.filling is None or gpu.free <= 0 or not gpu.owed
        check_status(self.core, self.now)

    @invariant()
    def indices_are_right(self) -> None:
        if not hasattr(self, "core"):
            return
        core = self.core
        assert core.queue == sorted(core.queue, key=place)
        for uuid, gpu in core.gpus.items():
            assert gpu.queue == [w for w in core.queue if uuid in w.gpus]
            holders = {g.id for g in core.model.leased.values() if uuid in g.shares}
            assert gpu.holders.keys() == holders
            assert gpu.background == sum(
                g.activity_class == "background" for g in gpu.holders.values()
            )
            assert gpu.yielding == {i: g for i, g in gpu.holders.items() if g.yielding}
            if gpu.subscribers is not None:
                again = subscribers_of(gpu)
                assert list(gpu.subscribers.alike.items()) == list(again.alike.items())
                assert gpu.subscribers.apart == again.apart
            holdings = [h for s in gpu.shares.values() for h in s.holdings.values()]
            assert gpu.coming == sum(h.evicting for h in holdings if not h.lost)
            for holding in holdings:
                if holding.client.gone:
                    assert (holding.unevictable, holding.context, holding.resident) == (0, 0, 0)
                assert holding.left == (
                    gpu.context_sizes.leaves(holding.took) if holding.client.gone else 0
                )
        for group in core.groups.values():
            asleep = [c for c in group.clients.values() if c.stage != "awake"]
            assert group.hibernation is not None or not asleep
            assert not any(c.lease is not None for c in asleep), "a lease of one that is parked"
            waits = {w.grow.client for w in core.queue if w.grow and w.group is group}
            assert waits >= {c.number for c in asleep if c.stage == "waiting"}
            assert group.silent == sum(c.silent for c in group.clients.values())
        for client in core.clients.values():
            asked = any(h.client is client for h, _ in core.model.evictions.values())
            asked = asked or (client.lease is not None and client.group.yielding)
            assert (client.owes_since is not None) is asked
            assert asked or not client.silent

    @invariant()
    def nobody_is_thought_to_be_awake_who_is_not(self) -> None:
        if not hasattr(self, "core"):
            return
        for process in self.processes.values():
            client = self.core.clients[process.number]
            if any(m.away for m in process.memory.values()):
                assert client.stage != "awake", "it was checkpointed, and nobody knows"
            answers = ev.Hibernated | ev.Awake | ev.CancelWaits
            told = [d for d in process.inbox if isinstance(d, answers)]
            if process.parked and client.stage == "awake":
                assert told, "it is parked, and was not told that it need not be"
            if process.asks and not any(isinstance(e, ev.Wake) for e in process.outbox):
                assert told or client.asked == process.asks, "its call was lost"

    @invariant()
    def victims_are_ranked_as_they_would_be_anew(self) -> None:
        if not hasattr(self, "core"):
            return
        for gpu in self.core.gpus.values():
            wait = next((w for w in self.core.queue if gpu.uuid in w.gpus), None)
            if wait is None:
                continue
            kept = self.core.sources.planner.plan(wait)
            victims = {u: g.victims for u, g in self.core.gpus.items()}
            for other in self.core.gpus.values():
                other.victims = Victims(changed={s.number: s for s in other.shares.values()})
            anew = self.core.sources.planner.plan(wait)
            for uuid, other in self.core.gpus.items():
                other.victims = victims[uuid]
            for name in ("lacks", "short", "evict", "revoke", "draining", "leaving", "later"):
                assert getattr(kept, name) == getattr(anew, name), name

    @invariant()
    def nobody_is_paused_for_nobody(self) -> None:
        """One that holds the only lease on its GPUs submits as it likes, unless it has had its limit."""
        if not hasattr(self, "core"):
            return
        for client in self.core.clients.values():
            if (
                client.lease is not None
                and not self.core.times.active
                and all(len(h.share.gpu.holders) == 1 for h in client.holdings.values())
            ):
                assert client.pace.inflight is None

    @invariant()
    def nobody_runs_who_is_frozen(self) -> None:
        if hasattr(self, "core"):
            for group in self.core.groups.values():
                assert not group.preferences.stopped or group.lease is None or group.yielding

    @invariant()
    def nobody_exceeds_a_quota_for_long(self) -> None:
        """Leases beyond it are being taken back: where it was lowered, or the scheduler was replaced."""
        if not hasattr(self, "core"):
            return
        for group in self.core.model.leased.values():
            for whose, entitlement in self.quotas_of(group):
                holders = [g for g in self.held_by(whose) if not g.yielding]
                on = {u for g in holders for u, s in g.shares.items() if s.used}
                assert len(on) <= entitlement.gpus, "more GPUs than the quota"

    @invariant()
    def nobody_is_forgotten(self) -> None:
        for process in self.processes.values():
            if not process.waiting or any(isinstance(e, ev.Request) for e in process.outbox):
                continue
            client = self.core.clients[process.number]
            if client.silent:
                # Its place is found again once it speaks.
                assert client.wants or client.lease is not None or process.inbox
                continue
            on_its_way = any(
                isinstance(d, ev.Grant | ev.CancelWaits) for d in process.inbox
            ) or any(isinstance(e, ev.Restored) for e in process.outbox)
            # A wake that fails fails the call that waits for the lease, too.
            on_its_way = on_its_way or any(
                isinstance(d, ev.Awake) and d.status and d.serial in (0, process.asks)
                for d in process.inbox
            )
            assert client.wants or on_its_way, "a request was lost"
            if client.wants and client.stage == "awake":
                assert client.group.wait in self.core.queue

    # --- What processes do ------------------------------------------------------------------------

    def pick(self, data: Any, among: list[Process]) -> Process:
        process: Process = data.draw(st.sampled_from(sorted(among, key=lambda p: p.number)))
        return process

    def pick_gpu(self, data: Any, process: Process) -> str:
        gpu: str = data.draw(st.sampled_from(sorted(process.memory)))
        return gpu

    @rule(
        group=st.sampled_from(GROUPS),
        gpus=st.sampled_from([GPUS[:1], GPUS[:1], GPUS[1:], GPUS]),
        over=st.sampled_from([False, False, True]),
    )
    def attach(self, group: str, gpus: tuple[str, ...], over: bool) -> None:
        if len(self.processes) < 6:
            self.join(group, gpus, over)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def oversubscribe(self, data: Any) -> None:
        """It says so with its next growth."""
        process = self.pick(data, list(self.processes.values()))
        if process.growing is None and not process.stopped:
            process.over = True

    def join(self, group: str, gpus: tuple[str, ...], over: bool = False) -> Process:
        self.last += 1
        # One of three was given only those that it begins on.
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

    def idle_processes(self) -> list[Process]:
        return [
            p
            for p in self.processes.values()
            if p.growing is None and not p.waiting and not p.parked
        ]

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=sizes, extra=st.integers(0, 100), urgent=st.booleans())
    def grow(self, data: Any, size: int, extra: int, urgent: bool) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(
                process,
                gpu,
                memory.promised + size,
                memory.unevictable,
                extra * MIB,
                urgent=urgent,
            )

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=st.integers(1, 150).map(lambda n: n * MIB))
    def pin(self, data: Any, size: int) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(process, gpu, memory.promised, memory.unevictable + size, 0)

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), size=(st.integers(1, 80) | st.integers(1, 400)).map(lambda n: n * MIB))
    def begin_context(self, data: Any, size: int) -> None:
        free = self.idle_processes()
        if free:
            process = self.pick(data, free)
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            self.ask(process, gpu, memory.promised, memory.unevictable, 0, memory.context + size)

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

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), part=st.floats(0, 1))
    def free(self, data: Any, part: float) -> None:
        process = self.pick(data, list(self.processes.values()))
        if process.growing is None and not process.stopped and not process.parked:
            gpu = self.pick_gpu(data, process)
            memory = process.on(gpu)
            memory.promised = int(memory.promised * part)
            memory.mapped = min(memory.mapped, memory.promised)
            memory.host = min(memory.host, memory.promised - memory.mapped)
            memory.unevictable = int(memory.unevictable * part)
            process.outbox.append(ev.UsageChanged(process.number, memory.usage(gpu)))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def submit(self, data: Any) -> None:
        self.submit_as(self.pick(data, list(self.processes.values())))

    def submit_as(self, process: Process) -> None:
        if process.waiting or process.busy or process.stopped:
            return
        if process.parked:
            self.call_as(process)
            return
        if process.lease is not None:
            process.busy = True
            process.outbox.append(ev.Burst(process.number, "begin", "none", self.now))
        else:
            process.waiting = True
            self.serial += 1
            process.outbox.append(ev.Request(process.number, self.serial))

    def call_as(self, process: Process, cause: Any = "call") -> None:
        """A thread of a parked process waits to enter the driver."""
        if process.asks == 0:
            self.serial += 1
            process.asks = self.serial
            needs = process.needs()
            process.outbox.append(ev.Wake(process.number, process.asks, cause, needs))

    @precondition(lambda self: any(p.parked and not p.stopped for p in self.processes.values()))
    @rule(data=st.data(), cause=st.sampled_from(["call", "exit"]))
    def call(self, data: Any, cause: Any) -> None:
        parked = [p for p in self.processes.values() if p.parked and not p.stopped]
        self.call_as(self.pick(data, parked), cause)

    @precondition(lambda self: self.hibernates and self.processes)
    @rule(
        told=st.booleans(),
        outcomes=st.lists(st.sampled_from(OUTCOMES), max_size=6),
        calling=st.lists(st.booleans(), max_size=6),
    )
    def everybody_rests(self, told: bool, outcomes: list[str], calling: list[bool]) -> None:
        """All come to the end of their work, and then nothing happens for a while."""
        self.settle()
        for group in self.core.groups.values():
            for cell in list(group.cells):
                self.end_cell(group, cell, from_kernel=True)
        for process in self.processes.values():
            if process.busy and not process.stopped:
                process.busy = False
                process.outbox.append(ev.Burst(process.number, "end", "cell", self.now))
        self.settle()
        self.advance(self.now + 31.0)
        if told:
            # Their memory has left: they hear that they are to park.
            for _ in range(2):
                for process in self.processes.values():
                    while process.inbox and self.may_hear(process):
                        self.obey_as(process)
                    while process.leaving and self.move_as(process, patient=False):
                        pass
                    while self.may_say(process):
                        self.say_as(process)
        for process, calls in zip(list(self.processes.values()), calling, strict=False):
            if calls and process.parked and not process.stopped:
                self.call_as(process)
                while self.may_say(process):
                    self.say_as(process)
        for outcome in outcomes:
            having = [p for p in self.processes.values() if p.steps]
            if having:
                self.driver_steps(having[len(outcomes) % len(having)], outcome)

    @precondition(lambda self: self.hibernates and self.processes)
    @rule(data=st.data(), hibernate=st.booleans())
    def hibernate_or_wake(self, data: Any, hibernate: bool) -> None:
        group = self.core.groups[self.pick(data, list(self.processes.values())).group]
        if not hibernate:
            self.feed(ev.WakeNow(group.id))
            return
        try:
            self.feed(ev.HibernateNow(group.id))
        except ValueError:
            assert group.preferences.keep or group.hibernation is None

    @precondition(lambda self: self.hibernates)
    @rule(seconds=st.sampled_from([0.0, 1.0, 30.0, 30.0]))
    def configure_hibernation(self, seconds: float) -> None:
        self.feed(ev.Configure(hibernate_after=seconds))

    @precondition(lambda self: any(p.steps for p in self.processes.values()))
    @rule(data=st.data(), outcome=st.sampled_from(OUTCOMES))
    def the_driver_does_something(self, data: Any, outcome: str) -> None:
        """The driver does something, fails at it, does not end, or says that it does not and ends all the same."""
        having = [p for p in self.processes.values() if p.steps]
        self.driver_steps(self.pick(data, having), outcome)

    def driver_steps(self, process: Process, outcome: str = "") -> None:
        order = process.steps.popleft()
        if process.stopped:
            outcome = "stuck"
        away = any(m.away for m in process.memory.values())
        if outcome == "failed" and away == isinstance(order, ev.Hibernate):
            outcome = ""  # a driver that has nothing to do does not fail at it
        if isinstance(order, ev.Wakeup) and order.gpu_to and not away:
            pair = order.gpu_from, order.gpu_to
            # The hibernator knows what it moved, and restores nobody elsewhere who is not away.
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
                    # It is let in by its size where that was measured: a context may take less than it states.
                    least = fixed - max(0, memory.surplus)
                    assert least <= self.room(gpu) + memory.left, "no room for what was restored"
                if fixed > self.room(gpu) + memory.left:
                    return False
        for memory in process.memory.values():
            memory.away, memory.left = False, 0
        return True

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), cause=st.sampled_from(["cell", "quiet", "idle"]))
    def finish(self, data: Any, cause: Any) -> None:
        busy = [p for p in self.processes.values() if p.busy and not p.stopped]
        if busy:
            process = self.pick(data, busy)
            process.busy = False
            process.outbox.append(ev.Burst(process.number, "end", cause, self.now))

    @precondition(lambda self: any(p.busy for p in self.processes.values()))
    @precondition(lambda self: any(p.waiting for p in self.processes.values()))
    @rule(well=st.booleans())
    def hand_over(self, well: bool) -> None:
        """Those that run come to an end and others get their turn; all is said, and nothing has moved yet."""
        for process in self.processes.values():
            if process.busy and process.arriving is None and not process.stopped:
                process.busy = False
                process.outbox.append(ev.Burst(process.number, "end", "cell", self.now))
        for _ in range(2):
            for process in list(self.processes.values()) * 2:
                while self.may_say(process):
                    self.say_as(process)
                while process.inbox and self.may_hear(process):
                    self.obey_as(process, well)
            self.advance(self.now + 0.02)

    @precondition(lambda self: any(p.leaving or p.arriving for p in self.processes.values()))
    @rule(which=st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def move(self, which: list[int]) -> None:
        """Some processes move one piece each, in any order."""
        for number in which:
            moving = [p for p in self.processes.values() if p.leaving or p.arriving]
            if moving:
                self.move_as(moving[number % len(moving)])

    @precondition(lambda self: any(p.inbox or p.outbox for p in self.processes.values()))
    @rule(turns=st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.booleans()), min_size=1))
    def talk(self, turns: list[tuple[int, bool, bool]]) -> None:
        """Some processes hear or say one thing each, in any order."""
        for which, hears, well in turns:
            able = [
                p
                for p in self.processes.values()
                if (p.inbox and self.may_hear(p) if hears else self.may_say(p))
            ]
            if able and hears:
                self.obey_as(able[which % len(able)], well)
            elif able:
                self.say_as(able[which % len(able)])

    def say_as(self, process: Process) -> None:
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
                # A turn that goes on (Run All) is not longer for what came in late.
                lease = self.core.groups[group]
                if not lease.yielding and lease.turn == lease.lease:
                    self.in_since[group] = self.now
        self.feed(event)

    def obey_as(self, process: Process, well: bool = True) -> None:
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
                process.arriving = Arriving(decision.filling, rooms, wanted=wanted)
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
                        self.submit_as(process)
            case ev.Step():
                if process.lease is None and decision.again:
                    self.step_as(process, decision.lease)
            case ev.Evict():
                assert process.lease is None, "evicted under a lease"
                whole = min(decision.bytes, process.on(decision.gpu).mapped)
                process.leaving.append(Leaving(decision, whole if well else whole // 2))
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
                self.park_as(process, decision, well)
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
                    process.waiting = False  # its call gets the error, which waited for a lease
                process.asks = 0

    def park_as(self, process: Process, order: ev.Park, well: bool) -> None:
        working = process.busy or process.growing is not None or (process.old and process.waiting)
        status: Any = "done" if well else "ipc"
        if working or process.lease is not None or process.leaving:
            status = "busy"
        process.park, process.parked = order.serial, status == "done"
        parked = ev.Parked(process.number, order.serial, status, process.needs(), process.sees)
        process.outbox.append(parked)
        if process.parked and process.waiting:
            self.call_as(process)

    def step_as(self, process: Process, lease: int) -> None:
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

    def may_say(self, process: Process) -> bool:
        return bool(process.outbox) and not process.stopped

    def may_hear(self, process: Process) -> bool:
        """Orders are carried out one after the other; what changes the memory waits for a move to end."""
        if process.stopped:
            return False
        first = process.inbox[0]
        if process.leaving:
            return not isinstance(first, (ev.Grant, ev.Step))
        if process.arriving is None:
            return True
        # A restore without a limit is ended first.
        ends = isinstance(first, ev.Revoke) and not process.arriving.filling
        return not isinstance(first, ev.Evict) and not ends

    def move_as(self, process: Process, patient: bool = True) -> bool:
        """Move one piece; False if it has to wait for that."""
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
        memory.mapped -= piece
        memory.host += piece
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
                process.number, leaving.order.serial, memory.usage(leaving.order.gpu), done, done,
                done / SPEED, "done" if whole or not over else "partial",
            )
        )  # fmt: skip
        return True

    def move_in(self, process: Process, arriving: Arriving) -> bool:
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
                    assert fits, "no room for what was granted"
                if not fits:
                    came = arriving.came[gpu]
                    out.append(
                        ev.Restored(
                            process.number, lease, memory.usage(gpu), came, came, came / SPEED,
                            "failed",
                        )
                    )  # fmt: skip
                    process.lease, process.busy, process.waiting = None, False, True
                    process.arriving = None
                    return True
                memory.mapped += piece
                memory.host = min(memory.host, memory.promised - memory.mapped)
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

    def take_growth(self, process: Process, answer: ev.Grown) -> None:
        grow = process.growing
        if grow is None or grow.serial != answer.serial:
            # The wait was cancelled: it gives the promise back.
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
        # A context takes more than was thought, which the reserve is for; or less.
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
            self.submit_as(process)

    # --- What people and the machine do -----------------------------------------------------------

    @rule(step=st.sampled_from([0.0005, 0.004, 0.012, 0.3, 2.0, 40.0]))
    def wait(self, step: float) -> None:
        self.advance(self.now + step)

    def advance(self, until: float) -> None:
        for _ in range(3000):
            deadline = self.core.deadline()
            if deadline is None or deadline > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, deadline)
            self.feed(ev.Tick())
        raise AssertionError("too many ticks")

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        process = self.pick(data, list(self.processes.values()))
        del self.processes[process.number]
        self.dead += [(gpu, m.physical) for gpu, m in process.memory.items()]
        leased = self.core.clients[process.number].lease is not None
        if leased:
            self.over_since[process.group] = self.now - 1
        self.feed(ev.Detach(process.number))
        if process.group not in self.core.groups:
            self.in_since.pop(process.group, None)
            self.over_since.pop(process.group, None)

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def stop(self, data: Any) -> None:
        self.pick(data, list(self.processes.values())).stopped = True

    @precondition(lambda self: any(p.stopped for p in self.processes.values()))
    @rule(data=st.data())
    def go_on(self, data: Any) -> None:
        self.pick(data, [p for p in self.processes.values() if p.stopped]).stopped = False

    @precondition(lambda self: self.dead)
    @rule()
    def memory_of_the_dead_is_freed(self) -> None:
        self.dead.pop(0)

    @rule(gpu=st.sampled_from(GPUS))
    def contexts_are_measured(self, gpu: str) -> None:
        """The driver says what each process holds: only of those that state just that, something follows."""
        for process in self.processes.values():
            memory, client = process.memory.get(gpu), self.core.clients[process.number]
            holding = client.holdings.get(gpu)
            if memory is None or holding is None or client.gone:
                continue
            stated = (holding.resident, holding.unevictable, holding.stated)
            if (
                stated == (memory.mapped, memory.unevictable, memory.context)
                and not holding.unsettled
            ):
                taken = 0 if memory.away else memory.context + memory.surplus
                self.feed(ev.Measured(process.number, gpu, taken))

    @precondition(lambda self: not self.steady)
    @rule(gpu=st.sampled_from(GPUS), wanted=st.integers(0, 400))
    def others_use_the_gpu(self, gpu: str, wanted: int) -> None:
        self.foreign[gpu] = min(wanted * MIB, self.room(gpu) + self.foreign[gpu])

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), evict=st.booleans())
    def release(self, data: Any, evict: bool) -> None:
        group = self.pick(data, list(self.processes.values())).group
        self.in_since.pop(group, None)
        self.over_since.pop(group, None)
        self.evicted.add(group)
        self.feed(ev.Release(group, evict))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.feed(ev.Cancel(self.pick(data, list(self.processes.values())).group))

    @rule(
        group=st.sampled_from(GROUPS),
        preference=st.sampled_from(
            [
                {"priority": "background"},
                {"priority": "interactive"},
                {"priority": "auto"},
                {"keep": True},
                {"keep": False},
                {"frozen": True},
                {"frozen": False},
                {"memory": 300 * MIB},
                {"memory": 0},
                {"exclusive": True},
            ]
        ),
    )
    def adjust(self, group: str, preference: dict[str, Any]) -> None:
        self.adjust_as(group, preference)

    def adjust_as(self, group: str, preference: dict[str, Any]) -> None:
        if preference.get("frozen") is False and self.core.preferences_of(group).on_hold:
            with pytest.raises(ValueError, match="only an administrator"):
                self.core.handle(ev.Adjust(group, **preference, later=True), self.now)
            return
        self.preferences.setdefault(group, {}).update(preference)
        self.feed(ev.Adjust(group, **preference, later=True))

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), exclusive=st.booleans(), from_kernel=st.booleans())
    def cell(self, data: Any, exclusive: bool, from_kernel: bool) -> None:
        """One begins where none is open, and else ends."""
        group = self.core.groups[self.pick(data, list(self.processes.values())).group]
        if exclusive:
            self.feed(ev.Adjust(group.id, exclusive=True))
        if not group.cells:
            self.cells += 1
            self.feed(ev.Cell(group.id, "begin", str(self.cells), self.now, from_kernel))
            return
        self.end_cell(group, next(iter(group.cells)), from_kernel)
        assert not group.preferences.exclusive

    def end_cell(self, group: Group, cell: str, from_kernel: bool) -> None:
        if group.turn and not group.busy and group.ended_at is None:
            self.over_since[group.id] = self.now
        self.feed(ev.Cell(group.id, "end", cell, self.now, from_kernel))

    @rule(mode=st.sampled_from(["auto", "on", "off"]))
    def configure(self, mode: Any) -> None:
        self.settings["anti_thrash"] = mode
        self.floated = self.floated or mode == "off"
        self.feed(ev.Configure(anti_thrash=mode))

    @rule(policy=st.sampled_from(sorted(policies.OURS)))
    def choose_policy(self, policy: str) -> None:
        self.settings["policy"] = policy
        self.feed(ev.Configure(policy=policy))
        assert self.core.policy.name == policy

    @rule(
        whose=st.sampled_from(["user:ada", "user:ben", "user:*", "team:all", "team:lab"]),
        share=st.sampled_from(
            [
                {},
                {"request": 0.5},
                {"limit": 0.3},
                {"weight": 3.0},
                {"gpus": 1},
                {"gpus": 1},
                {"gpus": 2},
                {"host": 600 * MIB},
            ]
        ),
    )
    def entitle(self, whose: str, share: dict[str, Any]) -> None:
        members = tuple(USERS.values()) if whose == "team:all" and share else ()
        self.feed(ev.Entitle(whose, ev.Entitlement(**share), members))

    @rule(gpu=st.sampled_from(GPUS), on=st.booleans())
    def drain(self, gpu: str, on: bool) -> None:
        self.feed(ev.Drain(gpu, on))
        assert self.core.gpus[gpu].drained == on

    @rule(group=st.sampled_from(GROUPS), on=st.booleans())
    def hold(self, group: str, on: bool) -> None:
        self.feed(ev.Hold(group, on))
        assert self.core.preferences_of(group).on_hold == on

    @rule(user=st.sampled_from(["ada", "ben"]), group=st.sampled_from(["", *GROUPS]))
    def focus(self, user: str, group: str) -> None:
        self.feed(ev.Focus(user, group))

    @precondition(lambda self: any(p.busy for p in self.processes.values()))
    @rule(seconds=st.sampled_from([0.001, 0.5, 4.0]))
    def meter(self, seconds: float) -> None:
        """All that run say how much of the GPU they had."""
        for process in list(self.processes.values()):
            metered = process.pace is not None and process.pace.meter
            if process.busy and metered and not process.stopped:
                for gpu in process.memory:
                    process.had[gpu] += seconds
                    had = process.had[gpu]
                    self.feed(ev.Meter(process.number, gpu, had, int(had * 1000), self.now))

    def work(self, seconds: float) -> None:
        """Those that run and are metered have had as much of the GPU as their pace leaves them."""
        for process in self.processes.values():
            pace = process.pace
            if process.busy and not process.stopped and pace is not None and pace.meter:
                for gpu in process.memory:
                    process.had[gpu] += seconds * (0.01 if pace.inflight == 0.0 else pace.share)
                    had = process.had[gpu]
                    self.feed(ev.Meter(process.number, gpu, had, int(had * 1000), self.now))

    @precondition(lambda self: any(p.lease is not None for p in self.processes.values()))
    @rule(data=st.data())
    def is_stuck(self, data: Any) -> None:
        process = self.pick(data, [p for p in self.processes.values() if p.lease is not None])
        assert process.lease is not None
        if process.stopped:
            return
        self.feed(ev.Stuck(process.number, process.lease, "gemm", self.now - 1.0))

    @rule()
    def the_scheduler_is_replaced(self) -> None:
        self.replay()
        self.boot()
        self.in_since.clear()
        self.over_since.clear()
        for group, preference in self.preferences.items():
            self.feed(ev.Adjust(group, **{**preference, "exclusive": None}, later=True))
        for process in self.processes.values():
            process.stopped = False
            self.cut_off(process)
        for process in self.processes.values():
            self.feed(self.hello_again(process))
        for process in self.processes.values():
            self.ask_again(process)

    @precondition(lambda self: any(not p.stopped for p in self.processes.values()))
    @rule(data=st.data())
    def a_connection_breaks(self, data: Any) -> None:
        """A process comes back at once, with what it has; its lease too, as far as it says."""
        process = self.pick(data, [p for p in self.processes.values() if not p.stopped])
        self.in_since.pop(process.group, None)
        if self.core.clients[process.number].lease is not None:
            self.over_since[process.group] = self.now - 1
        del self.processes[process.number]
        held = [(gpu, memory.physical) for gpu, memory in process.memory.items()]
        self.dead += held
        self.feed(ev.Detach(process.number))
        if process.group not in self.core.groups and process.lease is None:
            # The process comes back in a new group, which has had no turn.
            self.over_since.pop(process.group, None)
        for item in held:
            self.dead.remove(item)
        self.last += 1
        process.number = self.last
        self.processes[process.number] = process
        self.cut_off(process)
        if process.growing is not None:
            process.growing = replace(process.growing, client=process.number)
        self.feed(self.hello_again(process))
        self.ask_again(process)

    def cut_off(self, process: Process) -> None:
        """What was said to it and by it is lost; the driver carries out what it was told."""
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
            # Not all is in, and whoever would have said how much may come is gone.
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

    # --- Everybody is served ----------------------------------------------------------------------

    def host_is_short(self) -> bool:
        """Whether so much was unevictable or taken by others that the host cannot hold what does not fit."""
        over = 0
        for gpu in GPUS:
            memories = [p.memory[gpu] for p in self.processes.values() if gpu in p.memory]
            fixed = sum(m.unevictable + m.context + m.surplus for m in memories) + self.foreign[gpu]
            over += max(0, sum(m.promised for m in memories) + fixed - (TOTAL - RESERVE))
        return over + PIECE > self.host

    def can_be_served(self, process: Process) -> bool:
        if self.host_is_short():
            assert not self.steady, "the host's memory was promised twice"
            return False
        mine = [p for p in self.processes.values() if p.group == process.group]
        stopped = {p.group for p in self.processes.values() if p.stopped}
        group = self.core.groups[process.group]
        used = {uuid for uuid, share in group.shares.items() if share.used}
        if process.group in stopped or any(s.gpu.drained for s in group.shares.values()):
            return False
        for whose, entitlement in self.quotas_of(group):
            lost = {
                uuid
                for g in self.held_by(whose)
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
            # Whose group cannot give its lease back keeps what it has, and what was promised to it.
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
        """What stays on the GPU of a process that hibernates, or what the core expects to, if that is more."""
        memory = process.memory[gpu]
        context = memory.context + max(0, memory.surplus)
        return max(min(self.residue, context), self.core.gpus[gpu].context_sizes.leaves(context))

    def sleeps_for_lease(self, group: Group) -> bool:
        """Whether a group is woken in the turn of its lease, and gets none since it is frozen."""
        return group.preferences.stopped and group.wait is not None and not group.ends

    def can_leave(self, name: str) -> bool:
        """Whether a group that does not run can hibernate, as far as its processes and the driver are concerned."""
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

    def settle(self) -> None:
        """Let everybody hear and say everything."""
        for _ in range(5000):
            busy = False
            for process in list(self.processes.values()):
                while process.inbox and self.may_hear(process):
                    self.obey_as(process)
                    busy = True
                busy = self.move_as(process) or busy
                while process.steps and not process.stopped:
                    self.driver_steps(process)
                    busy = True
                while self.may_say(process):
                    self.say_as(process)
                    busy = True
            if not busy:
                # Nobody gives host memory back: those that wait for some have waited for long enough.
                short = [p for p in self.processes.values() if p.leaving and not p.stopped]
                if not short:
                    return
                self.move_as(short[0], patient=False)
        raise AssertionError("no end of talking")

    @precondition(lambda self: self.processes)
    @rule()
    def everybody_is_served(self) -> None:
        """Holders that never stop, but yield, and come back at once: all that wait and are not frozen are served.

        So they are beside some that never yield, if they could be served without what those hold.
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
        # One that is to be awake for the lease that it waits for is frozen as its wait is.
        calling = {
            p.number: p.asks
            for p in self.processes.values()
            if p.asks and not self.sleeps_for_lease(self.core.groups[p.group])
        }
        arriving = {p.number: p.lease for p in self.processes.values() if p.arriving}
        self.served.clear()
        rounds = (len(self.processes) + 2) * 3
        # One in the background comes later, what is kept is waited for once, and so is each whole cell; and people are
        # entitled to more than there is, until the longest patience ends (``test_shares.py`` derives that bound).
        limit = self.now + rounds * 62.0 + 200.0 + 150.0 * len(GROUPS) + 700.0
        # Each that never answers may be granted once, and is then waited for; or it is told to let memory go.
        limit += 150.0 * sum(p.stopped for p in self.processes.values())
        # A step of the driver's that does not end is asked for again, ever more rarely.
        limit += 150.0 * len(self.processes)
        while self.now < limit:
            for process in self.processes.values():
                self.submit_as(process)
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
    def everybody_else_is_served(self, data: Any, for_ever: bool) -> None:
        """One is stopped, mostly one that has the GPU, whatever it was told or is doing."""
        having = [p for p in self.processes.values() if p.lease is not None]
        process = self.pick(data, having or list(self.processes.values()))
        process.stopped = True
        self.everybody_is_served()
        process.stopped = for_ever

    # --- Determinism ------------------------------------------------------------------------------

    def replay(self) -> None:
        core = self.make_core(self.settings_at_boot)
        for event, now, decisions in self.tape:
            assert core.handle(event, now) == decisions

    def teardown(self) -> None:
        if self.tape:
            self.replay()


World.TestCase.settings = settings(
    max_examples=80,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
