# SPDX-License-Identifier: BSD-3-Clause
"""The driver's API as the scenarios of ``answers.py`` call it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

MIB = 1 << 20
INVALID_IMAGE = 200

#: ``spin_until`` ends once the number that it is given is not 0.
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry store_nowhere(.param .u64 a) {
    .reg .u64 %a; .reg .u32 %v;
    ld.param.u64 %a, [a];
    mov.u32 %v, 7;
    st.global.u32 [%a], %v;
    ret;
}
.visible .entry trap_now(.param .u64 a) { trap; }
.visible .entry spin_until(.param .u64 a) {
    .reg .u64 %a; .reg .u32 %v; .reg .pred %p;
    ld.param.u64 %a, [a];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %p, %v, 0;
    @%p bra again;
    ret;
}
"""
SOURCE = b"""
extern "C" __global__ void store_nowhere(unsigned *a) { *a = 7; }
extern "C" __global__ void trap_now(unsigned *a) { *(volatile unsigned *)16 = 7; }
extern "C" __global__ void spin_until(volatile unsigned *a) { while (*a == 0); }
"""


class Driver:
    """The driver's API by name: what is no ctypes object is passed as 64 bits."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.device = ctypes.c_int()
        self.context = ctypes.c_void_p()

    def __call__(self, name: str, *arguments: Any) -> int:
        passed = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
        return int(getattr(self.library, name)(*passed))

    def out(self, kind: Any, name: str, *arguments: Any) -> Any:
        """Call what writes its result to its first argument, and return it; an error is the end."""
        found = kind()
        code = self(name, ctypes.byref(found), *arguments)
        if code:
            raise RuntimeError(f"{name} answered {code}")
        return found

    def begin(self) -> None:
        """Make the primary context current."""
        self("cuInit", 0)
        self.device = self.out(ctypes.c_int, "cuDeviceGet", 0)
        self.context = self.out(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", self.device)
        self("cuCtxSetCurrent", self.context)

    def stream(self) -> Any:
        """Make a stream that does not wait for the legacy one."""
        return self.out(ctypes.c_void_p, "cuStreamCreate", 1)

    def event(self) -> Any:
        """Make an event without times."""
        return self.out(ctypes.c_void_p, "cuEventCreate", 2)

    def memory(self, size: int = MIB) -> Any:
        """Allocate."""
        return self.out(ctypes.c_uint64, "cuMemAlloc_v2", size)

    def ordered(self, stream: Any, size: int = MIB) -> Any:
        """Allocate in a stream's order."""
        return self.out(ctypes.c_uint64, "cuMemAllocAsync", size, stream)

    def allocate(self) -> int:
        """Try to allocate."""
        return self("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), MIB)

    def kernel(self, name: str) -> Any:
        """Load a kernel: compiled for a GPU, or from source on the simulated driver."""
        module = ctypes.c_void_p()
        code = self("cuModuleLoadData", ctypes.byref(module), PTX)
        if code == INVALID_IMAGE:
            code = self("cuModuleLoadData", ctypes.byref(module), compiled())
        if code:
            raise RuntimeError(f"cuModuleLoadData answered {code}")
        return self.out(ctypes.c_void_p, "cuModuleGetFunction", module, name.encode())

    def launch(self, kernel: Any, stream: Any, value: int) -> int:
        """Launch one thread."""
        argument = ctypes.c_uint64(value)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
        return self("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None)


def compiled() -> bytes:
    """Compile the kernels with NVRTC."""
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"answers.cu", 0, None, None)
    if nvrtc.nvrtcCompileProgram(program, 0, None):
        raise RuntimeError("NVRTC did not compile the kernels")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    image = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, image)
    return image.raw


Answers = Iterator[tuple[str, Any]]
