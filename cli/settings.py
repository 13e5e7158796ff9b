# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare set``: change how the GPUs are shared."""

from __future__ import annotations

import argparse
from typing import Any

from ..scheduler.arguments import quantum
from ..scheduler.control import ControlClient, ControlError
from .main import complain


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "set",
        help="change the quantum or anti-thrashing",
        description="Change how the running scheduler shares the GPUs; print the settings.",
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


def run(args: argparse.Namespace) -> int:
    """Change the settings and print them."""
    params = {"quantum": args.quantum, "anti_thrash": args.anti_thrash}
    try:
        with ControlClient() as client:
            reply = client.request(
                "set", **{name: value for name, value in params.items() if value is not None}
            )
    except ControlError as error:
        return complain(str(error))
    for name, value in reply["settings"].items():
        print(f"{name}: {value}")
    return 0
