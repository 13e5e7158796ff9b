# SPDX-License-Identifier: BSD-3-Clause
"""Indices, queue, pacing, quotas and parked processes are consistent."""

from __future__ import annotations

from hypothesis.stateful import invariant

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.contention import subscribers_of
from jupyter_gpushare.scheduler.core.queue import place
from jupyter_gpushare.scheduler.core.victims import Victims
from tests.scheduler.world.state import State


class SchedulingInvariants(State):
    """What is true of queue and leases after each event."""

    @invariant()
    def the_queue_is_in_order(self) -> None:
        core = self.core
        assert core.queue == sorted(core.queue, key=place)
        for uuid, gpu in core.gpus.items():
            assert gpu.queue == [w for w in core.queue if uuid in w.gpus]

    @invariant()
    def each_gpu_knows_its_lease_holders(self) -> None:
        for uuid, gpu in self.core.gpus.items():
            leased = self.core.model.leased.values()
            holders = {g.id for g in leased if uuid in g.shares and not g.lease_ahead}
            assert gpu.holders.keys() == holders
            assert gpu.background == sum(
                g.activity_class == "background" for g in gpu.holders.values()
            )
            assert gpu.yielding == {i: g for i, g in gpu.holders.items() if g.yielding}
            if gpu.subscribers is not None:
                again = subscribers_of(gpu)
                assert list(gpu.subscribers.alike.items()) == list(again.alike.items())
                assert gpu.subscribers.apart == again.apart

    @invariant()
    def groups_that_are_made_ready_give_way(self) -> None:
        """Nothing is done ahead of need on a GPU for which a group waits, and nothing is done for a group at work."""
        core = self.core
        for group in core.groups.values():
            assert (group.id in core.model.prefetching) == (group.prefetch is not None)
            if group.lease_ahead:
                assert group.lease is not None
                assert not group.busy, "at work under a lease that it has not used"
                assert not group.runs
                assert group.turn != group.lease, "a time slice without work"
                assert group.prefetch is not None or group.yielding
            if not (group.lease_ahead and not group.yielding) and not (
                group.prefetch is not None and group.prefetch.stage == "evicting"
            ):
                continue
            assert group.wait is None
            for share in group.shares.values():
                demand = [w for w in share.gpu.queue if w.counts(self.now)]
                assert not demand, "a prefetch although another group waits"
                assert share.gpu.filling is None
                moving = [g for g in share.gpu.holders.values() if g.restoring and not g.overdue]
                assert not moving, "a prefetch while memory moves on demand"

    @invariant()
    def the_agents_are_known(self) -> None:
        core = self.core
        agents = {g.id: g for g in core.groups.values() if g.activity_class == "agent"}
        assert core.model.agents == agents

    @invariant()
    def parked_clients_have_no_lease(self) -> None:
        core = self.core
        for group in core.groups.values():
            asleep = [c for c in group.clients.values() if c.stage != "awake"]
            assert group.hibernation is not None or not asleep
            assert not any(c.lease is not None for c in asleep), "a parked client has a lease"
            waits = {w.grow.client for w in core.queue if w.grow and w.group is group}
            assert waits >= {c.number for c in asleep if c.stage == "waiting"}

    @invariant()
    def only_clients_that_owe_an_answer_count_as_silent(self) -> None:
        for group in self.core.groups.values():
            assert group.silent == sum(c.silent for c in group.clients.values())
        for client in self.core.clients.values():
            asked = any(h.client is client for h, _ in self.core.model.evictions.values())
            asked = asked or (client.lease is not None and client.group.yielding)
            assert (client.owes_since is not None) is asked
            assert asked or not client.silent

    @invariant()
    def parked_processes_do_not_count_as_awake(self) -> None:
        for process in self.processes.values():
            client = self.core.clients[process.number]
            if any(m.away for m in process.memory.values()):
                assert client.stage != "awake", "it was checkpointed, but counts as awake"
            answers = ev.Hibernated | ev.Awake | ev.CancelWaits
            told = [d for d in process.inbox if isinstance(d, answers)]
            if process.parked and client.stage == "awake":
                assert told, "it stays parked, but counts as awake"
            if process.asks and not any(isinstance(e, ev.Wake) for e in process.outbox):
                assert told or client.asked == process.asks, "its wake request was lost"

    @invariant()
    def victims_are_ranked_as_in_a_new_plan(self) -> None:
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
    def a_sole_lease_holder_is_not_paced(self) -> None:
        """A client with the only lease on its GPUs submits freely, unless its user has reached a limit."""
        for client in self.core.clients.values():
            if (
                client.lease is not None
                and not self.core.times.active
                and all(len(h.share.gpu.holders) == 1 for h in client.holdings.values())
            ):
                assert client.pace.inflight is None

    @invariant()
    def queued_cells_keep_a_lease_for_a_short_time(self) -> None:
        for group in self.core.groups.values():
            assert group.next_cell_by <= self.now + self.core.rules.next_cell
            if group.next_cell_by > self.now:
                assert group.queued or group.cells

    @invariant()
    def frozen_groups_do_not_run(self) -> None:
        for group in self.core.groups.values():
            assert not group.preferences.stopped or group.lease is None or group.yielding

    @invariant()
    def gpu_quotas_are_kept(self) -> None:
        """Only leases that are being revoked may exceed a quota: it was lowered, or the scheduler was replaced."""
        for group in self.core.model.leased.values():
            for holder, entitlement in self.quotas_of(group):
                holders = [g for g in self.leased_by(holder) if not g.yielding]
                on = {u for g in holders for u, s in g.shares.items() if s.used}
                assert len(on) <= entitlement.gpus, "more GPUs than the quota"

    @invariant()
    def no_request_is_lost(self) -> None:
        for process in self.processes.values():
            if not process.waiting or any(isinstance(e, ev.Request) for e in process.outbox):
                continue
            client = self.core.clients[process.number]
            if client.silent:
                # Its place in the queue is found again once it responds.
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
