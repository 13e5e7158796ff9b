# SPDX-License-Identifier: BSD-3-Clause
"""The core's state as docs/reference/control.md ("Status") describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .. import policies
from ..core import foreign_use, reasons
from ..core.model import staying_contexts
from .estimates import Estimate
from .timeline import Ledger

if TYPE_CHECKING:
    from ..core.core import Core
    from ..core.model import Client, Gpu, Group, Holding, Share, Wait


def status(
    core: Core,
    now: float,
    ledger: Ledger | None = None,
    estimates: Mapping[str, Estimate] | None = None,
) -> dict[str, Any]:
    """Return the status without the times of cells and the estimates, which the server adds."""
    explainer = reasons.Explainer(core.sources, now)
    figures = Figures(core)
    ledger, estimates = ledger or Ledger(), estimates or {}
    places: dict[str, tuple[int | None, Wait | None]] = {}
    first: dict[str, Wait] = {}
    ahead: set[str] = set()
    for wait in core.queue:
        # A group that is frozen, or has reached its limit, delays no other group.
        places.setdefault(wait.group.id, (len(ahead) + 1, wait))
        if wait.counts(core.turn.now):
            ahead.add(wait.group.id)
            for uuid in wait.gpus:
                first.setdefault(uuid, wait)
    return {
        "time": now,
        "settings": settings(core),
        "hibernation": _ability(core),
        "gpus": [_gpu(g, figures) for g in sorted(core.gpus.values(), key=lambda g: g.index)],
        "host": {
            "budget": core.model.host_budget,
            "swapped": figures.host,
            "shared": figures.saved,
            "disk": figures.disk,
            "promised": core.model.promised,
        },
        "groups": [
            _group(
                core,
                g,
                places.get(g.id, (None, None)),
                explainer,
                figures,
                ledger,
                estimates.get(g.id),
                _yields_in(core, g, first, now),
                now,
            )
            for g in core.groups.values()
        ],
        "maintenance": core.model.maintenance or None,
        "notices": [
            {"group": n.group, "code": n.code, "params": n.params, "time": at}
            for at, n in core.model.notices
        ],
    }


def settings(core: Core) -> dict[str, Any]:
    """Return the settings that the status has, with their possible values."""
    return {**core.commands.settings(), "policies": policies.names()}


def _ability(core: Core) -> dict[str, Any]:
    """Return whether processes can be checkpointed here; ``able`` is None until that is known."""
    found = core.model.hibernatable
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
            "frees": max(0, state.frees - sum(map(staying_contexts, group.shares.values()))),
            "estimate": core.costs.wake_estimate(group) if away else None,
            "code": None,
            "text": "",
        }
    code, text = None, ""
    since = group.hibernate_asked_at
    if unfit is not None and unfit.until > now:
        code, text = unfit.code, unfit.text
        since = unfit.since if since is None else since
    if since is None:
        return None
    return {
        "state": "refused" if group.hibernate_asked_at is None else "ordered",
        "since": since,
        "frees": 0,
        "estimate": None,
        "code": code,
        "text": text,
    }


def prefetch(group: Group) -> dict[str, Any] | None:
    """Return the prefetch of a group, as the status has it; None: there is none."""
    found = group.prefetch
    if found is None:
        return None
    return {
        "hint": found.hint,
        "likelihood": found.likelihood,
        "stage": found.stage,
        "since": found.since,
    }


def reservation(group: Group, now: float) -> dict[str, Any] | None:
    """Return the reservation of a group, as the status has it; None: there is none."""
    found = group.reservation
    if found is None:
        return None
    return {
        "state": "waiting" if found.until is None else "ready",
        "since": found.since,
        "until_in": None if found.until is None else max(0.0, found.until - now),
    }


def _gpu(gpu: Gpu, figures: Figures) -> dict[str, Any]:
    parts = figures.parts[gpu.uuid]
    used = sum(parts.values())
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "name": gpu.name,
        "total": gpu.total,
        "reserve": gpu.reserve,
        "used": used,
        **parts,
        "free": gpu.total - used,
        "available": max(0, gpu.free),
        "draining": gpu.drained,
        "utilization": None,
        "power": None,
    }


def _group(
    core: Core,
    group: Group,
    place: tuple[int | None, Wait | None],
    explainer: reasons.Explainer,
    figures: Figures,
    ledger: Ledger,
    estimate: Estimate | None,
    yields_in: float | None,
    now: float,
) -> dict[str, Any]:
    position, wait = place
    reason = _reason(core, group, wait, explainer, now)
    return {
        "id": group.id,
        "name": group.name,
        "kind": "run" if group.id.startswith("run-") else "kernel",
        "user": group.user,
        "class": group.activity_class,
        "state": group.state,
        "since": group.since,
        "position": position,
        "reason": reason,
        "hibernation": _hibernation(core, group, now),
        "prefetch": prefetch(group),
        "reservation": reservation(group, now),
        "preferences": asdict(group.preferences),
        "gpus": [_share(share, figures) for share in group.shares.values()],
        "clients": [{"pid": c.pid, "backend": c.backend} for c in group.clients.values()],
        "cell": _cell(group, ledger, now),
        "queued": group.queued,
        "last_cell": ledger.last_cell(group.id),
        "totals": {**_totals(group, wait), **ledger.totals(group.id, now)},
        "yields_in": yields_in,
        "estimate": None if estimate is None else bounded(estimate, reason)._asdict(),
    }


def bounded(estimate: Estimate, reason: dict[str, Any] | None) -> Estimate:
    """Return the estimate, limited by the bounds that the reason states for this wait."""
    params = {} if reason is None else reason["params"]
    bounds = [params[key] for key in ("yields_in", "until_in") if params.get(key) is not None]
    return Estimate(*(min([value, *bounds]) for value in estimate))


def _reason(
    core: Core, group: Group, wait: Wait | None, explainer: reasons.Explainer, now: float
) -> dict[str, Any] | None:
    if group.overdue:
        return reasons.stuck(group, now)
    return reasons.at_work(core.sources, group, now) if wait is None else explainer.reason(wait)


def _yields_in(core: Core, group: Group, first: Mapping[str, Wait], now: float) -> float | None:
    if group.lease is None or not group.busy or group.yielding:
        return None
    if not any(c.contended for c in group.clients.values()):
        return None
    # On several GPUs, or if it waits itself, the core has to find the wait for which it yields.
    wait = first.get(next(iter(group.shares))) if len(group.shares) == 1 else None
    if wait is not None and wait.group is group:
        wait = None
    return max(0.0, core.residency.quantum_end(group, wait) - now)


def _cell(group: Group, ledger: Ledger, now: float) -> dict[str, Any] | None:
    cell = next(reversed(group.cells), None)
    if cell is None:
        return None
    return {"msg_id": cell, "since": group.cells[cell], **ledger.cell(group.id, cell, now)}


def _totals(group: Group, wait: Wait | None) -> dict[str, int]:
    """Return the totals of a group, including its current wait."""
    totals = group.totals
    return {
        "bursts": totals.bursts,
        "waits": totals.waits + (wait is not None and wait.logged),
        "evicted": totals.evicted,
        "restored": totals.restored,
    }


def _share(share: Share, figures: Figures) -> dict[str, Any]:
    found = figures.shares[share.number]
    return {
        "uuid": share.gpu.uuid,
        "footprint": found["resident"] + found["swapped"] + found["disk"],
        **found,
    }


#: The figures of a group on a GPU. Clean bytes are part of the resident ones, and shared bytes of those in host memory.
KINDS = ("resident", "clean", "swapped", "shared", "disk", "unevictable", "context")


class Figures:
    """Where memory is. Each figure is computed once, so that all of them agree (docs/reference/control.md, "Figures").

    Parameters
    ----------
    core
        Must not take an event in meanwhile.
    """

    def __init__(self, core: Core) -> None:
        #: The bytes of each GPU by kind. Their sum is at most the size of the GPU.
        self.parts: dict[str, dict[str, int]] = {}
        #: By the number of a share: its bytes by kind.
        self.shares: dict[int, dict[str, int]] = {}
        #: Bytes that evicted data takes in host memory; those that it would take besides if nothing was shared; and
        #: bytes of evicted data on disk.
        self.host = self.saved = self.disk = 0
        self._held: dict[Holding, dict[str, int]] = {}
        for gpu in core.gpus.values():
            self._fit(gpu)
        for client in core.clients.values():
            self._swap(client, core.model.on_disk.get(client.number, 0))
        self.saved = min(core.model.host_saved(), self.host)
        self.host -= self.saved
        for gpu in core.gpus.values():
            for share in gpu.shares.values():
                held = [self._held[holding] for holding in share.holdings.values()]
                self.shares[share.number] = {kind: sum(one[kind] for one in held) for kind in KINDS}

    def _fit(self, gpu: Gpu) -> None:
        """Divide the memory of a GPU. Bytes that clients state beyond its size are paged out, or are a misstatement."""
        holdings = [h for share in gpu.shares.values() for h in share.holdings.values()]
        for h in holdings:
            self._held[h] = {
                "resident": h.resident,
                "unevictable": h.unevictable,
                "context": h.context,
            }
        beyond = (
            foreign_use.unstated(gpu)
            if gpu.context or foreign_use.unmeasured(gpu) or gpu.left
            else 0
        )
        beyond += gpu.left
        excess = (
            gpu.resident
            + gpu.unevictable
            + gpu.context
            + beyond
            + foreign_use.outside(gpu)
            + gpu.pending_reclaim
        )
        excess -= gpu.total
        managed = [holding for holding in holdings if _is_paged(holding.client)]
        for kind, among in (("resident", managed), ("resident", holdings)):
            excess -= self._cut(among, kind, excess)
        pending_reclaim = gpu.pending_reclaim - max(0, min(excess, gpu.pending_reclaim))
        excess -= gpu.pending_reclaim - pending_reclaim
        unstated = beyond + foreign_use.outside(gpu)
        fewer = unstated - max(0, min(excess, unstated))
        excess -= unstated - fewer
        beyond = min(beyond, fewer)
        for kind in ("context", "unevictable"):
            excess -= self._cut(holdings, kind, excess)
        self.parts[gpu.uuid] = {
            "resident": sum(self._held[holding]["resident"] for holding in holdings),
            "unevictable": sum(self._held[holding]["unevictable"] for holding in holdings),
            "contexts": sum(self._held[holding]["context"] for holding in holdings) + beyond,
            "foreign": fewer - beyond,
            "pending_reclaim": pending_reclaim,
        }

    def _cut(self, holdings: list[Holding], kind: str, size: int) -> int:
        """Deduct bytes from what clients state, from each in proportion; return the number of bytes."""
        left = sum(self._held[holding][kind] for holding in holdings)
        size = taken = max(0, min(size, left))
        for holding in holdings:
            held = self._held[holding]
            part = -(-size * held[kind] // left) if size else 0
            left -= held[kind]
            held[kind] -= part
            size -= part
        return taken

    def _swap(self, client: Client, on_disk: int) -> None:
        """Compute what a client has in host memory and on disk. Each of its usages states the sum over all its GPUs.

        Clients do not know what of their host memory was moved to the disk (``on_disk``, in whole units).
        """
        holdings = client.holdings.values()
        stated = max((holding.host for holding in holdings), default=0)
        on_disk = min(on_disk, stated)
        stated -= on_disk
        shared = max((holding.tiers.shared for holding in holdings), default=0)
        disk = on_disk + max((holding.tiers.disk for holding in holdings), default=0)
        self.disk += disk
        swapped = 0
        for holding in holdings:
            held = self._held[holding]
            held["clean"] = min(holding.tiers.clean, held["resident"])
            # Memory that was promised and never allocated, or never written, or is all zeros, takes no space.
            missing = max(0, holding.promised - holding.spare - held["resident"])
            size = missing if _is_paged(client) else min(missing, stated - swapped)
            held["swapped"] = size
            swapped += size
            held["shared"] = min(size, shared)
            shared -= held["shared"]
            held["disk"] = min(missing - size, disk)
            disk -= held["disk"]
        self.host += max(stated, swapped)


def _is_paged(client: Client) -> bool:
    """Whether the driver keeps memory of a client in host memory without a statement of the client."""
    return client.backend == "managed" or client.oversubscribes
