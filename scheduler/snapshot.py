# SPDX-License-Identifier: BSD-3-Clause
"""The core's state as docs/control.md ("Status") describes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import reasons

if TYPE_CHECKING:
    from .core import Core
    from .state import Gpu, Group, Share


def status(core: Core, now: float) -> dict[str, Any]:
    """Return the status, less what only the server knows."""
    places = {w.group.id: n for n, w in reversed(list(enumerate(core.queue, 1)))}
    return {
        "time": now,
        "settings": {
            "quantum": core.quantum,
            "anti_thrash": core.anti_thrash,
            "policy": core.policy.name,
        },
        "gpus": [_gpu(g) for g in sorted(core.gpus.values(), key=lambda g: g.index)],
        "host": {
            "budget": core.host_budget,
            "swapped": sum(h.host for c in core.clients.values() for h in c.holdings.values()),
            "promised": core.promised,
        },
        "groups": [_group(core, g, places.get(g.id), now) for g in core.groups.values()],
        "notices": [
            {"group": n.group, "code": n.code, "params": n.params, "time": at}
            for at, n in core.notices
        ],
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
        "contexts": gpu.context,
        "foreign": gpu.foreign,
        "ghosts": gpu.ghosts,
        "free": max(0, gpu.free),
        "utilization": None,
    }


def _group(core: Core, group: Group, place: int | None, now: float) -> dict[str, Any]:
    wait = next((w for w in core.queue if w.group is group), None)
    cell = next(reversed(group.cells), None)
    contended = any(c.contended for c in group.clients.values())
    running = group.lease is not None and group.busy and not group.yielding
    totals = asdict(group.totals)
    if group.busy:
        totals["ran"] += now - group.ran_since
    return {
        "id": group.id,
        "name": group.name,
        "kind": "run" if group.id.startswith("run-") else "kernel",
        "state": group.state,
        "since": group.since,
        "position": place,
        "reason": reasons.filling(core, group) if wait is None else reasons.reason(core, wait, now),
        "yields_in": max(0.0, core.quantum_end(group) - now) if running and contended else None,
        "estimate": None if wait is None else reasons.estimate(core, wait, now),
        "cell": None if cell is None else {"msg_id": cell, "since": group.cells[cell]},
        "gpus": [_share(share) for share in group.shares.values()],
        "clients": [{"pid": c.pid, "backend": c.backend} for c in group.clients.values()],
        "totals": totals,
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
