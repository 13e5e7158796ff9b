# SPDX-License-Identifier: BSD-3-Clause
"""Users in containers share the GPU by what `deploy/docker` has mounted into them: real Hub, real kernels, no docker.

Root, mounts, processes and users of the containers are their own; what is not theirs is the GPU, as on a real machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from traitlets.config.loader import PyFileConfigLoader

import jupyter_gpushare
from jupyter_gpushare.scheduler.protocol.client import user_name
from tests.hub.container import FORBIDDEN, Container, begin
from tests.hub.hub import Hub, Seat, until
from tests.hub.kernel import Kernel
from tests.hub.node import Node, small_machine
from tests.hub.programs import ALLOCATE, CHECK, PLOT, TRAIN

RECIPE = Path(jupyter_gpushare.__file__).parent / "deploy" / "docker" / "jupyterhub_config.py"

#: What containers all run as.
UID = 1000


def recipe() -> Any:
    """What the recipe sets of DockerSpawner."""
    return PyFileConfigLoader(RECIPE.name, path=str(RECIPE.parent)).load_config().DockerSpawner


def test_the_recipe_says_what_dockerspawner_knows() -> None:
    stated = recipe()
    assert {*stated} == {
        *("environment", "extra_host_config", "image", "mem_limit", "read_only_volumes")
    }
    inside = {*stated.read_only_volumes.values()}
    assert str(Path(stated.environment["GPUSHARE_SOCKET"]).parent) in inside
    assert stated.environment["GPUSHARE_LIBRARIES"] in inside


@pytest.fixture(scope="module")
def containers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    """Return what each user's container is like, if they can be had here."""
    base = {path: path for path in map(str, (root, sys.prefix, sys.base_prefix))}
    found = {
        "ada": Container(base, {"$HOME": "$HOME"}, uid=UID),
        # To whom numbers are remapped, the machine's root is nobody.
        "grace": Container(
            base, {"$HOME": "$HOME"}, {"GPUSHARE_SCHEDULER_UID": "65534"}, UID, remapped=True
        ),
    }
    if os.geteuid() == 0:
        # One who has a number of her own, and is known by it.
        found["hedy"] = Container(base, {"$HOME": "$HOME"}, uid=UID + 1)
    for container in found.values():
        file = tmp_path_factory.mktemp("probe") / "container.json"
        container.save(file)
        done = subprocess.run(
            [*begin(file), "true"],
            env={**os.environ, "HOME": "/tmp"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode == FORBIDDEN:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
    return found


@pytest.fixture(scope="module")
def seats(
    containers: dict[str, Container],
    runtime: Path,
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Node, dict[str, Seat]]]:
    """Return the scheduler of the machine, and the users' servers, each in a container."""
    stated = recipe()
    folder = tmp_path_factory.mktemp("hub")
    machine = small_machine(runtime)
    as_root = os.geteuid() == 0
    hub = Hub(
        folder,
        root,
        {**stated.environment, **machine},
        before=begin(folder / "$USER.json"),
        uids={user: container.uid for user, container in containers.items()} if as_root else None,
    )
    with Node(
        runtime,
        machine,
        shared_uids=[UID if as_root else os.getuid()],
        hub_api_url=hub.api,
        socket_mode="0666",
        quantum=3600,
    ) as node:
        node.command("libraries", str(runtime / "lib"))
        on_host = {
            "/run/gpushare": node.socket.parent,
            "/var/lib/gpushare-libraries": runtime / "lib",
        }
        mounts = {str(on_host[path]): there for path, there in stated.read_only_volumes.items()}
        # The GPU: a device that any user may open.
        gpu = Path("/dev/shm", f"gpushare-sim-{runtime.name}")
        gpu.chmod(0o666)
        for user, container in containers.items():
            container.read_only = {
                **container.read_only,
                **mounts,
                str(folder / "path"): str(folder / "path"),
            }
            container.volumes[str(gpu)] = str(gpu)
            container.save(folder / f"{user}.json")
        with hub:
            seats = {user: hub.seat(user) for user in containers}
            for seat in seats.values():
                seat.start()
            for seat in seats.values():
                seat.shared_status()
            yield node, seats


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

        # Each is told that there is another, and not who it is.
        for seat, other in ((ada, "compiler"), (grace, "engine")):
            told = seat.status()
            assert len(told["groups"]) == 2
            assert other not in str(told)
        # Processes are known by what they are to the machine, and none is taken for a program outside.
        (gpu,) = node.status()["gpus"]
        assert gpu["foreign"] == 0
        for group in node.status()["groups"]:
            (client,) = group["clients"]
            assert os.path.exists(f"/proc/{client['pid']}")
            assert "ipykernel" in Path(f"/proc/{client['pid']}/cmdline").read_text()
        ada.post("gpushare/api/offload", {"group": first.id})
        assert second.end(plotting) == "as if alone\n"
        (ada.notebooks / "stop").touch()
        first.end(training)
        assert first.run(CHECK) == "as if alone\n"
        # What was moved out lies in memory that the scheduler lent, whatever the container is.
        (plotted,) = (g for g in node.status()["groups"] if g["name"] == "compiler.ipynb")
        assert plotted["gpus"][0]["swapped"] > 0
        host = node.status()["host"]
        assert host["pool"]["in_use"] >= host["swapped"]


def test_what_a_killed_kernel_had_is_given_to_others(seats: tuple[Node, dict[str, Seat]]) -> None:
    node, ada = seats[0], seats[1]["ada"]
    with Kernel(ada, "killed.ipynb") as kernel:
        kernel.run(ALLOCATE)
        until(lambda: node.status()["gpus"][0]["resident"] > 0)
        kernel.begin("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        until(lambda: "killed.ipynb" not in states(node))
        until(lambda: node.status()["gpus"][0]["used"] == 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="other uids are for root to give away")
def test_who_has_a_number_of_their_own_is_known_by_it(seats: tuple[Node, dict[str, Seat]]) -> None:
    node, ada, hedy = seats[0], seats[1]["ada"], seats[1]["hedy"]
    with Kernel(ada, "engine.ipynb") as first, Kernel(hedy, "hopping.ipynb") as second:
        for kernel in (first, second):
            assert kernel.run(ALLOCATE + PLOT + CHECK) == "as if alone\n"
        users = {group["name"]: group["user"] for group in node.status()["groups"]}
        assert users == {"engine.ipynb": "ada", "hopping.ipynb": user_name(UID + 1)}
        assert "engine" not in str(hedy.status())
        assert "hopping" not in str(ada.status())
