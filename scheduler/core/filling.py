# SPDX-License-Identifier: BSD-3-Clause
"""Leases that are granted before their room is there (``core.py``, "Filling")."""

from __future__ import annotations

from .collectives import Stepper
from .messages import ALL, Room
from .model import Client, Gpu, Group, Share, Wait
from .planner import Plan


class Filler(Stepper):
    """Hands out the room that others leave."""

    def _may_fill(self, wait: Wait, plan: Plan) -> bool:
        """Whether all that the head lacks is on its way out: then it need not wait for the last byte of it."""
        if wait.grow is not None or wait.group.lease is not None or self._floats(wait.group):
            return False
        gpus = self._gpus_of(wait)
        if plan.later or plan.revoke or plan.draining or plan.serialised:
            return False
        if any(gpu.filling is not None for gpu in gpus):
            return False
        return self._read(wait) and all(
            self.need(wait, gpu) <= gpu.free + gpu.coming - wait.group.shares[gpu.uuid].leaving
            for gpu in gpus
        )

    def _fill(self, gpus: list[Gpu], due: dict[str, float | None]) -> list[Gpu]:
        """Give what room there is to those that fill; return the GPUs where more is not to be had now."""
        starved: list[Gpu] = []
        if not self.model.filling:
            return starved
        groups = {g.filling.group.id: g.filling.group for g in gpus if g.filling}
        for group in groups.values():
            if group.yielding:
                continue
            for share in group.shares.values():
                self._allot(share)
            for client in group.granted.values():
                self._tell_room(client)
            if not any(share.missing for share in group.shares.values()):
                self._end_filling(group)
                continue
            first = next(iter(group.shares))
            self.turn.again = due[first]
            self._make_more_room(group, starved)
            due[first] = self.turn.again
        return starved

    def _allot(self, share: Share) -> None:
        give = min(share.gpu.free, share.missing)
        if give <= 0 or not self._is_fresh(share.gpu, self.model.rules.fresh_for_growth):
            return
        share.group.filled_at = self.turn.now
        self._distribute(share, give)

    def _distribute(self, share: Share, give: int) -> None:
        # What has to be on the GPU; then those that were granted first: the others have not asked yet.
        for holding in sorted(
            share.holdings.values(), key=lambda h: (h.client.oversubscribes, h.client.lease is None)
        ):
            part = min(give, holding.promised - holding.room)
            holding.room += part
            give -= part
        self._charge_share(share)

    def _tell_room(self, client: Client, anew: bool = False) -> None:
        fills = client.group.filling is not None
        if client.lease is None or not (fills or client.oversubscribes):
            return
        for holding in client.holdings.values():
            share = holding.share
            limited = share.ceiling is not None and client.oversubscribes
            if anew:
                holding.told = holding.resident if holding.promised or limited else ALL
                holding.told_last = False
            room = ALL if holding.room >= holding.promised and not limited else holding.room
            last = client.oversubscribes and share.gpu.filling is not share
            if room > holding.told or (last and (room != holding.told or not holding.told_last)):
                holding.told, holding.told_last = room, last
                self.turn.decisions.append(
                    Room(client.number, client.lease, share.gpu.uuid, room, last)
                )

    def _end_filling(self, group: Group) -> None:
        """All the room is there, or the lease is not: from now on the share is charged as any other."""
        if group.filling is None:
            return
        for share in group.shares.values():
            if share.gpu.filling is share:
                share.gpu.filling = None
            for holding in share.holdings.values():
                if share.ceiling is None or not holding.client.oversubscribes:
                    holding.room = holding.promised
        if not group.yielding:
            for client in group.granted.values():
                self._tell_room(client)
        group.filling = None
        self.model.filling.pop(group.id, None)
        self._charge(group)

    def _make_more_room(self, group: Group, starved: list[Gpu]) -> None:
        """See to it that what one that fills still lacks is on its way: evictions may fail or fall short."""
        assert group.filling is not None
        if self._is_on_its_way(group):
            self.turn.look_at(group.filled_at + self.model.rules.filling_patience)
            return
        plan = self.plan(group.filling)
        patience = self.model.rules.filling_patience
        if plan.short:
            starved += [gpu for gpu, _ in plan.short]
            if any(gpu.ghosts < lack for gpu, lack in plan.short):
                patience = self.model.rules.starving_patience
        elif plan.later or plan.revoke or plan.draining:
            # It must not keep room for long that somebody else could use.
            patience = self.model.rules.starving_patience
            self._carry_out(plan)
        else:
            self._carry_out(plan)
        end = group.filled_at + patience
        if self.turn.now >= end:
            group.stalled = True
            self._revoke(group)
        else:
            self.turn.look_at(end)

    def _is_on_its_way(self, group: Group) -> bool:
        """Whether all that one that fills still lacks is leaving, and nobody else's lease with it."""
        if (
            self.turn.now >= group.filled_at + self.model.rules.filling_patience
            or self.one_at_a_time
        ):
            return False
        return all(
            share.missing <= share.gpu.free + share.gpu.coming - share.leaving
            and all(other.overdue for other in share.gpu.yielding.values())
            for share in group.shares.values()
        )
