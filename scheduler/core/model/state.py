# SPDX-License-Identifier: BSD-3-Clause
"""The whole state of the core, in one object."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ..messages import Awaited, Grow, Hibernatable, Notice, Sign
from ..rules import Rules
from .entities import Client, Gpu, Group, Holding, Share, Wait


@dataclass(slots=True, eq=False)
class Model:
    """The whole state of the core."""

    #: The settings in effect.
    rules: Rules
    gpus: dict[str, Gpu] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    clients: dict[int, Client] = field(default_factory=dict)
    #: The waits, in order; and the waits of groups that use no GPU yet.
    queue: list[Wait] = field(default_factory=list)
    nowhere: list[Wait] = field(default_factory=list)
    #: Groups that hold a lease; and groups that hold one while room is still being made.
    leased: dict[str, Group] = field(default_factory=dict)
    filling: dict[str, Group] = field(default_factory=dict)
    #: When each hint was given that still counts, by group and kind. ``UseLikelihood`` changes it.
    hinted: dict[str, dict[Sign, float]] = field(default_factory=dict)
    #: Groups that are getting ready before they use the GPU, or are ready; and groups with a reservation.
    prefetching: dict[str, Group] = field(default_factory=dict)
    reserving: dict[str, Group] = field(default_factory=dict)
    #: Evictions without an answer yet, by serial: the holding, and the number of bytes.
    evictions: dict[int, tuple[Holding, int]] = field(default_factory=dict)
    #: Groups whose memory is being evicted because they hibernate; and all groups that are about to hibernate.
    evacuating: dict[str, Group] = field(default_factory=dict)
    hibernating: dict[str, Group] = field(default_factory=dict)
    #: Whether processes can hibernate on this machine, None: not known yet; and the seconds that a wake takes without
    #: moves, None: not measured yet.
    hibernatable: Hibernatable | None = None
    wake_seconds: float | None = None
    #: Clients of the previous scheduler that have not attached yet, by their numbers in its list.
    awaited: dict[int, Awaited] = field(default_factory=dict)
    #: Bytes of host memory that swapped data may take; and bytes of all promises.
    host_budget: int = 0
    promised: int = 0
    #: Bytes that the clients' statements of host memory count more than once, when this was last measured.
    host_shared: int = 0
    #: Bytes that may be on the disk, 0: no more data goes there; and bytes of each client that are there.
    disk_size: int = 0
    on_disk: dict[int, int] = field(default_factory=dict)
    #: Clients whose memory cannot go there, because they have no place in a pool.
    off_disk: frozenset[int] = frozenset()
    #: Groups that are agents'.
    agents: dict[str, Group] = field(default_factory=dict)
    #: Whether any client has memory that the GPU may page.
    pages: bool = False
    #: The group in front of each user.
    focus: dict[str, str] = field(default_factory=dict)
    notices: deque[tuple[float, Notice]] = field(default_factory=lambda: deque(maxlen=50))
    #: The administrators' message to all users; empty: none.
    maintenance: str = ""
    #: The last numbers that were assigned to leases; to groups and waits; to orders; and to shares.
    last_lease: int = 0
    last_number: int = 0
    last_serial: int = 0
    last_share: int = 0

    def host_room(self) -> int:
        """Return the host memory, and the room on the disk, that is still unused."""
        held = sum(h.host for client in self.clients.values() for h in client.holdings.values())
        return max(0, self.host_budget + self.disk_size - held + self.host_saved())

    def may_be_on_disk(self, client: Client) -> bool:
        """Whether evicted memory of a client can go to the disk."""
        return (
            client.backend == "swap"
            and not client.oversubscribes
            and client.number not in self.off_disk
        )

    def host_saved(self) -> int:
        """Return the bytes of host memory that clients state more than once, because equal data is stored once."""
        if not self.host_shared:
            return 0
        stated = [
            max((h.tiers.shared for h in client.holdings.values()), default=0)
            for client in self.clients.values()
        ]
        # What the client with the most shares is stored at least once. The total may be outdated.
        return min(self.host_shared, sum(stated) - max(stated, default=0))

    def need(self, wait: Wait, gpu: Gpu) -> int:
        """Return the room that serving a wait takes on a GPU."""
        group = wait.group
        if wait.grow is None:
            share = group.shares[gpu.uuid]
            return share.missing if group.filling is wait else share.need
        if wait.wakes and wait.for_lease:
            # Awake without its lease, it would only occupy room that running groups could use.
            fixed = left = 0
            for c in group.clients.values():
                if c.stage == "waiting" and c.needs is not None and c.needs.gpu == gpu.uuid:
                    fixed += c.needs.unevictable + c.needs.context
                    left += c.holdings[gpu.uuid].left
            fixed = max(0, fixed - gpu.freed_without(left))
            need = fixed + group.shares[gpu.uuid].need
            if need - gpu.free <= self.host_room():
                return need
            # The host cannot hold all that would have to leave as well. Once awake, the group fills piece by piece.
            return fixed
        more, fixed = growth(self.clients[wait.grow.client].holdings[gpu.uuid], wait.grow)
        return fixed + (more if group.lease is not None and not group.floating else 0)


def charge_for_contexts(holding: Holding, stated: int) -> int:
    """Return the charge for contexts of this stated size."""
    if stated == holding.stated:
        return holding.context
    sizes, more = holding.share.gpu.context_sizes, stated - holding.stated
    charged = holding.context + (sizes.charge(more) if more > 0 else -sizes.charge(-more))
    return max(1, charged) if stated else 0


def growth(holding: Holding, event: Grow) -> tuple[int, int]:
    """Return how many more bytes are requested: of evictable memory, and of unevictable memory."""
    least = event.least
    context = least.context
    if not holding.client.gone:
        context = charge_for_contexts(holding, max(holding.stated, context))
    fixed = max(0, least.unevictable - holding.unevictable) + max(0, context - holding.context)
    fixed -= holding.share.gpu.freed_without(holding.left)
    return max(0, least.promised - holding.promised), max(0, fixed)


def staying(holding: Holding, event: Grow) -> int:
    """Return by how many bytes the residue of the client would grow if it hibernated after this growth."""
    gpu = holding.share.gpu
    context = charge_for_contexts(holding, max(holding.stated, event.least.context))
    return gpu.context_sizes.leaves(max(context, holding.context)) - gpu.context_sizes.leaves(
        holding.context
    )


def is_managed(group: Group) -> bool:
    """Whether all memory of a group is managed, so that the GPU pages in what the group lacks."""
    return all(c.backend == "managed" for c in group.clients.values())


def excess(gpu: Gpu) -> int:
    """Return by how many bytes all allocations, resident or not, exceed the GPU; negative if all fits."""
    held = gpu.promised - gpu.unused + gpu.unevictable + gpu.context + gpu.left
    return held + gpu.foreign + gpu.pending_reclaim - gpu.total


def staying_contexts(share: Share) -> int:
    """Return the bytes of contexts that stay on the GPU while the group hibernates."""
    leaves = share.gpu.context_sizes.leaves
    return sum(h.left if h.client.gone else leaves(h.context) for h in share.holdings.values())
