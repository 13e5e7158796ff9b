# SPDX-License-Identifier: BSD-3-Clause
"""The JSON that the page receives for each node: only what the viewer may see, mostly as sentences."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from .._version import __version__
from ..scheduler.views.redaction import Pseudonyms, View
from ..scheduler.views.words.events import event_text, process_text, quota_text
from ..scheduler.views.words.groups import preferences_text, rank, remark
from . import words
from .nodes import Node, Report
from .viewer import Viewer

log = logging.getLogger(__name__)

#: Kinds of memory, in the order of the page's bars.
KINDS = ("resident", "unevictable", "contexts", "foreign", "pending_reclaim", "free")
#: The kinds of a notebook's memory. Clean memory is part of the resident one, and shared memory of the swapped one.
_MEMORY = ("resident", "unevictable", "clean", "swapped", "shared", "disk")
#: Replaces the identifiers of other users' notebooks, in the same way on all pages of this process.
_PSEUDONYMS = Pseudonyms()


def node(name: str, found: Node, viewer: Viewer) -> dict[str, Any]:
    """Return the JSON of a node for a viewer.

    Parameters
    ----------
    name
        Name of the node on the page.
    found
        The node.
    viewer
        The viewer.
    """
    head = {
        "name": name,
        "away": bool(found.error),
        "since": found.since,
        "now": time.time(),
        # Only administrators may see addresses and paths.
        "error": found.error if viewer.sees_all else "",
        "detail": found.detail if viewer.sees_all else "",
    }
    if found.report is None:
        return {**head, "known": False}
    try:
        return {**head, "known": True, **shown(found.report, viewer)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        log.warning("gpushare: cannot read the report of node %s: %r", name, error)
        other = (found.report.get("status") or {}).get("version")
        return {
            **head,
            "known": False,
            "away": True,
            "error": f"it runs jupyter-gpushare {other}, and this service runs {__version__}, which cannot read its "
            "report; install the same release on all nodes",
        }


def shown(report: Report, viewer: Viewer) -> dict[str, Any]:
    """Return a report as JSON for a viewer."""
    report = redacted(report, viewer)
    status = report["status"]
    # Times on the page are in Unix time; the report has the monotonic clock of its machine.
    offset = report["wall"] - status["time"]
    indices = {gpu["uuid"]: gpu["index"] for gpu in status["gpus"]}
    driver = status.get("driver") or {}
    return {
        "version": status.get("version"),
        "uptime": (status.get("scheduler") or {}).get("uptime"),
        "simulated": bool(driver.get("simulated")),
        "driver": driver.get("version"),
        "maintenance": status.get("maintenance") or "",
        "settings": status["settings"],
        "host": status["host"],
        "gpus": [_gpu(gpu) for gpu in status["gpus"]],
        "processes": _processes(status, indices),
        "notebooks": [
            _notebook(group, indices, offset, viewer)
            for group in sorted(status["groups"], key=rank)
        ],
        "users": _users(report, viewer),
        "events": [
            {
                # Sequence numbers begin again if a scheduler has nothing from the previous one.
                "key": f"{event['time']} {event['sequence']}",
                "time": event["time"] + offset,
                "name": event.get("name") or "",
                "kind": event["kind"],
                "text": event_text(_with_gpu_name(event, indices)),
            }
            for event in report["events"]
        ],
        "actions": _actions(report),
    }


def redacted(report: Report, viewer: Viewer) -> Report:
    """Return a report without the data of other users that a viewer may not see."""
    if viewer.sees_all:
        return report
    owners = {group["id"]: group["user"] for group in report["status"]["groups"]}
    sight = View(viewer.name, frozenset(), owners.get, _PSEUDONYMS)
    own, usual = f"user:{viewer.name}", "user:*"
    return {
        **report,
        "status": {**sight.status(report["status"]), "processes": None},
        "shares": {
            whose: share
            for whose, share in sight.shares(report["shares"]).items()
            if whose in (own, usual)
        },
        # Users see only their own events and those without a notebook.
        "events": [
            sight.event(event)
            for event in report["events"]
            if event.get("user", "") == viewer.user or ("user" in event and not event["group"])
        ],
        "audit": None,
        "users": None,
    }


def _with_gpu_name(event: dict[str, Any], indices: dict[str, int]) -> dict[str, Any]:
    """Return an event with the name of its GPU on the page instead of the UUID."""
    index = indices.get(event.get("gpu", ""))
    return event if index is None else {**event, "gpu": f"GPU {index}"}


def _gpu(gpu: dict[str, Any]) -> dict[str, Any]:
    return {
        "uuid": gpu["uuid"],
        "index": gpu["index"],
        "name": gpu["name"],
        "total": gpu["total"],
        "used": gpu["used"],
        "utilization": gpu["utilization"],
        # An older scheduler does not report it.
        "power": gpu.get("power"),
        "draining": bool(gpu.get("draining")),
        "memory": {kind: gpu[kind] for kind in KINDS},
    }


def _notebook(
    group: dict[str, Any],
    indices: dict[str, int],
    offset: float,
    viewer: Viewer,
) -> dict[str, Any]:
    preferences, totals = group.get("preferences") or {}, group["totals"]
    return {
        "id": group["id"],
        "name": group["name"],
        "user": group["user"],
        "mine": viewer.user is not None and group["user"] == viewer.user,
        "kind": group["kind"],
        "class": group.get("class"),
        "state": group["state"],
        "since": None if group["since"] is None else group["since"] + offset,
        "position": group["position"],
        "why": remark(group),
        # The page shows a hold by an administrator separately.
        "preferences": preferences_text({**preferences, "on_hold": False}),
        "on_hold": bool(preferences.get("on_hold")),
        "gpus": [indices.get(share["uuid"]) for share in group["gpus"]],
        "memory": _sum(group["gpus"], _MEMORY),
        "waits": totals["waits"],
        "waited": totals["waited"],
        "ran": totals["ran"],
    }


def _sum(shares: Iterable[dict[str, Any]], kinds: Iterable[str]) -> dict[str, int]:
    shares = list(shares)
    # A node with an older version does not report all kinds.
    return {kind: sum(share.get(kind, 0) for share in shares) for kind in kinds}


def _users(report: Report, viewer: Viewer) -> list[dict[str, Any]]:
    """Return the figures of each user with notebooks or quotas."""
    shares = report["shares"]
    usual = shares.get("user:*") or {}
    reported = {user["name"]: user for user in report.get("users") or ()}
    groups: dict[str, list[dict[str, Any]]] = {
        whose.partition(":")[2]: []
        for whose in shares
        if whose.startswith("user:") and whose != "user:*"
    }
    for group in report["status"]["groups"]:
        groups.setdefault(group["user"], []).append(group)
    users = []
    for name, own in groups.items():
        share = shares.get(f"user:{name}") or {}
        used = (reported.get(name) or share).get("used") or {}
        totals = [group["totals"] for group in own]
        shown = viewer.sees_all or name == viewer.user
        users.append(
            {
                "name": name,
                "mine": name == viewer.user,
                "notebooks": len(own),
                "waiting": sum(group["state"] == "waiting" for group in own),
                "memory": _sum(
                    (one for group in own for one in group["gpus"]),
                    _MEMORY,
                ),
                "waits": sum(total["waits"] for total in totals),
                "waited": sum(total["waited"] for total in totals),
                "ran": sum(total["ran"] for total in totals),
                # On the GPU on which the user has the largest share of time.
                "share": max(used.values(), default=None),
                "limit": (share or usual).get("limit") or None,
                "quota": quota_text(share or usual) if shown else "",
            }
        )
    return sorted(users, key=lambda user: (not user["mine"], user["name"]))


def _actions(report: Report) -> list[dict[str, Any]]:
    """Return the entries of the audit log as sentences, without automatic requests."""
    names = {group["id"]: group["name"] for group in report["status"]["groups"]}
    gpus = {gpu["uuid"]: f"GPU {gpu['index']}" for gpu in report["status"]["gpus"]}
    # Requests name a GPU by its UUID or its index.
    gpus |= {str(gpu["index"]): f"GPU {gpu['index']}" for gpu in report["status"]["gpus"]}
    return [
        {
            "time": entry["time"],
            "user": entry.get("on_behalf") or entry.get("user") or f"uid {entry.get('uid')}",
            "text": words.action_text(
                entry,
                (gpus if entry["op"] == "drain" else names).get(entry["target"], entry["target"]),
            ),
        }
        for entry in report.get("audit") or ()
        if entry["op"] not in words.AUTOMATIC
    ]


def _processes(status: dict[str, Any], indices: dict[str, int]) -> list[str]:
    """Return sentences for processes with unaccounted memory, which only administrators may see."""
    return [process_text(one, indices.get(one["gpu"])) for one in status.get("processes") or ()]
