# SPDX-License-Identifier: BSD-3-Clause
"""The command ``gpushare``: finds the subcommand and loads only that one's module."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._version import __version__, docs_url
from ..scheduler.node.arguments import Parser, complain, nearest


class Command(NamedTuple):
    """A subcommand.

    Attributes
    ----------
    module
        The name of its module, which has ``add_parser(subparsers)`` and ``run(args) -> int``.
    summary
        What the command does, in one line.
    """

    module: str
    summary: str


#: The subcommands by name, in the sections of ``gpushare --help``.
SECTIONS = {
    "See what the GPUs are doing": {
        "status": Command("show.status", "show which notebooks use the GPUs, which wait, and why"),
        "explain": Command("show.explain", "explain the order of the queue"),
        "history": Command("show.history", "show what happened in the last 10 minutes"),
    },
    "Use the GPU outside of JupyterLab": {
        "run": Command("programs.run", "run any program so that it shares the GPU"),
        "kernelspec": Command(
            "programs.kernelspec", "share the GPU in VS Code, nbconvert, papermill, ..."
        ),
        "mcp": Command("mcp.command", "serve tools for agents (Model Context Protocol)"),
    },
    "Control a notebook or program": {
        "release": Command("steer.release", "release the GPU so that the next notebook can run"),
        "evict": Command("steer.release", "release the GPU and evict all memory to the host"),
        "hibernate": Command("steer.release", "free all GPU memory, including the CUDA context"),
        "wake": Command("steer.release", "wake a hibernated notebook before its next cell does"),
        "ready": Command("steer.ready", "restore a notebook's memory before its next cell does"),
        "reserve": Command("steer.reserve", "reserve the GPU for a notebook, or cancel that"),
        "reservations": Command("steer.reserve", "list the reservations of the GPU"),
        "background": Command("steer.adjust", "let interactive notebooks go first"),
        "interactive": Command("steer.adjust", "go ahead of background notebooks"),
        "agent": Command("steer.adjust", "let people's cells go first, background work last"),
        "auto": Command("steer.adjust", "choose the class automatically (the default)"),
        "keep": Command("steer.adjust", "keep idle memory on the GPU"),
        "freeze": Command("steer.adjust", "stop using the GPU until `gpushare unfreeze`"),
        "unfreeze": Command("steer.adjust", "allow a frozen notebook to use the GPU again"),
        "limit": Command("steer.adjust", "limit memory per GPU, or the share of GPU time"),
        "memory": Command("steer.adjust", "limit memory per GPU"),
        "request": Command("steer.adjust", "guarantee a share of GPU time"),
        "weight": Command("steer.adjust", "set the weight for spare GPU time"),
    },
    "Change how the GPUs are shared": {
        "set": Command("steer.settings", "set the policy, time slice, hibernation and prefetch"),
        "shares": Command("steer.shares", "show or set the entitlements of users and teams"),
    },
    "Administer a shared machine": {
        "scheduler": Command("admin.scheduler", "run the scheduler without JupyterLab"),
        "drain": Command("admin.administer", "stop granting a GPU, and evict all memory from it"),
        "hold": Command("admin.administer", "put a notebook or program on hold"),
        "maintenance": Command("admin.administer", "show a message to all users"),
        "report": Command("show.report", "summarise GPU use over the last week"),
        "audit": Command("show.report", "show the audit log"),
        "metrics": Command("show.report", "print metrics for Prometheus"),
        "hub": Command("..hub.command", "serve the JupyterHub page that shows all GPUs"),
        "libraries": Command("admin.libraries", "copy the libraries that containers mount"),
        "hibernator": Command("admin.hibernator", "hibernate processes in containers"),
        "device-plugin": Command("admin.device_plugin", "offer GPU slots to Kubernetes"),
        "dra-driver": Command("admin.dra_driver", "share GPUs among Kubernetes resource claims"),
    },
    "Check, try out and measure": {
        "doctor": Command("doctor.command", "check the installation and explain how to fix it"),
        "demo": Command("demo.command", "watch notebooks share one GPU"),
        "bench": Command("bench", "measure overhead, waits and hand-offs on this machine"),
        "simulate": Command("recordings.simulate", "compare scheduling policies on a workload"),
        "record": Command("recordings.record", "record the scheduler's input events for replay"),
        "replay": Command("recordings.replay", "replay a recording and compare the decisions"),
        "completion": Command("completion", "print the completion script for a shell"),
    },
}
COMMANDS = {name: found for section in SECTIONS.values() for name, found in section.items()}


def build_parser(command: str | None = None) -> Parser:
    """Make the parser of ``command``, or one that has only the names of all commands."""
    parser = Parser(
        prog="gpushare",
        usage="gpushare [-h] [--version] COMMAND ...",
        description="Run many Jupyter notebooks on one GPU.",
        epilog=f"{_listing()}\n\nRun `gpushare COMMAND --help` for the options of a command.\n"
        f"Documentation: {docs_url()}",
    )
    parser.add_argument("--version", action="version", version=f"gpushare {__version__}")
    subparsers = parser.add_subparsers(dest="command", prog="gpushare", help=argparse.SUPPRESS)
    if command in COMMANDS:
        _module(command).add_parser(subparsers)
        subparsers.choices[
            command
        ].epilog = f"Documentation: {docs_url('reference/commands')}#gpushare-{command}"
    else:
        for name in COMMANDS:
            subparsers.add_parser(name)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 for a mistake that the user can correct."""
    if "_ARGCOMPLETE" in os.environ:
        _complete(os.environ.get("COMP_LINE", ""))
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    if command and not command.startswith("-") and command not in COMMANDS:
        return complain(
            f"unknown command {command!r}{nearest(command, COMMANDS)}. See: gpushare --help"
        )
    parser = build_parser(command)
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    from ..scheduler.gpu.drivers import DriverError
    from ..scheduler.protocol.address import AddressError

    try:
        return int(_module(args.command).run(args))
    except (AddressError, DriverError) as error:
        return complain(str(error))
    except BrokenPipeError:
        # The reader (head, less) has seen enough. Python must not report an error at exit, either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _complete(line: str) -> None:
    """Answer the shell that is completing ``line``, and exit."""
    import argcomplete

    words = line.split()
    argcomplete.autocomplete(build_parser(words[1] if len(words) > 1 else None))


def _listing() -> str:
    """List the commands by section."""
    width = max(map(len, COMMANDS))
    return "\n\n".join(
        "\n".join(
            [
                f"{title}:",
                *(f"  {name:<{width}}  {found.summary}" for name, found in section.items()),
            ]
        )
        for title, section in SECTIONS.items()
    )


def _module(command: str) -> Any:
    name = COMMANDS[command].module
    return importlib.import_module(name if name.startswith(".") else f".{name}", __package__)


if __name__ == "__main__":
    sys.exit(main())
