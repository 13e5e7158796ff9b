# SPDX-License-Identifier: BSD-3-Clause
"""Attaching and detaching clients."""

from __future__ import annotations

from dataclasses import dataclass

from .activity import ActivityClassifier, note_agent
from .checks import LARGEST, Checks, ProtocolViolation
from .hibernation import HibernationManager
from .hints import Hints
from .host_reserve import HostReserve
from .leases import Leases
from .ledger import Ledger
from .messages import Attach, Detach, Hibernate, Revoke, Usage
from .model import Client, Group, Hibernation, Model, charge_for_contexts
from .paging import ThrashingDetector
from .preferences import PreferenceStore
from .queue import WaitQueue
from .recollection import Recollection
from .shares import Shares
from .takeover import ReturningClients, Takeover
from .timers import Timers
from .turn import Turn
from .usage import GpuTime


@dataclass(slots=True, eq=False)
class GroupRegistry:
    """Adds a group with its first client, and removes it with the last one."""

    model: Model
    turn: Turn
    timers: Timers
    times: GpuTime
    classes: ActivityClassifier
    thrash: ThrashingDetector
    preferences: PreferenceStore
    hints: Hints
    recollection: Recollection

    def add(self, event: Attach) -> Group:
        """Add the group that a client names when it attaches."""
        self.model.last_number += 1
        group = Group(
            event.group,
            event.name,
            self.model.last_number,
            event.user,
            event.teams,
            since=self.turn.now,
            idle_since=self.turn.now,
            preferences=self.preferences.load(event.group),
            focused=self.model.focus.get(event.user) == event.group,
        )
        self.model.groups[group.id] = group
        self.recollection.recall(group)
        group.activity_class = self.classes.class_of(group)
        note_agent(self.model, self.times, group)
        self.times.of(group)
        self.turn.paces_stale.update(self.model.gpus)
        self.turn.log("join", group, pid=event.pid)
        return group

    def remove(self, group: Group) -> None:
        """Remove a group without clients."""
        for uuid in group.shares:
            del self.model.gpus[uuid].shares[group.id]
        del self.model.groups[group.id]
        self.timers.set(group.ages, None)
        self.timers.set(group.rests, None)
        self.model.evacuating.pop(group.id, None)
        self.model.hibernating.pop(group.id, None)
        self.model.prefetching.pop(group.id, None)
        self.model.reserving.pop(group.id, None)
        self.timers.set(("reservation", group.id), None)
        self.turn.drop_marks(group)
        self.times.forget(group)
        self.classes.forget(group.id)
        self.thrash.forget(group.id)
        self.hints.forget(group)
        note_agent(self.model, self.times, group)
        self.preferences.store(group.id, group.preferences)
        self.turn.paces_stale.update(self.model.gpus)
        self.turn.log("leave", group)


@dataclass(slots=True, eq=False)
class Attachment:
    """Handles attaching clients."""

    model: Model
    turn: Turn
    host_reserve: HostReserve
    checks: Checks
    ledger: Ledger
    shares: Shares
    hibernation: HibernationManager
    groups: GroupRegistry
    returning: ReturningClients
    takeover: Takeover

    def on_attach(self, event: Attach) -> None:
        """Attach a client."""
        if event.client in self.model.clients:
            raise ProtocolViolation(event.client, "attached twice")
        if not event.group:
            raise ProtocolViolation(event.client, "names no lease group")
        if not 0 <= event.cap <= LARGEST or event.lease < 0:
            raise ProtocolViolation(event.client, "states a cap or lease that cannot be")
        if len({u.gpu for u in event.usages}) != len(event.usages):
            raise ProtocolViolation(event.client, "states a GPU twice")
        for usage in event.usages:
            self.checks.usage(event.client, event.backend, usage)
        if event.hibernated and (event.leased or any(u.resident for u in event.usages)):
            raise ProtocolViolation(event.client, "states that it is hibernated, and is on the GPU")

        group = self.model.groups.get(event.group) or self.groups.add(event)
        self.model.pages = self.model.pages or event.backend == "managed"
        client = Client(
            event.client, event.pid, event.backend, group, event.cap, event.oversubscribe
        )
        self.model.clients[client.number] = group.clients[client.number] = client
        self.turn.notify_again(group)
        self.returning.on_return(event)
        if event.hibernated:
            client.sees = event.sees
            self._take_hibernated(client, event.usages)
        for usage in event.usages:
            holding = self.shares.holding(client, usage.gpu)
            gpu = holding.share.gpu
            # Until now, its memory counted as other programs' use, or as memory pending reclaim if its connection had
            # ended. A hibernated process holds its residue; anything else shows in the readings.
            context = charge_for_contexts(holding, usage.context)
            self.ledger.charge_residue(holding)
            held = holding.left if client.gone else usage.resident + usage.unevictable + context
            alive = min(held, gpu.pending_reclaim) if event.reattach else 0
            gpu.pending_reclaim -= alive
            gpu.foreign = max(0, gpu.foreign - held + alive)
            self.ledger.apply_usage(holding, usage)
            self.turn.request_reading(gpu)
        self.turn.touch(group)
        self.host_reserve.note_change(client)
        if group.hibernation is None:
            self.hibernation.schedule(group)
        self.hibernation.wake_mixed(group)
        if not event.leased:
            return
        if self.takeover.has_lease(group, event.lease):
            self.takeover.take_over(client, event)
        else:
            self.turn.decisions.append(Revoke(client.number, event.lease))

    def _take_hibernated(self, client: Client, usages: tuple[Usage, ...]) -> None:
        """Take over a client that was parked by another scheduler, and so may be checkpointed.

        Only the driver has its state, so the checkpoint is ordered again. This has no effect if it was done.
        """
        client.stage, client.gone = "checkpointing", True
        first = max(usages, key=lambda u: u.unevictable + u.context, default=None)
        if first is not None:
            client.home = first.gpu
            client.needs = Usage(first.gpu, 0, 0, first.unevictable, first.context)
        group = client.group
        if group.hibernation is None:
            group.hibernation = Hibernation("hibernating", self.turn.now, self.turn.now)
        if client.needs is not None:
            group.hibernation.frees += client.needs.unevictable + client.needs.context
        self.turn.decisions.append(Hibernate(client.number, client.home))
        self.hibernation.settle(group)


@dataclass(slots=True, eq=False)
class Departure:
    """Handles detached clients."""

    model: Model
    turn: Turn
    timers: Timers
    host_reserve: HostReserve
    queue: WaitQueue
    leases: Leases
    shares: Shares
    hibernation: HibernationManager
    groups: GroupRegistry
    takeover: Takeover

    def on_detach(self, client: Client, event: Detach) -> None:
        """Detach a client."""
        group = client.group
        for gpu in self.model.gpus.values():
            gpu.delayed_growth = [d for d in gpu.delayed_growth if d.grow.client != client.number]
        for wait in self.queue.waits_of(group):
            if wait.grow is not None and wait.grow.client == client.number:
                self.queue.dequeue(wait)
        client.wants = False
        self.turn.mark_gpus(group)
        self.host_reserve.note_change(client)
        client.contended = client.beside = 0
        reserves = group.reservation is not None and len(group.clients) > 1
        if group.wait is not None and not (
            reserves or any(c.wants for c in group.clients.values())
        ):
            self.queue.dequeue(group.wait)
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            mapped = holding.resident
            if client.lease is not None:
                mapped = holding.room
            gpu.pending_reclaim += mapped + holding.unevictable + holding.context + holding.left
            gpu.exited_at, gpu.reading.pause = self.turn.now, 0.0
            self.shares.close(holding)
            if gpu.context_sizes.departures is not None:
                gpu.context_sizes.departures.disturbed = True
        if client.lease is not None:
            if not group.yielding:
                self.takeover.remember_lease(client, client.lease)
            group.ended_at = self.turn.now
            self.leases.release(client, "exit")
        self.timers.set(client.answers, None)
        self.timers.set(client.wakes, None)
        if client.silent:
            group.silent -= 1
            self.leases.mark_silence_changed(group)
        del self.model.clients[client.number], group.clients[client.number]
        self.turn.notify_again(group)
        if not group.clients:
            self.groups.remove(group)
            return
        for share in [s for s in group.shares.values() if not s.holdings]:
            self.shares.leave(share)
        self.turn.touch(group)
        self.hibernation.settle(group)
