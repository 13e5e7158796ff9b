# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of a `Lab`, as a page uses them: the server starts, interrupts and ends them, cells run in them."""

from __future__ import annotations

import ast
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from tests.support.lab import PATIENCE, Lab

#: Uses the GPU without any library. ``data`` is an array there, ``known`` what it must hold. ``fail(rules)`` lets the
#: simulated driver fail (simulated-driver.md); ``hang(step, reached, over)`` lets a step of a checkpoint last
#: until the file ``over`` is there, and makes the file ``reached`` when it has begun.
SETUP = """
import atexit, ctypes, gc, os, signal, threading, time, weakref
cuda = ctypes.CDLL("libcuda.so.1")

class CudaError(RuntimeError):
    pass

def check(status):
    if status:
        raise CudaError(f"CUDA error {status}")

check(cuda.cuInit(0))
context = ctypes.c_void_p()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))

class Array:
    def __init__(self, content):
        self.size, self.pointer = len(content), ctypes.c_uint64()
        check(cuda.cuMemAlloc_v2(ctypes.byref(self.pointer), ctypes.c_size_t(self.size)))
        check(cuda.cuMemcpyHtoD_v2(self.pointer, content, ctypes.c_size_t(self.size)))

    def read(self):
        check(cuda.cuCtxSetCurrent(context))
        content = ctypes.create_string_buffer(self.size)
        check(cuda.cuMemcpyDtoH_v2(content, self.pointer, ctypes.c_size_t(self.size)))
        return content.raw

    def free(self):
        check(cuda.cuCtxSetCurrent(context))
        check(cuda.cuMemFree_v2(self.pointer))

known = os.urandom(4 << 20)
data = Array(known)

simulated = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])

def fail(rules=""):
    assert simulated.gpushare_sim_fail(rules.encode()) == 0

def injected():
    counters = (ctypes.c_uint64 * 15)()
    simulated.gpushare_sim_counters(counters, ctypes.c_size_t(ctypes.sizeof(counters)))
    return counters[6]

def hang(step, reached, over):
    def wait():
        while injected() == before:
            time.sleep(0.005)
        open(reached, "w").close()
        while not os.path.exists(over):
            time.sleep(0.005)
        fail()
    before = injected()
    fail(f"cuCheckpointProcess{step}:1/hang")
    threading.Thread(target=wait, daemon=True).start()

def whenever(path, work):
    # Once the file is there, does the work on a thread of its own, and writes what came of it beside the file.
    def wait():
        while not os.path.exists(path):
            time.sleep(0.02)
        try:
            text = str(work())
        except Exception as error:
            text = repr(error)
        with open(path + ".part", "w") as file:
            file.write(text)
        os.rename(path + ".part", path + ".done")
    threading.Thread(target=wait, daemon=True).start()
"""


def until(probe: Callable[[], Any], what: str) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
    return found


def has_ended(pid: int) -> bool:
    """Whether there is no process of this number, not even one that its parent has not waited for."""
    return not Path(f"/proc/{pid}").exists()


class Notebook:
    """A kernel, and a client that runs cells in it; it ends with the ``with`` block."""

    def __init__(self, lab: Lab, name: str = "python3") -> None:
        self._lab = lab
        self.id: str = lab.post("api/kernels", {"name": name})["id"]
        self.client = BlockingKernelClient()
        self.connect()
        assert self.run(SETUP)["status"] == "ok"

    def __enter__(self) -> Notebook:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.stop_channels()
        if any(kernel["id"] == self.id for kernel in self._lab.get("api/kernels")):
            self.shut_down()

    def connect(self) -> None:
        """Connect to its process, as soon as that answers."""
        file = self._lab.folder / "runtime" / f"kernel-{self.id}.json"
        deadline = time.monotonic() + PATIENCE
        while True:
            self.client.stop_channels()
            self.client = BlockingKernelClient()
            self.client.load_connection_file(str(file))
            self.client.start_channels()
            try:
                self.client.wait_for_ready(timeout=PATIENCE)
                return
            except RuntimeError:
                # It was not there yet.
                assert time.monotonic() < deadline, "the kernel does not answer"

    # --- Cells --------------------------------------------------------------------------------------------------

    def begin(self, code: str, value: str = "None") -> str:
        """Begin a cell, and return its message's id."""
        expressions = {"value": value}
        # After one that fails, ipykernel would abort what it is sent at once.
        options = {"user_expressions": expressions, "allow_stdin": True, "stop_on_error": False}
        return self.client.execute(code, **options)  # type: ignore[no-any-return]

    def begin_now(self, code: str, folder: Path) -> str:
        """Begin a cell, and return its message's id once it runs: an interrupt before is lost in ipykernel."""
        runs = folder / f"runs-{uuid.uuid4()}"
        message = self.begin(f"open({str(runs)!r}, 'w').close()\n{code}")
        until(runs.exists, "the cell runs")
        return message

    def end(self, message: str) -> dict[str, Any]:
        """Wait until a cell has ended, and return the reply's content."""
        deadline = time.monotonic() + PATIENCE
        while True:
            left = max(0.01, deadline - time.monotonic())
            reply = self.client.get_shell_msg(timeout=left)
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]  # type: ignore[no-any-return]

    def run(self, code: str, value: str = "None") -> dict[str, Any]:
        """Run a cell, and return the reply's content."""
        return self.end(self.begin(code, value))

    def value(self, expression: str) -> Any:
        """Return what an expression is in the kernel."""
        reply = self.run(f"found = {expression}", "found")
        assert reply["status"] == "ok", reply
        found = reply["user_expressions"]["value"]
        assert found["status"] == "ok", found
        return ast.literal_eval(found["data"]["text/plain"])

    def has_its_data(self) -> bool:
        """Whether a cell finds every byte on the GPU as it was."""
        return bool(self.value("data.read() == known"))

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self.value("os.getpid()"))

    # --- The server ---------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt it as the stop button does."""
        self._lab.post(f"api/kernels/{self.id}/interrupt", {})

    def restart(self) -> None:
        """Restart it, and wait until it answers."""
        self._lab.post(f"api/kernels/{self.id}/restart", {})
        self.connect()

    def shut_down(self) -> None:
        """Shut it down."""
        self._lab.delete(f"api/kernels/{self.id}")

    def do(self, op: str, **preferences: Any) -> Any:
        """Ask something for it as the panel does."""
        return self._lab.post(f"gpushare/api/{op}", {"group": self.id, **preferences})

    @property
    def group(self) -> dict[str, Any] | None:
        """Its group as the panel sees it; None where it has none."""
        groups = self._lab.status()["groups"]
        return next((group for group in groups if group["id"] == self.id), None)

    @property
    def state(self) -> str:
        """Its group's state; empty where it has none."""
        group = self.group
        return group["state"] if group else ""

    @property
    def hibernation(self) -> dict[str, Any]:
        """What the panel says of its hibernation; empty where there is none."""
        return (self.group or {}).get("hibernation") or {}

    def hibernate(self) -> None:
        """Have it hibernated, and wait until it is."""
        self.do("hibernate")
        until(lambda: self.state == "hibernated", f"it is hibernated: {self.group}")
