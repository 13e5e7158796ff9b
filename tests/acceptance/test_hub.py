# SPDX-License-Identifier: BSD-3-Clause
"""A real JupyterHub: two users share the GPU correctly while a third, hostile one attacks the scheduler."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.acceptance.attack import Attack, attacking
from tests.support.hub.container import begin
from tests.support.hub.hub import Seat, until
from tests.support.hub.kernel import Kernel
from tests.support.hub.node import Node
from tests.support.hub.programs import ALLOCATE, CHECK, PLOT
from tests.support.hub.recipe import containers, seats

__all__ = ["containers", "seats"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give processes other uids"),
]

NOTEBOOKS = {"ada": "analytical-engine.ipynb", "grace": "compiler.ipynb"}
ROUNDS = 5


@pytest.fixture
def kernels(seats: tuple[Node, dict[str, Seat]]) -> Iterator[dict[str, Kernel]]:
    with (
        Kernel(seats[1]["ada"], NOTEBOOKS["ada"]) as ada,
        Kernel(seats[1]["grace"], NOTEBOOKS["grace"]) as grace,
    ):
        yield {"ada": ada, "grace": grace}


def attack(seat: Seat, root: Path, kernels: dict[str, Kernel]) -> AbstractContextManager[Attack]:
    """Attack from the third user's container."""
    return attacking(
        [*begin(seat.hub.folder / "hedy.json"), sys.executable],
        "/run/gpushare/scheduler.sock",
        kernels,
        [*NOTEBOOKS.values()],
        {**os.environ, "HOME": str(seat.notebooks), "PYTHONPATH": str(root)},
    )


def test_a_hostile_user_harms_no_other(
    seats: tuple[Node, dict[str, Seat]], kernels: dict[str, Kernel], root: Path
) -> None:
    node, users = seats
    for kernel in kernels.values():
        kernel.run(ALLOCATE)
    with attack(users["hedy"], root, kernels) as hostile:
        # Both hold three quarters of the GPU, so each round moves their data.
        for _ in range(ROUNDS):
            plotting = {user: kernel.begin(PLOT + CHECK) for user, kernel in kernels.items()}
            for user, kernel in kernels.items():
                assert kernel.end(plotting[user]) == "as if alone\n"
        shown = node.command("status")
        hostile.end()
    # The name is shown, and cannot change the administrator's terminal.
    assert "owned" in shown
    assert not any(one in shown for one in ("\x1b]", "\x07", "\u202e"))
    groups = {group["id"]: group for group in node.status()["groups"]}
    for user, kernel in kernels.items():
        assert groups[kernel.id]["user"] == user
        assert not groups[kernel.id]["preferences"]["frozen"]
        assert not groups[kernel.id]["preferences"]["on_hold"]


def test_a_hostile_users_connections_end_with_its_processes(
    seats: tuple[Node, dict[str, Seat]], kernels: dict[str, Kernel], root: Path
) -> None:
    node, users = seats
    with attack(users["hedy"], root, kernels) as hostile:
        hostile.end()
    until(lambda: all(group["id"] != "hostile" for group in node.status()["groups"]))
    kernels["ada"].run(ALLOCATE)
    assert kernels["ada"].run(PLOT + CHECK) == "as if alone\n"
