# SPDX-License-Identifier: BSD-3-Clause
"""What the server is told beside the core's settings."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ..gpu.drivers import Driver
from ..node.principals import Identity
from ..protocol.address import Access
from .throttle import PERSONAL, Limits


@dataclass(frozen=True, slots=True)
class Options:
    """The server's options."""

    path: Path
    simulated: bool = False
    #: Bytes of host memory that swapped data may take; None: what the machine has.
    host_memory: int | None = None
    identity: Identity = field(default_factory=Identity)
    limits: Limits = PERSONAL
    #: Swapped data goes only to pages that this process has made.
    prepared_only: bool = False
    #: Who may connect to the socket, of a node scheduler.
    access: Access | None = None
    #: The socket, where somebody else made it, whose it stays; None: it is made at `path`.
    listener: socket.socket | None = None
    #: What clients use, for checkpoints; None: nobody hibernates.
    driver: Driver | None = None
