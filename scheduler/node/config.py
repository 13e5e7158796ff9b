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
from .prices import Prices
from .principals import Identity

SOCKET = "/run/gpushare/scheduler.sock"
STATE_DIR = "/var/lib/gpushare"

#: Settings that a running scheduler applies when its configuration is read again.
RELOADED = ("prices", "shares")


class ConfigError(Exception):
    """The configuration has a mistake. The message is one sentence that names it."""


class NodeScheduler(Configurable):
    """A scheduler for all users of a machine, for instance ``c.NodeScheduler.socket_group = "jupyter"``."""

    socket = Unicode(
        SOCKET,
        help="Path of the socket. Its folder is created if it does not exist, and must be writable only by root and "
        "the scheduler's user. If systemd passes a socket, that socket is used (default: "
        "/run/gpushare/scheduler.sock).",
    ).tag(config=True)

    socket_mode = Enum(
        ("0660", "0666"),
        "0660",
        help="Mode of the socket. '0660': members of socket_group may connect; '0666': every user of the machine, and "
        "of containers that mount the socket. If systemd passes a socket, its unit sets the mode (default: 0660).",
    ).tag(config=True)

    socket_group = Unicode(
        help="Name or number of the socket's group (default: the group of the scheduler's process).",
    ).tag(config=True)

    state_dir = Unicode(
        help="Folder for data that survives a restart, such as the digests of tickets and the recent history. It is "
        "created if it does not exist (default: $STATE_DIRECTORY, which systemd sets, otherwise /var/lib/gpushare).",
    ).tag(config=True)

    shared_uids = List(
        Int(min=0),
        help="Uids that several users share, for example in containers that all run as uid 1000. Processes with such a "
        "uid have to present a ticket, or log in with a JupyterHub token (default: none).",
    ).tag(config=True)

    allowed_groups = List(
        Unicode(),
        help="System groups whose members may use the GPUs; applies to users identified by uid (default: none, all "
        "users are allowed).",
    ).tag(config=True)

    hub_api_url = Unicode(
        help="Address of the JupyterHub API. The scheduler uses it to find out which user a token belongs to, and "
        "makes no other network connections (default: none).",
    ).tag(config=True)

    shares = Dict(
        help="Shares and quotas of users and teams, such as {'user:*': {'limit': 0.5, 'gpus': 1}, 'team:course': "
        "{'request': 0.5, 'memory': '40GiB'}}. request: guaranteed fraction of a GPU's time over 10 s; limit: "
        "maximum fraction; weight: for spare GPU time, 1 by default; memory: bytes on each GPU; gpus: maximum "
        "number of GPUs in use at the same time; host: bytes over all GPUs. 'user:*' applies to users without an "
        "entry. A team consists of its members, and of the system's or the Hub's group of that name. Reloaded on "
        "SIGHUP (default: no limits).",
    ).tag(config=True)

    prices = Dict(
        help="Prices for reports, such as {'gpu_hour': 2.5, 'kwh': 0.3, 'currency': 'EUR'}. gpu_hour: for an hour of "
        "GPU time; gpu_gib_hour: for a GiB on a GPU during an hour; host_gib_hour: for a GiB of evicted data in host "
        "memory during an hour; kwh: for a kilowatt-hour of GPU energy; currency: text after amounts. Reloaded on "
        "SIGHUP (default: none).",
    ).tag(config=True)

    policy = Unicode(
        DEFAULTS.policy,
        help="Policy that orders waiting notebooks: burst, fcfs, tgs, gemini, priority, or a policy of another "
        "package (default: burst).",
    ).tag(config=True)

    quantum = Union(
        [Float(), Unicode()],
        default_value=DEFAULTS.quantum,
        help="Time slice: how long a notebook may keep others waiting, in seconds, or 'auto': ten times the time "
        "that evicting its memory takes, at least 1 s and at most 30 s (default: auto).",
    ).tag(config=True)

    anti_thrash = Enum(
        ANTI_THRASH,
        DEFAULTS.anti_thrash,
        help="When notebooks take turns. auto: only if their memory does not fit together; on: always; off: never, "
        "if the driver can page the memory (default: auto).",
    ).tag(config=True)

    hibernate_after = Float(
        DEFAULTS.hibernate_after,
        min=0.0,
        help="Idle time in seconds after which a notebook is hibernated: it leaves the GPU completely, and its next "
        "cell wakes it. 0: never (default: 600).",
    ).tag(config=True)

    hibernator_socket = Unicode(
        help="Socket of a privileged hibernator (gpushare hibernator), which hibernates processes of other users and "
        "in containers, so that the scheduler needs no privileges for this (default: none, only processes that the "
        "scheduler itself may reach are hibernated).",
    ).tag(config=True)

    prefetch = Bool(
        DEFAULTS.prefetch,
        help="Whether notebooks that will probably be used within a minute get ready: their memory is restored before "
        "the next cell, if no other notebook needs the room (default: yes).",
    ).tag(config=True)

    prefetch_likelihood = Float(
        DEFAULTS.prefetch_likelihood,
        min=0.0,
        max=1.0,
        help="Smallest likelihood, from 0 to 1, of GPU work within a minute at which a notebook gets ready (default: "
        "0.5).",
    ).tag(config=True)

    reservation_hold = Float(
        DEFAULTS.reservation_hold,
        min=1.0,
        help="Seconds for which the GPU is kept for a notebook whose reservation is ready (default: 60).",
    ).tag(config=True)

    reserve = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of each GPU that stay free (default: depends on the GPU's size).",
    ).tag(config=True)

    host_memory = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of host memory for evicted data of all users (default: what the machine can spare).",
    ).tag(config=True)

    disk_folder = Unicode(
        help="Folder on a local disk to which the evicted data of idle notebooks goes: after disk_after, or earlier if "
        "host memory is needed. Files there have no name, and end with the scheduler and its helper process (default: "
        "none, all evicted data stays in host memory).",
    ).tag(config=True)

    disk_size = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes that the data of all users may take on the disk (default: half of what is free at the start).",
    ).tag(config=True)

    disk_after = Float(
        DEFAULTS.disk_after,
        min=0.0,
        help="Idle time in seconds after which a notebook's evicted data goes to the disk. 0: only when host memory is "
        "needed (default: 1800).",
    ).tag(config=True)

    disk_encryption = Bool(
        help="Whether data on the disk is encrypted (AES-GCM), with a key that is only in memory. Requires "
        "jupyter-gpushare[disk-encryption] (default: no).",
    ).tag(config=True)

    prepare_host_memory = Bool(
        help="Whether evicted data uses only host pages that the scheduler has prepared. These count as the "
        "scheduler's memory and not as the container's, whose memory limit could end the kernel. Evictions may "
        "have to wait for them (default: no).",
    ).tag(config=True)

    revoke_deadline = Float(
        DEFAULTS.revoke_deadline,
        min=1.0,
        help="Time in seconds after which the scheduler stops waiting for a process that does not respond to a "
        "revocation, in addition to ten times the time that moving its memory takes. Other notebooks are then served "
        "without waiting for it (default: 30).",
    ).tag(config=True)

    connections = Int(
        256,
        min=1,
        help="Maximum number of connections per user. Each process that uses CUDA has one, and each Jupyter server two "
        "(default: 256).",
    ).tag(config=True)

    unidentified = Int(
        64,
        min=1,
        help="Maximum number of connections, over all users, whose uid does not identify a user and that have not yet "
        "presented a ticket or logged in (default: 64).",
    ).tag(config=True)

    ticket_lifetime = Float(
        7 * 86400.0,
        min=1.0,
        help="Time after which an unused ticket expires, in seconds. Jupyter servers renew the tickets of "
        "their kernels (default: 604800).",
    ).tag(config=True)

    record = Unicode(
        help="File to which the scheduler records its input events, for `gpushare replay` (default: none).",
    ).tag(config=True)

    log_level = Enum(
        ("debug", "info", "warning", "error"),
        "warning",
        help="Lowest level of the messages on standard error, which systemd's journal keeps (default: warning).",
    ).tag(config=True)

    @default("state_dir")
    def _default_state_dir(self) -> str:
        # systemd separates several of them with colons.
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
                    f"NodeScheduler.socket_group: unknown group {value!r}; to create it, run: groupadd --system {value}"
                ) from None
        return value

    @validate("allowed_groups")
    def _valid_groups(self, proposal: dict[str, Any]) -> Any:
        if not all(proposal["value"]):
            raise TraitError("NodeScheduler.allowed_groups: the name of a group is empty")
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
                "NodeScheduler.hub_api_url requires JupyterHub's client; run: "
                "pip install 'jupyter-gpushare[jupyterhub]'"
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

    @validate("prices")
    def _valid_prices(self, proposal: dict[str, Any]) -> Any:
        try:
            Prices.parsed(proposal["value"])
        except ValueError as error:
            raise TraitError(f"NodeScheduler.prices: {error}") from None
        return proposal["value"]

    @validate("quantum")
    def _valid_quantum(self, proposal: dict[str, Any]) -> Any:
        return _read("quantum", arguments.quantum, proposal["value"])

    @validate("disk_folder", "hibernator_socket")
    def _valid_optional_path(self, proposal: dict[str, Any]) -> Any:
        name, value = proposal["trait"].name, proposal["value"]
        if value and not Path(value).is_absolute():
            raise TraitError(f"NodeScheduler.{name} must be an absolute path, not {value!r}")
        return value

    @validate("disk_encryption")
    def _valid_encryption(self, proposal: dict[str, Any]) -> Any:
        if proposal["value"] and find_spec("cryptography") is None:
            raise TraitError(
                "NodeScheduler.disk_encryption requires a package; run: "
                "pip install 'jupyter-gpushare[disk-encryption]'"
            )
        return proposal["value"]

    @validate("reserve", "host_memory", "disk_size")
    def _valid_size(self, proposal: dict[str, Any]) -> Any:
        if proposal["value"] == "":
            return ""
        return _read(proposal["trait"].name, arguments.size, proposal["value"])

    @validate("record")
    def _valid_record(self, proposal: dict[str, Any]) -> Any:
        value = proposal["value"]
        if value and not Path(value).absolute().parent.is_dir():
            raise TraitError(
                f"NodeScheduler.record: the folder {Path(value).parent} does not exist"
            )
        return value

    def access(self) -> Access:
        """Return which users may connect to the socket."""
        name = self.socket_group
        group = None if not name else int(name) if name.isdecimal() else grp.getgrnam(name).gr_gid
        return Access(int(self.socket_mode, 8), group)

    def hibernator(self) -> Path | None:
        """Return the socket of the privileged hibernator; None: there is none."""
        return Path(self.hibernator_socket) if self.hibernator_socket else None

    def identity(self) -> Identity:
        """Return how the scheduler identifies its peers."""
        return Identity(
            node=True,
            shared_uids=frozenset(self.shared_uids),
            allowed_groups=tuple(self.allowed_groups),
            hub_api_url=self.hub_api_url,
            state_dir=Path(self.state_dir),
            ticket_lifetime=self.ticket_lifetime,
        )

    def entitlements(self) -> dict[str, ev.Entitle]:
        """Return the entitlements that follow from the shares, by user or team."""
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
    """Read a configuration in Python, like Jupyter's, or in JSON if the name ends in ``.json``.

    Raises
    ------
    ConfigError
        It cannot be read, or has a mistake.
    """
    _check_file(path)
    loader = JSONFileConfigLoader if path.suffix == ".json" else PyFileConfigLoader
    try:
        config = loader(path.name, path=str(path.parent)).load_config()
    except SyntaxError as error:
        raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from None
    except Exception as error:
        # A configuration in Python may raise any error.
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
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise ConfigError(f"the configuration {path} is not a file")
    # The file decides for all users, and is run as a program.
    if found.st_uid not in (0, os.getuid()) or found.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"users other than root and the scheduler's user can write to the configuration {path}; "
            f"run: chown root {path} && chmod go-w {path}"
        )


def _check_names(config: Config) -> None:
    known = [NodeScheduler.__name__]
    for section in config:
        if section not in known:
            raise ConfigError(f"unknown section {section}{_meant(section, known)}")
    names = NodeScheduler.class_trait_names(config=True)
    for name in config.get("NodeScheduler", {}):
        if name not in names:
            raise ConfigError(f"unknown setting NodeScheduler.{name}{_meant(name, names)}")


def _meant(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; use {', '.join(sorted(known))}"


def _line(error: Exception) -> str:
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())


def changes(old: NodeScheduler, new: NodeScheduler) -> list[ev.Entitle]:
    """Return the requests with which a running scheduler replaces its old shares by the new ones."""
    before, after = old.entitlements(), new.entitlements()
    gone = [_entitle(whose, None) for whose in before.keys() - after.keys()]
    return gone + [event for whose, event in after.items() if event != before.get(whose)]


def ignored_changes(old: NodeScheduler, new: NodeScheduler) -> list[str]:
    """Return the names of settings that have changed and are only applied at the next start."""
    names = NodeScheduler.class_trait_names(config=True)
    return sorted(n for n in names if n not in RELOADED and getattr(old, n) != getattr(new, n))
