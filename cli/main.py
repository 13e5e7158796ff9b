# SPDX-License-Identifier: BSD-3-Clause
"""The command ``gpushare``: finds the subcommand and loads only its module."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from .._version import __version__
from ..scheduler.node.arguments import Parser, complain

#: Each subcommand's module, which has ``add_parser(subparsers)`` and ``run(args) -> int``.
COMMANDS = {
    "status": "status",
    "run": "run",
    "release": "release",
    "offload": "release",
    "hibernate": "release",
    "wake": "release",
    "background": "adjust",
    "interactive": "adjust",
    "auto": "adjust",
    "keep": "adjust",
    "freeze": "adjust",
    "unfreeze": "adjust",
    "limit": "adjust",
    "memory": "adjust",
    "request": "adjust",
    "weight": "adjust",
    "shares": "shares",
    "explain": "explain",
    "history": "history",
    "record": "record",
    "replay": "replay",
    "set": "settings",
    "scheduler": "scheduler",
    "kernelspec": "kernelspec",
    "doctor": "doctor",
    "demo": "demo",
    "bench": "bench",
    "simulate": "simulate",
    "device-plugin": "device_plugin",
    "libraries": "libraries",
    "hub": "..hub.command",
    "drain": "administer",
    "hold": "administer",
    "evict": "administer",
    "maintenance": "administer",
    "report": "report",
    "audit": "report",
    "metrics": "report",
}


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of ``command`` alone, or of all commands."""
    parser = Parser(prog="gpushare", description="Many Jupyter notebooks share one GPU.")
    parser.add_argument("--version", action="version", version=f"gpushare {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = [COMMANDS[command]] if command in COMMANDS else list(dict.fromkeys(COMMANDS.values()))
    for name in chosen:
        _module(name).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 for what the user can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = build_parser(arguments[0] if arguments else None).parse_args(arguments)
    from ..scheduler.gpu.drivers import DriverError
    from ..scheduler.protocol.address import AddressError

    try:
        return int(_module(COMMANDS[args.command]).run(args))
    except (AddressError, DriverError) as error:
        return complain(str(error))
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python must not complain at its exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _module(name: str) -> Any:
    return importlib.import_module(name if name.startswith(".") else f".{name}", __package__)


if __name__ == "__main__":
    sys.exit(main())
