# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare set``: change how the GPUs are shared."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from ...scheduler.node.arguments import complain, idleness, quantum
from ...scheduler.protocol.client import ControlClient, ControlError


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "set",
        help="change the policy, the quantum, anti-thrashing or hibernation",
        description="Change how the running scheduler shares the GPUs; print the settings. "
        "`gpushare set policy fcfs` is the same as `gpushare set --policy fcfs`.",
    )
    parser.add_argument(
        "setting",
        metavar="SETTING VALUE",
        nargs="*",
        help="policy, quantum, anti-thrash or hibernate-after, and its value",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME",
        help="who comes first: burst, fcfs, tgs, gemini, priority, or one that another package "
        "registered",
    )
    parser.add_argument(
        "--quantum",
        type=quantum,
        metavar="S",
        help="seconds that a holder may keep others waiting, or auto",
    )
    parser.add_argument(
        "--anti-thrash",
        choices=["auto", "on", "off"],
        help="auto: serialise only what does not fit; on: one at a time; off: never where the "
        "memory can be paged",
    )
    parser.add_argument(
        "--hibernate-after",
        type=idleness,
        metavar="S|off",
        help="seconds for which a notebook or program is idle before it is hibernated; off: never",
    )


def run(args: argparse.Namespace) -> int:
    """Change the settings and print them."""
    try:
        params = {**_pairs(args.setting), **_options(args)}
    except argparse.ArgumentTypeError as error:
        return complain(str(error))
    try:
        with ControlClient() as client:
            reply = client.request("set", **params)
    except ControlError as error:
        return complain(str(error))
    for name, value in reply["settings"].items():
        if name != "policies":
            print(f"{name}: {'off' if value is None else value}")
    return 0


#: The settings, and what reads their values.
_PARSERS: dict[str, Callable[[str], Any]] = {
    "policy": str,
    "quantum": quantum,
    "anti_thrash": str,
    "hibernate_after": idleness,
}


def _options(args: argparse.Namespace) -> dict[str, Any]:
    found = {name: getattr(args, name) for name in _PARSERS}
    return {name: value for name, value in found.items() if value is not None}


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """Read settings that are written as words: a name and its value each."""
    found: dict[str, Any] = {}
    for place in range(0, len(words), 2):
        name = words[place].replace("-", "_")
        if name not in _PARSERS or place + 1 == len(words):
            raise argparse.ArgumentTypeError(
                f"this is not understood: set {' '.join(words)}; write for instance set policy fcfs"
            )
        found[name] = _PARSERS[name](words[place + 1])
    return found
