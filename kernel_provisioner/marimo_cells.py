# SPDX-License-Identifier: BSD-3-Clause
"""marimo's kernels under ``gpushare run``: each is a lease group of its own, and its cells begin and end bursts.

marimo loads `executor` through the entry point ``marimo.cell.executor``, in every process that runs cells. Without the
interposer, marimo's own executor runs the cells.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, MutableMapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .in_kernel import caches
from .in_kernel.faults import guarded
from .in_kernel.interposer import Interposer, find_interposer
from .launch import NAME_BYTES, new_group

ENTRY_POINT = "marimo.cell.executor"


def executor(base: Any = None) -> Any:
    """Return the executor of marimo's cells.

    Parameters
    ----------
    base
        The executor that marimo would use otherwise, which versions up to 0.23 pass.
    """
    base = _next_executor() if base is None else base
    cells = _cells_of_this_process()
    return base if cells is None else SharingExecutor(base, cells)


class SharingExecutor:
    """Runs cells as another executor does, and reports to the interposer when they begin and end."""

    name = "gpushare"

    def __init__(self, base: Any, cells: Cells) -> None:
        self._base = base
        self._cells = cells

    def execute_cell(self, cell: Any, glbls: MutableMapping[str, Any], *more: Any) -> Any:
        """Run a cell's body; older versions of marimo give the graph, too."""
        with self._cells.running(glbls):
            return self._base.execute_cell(cell, glbls, *more)

    async def execute_cell_async(
        self, cell: Any, glbls: MutableMapping[str, Any], *more: Any
    ) -> Any:
        """Run a cell's body, which may wait for something."""
        with self._cells.running(glbls):
            return await self._base.execute_cell_async(cell, glbls, *more)


class Cells:
    """The cells that this process is running: several where apps embed others, or where threads serve people."""

    def __init__(self, interposer: Interposer) -> None:
        self._interposer = interposer
        self._lock = threading.Lock()
        self._running = 0
        self._message = ""
        #: The notebook by whose name this process's group is known.
        self._notebook: str | None = None

    @contextlib.contextmanager
    def running(self, namespace: MutableMapping[str, Any]) -> Iterator[None]:
        """Run a cell with these globals."""
        self._begin(namespace.get("__file__"))
        try:
            yield
        except BaseException as error:
            if not self._was_cancelled(error):
                raise
            # The CUDA error of the cancelled wait would only distract from the interrupt.
            raise type(error)().with_traceback(error.__traceback__) from KeyboardInterrupt(
                "while waiting for the GPU"
            )
        finally:
            self._end()

    @guarded
    def _begin(self, notebook: Any) -> None:
        with self._lock:
            self._running += 1
            if self._running > 1:
                return
            if is_own_kernel():
                self._identify(str(notebook or "marimo"))
            # Left over from a wait of a background thread.
            self._interposer.take_interrupt()
            self._message = str(uuid.uuid4())
            self._interposer.cell_begin(self._message)

    @guarded
    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running or not self._message:
                return
            message, self._message = self._message, ""
            if self._interposer.contended() > 0:
                caches.empty_caches()
            self._interposer.cell_end(message)

    def _identify(self, notebook: str) -> None:
        """Make this process a group of its own, before it uses CUDA; later, follow the notebook's name."""
        if notebook == self._notebook:
            return
        first, self._notebook = self._notebook is None, notebook
        name = Path(notebook).name.encode()[:NAME_BYTES].decode(errors="ignore")
        # A ticket is valid only for the group of `gpushare run`.
        if first and not self._interposer.attached() and "GPUSHARE_TICKET_FILE" not in os.environ:
            os.environ["GPUSHARE_GROUP"] = new_group()
        os.environ["GPUSHARE_NAME"] = name
        if self._interposer.attached():
            self._interposer.control("name", group=self._interposer.group(), name=name)

    def _was_cancelled(self, error: BaseException) -> bool:
        """Whether a cell failed because its wait for the GPU was cancelled: marimo wraps what a cell raises."""
        return isinstance(error.__cause__, Exception) and self._interposer.take_interrupt()


def is_own_kernel() -> bool:
    """Whether this process is one notebook's kernel, as in ``marimo edit``: those of ``marimo run`` are threads."""
    try:
        from marimo._runtime.context import get_context
        from marimo._runtime.context.kernel_context import KernelRuntimeContext

        # Scripts have another context: they are programs of `gpushare run` themselves.
        kernel = isinstance(get_context(), KernelRuntimeContext)
    except Exception:
        return False
    return kernel and threading.current_thread() is threading.main_thread()


_here: list[Cells | None] = []


def _cells_of_this_process() -> Cells | None:
    """Return the cells of this process; None without the interposer."""
    if not _here:
        interposer = find_interposer()
        _here.append(None if interposer is None else Cells(interposer))
    return _here[0]


def _next_executor() -> Any:
    """Return the executor that marimo would use without this package, because marimo loads only one."""
    others = [found for found in entry_points(group=ENTRY_POINT) if found.value != _ENTRY]
    for found in sorted(others, key=lambda each: each.name):
        return found.load()()
    from marimo._runtime.executor import DefaultExecutor

    return DefaultExecutor()


_ENTRY = f"{__name__}:{executor.__name__}"
