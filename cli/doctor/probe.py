# SPDX-License-Identifier: BSD-3-Clause
"""Checks that ``gpushare doctor`` runs in a child process, because drivers may hang and crash: prints one JSON object.

It is run by its path and needs only the standard library::

    python probe.py driver CUDA [NVML]
    python probe.py preload
    python probe.py managed CUDA
    python probe.py hold CUDA

``hold`` runs until its standard input ends, and prints a line for each line that it reads.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

VMM_SUPPORTED = 102  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
CONCURRENT_MANAGED_ACCESS = 89  # CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL
HOST = -1  # CU_DEVICE_CPU
MANAGED_BYTES = 64 << 20
HELD_BYTES = 64 << 20
#: Threads of a process that is hibernated: as many as a notebook has with its libraries.
THREADS = 64


class ProbeError(Exception):
    """A check failed; the message is one sentence."""


class Cuda:
    """The few functions of a CUDA driver that the checks call."""

    def __init__(self, path: str) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ProbeError(f"cannot load {path}: {error}") from None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a driver function, and raise an exception if it returns an error."""
        function: Callable[..., int] = getattr(self._library, name)
        status = function(*arguments)
        if status:
            text = c_char_p()
            self._library.cuGetErrorName(status, byref(text))
            raise ProbeError(f"{name} failed: {(text.value or str(status).encode()).decode()}")

    def number(self, name: str, *arguments: Any) -> int:
        """Call a driver function that returns a number."""
        value = c_int()
        self.call(name, byref(value), *arguments)
        return value.value

    def attribute(self, attribute: int, device: int) -> int:
        """Read an attribute of a device."""
        return self.number("cuDeviceGetAttribute", attribute, device)


def driver(path: str, nvml: str | None = None) -> dict[str, Any]:
    """Return the version of a driver, and its GPUs."""
    cuda = Cuda(path)
    version = cuda.number("cuDriverGetVersion")
    found: dict[str, Any] = {"cuda": f"{version // 1000}.{version % 1000 // 10}", "gpus": []}
    cuda.call("cuInit", 0)
    for index in range(cuda.number("cuDeviceGetCount")):
        name, total = ctypes.create_string_buffer(128), c_size_t()
        device = cuda.number("cuDeviceGet", index)
        cuda.call("cuDeviceGetName", name, len(name), device)
        cuda.call("cuDeviceTotalMem_v2", byref(total), device)
        found["gpus"].append(
            {
                "name": name.value.decode(errors="replace"),
                "total": total.value,
                "vmm": bool(cuda.attribute(VMM_SUPPORTED, device)),
                "managed": bool(cuda.attribute(CONCURRENT_MANAGED_ACCESS, device)),
            }
        )
    if nvml is not None:
        found["nvml"] = _nvml(nvml)
    return found


def _nvml(path: str) -> dict[str, Any]:
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return {"error": f"cannot load {path}: {error}"}
    version = ctypes.create_string_buffer(96)
    status = library.nvmlInit_v2() or library.nvmlSystemGetDriverVersion(
        version, c_uint(len(version))
    )
    if status:
        return {"error": f"NVML failed with error {status}"}
    return {"driver": version.value.decode(errors="replace")}


def preload() -> dict[str, Any]:
    """Use CUDA as a client does, and return what the interposer reports."""
    cuda = Cuda("libcuda.so.1")
    library = ctypes.CDLL(None)
    try:
        library.gpushare_version.restype = c_char_p
        version = (library.gpushare_version() or b"").decode()
    except AttributeError:
        raise ProbeError("LD_PRELOAD had no effect on a child process") from None
    cuda.call("cuInit", 0)
    why = c_char_p()
    attached = library.gpushare_attached(byref(why))
    return {
        "version": version,
        "attached": attached,
        "why": (why.value or b"").decode(errors="replace"),
    }


def managed(path: str) -> dict[str, Any]:
    """Move managed memory to the host and back, and check that no data is lost."""
    cuda = Cuda(path)
    cuda.call("cuInit", 0)
    device = cuda.number("cuDeviceGet", 0)
    if not cuda.attribute(CONCURRENT_MANAGED_ACCESS, device):
        raise ProbeError("the GPU cannot page managed memory (no concurrent managed access)")
    context, pointer = c_void_p(), c_uint64()
    cuda.call("cuDevicePrimaryCtxRetain", byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    cuda.call("cuMemAllocManaged", byref(pointer), c_size_t(MANAGED_BYTES), c_uint(ATTACH_GLOBAL))
    words = MANAGED_BYTES // 4
    seen = (c_uint32 * words)()
    for round_ in range(3):
        # Written on the GPU, moved to the host, changed at its start, moved back, and read.
        pattern = 0x5A5A0000 + round_
        cuda.call("cuMemsetD32_v2", pointer, c_uint(pattern), c_size_t(words))
        cuda.call("cuCtxSynchronize")
        _prefetch(cuda, pointer, HOST)
        ctypes.memset(pointer.value or 0, 0xA5, 4)
        _prefetch(cuda, pointer, device)
        cuda.call("cuMemcpyDtoH_v2", seen, pointer, c_size_t(MANAGED_BYTES))
        if seen[0] != 0xA5A5A5A5 or bytes(seen)[4:] != pattern.to_bytes(4, sys.byteorder) * (
            words - 1
        ):
            raise ProbeError(
                "data was lost when managed memory was moved; do not use the managed backend on this machine"
            )
    cuda.call("cuMemFree_v2", pointer)
    cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return {"bytes": MANAGED_BYTES, "rounds": 3}


def _prefetch(cuda: Cuda, pointer: c_uint64, device: int) -> None:
    cuda.call("cuMemPrefetchAsync", pointer, c_size_t(MANAGED_BYTES), c_int(device), c_void_p())
    cuda.call("cuCtxSynchronize")


def hold(path: str) -> dict[str, Any]:
    """Hold memory that is written on the GPU; for each line of input, print whether its data is unchanged."""
    cuda = Cuda(path)
    cuda.call("cuInit", 0)
    device, context, pointer = cuda.number("cuDeviceGet", 0), c_void_p(), c_uint64()
    cuda.call("cuDevicePrimaryCtxRetain", byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    cuda.call("cuMemAlloc_v2", byref(pointer), c_size_t(HELD_BYTES))
    words = HELD_BYTES // 4
    seen = (c_uint32 * words)()
    for _ in range(THREADS):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    pattern = 0x5A5A0000
    cuda.call("cuMemsetD32_v2", pointer, c_uint(pattern), c_size_t(words))
    cuda.call("cuCtxSynchronize")
    print(json.dumps({"bytes": HELD_BYTES}), flush=True)
    for _ in sys.stdin:
        cuda.call("cuMemcpyDtoH_v2", seen, pointer, c_size_t(HELD_BYTES))
        kept = bytes(seen) == pattern.to_bytes(4, sys.byteorder) * words
        pattern += 1
        cuda.call("cuMemsetD32_v2", pointer, c_uint(pattern), c_size_t(words))
        cuda.call("cuCtxSynchronize")
        print(json.dumps({"kept": kept}), flush=True)
    return {}


def main() -> None:
    """Run a check and print its result."""
    probes: dict[str, Callable[..., dict[str, Any]]] = {
        "driver": driver,
        "preload": preload,
        "managed": managed,
        "hold": hold,
    }
    try:
        found = probes[sys.argv[1]](*sys.argv[2:])
    except (ProbeError, AttributeError) as error:
        found = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
