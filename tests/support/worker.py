# SPDX-License-Identifier: BSD-3-Clause
"""A CUDA program that does what it is told: one JSON object a line in, one a line out.

It uses the driver's API through ctypes, as a library would find it: ``dlopen("libcuda.so.1")``. Commands run on the
main thread, or with ``"thread": name`` on a thread of that name.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import math
import os
import queue
import random
import resource
import signal
import sys
import threading
import time
from typing import Any

cuda = ctypes.CDLL("libcuda.so.1")
cuda_with_gil = ctypes.PyDLL("libcuda.so.1")
for library in (cuda, cuda_with_gil):
    library.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    library.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]
    library.cuMemsetD8_v2.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t]
    library.cuMemsetD32Async.argtypes = [
        ctypes.c_uint64,
        ctypes.c_uint,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    library.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]
    library.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    library.cuMemGetAddressRange_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
    library.cuMemAllocAsync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.cuMemFreeAsync.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    library.cuLaunchHostFunc.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.cuLaunchKernel.argtypes = [
        ctypes.c_void_p,
        *[ctypes.c_uint] * 7,
        *[ctypes.c_void_p] * 3,
    ]
    library.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    library.cuStreamBeginCapture_v2.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.cuStreamEndCapture.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.cuGraphInstantiateWithFlags.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_ulonglong,
    ]
    library.cuGraphLaunch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]

#: CUdevice_attribute
PCI_BUS_ID, PCI_DEVICE_ID, PCI_DOMAIN_ID = 33, 34, 50
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: Bytes that ``pattern`` repeats, and how far apart it numbers them.
PERIOD, MARK = 1 << 16, 512

compare = ctypes.CDLL(None).memcmp
compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
local = threading.local()


def host_memory(bytes: int) -> ctypes.Array[ctypes.c_char]:
    """Return zeroed host memory of this thread. The next call may return it again, so that its pages are made once."""
    if len(getattr(local, "memory", ())) < bytes:
        local.memory = (ctypes.c_char * bytes)()
    memory: ctypes.Array[ctypes.c_char] = local.memory
    ctypes.memset(memory, 0, bytes)
    return memory


def pattern(bytes: int, seed: int) -> bytearray:
    """Return bytes of which no two parts are equal: random ones that repeat, with a number in each ``MARK`` bytes."""
    data = bytearray(random.Random(seed).randbytes(PERIOD) * -(-bytes // PERIOD))
    numbers = array.array("Q", range(seed << 32, (seed << 32) + len(data) // MARK))
    memoryview(data).cast("Q")[1 :: MARK // 8] = memoryview(numbers)
    del data[bytes:]
    return data


class Worker:
    """The commands, by name."""

    def __init__(self) -> None:
        self.context = ctypes.c_void_p()
        self.keep: list[Any] = []
        self.descriptors: list[int] = []
        self.goes = threading.Event()
        self.mutex = threading.Lock()
        self.module = ctypes.c_void_p()
        self.kernel = ctypes.c_void_p()
        self.graph = ctypes.c_void_p()
        self.launched = 0
        self.stops = threading.Event()

    def init(self, ordinal: int = 0) -> dict[str, Any]:
        """Take the device's context for this thread."""
        device = ctypes.c_int()
        result = cuda.cuInit(0)
        if result == 0:
            result = cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        if result == 0:
            result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), device)
        if result == 0:
            result = cuda.cuCtxSetCurrent(self.context)
        return {"result": result}

    def devices(self) -> dict[str, Any]:
        """Return the UUIDs of the devices, in CUDA's order."""
        count, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
        result = cuda.cuDeviceGetCount(ctypes.byref(count))
        found = []
        for ordinal in range(count.value):
            result = result or cuda.cuDeviceGetUuid_v2(uuid, ordinal)
            found.append(bytes(uuid).hex())
        return {"result": result, "uuids": found}

    def buses(self) -> dict[str, Any]:
        """Return where each device is on the PCI bus: as text, in parts, and which device is there."""
        count, value, text = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(32)
        result = cuda.cuDeviceGetCount(ctypes.byref(count))
        found = []
        for ordinal in range(count.value):
            parts = []
            for attribute in (PCI_DOMAIN_ID, PCI_BUS_ID, PCI_DEVICE_ID):
                result = result or cuda.cuDeviceGetAttribute(
                    ctypes.byref(value), attribute, ordinal
                )
                parts.append(value.value)
            result = result or cuda.cuDeviceGetPCIBusId(text, len(text), ordinal)
            there = []
            for name in (text.value, text.value.removeprefix(b"0000:").lower()):
                result = result or cuda.cuDeviceGetByPCIBusId(ctypes.byref(value), name)
                there.append(value.value)
            found.append([text.value.decode(), parts, there])
        nobody = cuda.cuDeviceGetByPCIBusId(ctypes.byref(value), b"0000:7F:00.0")
        return {"result": result, "buses": found, "nobody": nobody}

    def behind(self) -> dict[str, Any]:
        """Make a context with the driver's own function."""
        context = ctypes.c_void_p()
        create = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"]).cuCtxCreate_v2
        return {"result": create(ctypes.byref(context), 0, 0), "context": context.value}

    def end_context(self, how: str) -> dict[str, Any]:
        calls = {
            "release": "cuDevicePrimaryCtxRelease_v2",
            "reset": "cuDevicePrimaryCtxReset_v2",
        }
        return {"result": getattr(cuda, calls[how])(0)}

    def alloc(self, bytes: int) -> dict[str, Any]:
        pointer = ctypes.c_uint64()
        result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), bytes)
        return {"result": result, "pointer": pointer.value}

    def alloc_async(self, bytes: int) -> dict[str, Any]:
        pointer = ctypes.c_uint64()
        result = cuda.cuMemAllocAsync(ctypes.byref(pointer), bytes, None)
        return {"result": result, "pointer": pointer.value}

    def free(self, pointer: int) -> dict[str, Any]:
        return {"result": cuda.cuMemFree_v2(pointer)}

    def free_async(self, pointer: int) -> dict[str, Any]:
        return {"result": cuda.cuMemFreeAsync(pointer, None)}

    def fill(self, pointer: int, bytes: int, value: int, gil: bool = False) -> dict[str, Any]:
        library = cuda_with_gil if gil else cuda
        start = time.monotonic()
        result = library.cuMemsetD32_v2(pointer, value, bytes // 4)
        return {"result": result, "start": start, "end": time.monotonic()}

    def check(self, pointer: int, bytes: int, value: int) -> dict[str, Any]:
        """Copy back and compare all words."""
        host = host_memory(bytes)
        result = cuda.cuMemcpyDtoH_v2(host, pointer, bytes)
        first, words = value.to_bytes(4, "little"), bytes // 4
        # All words are equal if each is equal to the next one.
        equal = ctypes.string_at(host, 4) == first and not compare(
            host, ctypes.byref(host, 4), 4 * max(0, words - 1)
        )
        return {"result": result, "equal": result == 0 and equal}

    def scatter(self, pointer: int, bytes: int, seed: int) -> dict[str, Any]:
        """Write random bytes, of which no two parts are equal."""
        data = (ctypes.c_char * bytes).from_buffer(pattern(bytes, seed))
        return {"result": cuda.cuMemcpyHtoD_v2(pointer, data, bytes)}

    def set_byte(self, pointer: int, value: int) -> dict[str, Any]:
        return {"result": cuda.cuMemsetD8_v2(pointer, value, 1)}

    def scattered(
        self, pointer: int, bytes: int, seed: int, changed: dict[str, int] | None = None
    ) -> dict[str, Any]:
        """Compare with what ``scatter`` wrote; ``changed``: the bytes that were set since, by their offsets."""
        expected = pattern(bytes, seed)
        for offset, value in (changed or {}).items():
            expected[int(offset)] = value
        host = host_memory(bytes)
        result = cuda.cuMemcpyDtoH_v2(host, pointer, bytes)
        equal = not compare(host, (ctypes.c_char * bytes).from_buffer(expected), bytes)
        return {"result": result, "equal": result == 0 and equal}

    def busy(self, seconds: float) -> dict[str, Any]:
        """Queue work that takes the stream so long; returns at once."""
        function = HOST_FUNCTION(lambda _: time.sleep(seconds))
        self.keep.append(function)
        return {"result": cuda.cuLaunchHostFunc(None, function, None)}

    def hold(self, stream: int | None = None) -> dict[str, Any]:
        """Queue work that ends when it is let go; returns at once."""
        self.goes.clear()
        function = HOST_FUNCTION(lambda _: self.goes.wait() and None)
        self.keep.append(function)
        return {"result": cuda.cuLaunchHostFunc(stream, function, None)}

    def lock(self, stream: int) -> dict[str, Any]:
        """Take a lock, and queue a host function that needs it."""
        self.mutex.acquire()

        def needs_the_lock(_: Any) -> None:
            with self.mutex:
                pass

        function = HOST_FUNCTION(needs_the_lock)
        self.keep.append(function)
        return {"result": cuda.cuLaunchHostFunc(stream, function, None)}

    def launch_and_unlock(
        self, pointer: int, bytes: int, stream: int, count: int
    ) -> dict[str, Any]:
        """Submit that often and then let the lock go."""
        result = 0
        for value in range(count):
            result = result or cuda.cuMemsetD32Async(pointer, value, bytes // 4, stream)
        self.mutex.release()
        return {"result": result}

    def alloc_and_unlock(self, bytes: int, how: str) -> dict[str, Any]:
        """Allocate, write to it where it is memory, and then let the lock go."""
        pointer, stream = ctypes.c_uint64(), ctypes.c_void_p()
        if how == "array":
            # CUDA_ARRAY_DESCRIPTOR: rows of 4 KiB, of numbers of 32 bits
            description = (ctypes.c_uint64 * 3)(1024, bytes // 4096, 3 | 1 << 32)
            result = cuda.cuArrayCreate_v2(ctypes.byref(pointer), description)
        elif how == "mipmapped array":
            description = (ctypes.c_uint64 * 5)(1024, bytes // 4096, 0, 3 | 1 << 32)
            result = cuda.cuMipmappedArrayCreate(ctypes.byref(pointer), description, 1)
        else:
            result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), bytes)
            result = result or cuda.cuStreamCreate(ctypes.byref(stream), 1)
            result = result or cuda.cuMemsetD32Async(pointer.value, 7, bytes // 4, stream)
        self.mutex.release()
        return {"result": result, "pointer": pointer.value}

    def let_go(self) -> dict[str, Any]:
        self.goes.set()
        return {"result": cuda.cuCtxSynchronize()}

    def synchronize(self) -> dict[str, Any]:
        return {"result": cuda.cuCtxSynchronize()}

    def repeat(
        self, pointer: int, bytes: int, gap: float, seconds: float = math.inf
    ) -> dict[str, Any]:
        """Fill again and again until it is told to stop; returns the longest time that one took."""
        longest, count, result = 0.0, 0, 0
        end = time.monotonic() + seconds
        while result == 0 and not self.stops.is_set() and (now := time.monotonic()) < end:
            result = cuda.cuMemsetD32_v2(pointer, count, bytes // 4)
            longest = max(longest, time.monotonic() - now)
            count += 1
            time.sleep(gap)
        return {"result": result, "longest": longest, "count": count}

    def load(self, path: str) -> dict[str, Any]:
        """Load a module with a kernel named ``empty``."""
        result = cuda.cuModuleLoad(ctypes.byref(self.module), path.encode())
        if result == 0:
            result = cuda.cuModuleGetFunction(ctypes.byref(self.kernel), self.module, b"empty")
        return {"result": result}

    def unload(self) -> dict[str, Any]:
        return {"result": cuda.cuModuleUnload(self.module)}

    def stream(self) -> dict[str, Any]:
        stream = ctypes.c_void_p()
        return {"result": cuda.cuStreamCreate(ctypes.byref(stream), 1), "stream": stream.value}

    def end_stream(self, stream: int) -> dict[str, Any]:
        return {"result": cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream))}

    def takes(self, seconds: float) -> dict[str, Any]:
        """Kernels that are launched from now on last so long on the simulated GPU."""
        driver = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
        driver.gpushare_sim_duration(ctypes.c_uint64(int(seconds * 1e9)))
        return {}

    def launch(self, count: int = 1, stream: int | None = None, blocks: int = 1) -> dict[str, Any]:
        """Launch the kernel so often, and tell how many have run by then."""
        start, result = time.monotonic(), 0
        for _ in range(count):
            result = result or cuda.cuLaunchKernel(
                self.kernel, blocks, 1, 1, 1, 1, 1, 0, stream, None, None
            )
            self.launched += result == 0
        seconds = time.monotonic() - start
        return {"result": result, "ran": self.counters()["kernels"], "seconds": seconds}

    def train(self, seconds: float = 60.0) -> dict[str, Any]:
        """Launch and wait, again and again, until it is told to stop; tell what the GPU did meanwhile."""
        self.stops.clear()
        before, start, result = self.counters(), time.monotonic(), 0
        while result == 0 and not self.stops.is_set() and time.monotonic() - start < seconds:
            result = self.launch()["result"] or cuda.cuCtxSynchronize()
        after, seconds = self.counters(), time.monotonic() - start
        return {
            "result": result,
            "busy": (after["kernel_ns"] - before["kernel_ns"]) / 1e9,
            "kernels": after["kernels"] - before["kernels"],
            "seconds": seconds,
        }

    def stop(self) -> dict[str, Any]:
        self.stops.set()
        return {}

    def fail(self, rules: str) -> dict[str, Any]:
        """Have calls of the simulated driver fail, as csrc/sim/inject.h says."""
        driver = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
        return {"result": driver.gpushare_sim_fail(rules.encode())}

    def use_up_descriptors(self) -> dict[str, Any]:
        """Open files until the process can open no more."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        with contextlib.suppress(OSError):
            while True:
                self.descriptors.append(os.open("/dev/null", os.O_RDONLY))
        return {}

    def close_descriptors(self) -> dict[str, Any]:
        while self.descriptors:
            os.close(self.descriptors.pop())
        return {}

    def progress(self) -> dict[str, Any]:
        return {"launched": self.launched, "contended": cuda.gpushare_contended()}

    def capture(self, stream: int, count: int) -> dict[str, Any]:
        """Capture so many kernels into a graph."""
        graph = ctypes.c_void_p()
        result = cuda.cuStreamBeginCapture_v2(stream, 0)
        result = result or self.launch(count, stream)["result"]
        result = result or cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
        result = result or cuda.cuGraphInstantiateWithFlags(ctypes.byref(self.graph), graph, 0)
        return {"result": result}

    def launch_graph(self, stream: int, count: int) -> dict[str, Any]:
        result = 0
        for _ in range(count):
            result = result or cuda.cuGraphLaunch(self.graph, stream)
        return {"result": result, "ran": self.counters()["kernels"]}

    def copy_in(self, pointer: int, bytes: int) -> dict[str, Any]:
        """Copy random bytes in, all at once, and compare what is copied back."""
        host, back = os.urandom(bytes), (ctypes.c_char * bytes)()
        result = cuda.cuMemcpyHtoD_v2(pointer, host, bytes)
        result = result or cuda.cuMemcpyDtoH_v2(back, pointer, bytes)
        return {"result": result, "equal": back.raw == host}

    def info(self) -> dict[str, Any]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        result = cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return {"result": result, "free": free.value, "total": total.value}

    def attribute(self, pointer: int, attribute: int) -> dict[str, Any]:
        value = ctypes.c_uint64()
        result = cuda.cuPointerGetAttribute(ctypes.byref(value), attribute, pointer)
        return {"result": result, "value": value.value}

    def address_range(self, pointer: int) -> dict[str, Any]:
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        result = cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer)
        return {"result": result, "base": base.value, "size": size.value}

    def cell(self, phase: str) -> dict[str, Any]:
        getattr(cuda, f"gpushare_cell_{phase}")(b"cell-1")
        return {}

    def cells(self, count: int) -> dict[str, Any]:
        """Begin that many cells, each with its number."""
        for number in range(count):
            cuda.gpushare_cell_begin(str(number).encode())
        return {}

    def attached(self) -> dict[str, Any]:
        why = ctypes.c_char_p()
        return {
            "attached": cuda.gpushare_attached(ctypes.byref(why)),
            "why": why.value.decode() if why.value else None,
            "contended": cuda.gpushare_contended(),
            "interrupted": cuda.gpushare_take_interrupt(),
        }

    def oversubscribe(self, on: bool) -> dict[str, Any]:
        why = ctypes.c_char_p()
        result = cuda.gpushare_oversubscribe(on, ctypes.byref(why))
        return {"result": result, "why": why.value.decode() if why.value else None}

    def open_ipc(self, handle: str) -> dict[str, Any]:
        """Open another process's memory; the handle is in hexadecimal."""

        class Handle(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_char * 64),)

        pointer = ctypes.c_uint64()
        given = Handle.from_buffer_copy(bytes.fromhex(handle)[:64])
        result = cuda.cuIpcOpenMemHandle_v2(ctypes.byref(pointer), given, 1)
        return {"result": result, "pointer": pointer.value}

    def raw(self, function: str, arguments: list[int | str | None]) -> dict[str, Any]:
        """Call any function: numbers and pointers as they are, bytes in hexadecimal; "out" is room for an answer."""
        rooms, values = [], []
        for argument in arguments:
            if isinstance(argument, str):
                given = bytes(256) if argument == "out" else bytes.fromhex(argument)
                rooms.append(ctypes.create_string_buffer(given, len(given)))
                values.append(rooms[-1])
            else:
                values.append(ctypes.c_uint64(argument or 0))
        # Not the library above, whose functions know their arguments.
        result = getattr(ctypes.CDLL("libcuda.so.1"), function)(*values)
        return {"result": result, "out": [room.raw.hex() for room in rooms]}

    def load_library(self, path: str) -> dict[str, Any]:
        """Load a library."""
        self.keep.append(ctypes.CDLL(path))
        return {}

    def counters(self) -> dict[str, Any]:
        """What the simulated driver counts."""
        names = [
            "faulted",
            "prefetched",
            "stolen",
            "copied_in",
            "copied_out",
            "kernels",
            "injected",
            "page_locked",
            "page_lock_ns",
            "remote",
            "written_back",
            "fault_ns",
            "in_ns",
            "out_ns",
            "kernel_ns",
            "waiting",
            "hashed",
            "kept_locked",
        ]
        values = (ctypes.c_uint64 * len(names))()
        driver = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])
        driver.gpushare_sim_counters(values, ctypes.c_size_t(ctypes.sizeof(values)))
        return dict(zip(names, values, strict=True))

    def range_attribute(self, pointer: int, bytes: int, attribute: int) -> dict[str, Any]:
        """An attribute of a managed range, as the driver has it (not the interposer)."""
        value = ctypes.c_int()
        query = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"]).cuMemRangeGetAttribute
        query.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_size_t,
        ]
        result = query(ctypes.byref(value), 4, attribute, pointer, bytes)
        return {"result": result, "value": value.value}

    def fork(self) -> dict[str, Any]:
        """Leave a child behind that outlives this process, and tell what CUDA says in it."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            pointer = ctypes.c_uint64()
            for _ in range(2):
                result = cuda.cuMemAlloc_v2(ctypes.byref(pointer), 1 << 20)
            os.write(write, str(result).encode())
            for fd in range(3):
                os.close(fd)
            time.sleep(20)
            os._exit(0)
        os.close(write)
        return {"child": child, "result": int(os.read(read, 16))}

    def init_in_child(self) -> dict[str, Any]:
        """Leave a child behind that uses CUDA, which this process has not done yet."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(cuda.cuInit(0)).encode())
            signal.pause()
        os.close(write)
        return {"child": child, "result": int(os.read(read, 16))}

    def retain_in_child(self) -> dict[str, Any]:
        """Take the device's context in a child, which is ended if it hangs; tell how the child ended."""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(ctypes.c_void_p()), 0)
            os._exit(1 if result != 0 else 0)
        return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}

    def free_in_child(self, pointer: int) -> dict[str, Any]:
        """Free memory in a child; tell how the child ended, and what CUDA said."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, bytes([cuda.cuMemFree_v2(pointer), cuda.cuCtxSynchronize()]))
            os._exit(0)
        os.close(write)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return {"status": status, "results": list(os.read(read, 2))}

    def thread_id(self) -> dict[str, Any]:
        """Return the kernel's number of the thread that this runs on."""
        return {"id": threading.get_native_id()}

    def threads(self) -> dict[str, Any]:
        return {
            "threads": len(os.listdir("/proc/self/task")),
            "sockets": sum(
                os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
                for fd in os.listdir("/proc/self/fd")
                if os.path.islink(f"/proc/self/fd/{fd}")
            ),
        }


def answer(reply: dict[str, Any]) -> None:
    """Write one line; several threads may."""
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def serve(worker: Worker, commands: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Carry out the commands of one thread."""
    cuda.cuCtxSetCurrent(worker.context)
    while True:
        carry_out(worker, commands.get())


def carry_out(worker: Worker, command: dict[str, Any]) -> None:
    serial = command.pop("serial")
    try:
        reply = getattr(worker, command.pop("op"))(**command)
    except KeyboardInterrupt:
        reply = {"interrupted": True}
    answer({"serial": serial, "time": time.monotonic(), **reply})


def main() -> None:
    """Read commands until the end of standard input."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = Worker()
    threads: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
    answer({"ready": os.getpid()})
    while True:
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            continue
        if not line:
            break
        command = json.loads(line)
        name = command.pop("thread", None)
        if name is None:
            carry_out(worker, command)
            continue
        if name not in threads:
            threads[name] = queue.SimpleQueue()
            threading.Thread(target=serve, args=(worker, threads[name]), daemon=True).start()
        threads[name].put(command)


main()
