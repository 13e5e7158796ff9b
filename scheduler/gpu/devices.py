# SPDX-License-Identifier: BSD-3-Clause
"""The GPUs and their memory, from NVML."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from pathlib import Path
from typing import Any, NamedTuple

from ..core.messages import Device
from ..protocol.wire import register_slice

log = logging.getLogger(__name__)

#: Readings that take longer than this (seconds) are not made in the scheduler's event loop.
SLOW = 0.0002


class EnergyReading(NamedTuple):
    """What NVML shows of a GPU's energy; None: it has no such figure."""

    #: When it was read, seconds on CLOCK_MONOTONIC.
    at: float
    #: Joules since the driver was loaded.
    joules: float | None
    #: The present power.
    watts: float | None


class Devices:
    """The GPUs of this machine, or the MIG slices of a GPU that is divided.

    Parameters
    ----------
    nvml
        The NVML library; None: there is none, and no GPU is known.
    """

    def __init__(self, nvml: Path | None) -> None:
        self._path = nvml
        self._nvml: Any = None
        self._handles: dict[str, Any] = {}
        self._facts: dict[str, tuple[str, int, int]] = {}
        self.driver_version: str | None = None
        #: The percentage of time for which each GPU was busy lately, as of the last `poll`.
        self.utilization: dict[str, int | None] = {}
        #: The energy and the power of each GPU, as of the last `poll`.
        self.energy: dict[str, EnergyReading] = {}
        #: The state of NVML, in words.
        self.state = "not found"
        #: Whether readings are slow enough to need a thread of their own.
        self.slow = False
        #: Whether that is so for `poll`, which reads more.
        self.slow_to_poll = False

    def start(self) -> list[Device]:
        """Load NVML, unless it is loaded, and return a reading of every GPU; none without NVML."""
        if self._path is None:
            return []
        if self._nvml is not None:
            # Loaded before this scheduler took over. Later GPUs are found when a client uses them.
            known = [self.read(gpu) for gpu in self._handles]
            return [reading for reading in known if reading is not None]
        try:
            # pynvml loads "libnvidia-ml.so.1" by name. The loader reuses a library of that name that is
            # loaded already, so this one must be loaded first.
            ctypes.CDLL(str(self._path), mode=ctypes.RTLD_GLOBAL)
            import pynvml
        except (OSError, ImportError) as error:
            self.state = f"cannot be loaded: {error}"
            log.warning("cannot load %s: %s", self._path, error)
            return []
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            log.warning("NVML does not start (%s): %s", self._path, error)
            self._nvml = None
            self.state = str(error)
            return []
        self.state = f"loaded from {self._path}"
        try:
            self.driver_version = _cuda_version(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        except pynvml.NVMLError:
            self.driver_version = None
        return self.discover()

    def discover(self) -> list[Device]:
        """Return a reading of each GPU that was not known before."""
        if self._nvml is None:
            return []
        found: list[Device] = []
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            log.warning("NVML does not list the GPUs: %s", error)
            return found
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                name = _text(self._nvml.nvmlDeviceGetName(handle))
                slices = self._slices(handle)
                units = [handle] if slices is None else slices
                uuids = [_text(self._nvml.nvmlDeviceGetUUID(unit)) for unit in units]
            except self._nvml.NVMLError as error:
                # A GPU that fell off the bus must not hide the others.
                log.warning("NVML has no information about GPU %d: %s", index, error)
                continue
            for place, (unit, gpu) in enumerate(zip(units, uuids, strict=True)):
                if gpu in self._handles:
                    continue
                if slices is not None:
                    register_slice(gpu)
                called = name if slices is None else f"{name} MIG {index}:{place}"
                self._facts[gpu] = called, index, self._reserved(unit)
                self._handles[gpu] = unit
                if reading := self.read(gpu):
                    found.append(reading)
        return found

    def _slices(self, handle: Any) -> list[Any] | None:
        """Return the MIG slices of a GPU; None if it is not divided."""
        nvml = self._nvml
        try:
            mode, _ = nvml.nvmlDeviceGetMigMode(handle)
            if mode != nvml.NVML_DEVICE_MIG_ENABLE:
                return None
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:
            return None
        found = []
        for place in range(most):
            # The slices need not have the first numbers.
            with contextlib.suppress(nvml.NVMLError):
                found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))
        return found

    def _reserved(self, handle: Any) -> int:
        """Return the bytes that the driver keeps for itself, which CUDA's total leaves out; 0 before driver 510."""
        nvml = self._nvml
        try:
            return int(nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2).reserved)
        except nvml.NVMLError as error:
            log.debug("NVML does not report the driver's own memory: %s", error)
            return 0

    def read(self, gpu: str) -> Device | None:
        """Read a GPU's memory, without the driver's own part; None: NVML fails."""
        handle = self._handles.get(gpu)
        if handle is None:
            return None
        begun = time.perf_counter()
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        except self._nvml.NVMLError as error:
            log.warning("NVML does not read the memory of %s: %s", gpu, error)
            return None
        self.slow = time.perf_counter() - begun > SLOW
        name, index, reserved = self._facts[gpu]
        used = max(0, int(memory.used) - reserved)
        return Device(gpu, int(memory.total) - reserved, used, name, index)

    def poll(self, gpu: str) -> Device | None:
        """Read a GPU's memory as `read` does, how busy the GPU is, and its energy."""
        device = self.read(gpu)
        if device is not None:
            begun = time.perf_counter()
            try:
                rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handles[gpu])
                self.utilization[gpu] = int(rates.gpu)
            except self._nvml.NVMLError:
                self.utilization[gpu] = None
            self.energy[gpu] = self._read_energy(self._handles[gpu])
            self.slow_to_poll = time.perf_counter() - begun > SLOW
        return device

    def compute_capability(self, gpu: str) -> tuple[int, int] | None:
        """Return a GPU's compute capability; None: NVML does not report it."""
        try:
            major, minor = self._nvml.nvmlDeviceGetCudaComputeCapability(self._handles[gpu])
        except self._nvml.NVMLError as error:
            log.debug("NVML does not report the compute capability of %s: %s", gpu, error)
            return None
        return int(major), int(minor)

    def driver_release(self) -> str | None:
        """Return the release of the driver, such as ``580.65.06``; None: NVML does not report it."""
        try:
            return _text(self._nvml.nvmlSystemGetDriverVersion())
        except self._nvml.NVMLError as error:
            log.debug("NVML does not report the driver's release: %s", error)
            return None

    def watts(self, gpu: str) -> int | None:
        """Return a GPU's power as of the last `poll`; None: NVML has no figure."""
        reading = self.energy.get(gpu)
        return None if reading is None or reading.watts is None else round(reading.watts)

    def _read_energy(self, handle: Any) -> EnergyReading:
        """Read the energy counter and the power; old GPUs lack the first, MIG slices both."""
        nvml = self._nvml
        joules = watts = None
        with contextlib.suppress(nvml.NVMLError):
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        at = time.monotonic()
        with contextlib.suppress(nvml.NVMLError):
            watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return EnergyReading(at, joules, watts)

    def processes(self, gpu: str) -> dict[int, int] | None:
        """Return the bytes of a GPU that each process holds; None if NVML has no figure. May take milliseconds."""
        handle, nvml = self._handles.get(gpu), self._nvml
        if handle is None or nvml is None:
            return None
        try:
            found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except nvml.NVMLError as error:
            log.debug("NVML does not list the processes of %s: %s", gpu, error)
            return None
        held: dict[int, int] = {}
        for one in found:
            # NVML has no figure if the driver has none, as under WSL.
            if one.usedGpuMemory is not None:
                held[int(one.pid)] = held.get(int(one.pid), 0) + int(one.usedGpuMemory)
        return held

    def stop(self) -> None:
        """Release NVML."""
        self._handles.clear()
        if self._nvml is not None:
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                log.debug("NVML does not stop: %s", error)
            self._nvml = None


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
