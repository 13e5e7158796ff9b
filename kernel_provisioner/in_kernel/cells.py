# SPDX-License-Identifier: BSD-3-Clause
"""When cells begin and end, and what that means for the GPU."""

import functools
import threading
import uuid
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import deferred
from .faults import Failure, guarded, log
from .interposer import Interposer
from .interrupts import Interrupts
from .names import NotebookName


class Cells:
    """Tells the interposer of cells, from when their requests come.

    Cells may nest (``run_cell`` in a cell) and run side by side (subshells, each in its thread): the GPU is given up
    when the last one ends.
    """

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._lock = threading.Lock()
        self._requests = Requests(shell, self.requested, self.request_over)
        #: Requests whose cells have not begun.
        self._awaited: List[str] = []
        self._running: Dict[int, Any] = {}
        #: What the interposer knows the present cell by; empty while there is none.
        self._msg_id = ""
        self._exclusive = False
        self._interrupts = Interrupts(shell, interposer)
        self._name = NotebookName(shell, interposer)

    def install(self) -> None:
        """Listen to the shell from now on."""
        self._interrupts.install()
        self._shell.events.register("pre_run_cell", self._name.follow)
        self._shell.events.register("pre_run_cell", self.pre_run_cell)
        self._shell.events.register("post_run_cell", self.post_run_cell)
        self._requests.install()

    def remove(self) -> None:
        """Listen no more."""
        self._requests.remove()
        self._shell.events.unregister("pre_run_cell", self._name.follow)
        self._shell.events.unregister("pre_run_cell", self.pre_run_cell)
        self._shell.events.unregister("post_run_cell", self.post_run_cell)
        self._interrupts.remove()
        with self._lock:
            self._awaited, self._running = [], {}
            self._end()

    @guarded
    def requested(self, msg_id: str) -> None:
        """A cell will begin within a millisecond; notify the processes that have to make room for it now."""
        with self._lock:
            self._awaited.append(msg_id)
            if not self._msg_id:
                self._begin(msg_id)

    @guarded
    def request_over(self, msg_id: str) -> None:
        """No cell will begin for the request, if none has."""
        with self._lock:
            if msg_id in self._awaited:
                self._awaited.remove(msg_id)
                self._end()

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """A cell begins; `info` is the same object as its result's."""
        msg_id = _parent_id(self._shell)
        with self._lock:
            if msg_id in self._awaited:
                self._awaited.remove(msg_id)
            # Kept until its end, so that its id is not another's meanwhile.
            self._running[id(info)] = info
            if len(self._running) > 1:
                return
            # Left over from a wait of a background thread.
            self._interposer.take_interrupt()
            # An interrupt may have come between the last cell's end and its being heard.
            self._share_again()
            # Said again if its request was: ipykernel may have changed the handler of interrupts since.
            self._begin(msg_id or str(uuid.uuid4()))

    @guarded
    def post_run_cell(self, result: Any) -> None:
        """A cell ended, in whatever way."""
        self._interrupts.correct(result)
        with self._lock:
            # The cell that loads this file ends without having begun.
            if self._running.pop(id(getattr(result, "info", None)), None) is not None:
                self._end()

    def _begin(self, msg_id: str) -> None:
        self._msg_id = self._msg_id or msg_id
        self._interposer.cell_begin(self._msg_id)

    def _end(self) -> None:
        if self._running or self._awaited or not self._msg_id:
            return
        msg_id, self._msg_id = self._msg_id, ""
        self._share_again()
        if self._interposer.contended() > 0:
            self._empty_caches()
        self._interposer.cell_end(msg_id)

    @guarded
    def _empty_caches(self) -> None:
        deferred.module("caches").empty_caches()

    def keep_others_out(self) -> Dict[str, Any]:
        """Keep the lease until the cell ends, once there is one."""
        with self._lock:
            if not self._running:
                raise Failure(
                    "%gpushare exclusive lasts until the end of a cell, and no cell is running"
                )
            if not self._interposer.attached():
                # Only a client of the scheduler can have a cell for itself.
                self._interposer.attach()
            self._exclusive = True
            return self._interposer.adjust(exclusive=True)

    def _share_again(self) -> None:
        if self._exclusive:
            self._exclusive = False
            try:
                self._interposer.adjust(exclusive=False)
            except Failure:
                # The scheduler ends it too, with the cell.
                log.debug("exclusive", exc_info=True)


def _parent_id(shell: Any) -> str:
    """The msg_id of the execute_request that runs; empty outside of a kernel."""
    parent = (
        shell.get_parent()
        if hasattr(shell, "get_parent")
        else getattr(shell, "parent_header", None)
    )
    return str(((parent or {}).get("header") or {}).get("msg_id", ""))


class Requests:
    """Hears of a kernel's requests to execute before the kernel parses, publishes and runs them.

    Parameters
    ----------
    shell
        The shell; without a kernel around it, nothing is heard.
    come, over
        What to call, with the msg_id, before a request is handled and after.
    """

    def __init__(
        self, shell: Any, come: Callable[[str], None], over: Callable[[str], None]
    ) -> None:
        self._handlers: Any = getattr(getattr(shell, "kernel", None), "shell_handlers", None)
        self._come = come
        self._over = over
        self._original: Optional[Callable[..., Any]] = None
        self._wrapper: Optional[Callable[..., Any]] = None

    @guarded
    def install(self) -> None:
        """Stand before the kernel's handler."""
        if self._wrapper is not None or not isinstance(self._handlers, dict):
            return
        original = self._handlers.get("execute_request")
        if callable(original):
            self._original, self._wrapper = original, self._wrap(original)
            self._handlers["execute_request"] = self._wrapper

    @guarded
    def remove(self) -> None:
        """Step aside."""
        wrapper, self._wrapper = self._wrapper, None
        # Another may have wrapped it since: then it stays, and says nothing.
        if wrapper is not None and self._handlers.get("execute_request") is wrapper:
            self._handlers["execute_request"] = self._original

    def _wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(handler)
        def execute_request(*args: Any, **kwargs: Any) -> Any:
            if self._wrapper is not execute_request:
                return handler(*args, **kwargs)
            msg_id = _requested_id(args + tuple(kwargs.values()))
            if not msg_id:
                return handler(*args, **kwargs)
            try:
                self._come(msg_id)
                return self._until_done(handler(*args, **kwargs), msg_id)
            except BaseException:
                self._over(msg_id)
                raise

        return execute_request

    def _until_done(self, result: Any, msg_id: str) -> Any:
        if hasattr(result, "add_done_callback"):
            # Old versions of ipykernel wait for futures and for nothing else.
            result.add_done_callback(lambda _: self._over(msg_id))
        elif hasattr(result, "__await__"):
            return self._follow(result, msg_id)
        else:
            self._over(msg_id)
        return result

    async def _follow(self, handling: Any, msg_id: str) -> Any:
        try:
            return await handling
        finally:
            self._over(msg_id)


def _requested_id(arguments: Tuple[Any, ...]) -> str:
    """The msg_id of the request among a handler's arguments; empty if there is none, or none that is a cell."""
    try:
        for message in arguments:
            if isinstance(message, dict) and "header" in message:
                silent = message["content"].get("silent", False)
                return "" if silent else str(message["header"]["msg_id"])
    except Exception:
        log.debug("execute_request", exc_info=True)
    return ""
