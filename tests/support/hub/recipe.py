# SPDX-License-Identifier: BSD-3-Clause
"""The recipe for servers in containers, and servers that it starts."""

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
from tests.support.hub.container import FORBIDDEN, Container, begin
from tests.support.hub.hub import Hub, Seat
from tests.support.hub.node import Node, small_machine

RECIPE = Path(jupyter_gpushare.__file__).parent / "deploy" / "docker" / "jupyterhub_config.py"

#: What containers all run as.
UID = 1000


def recipe() -> Any:
    """What the recipe sets of DockerSpawner."""
    return PyFileConfigLoader(RECIPE.name, path=str(RECIPE.parent)).load_config().DockerSpawner


@pytest.fixture(scope="module")
def containers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Container]:
    """Return what each user's container is like, if they can be had here."""
    base = {path: path for path in map(str, (root, sys.prefix, sys.base_prefix))}
    found = {
        "ada": Container(base, {"$HOME": "$HOME"}, uid=UID),
        # Where uids are remapped, the machine's root appears as ``nobody``.
        "grace": Container(
            base, {"$HOME": "$HOME"}, {"GPUSHARE_SCHEDULER_UID": "65534"}, UID, remapped=True
        ),
    }
    if os.geteuid() == 0:
        # A user with her own uid, which identifies her.
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
        browsed=False,
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
