# SPDX-License-Identifier: BSD-3-Clause
"""Memory sums: what each client, group and GPU holds and is promised. Only ``Ledger`` changes them."""

from __future__ import annotations

from dataclasses import dataclass

from .messages import Usage
from .model import Client, Gpu, Group, Holding, Model, Share, Tiers, charge_for_contexts
from .turn import Turn, mark_shares

#: The figures that a share sums over its holdings, and a GPU over its shares.
_SUMS = ("promised", "resident", "unevictable", "context", "left", "lost")


@dataclass(slots=True, eq=False)
class Ledger:
    """Keeps the sums of holdings, shares and GPUs (``model/``)."""

    model: Model
    turn: Turn

    def open(self, holding: Holding) -> None:
        """Begin to count what a client holds on a GPU."""
        holding.share.gpu.hibernated += holding.client.gone
        holding.share.oversubscribing += holding.client.oversubscribes
        self.set_unavailable(holding, holding.client.silent)

    def close(self, holding: Holding) -> None:
        """Take all that a client holds on a GPU out of the sums."""
        self.add_evicting(holding, -holding.evicting)
        self.add_unsettled(holding, -holding.unsettled)
        self.account(holding, 0, 0, 0, 0)
        self.set_spare(holding, 0)
        self.set_unavailable(holding, False)
        holding.share.gpu.hibernated -= holding.client.gone
        holding.share.oversubscribing -= holding.client.oversubscribes
        holding.took = 0
        self.charge_left(holding)

    def set_unavailable(self, holding: Holding, lost: bool) -> None:
        """Set whether a holding's memory is unavailable. Only this changes these counts."""
        more = lost - holding.lost
        holding.lost = lost
        holding.share.lost += more
        holding.share.gpu.lost += more
        if more:
            mark_shares(holding.share.group)

    def remove_contexts(self, client: Client) -> None:
        """Take a client's contexts off its GPUs. What readings show beyond the residue is other programs' use."""
        client.gone = True
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            fixed = holding.unevictable + holding.context
            if fixed and gpu.context_sizes.departures is not None:
                gpu.context_sizes.departures.count += 1
                gpu.context_sizes.departures.bytes += fixed
                gpu.context_sizes.departures.inexact = (
                    gpu.context_sizes.departures.inexact or not holding.measured
                )
            # No reading has counted unsettled bytes as room for other groups.
            gpu.reading.shrunk += max(0, fixed - holding.unsettled)
            gpu.hibernated += 1
            self.add_unsettled(holding, -holding.unsettled)
            self.account(holding, holding.promised, holding.resident, 0, 0)
            self.charge_residue(holding)
            self.turn.require_reading(gpu)

    def charge_residue(self, holding: Holding) -> None:
        """Charge the residue of a hibernated client on its GPU."""
        client, gpu = holding.client, holding.share.gpu
        needs = client.needs
        there = client.gone and needs is not None and needs.gpu == gpu.uuid
        if needs is not None and there and client.home in ("", gpu.uuid):
            holding.took = needs.context
        else:
            holding.took = 0
        self.charge_left(holding)

    def charge_left(self, holding: Holding) -> None:
        """Charge a client's residue. Only this changes these sums."""
        share = holding.share
        more = share.gpu.context_sizes.leaves(holding.took) - holding.left
        holding.left += more
        share.left += more
        share.gpu.left += more

    def return_contexts(self, client: Client) -> None:
        """Charge what a client needs to be awake, which was admitted and may be on its GPU from now on."""
        client.gone = False
        for holding in client.holdings.values():
            gpu = holding.share.gpu
            gpu.hibernated -= 1
            if gpu.context_sizes.counts:
                self.charge_residue(holding)
            # Otherwise, its residue stays charged until the wake has ended: the restore may need all of the room.
            if gpu.context_sizes.departures is not None:
                gpu.context_sizes.departures.inexact = True
        needs = client.needs
        if needs is not None and needs.gpu in client.holdings:
            holding = client.holdings[needs.gpu]
            self.add_unsettled(holding, needs.unevictable + needs.context)
            self.account(
                holding, holding.promised, holding.resident, needs.unevictable, needs.context
            )

    def add_evicting(self, holding: Holding, more: int) -> None:
        """Change the bytes of a holding that are being evicted."""
        holding.evicting += more
        holding.share.evicting += more
        holding.share.gpu.leaving += more
        mark_shares(holding.share.group)

    def note_unstated_eviction(self, holding: Holding, size: int) -> None:
        """Note memory that may have left while its client was silent: readings put other programs' use too low."""
        gpu = holding.share.gpu
        gpu.reading.shrunk += min(size, gpu.reading.lowered)

    def note_overcharge(self, gpu: Gpu, size: int) -> None:
        """Note that contexts take less than their charge, which may have hidden other programs' use."""
        shown = min(size, gpu.reading.overcharged)
        gpu.reading.overcharged -= shown
        gpu.reading.hidden += size - shown
        gpu.reading.shrunk += size

    def add_unsettled(self, holding: Holding, more: int) -> None:
        """Change the unevictable bytes that were admitted but may not be allocated yet."""
        holding.unsettled += more
        holding.share.gpu.unsettled += more

    def apply_usage(
        self, holding: Holding, usage: Usage, moved: bool = False, expected: int = 0
    ) -> None:
        """Apply a client's statement of what it holds; ``expected`` bytes were ordered to leave."""
        # The report of a move may have crossed a promise on its way.
        promised, unevictable, stated = usage.promised, usage.unevictable, usage.context
        if moved:
            promised = max(promised, holding.promised)
        crossed = moved and holding.unsettled > 0
        if crossed:
            unevictable, stated = max(unevictable, holding.unevictable), max(stated, holding.stated)
        needs = holding.client.needs
        if holding.client.gone and needs is not None and needs.gpu == usage.gpu:
            needs.unevictable = unevictable
            if stated != holding.stated:
                # Its context may have taken more than the client can measure.
                needs.context = max(needs.context, stated)
        context = charge_for_contexts(holding, stated)
        if holding.client.gone:
            unevictable = context = 0
        before = holding.resident + holding.unevictable + holding.context
        # It was freed some time ago, so the last reading may already have been without it.
        freed = before - usage.resident - unevictable - context
        holding.share.gpu.reading.shrunk += max(0, freed - expected)
        holding.host = usage.host
        holding.tiers = Tiers(usage.clean, usage.shared, usage.disk)
        if not crossed:
            self.add_unsettled(holding, -holding.unsettled)
        self.set_stated_contexts(holding, stated)
        self.account(holding, promised, usage.resident, unevictable, context)
        trial = holding.share.gpu.context_sizes.trial
        if trial is not None and trial.client == holding.client.number and not crossed:
            trial.begun = True
            self.turn.request_reading(holding.share.gpu)
        self.set_spare(holding, min(holding.spare, holding.promised - holding.resident))

    def set_stated_contexts(self, holding: Holding, stated: int) -> None:
        """Note a client's statement of its contexts, from which their charge follows."""
        if stated != holding.stated:
            holding.stated, holding.measured, holding.beyond = stated, False, 0

    def charge_contexts(self, holding: Holding, size: int) -> int:
        """Charge a client for the measured size of its contexts; return the difference."""
        size = min(max(1, size), holding.share.gpu.total)
        more = size - holding.context
        self.account(holding, holding.promised, holding.resident, holding.unevictable, size)
        return more

    def account(
        self, holding: Holding, promised: int, resident: int, unevictable: int, context: int
    ) -> None:
        """Set what a client holds. Only this changes these sums."""
        share = holding.share
        gpu, used = share.gpu, share.used
        if (promised, unevictable, context) != (
            holding.promised,
            holding.unevictable,
            holding.context,
        ):
            self.turn.reserve_stale[gpu.uuid] = gpu
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
        mark_shares(share.group)
        more = unevictable - holding.unevictable
        share.unevictable += more
        gpu.unevictable += more
        holding.unevictable = unevictable
        more = context - holding.context
        share.context += more
        gpu.context += more
        holding.context = context
        self.turn.quotas_stale = self.turn.quotas_stale or share.used != used
        self.charge_share(share)

    def set_spare(self, holding: Holding, spare: int) -> None:
        """Set the part of a promise that was never allocated. Only this changes these sums."""
        more = spare - holding.spare
        holding.share.spare += more
        holding.share.gpu.unused += more
        holding.spare = spare

    def let_oversubscribe(self, client: Client) -> None:
        """Let a client hold more than a GPU has from now on."""
        client.oversubscribes = True
        for holding in client.holdings.values():
            holding.share.oversubscribing += 1

    def charge_share(self, share: Share) -> None:
        """Set the room that is reserved for the memory that a lease brings in. Only this changes it."""
        share.gpu.victims.changed[share.number] = share
        coming = arriving(share)
        share.gpu.arriving += coming - share.arriving
        share.arriving = coming

    def charge(self, group: Group) -> None:
        """Set this reserved room on all GPUs of a group."""
        for share in group.shares.values():
            self.charge_share(share)

    def distribute(self, share: Share, give: int) -> None:
        """Allot more room to the holdings of a share."""
        # First memory that must be on the GPU; then clients that were granted first, since the others have not asked
        # yet.
        for holding in sorted(
            share.holdings.values(), key=lambda h: (h.client.oversubscribes, h.client.lease is None)
        ):
            part = min(give, holding.promised - holding.room)
            holding.room += part
            give -= part
        self.charge_share(share)

    def validate(self) -> None:
        """Check that every sum equals the sum of its parts.

        Raises
        ------
        AssertionError
            A sum is wrong; the text names it.
        """
        promised = 0
        for gpu in self.model.gpus.values():
            holdings = [h for share in gpu.shares.values() for h in share.holdings.values()]
            for share in gpu.shares.values():
                _validate_share(share)
            promised += gpu.promised
            where = f"of GPU {gpu.uuid}"
            for name in (*_SUMS, "arriving"):
                total = sum(getattr(share, name) for share in gpu.shares.values())
                _agree(f"{name} {where}", getattr(gpu, name), total)
            leaving = sum(share.evicting for share in gpu.shares.values())
            _agree(f"leaving {where}", gpu.leaving, leaving)
            _agree(f"unsettled {where}", gpu.unsettled, sum(h.unsettled for h in holdings))
            _agree(f"unused {where}", gpu.unused, sum(h.spare for h in holdings))
            gone = sum(h.client.gone for h in holdings)
            _agree(f"hibernated {where}", gpu.hibernated, gone)
        _agree("promised of all GPUs", self.model.promised, promised)


def arriving(share: Share) -> int:
    """Return the room that is reserved for the memory that a lease brings in."""
    if share.gpu.filling is share or share.ceiling is not None:
        return sum(h.room for h in share.holdings.values()) - share.resident
    group = share.group
    return share.promised - share.resident if group.lease is not None and not group.floating else 0


def _validate_share(share: Share) -> None:
    holdings = share.holdings.values()
    where = f"of {share.group.id} on GPU {share.gpu.uuid}"
    for name in (*_SUMS, "evicting", "spare"):
        _agree(f"{name} {where}", getattr(share, name), sum(getattr(h, name) for h in holdings))
    oversubscribing = sum(h.client.oversubscribes for h in holdings)
    _agree(f"oversubscribing {where}", share.oversubscribing, oversubscribing)
    _agree(f"arriving {where}", share.arriving, arriving(share))


def _agree(name: str, kept: int, found: int) -> None:
    if kept != found:
        raise AssertionError(f"the sum {name} is {kept}, but its parts add up to {found}")
