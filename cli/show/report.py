# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare report``, ``audit`` and ``metrics``: figures and logs for administrators."""

from __future__ import annotations

import argparse
import json
import re
import time
from datetime import datetime
from typing import Any

from rich.text import Text

from ...scheduler.node.arguments import complain
from ...scheduler.node.prices import GIB_HOUR, HOUR, KWH
from ...scheduler.protocol.client import ControlClient, ControlError
from ...scheduler.views.words.amounts import duration, size
from ..terminal import columns, console, table

#: What ``--by`` can divide a report by, in the order of the columns.
DIVISIONS = ("day", "team", "user", "notebook")
NOT_MEASURED = "not measured"

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    since = "start of the period: an age such as 2h or 3d, or a date"
    report = subparsers.add_parser(
        "report",
        description="Summarise GPU use in one line: GPU hours used and shared, waits, out-of-memory errors avoided, "
        "and energy. With --by, list GPU time, memory, moved data, energy and cost in a table. For administrators.",
    )
    report.add_argument(
        "--by",
        action="extend",
        nargs="+",
        choices=DIVISIONS,
        metavar="WHAT",
        help="print a table with a row for each user, team, notebook, day, or combination of these",
    )
    report.add_argument("--user", metavar="NAME", help="limit the table to notebooks of this user")
    report.add_argument("--week", action="store_true", help="report the last seven days (default)")
    report.add_argument("--since", type=moment, metavar="WHEN", help=since)
    report.add_argument(
        "--until", type=moment, metavar="WHEN", help="end of the period (default: now)"
    )
    audit = subparsers.add_parser(
        "audit",
        description="Show the audit log: who changed what, when, and with which result, in chronological order. For "
        "administrators.",
    )
    audit.add_argument("--since", type=moment, metavar="WHEN", help=since)
    for parser in (report, audit):
        parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    subparsers.add_parser(
        "metrics",
        description="Print the scheduler's metrics in the text format of Prometheus, for example for the textfile "
        "collector of node_exporter. For administrators.",
    )


def run(args: argparse.Namespace) -> int:
    """Print the report, the audit log or the metrics."""
    try:
        with ControlClient() as client:
            if args.command == "metrics":
                from ...scheduler.observability.metrics import text

                print(text(client.request("metrics")["metrics"]), end="")
                return 0
            asked = {
                name: value
                for name in ("since", "until", "by", "user")
                if (value := getattr(args, name, None)) is not None
            }
            if args.command == "report" and args.user is not None and not args.by:
                return complain("--user requires --by. See: gpushare report --help")
            if args.command == "report" and args.week and asked.keys() & {"since", "until"}:
                return complain(
                    "--week cannot be combined with --since or --until. See: gpushare report --help"
                )
            found = client.request(args.command, **asked)[args.command]
    except ControlError as error:
        return complain(str(error))
    if args.json:
        print(json.dumps(found))
    elif args.command == "report":
        print(line(found))
        if args.by:
            print()
            console().print(use_table(found, args.by, columns()))
    else:
        for entry in found:
            print(entry_text(entry))
    return 0


def moment(text: str) -> float:
    """Parse an age (``90m``, ``2h``, ``3d``) or a date into seconds since 1970."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text, re.ASCII):
        return time.time() - float(match[1]) * _UNITS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"invalid time {text!r}; use for example 2h, 3d, 2026-03-01 or 2026-03-01T12:00"
        ) from None


def line(found: dict[str, Any]) -> str:
    """Summarise a report in one line."""
    if not found["hours"]:
        return "no data for this period: the scheduler was not running, or has no state directory"
    first, last = (
        time.strftime("%d %b %Y", time.localtime(at)) for at in (found["since"], found["until"] - 1)
    )
    used, shared = found["used"] / 3600, found["shared"] / 3600
    present = found["present"] / 3600
    part = 100 * used / present if present else 0.0
    sharing = 100 * shared / used if used else 0.0
    waits = _count(found["leases"], "lease")
    if found["waits"]:
        waits += (
            f", {_count(found['waits'], 'wait')} of {duration(found['waited'] / found['waits'])} on average and "
            f"{duration(found['longest'])} at most"
        )
    else:
        waits += ", no waits"
    return (
        f"{first if first == last else f'{first} to {last}'}: {_count(found['gpus'], 'GPU')}, "
        f"{_count(len(found['users']), 'user')}, {used:.1f} of {present:.1f} GPU hours used ({part:.0f}%), "
        f"{shared:.1f} of them shared by several users ({sharing:.0f}%); {waits}; "
        f"{_count(found['avoided'], 'out-of-memory error')} avoided, {found['given']} raised; {energy_text(found)}"
    )


def energy_text(found: dict[str, Any]) -> str:
    """Return a report's energy as words."""
    if found["energy"] is None:
        return f"energy {NOT_MEASURED}"
    idle = f"{found['idle_energy'] / KWH:.3f} idle"
    if (prices := found.get("prices")) and prices["kwh"]:
        idle += f", {money(found['idle_cost'], prices)}"
    # A GPU without a counter, or a time without readings.
    missing = 100 * (1 - found["measured"] / found["present"]) if found["present"] else 0.0
    partly = f", {missing:.0f}% of the GPU hours {NOT_MEASURED}" if missing >= 1 else ""
    return f"{found['energy'] / KWH:.3f} kWh ({idle}){partly}"


def use_table(found: dict[str, Any], by: list[str], width: int | None = None) -> Text:
    """Return the rows of a report as a table."""
    rows, prices = found["rows"], found.get("prices")
    if not rows:
        return Text("No notebook or program used a GPU in this period.")
    keys = [key for key in DIVISIONS if key in rows[0]]
    if "day" in keys:
        rows = sorted(rows, key=lambda row: row["day"])
    disk = any(row.get("disk_byte_seconds") for row in rows)
    head = (
        *(key.upper() for key in keys),
        "GPU HOURS",
        "GPU GIB-HOURS",
        "HOST GIB-HOURS",
        *(("DISK GIB-HOURS",) if disk else ()),
        "MOVED",
        "KWH",
        *(("COST",) if prices else ()),
    )
    lines = [
        (
            *(row[key] or ("(no team)" if key == "team" else "(others)") for key in keys),
            f"{row['seconds'] / HOUR:.2f}",
            f"{row['gpu_byte_seconds'] / GIB_HOUR:.2f}",
            f"{row['host_byte_seconds'] / GIB_HOUR:.2f}",
            *((f"{row['disk_byte_seconds'] / GIB_HOUR:.2f}",) if disk else ()),
            size(row["moved"]),
            NOT_MEASURED if row["energy"] is None else f"{row['energy'] / KWH:.3f}",
            *((money(row["cost"], prices),) if prices else ()),
        )
        for row in rows
    ]
    return table(head, lines, set(range(len(keys), len(head))), width)


def money(amount: float, prices: dict[str, Any]) -> str:
    """Return an amount with its currency."""
    return f"{amount:.2f} {prices['currency']}".rstrip()


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def entry_text(entry: dict[str, Any]) -> str:
    """Return an entry of the audit log as a line of text."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.get("time", 0)))
    who = entry.get("user") or f"uid {entry.get('uid')}"
    if entry.get("on_behalf"):
        who = f"{entry['on_behalf']} (by {who})"
    given = " ".join(
        f"{key}={value}"
        for key, value in (entry.get("given") or {}).items()
        if value != entry.get("target")
    )
    words = [at, who, str(entry.get("op")), str(entry.get("target") or ""), given]
    outcome = entry.get("outcome")
    return " ".join(word for word in words if word) + ("" if outcome == "ok" else f": {outcome}")
