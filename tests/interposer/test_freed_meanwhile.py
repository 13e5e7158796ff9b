# SPDX-License-Identifier: BSD-3-Clause
"""A thread frees memory while a call of another thread is waiting inside the interposer to use it.

Programs should not do that, but the driver survives it, and so must the interposer. Each function stops a call at a
known place, frees the memory, and lets the call go on. ``test_sanitizers.py`` runs them again in builds that notice any
use of freed memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.interposer.frees import (
    SIZE,
    SMALL,
    free_while_allocating,
    free_while_pinning,
    release_while_exporting,
)
from tests.support.machine import Machine, Scripted


def test_memory_may_be_freed_while_it_becomes_unevictable(machine: Machine) -> None:
    free_while_pinning(machine, machine.program("a"))


@pytest.mark.parametrize("size", [SIZE, SMALL])
def test_memory_may_be_freed_while_it_is_being_allocated(machine: Machine, size: int) -> None:
    free_while_allocating(machine, machine.program("a", GPUSHARE_SIM_REUSE="1"), size)


def test_a_handle_may_be_freed_while_it_is_being_exported(
    make_script: Callable[..., Scripted],
) -> None:
    script, a, _ = make_script()
    release_while_exporting(script, a)
