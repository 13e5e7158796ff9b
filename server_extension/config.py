# SPDX-License-Identifier: BSD-3-Clause
"""What an administrator or a user can set."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from traitlets import Bool, Dict, Enum, Float, Int, List, TraitError, Unicode, Union, validate
from traitlets.config import LoggingConfigurable

from ..scheduler.core.rules import ANTI_THRASH, DEFAULTS, valid_hibernate_after
from ..scheduler.node.arguments import quantum, size
from ..scheduler.node.entitlements import parsed
from ..scheduler.policies import ENTRY_POINTS, OURS
from ..scheduler.protocol.address import is_own_place, socket_path, too_long


class GpuShare(LoggingConfigurable):
    """How this server shares the GPU, for instance ``c.GpuShare.quantum = 5`` in ``jupyter_server_config.py``."""

    enabled = Bool(
        True,
        help="Whether the kernels of this server share the GPU (default: yes).",
    ).tag(config=True)

    socket = Unicode(
        help="Path of the scheduler's socket (default: $GPUSHARE_SOCKET, otherwise gpushare/scheduler.sock in the "
        "user's runtime folder).",
    ).tag(config=True)

    host = Enum(
        ("auto", "always", "never"),
        "auto",
        help="Whether this server starts a scheduler if none is running. always: yes; never: no; auto: only if the "
        "user owns the socket's folder, so not where a node scheduler runs (default: auto).",
    ).tag(config=True)

    quantum = Union(
        [Float(), Unicode()],
        default_value=DEFAULTS.quantum,
        help="Time slice: how long a notebook may keep others waiting, in seconds, or 'auto': ten times the time "
        "that evicting its memory takes, at least 1 s and at most 30 s (default: auto). For a scheduler that "
        "this server starts.",
    ).tag(config=True)

    anti_thrash = Enum(
        ANTI_THRASH,
        DEFAULTS.anti_thrash,
        help="When notebooks take turns. auto: only if their memory does not fit together; on: always; off: never, "
        "if the driver can page the memory (default: auto). For a scheduler that this server starts.",
    ).tag(config=True)

    reserve = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of each GPU that stay free (default: depends on the GPU's size). For a scheduler that this server "
        "starts.",
    ).tag(config=True)

    host_memory = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes of host memory for evicted data (default: what the machine can spare). For a scheduler that this "
        "server starts.",
    ).tag(config=True)

    disk_folder = Unicode(
        help="Folder on a local disk to which the evicted data of idle notebooks goes: after disk_after, or earlier if "
        "host memory is needed. Files there have no name, and end with the scheduler and its helper process (default: "
        "none, all evicted data stays in host memory). For a scheduler that this server starts.",
    ).tag(config=True)

    disk_size = Union(
        [Int(), Unicode()],
        default_value="",
        help="Bytes that the data of all users may take on the disk (default: half of what is free at the start)."
        " For a scheduler that this server starts.",
    ).tag(config=True)

    disk_after = Float(
        DEFAULTS.disk_after,
        min=0.0,
        help="Idle time in seconds after which a notebook's evicted data goes to the disk. 0: only when host memory is "
        "needed (default: 1800). For a scheduler that this server starts.",
    ).tag(config=True)

    disk_encryption = Bool(
        help="Whether data on the disk is encrypted (AES-GCM), with a key that is only in memory. Requires "
        "jupyter-gpushare[disk-encryption] (default: no). For a scheduler that this server starts.",
    ).tag(config=True)

    policy = Unicode(
        DEFAULTS.policy,
        help="Policy that orders waiting notebooks. burst: short and interactive work first, with fair GPU time "
        "between users; fcfs: first come, first served, one at a time; tgs: background work adapts its rate to "
        "other work; gemini: one at a time, for quotas that follow their bursts; priority: only the highest "
        "priority runs; or a policy of another package (default: burst). For a scheduler that this server starts.",
    ).tag(config=True)

    shares = Dict(
        help="Shares and quotas of users and teams, such as {'user:ada': {'request': 0.5}, 'team:course': "
        "{'members': ['ben', 'cy'], 'limit': 0.5, 'memory': '40GiB'}}. request: guaranteed fraction of a GPU's "
        "time over 10 s; limit: maximum fraction; weight: for spare GPU time, 1 by default; memory: bytes on "
        "each GPU; gpus: maximum number of GPUs in use at the same time; host: bytes over all GPUs. 'user:*' applies "
        "to users without an entry (default: no limits). If several servers use one scheduler, the last one to "
        "start sets the shares.",
    ).tag(config=True)

    hibernate_after = Float(
        DEFAULTS.hibernate_after,
        allow_none=True,
        help="Idle time in seconds after which a notebook is hibernated: it leaves the GPU completely, and its next "
        "cell wakes it. 0 or None disables hibernation completely, including on request or under memory "
        "pressure (default: 600). For a scheduler that this server starts.",
    ).tag(config=True)

    prefetch = Bool(
        DEFAULTS.prefetch,
        help="Whether notebooks get ready when their users return: their memory is restored before the next cell. "
        "If False, this server sends no hints to the scheduler, and JupyterLab has no Get Ready (default: yes).",
    ).tag(config=True)

    prefetch_likelihood = Float(
        DEFAULTS.prefetch_likelihood,
        min=0.0,
        max=1.0,
        help="Smallest likelihood, from 0 to 1, of GPU work within a minute at which a notebook gets ready (default: "
        "0.5). For a scheduler that this server starts.",
    ).tag(config=True)

    detect_agents = Bool(
        True,
        help="Whether a cell that a known agent begins, such as an MCP server, moves the notebook to the class agent "
        "until a person begins one. A class that a user has set is kept. If False, only explicit settings count "
        "(default: yes).",
    ).tag(config=True)

    agents = List(
        Unicode(),
        help="Additional clients to recognize as agents, by the beginning of their User-Agent header, such as "
        "['my-agent/'] (default: none). Known MCP servers and API clients need no entry.",
    ).tag(config=True)

    reservation_hold = Float(
        DEFAULTS.reservation_hold,
        min=1.0,
        help="Seconds for which the GPU is kept for a notebook whose reservation is ready (default: 60). For a "
        "scheduler that this server starts.",
    ).tag(config=True)

    record = Unicode(
        help="File to which the scheduler records its input events, for `gpushare replay` (default: none). For a "
        "scheduler that this server starts.",
    ).tag(config=True)

    @validate("policy")
    def _valid_policy(self, proposal: dict[str, Any]) -> Any:
        known = [*OURS, *(entry.name for entry in entry_points(group=ENTRY_POINTS))]
        if proposal["value"] not in known:
            raise TraitError(
                f"GpuShare.policy: unknown policy {proposal['value']!r}; choose from {', '.join(known)}"
            )
        return proposal["value"]

    @validate("shares")
    def _valid_shares(self, proposal: dict[str, Any]) -> Any:
        try:
            return parsed(proposal["value"])
        except ValueError as error:
            raise TraitError(f"GpuShare.shares: {error}") from None

    @validate("record")
    def _valid_record(self, proposal: dict[str, Any]) -> Any:
        if not proposal["value"]:
            return ""
        path = Path(proposal["value"]).expanduser().absolute()
        if not path.parent.is_dir():
            raise TraitError(f"GpuShare.record: the folder {path.parent} does not exist")
        return str(path)

    @validate("hibernate_after")
    def _valid_hibernate_after(self, proposal: dict[str, Any]) -> Any:
        try:
            valid_hibernate_after(proposal["value"])
        except ValueError as error:
            raise TraitError(f"GpuShare.{error}") from None
        return proposal["value"]

    @validate("quantum")
    def _valid_quantum(self, proposal: dict[str, Any]) -> Any:
        return _parsed("quantum", quantum, proposal["value"])

    @validate("reserve", "host_memory", "disk_size")
    def _valid_size(self, proposal: dict[str, Any]) -> Any:
        if proposal["value"] != "":
            _parsed(proposal["trait"].name, size, proposal["value"])
        return proposal["value"]

    @validate("socket")
    def _valid_socket(self, proposal: dict[str, Any]) -> Any:
        if trouble := too_long(proposal["value"], "GpuShare.socket"):
            raise TraitError(trouble)
        return proposal["value"]

    def path(self) -> Path:
        """Return the path of the scheduler's socket."""
        return Path(self.socket).expanduser().absolute() if self.socket else socket_path()

    def may_host(self) -> bool:
        """Whether this server starts a scheduler where none runs."""
        if self.host != "auto":
            return bool(self.host == "always")
        return is_own_place(self.path())

    def scheduler_arguments(self) -> tuple[str, ...]:
        """Return the arguments of a scheduler that this server starts."""
        arguments = [
            *("--policy", self.policy),
            *("--quantum", str(self.quantum)),
            *("--anti-thrash", str(self.anti_thrash)),
            *("--hibernate-after", f"{self.hibernate_after or 0:g}"),
            *("--prefetch", "on" if self.prefetch else "off"),
            *("--prefetch-likelihood", f"{self.prefetch_likelihood:g}"),
            *("--reservation-hold", f"{self.reservation_hold:g}"),
        ]
        if self.reserve != "":
            arguments += ["--reserve", str(self.reserve)]
        if self.host_memory != "":
            arguments += ["--host-memory", str(self.host_memory)]
        if self.disk_folder:
            arguments += [
                *("--disk-folder", self.disk_folder),
                *("--disk-after", f"{self.disk_after or 0:g}"),
                *("--disk-encryption", "on" if self.disk_encryption else "off"),
            ]
            if self.disk_size != "":
                arguments += ["--disk-size", str(self.disk_size)]
        if self.record:
            arguments += ["--record", self.record]
        return tuple(arguments)


def _parsed(name: str, parse: Callable[[str], Any], value: Any) -> Any:
    try:
        return parse(str(value))
    except argparse.ArgumentTypeError as error:
        raise TraitError(f"GpuShare.{name}: {error}") from None
