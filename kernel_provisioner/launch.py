# SPDX-License-Identifier: BSD-3-Clause
"""The environment and the command of a client: how a program is put under the interposer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

from ..scheduler.gpu.drivers import Driver, Libraries, libraries
from ..scheduler.protocol.address import too_long

Backend = Literal["auto", "swap", "managed", "plain"]
BACKENDS: tuple[str, ...] = get_args(Backend)

#: What a kernelspec may say of the GPU's time and memory, which people may change.
SHARES = ("request", "limit", "memory", "weight", "priority", "keep")

#: The first module of the folder that is loaded inside of IPython kernels, in whatever environment they live.
IN_KERNEL = Path(__file__).with_name("in_kernel").resolve() / "__init__.py"

#: Lengths that the wire protocol has room for (struct gpushare_hello).
GROUP_BYTES = 63
NAME_BYTES = 191

#: What launch writes for one client and what the client's own children must not take for theirs.
_OF_ONE_CLIENT = (
    "GPUSHARE_GROUP",
    "GPUSHARE_NAME",
    "GPUSHARE_TICKET_FILE",
    "GPUSHARE_DRIVER",
    "GPUSHARE_NVML",
    "GPUSHARE_VISIBLE_DEVICES",
)
#: The user's to set, unless they were written for a client that we now run in.
_SETTINGS = ("GPUSHARE_BACKEND", "GPUSHARE_MEMORY", "GPUSHARE_OVERSUBSCRIBE")

#: Libraries that otherwise take most of "their" GPU at once, so that empty notebooks would have to take turns.
_GROW_AS_NEEDED = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


class LaunchError(Exception):
    """A program cannot be put under the interposer; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a client may be told.

    Attributes
    ----------
    backend
        Memory backend; None leaves the choice to the environment, else to the interposer.
    memory
        Most device memory of the group in bytes; None: no cap of ours.
    oversubscribe
        Whether one process may hold more than the GPU has (managed memory); None leaves it to the environment, else no.
    """

    backend: Backend | None = None
    memory: int | None = None
    oversubscribe: bool | None = None


def new_group() -> str:
    """Make an id for a lease group that is no Jupyter kernel."""
    return f"run-{uuid.uuid4()}"


def parse_backend(text: str) -> Backend:
    """Read the name of a memory backend.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    for backend in get_args(Backend):
        if text == backend:
            return backend  # type: ignore[no-any-return]
    raise ValueError(
        f"invalid memory backend {text!r}; use {', '.join(BACKENDS[:-1])} or {BACKENDS[-1]}"
    )


def client_environment(
    environ: Mapping[str, str],
    *,
    group: str,
    name: str,
    driver: Driver,
    socket: Path,
    settings: Settings | None = None,
    shims: Libraries | None = None,
    ticket: Path | None = None,
) -> dict[str, str]:
    """Make the environment in which a program is a client.

    Parameters
    ----------
    environ
        The environment that the program would have without us. It is not changed.
    group
        Lease group of the program and of all that it starts.
    name
        What people call it; cut where it is longer than the protocol has room for.
    driver
        The real (or simulated) driver below the interposer.
    socket
        The scheduler's socket.
    settings
        Further settings for the client.
    shims
        The interposer's libraries; by default the installed ones.
    ticket
        Where the group's ticket lies, or will lie if the scheduler asks for one; None: it does not.

    Raises
    ------
    LaunchError
        If the libraries lie where ``LD_PRELOAD`` cannot name them, or the socket's path is too long.
    DriverError
        If the libraries are not there.
    """
    if trouble := too_long(socket):
        raise LaunchError(trouble)
    settings = settings or Settings()
    shims = shims or libraries()
    environment = plain_environment(environ)
    preload = [shims.cuda, shims.alias]
    if driver.nvml is not None:
        preload.append(shims.nvml)
    if driver.simulated:
        compiler = driver.cuda.parent / "libnvrtc.so.13"
        if compiler.is_file():
            preload.append(compiler)
    for path in preload:
        if re.search(r"[\s:]", str(path)):
            raise LaunchError(
                f"LD_PRELOAD cannot contain {path}, because the path has a space or a colon; install "
                "jupyter-gpushare in another folder"
            )
    before = environment.get("LD_PRELOAD", "")
    environment["LD_PRELOAD"] = ":".join([*map(str, preload), *([before] if before else [])])
    environment["GPUSHARE_SOCKET"] = str(socket)
    environment["GPUSHARE_GROUP"] = _cut(group, GROUP_BYTES)
    environment["GPUSHARE_NAME"] = _cut(name, NAME_BYTES)
    if ticket is not None:
        environment["GPUSHARE_TICKET_FILE"] = str(ticket)
    environment.update(driver.environment())
    if "CUDA_VISIBLE_DEVICES" in environment:
        # What the client sets itself is told apart from what it was given.
        environment["GPUSHARE_VISIBLE_DEVICES"] = environment["CUDA_VISIBLE_DEVICES"]
    if settings.backend is not None:
        environment["GPUSHARE_BACKEND"] = settings.backend
    if settings.memory is not None:
        environment["GPUSHARE_MEMORY"] = str(settings.memory)
    if settings.oversubscribe is not None:
        environment["GPUSHARE_OVERSUBSCRIBE"] = str(int(settings.oversubscribe))
    for variable, value in _GROW_AS_NEEDED.items():
        environment.setdefault(variable, value)
    return environment


def plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Make the environment in which a program is no client, also where we run in one ourselves."""
    environment = dict(environ)
    if "GPUSHARE_GROUP" in environment:
        for variable in (*_OF_ONE_CLIENT, *_SETTINGS):
            environment.pop(variable, None)
    if "LD_PRELOAD" in environment:
        others = [
            entry
            for entry in re.split(r"[\s:]+", environment["LD_PRELOAD"])
            if entry and not _is_ours(Path(entry))
        ]
        if others:
            environment["LD_PRELOAD"] = ":".join(others)
        else:
            del environment["LD_PRELOAD"]
    return environment


def is_ipykernel(command: Sequence[str]) -> bool:
    """Whether the command starts a Python kernel that takes ipykernel's options.

    Kernels of other languages may be built on ipykernel and others of Python's not (xeus-python): only the launcher
    itself will do.
    """
    return any(
        module in ("ipykernel_launcher", "ipykernel") and flag == "-m"
        for flag, module in pairwise(command)
    ) or any(Path(word).name == "ipykernel_launcher.py" for word in command)


def with_in_kernel_part(command: Sequence[str]) -> list[str]:
    """Let an ipykernel command load the in-kernel part.

    Commands of other kernels, and commands that run code anyway, stay unchanged. The part is named by its path, because
    the kernel's environment may lack this package.
    """
    command = list(command)
    runs_already = any(
        word == "-c" or re.match(r"--?(\w+\.)?(code_to_run|file_to_run|module_to_run)\b", word)
        for word in command
    )
    if runs_already or not is_ipykernel(command):
        return command
    # What goes wrong is for the server's log: the kernel has no cell yet that could show it.
    # One expression without value: nothing for Out, no name in the user's namespace. The code after exec() is in a
    # string without line breaks, because old versions of traitlets read options line by line.
    source = f"""\
try:
    from importlib.util import module_from_spec, spec_from_file_location
    from sys import modules
    spec = spec_from_file_location("_gpushare_in_kernel", {str(IN_KERNEL)!r})
    module = modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.load()
except Exception as error:
    __import__("traitlets.log").log.get_logger().warning("this kernel runs without %%gpushare: %s", error)
"""
    return [*command, f"--IPKernelApp.code_to_run=exec({source!r}, {{}})"]


def _is_ours(path: Path) -> bool:
    return path.name.startswith("libgpushare") or (
        path.name.startswith("libnvrtc") and path.parent.name == "sim"
    )


def _cut(text: str, size: int) -> str:
    """Cut to ``size`` bytes of UTF-8, without splitting a character. Environments cannot hold NUL."""
    return text.replace("\0", "").encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
