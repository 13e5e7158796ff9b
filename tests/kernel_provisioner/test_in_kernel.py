# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Kernel, Result, eventually, started

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


def cells(ask: Ask, kernel: Kernel) -> list[str]:
    """The phases of the kernel's cells that the scheduler was told of."""
    events = ask("history")["events"]
    return [
        e["phase"] for e in events if e["kind"] == "cell" and e["group"] == kernel.manager.kernel_id
    ]


async def begin(kernel: Kernel, code: str) -> asyncio.Task[Result]:
    """Run a cell and wait until it says something."""
    said = asyncio.Event()
    cell = asyncio.create_task(kernel.execute(code, said))
    waiter = asyncio.create_task(said.wait())
    await asyncio.wait([cell, waiter], timeout=60, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    assert not cell.done(), cell.result().reply
    return cell


@pytest.mark.parametrize("where", WAIT)
async def test_an_interrupt_ends_a_wait(where: str, scheduler: Ask) -> None:
    scheduler("set", anti_thrash="on", quantum=600)
    async with started() as holder, started() as waiter:
        for kernel in (holder, waiter):
            assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        holding = await begin(holder, HOLD)
        await eventually(
            lambda: group_of(scheduler, holder)["state"] == "running", "the holder runs"
        )
        # What it prints may not come out before it is interrupted: sending it takes the GIL.
        waiting = asyncio.create_task(waiter.execute(WAIT[where]))
        await eventually(
            lambda: group_of(scheduler, waiter)["state"] == "waiting", "the waiter waits"
        )
        await waiter.manager.interrupt_kernel()
        result = await asyncio.wait_for(waiting, 10)
        assert result.reply["status"] == "error"
        assert result.reply["ename"] == "KeyboardInterrupt"
        assert result.errors() == ["KeyboardInterrupt"]
        # The kernel is alive, its own errors are its own, and the holder never noticed.
        assert (await waiter.execute("1 / 0")).reply["ename"] == "ZeroDivisionError"
        assert not holding.done()
        await holder.manager.interrupt_kernel()
        assert (await asyncio.wait_for(holding, 10)).reply["ename"] == "KeyboardInterrupt"
        assert (await asyncio.wait_for(waiter.execute("work()"), 30)).reply["status"] == "ok"


async def test_the_scheduler_is_told_of_cells(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        before = len(cells(scheduler, kernel))
        result = await kernel.execute("work()\nprint(1)")
        assert result.reply["status"] == "ok"
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 2, "the cell's end")
        assert cells(scheduler, kernel)[before:] == ["begin", "end"]
        # Also where the cell fails, and where cells nest.
        await kernel.execute("1 / 0")
        await kernel.execute("get_ipython().run_cell('work()'); work()")
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 6, "all ends")
        assert cells(scheduler, kernel)[before:] == ["begin", "end"] * 3
        assert group_of(scheduler, kernel)["cell"] is None


async def test_a_subshells_cell_does_not_end_the_main_ones(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        client = kernel.client
        request = client.session.msg("create_subshell_request")
        client.control_channel.send(request)
        subshell = (await client.control_channel.get_msg(timeout=60))["content"]["subshell_id"]
        before = len(cells(scheduler, kernel))
        main = await begin(
            kernel, "done = threading.Event()\nprint(1, flush=True)\nwork(); done.wait(60); work()"
        )
        message = client.session.msg("execute_request", {"code": "beside = 1", "silent": False})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        await eventually(lambda: cells(scheduler, kernel)[before:], "the main cell's begin")
        # A second cell in the subshell ends after the first did.
        message = client.session.msg("execute_request", {"code": "done.set()", "silent": False})
        message["header"]["subshell_id"] = subshell
        assert cells(scheduler, kernel)[before:] == ["begin"]
        client.shell_channel.send(message)
        assert (await main).reply["status"] == "ok"
        assert (await kernel.execute("print(beside)")).stream("stdout") == "1\n"
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 4, "all ends")
        assert cells(scheduler, kernel)[before:] == ["begin", "end", "begin", "end"]


async def test_load_ext_says_what_is_missing(add_kernelspec: Callable[..., str], root: Any) -> None:
    name = add_kernelspec("plain", metadata={"gpushare": {"enabled": False}})
    async with started(name, cwd=str(root)) as kernel:
        result = await kernel.execute("%load_ext jupyter_gpushare.kernel_provisioner.in_kernel")
        assert result.reply["status"] == "ok"
        assert result.stream("stdout").startswith("gpushare: this kernel does not share the GPU")
        assert "does not share the GPU" in (await kernel.execute("%gpushare")).stream("stderr")
        await kernel.execute("%unload_ext jupyter_gpushare.kernel_provisioner.in_kernel")
        assert "not found" in (await kernel.execute("%gpushare")).stream("stderr")


#: A torch whose cache counts how often it was emptied; the real one does not run on the simulated driver.
CACHE = """
import sys, types
emptied = []
torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: False,
    empty_cache=lambda: emptied.append(1),
)
sys.modules["torch"] = torch
"""


async def test_caches_are_emptied_only_where_others_wait(scheduler: Ask) -> None:
    scheduler("set", anti_thrash="on", quantum=600)
    async with started() as holder, started() as waiter:
        for kernel in (holder, waiter):
            assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        await holder.execute(CACHE)
        await holder.execute("work()")
        assert (await holder.execute("print(emptied)")).stream("stdout") == "[]\n"
        busy = "contended = ctypes.CDLL(None).gpushare_contended\nprint(1, flush=True)\nwhile not contended(): work()"
        holding = await begin(holder, busy)
        await eventually(
            lambda: group_of(scheduler, holder)["state"] == "running", "the holder runs"
        )
        assert (await asyncio.wait_for(waiter.execute("work()"), 30)).reply["status"] == "ok"
        assert (await asyncio.wait_for(holding, 30)).reply["status"] == "ok"
        assert (await holder.execute("print(emptied)")).stream("stdout") == "[1]\n"
