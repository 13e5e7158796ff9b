# SPDX-License-Identifier: BSD-3-Clause
"""Answers when a group would get a lease if it asked now: a wait that does not exist, in a copy of the queue.

It changes nothing. The answer is a forecast with its interval (``estimates``) and the reason that the wait would have
(``core.reasons``).
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Any

from ..core import reasons
from ..core.model import Bar, Client, Group, Share, Wait
from ..core.queue import place, rank
from ..core.quotas import exceeded_by, used_by
from .estimates import Estimate, Forecast
from .status import bounded

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.messages import Class
    from ..core.model import Gpu

#: The forecast for a group that need not wait.
NOW = Estimate(0.0, 0.0, 0.0)


def of_group(core: Core, forecast: Forecast, now: float, group_id: str) -> dict[str, Any]:
    """Return when an existing group would get a lease."""
    group = core.groups[group_id]
    gpu = next(iter(group.shares), None)
    if group.lease is not None and not group.yielding:
        return _answer(group, gpu, NOW, _code("has_lease"), core)
    if group.wait is not None:
        found = forecast.estimates(core, now).get(group_id)
        reason = reasons.Explainer(core.sources, now).reason(group.wait)
        return _answer(group, gpu, found, reason, core)
    if not group.shares:
        return _answer(group, None, NOW, _code("no_gpu"), core)
    wait = Wait(group, core.model.last_number + 1, now, gpus=group.gpus)
    return _foresee(core, forecast, now, wait, gpu)


def of_new(
    core: Core,
    forecast: Forecast,
    now: float,
    *,
    user: str,
    teams: tuple[str, ...],
    size: int,
    activity_class: Class,
    gpu: str | None = None,
) -> dict[str, Any]:
    """Return when a notebook that does not exist yet would get a lease: on this GPU, or on the GPU that is free first.

    Parameters
    ----------
    core
        The core. It must not handle an event meanwhile.
    forecast
        The forecast of the server.
    now
        The time.
    user, teams
        The user, and the user's teams.
    size
        Bytes that the notebook will use on the GPU, in addition to its CUDA context.
    activity_class
        The class that it will have.
    gpu
        The UUID of a GPU; None: all of them are considered.
    """
    found = [
        _of_new_on(core, forecast, now, one, user, teams, size, activity_class)
        for uuid, one in core.gpus.items()
        if gpu in (None, uuid)
    ]
    if not found:
        return _answer(None, None, None, _code("no_gpu"), core)
    return min(found, key=lambda one: math.inf if one["likely"] is None else one["likely"])


def _of_new_on(
    core: Core,
    forecast: Forecast,
    now: float,
    gpu: Gpu,
    user: str,
    teams: tuple[str, ...],
    size: int,
    activity_class: Class,
) -> dict[str, Any]:
    group = Group("", "", 0, user, teams, gpus={gpu.uuid: gpu}, assumed=True)
    group.activity_class = activity_class
    group.clients[0] = Client(0, 0, "swap", group, 0)
    context = max((h.context for s in gpu.shares.values() for h in s.holdings.values()), default=0)
    group.shares[gpu.uuid] = Share(group, gpu, promised=size + context)
    most = max(0, gpu.total - gpu.reserve)
    if size + context > most:
        answer = _code("too_large", need=size + context, most=most, gpu=gpu.uuid)
        return _answer(None, gpu.uuid, None, answer, core)
    room = core.times.memory_room(group, gpu)
    if room is not None and room.bytes < size:
        answer = _code("over_cap", whose=room.whose, room=max(0, room.bytes))
        return _answer(None, gpu.uuid, None, answer, core)
    wait = Wait(group, core.model.last_number + 1, now, gpus=group.gpus)
    return _foresee(core, forecast, now, wait, gpu.uuid)


def _foresee(
    core: Core,
    forecast: Forecast,
    now: float,
    wait: Wait,
    gpu: str | None,
) -> dict[str, Any]:
    group, queue = wait.group, list(core.queue)
    rank(wait, core.policy)
    insort(queue, wait, key=place)
    limits = (core.times.limited_until(group, uuid, now) for uuid in wait.gpus)
    wait.limited_until = wait.not_before = max((at for at in limits if at is not None), default=0.0)
    wait.barred = _bar(core, wait)
    explainer = reasons.Explainer(core.sources, now, queue=queue)
    if wait.frozen or wait.barred is not None:
        return _answer(group, gpu, None, explainer.reason(wait), core)
    estimate = forecast.foresee(core, now, queue, wait)
    free = core.sources.planner.fits(wait) and group.hibernation is None
    if free and wait.limited_until <= now and not _is_ahead(queue, wait, core.turn.now):
        return _answer(group, gpu, NOW, _code("room"), core)
    return _answer(group, gpu, estimate, explainer.reason(wait), core)


def _is_ahead(queue: list[Wait], wait: Wait, now: float) -> bool:
    """Whether another wait for one of its GPUs is ahead."""
    first = queue[: bisect_left(queue, place(wait), key=place)]
    return any(other.counts(now) and other.gpus.keys() & wait.gpus.keys() for other in first)


def _bar(core: Core, wait: Wait) -> Bar | None:
    """Return the bound of administrators because of which a wait would be passed over."""
    group = wait.group
    drained = next((uuid for uuid, gpu in wait.gpus.items() if gpu.drained), None)
    if drained is not None:
        return Bar("gpu_draining", gpu=drained)
    own = set(wait.gpus) if group.assumed else used_by(group)
    claim = exceeded_by(group, own, core.model, core.times)
    if claim is None:
        return None
    return Bar("quota_gpus", whose=claim.whose, most=claim.entitlement.gpus, own=len(own))


def _answer(
    group: Group | None,
    gpu: str | None,
    estimate: Estimate | None,
    reason: dict[str, Any],
    core: Core,
) -> dict[str, Any]:
    assumed = group is None or group.assumed
    if estimate is not None:
        estimate = bounded(estimate, reason)
    restore = 0.0
    if group is not None and not assumed:
        asleep = group.hibernation is not None
        restore = core.costs.wake_estimate(group) if asleep else group.move_cost
    return {
        "group": None if assumed or group is None else group.id,
        "name": None if assumed or group is None else group.name,
        "user": None if assumed or group is None else group.user,
        "gpu": gpu,
        "earliest": None if estimate is None else estimate.low,
        "likely": None if estimate is None else estimate.seconds,
        "latest": None if estimate is None else estimate.high,
        "restore": restore,
        "reason": reason,
    }


def _code(code: str, **params: Any) -> dict[str, Any]:
    return {"code": code, "params": params}
