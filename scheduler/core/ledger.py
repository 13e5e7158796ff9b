# SPDX-License-Identifier: BSD-3-Clause
"""The core's books: who holds what where, what is promised, and what NVML's readings say about all the others.

Foreign use
-----------
NVML's used bytes are one number, read while moves are under way. What we hold is then an interval::

    stated - (being evicted, or admitted and not yet allocated)  <=  ours  <=  stated + arriving

What a client was told to evict counts as being there still once the client is silent: else others' use could be
anything for as long as that lasts. If it left all the same, it is as memory that was freed before it was stated.
Foreign use stays what it was last where the reading allows that, else it takes the nearest value that is possible.
Earlier readings may have been without memory that was stated as gone only later: for them the last value counts as
greater by that much, and by no more, else what arrives meanwhile would pass for others' use. While a share fills, which
waits for all room that appears, it does so only as far as readings have lowered it, or as contexts were measured to
take less than was charged for them: that much of others' use was taken for theirs. Of a share that fills, or of a
group that holds more than the GPU has, only what it was allotted can be arriving.
Decisions to grant or to take memory wait for a reading of this very millisecond (``ReadDevice``), unless nothing is to
move.
"""

from __future__ import annotations

import math
from bisect import insort
from typing import Literal

from .messages import Device, Grow, Growth, Measured, ReadDevice, Usage
from .model import (
    CONTEXTS,
    CONTEXTS_PART,
    LEFT,
    Client,
    Departures,
    Gpu,
    Group,
    Holding,
    Model,
    Share,
    Trial,
    place,
)
from .rules import MIB, Rules
from .timers import Timers
from .turn import Turn, stir
from .usage import GpuTime

GIB = 1 << 30
#: Larger figures are a fault of the client, not memory.
LARGEST = 1 << 50
#: Seconds after which what the dead held is no longer expected to go soon. Perhaps it is gone, and something else grew
#: as much meanwhile: contexts take more than they were admitted with, and readings cannot tell one from the other.
HAUNTED = 5.0
#: Seconds for which it counts how much host memory there was: so long, a shortage may be brief.
LATELY = 60.0
#: What may change by itself so that what is refused can be had: what others hold, or the host's memory.
Relief = Literal["others", "host"]
#: A move tells the bandwidth if it is at least this part of the GPU's memory.
SMALLEST_MEASURE = 64


class ProtocolViolation(Exception):
    """A client said what cannot be; the server disconnects it. The core's state is as before the event."""

    def __init__(self, client: int, text: str) -> None:
        super().__init__(text)
        self.client = client
        self.text = text


def default_reserve(total: int) -> int:
    """Bytes of a GPU that are never promised: for allocations that nobody states, and for rounding.

    1 % of the GPU; at least 64 MiB, but no more than 2 % where that is less (small simulated GPUs).
    """
    return max(total // 100, min(64 * MIB, total // 50))


class Accounts:
    """What is held and promised, on every GPU and of the host's memory; the core decides by it.

    Parameters
    ----------
    rules
        The settings that hold.
    """

    def __init__(self, rules: Rules) -> None:
        self.model = Model(rules)
        self.times = GpuTime(rules.window)
        self.turn = Turn()
        self.timers = Timers()
        #: The largest budget that it had lately, and until when that counts.
        self._host_best: tuple[int, float | None] = (0, None)

    def _refusal(
        self,
        share: Share,
        more: int,
        fixed: int,
        over: bool = False,
        pinned: int = 0,
        stays: int = 0,
    ) -> tuple[Growth, Relief | None, str] | None:
        """Why this could never be had: status, what may change that by itself (None: nothing), and the sentence.

        ``over``: what can move may be more than the GPU has. Of ``fixed``, ``pinned`` is not for contexts, and
        ``stays`` is on the GPU also while the client hibernates.
        """
        gpu, group = share.gpu, share.group
        asked = fixed if over else more + fixed
        if more + fixed <= 0:
            return None
        yields = share.oversubscribes and (over or more <= 0)
        held = (share.floor if yields else share.promised) + share.pinned + share.context
        others = gpu.pinned - share.pinned + gpu.context - share.context
        others += gpu.uncovered(gpu.left - share.left)
        limit = gpu.total - gpu.reserve - others - gpu.foreign
        returning = gpu.returning.values()
        theirs = sum(u.pinned + u.context for u in returning)
        if gpu.hibernated or (held + asked > limit and self._may_press()):
            limit += others - self._fixed_beside(share)
        limit -= theirs
        if held + asked > limit:
            text = (
                f"{_amount(asked)} more would make {_amount(held + asked)}, "
                f"but the GPU has {_amount(max(0, limit))} for one kernel"
            )
            if gpu.outside:
                text += f" (other programs hold {_amount(gpu.outside)})"
            return "device", _others(held + asked <= limit + gpu.foreign + theirs), text
        if fixed > 0 and (unserved := self._crowded_out(share, fixed, pinned, stays)) is not None:
            foreign, text = unserved
            return "device", _others(foreign), text
        asked = more + fixed
        cap = min((c.cap for c in group.clients.values() if c.cap), default=0)
        total = sum(s.promised + s.pinned for s in group.shares.values())
        if cap and total + asked > cap:
            text = (
                f"{_amount(asked)} more would make {_amount(total + asked)}, "
                f"but this kernel is limited to {_amount(cap)}"
            )
            return "cap", None, text
        if not share.used and (quota := self._exceeded(share)) is not None:
            whose, gpus = quota
            text = (
                f"the {_named(whose)} may use {gpus} {'GPU' if gpus == 1 else 'GPUs'} at once, and "
                f"this kernel uses as many already: choose one of those (CUDA_VISIBLE_DEVICES)"
            )
            return "cap", None, text
        most = group.wishes.memory
        if most and more > 0 and share.promised + more > most:
            text = (
                f"{_amount(more)} more would make {_amount(share.promised + more)}, but this kernel was "
                f"limited to {_amount(most)} on each GPU (`%gpushare memory off` lifts that)"
            )
            return "cap", None, text
        room = self.times.memory_room(group, gpu) if more > 0 else None
        if room is not None and more > room.bytes:
            text = (
                f"{_amount(more)} more are {_amount(more - max(0, room.bytes))} more than the "
                f"{_named(room.whose)} may have on each GPU"
            )
            return "cap", None, text
        room = self.times.host_room(group, self.model.groups.values()) if more > 0 else None
        if room is not None and more > room.bytes:
            text = (
                f"{_amount(more)} more are {_amount(more - max(0, room.bytes))} more than the {_named(room.whose)} "
                "may have over all GPUs, since all of it may have to lie in the host's memory"
            )
            return "host", None, text
        backed = self._backed(gpu, self.model.host_budget) - fixed
        theirs = sum(u.promised for u in returning)
        promised = gpu.promised + theirs
        if promised + more > backed:
            text = (
                f"{_amount(asked)} more would make {_amount(promised + asked)} for all kernels, "
                f"but the GPU and the host's memory can back {_amount(max(0, backed + fixed))}"
            )
            relief = _others(promised + more <= backed + gpu.foreign + theirs)
            if relief is None and promised + more <= self._backed(gpu, self._host_lately()) - fixed:
                relief = "host"
            return "host", relief, text
        return None

    def _fixed_beside(self, share: Share) -> int:
        """Return the bytes of a GPU that others hold and that cannot move; of its own, what is hibernated.

        Of those that hibernate, the one that needs the most counts: all others can make way for it, but for what they
        leave on the GPU all the same.
        """
        gpu = share.gpu
        fixed = stays = 0
        movable: list[tuple[int, int]] = []
        for other in gpu.shares.values():
            held = other.pinned + other.context
            gone = other.asleep
            if other is share:
                fixed += gone  # that it will need beside what is asked for
            elif gone or (held and self._can_give_way(other)):
                stays += other.stays
                movable.append((held + gone, other.stays))
            else:
                fixed += held
        return fixed + max(
            (needs + gpu.uncovered(stays - without) for needs, without in movable), default=0
        )

    def _crowded_out(
        self, share: Share, fixed: int, pinned: int, stays: int
    ) -> tuple[bool, str] | None:
        """Find a group that could never run again if another took so many bytes more that cannot be evicted.

        Return whether that is so for foreign use alone, and the sentence. Groups for which there is too little room as
        it is do not count, unless that is for foreign use, which may go.
        """
        gpu = share.gpu
        others = [other for other in gpu.shares.values() if other is not share and other.promised]
        if not others:
            return None
        more_left, more_kept = (stays, 0) if self._can_give_way(share, pinned) else (0, fixed)
        more = more_left + more_kept
        if more <= 0:
            return None
        # Of each group, what it leaves when it makes way, and what it keeps because it cannot.
        least = {
            other.group.id: (other.stays, 0)
            if self._can_give_way(other)
            else (other.left, other.pinned + other.context)
            for other in gpu.shares.values()
        }
        left, kept = map(sum, zip(*least.values(), strict=True))
        for other in others:
            needs = other.floor + other.pinned + other.context + other.asleep
            own_left, own_kept = least[other.group.id]
            room = gpu.total - gpu.reserve - (kept - own_kept) - needs
            before = room - gpu.uncovered(left - own_left)
            after = room - more_kept - gpu.uncovered(left - own_left + more_left)
            alone = after < 0 <= before
            if alone or after < gpu.foreign <= before:
                lack = (0 if alone else gpu.foreign) - after
                text = (
                    f"{_amount(more)} more that cannot be evicted would take {_amount(lack)} of the {_amount(needs)} "
                    "that another notebook already uses. Shut down a notebook that you no longer need, and try again"
                )
                return not alone, text
        return None

    def _can_give_way(self, share: Share, pinned: int = 0) -> bool:
        """Whether a group would hibernate for others, also with so many unevictable bytes more beside contexts."""
        return self._may_press() and self._makes_way(share.group, pinned)

    def _may_press(self) -> bool:
        raise NotImplementedError

    def _makes_way(self, group: Group, pinned: int = 0) -> bool:
        raise NotImplementedError

    def _exceeded(self, share: Share) -> tuple[str, int] | None:
        """Return whose quota of GPUs a group would exceed by itself with one more, and how many it is."""
        if not self.times.counted:
            return None
        uses = sum(other.used for other in share.group.shares.values())
        for claim in self.times.quotas(share.group):
            if uses >= claim.entitlement.gpus:
                return claim.whose, claim.entitlement.gpus
        return None

    def _backed(self, gpu: Gpu, budget: int) -> int:
        """Bytes of footprints that a GPU and what the others leave of the host's memory can hold together.

        What the GPU holds leaves while what the host holds comes in, so a switch takes no more than what is in flight.
        """
        host = budget - min(self.model.rules.host_in_flight, budget // 8)
        for client in self.model.clients.values():
            promised = sum(h.promised for h in client.holdings.values())
            host -= min(self.model.rules.host_slack, promised)
        for other in self.model.gpus.values():
            if other is not gpu:
                host -= max(0, other.promised - other.capacity)
        return max(0, gpu.capacity) + max(0, host)

    def _budget_host(self, budget: int, most: int) -> None:
        """Take in how much host memory there is for swapped data, and how much there can be at most."""
        before, self.model.host_budget = self.model.host_budget, max(0, budget)
        best, until = self._host_best
        if until is None:
            # A scheduler that has just begun does not know what there was a short while ago.
            self._host_best = most, self.turn.now + LATELY
        elif before >= best or self.turn.now >= until:
            self._host_best = before, self.turn.now + LATELY

    def _host_room(self) -> int:
        """Return the host memory that nothing lies in yet."""
        held = sum(
            h.host for client in self.model.clients.values() for h in client.holdings.values()
        )
        return max(0, self.model.host_budget - held)

    def _host_lately(self) -> int:
        """Return the most host memory that there was for swapped data a short while ago."""
        best, until = self._host_best
        return 0 if until is None or self.turn.now >= until else best

    def _headroom(self, share: Share, more: int, wish: int, over: bool) -> int:
        """How many of the bytes that a client would like beyond its need can be promised."""
        low, high = 0, max(0, wish)
        if more <= 0 or high == 0:
            return 0
        if self._refusal(share, more + high, 0, over) is None:
            return high
        while high - low > 2 * MIB:
            middle = (low + high) // 2
            if self._refusal(share, more + middle, 0, over) is None:
                low = middle
            else:
                high = middle
        return low

    def _holding(self, client: Client, uuid: str) -> Holding:
        holding = client.holdings.get(uuid)
        if holding is None:
            group, gpu = client.group, self.model.gpus[uuid]
            share = group.shares.get(uuid)
            if share is None:
                self.model.last_share += 1
                share = Share(group, gpu, self.model.last_share)
                group.shares[uuid] = gpu.shares[group.id] = share
                gpu.victims.stirred[share.number] = share
                self.turn.reseat(group)
                self.turn.dirty[uuid] = gpu
                if group.lease is not None:
                    self._hold(group, gpu)
                if group.wait is not None:
                    insort(gpu.queue, group.wait, key=place)
            holding = client.holdings[uuid] = Holding(client, share)
            share.holdings[client.number] = holding
            share.gpu.hibernated += client.gone
            self._lose(holding, client.silent)
        return holding

    def _lose(self, holding: Holding, lost: bool) -> None:
        """Its memory is not to be had, or is again: the only place where these counts change."""
        more = lost - holding.lost
        holding.lost = lost
        holding.share.lost += more
        holding.share.gpu.lost += more
        if more:
            stir(holding.share.group)

    def _vanish(self, client: Client) -> None:
        """Its contexts are said to be off its GPUs: what a reading shows beyond what they leave is others' use."""
        client.gone = True
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            fixed = holding.pinned + holding.context
            if fixed and gpu.departures is not None:
                gpu.departures.count += 1
                gpu.departures.bytes += fixed
                gpu.departures.spoilt = gpu.departures.spoilt or not holding.measured
            # What was unsettled, no reading has taken for others' room. Still, nobody gets it before another reading.
            gpu.shrunk += max(0, fixed - holding.unsettled)
            gpu.read_at = -math.inf
            gpu.hibernated += 1
            self._unsettle(holding, -holding.unsettled)
            self._account(holding, holding.promised, holding.resident, 0, 0)
            self._leave_behind(holding)
            self.turn.dirty[gpu.uuid] = gpu
            self.turn.ask(gpu)

    def _leave_behind(self, holding: Holding) -> None:
        """Charge what a hibernated client leaves where it was."""
        client, gpu = holding.client, holding.share.gpu
        needs = client.needs
        there = client.gone and needs is not None and needs.gpu == gpu.uuid
        if needs is not None and there and client.home in ("", gpu.uuid):
            holding.took = needs.context
        else:
            holding.took = 0
        self._charge_left(holding)

    def _charge_left(self, holding: Holding) -> None:
        """Set what is charged for what a client has left: the only place where these sums change."""
        share = holding.share
        more = share.gpu.leaves(holding.took) - holding.left
        holding.left += more
        share.left += more
        share.gpu.left += more

    def _learn_residue(self, gpu: Gpu) -> None:
        """Learn from a new reading what hibernated clients leave: the middle one of what was seen lately counts."""
        if gpu.leaving or gpu.unsettled or gpu.arriving or gpu.ghosts:
            return
        held = gpu.resident + gpu.pinned + gpu.context
        since, gpu.departures = gpu.departures, Departures(gpu.used, held)
        learned = since is not None and self._see_departures(gpu, since, held)
        if not learned and (gpu.residues or not gpu.hibernated):
            return
        if not gpu.residues:
            # It is not known what each took. But all of them leave no more than this.
            gone = [h for s in gpu.shares.values() for h in s.holdings.values() if h.took]
            if not gone:
                return
            gpu.residue = min(LEFT, max(0, gpu.used - held) // len(gone))
        for other in (
            [g for g in self.model.gpus.values() if g.name == gpu.name] if learned else [gpu]
        ):
            other.residues, other.residue = gpu.residues, gpu.residue
            before = other.left
            for share in other.shares.values():
                for holding in share.holdings.values():
                    self._charge_left(holding)
            if other is not gpu:
                # Its last reading had that as others' use.
                other.foreign = max(0, other.foreign - other.left + before)

    def _see_departures(self, gpu: Gpu, since: Departures, held: int) -> bool:
        """Find what the clients left that hibernated between two readings, if nothing else came or went."""
        if not since.count or since.spoilt or held != since.held - since.bytes:
            return False
        left = gpu.used - since.used + since.bytes
        if not 0 <= left <= since.bytes:
            return False  # other programs' use changed as well
        gpu.residues.append(left // since.count)
        gpu.residue = sorted(gpu.residues)[len(gpu.residues) // 2]
        return True

    def _return(self, client: Client) -> None:
        """What it needs to be awake was admitted, and may be on its GPU from now on."""
        client.gone = False
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            gpu.hibernated -= 1
            self._leave_behind(holding)
            if gpu.departures is not None:
                gpu.departures.spoilt = True
        needs = client.needs
        if needs is not None and needs.gpu in client.holdings:
            holding = client.holdings[needs.gpu]
            self._unsettle(holding, needs.pinned + needs.context)
            self._account(holding, holding.promised, holding.resident, needs.pinned, needs.context)

    def _order_out(self, holding: Holding, more: int) -> None:
        """So many bytes more of a holding are on their way out; less if negative."""
        holding.evicting += more
        holding.share.evicting += more
        holding.share.gpu.leaving += more
        stir(holding.share.group)

    def _find_gone(self, holding: Holding, size: int) -> None:
        """So much may have left while its client was silent: readings then took others' use for too little."""
        gpu = holding.share.gpu
        gpu.shrunk += min(size, gpu.lowered)

    def _unsettle(self, holding: Holding, more: int) -> None:
        """So many pinned bytes more were admitted and are perhaps not allocated yet."""
        holding.unsettled += more
        holding.share.gpu.unsettled += more

    def _hold(self, group: Group, gpu: Gpu) -> None:
        self.turn.recount = True
        self.turn.crowded[gpu.uuid] = self.turn.repace[gpu.uuid] = gpu
        gpu.holders[group.id] = group
        if group.yielding:
            gpu.yielding[group.id] = group
        gpu.background += group.classed == "background"
        self.turn.untold[group.id] = group
        if gpu.audience is not None:
            gpu.audience.add(group)

    def _state(
        self, holding: Holding, usage: Usage, moved: bool = False, expected: int = 0
    ) -> None:
        """Take over what a client states that it holds; ``expected`` bytes were to leave."""
        # A move's report may have crossed a promise on its way.
        promised, pinned, stated = usage.promised, usage.pinned, usage.context
        if moved:
            promised = max(promised, holding.promised)
        crossed = moved and holding.unsettled > 0
        if crossed:
            pinned, stated = max(pinned, holding.pinned), max(stated, holding.stated)
        needs = holding.client.needs
        if holding.client.gone and needs is not None and needs.gpu == usage.gpu:
            needs.pinned = pinned
            if stated != holding.stated:
                # Its context may have taken more than the client knows.
                needs.context = max(needs.context, stated)
        context = holding.contexts(stated)
        if holding.client.gone:
            pinned = context = 0
        before = holding.resident + holding.pinned + holding.context
        # It was freed some time ago: the last reading may have been without it already.
        freed = before - usage.resident - pinned - context
        holding.share.gpu.shrunk += max(0, freed - expected)
        holding.host = usage.host
        if not crossed:
            self._unsettle(holding, -holding.unsettled)
        self._state_contexts(holding, stated)
        self._account(holding, promised, usage.resident, pinned, context)
        trial = holding.share.gpu.trial
        if trial is not None and trial.client == holding.client.number and not crossed:
            trial.begun = True
            self.turn.ask(holding.share.gpu)
        self._spare(holding, min(holding.spare, holding.promised - holding.resident))

    def _state_contexts(self, holding: Holding, stated: int) -> None:
        """Note what a client states of its contexts; what is charged for them follows from it."""
        if stated != holding.stated:
            holding.stated, holding.measured, holding.beyond = stated, False, 0

    def _on_measured(self, event: Measured) -> None:
        client = self.model.clients.get(event.client)
        holding = None if client is None else client.holdings.get(event.gpu)
        if holding is None or holding.client.stage in (
            "checkpointing",
            "hibernated",
            "waiting",
            "waking",
        ):
            return  # its contexts may be off the GPU for a while
        holding.measured = True
        gpu = holding.share.gpu
        if not holding.stated:
            holding.beyond = event.bytes
            return
        more = self._charge_contexts(holding, event.bytes)
        if more:
            gpu.trial = None
        # It was foreign use; or a reading may show now what it hid.
        gpu.foreign = max(0, gpu.foreign - max(0, more))
        if more < 0:
            shown = min(-more, gpu.overcharged)
            gpu.overcharged -= shown
            gpu.hidden += -more - shown
            gpu.shrunk -= more
        self.turn.dirty[gpu.uuid] = gpu
        if more:
            self.turn.ask(gpu)
        self._learn_contexts(gpu)

    def _charge_contexts(self, holding: Holding, size: int) -> int:
        """Charge a client for its contexts as they are; return by how much that is more."""
        size = min(max(1, size), holding.share.gpu.total)
        more = size - holding.context
        self._account(holding, holding.promised, holding.resident, holding.pinned, size)
        return more

    def _learn_contexts(self, gpu: Gpu, tried: Holding | None = None) -> None:
        """Learn what contexts take on GPUs of one name from all that were measured there: the middle one counts."""
        alike = [other for other in self.model.gpus.values() if other.name == gpu.name]
        found = [
            (holding.stated, holding.context)
            for other in alike
            for share in other.shares.values()
            for holding in share.holdings.values()
            if (holding.measured or holding is tried) and holding.stated and holding.context
        ]
        if found:
            found.sort(key=lambda pair: pair[1] / pair[0])
            for other in alike:
                other.taken = found[len(found) // 2]

    def _try_context(self, holding: Holding) -> None:
        """A context is about to begin. If nothing else happens on the GPU, the next reading shows its size."""
        gpu = holding.share.gpu
        fresh = self.turn.now - gpu.read_at <= self.model.rules.fresh
        alone = fresh and gpu.asked_at is None and gpu.quiet
        held = gpu.resident + gpu.pinned
        # That reading shows what there is now only if nothing has come or gone since. Otherwise the next tells nothing.
        same = gpu.quietly_held == held + gpu.context
        found = Trial(holding.client.number, gpu.used, held if same else -1, gpu.context)
        gpu.trial = found if alone else None

    def _end_trial(self, gpu: Gpu, used: int) -> None:
        """Charge a context with the size that the reading shows, if nothing else happened."""
        trial = gpu.trial
        if trial is None or not trial.begun:
            return
        gpu.trial = None
        client = self.model.clients.get(trial.client)
        holding = None if client is None else client.holdings.get(gpu.uuid)
        took = used - trial.used
        same = gpu.quiet and gpu.resident + gpu.pinned == trial.held
        if holding is None or holding.client.gone or not same or holding.measured:
            return
        before = trial.context - (gpu.context - holding.context)
        most = holding.context + min(CONTEXTS, int(gpu.total * CONTEXTS_PART))
        if before >= 0 and 0 < took <= most:
            self._charge_contexts(holding, before + took)
            self._learn_contexts(gpu, holding)

    def _account(
        self, holding: Holding, promised: int, resident: int, pinned: int, context: int
    ) -> None:
        """Set what a client holds: the only place where these sums change."""
        share = holding.share
        gpu, used = share.gpu, share.used
        if (promised, pinned, context) != (holding.promised, holding.pinned, holding.context):
            self.turn.restock[gpu.uuid] = gpu
        more = promised - holding.promised
        share.promised += more
        gpu.promised += more
        self.model.promised += more
        holding.promised = promised
        limited = gpu.filling is share or (
            share.ceiling is not None and holding.client.oversubscribes
        )
        holding.room = min(max(holding.room, resident), promised) if limited else promised
        more = resident - holding.resident
        share.resident += more
        gpu.resident += more
        holding.resident = resident
        stir(share.group)
        more = pinned - holding.pinned
        share.pinned += more
        gpu.pinned += more
        holding.pinned = pinned
        more = context - holding.context
        share.context += more
        gpu.context += more
        holding.context = context
        self.turn.recount = self.turn.recount or share.used != used
        self._charge_share(share)

    def _spare(self, holding: Holding, spare: int) -> None:
        """Set what of its promise was not allocated: the only place where this sum changes."""
        holding.share.gpu.unused += spare - holding.spare
        holding.spare = spare

    def _charge_share(self, share: Share) -> None:
        """Set the room that is kept for what a lease brings in: the only place where it changes."""
        group = share.group
        share.gpu.victims.stirred[share.number] = share
        leased = group.lease is not None and not group.floating
        arriving = share.promised - share.resident if leased else 0
        if share.gpu.filling is share or share.ceiling is not None:
            arriving = sum(h.room for h in share.holdings.values()) - share.resident
        share.gpu.arriving += arriving - share.arriving
        share.arriving = arriving

    def _charge(self, group: Group) -> None:
        for share in group.shares.values():
            self._charge_share(share)

    def _measure(self, gpu: Gpu, moved: int, copied: int, duration: float) -> None:
        # A small move is no measure: it waits for other things than the copying.
        if copied > MIB and duration > 0 and moved >= gpu.total / SMALLEST_MEASURE:
            weight = 0.3 if gpu.measured else 1.0
            gpu.bandwidth += weight * (moved / duration - gpu.bandwidth)
            gpu.measured = True

    def _on_device(self, event: Device) -> None:
        gpu = self.model.gpus.get(event.gpu)
        if gpu is None:
            gpu = Gpu(
                event.gpu,
                event.index,
                event.name,
                0,
                0,
                0,
                self.turn.now,
                self.model.rules.bandwidth,
            )
            self.model.gpus[event.gpu] = gpu
        self.turn.dirty[gpu.uuid] = gpu
        if gpu.total != event.total:
            gpu.total = event.total
            self.turn.restock[gpu.uuid] = gpu
            gpu.reserve = (
                default_reserve(event.total)
                if self.model.rules.reserve is None
                else self.model.rules.reserve
            )
        gpu.used, gpu.read_at, gpu.asked_at = event.used, self.turn.now, None
        if event.name:
            gpu.name, gpu.index = event.name, event.index

        self._end_trial(gpu, event.used)
        self._learn_residue(gpu)
        most = gpu.resident + gpu.pinned + gpu.context + gpu.left
        least = most - gpu.coming - gpu.unsettled
        most += gpu.arriving
        for group in gpu.holders.values() if self.model.pages else ():
            share = group.shares[gpu.uuid]
            # Not charged for it, but it may come all the same.
            if group.floating and gpu.filling is not share and share.ceiling is None:
                most += share.promised - share.resident
        before = gpu.foreign + gpu.ghosts
        gpu.ghosts = max(0, min(gpu.ghosts, event.used - least - gpu.foreign))
        residue = 0
        if self.turn.now >= gpu.died_at + HAUNTED:
            residue = max(0, gpu.ghosts - gpu.held_by_returning)
        gpu.ghosts -= residue  # nobody knows when that will be free, so it counts as others' use
        rest = event.used - gpu.ghosts
        # An earlier reading may have missed what was freed and stated only since: then the last value is too low. Who
        # fills would starve for a value that is too high.
        unseen = gpu.shrunk
        if gpu.filling is not None:
            unseen = gpu.hidden + min(gpu.shrunk - gpu.hidden, gpu.lowered)
        last = gpu.foreign + unseen + residue
        gpu.shrunk = gpu.hidden = 0
        gpu.overcharged = max(0, least - rest)
        foreign = max(0, rest - most, min(last, rest - least))
        gpu.lowered = max(0, gpu.lowered + before - foreign - gpu.ghosts)
        held = gpu.resident + gpu.pinned + gpu.context
        gpu.quietly_held = held if gpu.quiet else None
        if foreign != gpu.foreign:
            gpu.foreign = foreign
            self.turn.restock[gpu.uuid] = gpu
        if gpu.ghosts:
            longest = (
                self.model.rules.longest_pause if self.model.queue else self.model.rules.idle_pause
            )
            gpu.read_pause = min(max(2 * gpu.read_pause, self.model.rules.shortest_pause), longest)

    def _watch(self, gpu: Gpu, short: bool) -> None:
        """Read again by itself while ghosts or foreign use matter."""
        if gpu.asked_at is not None:
            if self._is_overdue(gpu):
                gpu.asked_at = self.turn.now
                self.turn.decisions.append(ReadDevice(gpu.uuid))
            self.turn.look_at(gpu.asked_at + self.model.rules.reading_timeout)
            return
        if gpu.ghosts:
            pause = (
                min(gpu.read_pause, self.model.rules.longest_pause)
                if self.model.queue
                else gpu.read_pause
            )
        elif short:
            pause = self.model.rules.foreign_pause
        else:
            return
        if gpu.read_at + pause <= self.turn.now:
            self.turn.ask(gpu)
        self.turn.look_at(max(gpu.read_at + pause, self.turn.now + self.model.rules.shortest_pause))

    def _is_fresh(self, gpu: Gpu, age: float | None = None) -> bool:
        """Whether the last reading may be decided on; if not, one is asked for."""
        if (
            self.turn.now - gpu.read_at <= (self.model.rules.fresh if age is None else age)
            and not gpu.shrunk
        ):
            return True
        if self._is_overdue(gpu):
            return True
        self.turn.ask(gpu)
        return False

    def _is_overdue(self, gpu: Gpu) -> bool:
        return (
            gpu.asked_at is not None
            and self.turn.now - gpu.asked_at >= self.model.rules.reading_timeout
        )

    def _client(self, number: int) -> Client:
        client = self.model.clients.get(number)
        if client is None:
            raise ProtocolViolation(number, "is not attached")
        return client

    def _check(self, client: int, backend: str, usage: Usage, growth: bool = False) -> None:
        if usage.gpu not in self.model.gpus:
            raise ProtocolViolation(client, f"names a GPU that is not here: {usage.gpu}")
        sizes = (usage.promised, usage.resident, usage.pinned, usage.context, usage.host)
        if min(sizes) < 0 or max(sizes) > LARGEST:
            raise ProtocolViolation(client, "states a size that cannot be")
        if usage.resident > usage.promised and not growth:
            raise ProtocolViolation(client, "states more resident than it was promised")
        # Figures are estimates here and there; but nobody holds twice the GPU.
        if not growth and sum(sizes[1:4]) > 2 * self.model.gpus[usage.gpu].total:
            raise ProtocolViolation(client, "states that it holds more than the GPU has")
        if backend == "plain" and usage.promised:
            raise ProtocolViolation(client, "states memory that can move, without a backend for it")

    def _check_moved(
        self, client: Client, usage: Usage, moved: int, copied: int, duration: float
    ) -> None:
        self._check(client.number, client.backend, usage)
        if min(moved, copied) < 0 or max(moved, copied) > LARGEST or not 0 <= duration < 1e9:
            raise ProtocolViolation(client.number, "states a move that cannot be")


def growth(holding: Holding, event: Grow) -> tuple[int, int]:
    """How many bytes more are asked for: of those that can move, and of those that cannot."""
    least = event.least
    context = least.context
    if not holding.client.gone:
        context = holding.contexts(max(holding.stated, context))
    fixed = max(0, least.pinned - holding.pinned) + max(0, context - holding.context)
    fixed -= holding.share.gpu.freed_without(holding.left)
    return max(0, least.promised - holding.promised), max(0, fixed)


def staying(holding: Holding, event: Grow) -> int:
    """How many bytes more than now would be on the GPU after growth while the client hibernates."""
    gpu = holding.share.gpu
    context = holding.contexts(max(holding.stated, event.least.context))
    return gpu.leaves(max(context, holding.context)) - gpu.leaves(holding.context)


def _others(passes: bool) -> Relief | None:
    return "others" if passes else None


def _named(whose: str) -> str:
    kind, _, name = whose.partition(":")
    return f"{kind} {name}"


def _amount(size: int) -> str:
    """Return bytes as text: little of a small GPU may be what something does not fit by."""
    if size < GIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size / GIB:.{2 if size < 10 * GIB else 1}f} GiB"
