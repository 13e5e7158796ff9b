# SPDX-License-Identifier: BSD-3-Clause
"""Derives from readings of a GPU's memory what other programs use, and what contexts take.

Use by other programs
---------------------
NVML's figure of used bytes is one number, read while moves are under way. The clients' part of it is an interval::

    stated - (being evicted, or admitted and not yet allocated)  <=  clients' part  <=  stated + arriving

Once a client is silent, the bytes that it was ordered to evict count as still there. Otherwise, other programs' use
could be anything for as long as that lasts. If the bytes left nevertheless, they are like memory that was freed before
it was stated.

Other programs' use keeps its last value if the reading allows that, and otherwise takes the nearest possible value.
Earlier readings may have been without memory that was stated as gone only later. For that memory, the last value counts
as greater by that much and no more, or arriving memory would pass for other programs' use. A share that fills waits for
all room that appears. Meanwhile, the last value is raised only as far as readings have lowered it, or as contexts were
measured to take less than their charge. That much of other programs' use was attributed to clients. Of a share that
fills, or of a group that holds more than the GPU has, only the allotted bytes can be arriving.

Decisions to grant leases or to take memory wait for a reading of the same millisecond (``ReadDevice``), unless nothing
has to move.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .foreign_use import CONTEXTS, CONTEXTS_PART
from .ledger import Ledger
from .messages import Device, Evicted, Measured, ReadDevice, Restored
from .model import LEFT, ContextSizes, Departures, Gpu, Holding, Model, Trial, Wait
from .rules import MIB
from .turn import Turn

#: Seconds after which memory of exited clients is no longer expected to be freed soon. It may be free already while
#: something else grew by as much: contexts take more than they were admitted with, and readings cannot tell these
#: apart.
LONGEST_RECLAIM = 5.0
#: A move counts as a measurement of the bandwidth if it is at least this fraction (1/n) of the GPU's memory.
SMALLEST_MEASURE = 64


@dataclass(slots=True, eq=False)
class Readings:
    """Applies readings, and requests them."""

    model: Model
    turn: Turn
    ledger: Ledger

    def _measure_residue(self, gpu: Gpu) -> None:
        """Measure the residue of hibernated clients with a new reading: the median of the last residues counts.

        A client's contexts may have been measured too large before it hibernated. Then less seemed to become free, and
        the residue seems larger than it is. But all residues together are at most what nothing else explains.
        """
        if gpu.leaving or gpu.unsettled or gpu.arriving or gpu.pending_reclaim:
            return
        held = gpu.resident + gpu.unevictable + gpu.context
        sizes = gpu.context_sizes
        since, sizes.departures = sizes.departures, Departures(gpu.used, held, gpu.resident)
        learned = since is not None and self._measure_departures(gpu, since, held)
        if not learned and not gpu.hibernated:
            return
        most = max(0, gpu.used - held)
        if not sizes.residues:
            # It is not known what each client took.
            gone = [h for s in gpu.shares.values() for h in s.holdings.values() if h.took]
            if not gone:
                return
            sizes.residue = min(LEFT, most // len(gone))
        elif gpu.hibernated and sizes.residue is not None and gpu.left > most:
            sizes.residue, learned = min(sizes.residue, most // gpu.hibernated), True
            sizes.residues.append(sizes.residue)
        elif not learned:
            return
        self._charge_residues(sizes, self._alike(gpu) if learned else [gpu], read=gpu)

    def _alike(self, gpu: Gpu) -> list[Gpu]:
        return [other for other in self.model.gpus.values() if other.name == gpu.name]

    def _charge_residues(
        self, sizes: ContextSizes, gpus: list[Gpu], read: Gpu | None = None
    ) -> None:
        """Charge the residues on some GPUs by these sizes; ``read``: the GPU whose reading is still to be applied."""
        for other in gpus:
            other.context_sizes.residues = sizes.residues
            other.context_sizes.residue = sizes.residue
            before = other.left
            for share in other.shares.values():
                for holding in share.holdings.values():
                    self.ledger.charge_left(holding)
            if other is not read:
                # Its last reading counted this as other programs' use.
                other.foreign = max(0, other.foreign - other.left + before)

    def trust_supposed_residue(self, gpu: Gpu) -> None:
        """Charge the residue that a reading only suggests, or that is expected, because a process lacks room to wake.

        What counts as other programs' use may be its own residue, which is part of its contexts once it is awake.
        """
        sizes = gpu.context_sizes
        if sizes.residues:
            return
        if sizes.supposed is not None:
            sizes.residues.append(sizes.supposed)
            sizes.residue = sizes.supposed
            self._charge_residues(sizes, self._alike(gpu))
        elif not sizes.trusted:
            sizes.trusted = True
        else:
            return
        self.turn.request_reading(gpu)

    def _measure_departures(self, gpu: Gpu, since: Departures, held: int) -> bool:
        """Measure the residues of clients that hibernated between two readings, if nothing else has changed."""
        if not since.count or since.inexact:
            return False
        sizes, moved = gpu.context_sizes, 0
        if held != since.held - since.bytes:
            moved = gpu.resident - since.resident
            if held != since.held - since.bytes + moved:
                return False
        left = gpu.used - since.used + since.bytes - moved
        if not 0 <= left <= since.bytes:
            return False  # other programs' use changed as well
        if moved or since.disturbed:
            sizes.supposed = left // since.count
            return False
        sizes.residues.append(left // since.count)
        sizes.residue = sorted(sizes.residues)[len(sizes.residues) // 2]
        return True

    def on_measured(self, event: Measured) -> None:
        """Apply the driver's figure of what contexts take."""
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
        # It counted as other programs' use; or a reading may now show what it hid.
        gpu.foreign = max(0, gpu.foreign - max(0, more))
        if more < 0:
            self.ledger.note_overcharge(gpu, -more)
        self.turn.dirty[gpu.uuid] = gpu
        if more:
            self.turn.request_reading(gpu)
        self._update_context_sizes(gpu)

    def _update_context_sizes(self, gpu: Gpu, tried: Holding | None = None) -> None:
        """Update the size of contexts on GPUs of one name from all measurements there: the median counts."""
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

    def begin_context_trial(self, holding: Holding) -> None:
        """Note that a context is about to be created. If nothing else happens, the next reading shows its size."""
        gpu = holding.share.gpu
        fresh = self.turn.now - gpu.read_at <= self.model.rules.fresh
        alone = fresh and gpu.reading.asked_at is None and _is_quiet(gpu)
        held = gpu.resident + gpu.unevictable
        # The reading shows the present state only if nothing has changed since. Otherwise, the next one shows nothing.
        same = gpu.context_sizes.quietly_held == held + gpu.context
        found = Trial(holding.client.number, gpu.used, held if same else -1, gpu.context)
        gpu.context_sizes.trial = found if alone else None

    def _end_trial(self, gpu: Gpu, used: int) -> None:
        """Charge a context with the size that a reading shows, if nothing else happened."""
        trial = gpu.context_sizes.trial
        if trial is None or not trial.begun:
            return
        gpu.context_sizes.trial = None
        client = self.model.clients.get(trial.client)
        holding = None if client is None else client.holdings.get(gpu.uuid)
        took = used - trial.used
        same = _is_quiet(gpu) and gpu.resident + gpu.unevictable == trial.held
        if holding is None or holding.client.gone or not same or holding.measured:
            return
        before = trial.context - (gpu.context - holding.context)
        most = holding.context + min(CONTEXTS, int(gpu.total * CONTEXTS_PART))
        # Another program may have freed what seems to be missing. The next context would be admitted without room.
        missing = holding.context - before - took
        unclear = 0 < missing <= gpu.foreign
        if before >= 0 and 0 < took <= most and not unclear:
            self.ledger.charge_contexts(holding, before + took)
            self._update_context_sizes(gpu, holding)

    def measure(self, gpu: Gpu, move: Evicted | Restored) -> None:
        """Update the bandwidth with a move."""
        moved = move.bytes
        if move.hashed or move.zero or move.shared:
            # What was found to need no copy took next to no time. If that is most of the move, hashing took the rest.
            if move.copied < moved / 2:
                return
            moved = min(moved, move.copied)
        # A small move is not a good measurement, because it mostly waits for other things than the copying.
        if move.copied > MIB and move.duration > 0 and moved >= gpu.total / SMALLEST_MEASURE:
            weight = 0.3 if gpu.measured else 1.0
            gpu.bandwidth += weight * (moved / move.duration - gpu.bandwidth)
            gpu.measured = True

    def on_device(self, event: Device) -> None:
        """Apply a reading of a GPU's memory."""
        gpu = self._store(event)
        self._end_trial(gpu, event.used)
        self._measure_residue(gpu)
        most = gpu.resident + gpu.unevictable + gpu.context + gpu.left
        least = most - gpu.coming - gpu.unsettled
        most += gpu.arriving + self._uncharged_arrivals(gpu)
        before = gpu.foreign + gpu.pending_reclaim
        late = self._reclaim(gpu, least)
        self._attribute(gpu, least, most, late)
        gpu.reading.lowered = max(
            0, gpu.reading.lowered + before - gpu.foreign - gpu.pending_reclaim
        )
        held = gpu.resident + gpu.unevictable + gpu.context
        gpu.context_sizes.quietly_held = held if _is_quiet(gpu) else None
        if gpu.pending_reclaim:
            rules = self.model.rules
            longest = rules.longest_pause if self.model.queue else rules.idle_pause
            gpu.reading.pause = min(max(2 * gpu.reading.pause, rules.shortest_pause), longest)

    def _store(self, event: Device) -> Gpu:
        """Store a reading in the model; add the GPU if it is new."""
        now, rules = self.turn.now, self.model.rules
        gpu = self.model.gpus.get(event.gpu)
        if gpu is None:
            gpu = Gpu(event.gpu, event.index, event.name, 0, 0, 0, now, rules.bandwidth)
            self.model.gpus[event.gpu] = gpu
        self.turn.dirty[gpu.uuid] = gpu
        if gpu.total != event.total:
            gpu.total = event.total
            self.turn.reserve_stale[gpu.uuid] = gpu
            gpu.reserve = rules.reserve_of(event.total)
        gpu.used, gpu.read_at, gpu.reading.asked_at = event.used, now, None
        if event.name:
            gpu.name, gpu.index = event.name, event.index
        return gpu

    def _uncharged_arrivals(self, gpu: Gpu) -> int:
        """Return the bytes that may arrive although their groups are not charged for them, because the GPU pages."""
        found = 0
        for group in gpu.holders.values() if self.model.pages else ():
            share = group.shares[gpu.uuid]
            if group.floating and gpu.filling is not share and share.ceiling is None:
                found += share.promised - share.resident
        return found

    def _reclaim(self, gpu: Gpu, least: int) -> int:
        """Lower the memory pending reclaim to what a reading allows; return the part that is no longer expected back.

        It is unknown when that part will be free, so it counts as other programs' use.
        """
        gpu.pending_reclaim = max(0, min(gpu.pending_reclaim, gpu.used - least - gpu.foreign))
        if self.turn.now < gpu.exited_at + LONGEST_RECLAIM:
            return 0
        late = max(0, gpu.pending_reclaim - _held_by_returning(gpu))
        gpu.pending_reclaim -= late
        return late

    def _attribute(self, gpu: Gpu, least: int, most: int, late: int) -> None:
        """Attribute the rest of a reading to other programs. Clients hold between ``least`` and ``most`` bytes."""
        rest = gpu.used - gpu.pending_reclaim
        # An earlier reading may have missed memory that was freed and stated only since. Then the last value is too
        # low; but a value that is too high would starve a share that fills.
        unseen = gpu.reading.shrunk
        if gpu.filling is not None:
            unseen = gpu.reading.hidden + min(
                gpu.reading.shrunk - gpu.reading.hidden, gpu.reading.lowered
            )
        last = gpu.foreign + unseen + late
        gpu.reading.shrunk = gpu.reading.hidden = 0
        gpu.reading.overcharged = max(0, least - rest)
        foreign = max(0, rest - most, min(last, rest - least))
        if foreign != gpu.foreign:
            gpu.foreign = foreign
            self.turn.reserve_stale[gpu.uuid] = gpu

    def watch(self, gpu: Gpu) -> None:
        """Read a GPU again without an event, because memory pending reclaim or other programs' use matters."""
        if gpu.reading.asked_at is not None:
            if self.is_overdue(gpu):
                gpu.reading.asked_at = self.turn.now
                self.turn.decisions.append(ReadDevice(gpu.uuid))
            self.turn.recheck_at(gpu.reading.asked_at + self.model.rules.reading_timeout)
            return
        if gpu.pending_reclaim:
            pause = (
                min(gpu.reading.pause, self.model.rules.longest_pause)
                if self.model.queue
                else gpu.reading.pause
            )
        else:
            pause = self.model.rules.foreign_pause
        if gpu.read_at + pause <= self.turn.now:
            self.turn.request_reading(gpu)
        self.turn.recheck_at(
            max(gpu.read_at + pause, self.turn.now + self.model.rules.shortest_pause)
        )

    def ensure_fresh(self, wait: Wait) -> bool:
        """Whether the readings that a grant depends on are fresh; if not, ask for them."""
        fresh = True
        for gpu in wait.gpus.values():
            if self._matters(wait, gpu):
                fresh = self.is_fresh(gpu) and fresh
        return fresh

    def _matters(self, wait: Wait, gpu: Gpu) -> bool:
        """Whether serving a wait takes more of a GPU than is known to be free without a fresh reading.

        If the spare part is used after all and has no room, the restore fails and is tried again. After a process
        exited or hibernated, a reading is needed, because the process may have held, or left, more than is known.
        """
        if wait.grow is None and not (
            gpu.pending_reclaim or gpu.reading.shrunk or gpu.read_at == -math.inf
        ):
            return wait.group.shares[gpu.uuid].exceeds_spare
        return self.model.need(wait, gpu) > 0

    def is_fresh(self, gpu: Gpu, age: float | None = None) -> bool:
        """Whether the last reading is recent enough to decide on it; if not, request one."""
        if (
            self.turn.now - gpu.read_at <= (self.model.rules.fresh if age is None else age)
            and not gpu.reading.shrunk
        ):
            return True
        if self.is_overdue(gpu):
            return True
        self.turn.request_reading(gpu)
        return False

    def is_overdue(self, gpu: Gpu) -> bool:
        """Whether a requested reading is no longer waited for."""
        return (
            gpu.reading.asked_at is not None
            and self.turn.now - gpu.reading.asked_at >= self.model.rules.reading_timeout
        )


def _is_quiet(gpu: Gpu) -> bool:
    """Whether no memory that clients state here may be about to change."""
    moving = (
        gpu.leaving or gpu.unsettled or gpu.arriving or gpu.reading.shrunk or gpu.pending_reclaim
    )
    return not moving


def _held_by_returning(gpu: Gpu) -> int:
    """Return the bytes that clients of the previous scheduler hold, as far as it knew."""
    return sum(u.resident + u.unevictable + u.context for u in gpu.returning.values())
