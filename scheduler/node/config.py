# SPDX-License-Identifier: BSD-3-Clause
"""The configuration of a node's scheduler, which serves several users over one socket (workstation.md)."""

from __future__ import annotations

import argparse
import difflib
import grp
import os
import re
import stat
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from traitlets import (
    Bool,
    Dict,
    Enum,
    Float,
    Int,
    List,
    TraitError,
    Unicode,
    Union,
    default,
    validate,
)
from traitlets.config import Config, Configurable
from traitlets.config.loader import JSONFileConfigLoader, PyFileConfigLoader

from ..core import messages as ev
from ..core.preferences import check
from ..core.rules import ANTI_THRASH, DEFAULTS
from ..protocol.address import Access, too_long
from . import arguments
from .entitlements import entitlement, parsed
from .principals import Identity

SOCKET = "/run/gpushare/scheduler.sock"
STATE_DIR = "/var/lib/gpushare"

#: What a running scheduler takes in when its configuration is read anew.
RELOADED = ("shares",)


class ConfigError(Exception):
    """The configuration has a mistake; the message is one sentence that names it."""


class NodeScheduler(Configurable):
    """A scheduler for all users of a machine, for instance ``c.NodeScheduler.socket_group = "jupyter"``."""

    socket = Unicode(
        SOCKET,
        help="Path of the socket; its folder is made if it is missing, and nobody but the scheduler's user and root "
        "may write to it. Where systemd passes a socket, it is that one (default: /run/gpushare/scheduler.sock).",
    ).tag(config=True)

    socket_mode = Enum(
        ("0660", "0666"),
        "0660",
        help="Who may connect: '0660': members of socket_group; '0666': everybody on the machine and in containers "
        "that the socket is mounted into. Where systemd passes the socket, its unit says so (default: '0660').",
    ).tag(config=True)

    socket_group = Unicode(
        help="Name or number of the socket's group (default: the group of the scheduler's process).",
    ).tag(config=True)

    state_dir = Unicode(
        help="Folder for what outlives the scheduler, such as the digests of tickets; it is made if it is missing "
        "(default: $STATE_DIRECTORY, which systemd sets, else /var/lib/gpushare).",
    ).tag(config=True)

    shared_uids = List(
        Int(min=0),
        help="Uids that several people have, as in containers that all run as 1000: processes with such a uid have to "
        "show a ticket, or to log in with a token of the Hub (default: none).",
    ).tag(config=True)

    allowed_groups = List(
        Unicode(),
        help="Groups of the system: who is known by uid has to be in one of them (default: none, everybody may come).",
    ).tag(config=True)

    hub_api_url = Unicode(
        help="Address of the JupyterHub's API, such as 'http://127.0.0.1:8081/hub/api': it is asked whose the tokens "
        "are by which Jupyter servers log in. It is all that the scheduler uses a network for (default: none).",
    ).tag(config=True)

    shares = Dict(
        help="What users, and teams of users, are entitled to, for instance {'user:*': {'limit': 0.5, 'gpus': 1}, "
        "'team:course': {'request': 0.5, 'memory': '40GiB'}}. request (guaranteed) and limit (never more): fractions "
        "of one GPU's time over 10 s; weight: of what is spare, 1 for everybody else; memory: bytes on each GPU in "
        "all; gpus: how many GPUs may be used at once; host: bytes of memory on all GPUs in all, since it may have to "
        "lie in the host's. 'user:*' is each user who has no entry. A team is who its members name, or the group of "
        "that name of the system or the Hub. Read anew on SIGHUP (default: nothing, and no limits).",
    ).tag(config=True)

    policy = Unicode(
        DEFAULTS.policy,
        help="Who comes first: burst, fcfs, tgs, gemini, priority, or one that another package registered (default: "
        "burst).",
    ).tag(config=True)

    quantum = Union(
        [Float(), Unicode()],
        default_value=DEFAULTS.quantum,
        help="Seconds for which who uses a GPU may keep others waiting, or 'auto': ten times what moving its memory "
        "takes, at least 1 s and at most 30 s (default: auto).",
    ).tag(config=True)

    anti_thrash = Enum(
        ANTI_THRASH,
        DEFAULTS.anti_thrash,
        help="auto: take turns only where the memory does not fit together; on: always; off: never where the memory "
        "can be paged (default: auto).",
    ).tag(config=True)

    hibernate_after = Float(
        DEFAULTS.hibernate_after,
        min=0.0,
        help="Seconds of idleness after which a kernel gives its CUDA context back too, until its next cell; 0: none "
        "does (default: 600).",
    ).tag(config=True)

    reserve = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of each GPU that stay free, for instance '512MiB' (default: by the GPU's size).",
    ).tag(config=True)

    host_memory = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of host memory that swapped data of all users may take, for instance '64GiB' (default: what the "
        "machine has to spare).",
    ).tag(config=True)

    prepare_host_memory = Bool(
        help="Whether swapped data goes only to pages of host memory that the scheduler has made: they count as the "
        "scheduler's then, and not as those of the container that swaps, whose limit of memory could end the kernel. "
        "Moving out may have to wait for them (default: False).",
    ).tag(config=True)

    revoke_deadline = Float(
        DEFAULTS.revoke_deadline,
        min=1.0,
        help="Seconds, beside ten times what moves of memory take, after which a process that was told to give the GPU "
        "up, and has not answered, is waited for no longer: the others are served around it (default: 30).",
    ).tag(config=True)

    connections = Int(
        256,
        min=1,
        help="Connections that one user may have at once: each process that uses CUDA has one, and each Jupyter server "
        "two (default: 256).",
    ).tag(config=True)

    unidentified = Int(
        64,
        min=1,
        help="Connections, of all users together, that have not shown a ticket or logged in yet, where their uid does "
        "not say whose they are (default: 64).",
    ).tag(config=True)

    ticket_lifetime = Float(
        7 * 86400.0,
        min=1.0,
        help="Seconds after which a ticket expires that no process has shown; Jupyter servers renew those of their "
        "kernels (default: 604800, a week).",
    ).tag(config=True)

    record = Unicode(
        help="File to which all that the scheduler takes in is written, for `gpushare replay` (default: none).",
    ).tag(config=True)

    log_level = Enum(
        ("debug", "info", "warning", "error"),
        "warning",
        help="What goes to standard error, which systemd keeps (default: warning).",
    ).tag(config=True)

    @default("state_dir")
    def _default_state_dir(self) -> str:
        # Of several, systemd puts colons between.
        return os.environ.get("STATE_DIRECTORY", "").split(":")[0] or STATE_DIR

    @validate("socket", "state_dir")
    def _valid_path(self, proposal: dict[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if not Path(value).is_absolute():
            raise TraitError(f"NodeScheduler.{name} must be an absolute path, not {value!r}")
        if name == "socket" and (trouble := too_long(value, "NodeScheduler.socket")):
            raise TraitError(trouble)
        return value

    @validate("socket_group")
    def _valid_group(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if value and not value.isdecimal():
            try:
                grp.getgrnam(value)
            except KeyError:
                raise TraitError(
                    f"NodeScheduler.socket_group: there is no group {value!r}; make it: groupadd --system {value}"
                ) from None
        return value

    @validate("allowed_groups")
    def _valid_groups(self, proposal: dict[str, Any]) -> Any:
        if not all(proposal["value"]):
            raise TraitError("NodeScheduler.allowed_groups: a group has a name")
        return proposal["value"]

    @validate("hub_api_url")
    def _valid_url(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise TraitError(
                "NodeScheduler.hub_api_url must be an address such as 'http://127.0.0.1:8081/hub/api', "
                f"not {value!r}"
            )
        if find_spec("jupyterhub") is None:
            raise TraitError(
                "NodeScheduler.hub_api_url needs JupyterHub's client: pip install 'jupyter-gpushare[jupyterhub]'"
            )
        return value

    @validate("shares")
    def _valid_shares(self, proposal: dict[str, Any]) -> Any:
        try:
            shares = parsed(proposal["value"], members_needed=False)
            for whose, stated in shares.items():
                check(_entitle(whose, stated))
            return shares
        except ValueError as error:
            raise TraitError(f"NodeScheduler.shares: {error}") from None

    @validate("quantum")
    def _valid_quantum(self, proposal: dict[str, Any]) -> Any:
        return _read("quantum", arguments.quantum, proposal["value"])

    @validate("reserve", "host_memory")
    def _valid_size(self, proposal: dict[str, Any]) -> Any:
        if proposal["value"] == "":
            return ""
        return _read(proposal["trait"].name, arguments.size, proposal["value"])

    @validate("record")
    def _valid_record(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if value and not Path(value).absolute().parent.is_dir():
            raise TraitError(f"NodeScheduler.record: there is no folder {Path(value).parent}")
        return value

    def access(self) -> Access:
        """Return who may connect to the socket."""
        name = self.socket_group
        group = None if not name else int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
        return Access(int(self.socket_mode, 8), group)

    def identity(self) -> Identity:
        """Return how it is found out who is who."""
        return Identity(
            node=True,
            shared_uids=frozenset(self.shared_uids),
            allowed_groups=tuple(self.allowed_groups),
            hub_api_url=self.hub_api_url,
            state_dir=Path(self.state_dir),
            ticket_lifetime=self.ticket_lifetime,
        )

    def entitlements(self) -> dict[str, ev.Entitle]:
        """Return what the shares say to the core, by whose they are."""
        return {whose: _entitle(whose, stated) for whose, stated in self.shares.items()}


def _read(name: str, parse: Callable[[str], Any], value: Any) -> Any:
    try:
        return parse(str(value))
    except argparse.ArgumentTypeError as error:
        raise TraitError(f"NodeScheduler.{name}: {error}") from None


def _entitle(whose: str, stated: dict[str, Any] | None) -> ev.Entitle:
    held = entitlement(stated)
    members = tuple(held.pop("members"))
    return ev.Entitle(whose, ev.Entitlement(**held), members)


def load(path: Path) -> NodeScheduler:
    """Read a configuration: Python, as Jupyter's are, or JSON where the name ends in ``.json``.

    Raises
    ------
    ConfigError
        If it cannot be read, or has a mistake.
    """
    _check_file(path)
    loader = JSONFileConfigLoader if path.suffix == ".json" else PyFileConfigLoader
    try:
        config = loader(path.name, path=str(path.parent)).load_config()
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        # Of a configuration in Python, whatever it raises.
        raise ConfigError(f"{path}: {type(error).__name__}: {_line(error)}") from None
    try:
        _check_names(config)
        return NodeScheduler(config=config)
    except (TraitError, ConfigError) as error:
        raise ConfigError(f"{path}: {_line(error)}") from None


def _check_file(path: Path) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"the configuration {path} is not a file")
    # What stands there decides for all users, and is run as a program.
    if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"the configuration {path} can be written to by users whom it governs; "
            f"make it root's: chown root {path} && chmod go-w {path}"
        )


def _check_names(config: Config) -> None:
    known = [NodeScheduler.__name__]
    for section in config:
        if section not in known:
            raise ConfigError(f"there is no {section}{_meant(section, known)}")
    names = NodeScheduler.class_trait_names(config=True)
    for name in config.get("NodeScheduler", {}):
        if name not in names:
            raise ConfigError(f"NodeScheduler has no {name}{_meant(name, names)}")


def _meant(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; {near[0]} may be meant" if near else f"; there is {', '.join(sorted(known))}"


def _line(error: Exception) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())


def changes(old: NodeScheduler, new: NodeScheduler) -> list[ev.Entitle]:
    """Return what a scheduler that runs has to be told for the new shares to hold instead of the old ones."""
    before, after = old.entitlements(), new.entitlements()
    gone = [_entitle(whose, None) for whose in before.keys() - after.keys()]
    return gone + [event for whose, event in after.items() if event != before.get(whose)]


def unheeded(old: NodeScheduler, new: NodeScheduler) -> list[str]:
    """Return the names of what differs and holds only after the next start."""
    names = NodeScheduler.class_trait_names(config=True)
    return sorted(n for n in names if n not in RELOADED and getattr(old, n) != getattr(new, n))
