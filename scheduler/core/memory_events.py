# SPDX-License-Identifier: BSD-3-Clause
"""Handles what clients report about their memory: what they hold, growth, moves."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from .checks import LARGEST, Checks, ProtocolViolation
from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .host_reserve import HostReserve
from .leases import Leases
from .ledger import Ledger
from .messages import Evicted, Grow, Moving, Restored, UsageChanged
from .model import Client, Eviction, Group, Holding, Model
from .prefetch import Prefetcher
from .readings import Readings
from .reservations import Reservations
from .shares import Shares
from .timers import Timers, retry_timer
from .turn import Turn


@dataclass(slots=True, eq=False)
class MemoryEvents:
    """Handles what clients report about their memory."""

    model: Model
    turn: Turn
    timers: Timers
    host_reserve: HostReserve
    checks: Checks
    ledger: Ledger
    readings: Readings
    leases: Leases
    shares: Shares
    growth: GrowthAdmission
    hibernation: HibernationManager
    prefetcher: Prefetcher
    reservations: Reservations

    def on_usage(self, client: Client, event: UsageChanged) -> None:
        """Apply a client's statement of what it holds."""
        self.checks.usage(client.number, client.backend, event.usage)
        group, usage = client.group, event.usage
        if client.needs is not None and usage.gpu == client.home:
            # It may be about to move to another GPU without knowing.
            usage = replace(usage, gpu=client.needs.gpu)
        self.ledger.apply_usage(self.shares.holding(client, usage.gpu), usage)
        self.hibernation.reconsider(group)
        self.turn.mark_gpus(group)
        self.host_reserve.note_change(client)

    def on_grow(self, client: Client, event: Grow) -> None:
        """Handle a client's request for more memory."""
        self.checks.usage(client.number, client.backend, event.least, growth=True)
        if not 0 <= event.most <= LARGEST:
            raise ProtocolViolation(client.number, "asks for a size that cannot be")
        group = client.group
        if client.stage not in ("awake", "parking", "parked"):
            raise ProtocolViolation(client.number, "asks for memory while it hibernates")
        group.active_at = self.turn.now
        if group.lease_ahead:
            # It allocates before its first submission.
            self.prefetcher.note_use(group)
        if group.reserved:
            self.reservations.note_use(group)
        if group.hibernation is not None and not self.hibernation.is_pressed(group):
            self.hibernation.request_wake(group)
        self.hibernation.reconsider(group)
        self.growth.grow(event)
        self.turn.mark_gpus(group)
        self.host_reserve.note_change(client)

    def on_restored(self, client: Client, event: Restored) -> None:
        """Note that memory was restored to the GPU."""
        group = client.group
        usage = event.usage
        self.checks.moved(client, event)
        holding = self.shares.holding(client, usage.gpu)
        self.ledger.apply_usage(holding, usage, moved=True)
        self.turn.mark_gpus(group)
        self.host_reserve.note_change(client)
        self.readings.measure(holding.share.gpu, event)
        group.totals.restored += event.bytes
        if event.bytes and group.totals.eviction is not None:
            group.totals.eviction.over = True
        self._log_move("restore", group, event)
        if client.lease is None or client.lease != event.lease:
            return
        self.turn.touch(group)
        client.restoring.discard(usage.gpu)
        if event.status == "failed":
            if group.lease_ahead:
                self.prefetcher.note_use(group)
            self.leases.retry(client, event.error)
        if event.status != "done":
            return
        group.failures, group.restore_error = 0, None
        # Nothing is spare while the GPU accesses a part in host memory.
        if holding.share.ceiling is None or holding.room >= holding.promised:
            self.ledger.set_spare(holding, holding.promised - holding.resident)
        if event.bytes and not group.yielding and group.turn == group.lease:
            self.leases.begin_time_slice(group, self.turn.now)

    def on_evicted(self, client: Client, event: Evicted) -> None:
        """Note that memory was evicted from the GPU."""
        found = self._ordered(client, event)
        if found is None:
            return
        holding, asked = found
        usage = event.usage
        del self.model.evictions[event.serial]
        self.leases.receive_answer(client)
        self.ledger.add_evicting(holding, -asked)
        left = usage.resident < holding.resident or asked == 0
        self.ledger.apply_usage(holding, usage, moved=True, expected=asked)
        self.readings.measure(holding.share.gpu, event)
        self._add_eviction(client.group, event)
        if left:
            holding.refuses_since = None
        elif holding.refuses_since is None:
            holding.refuses_since = self.turn.now
        if event.status == "done" and (event.bytes >= asked or not usage.resident):
            holding.stuck_pause = 0.0
        else:
            self._pause_evictions(holding)
        self._log_move("evict", client.group, event)

    def _add_eviction(self, group: Group, event: Evicted) -> None:
        """Count an eviction."""
        totals = group.totals
        totals.evicted += event.bytes
        if totals.eviction is None or totals.eviction.over:
            totals.eviction = Eviction(self.turn.now)
        totals.eviction.add(event, self.turn.now)

    def _pause_evictions(self, holding: Holding) -> None:
        """Pause after an eviction that fell short. After a while, no wait depends on the client any longer."""
        since, longest = holding.refuses_since, self.model.rules.longest_retry
        refuses = since is not None and self.turn.now >= since + self.model.rules.revoke_deadline
        if refuses:
            longest = self.model.rules.revoke_deadline
        pause = min(max(2 * holding.stuck_pause, self.model.rules.shortest_retry), longest)
        holding.stuck_pause, holding.stuck_until = pause, self.turn.now + pause
        if refuses:
            self.ledger.set_unavailable(holding, True)
            self.timers.set(
                retry_timer(holding.client.number, holding.share.gpu.uuid), holding.stuck_until
            )

    def on_moving(self, client: Client, event: Moving) -> None:
        """Report the progress of an eviction."""
        found = self._ordered(client, event)
        if found is None:
            return
        holding, asked = found
        # An order does not shrink to 0 before its answer, because the client is still busy with it.
        left = max(0, asked - max(0, holding.resident - event.usage.resident))
        self.ledger.add_evicting(holding, left - asked)
        self.model.evictions[event.serial] = (holding, left)
        if holding.lost:
            self.ledger.note_unstated_eviction(holding, asked - left)
        self.ledger.apply_usage(holding, event.usage, moved=True, expected=asked - left)

    def _ordered(self, client: Client, event: Evicted | Moving) -> tuple[Holding, int] | None:
        """Return the holding and the bytes that an answer is about; None if this scheduler did not order it."""
        usage = event.usage
        self.checks.moved(client, event)
        self.turn.dirty[usage.gpu] = self.model.gpus[usage.gpu]
        self.turn.mark_gpus(client.group)
        self.host_reserve.note_change(client)
        found = self.model.evictions.get(event.serial)
        if found is None:
            # This was an order of an earlier scheduler, but the statement is still true.
            self.ledger.apply_usage(self.shares.holding(client, usage.gpu), usage, moved=True)
        elif found[0].client is not client or found[0].share.gpu.uuid != usage.gpu:
            raise ProtocolViolation(client.number, "answers an eviction that was not its own")
        return found

    def _log_move(self, kind: str, group: Group, event: Evicted | Restored) -> None:
        self.turn.log(
            kind,
            group,
            gpu=event.usage.gpu,
            bytes=event.bytes,
            copied=event.copied,
            duration=event.duration,
            status=event.status,
            # Most moves have none of these.
            **{
                name: size
                for name in ("hashed", "zero", "shared")
                if (size := getattr(event, name))
            },
        )
