# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare set``: change how the GPUs are shared."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ...scheduler.node.arguments import complain, idleness, nearest, quantum, switch
from ...scheduler.protocol.client import ControlClient, ControlError

ANTI_THRASH = ["auto", "on", "off"]


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "set",
        description="Change how the running scheduler shares the GPUs, or print the settings. "
        "`gpushare set policy fcfs` and `gpushare set --policy fcfs` are equivalent.",
    )
    parser.add_argument(
        "setting",
        metavar="SETTING VALUE",
        nargs="*",
        help="policy, quantum, anti-thrash, hibernate-after or prefetch, and the new value",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="order of the queue: burst, fcfs, tgs, gemini, priority, or a policy of another package",
    )
    parser.add_argument(
        "--quantum",
        type=quantum,
        metavar="S",
        help="how long a notebook can keep running while others wait, in seconds, or auto",
    )
    parser.add_argument(
        "--anti-thrash",
        choices=ANTI_THRASH,
        help="auto: take turns only if the data does not fit; on: always take turns; off: never take turns, if the "
        "driver can page the memory",
    )
    parser.add_argument(
        "--hibernate-after",
        type=idleness,
        metavar="S|off",
        help="how long a notebook or program is idle before it is hibernated, in seconds; off: never hibernate",
    )
    parser.add_argument(
        "--prefetch",
        type=switch,
        metavar="on|off",
        help="restore the memory of notebooks that will probably be used within a minute, if no other notebook needs "
        "the room",
    )


def run(args: argparse.Namespace) -> int:
    """Change the settings, and print what has changed; without a change, print all settings."""
    try:
        asked = {**_pairs(args.setting), **_options(args)}
    except argparse.ArgumentTypeError as error:
        return complain(f"{error}. See: gpushare set --help")
    try:
        with ControlClient() as client:
            if "policy" in asked:
                _check_policy(client, asked["policy"])
            settings = client.request("set", **asked)["settings"]
    except ControlError as error:
        return complain(str(error))
    for name in asked or [name for name in settings if name != "policies"]:
        value = {None: "off", False: "off", True: "on"}.get(settings[name], settings[name])
        label = name.replace("_", "-")
        print(f"Set {label} to {value}." if asked else f"{label}: {value}")
    return 0


def _check_policy(client: ControlClient, policy: str) -> None:
    known = client.request("status")["status"]["settings"]["policies"]
    if policy not in known:
        raise ControlError(
            f"unknown policy {policy!r}{nearest(policy, known)}; choose from {', '.join(known)}"
        )


def _anti_thrash(text: str) -> str:
    if text not in ANTI_THRASH:
        raise argparse.ArgumentTypeError(
            f"invalid anti-thrash {text!r}{nearest(text, ANTI_THRASH)}; choose from {', '.join(ANTI_THRASH)}"
        )
    return text


#: The settings, and what parses their values.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "policy": str,
    "quantum": quantum,
    "anti_thrash": _anti_thrash,
    "hibernate_after": idleness,
    "prefetch": switch,
}


def _options(args: argparse.Namespace) -> dict[str, Any]:
    found = {name: getattr(args, name) for name in _PARSERS}
    return {name: value for name, value in found.items() if value is not None}


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """Parse settings that are written as pairs of a name and a value."""
    found: dict[str, Any] = {}
    for place in range(0, len(words), 2):
        written = words[place]
        name = written.replace("-", "_")
        if name not in _PARSERS:
            meant = nearest(written, [known.replace("_", "-") for known in _PARSERS])
            raise argparse.ArgumentTypeError(
                f"unknown setting {written!r}{meant}; for example: gpushare set policy fcfs"
            )
        if place + 1 == len(words):
            raise argparse.ArgumentTypeError(
                f"no value for {written!r}; for example: gpushare set policy fcfs"
            )
        found[name] = _PARSERS[name](words[place + 1])
    return found
