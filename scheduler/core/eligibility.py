# SPDX-License-Identifier: BSD-3-Clause
"""Finds which groups may hibernate, and how much room that makes."""

from __future__ import annotations

from dataclasses import dataclass

from .model import Client, Gpu, Group, Model, Share, Wait
from .turn import Turn

#: More unevictable bytes than this, besides contexts, keep a process from hibernating
#: (csrc/interposer/hibernate/hibernate.c).
MOST_UNEVICTABLE = 256 << 20
NOTHING = "nothing"
#: The codes of reasons that pass by themselves.
PASSING = frozenset({"busy", "capture", "stuck", "debugger", "descriptors"})


@dataclass(slots=True, eq=False)
class Eligibility:
    """Finds out which groups may hibernate. It changes nothing."""

    model: Model
    turn: Turn

    @property
    def able(self) -> bool:
        """Whether processes can hibernate on this machine."""
        return self.model.hibernatable is not None and self.model.hibernatable.able

    def may_press(self) -> bool:
        """Whether groups hibernate for others that lack room."""
        return self.able and self.model.rules.hibernate_after is not None

    def makes_way(self, group: Group, unevictable: int = 0) -> bool:
        """Whether a group would hibernate for others if it had this many more unevictable bytes besides contexts."""
        if group.silent or group.hibernation is not None:
            return group.hibernation is not None
        if group.unfit is not None:
            return group.unfit.code in PASSING or group.unfit.until <= self.turn.now
        return unfit_code(group, unevictable) in ("", NOTHING)

    def idle_since(self, group: Group) -> float | None:
        """Return since when a group has been idle; None: it has work, or may have any moment."""
        if group.busy or group.cells or group.silent or group.yielding or group.restoring:
            return None
        if group.reserved:
            return None
        for share in group.shares.values():
            if any(wait.group is group for wait in share.gpu.queue):
                return None
            if any(d.grow.client in group.clients for d in share.gpu.delayed_growth):
                return None
        if group.wait is not None:
            return None
        since = group.idle_since if group.away_since is None else group.away_since
        return max(since, group.active_at)

    def hibernating_on(self, gpu: Gpu) -> list[Group]:
        """Return the groups that are about to hibernate and use a GPU."""
        return [g for g in self.model.hibernating.values() if gpu.uuid in g.shares]

    def can_leave(self, share: Share) -> bool:
        """Whether a group may hibernate by now, whatever it does, and would then leave room."""
        group = share.group
        if group.hibernation is not None or group.silent or not freed_by(share.gpu, [share]):
            return False
        if group.unfit is not None and group.unfit.until > self.turn.now:
            self.turn.recheck_at(group.unfit.until)
            return False
        return not self.waits_for_growth(group) and unfit_code(group) == ""

    def waits_for_growth(self, group: Group) -> bool:
        """Whether a client waits inside an allocation, so that it cannot park."""
        for share in group.shares.values():
            if any(w.group is group and w.grow is not None for w in share.gpu.queue):
                return True
            if any(d.grow.client in group.clients for d in share.gpu.delayed_growth):
                return True
        return False

    def departing(self, head: Wait, gpu: Gpu, without: Group) -> int:
        """Return the room, besides their memory, that all other groups would leave if they hibernated for the head."""
        if not self.may_press():
            return 0
        barrier = self.model.last_lease if head.barrier is None else head.barrier
        leaving = []
        for share in gpu.shares.values():
            group = share.group
            if group is head.group or group is without:
                continue
            if group.departs or (
                (group.lease is None or group.turn <= barrier) and self.can_leave(share)
            ):
                leaving.append(share)
        return freed_by(gpu, leaving)


def with_context(group: Group) -> list[Client]:
    """Return the clients of a group that have something to free."""
    return [c for c in group.clients.values() if used_gpus(c)]


def freed_by(gpu: Gpu, shares: list[Share]) -> int:
    """Return the bytes of a GPU that are free only once groups hibernate.

    Until residues were measured, they are assumed to be 0, and hibernation is tried to measure them.
    """
    stays = 0
    if gpu.context_sizes.residue is not None:
        stays = sum(
            gpu.context_sizes.leaves(h.context) for share in shares for h in share.holdings.values()
        )
    more = gpu.uncovered(gpu.left + stays) - gpu.uncovered(gpu.left)
    return sum(share.unevictable + share.context for share in shares) - more


def used_gpus(client: Client) -> list[str]:
    """Return the GPUs on which a client has anything."""
    return [u for u, h in client.holdings.items() if h.promised + h.unevictable + h.context]


def unfit_code(group: Group, unevictable: int = 0) -> str:
    """Return why a group cannot hibernate, as far as is known without asking it; empty: it may.

    ``unevictable``: unevictable bytes besides contexts that it would have in addition.
    """
    clients = with_context(group)
    for client in clients:
        if client.backend != "swap":
            return "managed" if client.backend == "managed" else "plain"
        if len(used_gpus(client)) > 1:
            return "gpus"
        if unevictable + sum(h.unevictable for h in client.holdings.values()) > MOST_UNEVICTABLE:
            return "unevictable"
    # Each rank is on one GPU. Processes that wait for each other there cannot be locked one by one.
    if len({gpu for client in clients for gpu in used_gpus(client)}) > 1:
        return "nccl"
    if not any(s.unevictable + s.context for s in group.shares.values()):
        return NOTHING
    return ""
