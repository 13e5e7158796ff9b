# SPDX-License-Identifier: BSD-3-Clause
"""Tickets: how a node's scheduler knows whose a process is, where several people have one uid (workstation.md)."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir

#: The token by which a JupyterHub identifies a server's user, and the file with the token of a pod's resource claim.
#: Without either, there are no tickets.
HUB_TOKEN, CLAIM_FILE = "JUPYTERHUB_API_TOKEN", "GPUSHARE_CLAIM_FILE"

#: Sends a control request (docs/reference/control.md) and returns the answer.
Ask = Callable[..., Awaitable[dict[str, Any]]]

#: The connections of this process that have logged in, by the scheduler's socket.
channels: dict[Path, Ask] = {}

#: The groups that this process has tickets for.
held: set[str] = set()


class Holder:
    """Whose tickets those of this process are: a Jupyter server's, which comes back under its name, or its own."""

    def __init__(self) -> None:
        self._name = ""

    @property
    def name(self) -> str:
        """What the scheduler knows the holder by."""
        return self._name or f"{_place()}{socket.gethostname()}:{os.getpid()}"

    def is_server(self) -> None:
        """Note that this process is the Jupyter server of its place: those before it have ended."""
        self._name = _place()


def _place() -> str:
    return os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")


holder = Holder()


def may_be_needed(environ: Mapping[str, str] | None = None) -> bool:
    """Whether a scheduler may ask for tickets here."""
    found = os.environ if environ is None else environ
    return bool(found.get(HUB_TOKEN) or found.get(CLAIM_FILE))


def ticket_path(group: str) -> Path:
    """Return where a group's ticket lies."""
    return Path(jupyter_runtime_dir()) / f"gpushare-{group}.ticket"


async def obtain(ask: Ask, group: str, path: Path) -> bool:
    """Get a group's ticket and put it where its processes find it; return whether one is needed.

    Where none is needed, a node's scheduler is told whose the group is. This comes before the kernel starts, because
    other users can read the group's id in the kernel's command line from then on.

    Parameters
    ----------
    ask
        Sends a request to the scheduler, on a connection that has logged in.
    group
        Lease group.
    path
        Where to put it.

    Raises
    ------
    ControlError
        If the scheduler gives none.
    OSError
        If it cannot be put there.
    """
    me = await ask("whoami")
    if not me["tickets"]:
        remove(group, path)
        if me.get("claims"):
            await ask("claim", group=group)
        return False
    held.add(group)
    reply = await ask("ticket", group=group, server=holder.name)
    write(path, reply["ticket"])
    return True


def write(path: Path, ticket: str) -> None:
    """Write a ticket to a file that nobody else can read, all at once.

    Raises
    ------
    OSError
        If that cannot be.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(draft, flags, 0o600), "w") as file:
            file.write(ticket + "\n")
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def remove(group: str, path: Path) -> bool:
    """Forget a group's ticket; return whether it had one."""
    held.discard(group)
    try:
        path.unlink()
    except OSError:
        return False
    return True


# --- Of programs that no server starts --------------------------------------------------------------


def of_kernel(environ: Mapping[str, str]) -> tuple[str, Path] | None:
    """Return group and ticket of the kernel that this runs in, if it has one: no other group would be let in."""
    group, path = environ.get("GPUSHARE_GROUP"), environ.get("GPUSHARE_TICKET_FILE")
    return (group, Path(path)) if group and path and Path(path).is_file() else None


def obtain_here(scheduler: Path, group: str) -> Path | None:
    """Get a group's ticket, and return where it lies; None if none is needed.

    Raises
    ------
    ControlError
        If the scheduler gives none, or there is no scheduler.
    OSError
        If it cannot be written.
    """
    from ..scheduler.protocol.client import ControlClient

    path = ticket_path(group)
    with ControlClient(scheduler) as client:
        if not client.request("whoami")["tickets"]:
            return None
        reply = client.request("ticket", group=group, server=holder.name)
    write(path, reply["ticket"])
    return path


def give_back_here(scheduler: Path, group: str, path: Path) -> None:
    """Give a ticket back that was got by `obtain_here`."""
    from ..scheduler.protocol.client import ControlClient, ControlError

    remove(group, path)
    with contextlib.suppress(ControlError), ControlClient(scheduler) as client:
        client.request("revoke", group=group)
