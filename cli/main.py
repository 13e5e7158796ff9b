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
    "status": "show.status",
    "run": "programs.run",
    "release": "steer.release",
    "offload": "steer.release",
    "hibernate": "steer.release",
    "wake": "steer.release",
    "background": "steer.adjust",
    "interactive": "steer.adjust",
    "auto": "steer.adjust",
    "keep": "steer.adjust",
    "freeze": "steer.adjust",
    "unfreeze": "steer.adjust",
    "limit": "steer.adjust",
    "memory": "steer.adjust",
    "request": "steer.adjust",
    "weight": "steer.adjust",
    "shares": "steer.shares",
    "explain": "show.explain",
    "history": "show.history",
    "record": "recordings.record",
    "replay": "recordings.replay",
    "set": "steer.settings",
    "scheduler": "admin.scheduler",
    "kernelspec": "programs.kernelspec",
    "doctor": "doctor.command",
    "demo": "demo.command",
    "bench": "bench",
    "simulate": "recordings.simulate",
    "device-plugin": "admin.device_plugin",
    "libraries": "admin.libraries",
    "hub": "..hub.command",
    "drain": "admin.administer",
    "hold": "admin.administer",
    "evict": "admin.administer",
    "maintenance": "admin.administer",
    "report": "show.report",
    "audit": "show.report",
    "metrics": "show.report",
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
