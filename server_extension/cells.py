# SPDX-License-Identifier: BSD-3-Clause
"""Sees from outside of the kernels when their cells begin and end.

The kernel's own ``execution_state`` lies when it has subshells: it says idle as soon as any of them is. So each
kernel's iopub channel is read here, and requests are counted by the message that they answer. This works for every
language, and for cells that no browser asked for. Reading does not count as activity of the kernel.

Callbacks of widgets, and what a completion evaluates, are people's code too. They count as cells if they last: then the
kernel works, and is not hibernated. Most last for a moment and use no GPU: a page that is loaded again asks every
kernel for the state of its widgets, and that is no reason to wake hibernated kernels. If a callback calls CUDA, the
call itself wakes the kernel.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from logging import Logger
from typing import Any, Literal
from weakref import WeakValueDictionary

import zmq
from jupyter_client.session import Session
from jupyter_events import EventLogger
from jupyter_server.services.kernels.kernelmanager import MappingKernelManager, ServerKernelManager

from ..kernel_provisioner import GpuShareProvisioner
from .origins import Origins
from .queued import EXECUTE, QueuedCells, ShellTap, Source

KERNEL_ACTIONS = "https://events.jupyter.org/jupyter_server/kernel_actions/v1"

#: Rounds of 20 ms in which a kernel that was started must appear in the kernel manager.
APPEARANCE = 100

#: Requests other than cells that run users' code.
CALLBACKS = frozenset(
    {"comm_open", "comm_msg", "comm_close", "complete_request", "inspect_request"}
)
#: One of those requests' types, or a cell's, in a header as it is sent.
WORK = re.compile(f'"(?:{"|".join(sorted({EXECUTE, *CALLBACKS}))})"'.encode())
#: Seconds for which such a request must last to count as a cell.
LASTING = 0.5
#: Milliseconds between two attempts to connect to a kernel that is starting.
RECONNECT = 5
#: Seconds between two looks at the numbers of queued cells, while there are any.
LOOK = 1.0
#: The states of a kernel that does not take requests yet.
NOT_READY = frozenset({"starting", "restarting"})
#: Requests that are remembered as ended although the kernel did not report it.
PRESUMED = 32

Phase = Literal["begin", "end"]
#: Tells the scheduler: operation and parameters.
Send = Callable[[str, dict[str, Any]], None]


@dataclass
class Work:
    """What a shell works on: the request's message id, since when, and whether it counts as a cell."""

    message: str
    shell: str
    #: Whether it is a cell, rather than a callback.
    cell: bool
    at: float
    #: Whether an agent began it.
    agent: bool = False
    counts: bool = False


class Cells:
    """The requests with people's code that one kernel is working on.

    Most kernels run one cell at a time in each shell, and may run callbacks meanwhile. In some, cells overlap.

    Parameters
    ----------
    tell
        Called with the phase, the request's message id, the time on CLOCK_MONOTONIC, and whether an agent began it.
    is_agent
        Returns whether an agent began a cell, from the header of its request.
    """

    def __init__(
        self,
        tell: Callable[[Phase, str, float, bool], None],
        is_agent: Callable[[dict[str, Any]], bool] = lambda header: False,
    ) -> None:
        self._tell = tell
        self._is_agent = is_agent
        #: By message id, in the order in which they began.
        self._open: dict[str, Work] = {}
        #: Requests whose end seemed lost; and whether such an end arrived after all, because cells overlap.
        self._presumed: deque[str] = deque(maxlen=PRESUMED)
        self._overlaps = False

    def status(self, state: str, parent: dict[str, Any], at: float) -> None:
        """Take in a status message of the kernel."""
        kind = parent.get("msg_type")
        cell = kind == EXECUTE
        if not cell and kind not in CALLBACKS:
            return
        message, shell = str(parent.get("msg_id")), str(parent.get("subshell_id") or "")
        if state == "busy":
            agent = cell and self._is_agent(parent)
            work = self._open[message] = Work(message, shell, cell, at, agent)
            if cell:
                self._count(work)
        elif state == "idle":
            self._overlaps = self._overlaps or message in self._presumed
            if message in self._open:
                self._idle(self._open[message], at)

    def _idle(self, work: Work, at: float) -> None:
        """End a request, and those before it in the same shell: the channel drops messages when it is flooded."""
        for earlier in list(self._open.values()):
            if earlier is work:
                break
            if (
                earlier.shell == work.shell
                and (work.cell or not earlier.cell)
                and not self._overlaps
            ):
                self._presumed.append(earlier.message)
                self._end(earlier.message, at)
        self._end(work.message, at)

    def lasting(self, message: str) -> None:
        """Count a request as a cell if it has not ended yet."""
        work = self._open.get(message)
        if work is not None and not work.counts:
            self._count(work)

    def announce(self) -> None:
        """Tell about the open requests again."""
        for work in self._open.values():
            if work.counts:
                self._count(work)

    @property
    def running(self) -> bool:
        """Whether the kernel is working on a request that counts as a cell."""
        return any(work.counts for work in self._open.values())

    def works_in(self, shell: str) -> bool:
        """Whether the kernel is working on a request in one of its shells."""
        return any(work.shell == shell for work in self._open.values())

    def reset(self, at: float) -> None:
        """Note that the kernel works on nothing any more."""
        for message in list(self._open):
            self._end(message, at)

    def _count(self, work: Work) -> None:
        work.counts = True
        self._tell("begin", work.message, work.at, work.agent)

    def _end(self, message: str, at: float) -> None:
        work = self._open.pop(message, None)
        if work is not None and work.counts:
            self._tell("end", message, at, work.agent)


class KernelTap:
    """A private connection to one kernel's iopub channel.

    Parameters
    ----------
    kernel
        The kernel's manager.
    queued
        The cells that it has not begun.
    tell, is_agent
        As of `Cells`.
    died
        Called when the kernel has died and is not started again.
    log
        For invalid messages.
    """

    def __init__(
        self,
        kernel: ServerKernelManager,
        queued: QueuedCells,
        tell: Callable[[Phase, str, float, bool], None],
        is_agent: Callable[[dict[str, Any]], bool],
        died: Callable[[], None],
        log: Logger,
    ) -> None:
        self.cells = Cells(tell, is_agent)
        self.queued = queued
        self._kernel = kernel
        self._died = died
        self._log = log
        # One of its own: a session takes a message that it has seen before for a replay.
        self._session = Session(config=kernel.session.config, key=kernel.session.key)
        self._stream: Any = kernel.connect_iopub()
        _reconnect_often(self._stream.socket)
        self._stream.on_recv(self._receive)
        kernel.add_restart_callback(died, "dead")

    def close(self) -> None:
        """Disconnect; a cell that has not ended has now."""
        self._kernel.remove_restart_callback(self._died, "dead")
        if not self._stream.closed():
            self._stream.close()
        self.cells.reset(time.monotonic())
        self.queued.clear()

    def drop_stale(self) -> None:
        """Drop queued cells that the kernel should have begun. One that is starting begins none."""
        if self._kernel.execution_state not in NOT_READY:
            self.queued.drop_stale(time.monotonic(), self.cells.works_in)

    def _receive(self, parts: list[bytes]) -> None:
        try:
            _, frames = self._session.feed_identities(parts)
            header, parent = (f if isinstance(f, bytes) else f.bytes for f in frames[1:3])
            # Frames: signature, header, parent's header, metadata, content. Output passes unread.
            if b'"status"' not in header or not WORK.search(parent):
                return
            message = self._session.deserialize(frames)
            if message["msg_type"] == "status":
                state, request = message["content"]["execution_state"], message["parent_header"]
                self.cells.status(state, request, _monotonic(message["header"].get("date")))
                if request["msg_type"] == EXECUTE:
                    self.queued.status(state, str(request["msg_id"]))
                if state == "busy" and request["msg_type"] in CALLBACKS:
                    loop = asyncio.get_running_loop()
                    loop.call_later(LASTING, self.cells.lasting, str(request["msg_id"]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            self._log.debug("gpushare: received a message that is not a Jupyter message: %s", error)


def _reconnect_often(socket: Any) -> None:
    """Have a socket connected as soon as a kernel that is starting listens.

    By default, ZeroMQ tries again after 100 ms. A client may have connected before, and the reports of its first cell
    would be lost.
    """
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0")
    if endpoint:
        socket.disconnect(endpoint)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT)
        socket.connect(endpoint)


def _monotonic(date: Any) -> float:
    """When the kernel sent a message, on CLOCK_MONOTONIC: a busy server receives it late."""
    now = time.monotonic()
    if not isinstance(date, datetime):
        return now
    age = (datetime.now(timezone.utc) - date).total_seconds()
    # The wall clock may have been set meanwhile.
    return now - age if 0 < age < 10 else now


class CellWatcher:
    """Watches the kernels of a server and tells the scheduler about their cells.

    Parameters
    ----------
    kernels
        The server's kernel manager.
    events
        The server's event bus, which says when kernels start and end.
    send
        Sends a control request, if there is a scheduler to send it to.
    sources
        Packages that queue cells themselves.
    origins
        Knows which cells an agent began.
    log
        For what goes wrong.
    """

    def __init__(
        self,
        kernels: MappingKernelManager,
        events: EventLogger,
        send: Send,
        sources: Iterable[Source],
        origins: Origins,
        log: Logger,
    ) -> None:
        self._kernels: Any = kernels
        self._events = events
        self._send = send
        self._sources = sources
        self._origins = origins
        self._log = log
        self._taps: dict[str, KernelTap] = {}
        #: By the id of the kernel's manager, which keeps it.
        self._shells: WeakValueDictionary[int, ShellTap] = WeakValueDictionary()
        self._make_kernel: Callable[..., Any] | None = None
        self._loop: asyncio.AbstractEventLoop
        #: Kernels whose number of queued cells may have changed; and the numbers as last sent.
        self._recount: set[str] = set()
        self._told: dict[str, int] = {}
        self._looks: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, with the kernels that there are."""
        self._loop = asyncio.get_running_loop()
        # A client may connect to a kernel as soon as it is started.
        self._make_kernel = self._kernels.kernel_manager_factory
        self._kernels.kernel_manager_factory = self._create_kernel
        self._events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._on_action)
        for kernel_id in self._kernels.list_kernel_ids():
            self._attach(kernel_id)

    def stop(self) -> None:
        """Watch no more."""
        if self._kernels.kernel_manager_factory == self._create_kernel:
            self._kernels.kernel_manager_factory = self._make_kernel
        self._events.remove_listener(schema_id=KERNEL_ACTIONS, listener=self._on_action)
        for kernel_id in list(self._taps):
            self._detach(kernel_id)
        for shell in list(self._shells.values()):
            shell.remove()
        if self._looks is not None:
            self._looks.cancel()

    def announce(self, kernel_id: str | None = None) -> None:
        """Tell about the cells that are running, of all kernels or of one: the scheduler may not have known it yet."""
        for watched, tap in self._taps.items():
            if kernel_id in (None, watched):
                tap.cells.announce()
                if self._told.get(watched):
                    self._tell_queued(watched, self._told[watched])

    def note_cell(self, kernel_id: str, phase: Phase, message: str) -> None:
        """Note that a cell began or ended, as the scheduler knows: the kernel's report to the server may be lost."""
        if tap := self._taps.get(kernel_id):
            tap.queued.status("busy" if phase == "begin" else "idle", message)

    def running(self) -> set[str]:
        """Return the ids of the kernels that are working on a cell."""
        return {kernel_id for kernel_id, tap in self._taps.items() if tap.cells.running}

    async def _on_action(self, logger: EventLogger, schema_id: str, data: dict[str, Any]) -> None:
        # Any user with permission to post events can send these: they only make us look at the kernels. An interrupt is
        # not visible otherwise; a forged one ends a wait, which its sender could also do with a real one.
        action, kernel_id = data.get("action"), data.get("kernel_id")
        if data.get("status") != "success" or not isinstance(kernel_id, str):
            return
        if action in ("start", "restart"):
            await self._appearance(kernel_id)
            self._attach(kernel_id)
        elif action == "shutdown" and kernel_id not in self._kernels:
            self._detach(kernel_id)
        elif action == "interrupt":
            # jupyter-server-nbmodel drops the cells in its queue.
            self._origins.forget(kernel_id)
            if not self._cancels_itself(kernel_id):
                self._send("cancel", {"group": kernel_id})

    async def _appearance(self, kernel_id: str) -> None:
        """Wait until a kernel that was started is in the kernel manager: it says so a little earlier."""
        for _ in range(APPEARANCE):
            if kernel_id in self._kernels:
                return
            await asyncio.sleep(0.02)

    def _cancels_itself(self, kernel_id: str) -> bool:
        """Whether the provisioner has seen an interrupt: it sees only interrupts by signal, not by message."""
        if kernel_id not in self._kernels:
            return True
        kernel = self._kernels.get_kernel(kernel_id)
        ours = isinstance(kernel.provisioner, GpuShareProvisioner)
        return ours and getattr(kernel.kernel_spec, "interrupt_mode", "signal") == "signal"

    def _attach(self, kernel_id: str) -> None:
        self._detach(kernel_id)
        if kernel_id not in self._kernels:
            return
        kernel = self._kernels.get_kernel(kernel_id)
        if not isinstance(kernel, ServerKernelManager) or not kernel.has_kernel:
            return

        def tell(phase: Phase, message: str, at: float, agent: bool) -> None:
            self._tell(kernel_id, phase, message, at, agent)

        def is_agent(header: dict[str, Any]) -> bool:
            return self._origins.is_agent(kernel_id, header)

        def died() -> None:
            self._detach(kernel_id)

        queued = self._watch_shell(kernel).queued
        self._taps[kernel_id] = KernelTap(kernel, queued, tell, is_agent, died, self._log)
        self._on_queue_changed(kernel_id)

    def _detach(self, kernel_id: str) -> None:
        self._origins.forget(kernel_id)
        if tap := self._taps.pop(kernel_id, None):
            tap.close()
            if self._told.pop(kernel_id, 0):
                self._tell_queued(kernel_id, 0)

    def _tell(self, kernel_id: str, phase: Phase, message: str, at: float, agent: bool) -> None:
        params = {"group": kernel_id, "phase": phase, "msg_id": message, "at": at}
        if phase == "begin":
            params["agent"] = agent
        self._send("cell", params)

    # --- Cells in the queue -----------------------------------------------------------------------

    def _create_kernel(self, *args: Any, **kwargs: Any) -> Any:
        """Make the manager of a new kernel."""
        assert self._make_kernel is not None
        kernel = self._make_kernel(*args, **kwargs)
        if isinstance(kernel, ServerKernelManager):
            self._watch_shell(kernel)
        return kernel

    def _watch_shell(self, kernel: ServerKernelManager) -> ShellTap:
        """Note what is sent to a kernel from now on."""
        shell = self._shells.get(id(kernel))
        if shell is None:
            queued = QueuedCells(lambda: self._on_queue_changed(str(kernel.kernel_id)))
            shell = self._shells[id(kernel)] = ShellTap(kernel, queued, self._loop, self._log)
        return shell

    def _on_queue_changed(self, kernel_id: str) -> None:
        """Count a kernel's queued cells, once for all changes in this turn of the loop."""
        if not self._recount:
            self._loop.call_soon(self._count_queued)
        self._recount.add(kernel_id)

    def _count_queued(self) -> None:
        recount, self._recount = self._recount, set()
        for kernel_id in sorted(recount & self._taps.keys()):
            count = self._taps[kernel_id].queued.count
            count += sum(self._ask(source, kernel_id) for source in self._sources)
            if count != self._told.get(kernel_id, 0):
                self._told[kernel_id] = count
                self._tell_queued(kernel_id, count)
        if self._looks is None and any(self._told.values()):
            self._looks = self._loop.call_later(LOOK, self._look)

    def _ask(self, source: Source, kernel_id: str) -> int:
        try:
            return max(0, int(source(kernel_id)))
        except Exception as error:
            # The package may have changed.
            self._log.debug("gpushare: cannot count the queued cells of %s: %r", source, error)
            return 0

    def _look(self) -> None:
        """Count again, so that no number stays too high forever."""
        self._looks = None
        for kernel_id, tap in self._taps.items():
            tap.drop_stale()
            self._on_queue_changed(kernel_id)

    def _tell_queued(self, kernel_id: str, count: int) -> None:
        self._send("queued", {"group": kernel_id, "count": count})
