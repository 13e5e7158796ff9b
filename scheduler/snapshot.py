# SPDX-License-Identifier: BSD-3-Clause
"""The core's state as docs/control.md ("Status") describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import policies, reasons
from .estimates import Estimate
from .timeline import Ledger

if TYPE_CHECKING:
    from .core import Core
    from .people import People
    from .state import Gpu, Group, Share, Wait


def status(
    core: Core,
    now: float,
    ledger: Ledger | None = None,
    estimates: Mapping[str, Estimate] | None = None,
) -> dict[str, Any]:
    """Return the status, less what only the server knows: that is told what cells took, and how long waits will be."""
    explainer = reasons.Explainer(core, now)
    ledger, estimates = ledger or Ledger(), estimates or {}
    places: dict[str, tuple[int | None, Wait | None]] = {}
    first: dict[str, Wait] = {}
    ahead: set[str] = set()
    for wait in core.queue:
        # Who is frozen, or has had its share, holds nobody up.
        places.setdefault(wait.group.id, (len(ahead) + 1, wait))
        if core.counts(wait):
            ahead.add(wait.group.id)
            for uuid in core.uuids(wait):
                first.setdefault(uuid, wait)
    return {
        "time": now,
        "settings": settings(core),
        "hibernation": _ability(core),
        "gpus": [_gpu(g) for g in sorted(core.gpus.values(), key=lambda g: g.index)],
        "host": {
            "budget": core.host_budget,
            "swapped": sum(h.host for c in core.clients.values() for h in c.holdings.values()),
            "promised": core.promised,
        },
        "groups": [
            {
                **_group(core, g, places.get(g.id, (None, None)), explainer, ledger, now),
                "yields_in": _yields_in(core, g, first, now),
                "estimate": None if (found := estimates.get(g.id)) is None else found._asdict(),
            }
            for g in core.groups.values()
        ],
        "maintenance": core.maintenance or None,
        "notices": [
            {"group": n.group, "code": n.code, "params": n.params, "time": at}
            for at, n in core.notices
        ],
    }


def settings(core: People) -> dict[str, Any]:
    """Return the settings that the status has, with what there is to choose from."""
    return {**chosen(core), "policies": policies.names()}


def chosen(core: People) -> dict[str, Any]:
    """Return the settings: the same wherever the same events are replayed."""
    return {
        "quantum": core.quantum,
        "anti_thrash": core.anti_thrash,
        "policy": core.policy.name,
        "hibernate_after": core.hibernate_after,
    }


def _ability(core: Core) -> dict[str, Any]:
    """Return whether processes can be checkpointed here; ``able`` is None until that is known."""
    found = core.hibernatable
    if found is None:
        return {"able": None, "code": None, "text": "", "moves": False}
    return {
        "able": found.able,
        "code": found.code or None,
        "text": found.text,
        "moves": found.moves,
    }


def _hibernation(core: Core, group: Group, now: float) -> dict[str, Any] | None:
    state, unfit = group.hibernation, group.unfit
    if state is not None:
        away = state.stage in ("hibernated", "waking")
        return {
            "state": "parking" if state.stage == "evicting" else state.stage,
            "since": state.since,
            "frees": state.frees,
            "estimate": core.wake_estimate(group) if away else None,
            "code": None,
            "text": "",
        }
    code, text = None, ""
    since = group.dismissed_at
    if unfit is not None and unfit.until > now:
        code, text = unfit.code, unfit.text
        since = unfit.since if since is None else since
    if since is None:
        return None
    return {
        "state": "refused" if group.dismissed_at is None else "ordered",
        "since": since,
        "frees": 0,
        "estimate": None,
        "code": code,
        "text": text,
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "total": gpu.total,
        "reserve": gpu.reserve,
        "used": gpu.used,
        "resident": gpu.resident,
        "pinned": gpu.pinned,
        "contexts": gpu.context + (gpu.unstated if gpu.context or gpu.overhead else 0),
        "foreign": gpu.outside,
        "ghosts": gpu.ghosts,
        "free": max(0, gpu.free),
        "draining": gpu.drained,
        "utilization": None,
    }


def _group(
    core: Core,
    group: Group,
    place: tuple[int | None, Wait | None],
    explainer: reasons.Explainer,
    ledger: Ledger,
    now: float,
) -> dict[str, Any]:
    position, wait = place
    return {
        "id": group.id,
        "name": group.name,
        "kind": "run" if group.id.startswith("run-") else "kernel",
        "user": group.user,
        "class": core.class_of(group),
        "state": group.state,
        "since": group.since,
        "position": position,
        "reason": _reason(core, group, wait, explainer, now),
        "hibernation": _hibernation(core, group, now),
        "wishes": asdict(group.wishes),
        "gpus": [_share(share) for share in group.shares.values()],
        "clients": [{"pid": c.pid, "backend": c.backend} for c in group.clients.values()],
        "cell": _cell(group, ledger, now),
        "last_cell": ledger.last_cell(group.id),
        "totals": {**_totals(group, wait), **ledger.totals(group.id, now)},
    }


def _reason(
    core: Core, group: Group, wait: Wait | None, explainer: reasons.Explainer, now: float
) -> dict[str, Any] | None:
    if group.overdue:
        return reasons.stuck(group, now)
    return reasons.at_work(core, group, now) if wait is None else explainer.reason(wait)


def _yields_in(core: Core, group: Group, first: Mapping[str, Wait], now: float) -> float | None:
    if group.lease is None or not group.busy or group.yielding:
        return None
    if not any(c.contended for c in group.clients.values()):
        return None
    # On several GPUs, or if it waits itself, the core has to look for whom it yields to.
    wait = first.get(next(iter(group.shares))) if len(group.shares) == 1 else None
    if wait is not None and wait.group is group:
        wait = None
    return max(0.0, core.quantum_end(group, wait) - now)


def _cell(group: Group, ledger: Ledger, now: float) -> dict[str, Any] | None:
    cell = next(reversed(group.cells), None)
    if cell is None:
        return None
    return {"msg_id": cell, "since": group.cells[cell], **ledger.cell(group.id, cell, now)}


def _totals(group: Group, wait: Wait | None) -> dict[str, int]:
    """Return what it has had, with the wait that is not over."""
    totals = group.totals
    return {
        "bursts": totals.bursts,
        "waits": totals.waits + (wait is not None and wait.logged),
        "evicted": totals.evicted,
        "restored": totals.restored,
    }


def _share(share: Share) -> dict[str, Any]:
    # What was promised and never allocated is nobody's memory yet.
    footprint = max(share.resident, share.promised - share.spare)
    return {
        "uuid": share.gpu.uuid,
        "footprint": footprint,
        "resident": share.resident,
        "swapped": footprint - share.resident,
        "pinned": share.pinned,
        "context": share.context,
    }
