# SPDX-License-Identifier: BSD-3-Clause
"""Finds requests that could never be served because of limits: of a GPU, of host memory, and of quotas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .eligibility import Eligibility
from .foreign_use import outside
from .messages import Growth, HostMemory
from .model import Client, Gpu, Model, Share, staying_contexts
from .rules import MIB
from .turn import Turn
from .usage import GpuTime

GIB = 1 << 30
#: Seconds for which an earlier amount of host memory counts, because a shortage may be brief.
LATELY = 60.0


#: Limits that may rise by themselves, so that a refused request can be served: other programs' memory, or host memory.
Relief = Literal["others", "host"]


class Demand(NamedTuple):
    """Memory that a client requests on one GPU, in addition to what it has."""

    share: Share
    client: Client
    #: Evictable bytes, and others: unevictable ones and contexts.
    more: int
    fixed: int
    #: Whether evictable memory may exceed the GPU.
    over: bool = False
    #: The part of ``fixed`` that is not for contexts.
    unevictable: int = 0
    #: The part of ``fixed`` that remains on the GPU while the client hibernates.
    stays: int = 0

    @property
    def bytes(self) -> int:
        """All requested bytes."""
        return self.more + self.fixed


class Refusal(NamedTuple):
    """Why a request could never be served."""

    status: Growth
    #: The limit that may rise by itself; None: there is none, so waiting is of no use.
    relief: Relief | None
    #: The sentence for the user.
    text: str


@dataclass(slots=True, eq=False)
class Limits:
    """Finds out whether a request could ever be served."""

    model: Model
    turn: Turn
    times: GpuTime
    eligibility: Eligibility

    #: The largest recent budget of host memory, and until when it counts.
    _host_best: tuple[int, float | None] = field(default=(0, None), init=False)

    def refusal(self, demand: Demand) -> Refusal | None:
        """Return why a request could never be served; None: it can be."""
        if demand.bytes <= 0:
            return None
        return (
            self._check_gpu(demand)
            or self._check_promises(demand)
            or self._check_slot(demand)
            or self._check_gpu_quota(demand)
            or self._check_preference(demand)
            or self._check_memory_quota(demand)
            or self._check_host_quota(demand)
            or self._check_backing(demand)
        )

    def _check_gpu(self, demand: Demand) -> Refusal | None:
        """Refuse a group that would need more than the GPU has for one group."""
        share, gpu = demand.share, demand.share.gpu
        asked = demand.fixed if demand.over else demand.bytes
        yields = share.oversubscribing and (demand.over or demand.more <= 0)
        held = (share.floor if yields else share.promised) + share.unevictable + share.context
        others = gpu.unevictable - share.unevictable + gpu.context - share.context
        others += gpu.uncovered(gpu.left - share.left)
        limit = gpu.total - gpu.reserve - others - gpu.foreign
        theirs = sum(u.unevictable + u.context for u in gpu.returning.values())
        if gpu.hibernated or (held + asked > limit and self.eligibility.may_press()):
            limit += others - self._fixed_beside(share)
        limit -= theirs
        if held + asked <= limit:
            return None
        text = (
            f"{_amount(asked)} more would make a total of {_amount(held + asked)}, "
            f"but one kernel can use at most {_amount(max(0, limit))} of this GPU"
        )
        if outside(gpu):
            text += f" (other programs hold {_amount(outside(gpu))})"
        return Refusal("device", _others(held + asked <= limit + gpu.foreign + theirs), text)

    def _check_promises(self, demand: Demand) -> Refusal | None:
        """Refuse unevictable bytes that would take the room that another group was promised."""
        if demand.fixed <= 0:
            return None
        unserved = self.crowded_out(demand.share, demand.fixed, demand.unevictable, demand.stays)
        if unserved is None:
            return None
        foreign, text = unserved
        return Refusal("device", _others(foreign), text)

    def _check_slot(self, demand: Demand) -> Refusal | None:
        """Refuse a group that would exceed the slot (of Kubernetes, or of the kernelspec) that its clients state."""
        group = demand.share.group
        cap = min((c.cap for c in group.clients.values() if c.cap), default=0)
        total = sum(s.promised + s.unevictable for s in group.shares.values())
        if not cap or total + demand.bytes <= cap:
            return None
        text = (
            f"{_amount(demand.bytes)} more would make a total of {_amount(total + demand.bytes)}, "
            f"but this kernel is limited to {_amount(cap)}"
        )
        return Refusal("cap", None, text)

    def _check_gpu_quota(self, demand: Demand) -> Refusal | None:
        """Refuse a group that would alone use more GPUs than its user or team may use at once."""
        share = demand.share
        quota = None if share.used else self._exceeded_gpu_quota(share)
        if quota is None:
            return None
        whose, gpus = quota
        text = (
            f"{_named(whose)} may use {gpus} {'GPU' if gpus == 1 else 'GPUs'} at once, and this kernel "
            f"already uses as many; select {'it' if gpus == 1 else 'from them'} with CUDA_VISIBLE_DEVICES"
        )
        return Refusal("cap", None, text)

    def _check_preference(self, demand: Demand) -> Refusal | None:
        """Refuse a group that would exceed the size to which its user limited it."""
        most, promised = demand.share.group.preferences.memory, demand.share.promised
        if not most or demand.more <= 0 or promised + demand.more <= most:
            return None
        text = (
            f"{_amount(demand.more)} more would make a total of {_amount(promised + demand.more)}, but this kernel is "
            f"limited to {_amount(most)} on each GPU (remove the limit with `%gpushare memory off`)"
        )
        return Refusal("cap", None, text)

    def _check_memory_quota(self, demand: Demand) -> Refusal | None:
        """Refuse memory with which the groups of a user or team would exceed its cap for each GPU."""
        share, more = demand.share, demand.more
        room = self.times.memory_room(share.group, share.gpu) if more > 0 else None
        if room is None or more <= room.bytes:
            return None
        text = (
            f"{_amount(more)} more would exceed the memory limit of {_named(room.whose)} on each GPU "
            f"by {_amount(more - max(0, room.bytes))}"
        )
        return Refusal("cap", None, text)

    def _check_host_quota(self, demand: Demand) -> Refusal | None:
        """Refuse memory with which the groups of a user or team would exceed its cap for all GPUs together."""
        more, groups = demand.more, self.model.groups.values()
        room = self.times.host_room(demand.share.group, groups) if more > 0 else None
        if room is None or more <= room.bytes:
            return None
        text = (
            f"{_amount(more)} more would exceed the host memory quota of {_named(room.whose)} by "
            f"{_amount(more - max(0, room.bytes))}, because all GPU memory may have to be evicted to the host"
        )
        return Refusal("host", None, text)

    def _check_backing(self, demand: Demand) -> Refusal | None:
        """Refuse memory with which all footprints would exceed what GPU, host memory and disk hold together."""
        gpu, more, fixed = demand.share.gpu, demand.more, demand.fixed
        backed = self._backed(demand, self.model.host_budget) - fixed
        theirs = sum(u.promised for u in gpu.returning.values())
        promised = gpu.promised + theirs
        if promised + more <= backed:
            return None
        disk = ""
        if self.model.disk_size and self.model.may_be_on_disk(demand.client):
            disk = f" ({_amount(self.model.disk_size)} on disk)"
        text = (
            f"{_amount(demand.bytes)} more would make a total of {_amount(promised + demand.bytes)} for all kernels, "
            f"but the GPU and host memory together can hold only {_amount(max(0, backed + fixed))}{disk}"
        )
        relief = _others(promised + more <= backed + gpu.foreign + theirs)
        if relief is None and promised + more <= self._backed(demand, self._host_lately()) - fixed:
            relief = "host"
        return Refusal("host", relief, text)

    def _fixed_beside(self, share: Share) -> int:
        """Return the unevictable bytes of other groups on a GPU; of the group itself, what is hibernated.

        Of the groups that can hibernate, only the one that needs the most counts, since all others can make way for it
        except for their residues.
        """
        gpu = share.gpu
        fixed = stays = 0
        movable: list[tuple[int, int]] = []
        for other in gpu.shares.values():
            held = other.unevictable + other.context
            gone = other.asleep
            if other is share:
                fixed += gone  # which it will need in addition to the request
            elif gone or (held and self._can_give_way(other)):
                stays += staying_contexts(other)
                movable.append((held + gone, staying_contexts(other)))
            else:
                fixed += held
        return fixed + max(
            (needs + gpu.uncovered(stays - without) for needs, without in movable), default=0
        )

    def crowded_out(
        self, share: Share, fixed: int, unevictable: int, stays: int
    ) -> tuple[bool, str] | None:
        """Find a group that could never run again if another group took this many more unevictable bytes.

        Return whether this is because of other programs' use alone, and the sentence. Groups that have too little room
        already do not count, unless that is because of other programs' use, which may end.
        """
        gpu = share.gpu
        others = [other for other in gpu.shares.values() if other is not share and other.promised]
        if not others:
            return None
        more_left, more_kept = (stays, 0) if self._can_give_way(share, unevictable) else (0, fixed)
        more = more_left + more_kept
        if more <= 0:
            return None
        # What each group leaves when it makes way, and what it keeps because it cannot.
        least = {
            other.group.id: (staying_contexts(other), 0)
            if self._can_give_way(other)
            else (other.left, other.unevictable + other.context)
            for other in gpu.shares.values()
        }
        left, kept = map(sum, zip(*least.values(), strict=True))
        for other in others:
            needs = other.floor + other.unevictable + other.context + other.asleep
            own_left, own_kept = least[other.group.id]
            room = gpu.total - gpu.reserve - (kept - own_kept) - needs
            before = room - gpu.uncovered(left - own_left)
            after = room - more_kept - gpu.uncovered(left - own_left + more_left)
            alone = after < 0 <= before
            if alone or after < gpu.foreign <= before:
                lack = (0 if alone else gpu.foreign) - after
                text = (
                    f"{_amount(more)} more of unevictable memory would take {_amount(lack)} of the {_amount(needs)} "
                    "that another notebook already uses. Shut down a notebook that you no longer need, and try again"
                )
                return not alone, text
        return None

    def _can_give_way(self, share: Share, unevictable: int = 0) -> bool:
        """Whether a group would hibernate for others if it had this many more unevictable bytes besides contexts."""
        return self.eligibility.may_press() and self.eligibility.makes_way(share.group, unevictable)

    def _exceeded_gpu_quota(self, share: Share) -> tuple[str, int] | None:
        """Return the user or team whose quota of GPUs a group would exceed alone with one more, and the quota."""
        if not self.times.counted:
            return None
        uses = sum(other.used for other in share.group.shares.values())
        for claim in self.times.quotas(share.group):
            if uses >= claim.entitlement.gpus:
                return claim.whose, claim.entitlement.gpus
        return None

    def _backed(self, demand: Demand, budget: int) -> int:
        """Return the bytes of footprints that a GPU, the remaining host memory and the disk can hold together.

        Memory leaves the GPU while other memory arrives from the host, so a switch takes no more than what is in
        flight. The disk counts only for memory that can go there.
        """
        gpu, disk = demand.share.gpu, self.model.disk_size
        host = budget - min(self.model.rules.host_in_flight, budget // 8)
        # Chunks that are only partly used go to the disk as a whole.
        movable = demand.more if self.model.may_be_on_disk(demand.client) else 0
        for client in self.model.clients.values():
            promised = sum(h.promised for h in client.holdings.values())
            slack = min(self.model.rules.host_slack, promised)
            host -= slack
            movable += slack if self.model.may_be_on_disk(client) else 0
        for other in self.model.gpus.values():
            if other is not gpu:
                excess = max(0, other.promised - other.capacity)
                away = min(excess, disk, self._for_disk(other))
                disk -= away
                host -= excess - away
        disk = min(disk, self._for_disk(gpu) + movable)
        return max(0, gpu.capacity) + max(0, host + disk)

    def _for_disk(self, gpu: Gpu) -> int:
        """Return the bytes of footprints that could be on the disk if there is one."""
        if not self.model.disk_size:
            return 0
        promised = sum(
            holding.promised
            for share in gpu.shares.values()
            for holding in share.holdings.values()
            if self.model.may_be_on_disk(holding.client)
        )
        # Those that return were admitted by the same rule.
        return promised + sum(u.promised for u in gpu.returning.values())

    def _budget_host(self, budget: int, most: int) -> None:
        """Note how much host memory there is for swapped data, and the most that there can be."""
        before, self.model.host_budget = self.model.host_budget, max(0, budget)
        best, until = self._host_best
        if until is None:
            # A scheduler that has just started has no earlier budget.
            self._host_best = most, self.turn.now + LATELY
        elif before >= best or self.turn.now >= until:
            self._host_best = before, self.turn.now + LATELY

    def _host_lately(self) -> int:
        """Return the largest recent amount of host memory for swapped data."""
        best, until = self._host_best
        return 0 if until is None or self.turn.now >= until else best

    def headroom(self, demand: Demand, wanted: int) -> int:
        """Return how many of the bytes that a client requests beyond its need can be promised."""
        low, high = 0, max(0, wanted)
        if demand.more <= 0 or high == 0:
            return 0
        if self.refusal(demand._replace(more=demand.more + high)) is None:
            return high
        while high - low > 2 * MIB:
            middle = (low + high) // 2
            if self.refusal(demand._replace(more=demand.more + middle)) is None:
                low = middle
            else:
                high = middle
        return low

    def on_host_memory(self, event: HostMemory) -> None:
        """Apply a new amount of host memory for swapped data."""
        self._budget_host(event.budget, event.most)
        self.model.host_shared = max(0, event.shared)
        self.turn.reserve_stale.update(self.model.gpus)
        self.turn.dirty.update(self.model.gpus)


def _others(passes: bool) -> Relief | None:
    return "others" if passes else None


def _named(whose: str) -> str:
    kind, _, name = whose.partition(":")
    return f"{kind} {name}"


def _amount(size: int) -> str:
    """Return bytes as text, exactly enough for small GPUs on which a little can be decisive."""
    if size < GIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size / GIB:.{2 if size < 10 * GIB else 1}f} GiB"
