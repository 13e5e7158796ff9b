# SPDX-License-Identifier: BSD-3-Clause
"""``python -m tests.gpu.answers``: what the driver answers where a program goes wrong, bare and with the interposer.

Each scenario is a process of its own, since some of them leave it without a usable context. The answers of an NVIDIA
H200 with driver 580 are in ``answers.json``: the simulated driver is held to them, and so is the interposer.

Exit status 0 if all answers are those recorded, and those with the interposer are the bare driver's but for the
documented differences in ``KINDER``; 1 if not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tests.gpu.bare_calls import MIB, PTX, Answers, Driver
from tests.gpu.memory_answers import currents, empty, kinds, owners

RECORDED = Path(__file__).with_suffix(".json")
#: Seconds; a scenario takes less than one.
PATIENCE = 120.0
#: Calls that the driver refuses and the interposer accepts, on purpose (docs/contributing/conformance.md).
#: They end a capture on the bare driver.
KINDER = {
    f"{mode}, {thread}: {call}"
    for mode, thread in (
        ("global", "its thread"),
        ("global", "another thread"),
        ("thread local", "its thread"),
    )
    for call in ("cuMemAllocAsync", "cuMemFreeAsync")
}
#: The interposer makes stream-ordered memory of ordinary memory, to which streams may write values.
KINDER |= {
    f"{context}{kind}: cuStream{call}Value{bits}"
    for context in ("", "another context: ")
    for kind in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync")
    for call in ("Write", "Wait")
    for bits in (32, 64)
}

GLOBAL, THREAD_LOCAL, RELAXED = range(3)


def frees(cuda: Driver) -> Answers:
    """Give what memory that is freed twice, by another call or at a wrong address answers."""
    cuda.begin()
    s, t = cuda.stream(), cuda.stream()
    block = cuda.ordered(s)
    yield "cuMemFreeAsync", cuda("cuMemFreeAsync", block, s)
    yield "again", cuda("cuMemFreeAsync", block, s)
    yield "again, in another stream", cuda("cuMemFreeAsync", block, t)
    yield (
        "again, after the stream's end",
        (
            cuda("cuStreamSynchronize", s),
            cuda("cuMemFreeAsync", block, s),
        ),
    )
    yield "its attribute", cuda("cuPointerGetAttribute", ctypes.byref(ctypes.c_uint64()), 2, block)
    yield "a copy to it", cuda("cuMemcpyHtoD_v2", block, b"x" * 64, 64)
    yield "a fill of it", cuda("cuMemsetD8_v2", block, 0, 64)
    yield "nothing has failed", cuda("cuCtxSynchronize")

    waiting = cuda.kernel("spin_until")
    flag = cuda.memory()
    cuda("cuMemsetD32_v2", flag, 0, 1)
    cuda("cuCtxSynchronize")
    cuda.launch(waiting, s, flag.value)
    block = cuda.ordered(s)
    yield "behind a kernel: cuMemFreeAsync", cuda("cuMemFreeAsync", block, s)
    yield "behind a kernel: again", cuda("cuMemFreeAsync", block, s)
    yield "behind a kernel: again, in another stream", cuda("cuMemFreeAsync", block, t)
    cuda("cuMemsetD32Async", flag, 1, 1, t)
    yield "the kernel ends", cuda("cuCtxSynchronize")

    block = cuda.ordered(s)
    cuda("cuStreamSynchronize", s)
    yield "stream-ordered memory: cuMemFree", cuda("cuMemFree_v2", block)
    yield "stream-ordered memory: cuMemFree again", cuda("cuMemFree_v2", block)
    block = cuda.memory()
    yield "cuMemFree of an inner address", cuda("cuMemFree_v2", block.value + 256)
    yield "cuMemFree", cuda("cuMemFree_v2", block)
    yield "cuMemFree again", cuda("cuMemFree_v2", block)
    block = cuda.ordered(s)
    yield "cuMemFreeAsync of an inner address", cuda("cuMemFreeAsync", block.value + 256, s)
    yield "cuMemFree of nothing", cuda("cuMemFree_v2", 0)
    yield "cuMemFreeAsync of nothing", cuda("cuMemFreeAsync", 0, s)
    yield "cuMemFreeAsync of what nobody allocated", cuda("cuMemFreeAsync", 0x1234567000, s)


def handles(cuda: Driver) -> Answers:
    """Give what memory without a handle, and handles that are released, answer."""
    cuda.begin()
    s = cuda.stream()
    for kind, address in (
        ("cuMemAlloc", cuda.memory(4 * MIB).value),
        ("cuMemAllocAsync", cuda.ordered(s).value),
        ("nothing", 0x1234567000),
    ):
        handle = ctypes.c_uint64()
        code = cuda("cuMemRetainAllocationHandle", ctypes.byref(handle), address)
        yield f"cuMemRetainAllocationHandle of {kind}", code
    # An allocation of pinned memory on device 0.
    wanted = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
    physical = cuda.out(ctypes.c_uint64, "cuMemCreate", 2 * MIB, wanted, 0)
    address = cuda.out(ctypes.c_uint64, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    yield "cuMemMap", cuda("cuMemMap", address, 2 * MIB, 0, physical, 0)
    yield "cuMemUnmap", cuda("cuMemUnmap", address, 2 * MIB)
    yield "cuMemRelease", cuda("cuMemRelease", physical)
    yield "cuMemRelease again", cuda("cuMemRelease", physical)
    yield "cuMemAddressFree", cuda("cuMemAddressFree", address, 2 * MIB)
    yield "cuMemAddressFree again", cuda("cuMemAddressFree", address, 2 * MIB)
    yield "nothing has failed", cuda("cuCtxSynchronize")


def captures(cuda: Driver) -> Answers:
    """Give what a capture in each mode makes of calls by its thread and another: their answer, and that of its end."""
    cuda.begin()
    s, t = cuda.stream(), cuda.stream()
    kernel, block = cuda.kernel("store_nowhere"), cuda.memory()
    done, event = cuda.event(), cuda.event()
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    cuda("cuEventRecord", done, t)
    # What the first of a kind would set up for all.
    cuda("cuMemFreeAsync", cuda.ordered(t), t)
    cuda("cuCtxSynchronize")

    def elsewhere(call: Callable[[], int]) -> int:
        found: list[int] = []

        def run() -> None:
            cuda("cuCtxSetCurrent", cuda.context)
            found.append(call())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    text = ctypes.create_string_buffer(64)
    calls: dict[str, Callable[[], int]] = {
        "cuMemAlloc": cuda.allocate,
        "cuMemFree": lambda: cuda("cuMemFree_v2", spare.pop()),
        "cuMemAllocAsync": lambda: cuda("cuMemAllocAsync", ctypes.byref(ctypes.c_uint64()), MIB, t),
        "cuMemFreeAsync": lambda: cuda("cuMemFreeAsync", ordered.pop(), t),
        "cuMemHostAlloc": lambda: cuda("cuMemHostAlloc", ctypes.byref(ctypes.c_void_p()), 4096, 0),
        "cuMemPoolTrimTo": lambda: cuda("cuMemPoolTrimTo", pool, 0),
        "cuMemGetInfo": lambda: cuda(
            "cuMemGetInfo_v2", ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_size_t())
        ),
        "cuMemAddressReserve": lambda: cuda(
            "cuMemAddressReserve", ctypes.byref(ctypes.c_uint64()), 2 * MIB, 0, 0, 0
        ),
        "cuEventCreate": lambda: cuda("cuEventCreate", ctypes.byref(ctypes.c_void_p()), 2),
        "cuEventRecord": lambda: cuda("cuEventRecord", event, t),
        "cuEventQuery": lambda: cuda("cuEventQuery", done),
        "cuEventSynchronize": lambda: cuda("cuEventSynchronize", done),
        "cuStreamCreate": lambda: cuda("cuStreamCreate", ctypes.byref(ctypes.c_void_p()), 1),
        "cuStreamQuery": lambda: cuda("cuStreamQuery", t),
        "cuStreamSynchronize": lambda: cuda("cuStreamSynchronize", t),
        "cuCtxSynchronize": lambda: cuda("cuCtxSynchronize"),
        "cuMemcpyHtoD": lambda: cuda("cuMemcpyHtoD_v2", block, text, 64),
        "cuMemcpyHtoDAsync": lambda: cuda("cuMemcpyHtoDAsync_v2", block, text, 64, t),
        "cuMemsetD8": lambda: cuda("cuMemsetD8_v2", block, 0, 64),
        "cuLaunchKernel": lambda: cuda.launch(kernel, t, block.value),
    }
    # Freed by the calls above, four times in each of three modes.
    spare = [cuda.memory() for _ in range(12)]
    ordered = [cuda.ordered(t) for _ in range(12)]
    cuda("cuStreamSynchronize", t)

    def relaxed(call: Callable[[], int]) -> int:
        mode = ctypes.c_int(RELAXED)
        cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        found = call()
        cuda("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        return found

    def run(call: Callable[[], int], calm: bool, other: bool) -> int:
        if calm:
            return run(lambda: relaxed(call), False, other)
        return elsewhere(call) if other else call()

    for name, call in calls.items():
        for mode, title in (
            (GLOBAL, "global"),
            (THREAD_LOCAL, "thread local"),
            (RELAXED, "relaxed"),
        ):
            for other in (False, True):
                for calm in (False, True):
                    # What the call before this one has put into the stream must not decide what a query returns.
                    cuda("cuStreamSynchronize", t)
                    cuda("cuStreamBeginCapture_v2", s, mode)
                    cuda.launch(kernel, s, block.value)
                    code = run(call, calm, other)
                    graph = ctypes.c_void_p()
                    end = cuda("cuStreamEndCapture", s, ctypes.byref(graph))
                    if graph.value:
                        cuda("cuGraphDestroy", graph)
                    who = ("another thread" if other else "its thread") + (
                        ", relaxed" if calm else ""
                    )
                    yield f"{title}, {who}: {name}", (code, end)


def failed(cuda: Driver, kernel: str) -> Answers:
    """Give what a context answers after one of its kernels has failed, and what others of its process do."""
    cuda.begin()
    s, event, block = cuda.stream(), cuda.event(), cuda.memory()
    ordered = cuda.ordered(s)
    pinned = cuda.out(ctypes.c_void_p, "cuMemHostAlloc", 4096, 0)
    pool = cuda.out(ctypes.c_void_p, "cuDeviceGetDefaultMemPool", cuda.device)
    reserved = cuda.out(ctypes.c_uint64, "cuMemAddressReserve", 2 * MIB, 0, 0, 0)
    function = cuda.kernel(kernel)
    other = cuda.out(ctypes.c_void_p, "cuCtxCreate_v2", 0, cuda.device)
    of_other = cuda.memory()
    cuda("cuCtxSetCurrent", cuda.context)
    cuda("cuCtxSynchronize")
    yield "the kernel's launch", cuda.launch(function, s, 0x10)
    yield "cuStreamSynchronize", cuda("cuStreamSynchronize", s)
    number, word, size = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_size_t()
    pointer = ctypes.c_void_p()
    at_number, at_word, at_size, at_pointer = map(ctypes.byref, (number, word, size, pointer))
    wanted = (ctypes.c_int * 8)(1, 0, 1, 0, 0, 0, 0, 0)
    for name, *arguments in (
        ("cuCtxSynchronize",),
        ("cuMemAlloc_v2", at_word, MIB),
        ("cuMemAllocAsync", at_word, MIB, s),
        ("cuMemFree_v2", block),
        ("cuMemFreeAsync", ordered, s),
        ("cuMemGetInfo_v2", at_size, ctypes.byref(ctypes.c_size_t())),
        ("cuMemGetAddressRange_v2", at_word, at_size, block),
        ("cuPointerGetAttribute", at_word, 2, block),
        ("cuMemAddressReserve", at_word, 2 * MIB, 0, 0, 0),
        ("cuMemAddressFree", reserved, 2 * MIB),
        ("cuMemCreate", at_word, 2 * MIB, wanted, 0),
        ("cuMemHostAlloc", at_pointer, 4096, 0),
        ("cuMemFreeHost", pinned),
        ("cuMemPoolGetAttribute", pool, 7, at_word),
        ("cuMemPoolTrimTo", pool, 0),
        ("cuMemcpyHtoD_v2", block, b"x" * 64, 64),
        ("cuMemcpyDtoHAsync_v2", pinned, block, 64, s),
        ("cuMemsetD8_v2", block, 0, 64),
        ("cuStreamQuery", s),
        ("cuStreamCreate", at_pointer, 1),
        ("cuStreamBeginCapture_v2", s, GLOBAL),
        ("cuEventQuery", event),
        ("cuEventCreate", at_pointer, 0),
        ("cuModuleLoadData", at_pointer, PTX),
        ("cuFuncGetAttribute", at_number, 0, function),
        ("cuGraphCreate", at_pointer, 0),
        ("cuDeviceGetAttribute", at_number, 1, cuda.device),
        ("cuDeviceTotalMem_v2", at_size, cuda.device),
        ("cuCtxGetCurrent", at_pointer),
        ("cuCtxGetDevice", at_number),
        ("cuCtxSetCurrent", cuda.context),
        ("cuStreamDestroy_v2", s),
        ("cuEventDestroy_v2", event),
        ("cuCtxCreate_v2", at_pointer, 0, cuda.device),
    ):
        yield name, cuda(name, *arguments)
    yield "cuLaunchKernel", cuda.launch(function, None, block.value)
    cuda("cuCtxSetCurrent", other)
    yield "another context: cuMemAlloc", cuda.allocate()
    yield "another context: cuMemsetD8", cuda("cuMemsetD8_v2", of_other, 0, 64)
    yield "another context: cuCtxSynchronize", cuda("cuCtxSynchronize")
    yield "another context: cuCtxDestroy", cuda("cuCtxDestroy_v2", other)
    cuda("cuCtxSetCurrent", cuda.context)
    yield "cuDevicePrimaryCtxReset", cuda("cuDevicePrimaryCtxReset_v2", cuda.device)
    yield "after it: cuMemAlloc", cuda.allocate()
    yield (
        "after it: cuDevicePrimaryCtxRetain",
        cuda("cuDevicePrimaryCtxRetain", at_pointer, cuda.device),
    )


SCENARIOS: dict[str, Callable[[Driver], Answers]] = {
    "frees": frees,
    "handles": handles,
    "captures": captures,
    "illegal address": lambda cuda: failed(cuda, "store_nowhere"),
    "kinds": kinds,
    "empty": empty,
    "currents": currents,
    "owners beside another": lambda cuda: owners(cuda, "beside another"),
    "owners alone": lambda cuda: owners(cuda, "alone"),
    "owners reset": lambda cuda: owners(cuda, "reset"),
    "owners released": lambda cuda: owners(cuda, "released"),
    "trap": lambda cuda: failed(cuda, "trap_now"),
}


def answers(scenario: str, environ: dict[str, str]) -> dict[str, Any]:
    """Run a scenario in its own process, and report the status of a process that dies."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.answers", "--answer", scenario],
        cwd=Path(__file__).parents[2],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    found: dict[str, Any] = dict(json.loads(line) for line in done.stdout.splitlines())
    return found if done.returncode == 0 else found | {"the process": done.returncode}


def differences(
    expected: dict[str, Any], found: dict[str, Any], but: Collection[str] = ()
) -> list[str]:
    """Describe each answer that differs in a line, but those of the calls in ``but``."""
    return [
        f"{call}: {found.get(call, 'nothing')} instead of {expected.get(call, 'nothing')}"
        for call in expected | found
        if call not in but and found.get(call) != expected.get(call)
    ]


def main(argv: list[str] | None = None) -> int:
    """Run all scenarios bare and interposed and print where they differ from what is recorded."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.answers", description=__doc__)
    parser.add_argument("--answer", choices=SCENARIOS, help=argparse.SUPPRESS)
    parser.add_argument("--record", metavar="FILE", help="write the bare driver's answers there")
    args = parser.parse_args(argv)
    if args.answer:
        for call, answer in SCENARIOS[args.answer](Driver()):
            print(json.dumps([call, answer]), flush=True)
        return 0

    from jupyter_gpushare.benchmarks.harness.machine import machine

    with machine() as here:
        bare = {name: answers(name, here.bare_environ()) for name in SCENARIOS}
        ours = {name: answers(name, here.client_environ("answers")) for name in SCENARIOS}
    if args.record:
        Path(args.record).write_text(json.dumps(bare, indent=1) + "\n")
    recorded = json.loads(RECORDED.read_text())
    wrong = 0
    for title, expected, found, documented in (
        ("the bare driver, against what is recorded", recorded, bare, set[str]()),
        ("with the interposer, against the bare driver", bare, ours, KINDER),
    ):
        lines = [
            f"  {name}: {line}"
            for name in SCENARIOS
            for line in differences(expected.get(name, {}), found[name], but=documented)
        ]
        calls = sum(map(len, found.values()))
        print(f"{title}: {calls} answers, {len(lines)} different", *lines, sep="\n")
        wrong += len(lines)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
