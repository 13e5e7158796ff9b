# SPDX-License-Identifier: BSD-3-Clause
"""Measures how fast a GPU's memory moves, in a process of its own, because drivers may hang and crash.

Prints one JSON object::

    python -m jupyter_gpushare.cli.demo.probe CUDA BYTES
"""

from __future__ import annotations

import json
import sys
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any

from ..doctor.probe import Cuda, ProbeError

#: Copies of which the fastest counts: other programs can only slow a copy down.
ROUNDS = 3


def moves(path: str, amount: int) -> dict[str, Any]:
    """Measure the seconds to page-lock host memory, and to copy device memory there and back."""
    cuda = Cuda(path)
    cuda.call("cuInit", 0)
    device, context = cuda.number("cuDeviceGet", 0), c_void_p()
    cuda.call("cuDevicePrimaryCtxRetain", byref(context), device)
    cuda.call("cuCtxSetCurrent", context)
    there, here, count = c_uint64(), c_void_p(), c_size_t(amount)
    cuda.call("cuMemAlloc_v2", byref(there), count)
    began = time.perf_counter()
    cuda.call("cuMemAllocHost_v2", byref(here), count)
    # The first copy touches the pages.
    cuda.call("cuMemcpyDtoH_v2", here, there, count)
    first = time.perf_counter() - began
    copies = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        cuda.call("cuMemcpyDtoH_v2", here, there, count)
        cuda.call("cuMemcpyHtoD_v2", there, here, count)
        copies.append(time.perf_counter() - began)
    cuda.call("cuMemFreeHost", here)
    cuda.call("cuMemFree_v2", there)
    cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return {"first": first, "again": min(copies)}


def main() -> None:
    """Print what was measured."""
    try:
        found = moves(sys.argv[1], int(sys.argv[2]))
    except (ProbeError, AttributeError) as error:
        found = {"error": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
