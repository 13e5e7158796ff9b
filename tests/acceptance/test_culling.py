# SPDX-License-Identifier: BSD-3-Clause
"""jupyterhub-idle-culler and jupyter_server's own culling, while a notebook without a browser waits for the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.support.hub.hub import ADMIN, USERS, Hub, Seat, until
from tests.support.hub.kernel import Kernel
from tests.support.hub.node import Node, node_beside, small_machine
from tests.support.hub.programs import ALLOCATE, CHECK, PLOT

# No culler acts before a minute of inactivity has passed, so the test takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Seconds without activity after which both cullers act, and between two of their rounds.
IDLE, ROUND = 60, 5
#: Seconds of idleness after which a notebook hibernates: fewer, as docs/how-to/admin/culling.md recommends.
ASLEEP = 10
#: Seconds between two reports of a user's server to the Hub, so that it never sees the activity of a waiting kernel.
SELDOM = 3600
#: The same, so that the culler needs no hook to see it.
OFTEN = 2

HOOK = """\
from jupyter_gpushare.hub.culling import CullArbiter
c.IdleCuller.cull_arbiter_hook = CullArbiter()
"""

#: Uses a little of the GPU, and is done.
USE = """\
from cuda.core import Device
device = Device()
device.set_current()
stream = device.create_stream()
data = device.allocate(1 << 20, stream=stream)
stream.sync()
"""

CULLER = {
    "name": "culler",
    "scopes": [
        *("list:users", "read:users:activity", "read:servers", "delete:servers"),
        "custom:gpushare:read",
    ],
    "services": ["culler"],
}

#: Uses the GPU until there is a file named ``stop``, and is active for the Jupyter server, because it prints.
TRAIN_AND_PRINT = """\
import time
printed, steps = time.monotonic(), []
while not os.path.exists("stop"):
    launch(stream, grid, step, data)
    done += 1
    steps.append(stream.record())
    if len(steps) > 300:
        steps.pop(0).sync()
    if time.monotonic() > printed + 1:
        printed = time.monotonic()
        print(".", flush=True)
"""


@pytest.fixture(params=["hook", "reports"])
def hub(request: pytest.FixtureRequest, root: Path, runtime: Path, tmp_path: Path) -> Hub:
    """Return a Hub whose service is the culler; it does not run yet.

    The culler learns from its hook or from the servers' reports that a notebook is waiting.
    """
    hooked = request.param == "hook"
    programs = root / "build" / "acceptance" / "bin"
    if not (programs / "jupyterhub-idle-culler").exists():
        pytest.skip("build/acceptance is missing: run `make build/acceptance/stamp`")
    command = [str(programs / "python"), "-m", "jupyterhub_idle_culler"]
    kernels = "--MappingKernelManager"
    socket = str(runtime / "run" / "scheduler.sock")
    config = tmp_path / "culler_config.py"
    config.write_text(HOOK if hooked else "")
    return Hub(
        tmp_path,
        root,
        {
            **small_machine(runtime),
            "GPUSHARE_SOCKET": socket,
            "JUPYTERHUB_ACTIVITY_INTERVAL": str(SELDOM if hooked else OFTEN),
        },
        roles=[CULLER],
        services=[
            {
                "name": CULLER["name"],
                "command": [
                    *command,
                    f"--timeout={IDLE}",
                    f"--cull-every={ROUND}",
                    f"--IdleCuller.config_file={config}",
                ],
                "environment": {"GPUSHARE_SOCKET": socket, "PYTHONPATH": str(root)},
            }
        ],
        settings={
            "Spawner": {
                "args": [
                    "--allow-root",
                    f"{kernels}.cull_idle_timeout={IDLE}",
                    f"{kernels}.cull_interval={ROUND}",
                    f"{kernels}.cull_busy=True",
                ]
            }
        },
    )


@pytest.fixture
def seats(hub: Hub, runtime: Path) -> Iterator[tuple[Node, dict[str, Seat]]]:
    with node_beside(hub, runtime, hibernate_after=ASLEEP) as node:
        seats = {user: hub.seat(user) for user in (*USERS, ADMIN)}
        for seat in seats.values():
            seat.start()
        for seat in seats.values():
            seat.shared_status()
        yield node, seats


def has_server(seat: Seat) -> bool:
    """Return whether the Hub still has a user's server; not through the proxy, which would count as activity."""
    return bool(seat.hub.ask(f"users/{seat.user}")["servers"])


def note_activity(seat: Seat) -> None:
    """Tell the Hub of activity of a server that no hook spares."""
    now = datetime.now(timezone.utc).isoformat()
    activity = {"last_activity": now, "servers": {"": {"last_activity": now}}}
    seat.hub.ask(f"users/{seat.user}/activity", activity)


def until_culled(is_there: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 4 * IDLE
    while is_there():
        assert time.monotonic() < deadline, f"{what} was not culled"
        time.sleep(1)


def test_a_waiting_notebook_is_not_culled(seats: tuple[Node, dict[str, Seat]]) -> None:
    node, users = seats
    ada, grace, hedy = (users[user] for user in (*USERS, ADMIN))

    def states() -> dict[str, str]:
        return {group["name"]: group["state"] for group in node.status()["groups"]}

    with (
        Kernel(grace, "training.ipynb") as training,
        Kernel(ada, "waiting.ipynb") as waiting,
    ):
        training.run(ALLOCATE)
        # Otherwise it would yield the GPU after some seconds, as a background job.
        grace.post("gpushare/api/adjust", {"group": training.id, "priority": "interactive"})
        training.begin(TRAIN_AND_PRINT)
        until(lambda: states().get("training.ipynb") == "running")
        waiting.begin(ALLOCATE + PLOT)
        until(lambda: states().get("waiting.ipynb") == "waiting")
        idle_kernel, idle_server = Kernel(grace, "done.ipynb"), Kernel(hedy, "idle.ipynb")
        for kernel in (idle_kernel, idle_server):
            kernel.run(USE)
        for kernel in (training, waiting, idle_kernel, idle_server):
            kernel.disconnect()
        # What a culler is going to stop holds nothing of the GPU.
        for name in ("idle.ipynb", "done.ipynb"):
            until(lambda name=name: states().get(name) == "hibernated")
        left = time.monotonic()

        def kernels_of_grace() -> list[str]:
            note_activity(grace)
            return [kernel["id"] for kernel in grace.get("api/kernels")]

        # Both cullers work.
        until_culled(lambda: bool(kernels_of_grace()) and has_server(hedy), "an idle server")
        until_culled(lambda: idle_kernel.id in kernels_of_grace(), "an idle kernel")
        while time.monotonic() < left + 2 * IDLE:
            assert training.id in kernels_of_grace()
            assert has_server(ada), ada.hub.log
            assert states().get("waiting.ipynb") == "waiting", ada.hub.log
            time.sleep(1)
        # It is about to be idle.
        note_activity(ada)
        (grace.notebooks / "stop").touch()
        for kernel in (waiting, training):
            kernel.connect()
            assert kernel.run(CHECK) == "as if alone\n"
