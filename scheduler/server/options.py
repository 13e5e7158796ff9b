# SPDX-License-Identifier: BSD-3-Clause
"""The server's options besides the core's settings."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ..gpu.drivers import Driver
from ..memory.disk.tier import DiskOptions
from ..node.prices import Prices
from ..node.principals import Identity
from ..protocol.address import Access
from .throttle import PERSONAL, Limits


@dataclass(frozen=True, slots=True)
class Options:
    """The server's options."""

    path: Path
    simulated: bool = False
    #: Bytes of host memory that swapped data may take; None: as much as the machine has.
    host_memory: int | None = None
    identity: Identity = field(default_factory=Identity)
    limits: Limits = PERSONAL
    #: Whether swapped data goes only to pages that this process has prepared.
    prepared_only: bool = False
    #: The disk to which the data of idle notebooks may go; None: it stays in host memory.
    disk: DiskOptions | None = None
    #: Which users may connect to the socket of a node's scheduler.
    access: Access | None = None
    #: A socket that another program made and owns; None: the server makes it at `path`.
    listener: socket.socket | None = None
    #: The socket of the previous scheduler, which it has left; None: the server makes one.
    inherited: socket.socket | None = None
    #: The token of this process's locks.
    token: str = ""
    #: What use costs, for reports.
    prices: Prices = field(default_factory=Prices)
    #: The driver that clients use, for checkpoints; None: no process hibernates.
    driver: Driver | None = None
    #: The socket of a privileged hibernator; None: the scheduler starts one, which has the scheduler's rights.
    hibernator: Path | None = None
