# SPDX-License-Identifier: BSD-3-Clause
"""The GPUs of a node as NVML describes them, and which of them are for new claims."""

from __future__ import annotations

from dataclasses import replace

from ....scheduler.gpu.devices import Devices
from ..node import Health
from .slices import Gpu


class Inspection:
    """Describes the GPUs that have been seen.

    Parameters
    ----------
    devices
        NVML, as `health` uses it.
    health
        Checks which GPUs can be used.
    """

    def __init__(self, devices: Devices, health: Health) -> None:
        self._devices = devices
        self._health = health
        self._gpus: dict[str, Gpu] = {}

    def look(self) -> list[Gpu]:
        """Return all known GPUs. May take as long as NVML and the scheduler take to answer."""
        for uuid, fault in self._health.faults().items():
            if uuid not in self._gpus and (described := self._describe(uuid)) is not None:
                self._gpus[uuid] = described
            if uuid in self._gpus:
                self._gpus[uuid] = replace(self._gpus[uuid], fault=fault)
        return [*self._gpus.values()]

    @property
    def host_budget(self) -> int | None:
        """The bytes of host memory that the scheduler uses for evicted data; None: not known."""
        return self._health.host_budget

    def stop(self) -> None:
        """Stop NVML."""
        self._health.stop()

    def _describe(self, uuid: str) -> Gpu | None:
        reading = self._devices.read(uuid)
        if reading is None:
            return None
        return Gpu(
            uuid,
            reading.name,
            reading.total,
            self._devices.driver_release(),
            self._devices.driver_version,
            self._devices.compute_capability(uuid),
        )
