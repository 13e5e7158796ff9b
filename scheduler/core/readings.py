# SPDX-License-Identifier: BSD-3-Clause
"""What the readings of a GPU's memory show: what other programs hold, and what contexts take.

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
from dataclasses import dataclass

from .foreign_use import CONTEXTS, CONTEXTS_PART
from .ledger import Ledger
from .messages import Device, Measured, ReadDevice
from .model import LEFT, Departures, Gpu, Holding, Model, Trial, Wait
from .rules import MIB
from .turn import Turn

#: Seconds after which what the dead held is no longer expected to go soon. Perhaps it is gone, and something else grew
#: as much meanwhile: contexts take more than they were admitted with, and readings cannot tell one from the other.
LONGEST_RECLAIM = 5.0
#: A move tells the bandwidth if it is at least this part of the GPU's memory.
SMALLEST_MEASURE = 64


@dataclass(slots=True, eq=False)
class Readings:
    """Learns from readings, and asks for them."""

    model: Model
    turn: Turn
    ledger: Ledger

    def _learn_residue(self, gpu: Gpu) -> None:
        """Learn from a new reading what hibernated clients leave: the middle one of what was seen lately counts."""
        if gpu.leaving or gpu.unsettled or gpu.arriving or gpu.pending_reclaim:
            return
        held = gpu.resident + gpu.pinned + gpu.context
        sizes = gpu.context_sizes
        since, sizes.departures = sizes.departures, Departures(gpu.used, held)
        learned = since is not None and self._see_departures(gpu, since, held)
        if not learned and (sizes.residues or not gpu.hibernated):
            return
        if not sizes.residues:
            # It is not known what each took. But all of them leave no more than this.
            gone = [h for s in gpu.shares.values() for h in s.holdings.values() if h.took]
            if not gone:
                return
            sizes.residue = min(LEFT, max(0, gpu.used - held) // len(gone))
        for other in (
            [g for g in self.model.gpus.values() if g.name == gpu.name] if learned else [gpu]
        ):
            other.context_sizes.residues = sizes.residues
            other.context_sizes.residue = sizes.residue
            before = other.left
            for share in other.shares.values():
                for holding in share.holdings.values():
                    self.ledger.charge_left(holding)
            if other is not gpu:
                # Its last reading had that as others' use.
                other.foreign = max(0, other.foreign - other.left + before)

    def _see_departures(self, gpu: Gpu, since: Departures, held: int) -> bool:
        """Find what the clients left that hibernated between two readings, if nothing else came or went."""
        if not since.count or since.inexact or held != since.held - since.bytes:
            return False
        left = gpu.used - since.used + since.bytes
        if not 0 <= left <= since.bytes:
            return False  # other programs' use changed as well
        sizes = gpu.context_sizes
        sizes.residues.append(left // since.count)
        sizes.residue = sorted(sizes.residues)[len(sizes.residues) // 2]
        return True

    def on_measured(self, event: Measured) -> None:
        """The driver's figure of what contexts take."""
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
        more = self.ledger.charge_contexts(holding, event.bytes)
        if more:
            gpu.context_sizes.trial = None
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
                other.context_sizes.taken = found[len(found) // 2]

    def try_context(self, holding: Holding) -> None:
        """A context is about to begin. If nothing else happens on the GPU, the next reading shows its size."""
        gpu = holding.share.gpu
        fresh = self.turn.now - gpu.read_at <= self.model.rules.fresh
        alone = fresh and gpu.asked_at is None and _is_quiet(gpu)
        held = gpu.resident + gpu.pinned
        # That reading shows what there is now only if nothing has come or gone since. Otherwise the next tells nothing.
        same = gpu.context_sizes.quietly_held == held + gpu.context
        found = Trial(holding.client.number, gpu.used, held if same else -1, gpu.context)
        gpu.context_sizes.trial = found if alone else None

    def _end_trial(self, gpu: Gpu, used: int) -> None:
        """Charge a context with the size that the reading shows, if nothing else happened."""
        trial = gpu.context_sizes.trial
        if trial is None or not trial.begun:
            return
        gpu.context_sizes.trial = None
        client = self.model.clients.get(trial.client)
        holding = None if client is None else client.holdings.get(gpu.uuid)
        took = used - trial.used
        same = _is_quiet(gpu) and gpu.resident + gpu.pinned == trial.held
        if holding is None or holding.client.gone or not same or holding.measured:
            return
        before = trial.context - (gpu.context - holding.context)
        most = holding.context + min(CONTEXTS, int(gpu.total * CONTEXTS_PART))
        if before >= 0 and 0 < took <= most:
            self.ledger.charge_contexts(holding, before + took)
            self._learn_contexts(gpu, holding)

    def measure(self, gpu: Gpu, moved: int, copied: int, duration: float) -> None:
        """Learn the bandwidth from a move."""
        # A small move is no measure: it waits for other things than the copying.
        if copied > MIB and duration > 0 and moved >= gpu.total / SMALLEST_MEASURE:
            weight = 0.3 if gpu.measured else 1.0
            gpu.bandwidth += weight * (moved / duration - gpu.bandwidth)
            gpu.measured = True

    def on_device(self, event: Device) -> None:
        """A reading of a GPU's memory."""
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
            self.turn.reserve_stale[gpu.uuid] = gpu
            gpu.reserve = self.model.rules.reserve_of(event.total)
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
        before = gpu.foreign + gpu.pending_reclaim
        gpu.pending_reclaim = max(0, min(gpu.pending_reclaim, event.used - least - gpu.foreign))
        residue = 0
        if self.turn.now >= gpu.exited_at + LONGEST_RECLAIM:
            residue = max(0, gpu.pending_reclaim - _held_by_returning(gpu))
        gpu.pending_reclaim -= (
            residue  # nobody knows when that will be free, so it counts as others' use
        )
        rest = event.used - gpu.pending_reclaim
        # An earlier reading may have missed what was freed and stated only since: then the last value is too low. Who
        # fills would starve for a value that is too high.
        unseen = gpu.shrunk
        if gpu.filling is not None:
            unseen = gpu.hidden + min(gpu.shrunk - gpu.hidden, gpu.lowered)
        last = gpu.foreign + unseen + residue
        gpu.shrunk = gpu.hidden = 0
        gpu.overcharged = max(0, least - rest)
        foreign = max(0, rest - most, min(last, rest - least))
        gpu.lowered = max(0, gpu.lowered + before - foreign - gpu.pending_reclaim)
        held = gpu.resident + gpu.pinned + gpu.context
        gpu.context_sizes.quietly_held = held if _is_quiet(gpu) else None
        if foreign != gpu.foreign:
            gpu.foreign = foreign
            self.turn.reserve_stale[gpu.uuid] = gpu
        if gpu.pending_reclaim:
            longest = (
                self.model.rules.longest_pause if self.model.queue else self.model.rules.idle_pause
            )
            gpu.read_pause = min(max(2 * gpu.read_pause, self.model.rules.shortest_pause), longest)

    def watch(self, gpu: Gpu, short: bool) -> None:
        """Read again by itself while ghosts or foreign use matter."""
        if gpu.asked_at is not None:
            if self.is_overdue(gpu):
                gpu.asked_at = self.turn.now
                self.turn.decisions.append(ReadDevice(gpu.uuid))
            self.turn.look_at(gpu.asked_at + self.model.rules.reading_timeout)
            return
        if gpu.pending_reclaim:
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

    def allow(self, wait: Wait) -> bool:
        """Whether the readings that a grant depends on are fresh; if not, ask for them."""
        fresh = True
        for gpu in wait.gpus.values():
            if self._matters(wait, gpu):
                fresh = self.is_fresh(gpu) and fresh
        return fresh

    def _matters(self, wait: Wait, gpu: Gpu) -> bool:
        """Whether serving a wait takes more of a GPU than is known to be free without a fresh reading.

        If the spare part is used after all and has no room, the restore fails and is tried again. After a process died
        or hibernated, a reading is needed: the process may have held, or left, more than is known.
        """
        if wait.grow is None and not (
            gpu.pending_reclaim or gpu.shrunk or gpu.read_at == -math.inf
        ):
            return wait.group.shares[gpu.uuid].exceeds_spare
        return self.model.need(wait, gpu) > 0

    def is_fresh(self, gpu: Gpu, age: float | None = None) -> bool:
        """Whether the last reading may be decided on; if not, one is asked for."""
        if (
            self.turn.now - gpu.read_at <= (self.model.rules.fresh if age is None else age)
            and not gpu.shrunk
        ):
            return True
        if self.is_overdue(gpu):
            return True
        self.turn.ask(gpu)
        return False

    def is_overdue(self, gpu: Gpu) -> bool:
        """Whether a reading that was asked for is not waited for any longer."""
        return (
            gpu.asked_at is not None
            and self.turn.now - gpu.asked_at >= self.model.rules.reading_timeout
        )


def _is_quiet(gpu: Gpu) -> bool:
    """Whether nothing of what clients state here may be about to come or to go."""
    moving = gpu.leaving or gpu.unsettled or gpu.arriving or gpu.shrunk or gpu.pending_reclaim
    return not moving


def _held_by_returning(gpu: Gpu) -> int:
    """Bytes that clients of the previous scheduler hold, as far as it knew."""
    return sum(u.resident + u.pinned + u.context for u in gpu.returning.values())
