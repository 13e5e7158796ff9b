# SPDX-License-Identifier: BSD-3-Clause
"""Simulated machines for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.sim.checkpoint_process import Process, Start
from tests.support.sim import Talker, sim_env


@pytest.fixture
def machine() -> Iterator[Callable[..., dict[str, str]]]:
    """Return a function that makes a simulated machine: its parameters in, programs' environment out."""
    with ExitStack() as stack:
        yield lambda **parameters: stack.enter_context(sim_env(**parameters))


@pytest.fixture
def talk() -> Iterator[Callable[[dict[str, str], str], Talker]]:
    """Return a function that starts a talking program, which ends with the test."""
    with ExitStack() as stack:

        def start(environment: dict[str, str], code: str) -> Talker:
            talker = Talker(environment, code)
            stack.callback(talker.close)
            return talker

        yield start


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process, which ends with the test."""
    with ExitStack() as stack:

        def one(environment: dict[str, str], prelude: str = "") -> Process:
            process = Process(environment, prelude)
            stack.callback(process.close)
            return process

        yield one
