# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpushare.kernel_provisioner.in_kernel.cells import Cells
from jupyter_gpushare.kernel_provisioner.in_kernel.interposer import Interposer

from .cell_steps import HOLD, SETUP, WAIT, Ask, begin, cells, group_of, told
from .conftest import eventually, started


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
        result = await asyncio.wait_for(waiting, 60)
        assert result.reply["status"] == "error"
        assert result.reply["ename"] == "KeyboardInterrupt"
        assert result.errors() == ["KeyboardInterrupt"]
        # The kernel is alive, its own errors are its own, and the holder never noticed.
        assert (await waiter.execute("1 / 0")).reply["ename"] == "ZeroDivisionError"
        assert not holding.done()
        await holder.manager.interrupt_kernel()
        assert (await asyncio.wait_for(holding, 60)).reply["ename"] == "KeyboardInterrupt"
        assert (await asyncio.wait_for(waiter.execute("work()"), 30)).reply["status"] == "ok"


async def test_cells_are_reported_to_the_scheduler(scheduler: Ask) -> None:
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
        # A cell in the subshell that outlasts the main one keeps the GPU.
        before = len(cells(scheduler, kernel))
        main = await begin(
            kernel, "began = threading.Event()\nprint(1, flush=True)\nwork(); began.wait(60)"
        )
        code = "done.clear(); began.set(); done.wait(60); work()"
        message = client.session.msg("execute_request", {"code": code, "silent": False})
        message["header"]["subshell_id"] = subshell
        client.shell_channel.send(message)
        assert (await main).reply["status"] == "ok"
        assert (await kernel.execute("print(2)")).stream("stdout") == "2\n"
        assert cells(scheduler, kernel)[before:] == ["begin"]
        assert group_of(scheduler, kernel)["cell"] is not None
        await kernel.execute("done.set()")
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 2, "the end of all")
        assert cells(scheduler, kernel)[before:] == ["begin", "end"]


#: Waits, before it is this cell's turn to be told of by IPython, until the scheduler knows of it.
KNOWN = """
def known(info):
    msg_id = get_ipython().get_parent()["header"]["msg_id"]
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        events = get_ipython()._gpushare[0].control("history")["events"]
        if any(e["kind"] == "cell" and e["msg_id"] == msg_id for e in events):
            seen.append(msg_id)
            break
        time.sleep(0.01)
seen = []
get_ipython().events.callbacks["pre_run_cell"].insert(0, known)
"""


@pytest.mark.parametrize("code", ["work()", "import asyncio; await asyncio.sleep(0); work()"])
async def test_a_cell_is_reported_before_it_is_parsed(code: str, scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        await kernel.execute(KNOWN)
        result = await kernel.execute(code)
        assert result.reply["status"] == "ok"
        await kernel.execute("get_ipython().events.callbacks['pre_run_cell'].remove(known)")
        seen = (await kernel.execute("print(*seen)")).stream("stdout").split()
        assert seen[0] == result.msg_id
        # Once, by the same name, and over with the cell.
        about = [event for event in told(scheduler, kernel) if event[1] == result.msg_id]
        assert [phase for phase, _ in about] == ["begin", "end"]


async def test_requests_that_run_no_cell_leave_none_open(scheduler: Ask) -> None:
    async with started() as kernel:
        await kernel.execute(SETUP)
        client = kernel.client
        silent = client.execute("work()", silent=True)
        empty = client.execute("")
        faulty = client.session.msg("execute_request", {"silent": False})
        client.shell_channel.send(faulty)
        await kernel.execute(
            "kernel = get_ipython().kernel\ndo_execute = kernel.do_execute\n"
            "def fail(*args, **kwargs): raise ValueError\nkernel.do_execute = fail"
        )
        failing = client.execute("work()")
        await eventually(lambda: ("end", failing) in told(scheduler, kernel), "the failure's end")
        events = told(scheduler, kernel)
        for msg_id in (empty, faulty["header"]["msg_id"], failing):
            assert [phase for phase, of in events if of == msg_id] == ["begin", "end"]
        assert silent not in {msg_id for _, msg_id in events}
        assert group_of(scheduler, kernel)["cell"] is None


async def test_requests_are_handled_once_and_only_while_loaded(scheduler: Ask) -> None:
    handler = "get_ipython().kernel.shell_handlers['execute_request']"
    own = f"print({handler} == get_ipython().kernel.execute_request)"
    wrapped = f"print({handler}.__wrapped__ == get_ipython().kernel.execute_request)"
    extension = "jupyter_gpushare.kernel_provisioner.in_kernel"
    async with started() as kernel:
        await kernel.execute(SETUP)
        # It is there, so that to load it again changes nothing.
        await kernel.execute(f"%load_ext {extension}")
        await kernel.execute("get_ipython()._gpushare[1]._requests.install()")
        assert (await kernel.execute(wrapped)).stream("stdout") == "True\n"
        before = len(cells(scheduler, kernel))
        unloading = await kernel.execute(f"%unload_ext {extension}")
        # The cell that ends it is over with that.
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 2, "the cell's end")
        assert told(scheduler, kernel)[before:] == [
            ("begin", unloading.msg_id),
            ("end", unloading.msg_id),
        ]
        assert (await kernel.execute(own)).stream("stdout") == "True\n"
        assert len(cells(scheduler, kernel)) == before + 2
        await kernel.execute(f"%load_ext {extension}")
        assert (await kernel.execute(wrapped)).stream("stdout") == "True\n"
        await eventually(lambda: len(cells(scheduler, kernel)) >= before + 4, "the cell's end")
        assert cells(scheduler, kernel)[before:] == ["begin", "end"] * 2


class Noting(Interposer):
    """An interposer that notes what it is told, or fails at it."""

    def __init__(self, fails: bool = False) -> None:
        self.told: list[tuple[str, str]] = []
        self._fails = fails

    def _note(self, phase: str, msg_id: str) -> None:
        self.told.append((phase, msg_id))
        if self._fails:
            raise OSError

    def cell_begin(self, msg_id: str) -> None:
        self._note("begin", msg_id)

    def cell_end(self, msg_id: str) -> None:
        self._note("end", msg_id)

    def take_interrupt(self) -> bool:
        return False

    def contended(self) -> int:
        return 0


def request(msg_id: str, **content: Any) -> dict[str, Any]:
    return {"header": {"msg_id": msg_id}, "content": content}


def shell_with(handler: object) -> tuple[Any, dict[str, Any]]:
    """A shell in a kernel whose requests this handles, and the kernel's handlers."""
    shell: Any = InteractiveShell()
    handlers = {"execute_request": handler}
    shell.kernel = SimpleNamespace(shell_handlers=handlers)
    return shell, handlers


def heard(handler: object, fails: bool = False) -> tuple[Callable[..., Any], Noting]:
    """The wrapped handler, and the recipient of its reports."""
    interposer = Noting(fails)
    shell, handlers = shell_with(handler)
    Cells(shell, interposer).install()
    return handlers["execute_request"], interposer


BOTH = [("begin", "m"), ("end", "m")]


@pytest.mark.parametrize("fails", [False, True])
async def test_wrapped_handlers_keep_their_return_values(fails: bool) -> None:
    during: list[list[tuple[str, str]]] = []

    def handle(stream: str, ident: str, parent: dict[str, Any]) -> str:
        during.append(interposer.told[:])
        return stream + ident + parent["header"]["msg_id"]

    async def handle_later(*args: Any, **kwargs: Any) -> str:
        await asyncio.sleep(0)
        return handle(*args, **kwargs)

    # As tornado's coroutines of old versions.
    def handle_by_future(*args: Any) -> asyncio.Future[str]:
        return asyncio.ensure_future(handle_later(*args))

    handler, interposer = heard(handle, fails)
    assert handler("s", "i", request("m")) == "sim"
    assert interposer.told == BOTH
    assert handler("s", "i", parent=request("m", silent=True)) == "sim"
    handler, interposer = heard(handle_later, fails)
    assert await handler("s", ident="i", parent=request("m", silent=False)) == "sim"
    assert interposer.told == BOTH
    handler, interposer = heard(handle_by_future, fails)
    future = handler("s", "i", request("m"))
    assert isinstance(future, asyncio.Future)
    assert await future == "sim"
    await asyncio.sleep(0)
    assert interposer.told == BOTH
    assert during == [[("begin", "m")], BOTH, [("begin", "m")], [("begin", "m")]]


@pytest.mark.parametrize(
    "message", [None, {}, {"header": None, "content": {}}, {"header": {"msg_id": "m"}}]
)
def test_other_messages_are_passed_on(message: object) -> None:
    handler, interposer = heard(lambda *args: args)
    assert handler("s", message) == ("s", message)
    assert interposer.told == []


async def test_a_handler_that_raises_leaves_no_cell_open() -> None:
    def handle(parent: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    async def handle_later(parent: dict[str, Any]) -> None:
        raise KeyError(parent["header"]["msg_id"])

    handler, interposer = heard(handle)
    with pytest.raises(KeyboardInterrupt):
        handler(request("m"))
    assert interposer.told == BOTH
    handler, interposer = heard(handle_later)
    with pytest.raises(KeyError):
        await handler(request("m"))
    assert interposer.told == BOTH


def test_a_concurrent_request_is_not_another_cell() -> None:
    """As in subshells: the first cell gives the name, and the end of the last releases the GPU."""
    come, go = threading.Event(), threading.Event()

    def handle(parent: dict[str, Any]) -> None:
        if parent["header"]["msg_id"] == "m":
            come.set()
            assert go.wait(60)

    handler, interposer = heard(handle)
    beside = threading.Thread(target=handler, args=(request("m"),))
    beside.start()
    assert come.wait(60)
    handler(request("second"))
    assert interposer.told == [("begin", "m")]
    go.set()
    beside.join()
    assert interposer.told == BOTH


def test_kernels_of_other_kinds_are_left_alone() -> None:
    handlers: Any
    for handlers in (None, {}, {"execute_request": None}):
        shell: Any = InteractiveShell()
        shell.kernel = SimpleNamespace(shell_handlers=handlers)
        listener = Cells(shell, Noting())
        listener.install()
        listener.remove()
        assert handlers in (None, {}, {"execute_request": None})


def test_a_wrapper_that_another_package_added_stays() -> None:
    interposer = Noting()
    shell, handlers = shell_with(lambda message: message["header"]["msg_id"])
    listener = Cells(shell, interposer)
    listener.install()
    ours = handlers["execute_request"]

    def theirs(message: dict[str, Any]) -> Any:
        return ours(message)

    handlers["execute_request"] = theirs
    listener.remove()
    assert handlers["execute_request"] is theirs
    assert theirs(request("m")) == "m"
    assert interposer.told == []


async def test_load_ext_reports_what_is_missing(
    add_kernelspec: Callable[..., str], root: Any
) -> None:
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
        assert (await asyncio.wait_for(holding, 60)).reply["status"] == "ok"
        assert (await holder.execute("print(emptied)")).stream("stdout") == "[1]\n"
