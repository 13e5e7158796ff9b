# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare status``: who has the GPU, who waits and why."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..scheduler.control import ControlClient, ControlError
from . import wording
from .main import complain

#: Seconds between two pictures of ``--watch`` if nothing happens, and at least.
WATCH_SLOW = 1.0
WATCH_FAST = 0.1


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="show who has the GPU, who waits and why",
        description="Show who has the GPU, who waits and why, and where the memory is.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, as in docs/control.md")
    parser.add_argument("--watch", action="store_true", help="go on, until Ctrl-C")


def run(args: argparse.Namespace) -> int:
    """Print the status, once or again and again."""
    try:
        with ControlClient() as client:
            if not args.watch:
                _print(client.request("status")["status"], args.json)
                return 0
            client.request("subscribe")
            while True:
                status = client.request("status")["status"]
                if not args.json and sys.stdout.isatty():
                    # Home, and clear what is below: no flicker.
                    print("\033[H\033[J", end="")
                _print(status, args.json)
                time.sleep(WATCH_FAST)
                client.next_event(WATCH_SLOW)
                while client.next_event(0.0) is not None:
                    pass
    except ControlError as error:
        return complain(str(error))


def _print(status: dict[str, Any], as_json: bool) -> None:
    text = json.dumps(status) if as_json else render(status)
    print(text, flush=True)


def render(status: dict[str, Any]) -> str:
    """Word a status as text."""
    parts = [
        f"maintenance: {status['maintenance']}" if status.get("maintenance") else "",
        _gpus(status),
        _groups(status),
        _processes(status),
        _notices(status),
        wording.hibernation(status),
        _footer(status),
    ]
    return "\n\n".join(part for part in parts if part)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: set[int]) -> str:
    """Align columns; ``right`` names those that are aligned to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _gpus(status: dict[str, Any]) -> str:
    if not status["gpus"]:
        return "no GPU is known to the scheduler; run: gpushare doctor"
    head = ("GPU", "NAME", "TOTAL", "RESIDENT", "PINNED", "CONTEXTS", "OTHERS", "FREE")
    rows = [
        (
            str(gpu["index"]),
            gpu["name"],
            *(
                wording.size(gpu[key])
                for key in ("total", "resident", "pinned", "contexts", "foreign", "free")
            ),
        )
        for gpu in status["gpus"]
    ]
    drained = [
        f"GPU {gpu['index']} is being emptied: it grants nothing"
        for gpu in status["gpus"]
        if gpu.get("draining")
    ]
    return "\n".join([table(head, rows, set(range(2, len(head)))), *drained])


def _groups(status: dict[str, Any]) -> str:
    if not status["groups"]:
        return "nobody uses the GPU through gpushare now"
    now = status["time"]
    head = ("STATE", "NAME", "ID", "CLASS", "FOR", "FOOTPRINT", "RESIDENT", "SWAPPED", "WISHES", "")
    rows = []
    order = ("running", "moving", "yielding", "held", "waking", "waiting", "idle", "hibernated")
    rank = {state: place for place, state in enumerate(order)}
    for group in sorted(
        status["groups"],
        key=lambda group: (rank.get(group["state"], 9), group["position"] or 0, group["name"]),
    ):
        rows.append(
            (
                wording.state(group),
                group["name"],
                group["id"][:8],
                str(group.get("class") or ""),
                wording.duration(now - group["since"]) if group["since"] is not None else "",
                *(
                    wording.size(sum(gpu[key] for gpu in group["gpus"]))
                    for key in ("footprint", "resident", "swapped")
                ),
                wording.wishes(group.get("wishes")),
                wording.remark(group),
            )
        )
    return table(head, rows, {4, 5, 6, 7})


def _processes(status: dict[str, Any]) -> str:
    """Word who holds what nobody states; only administrators are told."""
    found = status.get("processes")
    if not found:
        return ""
    indices = {gpu["uuid"]: str(gpu["index"]) for gpu in status["gpus"]}
    head = ("NOT STATED", "GPU", "PID", "USER", "HOLDS", "STATES")
    rows = [
        (
            "outside gpushare" if one["code"] == "outside" else "more than stated",
            indices.get(one["gpu"], one["gpu"]),
            str(one["pid"]),
            one["user"] or "?",
            wording.size(one["bytes"]),
            wording.size(one["claimed"]),
        )
        for one in found
    ]
    return table(head, rows, {1, 2, 4, 5})


def _notices(status: dict[str, Any]) -> str:
    names = {group["id"]: group["name"] for group in status["groups"]}
    return "\n".join(
        f"note: {wording.notice(notice, names.get(notice['group'], notice['group']))}"
        for notice in status["notices"]
        if notice["code"] != "maintenance"
    )


def _footer(status: dict[str, Any]) -> str:
    settings, host = status["settings"], status["host"]
    quantum = settings["quantum"]
    words = [
        f"policy {settings.get('policy')}",
        f"quantum {quantum if quantum == 'auto' else wording.duration(quantum)}",
        f"anti-thrash {settings['anti_thrash']}",
        _hibernation(settings),
        f"host memory {wording.size(host['swapped'])} of {wording.size(host['budget'])}",
    ]
    pool = host.get("pool")
    if pool is not None and pool["prepared"]:
        words.append(
            f"pool {wording.size(pool['in_use'])} used, {wording.size(pool['prepared'])} ready, "
            f"{wording.size(pool['pinned'])} pinned"
        )
    if status["driver"]["simulated"]:
        words.append("simulated driver")
    return ", ".join(word for word in words if word)


def _hibernation(settings: dict[str, Any]) -> str:
    if "hibernate_after" not in settings:
        return ""
    after = settings["hibernate_after"]
    return "hibernate off" if after is None else f"hibernate after {wording.duration(after)}"
