# SPDX-License-Identifier: BSD-3-Clause
"""What runs marimo's cells, without marimo (with it: tests/acceptance/test_front_ends.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jupyter_gpushare.kernel_provisioner import marimo_cells
from jupyter_gpushare.kernel_provisioner.in_kernel.interposer import Interposer
from jupyter_gpushare.kernel_provisioner.marimo_cells import Cells, SharingExecutor


class Told(Interposer):
    """An interposer that notes what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.interrupted = False
        self.faulty = False

    def _tell(self, phase: str) -> None:
        self.phases.append(phase)
        if self.faulty:
            raise OSError

    def cell_begin(self, msg_id: str) -> None:
        self._tell("begin")

    def cell_end(self, msg_id: str) -> None:
        self._tell("end")

    def contended(self) -> int:
        return 0

    def take_interrupt(self) -> bool:
        taken, self.interrupted = self.interrupted, False
        return taken


class Wrapped(BaseException):
    """As marimo wraps what a cell raises."""


class Base:
    """Runs a cell that is a function, as marimo's own executor would."""

    def execute_cell(self, cell: Any, glbls: Any, *more: Any) -> Any:
        try:
            return (cell(), *more)
        except Exception as error:
            raise Wrapped from error

    async def execute_cell_async(self, cell: Any, glbls: Any, *more: Any) -> Any:
        await asyncio.sleep(0)
        return self.execute_cell(cell, glbls, *more)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def executor(told: Told) -> SharingExecutor:
    return SharingExecutor(Base(), Cells(told))


async def test_cells_begin_and_end(told: Told, executor: SharingExecutor) -> None:
    assert executor.execute_cell(lambda: 1, {}) == (1,)
    # Versions of marimo up to 0.23 give the graph, too.
    assert await executor.execute_cell_async(lambda: 2, {}, "graph") == (2, "graph")
    assert told.phases == ["begin", "end"] * 2


def test_a_cell_of_an_embedded_app_is_part_of_its_cell(
    told: Told, executor: SharingExecutor
) -> None:
    def cell() -> Any:
        return executor.execute_cell(lambda: 1, {})

    assert executor.execute_cell(cell, {}) == ((1,),)
    assert told.phases == ["begin", "end"]


def test_a_cell_that_fails_ends(told: Told, executor: SharingExecutor) -> None:
    with pytest.raises(Wrapped) as raised:
        executor.execute_cell(lambda: 1 / 0, {})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert told.phases == ["begin", "end"]


def test_a_cancelled_wait_is_an_interrupt(told: Told, executor: SharingExecutor) -> None:
    def cell() -> None:
        told.interrupted = True
        raise RuntimeError("CUDA error 304")

    with pytest.raises(Wrapped) as raised:
        executor.execute_cell(cell, {})
    assert isinstance(raised.value.__cause__, KeyboardInterrupt)
    # One from before a cell is not the cell's.
    told.interrupted = True
    with pytest.raises(Wrapped) as raised:
        executor.execute_cell(lambda: 1 / 0, {})
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_fault_of_ours_does_not_break_a_cell(told: Told, executor: SharingExecutor) -> None:
    told.faulty = True
    assert executor.execute_cell(lambda: 1, {}) == (1,)
    told.faulty = False
    assert executor.execute_cell(lambda: 2, {}) == (2,)
    assert told.phases == ["begin", "end"] * 2


def test_without_the_interposer_marimo_runs_its_cells_itself() -> None:
    base = Base()
    assert marimo_cells.executor(base) is base
