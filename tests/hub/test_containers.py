# SPDX-License-Identifier: BSD-3-Clause
"""Users in containers share the GPU with the mounts of `deploy/docker`: real Hub, real Jupyter kernels, no Docker.

The containers have separate root folders, mounts, processes and users. Only the GPU is shared, as on a real machine.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.protocol.client import user_name
from tests.support.hub.hub import Seat, until
from tests.support.hub.kernel import Kernel
from tests.support.hub.node import Node
from tests.support.hub.programs import ALLOCATE, CHECK, PLOT, TRAIN
from tests.support.hub.recipe import UID, recipe


def test_the_recipe_uses_options_of_dockerspawner() -> None:
    stated = recipe()
    assert {*stated} == {
        *("environment", "extra_host_config", "image", "mem_limit", "read_only_volumes")
    }
    inside = {*stated.read_only_volumes.values()}
    assert str(Path(stated.environment["GPUSHARE_SOCKET"]).parent) in inside
    assert stated.environment["GPUSHARE_LIBRARIES"] in inside


def states(node: Node) -> dict[str, str]:
    return {group["name"]: group["state"] for group in node.status()["groups"]}


def test_users_in_containers_take_turns(seats: tuple[Node, dict[str, Seat]]) -> None:
    node, ada, grace = seats[0], seats[1]["ada"], seats[1]["grace"]
    with Kernel(ada, "engine.ipynb") as first, Kernel(grace, "compiler.ipynb") as second:
        first.run(ALLOCATE)
        training = first.begin(TRAIN)
        until(lambda: states(node).get("engine.ipynb") == "running")
        plotting = second.begin(ALLOCATE + PLOT + CHECK)
        until(lambda: states(node).get("compiler.ipynb") == "waiting")

        # Each user sees that there is another notebook, but not its name.
        for seat, other in ((ada, "compiler"), (grace, "engine")):
            status = seat.status()
            assert len(status["groups"]) == 2
            assert other not in str(status)
        # The scheduler has the processes' pids on the host, and takes none of them for a program outside gpushare.
        (gpu,) = node.status()["gpus"]
        assert gpu["foreign"] == 0
        for group in node.status()["groups"]:
            (client,) = group["clients"]
            assert os.path.exists(f"/proc/{client['pid']}")
            assert "ipykernel" in Path(f"/proc/{client['pid']}/cmdline").read_text()
        # Repeatedly, because the first one gets the GPU back whenever the second one pauses.
        ended = second.end(plotting, lambda: ada.post("gpushare/api/evict", {"group": first.id}))
        assert ended == "as if alone\n"
        (ada.notebooks / "stop").touch()
        first.end(training)
        assert first.run(CHECK) == "as if alone\n"
        # Evicted data is in memory that the scheduler lent, in every kind of container.
        (plotted,) = (g for g in node.status()["groups"] if g["name"] == "compiler.ipynb")
        assert plotted["gpus"][0]["swapped"] > 0
        host = node.status()["host"]
        assert host["pool"]["in_use"] >= host["swapped"]


def test_the_memory_of_a_killed_kernel_is_freed(seats: tuple[Node, dict[str, Seat]]) -> None:
    node, ada = seats[0], seats[1]["ada"]
    with Kernel(ada, "killed.ipynb") as kernel:
        kernel.run(ALLOCATE)
        until(lambda: node.status()["gpus"][0]["resident"] > 0)
        kernel.begin("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        until(lambda: "killed.ipynb" not in states(node))
        until(lambda: node.status()["gpus"][0]["used"] == 0)
        kernel.await_restart()
        # The Jupyter server restarts the kernel. jupyter_client cannot shut down a kernel during a restart
        # (InvalidStateError, HTTP status 500), so the new process has to respond before the session is deleted.
        assert kernel.run("print('restarted')") == "restarted\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes with another uid")
def test_a_container_with_a_separate_uid_is_identified_by_it(
    seats: tuple[Node, dict[str, Seat]],
) -> None:
    node, ada, hedy = seats[0], seats[1]["ada"], seats[1]["hedy"]
    with Kernel(ada, "engine.ipynb") as first, Kernel(hedy, "hopping.ipynb") as second:
        for kernel in (first, second):
            assert kernel.run(ALLOCATE + PLOT + CHECK) == "as if alone\n"
        users = {group["name"]: group["user"] for group in node.status()["groups"]}
        assert users == {"engine.ipynb": "ada", "hopping.ipynb": user_name(UID + 1)}
        assert "engine" not in str(hedy.status())
        assert "hopping" not in str(ada.status())
