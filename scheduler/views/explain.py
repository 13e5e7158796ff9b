# SPDX-License-Identifier: BSD-3-Clause
"""Explains the order of the queue: codes with parameters (control.md, "Explanations"), worded in `words`.

It changes nothing and does not call the policy: the ranks are those that the queue has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..core import reasons

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.model import Gpu, Group, Wait
    from ..core.policy_api import Parts


def explain(core: Core, now: float, group: str | None = None) -> dict[str, Any]:
    """Return why groups wait, and why running groups are slowed down.

    Parameters
    ----------
    core
        The core. It must not handle an event meanwhile.
    now
        The time.
    group
        The id of a group, which need not wait; None: all groups that wait or are slowed down.
    """
    explainer = reasons.Explainer(core.sources, now)
    groups: list[dict[str, Any]] = []
    waits = {wait.group.id: wait for wait in reversed(core.queue)}
    if group is not None:
        found = [core.groups[group]]
    else:
        found = list(
            {
                g.id: g for g in (*(w.group for w in core.queue), *core.model.leased.values())
            }.values()
        )
    for each in found:
        wait, paced = waits.get(each.id), _pace(core, each)
        if group is not None or wait is not None or paced is not None:
            groups.append(_explanation(core, explainer, now, each, wait, paced))
    return {"policy": core.policy.name, "groups": groups}


def _explanation(
    core: Core,
    explainer: reasons.Explainer,
    now: float,
    group: Group,
    wait: Wait | None,
    paced: dict[str, Any] | None,
) -> dict[str, Any]:
    before = [] if wait is None else list(_before(core, wait, now))
    return {
        **_who(core, group),
        "state": group.state,
        "why_class": _why_class(core, group),
        "queued": group.queued,
        "pace": paced,
        "prefetch": prefetch(core, group, now),
        "waited": None if wait is None else max(0.0, now - wait.since),
        "reason": reasons.at_work(core.sources, group, now)
        if wait is None
        else explainer.reason(wait),
        "before": before,
        "next": None if wait is None else _next(core, wait, before, now),
        "moved": _moved(group, now),
    }


def _moved(group: Group, now: float) -> dict[str, Any] | None:
    """Return how much left with a group's last eviction, and how much of it was copied; None: simply all of it."""
    found = group.totals.eviction
    if found is None or not (found.hashed or found.zero or found.shared or found.clean):
        return None
    return _code(
        "evicted",
        **{"for": max(0.0, now - found.at)},
        bytes=found.bytes,
        copied=found.copied,
        clean=found.clean,
        zero=found.zero,
        shared=found.shared,
    )


def _who(core: Core, group: Group) -> dict[str, Any]:
    return {
        "group": group.id,
        "name": group.name,
        "user": group.user,
        "class": group.activity_class,
    }


def _why_class(core: Core, group: Group) -> dict[str, Any]:
    """Return why a group has its class."""
    if group.preferences.priority != "auto":
        return _code("asked")
    if group.activity_class == "agent":
        return _code("agent_cell")
    after = core.rules.interactive_burst
    if group.activity_class == "background":
        return _code("long_cell" if group.cells else "long_use", after=after)
    return _code("fresh_cell" if group.cells else "short_use", after=after)


def prefetch(core: Core, group: Group, now: float) -> dict[str, Any] | None:
    """Return why a group is getting ready, or why not; None: it has no live hint."""
    estimate = core.prefetcher.hints.likelihood.estimate(group.id, now)
    if estimate is None:
        return None
    hint = {
        "hint": estimate.sign,
        "likelihood": estimate.likelihood,
        "trials": estimate.trials,
        "hits": estimate.hits,
    }
    if group.prefetch is not None:
        return _code(group.prefetch.stage, **hint)
    return _code(core.prefetcher.why_not(group) or "soon", **hint)


def hint(core: Core, group: Group, now: float) -> dict[str, Any] | None:
    """Return what follows from a group's hint, or why nothing does, which can be that the hint was not needed."""
    found = prefetch(core, group, now)
    if found is not None:
        return found
    obstacle = core.prefetcher.why_not(group)
    return None if obstacle is None else _code(obstacle)


# --- The order ------------------------------------------------------------------------------------


def _before(core: Core, wait: Wait, now: float) -> Iterator[dict[str, Any]]:
    """Iterate over the groups that must be served before a wait, each with the rule that puts it there."""
    gpus = set(wait.gpus)
    seen = {wait.group.id}
    for other in core.queue:
        if other is wait:
            return
        shared = [uuid for uuid in other.gpus if uuid in gpus]
        # A wait that the core passes over delays no other wait.
        passed = other.passed_over or other.limited_until > now or other.barred is not None
        if not shared or passed or other.group.id in seen:
            continue
        seen.add(other.group.id)
        yield {**_who(core, other.group), **_rule(core, wait, other, core.gpus[shared[0]], now)}


def _rule(core: Core, wait: Wait, other: Wait, gpu: Gpu, now: float) -> dict[str, Any]:
    if wait.group.makes_way_for is other:
        return _code("made_way")
    decided = compare(wait.parts, other.parts)
    if decided is None:
        return _code("number")
    name, own, theirs = decided
    params: dict[str, Any] = {"own": own, "theirs": theirs}
    if name in ("user_share", "turn"):
        params |= _use(core, "", wait.group, gpu, now)
        params |= _use(core, "their_", other.group, gpu, now)
    return _code(name, **params)


def _use(core: Core, prefix: str, group: Group, gpu: Gpu, now: float) -> dict[str, Any]:
    """Return the usage within the window and the entitlement of a group's team or user."""
    claim = core.times.of(group)[0]
    return {
        f"{prefix}whose": claim.whose,
        f"{prefix}used": core.times.share(claim.whose, gpu.uuid, now),
        f"{prefix}request": claim.entitlement.request,
    }


def compare(own: Parts, theirs: Parts) -> tuple[str, float, float] | None:
    """Return the rule that puts a wait after another one, with the number of each; None: it comes first.

    The first sum that differs decides, and of its parts, the one that differs most.
    """
    for mine, its in zip(own, theirs, strict=False):
        if sum(mine.values()) == sum(its.values()):
            continue
        if sum(mine.values()) < sum(its.values()):
            return None
        name = max(mine.keys() | its.keys(), key=lambda n: (mine.get(n, 0.0) - its.get(n, 0.0), n))
        return name, mine.get(name, 0.0), its.get(name, 0.0)
    return None


def _next(core: Core, wait: Wait, before: list[dict[str, Any]], now: float) -> dict[str, Any]:
    """Return what would make a wait the next one."""
    if wait.frozen:
        return _code("administrator" if wait.group.preferences.on_hold else "unfreeze")
    if wait.barred is not None:
        if wait.barred.code == "gpu_draining" or wait.barred.own > wait.barred.most:
            return _code("administrator")
        return _code("quota", whose=wait.barred.whose, gpus=wait.barred.most)
    if wait.limited_until > now:
        whose = core.times.limit_reached(wait.group, now)
        return _code("limit", whose=whose, until_in=wait.limited_until - now)
    if not before:
        return _code("room")
    first = before[0]
    if first["code"] in ("background", "people", "class"):
        return _code("interactive", ahead=first["name"])
    if first["code"] == "focus":
        return _code("focus", ahead=first["name"])
    if first["code"] in ("user_share", "share", "turn", "agent_time"):
        return _code("use", ahead=first["name"])
    return _code("served", count=len(before), ahead=first["name"])


# --- Paces ----------------------------------------------------------------------------------------


def _pace(core: Core, group: Group) -> dict[str, Any] | None:
    """Return how a holder is slowed down, and for which groups."""
    paces = [client.pace for client in group.granted.values()]
    slowed = [p for p in paces if p.inflight is not None or p.share < 1.0]
    if not slowed:
        return None
    pace = min(slowed, key=lambda p: (p.inflight is None, p.inflight or 0.0))
    holders = {g.id: g for share in group.shares.values() for g in share.gpu.holders.values()}
    others = [g for g in holders.values() if g is not group and _is_ahead(g, group)]
    if group.activity_class == "interactive":
        # It is slowed down because of shares, not because of the classes of other groups.
        others = []
    others = [g for g in others if g.busy > 0] or others
    whom = {"names": [g.name for g in others], "groups": [g.id for g in others]}
    if pace.inflight == 0.0:
        return _code("paused", **whom)
    if pace.inflight is not None:
        return _code("bounded", **whom, inflight=pace.inflight)
    return _code("share", share=pace.share)


def _is_ahead(other: Group, group: Group) -> bool:
    """Whether a group may be slowed down because of the class of another one."""
    if group.activity_class == "agent":
        return other.attended
    return other.activity_class == "interactive" or (
        other.activity_class == "agent" and not group.attended
    )


def _code(code: str, **params: Any) -> dict[str, Any]:
    return {"code": code, "params": params}
