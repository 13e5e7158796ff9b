# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare status``: which notebooks use the GPUs, which wait, and why."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from rich.text import Text

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.redaction import OTHER
from ...scheduler.views.words.amounts import duration, of_which, size
from ..terminal import columns, console, table

#: Seconds between two updates of ``--watch``: at most, and at least.
WATCH_SLOW = 1.0
WATCH_FAST = 0.1
#: Colours of the states; other states have none.
COLOURS = {
    "running": "green",
    "finishing": "cyan",
    "restoring": "cyan",
    "waking": "cyan",
    "waiting": "yellow",
    "idle": "dim",
    "hibernated": "dim",
}
WARNING = "yellow"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "status",
        description="Show the memory of each GPU, and which notebooks and programs are running or waiting, why, and "
        "for about how much longer.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--watch", action="store_true", help="refresh continuously until you press Ctrl-C"
    )


def run(args: argparse.Namespace) -> int:
    """Print the status, once or continuously."""
    try:
        with ControlClient() as client:
            if not args.watch:
                _print(client.request("status", text=True)["status"], args.json)
                return 0
            client.request("subscribe")
            while True:
                status = client.request("status", text=True)["status"]
                if not args.json and sys.stdout.isatty():
                    # Moving to the start and clearing the rest flickers less than clearing first.
                    print("\033[H\033[J", end="")
                _print(status, args.json)
                time.sleep(WATCH_FAST)
                client.next_event(WATCH_SLOW)
                while client.next_event(0.0) is not None:
                    pass
    except ControlError as error:
        return complain(str(error))


def _print(status: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(status), flush=True)
    else:
        console().print(render(status, columns()))


def render(status: dict[str, Any], width: int | None = None) -> Text:
    """Return a status as text.

    Parameters
    ----------
    status
        The scheduler's status, with its sentences.
    width
        The width of the terminal. None: lines can have any length.
    """
    maintenance = f"maintenance: {status['maintenance']}" if status.get("maintenance") else ""
    parts = [
        Text(maintenance, WARNING),
        _gpus(status, width),
        _groups(status, width),
        _processes(status, width),
        Text(_notices(status), WARNING),
        Text(_words(status).get("hibernation", "")),
        Text(_footer(status), "dim"),
    ]
    return Text("\n\n").join(part for part in parts if part)


def _words(status: dict[str, Any]) -> dict[str, Any]:
    """Return the sentences about the whole node. The scheduler may be of an older version, which sends none."""
    return status.get("words") or {}


def _words_of(group: dict[str, Any]) -> dict[str, str]:
    """Return the sentences about a notebook or program; an older scheduler sends only codes."""
    code = (group.get("reason") or {}).get("code", "")
    return group.get("words") or {"state": group["state"], "preferences": "", "why": code}


def _gpus(status: dict[str, Any], width: int | None) -> Text:
    if not status["gpus"]:
        return Text("The scheduler found no GPUs; run: gpushare doctor")
    # An older scheduler, and NVML for MIG slices, have no figure of the power.
    powers = [gpu.get("power") for gpu in status["gpus"]]
    has_power = any(power is not None for power in powers)
    head = (
        *("GPU", "NAME", "TOTAL", "RESIDENT", "UNEVICTABLE", "CONTEXTS", "UNMANAGED", "FREE"),
        *(("POWER",) if has_power else ()),
    )
    rows = [
        (
            str(gpu["index"]),
            gpu["name"],
            *(
                size(gpu[key])
                for key in ("total", "resident", "unevictable", "contexts", "foreign", "free")
            ),
            *((("" if power is None else f"{power} W"),) if has_power else ()),
        )
        for gpu, power in zip(status["gpus"], powers, strict=True)
    ]
    draining = [Text(sentence, WARNING) for sentence in _words(status).get("draining", [])]
    return Text("\n").join([table(head, rows, set(range(2, len(head))), width), *draining])


def _groups(status: dict[str, Any], width: int | None) -> Text:
    if not status["groups"]:
        return Text("No notebooks or programs are using the GPU through gpushare.")
    now = status["time"]
    # The column of users is for viewers who see the notebooks of several.
    viewer = status.get("viewer", {}).get("user")
    users = any(group.get("user", viewer) not in (viewer, OTHER) for group in status["groups"])
    disk = any(gpu.get("disk") for group in status["groups"] for gpu in group["gpus"])
    head = (
        "STATE",
        "NAME",
        *(("USER",) if users else ()),
        "ID",
        "CLASS",
        "FOR",
        "FOOTPRINT",
        "RESIDENT",
        "HOST MEMORY",
        *(("ON DISK",) if disk else ()),
        "SETTINGS",
        "",
    )
    rows = []
    for group in status["groups"]:
        words = _words_of(group)
        rows.append(
            (
                Text(words["state"], COLOURS.get(group["state"], "")),
                group["name"],
                *((group["user"],) if users else ()),
                group["id"][:8],
                str(group.get("class") or ""),
                duration(now - group["since"]) if group["since"] is not None else "",
                *_memory(group, disk),
                words["preferences"],
                words["why"],
            )
        )
    first = head.index("FOR")
    return table(head, rows, set(range(first, head.index("SETTINGS"))), width)


def _memory(group: dict[str, Any], disk: bool) -> list[str]:
    """Return a notebook's footprint and where it is, with what is clean and shared of it."""
    held = {
        key: sum(gpu.get(key, 0) for gpu in group["gpus"])
        for key in ("footprint", "resident", "clean", "swapped", "shared", "disk")
    }
    return [
        size(held["footprint"]),
        of_which(held["resident"], held["clean"], "clean"),
        of_which(held["swapped"], held["shared"], "shared"),
        *([size(held["disk"])] if disk else []),
    ]


def _processes(status: dict[str, Any], width: int | None) -> Text:
    """List the processes with memory that gpushare cannot account for, which only administrators see."""
    found = status.get("processes")
    if not found:
        return Text()
    indices = {gpu["uuid"]: str(gpu["index"]) for gpu in status["gpus"]}
    head = ("UNACCOUNTED", "GPU", "PID", "USER", "HOLDS", "REPORTED")
    rows = [
        (
            "not managed by gpushare" if one["code"] == "outside" else "uses more than it reports",
            indices.get(one["gpu"], one["gpu"]),
            str(one["pid"]),
            one["user"] or "?",
            size(one["bytes"]),
            size(one["claimed"]),
        )
        for one in found
    ]
    return table(head, rows, {1, 2, 4, 5}, width)


def _notices(status: dict[str, Any]) -> str:
    return "\n".join(
        f"note: {notice.get('text') or notice['code']}"
        for notice in status["notices"]
        if notice["code"] != "maintenance"
    )


def _footer(status: dict[str, Any]) -> str:
    host = status["host"]
    words = [
        _words(status).get("settings", ""),
        f"host memory {size(host['swapped'])} of {size(host['budget'])} in use",
    ]
    if host.get("shared"):
        words.append(f"{size(host['shared'])} saved by sharing")
    pool = host.get("pool")
    if pool is not None and pool["prepared"]:
        words.append(
            f"pool {size(pool['in_use'])} in use, {size(pool['prepared'])} ready, "
            f"{size(pool['page_locked'])} page-locked"
        )
    disk = host.get("disk_tier")
    if disk is not None:
        words.append(f"disk {size(disk['used'])} of {size(disk['size'])} in use")
        if disk["fault"]:
            words.append(f"no more data goes to the disk ({disk['fault']})")
    if status["driver"]["simulated"]:
        words.append("simulated driver")
    return ", ".join(word for word in words if word)
