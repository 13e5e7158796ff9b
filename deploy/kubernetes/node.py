# SPDX-License-Identifier: BSD-3-Clause
"""Checks which GPUs of a node can be used."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from ...scheduler.gpu.devices import Devices
from ...scheduler.protocol.client import ControlClient, ControlError

log = logging.getLogger(__name__)

#: Seconds after which a scheduler that does not respond counts as unavailable.
PATIENCE = 2.0


#: Why new containers do not get a GPU; empty: they do. The DRA driver sets "unchecked" while a check takes long.
Fault = Literal["", "drained", "failed", "no-scheduler", "unchecked"]


class NodeError(Exception):
    """The plugin cannot work on this node; the message is one sentence for the administrator."""


class Health:
    """Checks which GPUs a container can use now.

    Parameters
    ----------
    devices
        NVML; the first check starts it.
    socket
        The node scheduler's socket.
    """

    def __init__(self, devices: Devices, socket: Path) -> None:
        self._devices = devices
        self._socket = socket
        self._known: list[str] = []
        self._fault: str | None = ""
        #: The bytes of host memory that the scheduler uses for evicted data; None: not known.
        self.host_budget: int | None = None

    def look(self) -> tuple[list[str], list[str]]:
        """Return all known GPUs, and the GPUs that work, are shared and are not drained."""
        faults = self.faults()
        return [*faults], [gpu for gpu, fault in faults.items() if not fault]

    def faults(self) -> dict[str, Fault]:
        """Return all known GPUs, and why new containers do not get them."""
        working = self._working()
        if not working:
            # NVML has to be started again after the driver was reloaded. It is not for one lost GPU, because NVML might
            # not list the others then.
            self._devices.stop()
            self._learn([reading.gpu for reading in self._devices.start()])
            working = self._working()
        drained = self._drained()
        faults: dict[str, Fault] = {}
        for gpu in self._known:
            if gpu not in working:
                faults[gpu] = "failed"
            elif drained is None:
                faults[gpu] = "no-scheduler"
            else:
                faults[gpu] = "drained" if gpu in drained else ""
        return faults

    def stop(self) -> None:
        """Stop NVML."""
        self._devices.stop()

    def _working(self) -> list[str]:
        self._learn([reading.gpu for reading in self._devices.discover()])
        return [gpu for gpu in self._known if self._devices.read(gpu) is not None]

    def _learn(self, gpus: list[str]) -> None:
        self._known += [gpu for gpu in gpus if gpu not in self._known]

    def _drained(self) -> set[str] | None:
        """Return the GPUs that an administrator has drained; None if the scheduler does not respond."""
        fault, drained = None, None
        try:
            with ControlClient(self._socket, PATIENCE) as client:
                status = client.request("status")["status"]
        except ControlError as error:
            fault = str(error)
        else:
            drained = {gpu["uuid"] for gpu in status["gpus"] if gpu["draining"]}
            self.host_budget = status["host"]["budget"]
        if fault != self._fault:
            log.info("%s", fault or f"the scheduler at {self._socket} responds")
        self._fault = fault
        return drained
