# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare run``: any program, under the interposer."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ...kernel_provisioner import ticket
from ...kernel_provisioner.launch import (
    BACKENDS,
    LaunchError,
    Settings,
    client_environment,
    is_ipykernel,
    new_group,
    parse_backend,
    plain_environment,
    with_in_kernel_part,
)
from ...scheduler.gpu.drivers import DriverError, find_driver
from ...scheduler.node.entitlements import parse_size
from ...scheduler.protocol.address import AddressError, is_own_place, prepare, socket_path

DESCRIPTION = """\
Run any program so that it shares the GPU with your notebooks. All that the program starts belongs to it: they are one
lease group. The program takes the place of this command, so that signals, exit status and process id are its own.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gpushare run``."""
    parser = subparsers.add_parser(
        "run",
        help="run any program so that it shares the GPU",
        description=DESCRIPTION,
        usage="gpushare run [--memory B] [--gpu N] [--name T] [--backend B] [--oversubscribe] -- CMD [ARG ...]",
    )
    parser.add_argument(
        "--memory",
        type=_memory,
        metavar="B",
        help="most device memory that the program may have, such as 20GiB (default: GPUSHARE_MEMORY, else no cap)",
    )
    parser.add_argument(
        "--gpu",
        type=_gpus,
        metavar="N",
        help="the GPU that the program sees: index or UUID, or several with commas between (default: all)",
    )
    parser.add_argument(
        "--name", metavar="T", help="what the queue shows (default: the program's name)"
    )
    parser.add_argument(
        "--backend",
        type=_backend,
        metavar="B",
        help=f"memory backend: {', '.join(BACKENDS)} (default: GPUSHARE_BACKEND, else auto)",
    )
    parser.add_argument(
        "--oversubscribe",
        action="store_true",
        default=None,
        help="let one process hold more than the GPU has, as managed memory "
        "(default: GPUSHARE_OVERSUBSCRIBE, else no)",
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="CMD", help="the program and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Become the program. Returns only where that cannot be done: the exit status."""
    command: list[str] = list(arguments.program)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        return _refuse("name a program: gpushare run -- CMD [ARG ...]", 2)
    program = shutil.which(command[0])
    if program is None:
        found = Path(command[0]).exists()
        return _refuse(
            f"{command[0]}: {'not an executable file' if found else 'no such program'}",
            126 if found else 127,
        )
    environ: dict[str, str] = plain_environment(os.environ)
    if arguments.gpu is not None:
        environ["CUDA_VISIBLE_DEVICES"] = arguments.gpu
    try:
        environ = _shared(environ, arguments, command)
    except (DriverError, LaunchError, AddressError) as error:
        _say(f"{error}; {command[0]} runs without sharing")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, with_in_kernel_part(command), environ)
    except OSError as error:
        return _refuse(f"{command[0]} cannot be run: {error.strerror}", 126)


def _shared(
    environ: dict[str, str], arguments: argparse.Namespace, command: Sequence[str]
) -> dict[str, str]:
    """Make the program's environment, and see to it that there is a scheduler."""
    driver = find_driver(environ)
    if driver is None:
        raise DriverError("no CUDA driver was found")
    socket, group = socket_path(environ), new_group()
    # Here and not above: it needs the protocol's compiled part.
    from . import standby

    ours, kernel = is_own_place(socket), ticket.of_kernel(os.environ)
    shown: Path | None = None
    if kernel is not None:
        group, shown = kernel
    elif not ours:
        shown = _ticket(socket, group)
    environment = client_environment(
        environ,
        group=group,
        name=arguments.name or program_name(command, environ),
        driver=driver,
        socket=socket,
        settings=Settings(arguments.backend, arguments.memory, arguments.oversubscribe),
        ticket=shown,
    )
    if ours:
        prepare(socket)
        if not standby.attend(socket, driver):
            _say(
                f"no scheduler answers at {socket} and none could be started; `gpushare doctor` says why"
            )
            # There is none to wait for.
            environment.setdefault("GPUSHARE_SCHEDULER_PATIENCE_S", "0")
    elif shown is not None and kernel is None:
        standby.start(socket, driver, group, shown)
    return environment


def _ticket(socket: Path, group: str) -> Path | None:
    """Get the program's ticket from a node's scheduler, and return where it lies, if it needs one."""
    from ...scheduler.protocol.client import ControlError

    try:
        return ticket.obtain_here(socket, group)
    except (ControlError, OSError) as error:
        _say(str(error))
        return None


def program_name(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """What the queue shows where no name is given: the notebook, the script, the module or the program."""
    if is_ipykernel(command) and (notebook := environ.get("JPY_SESSION_NAME")):
        return Path(notebook).name
    program = Path(command[0]).name
    if not re.fullmatch(r"python[\d.]*|sh|bash|env|uv|poetry|conda|torchrun", program):
        return program
    for before, word in pairwise(command):
        if before == "-m":
            return word
        if not word.startswith("-") and "." in Path(word).name:
            return Path(word).name
    return program


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _backend(text: str) -> str:
    try:
        return parse_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _gpus(text: str) -> str:
    if not re.fullmatch(r"(\d+|(GPU|MIG)-[0-9a-fA-F/-]+)(,(\d+|(GPU|MIG)-[0-9a-fA-F/-]+))*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no GPU; write its index, such as 0, or its UUID"
        )
    return text


def _say(sentence: str) -> None:
    print(f"gpushare: {sentence}", file=sys.stderr)


def _refuse(sentence: str, status: int) -> int:
    _say(sentence)
    return status
