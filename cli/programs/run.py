# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare run``: run any program with the interposer."""

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
Run any program so that it shares the GPU with your notebooks. The program and all processes that it starts form one
lease group: they get the GPU together. The program replaces this command, so it keeps the process ID, and signals and
the exit status are its own.
"""

#: Programs and modules that run one notebook, and tell its kernel nothing about it.
RUNNERS = {"jupyter-execute", "jupyter-nbconvert", "jupyter-run", "nbconvert", "papermill"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gpushare run``."""
    parser = subparsers.add_parser(
        "run",
        description=DESCRIPTION,
        usage="gpushare run [-h] [--memory SIZE] [--gpu GPU] [--name NAME] [--default-name NAME] [--backend BACKEND]\n"
        "                    [--oversubscribe] -- CMD [ARG ...]",
    )
    parser.add_argument(
        "--memory",
        type=_memory,
        metavar="SIZE",
        help="limit of the program's GPU memory, such as 20GiB (default: GPUSHARE_MEMORY, otherwise no limit)",
    )
    parser.add_argument(
        "--gpu",
        type=_gpus,
        metavar="GPU",
        help="GPU that the program sees: index or UUID, or several separated by commas (default: all)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name shown in the queue (default: the program's name)"
    )
    parser.add_argument(
        "--default-name",
        metavar="NAME",
        help="name shown in the queue if CMD is a Jupyter kernel whose notebook is unknown",
    )
    parser.add_argument(
        "--backend",
        type=_backend,
        metavar="BACKEND",
        help=f"memory backend: {', '.join(BACKENDS)} (default: GPUSHARE_BACKEND, otherwise auto)",
    )
    parser.add_argument(
        "--oversubscribe",
        action="store_true",
        default=None,
        help="let one process allocate more memory than the GPU has, as managed memory (default: "
        "GPUSHARE_OVERSUBSCRIBE, otherwise no)",
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="CMD", help="the program and its arguments"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replace this process with the program. Return the exit status if that fails."""
    command: list[str] = list(arguments.program)
    if command[:1] == ["--"]:
        del command[0]
    if not command:
        return _refuse("no program given; use: gpushare run -- CMD [ARG ...]", 2)
    program = shutil.which(command[0])
    if program is None:
        found = Path(command[0]).exists()
        return _refuse(
            f"{command[0]}: {'not an executable file' if found else 'program not found'}",
            126 if found else 127,
        )
    environ: dict[str, str] = plain_environment(os.environ)
    if arguments.gpu is not None:
        environ["CUDA_VISIBLE_DEVICES"] = arguments.gpu
    try:
        environ = _shared(environ, arguments, command)
    except (DriverError, LaunchError, AddressError) as error:
        _warn(f"{error}; running {command[0]} without GPU sharing")
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(program, with_in_kernel_part(command), environ)
    except OSError as error:
        return _refuse(f"cannot run {command[0]}: {error.strerror}", 126)


def _shared(
    environ: dict[str, str], arguments: argparse.Namespace, command: Sequence[str]
) -> dict[str, str]:
    """Make the program's environment, and make sure that a scheduler is running."""
    driver = find_driver(environ)
    if driver is None:
        raise DriverError("no CUDA driver found")
    socket, group = socket_path(environ), new_group()
    # Imported late, because it needs the compiled part of the protocol.
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
        name=arguments.name or _name(command, environ, arguments.default_name),
        driver=driver,
        socket=socket,
        settings=Settings(arguments.backend, arguments.memory, arguments.oversubscribe),
        ticket=shown,
    )
    if ours:
        prepare(socket)
        if not standby.attend(socket, driver):
            _warn(
                f"no scheduler is running at {socket} and none could be started; run `gpushare doctor`"
            )
            # The program must not wait for a scheduler.
            environment.setdefault("GPUSHARE_SCHEDULER_PATIENCE_S", "0")
    elif shown is not None and kernel is None:
        standby.start(socket, driver, group, shown)
    return environment


def _ticket(socket: Path, group: str) -> Path | None:
    """Get a ticket for the program from a node's scheduler, and return its path, if the program needs one."""
    from ...scheduler.protocol.client import ControlError

    try:
        return ticket.obtain_here(socket, group)
    except (ControlError, OSError) as error:
        _warn(str(error))
        return None


def _name(command: Sequence[str], environ: Mapping[str, str], default: str | None) -> str:
    """Return the name for the queue where the user gave none; a kernelspec has a default."""
    if default is None:
        return program_name(command, environ)
    session = environ.get("JPY_SESSION_NAME")
    return Path(session).name if session else notebook_of(_parent_command()) or default


def notebook_of(command: Sequence[str]) -> str:
    """Return the name of the notebook that a command runs; empty if it runs none."""
    # An interpreter may run the program, which may be a module.
    program = command[2:3] if command[1:2] == ["-m"] else command[:2]
    if not RUNNERS & {Path(word).name for word in program}:
        return ""
    return next((Path(word).name for word in command if word.endswith(".ipynb")), "")


def _parent_command() -> list[str]:
    """Return the command of the process that started this one."""
    try:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in command.split(b"\0") if word]


def program_name(command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the default name for the queue: the notebook, the script, the module or the program."""
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
        raise argparse.ArgumentTypeError(f"invalid GPU {text!r}; use an index such as 0, or a UUID")
    return text


def _warn(sentence: str) -> None:
    print(f"gpushare: {sentence}", file=sys.stderr)


def _refuse(sentence: str, status: int) -> int:
    _warn(sentence)
    return status
