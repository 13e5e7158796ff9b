# SPDX-License-Identifier: BSD-3-Clause
"""Which of a node's GPUs can be used."""

from __future__ import annotations

import logging
from pathlib import Path

from ...scheduler.control import ControlClient, ControlError
from ...scheduler.devices import Devices

log = logging.getLogger(__name__)

#: Seconds after which a scheduler that does not answer counts as away.
PATIENCE = 2.0


class NodeError(Exception):
    """The plugin cannot do its work on this node; the message is one sentence for who runs it."""


class Health:
    """Tells which GPUs a container could use now.

    Parameters
    ----------
    devices
        NVML; the first look starts it.
    socket
        The node scheduler's socket.
    """

    def __init__(self, devices: Devices, socket: Path) -> None:
        self._devices = devices
        self._socket = socket
        self._known: list[str] = []
        self._fault: str | None = ""

    def look(self) -> tuple[list[str], list[str]]:
        """Return all GPUs that were ever seen, and those that NVML reads and the scheduler can share."""
        working = self._working()
        if not working:
            # After the driver was loaded anew, so must NVML be. Not for one lost GPU: NVML might not list the others.
            self._devices.stop()
            self._learn([reading.gpu for reading in self._devices.start()])
            working = self._working()
        return self._known, working if self._scheduler_answers() else []

    def stop(self) -> None:
        """Let NVML go."""
        self._devices.stop()

    def _working(self) -> list[str]:
        self._learn([reading.gpu for reading in self._devices.discover()])
        return [gpu for gpu in self._known if self._devices.read(gpu) is not None]

    def _learn(self, gpus: list[str]) -> None:
        self._known += [gpu for gpu in gpus if gpu not in self._known]

    def _scheduler_answers(self) -> bool:
        fault = None
        try:
            with ControlClient(self._socket, PATIENCE) as client:
                client.request("whoami")
        except ControlError as error:
            fault = str(error)
        if fault != self._fault:
            log.info("%s", fault or f"the scheduler answers at {self._socket}")
        self._fault = fault
        return fault is None
