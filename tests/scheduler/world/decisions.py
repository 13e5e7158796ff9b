# SPDX-License-Identifier: BSD-3-Clause
"""Checks of each decision of the core, at the moment when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.model import Group
from tests.scheduler.world.constants import RESERVE, TOTAL
from tests.scheduler.world.processes import Process
from tests.scheduler.world.state import State

#: The core compares times that it has added up.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Before:
    """A group as it was before the event that the core answers."""

    lease: int | None = None
    #: Bytes on each GPU.
    needs: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    exclusive: bool = False
    #: Until when it keeps its lease for its next cell, within its time slice.
    next_cell_by: float = 0.0

    @classmethod
    def of(cls, group: Group) -> Before:
        return cls(
            group.lease,
            {gpu: share.need for gpu, share in group.shares.items()},
            {gpu: share.promised for gpu, share in group.shares.items()},
            # A cell that has not used its lease yet is not interrupted.
            group.exclusive and not group.lease_ahead,
            0.0 if group.runs else group.next_cell_by,
        )


class CheckedDecisions(State):
    """A node whose scheduler has each of its decisions checked."""

    def check(
        self,
        process: Process,
        decision: ev.Decision,
        earlier: dict[str, Before],
        event: ev.Event,
    ) -> None:
        group = self.core.groups[process.group]
        before = earlier.get(group.id, Before())
        if isinstance(decision, ev.Grant):
            self.check_grant(process, group, before, event)
        elif isinstance(decision, ev.Evict):
            self.check_eviction(process, group, decision)
        elif isinstance(decision, ev.Revoke):
            self.check_revocation(process, group, before, decision, event)
        elif isinstance(decision, ev.Park):
            self.check_park(group)
        elif isinstance(decision, ev.Hibernate):
            self.check_checkpoint(process, group)
        elif isinstance(decision, ev.Grown):
            self.check_memory_limit(group, before)
            if decision.status in ("resident", "swapped"):
                self.check_host_quotas(group, earlier)

    # --- Grants -----------------------------------------------------------------------------------

    def check_grant(self, process: Process, group: Group, before: Before, event: ev.Event) -> None:
        self.check_client_can_run(process, group)
        self.served[process.number] += 1
        returns = isinstance(event, ev.Attach) and event.leased
        if before.lease is not None or returns:
            return  # the process joins a lease that was granted before, or that it still had
        self.check_gpus_of_grant_are_in_service(group)
        self.check_gpu_quotas(group)
        if group.lease_ahead:
            self.check_grant_ahead(group)
        else:
            self.note_grant(group, before)
        self.check_memory_of_another_is_left_alone(group)
        if self.core.residency.one_at_a_time:
            self.check_sole_lease(group)
        if self.steady:
            self.check_room(before)

    def check_client_can_run(self, process: Process, group: Group) -> None:
        client = self.core.clients[process.number]
        assert not group.preferences.stopped, "granted although frozen"
        assert not client.silent, "granted although it does not respond"
        assert client.stage == "awake", "granted although it is parked"

    def check_gpus_of_grant_are_in_service(self, group: Group) -> None:
        drained = [s.gpu.uuid for s in group.shares.values() if s.gpu.drained]
        assert not drained, "granted on a GPU that is drained"

    def check_gpu_quotas(self, group: Group) -> None:
        for holder, entitlement in self.quotas_of(group):
            on = {u for g in self.leased_by(holder) for u, s in g.shares.items() if s.used}
            assert len(on) <= entitlement.gpus, "granted beyond the quota"

    def note_grant(self, group: Group, before: Before) -> None:
        self.evicted.discard(group.id)
        self.broken.discard(group.id)
        self.leaving.discard(group.id)
        if any(n > 0 for n in before.needs.values()) and group.turn == group.lease:
            self.in_since[group.id] = self.now
        self.over_since.pop(group.id, None)

    def check_grant_ahead(self, group: Group) -> None:
        """Nobody needs the room of a lease that no process of the group has requested."""
        assert group.wait is None, "granted ahead although it waits"
        assert group.prefetch is not None, "granted ahead for nothing"
        for share in group.shares.values():
            demand = [w for w in share.gpu.queue if w.counts(self.now)]
            assert not demand, "granted ahead although another group waits"
            assert share.gpu.filling is None, "granted ahead while another group fills"

    def note_first_use(self, group: Group) -> None:
        """Its memory is protected from the first use of its lease on."""
        for marks in (self.evicted, self.broken, self.leaving):
            marks.discard(group.id)
        self.in_since[group.id] = self.now
        self.over_since.pop(group.id, None)

    def check_memory_of_another_is_left_alone(self, group: Group) -> None:
        """A group whose memory is being evicted for another may not run with it."""
        for share in group.shares.values():
            first = share.gpu.filling
            if first is not None and first.group is not group and not first.group.yielding:
                # What the group has freed meanwhile need not leave any more.
                assert not (first.unallotted and share.evicting and share.resident), (
                    "granted memory that leaves for another"
                )

    def check_sole_lease(self, group: Group) -> None:
        for other in self.core.groups.values():
            if other.overdue:
                continue
            shared = other.shares.keys() & group.shares.keys()
            assert other is group or other.lease is None or not shared, "two at a time"

    def check_room(self, before: Before) -> None:
        for gpu, need in before.needs.items():
            most = TOTAL - RESERVE + self.surplus(gpu)
            assert need <= 0 or self.charged(gpu) <= most, "granted without room"

    # --- Evictions --------------------------------------------------------------------------------

    def check_eviction(self, process: Process, group: Group, decision: ev.Evict) -> None:
        self.check_process_gives_its_lease_back(process)
        if decision.serial in self.core.prefetcher.ordered:
            self.check_victim_of_prefetch(group)
        first = group.id not in self.evicted and group.id not in self.broken
        if not first:
            return
        self.broken.add(group.id)
        if self.eviction_is_allowed_at_once(group, decision.gpu):
            return
        if group.preferences.keep and not group.spent:
            self.check_kept(group, decision.gpu)
        self.check_residency(group)

    def check_victim_of_prefetch(self, group: Group) -> None:
        """Only groups that have been idle for a while lose memory for a group that does not need it yet."""
        assert group.lease is None, "evicted ahead of need under a lease"
        assert group.wait is None, "evicted ahead of need although it waits"
        assert not group.cells, "evicted ahead of need within a cell"
        assert group.preferences.stopped or not group.preferences.keep, "evicted although kept"
        away = group.idle_since if group.away_since is None else group.away_since
        assert self.now >= away + self.core.rules.prefetch_away, "evicted ahead of need too early"

    def check_process_gives_its_lease_back(self, process: Process) -> None:
        # A process whose connection broke may learn with the eviction that its lease is void.
        assert process.lease is None or ev.Revoke(process.number, process.lease) in process.inbox
        assert not any(isinstance(d, ev.Grant) for d in process.inbox)

    def eviction_is_allowed_at_once(self, group: Group, gpu: str) -> bool:
        if group.preferences.stopped or self.core.gpus[gpu].drained:
            return True  # the group can use neither this memory nor what it has elsewhere
        if group.hibernation is not None:
            return True  # the group has been idle for a long time
        if group.wait is not None:
            return (
                True  # it is waiting itself: a group that grows while it runs may take its memory
            )
        # A capture is urgent: no other process runs before it has its memory.
        return any(p.growing is not None and p.growing.urgent for p in self.processes.values())

    def check_kept(self, group: Group, gpu: str) -> None:
        """Memory that a user keeps goes only to a long wait, or to a wait of the same group."""
        if self.core.gpus[gpu].free < 0:
            return
        waits = [w for w in self.core.queue if not w.frozen]
        waits += [g.filling for g in self.core.groups.values() if g.filling is not None]
        patience = self.core.rules.keep_patience
        assert any(w.group is group or self.now >= w.since + patience - ROUNDING for w in waits), (
            "evicted although its user keeps it"
        )

    def check_residency(self, group: Group) -> None:
        over = self.over_since.get(group.id)
        if over is not None and not group.cells:
            debounced = self.now >= over + self.core.rules.debounce - ROUNDING
            assert debounced, "evicted within the debounce"
        else:
            assert group.id in self.leaving or self.may_leave(group), "within residency"

    # --- Revocations ------------------------------------------------------------------------------

    def check_revocation(
        self,
        process: Process,
        group: Group,
        before: Before,
        decision: ev.Revoke,
        event: ev.Event,
    ) -> None:
        known = self.core.clients[process.number].lease
        if known is None:
            assert isinstance(event, ev.Attach)
            assert decision.lease == process.lease
            return
        assert decision.lease == known
        if self.may_leave(group):
            self.leaving.add(group.id)
        if before.exclusive and isinstance(event, ev.Tick | ev.Request | ev.Burst):
            self.check_whole_cell(group)
        if isinstance(event, ev.Tick | ev.Request | ev.Burst):
            self.check_queued_cell(group, before)

    def check_queued_cell(self, group: Group, before: Before) -> None:
        """A group between two cells gives up its lease for another one only after its time slice."""
        head = group.makes_way_for
        if head is not None:
            end = self.core.residency.quantum_end(group, head)
            assert self.now >= min(before.next_cell_by, end) - ROUNDING, "revoked between two cells"

    def check_whole_cell(self, group: Group) -> None:
        """A cell that is to run whole is not interrupted before its limit without a need."""
        limit = group.turn_at + self.core.rules.exclusive_limit
        bounded = self.core.times.counted or any(s.gpu.drained for s in group.shares.values())
        if self.now < limit - ROUNDING and not bounded:
            grows = any(p.growing for p in self.processes.values() if p.group == group.id)
            too_much = any(gpu.free < 0 for gpu in self.core.gpus.values())
            assert grows or too_much or group.filling, "interrupted within a whole cell"

    # --- Hibernation ------------------------------------------------------------------------------

    def check_park(self, group: Group) -> None:
        assert group.lease is None, "parked under a lease"
        head = self.head_that_needs(group)
        if head is None:
            assert group.wait is None, "parked while it waits"
            assert not group.cells, "parked within a cell"
            assert not group.preferences.keep, "parked although its user keeps it"
        elif group.preferences.keep and not group.preferences.stopped:
            patient = head.since + self.core.rules.keep_patience
            assert self.now >= patient - ROUNDING, "parked although its user keeps it"
        assert not any(s.resident for s in group.shares.values()), "parked with resident memory"

    def check_checkpoint(self, process: Process, group: Group) -> None:
        client = self.core.clients[process.number]
        assert process.parked or process.park != client.park
        waits = [w for w in self.core.queue if w.group is group]
        # A client that was parked for an earlier scheduler is only checked.
        verified = client.gone
        if self.head_that_needs(group) is None:
            assert not waits or verified, "checkpointed while it waits"
        assert all(w.grow is None for w in waits), "checkpointed within an allocation"
        assert group.lease is None or verified, "checkpointed under a lease"

    # --- Growth -----------------------------------------------------------------------------------

    def check_memory_limit(self, group: Group, before: Before) -> None:
        if not group.preferences.memory:
            return
        for gpu, share in group.shares.items():
            most = max(group.preferences.memory, before.promised.get(gpu, 0))
            assert share.promised <= most, "grown beyond the limit"

    def check_host_quotas(self, group: Group, earlier: dict[str, Before]) -> None:
        for claim in self.core.times.of(group)[:-1]:
            groups = [
                g for g in self.core.groups.values() if self.core.times.applies(claim.whose, g)
            ]
            total = sum(s.promised for g in groups for s in g.shares.values())
            was = sum(sum(earlier[g.id].promised.values()) for g in groups if g.id in earlier)
            host = claim.entitlement.host
            assert not host or total <= max(host, was), "grown beyond the bound for all GPUs"
