# SPDX-License-Identifier: BSD-3-Clause
"""What clients say: that they are there, what they hold, and what has become of what they were told.

Leases that clients bring along
-------------------------------
A client goes on under the lease that it has when its scheduler is replaced, or its connection breaks. That it has one
is its own word. A scheduler that is new cannot know better: it takes the lease over. One that has been up for
``takeover_patience`` takes over what it knows of: the lease that the group has, and one that ended for no other reason
than that the connection did, not longer ago than that, in the turn that it was. Whoever states another is told that it
is revoked: it drains, and asks for one as everybody does.
"""

from __future__ import annotations

from dataclasses import replace

from .leases import OVER, refusal
from .ledger import LARGEST, ProtocolViolation
from .messages import (
    Attach,
    Await,
    Burst,
    Desist,
    Detach,
    Evicted,
    Grow,
    Hibernate,
    Meter,
    Moving,
    Released,
    Request,
    Restored,
    Revoke,
    Stuck,
    Usage,
    UsageChanged,
)
from .model import Client, Group, Hibernation, Holding
from .planner import is_managed
from .user_commands import People

#: Seconds of GPU time that no client reaches.
LONGEST_METER = 1e9
#: Leases are counted beyond those that are taken over, so that no number comes twice; but no scheduler gets this far.
LAST_LEASE = 1 << 48


class Clients(People):
    """Takes in what clients say."""

    #: Seconds for which a new scheduler takes over any lease, and for which one that its connection ended may go on.
    takeover_patience = 60.0
    #: Groups and leases that ended with a connection: when, and the start of the turn. The longest ago comes first.
    _broken: dict[tuple[str, int], tuple[float, float]]

    # --- They come and go --------------------------------------------------------------------------

    def _on_attach(self, event: Attach) -> None:
        if event.client in self.model.clients:
            raise ProtocolViolation(event.client, "attached twice")
        if not event.group:
            raise ProtocolViolation(event.client, "names no lease group")
        if not 0 <= event.cap <= LARGEST or event.lease < 0:
            raise ProtocolViolation(event.client, "states a cap or lease that cannot be")
        if len({u.gpu for u in event.usages}) != len(event.usages):
            raise ProtocolViolation(event.client, "states a GPU twice")
        for usage in event.usages:
            self._check(event.client, event.backend, usage)
        if event.hibernated and (event.leased or any(u.resident for u in event.usages)):
            raise ProtocolViolation(event.client, "states that it is hibernated, and is on the GPU")

        group = self.model.groups.get(event.group)
        if group is None:
            self.model.last_number += 1
            group = Group(
                event.group,
                event.name,
                self.model.last_number,
                event.user,
                event.teams,
                since=self.turn.now,
            )
            group.idle_since = self.turn.now
            group.wishes = self._wishes.recall(group.id)
            self.model.groups[group.id] = group
            group.classed = self._classes.of(group)
            self.times.of(group)
            self.turn.repace.update(self.model.gpus)
            self.turn.log("join", group, pid=event.pid)
        self.model.pages = self.model.pages or event.backend == "managed"
        client = Client(
            event.client, event.pid, event.backend, group, event.cap, event.oversubscribe
        )
        self.model.clients[client.number] = group.clients[client.number] = client
        self.turn.reseat(group)
        self._find_again(event)
        if event.hibernated:
            client.sees = event.sees
            self._take_hibernated(client, event.usages)
        for usage in event.usages:
            holding = self._holding(client, usage.gpu)
            gpu = holding.share.gpu
            # Until it attached, what it holds was foreign; or a connection of its own ended, as if it had died.
            # What is hibernated holds what it has left, or else is seen in the readings.
            context = holding.contexts(usage.context)
            self._leave_behind(holding)
            held = holding.left if client.gone else usage.resident + usage.pinned + context
            alive = min(held, gpu.ghosts) if event.reattach else 0
            gpu.ghosts -= alive
            gpu.foreign = max(0, gpu.foreign - held + alive)
            self._state(holding, usage)
            self.turn.ask(gpu)
        self.turn.touch(group)
        self._keeper.concern(client)
        if group.hibernation is None:
            self._rest(group)
        self._rouse_mixed(group)
        if not event.leased:
            return
        if self._has_lease(group, event.lease):
            self._take_over(client, event)
        else:
            self.turn.decisions.append(Revoke(client.number, event.lease))

    def _on_await(self, event: Await) -> None:
        self.model.awaited.update(enumerate(event.clients))
        for number, client in enumerate(event.clients):
            for usage in client.usages:
                gpu = self.model.gpus.get(usage.gpu)
                if gpu is None:
                    continue
                gpu.returning[number] = usage
                # Readings had it as the use of others.
                held = min(gpu.foreign, usage.resident + usage.pinned + usage.context)
                gpu.foreign -= held
                gpu.ghosts += held
                gpu.died_at = self.turn.now
                self.turn.dirty[gpu.uuid] = gpu

    def _on_desist(self, event: Desist) -> None:
        for number in event.clients:
            self._await_no_more(number, event.late)

    def _await_no_more(self, number: int, late: bool = False) -> None:
        for usage in self.model.awaited.pop(number).usages:
            gpu = self.model.gpus.get(usage.gpu)
            if gpu is not None and gpu.returning.pop(number, None) is not None:
                if late:
                    held = min(gpu.ghosts, usage.resident + usage.pinned + usage.context)
                    gpu.ghosts -= held
                    gpu.foreign += held
                # What it still holds, if it has exited, is free within moments.
                gpu.died_at, gpu.read_pause = self.turn.now, 0.0
                self.turn.dirty[gpu.uuid] = gpu
                self.turn.ask(gpu)

    def _find_again(self, event: Attach) -> None:
        """Take in that a client of the previous scheduler is there again."""
        for number, awaited in self.model.awaited.items():
            if awaited.group == event.group and awaited.pid in (0, event.pid):
                self._await_no_more(number)
                return

    def _take_hibernated(self, client: Client, usages: tuple[Usage, ...]) -> None:
        """Take in that a client was parked by another scheduler, and so may be checkpointed.

        Whether it is, the driver knows: it is ordered again, which changes nothing where it was done.
        """
        client.stage, client.gone = "checkpointing", True
        first = max(usages, key=lambda u: u.pinned + u.context, default=None)
        if first is not None:
            client.home = first.gpu
            client.needs = Usage(first.gpu, 0, 0, first.pinned, first.context)
        group = client.group
        if group.hibernation is None:
            group.hibernation = Hibernation("hibernating", self.turn.now, self.turn.now)
        if client.needs is not None:
            group.hibernation.frees += client.needs.pinned + client.needs.context
        self.turn.decisions.append(Hibernate(client.number, client.home))
        self._settle(group)

    def _has_lease(self, group: Group, lease: int) -> bool:
        """Whether a client may go on under the lease that it states."""
        patience = self.takeover_patience
        if self.turn.now < self.turn.first + patience or group.lease == lease:
            return True
        broken = self._broken.get((group.id, lease))
        return broken is not None and self.turn.now < broken[0] + patience

    def _break_off(self, client: Client, lease: int) -> None:
        """Remember a lease whose client may come back."""
        broken, key = self._broken, (client.group.id, lease)
        broken.pop(key, None)
        broken[key] = self.turn.now, client.group.turn_at
        while broken[first := next(iter(broken))][0] + self.takeover_patience <= self.turn.now:
            del broken[first]

    def _take_over(self, client: Client, event: Attach) -> None:
        """Accept a lease of an earlier scheduler, even where it over-commits; ``_relieve`` works that down."""
        group = client.group
        lease = event.lease
        if not 0 < lease <= LAST_LEASE:
            lease = self.model.last_lease + 1
        self.model.last_lease = max(self.model.last_lease, lease)
        if group.lease is None:
            self._begin_lease(group, lease)
            _, turn_at = self._broken.pop((group.id, event.lease), (0.0, self.turn.now))
            group.turn, group.turn_at = lease, turn_at
        # One that opened its gate by itself, while no scheduler answered, calls its lease 0.
        client.lease = event.lease
        group.granted[client.number] = client
        self.turn.unpaced[group.id] = group
        # It knows of no limit: what it lacks may come in any moment.
        self._end_filling(group)
        for share in group.shares.values():
            if share.ceiling is not None:
                self._distribute(share, share.unallotted)
        self._tell_room(client, anew=True)
        # What was promised and not allocated does not arrive; and that all is in is not said again.
        client.restoring = {u for u, h in client.holdings.items() if h.room > h.resident and h.host}
        if event.busy:
            client.burst_at = self.turn.now
            self._set_busy(client, True)
        if group.yielding:
            self.turn.decisions.append(Revoke(client.number, event.lease))
            self._await_answer(client)
        elif group.wishes.stopped:
            self._revoke(group)
        elif group.wait is not None:
            self._dequeue(group.wait)
            self._grant_waiting(group)
        self.turn.touch(group)

    def _on_detach(self, event: Detach) -> None:
        client = self._client(event.client)
        group = client.group
        for gpu in self.model.gpus.values():
            gpu.parked = [d for d in gpu.parked if d.grow.client != client.number]
        for wait in self._waits_of(group):
            if wait.grow is not None and wait.grow.client == client.number:
                self._dequeue(wait)
        client.wants = False
        self.turn.concern(group)
        self._keeper.concern(client)
        client.contended = client.beside = 0
        if group.wait is not None and not any(c.wants for c in group.clients.values()):
            self._dequeue(group.wait)
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            mapped = holding.resident
            if client.lease is not None:
                mapped = holding.room
            gpu.ghosts += mapped + holding.pinned + holding.context + holding.left
            gpu.died_at, gpu.read_pause = self.turn.now, 0.0
            self._order_out(holding, -holding.evicting)
            self._unsettle(holding, -holding.unsettled)
            self._account(holding, 0, 0, 0, 0)
            self._spare(holding, 0)
            self._lose(holding, False)
            gpu.hibernated -= client.gone
            holding.took = 0
            self._charge_left(holding)
            if gpu.departures is not None:
                gpu.departures.spoilt = True
            self.timers.set(refusal(holding), None)
            del holding.share.holdings[client.number]
        self.model.evictions = {
            s: e for s, e in self.model.evictions.items() if e[0].client is not client
        }
        if client.lease is not None:
            if not group.yielding:
                self._break_off(client, client.lease)
            group.ended_at = self.turn.now
            self._give_back(client, "exit")
        self.timers.set(client.answers, None)
        self.timers.set(client.wakes, None)
        if client.silent:
            group.silent -= 1
            self._mark_silence(group)
        del self.model.clients[client.number], group.clients[client.number]
        self.turn.reseat(group)
        if not group.clients:
            for uuid in group.shares:
                del self.model.gpus[uuid].shares[group.id]
            del self.model.groups[group.id]
            self.timers.set(group.ages, None)
            self.timers.set(group.rests, None)
            self.model.evacuating.pop(group.id, None)
            self.model.hibernating.pop(group.id, None)
            self.turn.touched.pop(group.id, None)
            self.turn.unclassed.pop(group.id, None)
            self.turn.untold.pop(group.id, None)
            self.times.forget(group)
            self._classes.forget(group.id)
            self._predictor.forget(group.id)
            self._absences.forget(group.id)
            self.thrash.forget(group.id)
            self._wishes.remember(group.id, group.wishes)
            self.turn.repace.update(self.model.gpus)
            self.turn.log("leave", group)
            return
        for share in [s for s in group.shares.values() if not s.holdings]:
            self._leave(share)
        self.turn.touch(group)
        self._settle(group)

    # --- Bursts ------------------------------------------------------------------------------------

    def _on_request(self, event: Request) -> None:
        client = self._client(event.client)
        group = client.group
        self.turn.touch(group)
        if group.hibernation is not None:
            self._rouse(group)
        if group.lease is not None and not group.yielding:
            if client.lease is not None:
                self.turn.decisions.append(self._grant_of(client, client.lease))
                self._tell_room(client, anew=True)
            elif client.silent or client.stage != "awake":
                client.wants = True
            else:
                self._grant(client)
            return
        client.wants = True
        self._step_asked(client)
        if group.wait is None:
            self._end_absence(group)
            group.wait = self._enqueue(group)
            if group.hibernation is not None:
                self._rank_anew(group)

    def _on_burst(self, event: Burst) -> None:
        client = self._client(event.client)
        group = client.group
        if client.lease is None or (event.phase == "end" and event.at < client.burst_at):
            return
        if event.phase == "begin":
            client.burst_at = event.at
            if not client.busy:
                group.totals.bursts += 1
            self._set_busy(client, True)
            group.ended_at = None
        else:
            self._set_busy(client, False)
            client.restoring.clear()
            if not group.busy:
                group.ended_at = self.turn.now if event.cause in OVER else None
                group.away_since = self.turn.now
                self._end_burst(group)
        self.turn.log("burst", group, phase=event.phase, cause=event.cause)
        self.turn.touch(group)

    def _on_meter(self, event: Meter) -> None:
        client = self._client(event.client)
        if event.gpu not in self.model.gpus:
            raise ProtocolViolation(client.number, f"names a GPU that is not here: {event.gpu}")
        if not (0 <= event.busy <= LONGEST_METER and event.submissions >= 0):
            raise ProtocolViolation(client.number, "states GPU time that cannot be")
        group = client.group
        at = min(event.at, self.turn.now)
        seconds, submissions = self.times.meter(
            group, event.gpu, client.number, event.busy, at, event.submissions
        )
        if seconds > 0:
            self._classes.ran(group, seconds, self.turn.now)
            if self.model.rules.anti_thrash == "auto" and is_managed(group):
                self._watch_thrashing(group, seconds, submissions, at)
        self.turn.touch(group)

    def _watch_thrashing(self, group: Group, seconds: float, submissions: int, at: float) -> None:
        """Have those that run side by side without being resident rotate, if it slows one of them too much."""
        beside = {g.id: g for s in group.shares.values() for g in s.gpu.holders.values()}
        floating = [g for g in beside.values() if g.floating]
        if not self.thrash.feed(group.id, bool(floating), seconds, submissions, at):
            return
        # One goes on: who has its memory in, or has been there for longest.
        first = min(beside.values(), key=lambda g: (g.floating, g.turn))
        for other in floating:
            if other is not first:
                self._revoke(other)

    def _on_stuck(self, event: Stuck) -> None:
        client = self._client(event.client)
        group = client.group
        if client.lease is None or client.lease != event.lease:
            return
        if not group.yielding:
            self._revoke(group)  # it has begun to give the lease back by itself
        if group.stuck is None or group.stuck[0] != event.kernel:
            self.turn.log("stuck", group, kernel=event.kernel, since=event.since)
        group.stuck = event.kernel, event.since
        # What it runs may wait for a thread that waits for memory, and all others for that.
        for wait in self._waits_of(group):
            wait.front = wait.front or wait.grow is not None
        self._rank_anew(group)
        self._step_said_stuck(client)

    def _on_released(self, event: Released) -> None:
        client = self._client(event.client)
        if client.lease is None or client.lease != event.lease:
            return
        if event.cause == "failed" and not client.group.yielding:
            self._retry(client)
        else:
            if event.cause == "release":
                client.group.ended_at = self.turn.now - self.model.rules.debounce
                client.group.failures, client.group.restore_error = 0, None
            self._give_back(client, event.cause)
            self._step_soon(client.group)

    # --- Memory ------------------------------------------------------------------------------------

    def _on_usage(self, event: UsageChanged) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.usage)
        group, usage = client.group, event.usage
        if client.needs is not None and usage.gpu == client.home:
            # It may be about to move, and does not know.
            usage = replace(usage, gpu=client.needs.gpu)
        self._state(self._holding(client, usage.gpu), usage)
        self._reconsider(group)
        self.turn.concern(group)
        self._keeper.concern(client)

    def _on_grow(self, event: Grow) -> None:
        client = self._client(event.client)
        self._check(client.number, client.backend, event.least, growth=True)
        if not 0 <= event.most <= LARGEST:
            raise ProtocolViolation(client.number, "asks for a size that cannot be")
        group = client.group
        if client.stage not in ("awake", "parking", "parked"):
            raise ProtocolViolation(client.number, "asks for memory while it hibernates")
        group.active_at = self.turn.now
        if group.hibernation is not None and not self._is_pressed(group):
            self._rouse(group)
        self._reconsider(group)
        self._grow(event)
        self.turn.concern(group)
        self._keeper.concern(client)

    def _on_restored(self, event: Restored) -> None:
        client = self._client(event.client)
        group = client.group
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        holding = self._holding(client, usage.gpu)
        self._state(holding, usage, moved=True)
        self.turn.concern(group)
        self._keeper.concern(client)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        group.totals.restored += event.bytes
        self._log_move("restore", event)
        if client.lease is None or client.lease != event.lease:
            return
        self.turn.touch(group)
        client.restoring.discard(usage.gpu)
        if event.status == "failed":
            self._retry(client, event.error)
        if event.status != "done":
            return
        group.failures, group.restore_error = 0, None
        # Of what is used from the host, nothing is spare.
        if holding.share.ceiling is None or holding.room >= holding.promised:
            self._spare(holding, holding.promised - holding.resident)
        if event.bytes and not group.yielding and group.turn == group.lease:
            group.turn_at = self.turn.now

    def _on_evicted(self, event: Evicted) -> None:
        found = self._ordered(event)
        if found is None:
            return
        holding, asked = found
        client, usage = holding.client, event.usage
        del self.model.evictions[event.serial]
        self._hear(client)
        self._order_out(holding, -asked)
        left = usage.resident < holding.resident or asked == 0
        self._state(holding, usage, moved=True, expected=asked)
        self._measure(holding.share.gpu, event.bytes, event.copied, event.duration)
        client.group.totals.evicted += event.bytes
        if left:
            holding.refuses_since = None
        elif holding.refuses_since is None:
            holding.refuses_since = self.turn.now
        if event.status == "done" and (event.bytes >= asked or not usage.resident):
            holding.stuck_pause = 0.0
        else:
            self._pause_evictions(holding)
        self._log_move("evict", event)

    def _pause_evictions(self, holding: Holding) -> None:
        """Not all has left that was to: whoever refuses for long holds nobody up any longer."""
        since, longest = holding.refuses_since, self.model.rules.longest_retry
        refuses = since is not None and self.turn.now >= since + self.model.rules.revoke_deadline
        if refuses:
            longest = self.model.rules.revoke_deadline
        pause = min(max(2 * holding.stuck_pause, self.model.rules.shortest_retry), longest)
        holding.stuck_pause, holding.stuck_until = pause, self.turn.now + pause
        if refuses:
            self._lose(holding, True)
            self.timers.set(refusal(holding), holding.stuck_until)

    def _on_moving(self, event: Moving) -> None:
        found = self._ordered(event)
        if found is None:
            return
        holding, asked = found
        # An order never shrinks to nothing before its answer: the client is still busy with it.
        left = max(0, asked - max(0, holding.resident - event.usage.resident))
        self._order_out(holding, left - asked)
        self.model.evictions[event.serial] = (holding, left)
        if holding.lost:
            self._find_gone(holding, asked - left)
        self._state(holding, event.usage, moved=True, expected=asked - left)

    def _ordered(self, event: Evicted | Moving) -> tuple[Holding, int] | None:
        """Return what an answer is about and how much was asked for; None if nothing was, here."""
        client = self._client(event.client)
        usage = event.usage
        self._check_moved(client, usage, event.bytes, event.copied, event.duration)
        self.turn.dirty[usage.gpu] = self.model.gpus[usage.gpu]
        self.turn.concern(client.group)
        self._keeper.concern(client)
        found = self.model.evictions.get(event.serial)
        if found is None:
            # An order of an earlier scheduler: what it says is true all the same.
            self._state(self._holding(client, usage.gpu), usage, moved=True)
        elif found[0].client is not client or found[0].share.gpu.uuid != usage.gpu:
            raise ProtocolViolation(client.number, "answers an eviction that was not its own")
        return found

    def _log_move(self, kind: str, event: Evicted | Restored) -> None:
        self.turn.log(
            kind,
            self.model.clients[event.client].group,
            gpu=event.usage.gpu,
            bytes=event.bytes,
            copied=event.copied,
            duration=event.duration,
            status=event.status,
        )
