# SPDX-License-Identifier: BSD-3-Clause
"""Cells that use the GPU and wait, and what the scheduler says of their group."""

import asyncio
from collections.abc import Callable
from typing import Any

from .conftest import Kernel, Result

Ask = Callable[..., dict[str, Any]]

#: Uses CUDA without any library: what a cell does with the GPU is `work()`.
SETUP = """
import ctypes, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
holding_the_gil = ctypes.PyDLL("libcuda.so.1")
def check(status):
    if status:
        raise RuntimeError(f"CUDA error {status}")
check(cuda.cuInit(0))
context, buffer = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)))
def work(cuda=cuda):
    check(cuda.cuMemsetD32_v2(buffer, ctypes.c_uint(7), ctypes.c_size_t(1 << 18)))
work()
"""

#: Keeps the GPU until it is interrupted.
HOLD = "print('holds', flush=True)\nwhile True: work()"

WAIT = {
    "on the main thread": "print('waits', flush=True)\nwork()",
    "with the GIL held": "print('waits', flush=True)\nwork(holding_the_gil)",
    # As autograd does it: the main thread waits where no signal wakes it, for a thread that waits for the GPU.
    "on another thread": """
libc, mutex, failure = ctypes.CDLL(None), ctypes.create_string_buffer(64), []
ready = threading.Event()
def other():
    libc.pthread_mutex_lock(mutex)
    ready.set()
    try:
        check(cuda.cuCtxSetCurrent(context))
        work()
    except RuntimeError as error:
        failure.append(error)
    libc.pthread_mutex_unlock(mutex)
threading.Thread(target=other).start()
ready.wait()
print('waits', flush=True)
libc.pthread_mutex_lock(mutex)
if failure:
    raise failure[0]
""",
    "in code that swallows errors": """
print('waits', flush=True)
try:
    work()
except RuntimeError:
    pass
time.sleep(50)
""",
    "in a magic": "print('waits', flush=True)\n%time work()",
}


def group_of(ask: Ask, kernel: Kernel) -> dict[str, Any]:
    groups = ask("status")["status"]["groups"]
    return next(
        (group for group in groups if group["id"] == kernel.manager.kernel_id), {"state": "none"}
    )


def told(ask: Ask, kernel: Kernel) -> list[tuple[str, str]]:
    """What the scheduler was told of the kernel's cells: phases and messages."""
    return [
        (e["phase"], e["msg_id"])
        for e in ask("history")["events"]
        if e["kind"] == "cell" and e["group"] == kernel.manager.kernel_id
    ]


def cells(ask: Ask, kernel: Kernel) -> list[str]:
    """The phases of the kernel's cells that the scheduler was told of."""
    return [phase for phase, _ in told(ask, kernel)]


async def begin(kernel: Kernel, code: str) -> asyncio.Task[Result]:
    """Run a cell and wait until it says something."""
    said = asyncio.Event()
    cell = asyncio.create_task(kernel.execute(code, said))
    waiter = asyncio.create_task(said.wait())
    await asyncio.wait([cell, waiter], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    assert not cell.done(), cell.result().reply
    return cell
