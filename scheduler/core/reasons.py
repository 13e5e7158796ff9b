# SPDX-License-Identifier: BSD-3-Clause
"""Why a group waits: codes with parameters (docs/reference/control.md), which `views` puts into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .costs import clean_of
from .eligibility import Eligibility
from .foreign_use import outside, unstated
from .hibernation import HibernationManager
from .model import Bar, Delayed, Gpu, Group, Model, Wait, growth
from .plan import Plan
from .planner import Planner
from .pressure import Pressure
from .usage import GpuTime


@dataclass(frozen=True, slots=True, eq=False)
class Sources:
    """The collaborators in which reasons are found."""

    model: Model
    times: GpuTime
    planner: Planner
    eligibility: Eligibility
    hibernation: HibernationManager
    pressure: Pressure


class Explainer:
    """Finds the reason of each wait. Plans are made once for all of them.

    Parameters
    ----------
    core
        The state of the core. No event may be handled in the meantime.
    now
        The time.
    plans
        Plans that were made already.
    queue
        The waits, in order; default: those of the core.
    """

    def __init__(
        self,
        core: Sources,
        now: float,
        plans: Mapping[Wait, Plan] | None = None,
        queue: Sequence[Wait] | None = None,
    ) -> None:
        self._core = core
        self._now = now
        self._plans: dict[Wait, Plan] = dict(plans or {})
        self._queue = core.model.queue if queue is None else queue
        self._ahead: dict[Wait, Wait] | None = None

    def plan(self, wait: Wait) -> Plan:
        """Return what stands between a wait and its grant."""
        plan = self._plans.get(wait)
        if plan is None:
            plan = self._plans[wait] = self._core.planner.plan(wait)
        return plan

    def ahead(self, wait: Wait) -> Wait | None:
        """Return the wait for which another one has to wait."""
        if self._ahead is None:
            self._ahead = self._find_heads()
        return self._ahead.get(wait)

    def reason(self, wait: Wait) -> dict[str, Any]:
        """Return the reason of a wait."""
        core, now, group = self._core, self._now, wait.group
        if wait.frozen:
            return _reason("on_hold" if group.preferences.on_hold else "frozen")
        if wait.passed_over:
            asleep = group.hibernation is not None and not group.silent
            return waking(core, group, now) if group.waking or asleep else stuck(group, now)
        if wait.barred is not None:
            return _barred(wait.barred, now)
        if wait.limited_until > now:
            return _reason(
                "limited",
                until_in=wait.limited_until - now,
                whose=core.times.limit_reached(group, now),
            )
        if wait.grow is None and group.lease is not None:
            return _draining(group, now)
        ahead = self.ahead(wait)
        if ahead is not None and ahead.group is not group:
            return _reason("behind", ahead=ahead.group.id, ahead_name=ahead.group.name)
        plan = self.plan(wait)
        if plan.short:
            gpu, lack = plan.short[0]
            return _short(core, group, gpu, _lack(core, wait, gpu, lack), now)
        if wait.wakes and (not_found := no_room(group)) is not None and not plan.lacks:
            return not_found
        # Its memory was not restored although there is room.
        tries_again = group.restore_error is not None
        if tries_again and (wait.not_before > now or not plan.lacks):
            return _reason(
                "restore_failed", attempts=group.failures, error=group.restore_error or None
            )
        return _of_plan(core, wait, plan, now)

    def _find_heads(self) -> dict[Wait, Wait]:
        """Return the first wait ahead of each wait: on each GPU, all waits after its head wait for that."""
        heads: dict[str, tuple[int, Wait]] = {}
        found: dict[Wait, Wait] = {}
        for place, wait in enumerate(self._queue):
            uuids = list(wait.gpus)
            ahead = [heads[u] for u in uuids if u in heads]
            if ahead:
                found[wait] = min(ahead, key=lambda head: head[0])[1]
            if wait.passed_over or wait.limited_until > self._now or wait.barred is not None:
                continue
            if wait.grow is None and wait.group.lease is not None:
                continue
            if wait.wakes and wait.not_before > self._now:
                continue
            if len(ahead) < len(uuids) and self._leads(wait):
                for uuid in uuids:
                    heads.setdefault(uuid, (place, wait))
        return found

    def _leads(self, wait: Wait) -> bool:
        """Whether a wait can be served if others make way. Otherwise, it holds up no other wait."""
        plan = self.plan(wait)
        return not plan.short or self._core.pressure.remedy(plan) is not None


def at_work(core: Sources, group: Group, now: float) -> dict[str, Any] | None:
    """Return the reason why a group waits outside the queue, or None."""
    if (found := group.delayed) is not None:
        return delayed(core, found, now)
    return waking(core, group, now) if group.waking else filling(core, group)


def delayed(core: Sources, found: Delayed, now: float) -> dict[str, Any]:
    """Return what an allocation waits for that was not answered yet."""
    gpu = core.model.gpus[found.grow.least.gpu]
    lack = sum(growth(core.model.clients[found.grow.client].holdings[gpu.uuid], found.grow))
    if found.obstacle == "returning":
        return _returning(core, gpu, lack)
    until_in = max(0.0, found.since + core.model.rules.host_patience - now)
    return _reason("host_memory", lack=lack, gpu=gpu.uuid, until_in=until_in)


def waking(core: Sources, group: Group, now: float) -> dict[str, Any]:
    """Return for how long a group is being restored, and how long that takes here; or that it has found no room."""
    if (not_found := no_room(group)) is not None:
        return not_found
    since = now if group.hibernation is None else group.hibernation.since
    took = max(0.0, now - since)
    return _reason(
        "waking",
        **{"for": took},
        estimate=max(0.0, core.hibernation.costs.wake_estimate(group) - took),
    )


def no_room(group: Group) -> dict[str, Any] | None:
    """Return what a group needs to wake that its GPU did not have when it was last tried, or None."""
    state = group.hibernation
    if state is None or not state.lacked_room:
        return None
    needs = [
        c.needs for c in group.clients.values() if c.stage in ("waiting", "waking") and c.needs
    ]
    if not needs:
        return None
    need = sum(usage.unevictable + usage.context for usage in needs)
    return _reason("no_room", need=need, gpu=needs[0].gpu, attempts=state.lacked_room)


def filling(core: Sources, group: Group) -> dict[str, Any] | None:
    """Return whose memory must leave for a group that fills, or None for a group that does not fill."""
    if group.filling is None:
        return None
    share = max(group.shares.values(), key=lambda s: (s.missing, s.gpu.uuid))
    victims = {s.group.id: s.group.name for s in share.gpu.shares.values() if s.evicting}
    return _reason(
        "filling",
        arrived=share.resident, footprint=share.goal, gpu=share.gpu.uuid, **_victims(victims),
    )  # fmt: skip


def stuck(
    holder: Group, now: float, gpu: Gpu | None = None, lack: int | None = None
) -> dict[str, Any]:
    """Return the groups that do not answer, since when, how much of which GPU they withhold, and from which groups."""
    since = min((c.owes_since for c in holder.clients.values() if c.owes_since), default=now)
    kernel, kernel_since = holder.stuck or (None, now)
    return _reason(
        "stuck", **_holder(holder), **{"for": max(0.0, now - since)},
        kernel=kernel, kernel_for=None if kernel is None else max(0.0, now - kernel_since),
        lack=lack, gpu=None if gpu is None else gpu.uuid,
    )  # fmt: skip


def _lack(core: Sources, wait: Wait, gpu: Gpu, lack: int) -> int:
    """Return the missing part of a group's need, without the GPU's over-commitment."""
    return max(0, min(lack, core.model.need(wait, gpu)))


def _worst(core: Sources, wait: Wait, plan: Plan) -> tuple[Gpu, int] | None:
    """Return the GPU on which a waiting group lacks the most, and how much."""
    lacks = [(gpu, _lack(core, wait, gpu, lack)) for gpu, lack in plan.lacks]
    return max(lacks, key=lambda item: item[1], default=None)


def _of_plan(core: Sources, wait: Wait, plan: Plan, now: float) -> dict[str, Any]:
    if plan.draining:
        return _draining(plan.draining[0], now)
    worst = _worst(core, wait, plan)
    when, holder = max(plan.later, key=lambda item: item[0], default=(now, None))
    if holder is None and plan.revoke:
        holder = plan.revoke[0]
    residency = core.planner.residency
    if holder is not None and residency.expects_cell(holder):
        # Its next cell will probably begin, and then it may run until its time slice is over.
        when = max(when, residency.quantum_end(holder, wait))
    if holder is not None and (holder in plan.kept or holder.exclusive):
        gpu, lack = worst or (None, 0)
        return _reason(
            "kept" if holder in plan.kept else "exclusive",
            **_holder(holder), until_in=max(0.0, when - now), lack=lack,
            gpu=next(iter(wait.gpus), "") if gpu is None else gpu.uuid,
        )  # fmt: skip
    if holder is not None and holder in plan.serialised:
        return _reason("serialised", **_holder(holder), yields_in=max(0.0, when - now))
    if worst is not None:
        gpu, lack = worst
        if (
            holder is not None
            and holder.lease is not None
            and core.planner.thrashes(wait.group, holder)
        ):
            return _reason("thrashing", **_holder(holder), yields_in=max(0.0, when - now))
        if holder is not None and holder.lease is not None:
            need = core.model.need(wait, gpu)
            yields_in = max(0.0, when - now)
            return _reason(
                "needs_memory",
                need=need, lack=lack, gpu=gpu.uuid, **_holder(holder), yields_in=yields_in,
            )  # fmt: skip
        if holder is not None and not plan.evict and not plan.leaving:
            return _reason("residency", **_holder(holder), until_in=max(0.0, when - now))
        victims = {s.group.id: s.group.name for s, _ in plan.evict}
        victims |= {g.id: g.name for g in plan.leaving}
        if holder is not None:
            victims[holder.id] = holder.name
        return _reason(
            "making_room", lack=lack, gpu=gpu.uuid, **_victims(victims), **_clean(plan, gpu, lack)
        )
    # There is room, and only a reading of the GPU has not arrived yet.
    return _reason("making_room", lack=0, gpu=next(iter(wait.gpus), ""), **_victims({}))


def _clean(plan: Plan, gpu: Gpu, lack: int) -> dict[str, int]:
    """Return how much of the missing room needs no copy, because its content has not changed; nothing if it is none.

    For that, the policy prefers this victim to others that are as likely to be needed again.
    """
    evicted = [*plan.evict]
    for group in plan.leaving:
        if (leaving := group.shares.get(gpu.uuid)) is not None:
            evicted.append((leaving, leaving.leaving))
    clean = 0
    for share, size in evicted:
        if share.gpu is gpu and share.resident:
            clean += clean_of(share) * size // share.resident
    clean = min(clean, lack)
    return {"clean": clean} if clean else {}


def _barred(bar: Bar, now: float) -> dict[str, Any]:
    if bar.code == "gpu_draining":
        return _reason(bar.code, gpu=bar.gpu)
    said = _reason(bar.code, whose=bar.whose, gpus=bar.most, own=bar.own)
    if bar.holder:
        said["params"] |= {
            "holder": bar.holder,
            "holder_name": bar.holder_name,
            "yields_in": None if bar.until is None else max(0.0, bar.until - now),
        }
    return said


def _holder(group: Group) -> dict[str, str]:
    return {"holder": group.id, "holder_name": group.name}


def _victims(names: Mapping[str, str]) -> dict[str, list[str]]:
    return {"victims": list(names.values()), "victim_ids": list(names)}


def _draining(holder: Group, now: float) -> dict[str, Any]:
    kernel, since = holder.stuck or (None, now)
    return _reason(
        "draining", **_holder(holder), **{"for": max(0.0, now - holder.revoked_at)},
        kernel=kernel, kernel_for=None if kernel is None else max(0.0, now - since),
    )  # fmt: skip


def _short(core: Sources, group: Group, gpu: Gpu, lack: int, now: float) -> dict[str, Any]:
    """Return what takes the room that no holder could yield: what will be free by itself, or else what takes most."""
    victims = {g.id: g.name for g in core.eligibility.hibernating_on(gpu)}
    if victims:
        return _reason("making_room", lack=lack, gpu=gpu.uuid, **_victims(victims))
    own = group.shares.get(gpu.uuid)
    fixed = (
        gpu.unevictable + gpu.context - (own.unevictable + own.context if own is not None else 0)
    )
    fixed += unstated(gpu) + gpu.left - (own.left if own is not None else 0)
    silent = [s for s in gpu.shares.values() if s is not own and s.unreachable]
    kept = sum(s.unreachable for s in silent)
    if silent and (kept >= lack or kept > max(gpu.pending_reclaim, outside(gpu), fixed)):
        worst = max(silent, key=lambda s: (s.unreachable, s.number))
        return stuck(worst.group, now, gpu, lack)
    if gpu.pending_reclaim >= lack or gpu.pending_reclaim > max(outside(gpu), fixed):
        if gpu.returning:
            return _returning(core, gpu, lack)
        return _reason("dying", lack=lack, gpu=gpu.uuid, pending_reclaim=gpu.pending_reclaim)
    if fixed >= outside(gpu):
        # It may be charged too much, for contexts whose state is unknown.
        return _reason("crowded", lack=lack, gpu=gpu.uuid, fixed=min(fixed, gpu.total))
    # What seems to be other programs' use may be memory that clients have yet to state.
    return _returning(core, gpu, lack) if core.model.awaited else _foreign(gpu, lack)


def _returning(core: Sources, gpu: Gpu, lack: int) -> dict[str, Any]:
    return _reason("returning", lack=lack, gpu=gpu.uuid, clients=len(core.model.awaited))


def _foreign(gpu: Gpu, lack: int) -> dict[str, Any]:
    return _reason("foreign_use", lack=lack, gpu=gpu.uuid, foreign=outside(gpu))


def _reason(code: str, **params: Any) -> dict[str, Any]:
    return {"code": code, "params": params}
