# SPDX-License-Identifier: BSD-3-Clause
"""A node's scheduler in a place of its own, and what systemd does for it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support import fork_server
from tests.support.client import PATIENCE
from tests.support.fake_hub import FakeHub, Peer
from tests.support.scheduler import SCHEDULER


class Node:
    """A scheduler for which this process's uid says nothing, at the socket that the environment names."""

    def __init__(self, folder: Path, hub: FakeHub, **settings: Any) -> None:
        self.path = Path(os.environ["GPUSHARE_SOCKET"])
        self.config = folder / "config.json"
        self.state = folder / "state"
        settings = {
            "hub_api_url": hub.url,
            "shared_uids": [os.getuid()],
            "socket": str(self.path),
            "socket_mode": "0666",
            "state_dir": str(self.state),
            **settings,
        }
        self.config.write_text(json.dumps({"NodeScheduler": settings}))
        self.process: fork_server.Process | None = None

    def start(self) -> None:
        self.path.parent.chmod(0o755)
        self.process = fork_server.popen(
            [*("-m", "jupyter_gpushare.scheduler", "--config"), str(self.config)],
            modules=SCHEDULER,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            status = self.process.wait(PATIENCE)
            assert status in (0, -signal.SIGKILL), f"the scheduler ended with status {status}"
            assert self.process.stdout is not None
            self.process.stdout.close()

    def tickets(self) -> set[str]:
        """The groups whose tickets hold."""
        file = self.state / "tickets.json"
        if not file.exists():
            return set()
        return {found["kernel"] for found in json.loads(file.read_text())["tickets"]}

    def group(self, group: str | None) -> dict[str, Any] | None:
        """What an administrator sees of a group."""
        with Peer(self.path, token="admin-token") as peer:
            groups = peer.ok("status")["status"]["groups"]
        return next((found for found in groups if found["id"] == group), None)

    def user_of(self, group: str | None) -> str | None:
        found = self.group(group)
        return None if found is None else str(found["user"])


class Place:
    """A folder with a node scheduler's configuration."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.config = folder / "gpushare.py"
        self.socket = folder / "run" / "scheduler.sock"
        self.state = folder / "state"
        self.environ = {**environ, "GPUSHARE_SOCKET": str(self.socket)}
        self.log = folder / "log"

    def write(self, **settings: Any) -> None:
        settings = {"socket": str(self.socket), "state_dir": str(self.state), **settings}
        lines = [f"c.NodeScheduler.{name} = {value!r}\n" for name, value in settings.items()]
        self.config.write_text("".join(lines))

    def fail(self, *options: str) -> tuple[int, str]:
        """Start one that does not start: its status and what it says."""
        done = fork_server.run(
            [*("-m", "jupyter_gpushare.scheduler", "--config"), str(self.config), *options],
            environ=self.environ,
            modules=SCHEDULER,
            timeout=PATIENCE,
        )
        return done.returncode, done.stderr

    def ask(self, op: str, **params: Any) -> dict[str, Any]:
        with ControlClient(self.socket, timeout=PATIENCE) as client:
            return client.request(op, **params)


#: Runs the scheduler with the socket as its descriptor 3, as systemd's service manager does.
ACTIVATED = """
import os, runpy, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ["LISTEN_PID"] = sys.argv[2] or str(os.getpid())
del sys.argv[1:3]
sys.modules.pop("jupyter_gpushare.scheduler.__main__", None)
runpy.run_module("jupyter_gpushare.scheduler", run_name="__main__", alter_sys=True)
"""


class Activator:
    """What a socket unit and a service unit are for."""

    def __init__(self, place: Place) -> None:
        self.place = place
        place.socket.parent.mkdir(mode=0o755)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(place.socket))
        place.socket.chmod(0o666)
        self.listener.listen(64)
        self.news = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.news.settimeout(PATIENCE)
        self.news.bind(str(place.folder / "notify"))
        (place.folder / "notify").chmod(0o666)
        self.process: fork_server.Process | None = None

    def start(self, *, pid: str = "", count: str = "1", ready: bool = True) -> None:
        with self.place.log.open("ab") as log:
            self.process = fork_server.popen(
                [
                    *("-c", ACTIVATED, str(self.listener.fileno())),
                    *(pid, "--config", str(self.place.config)),
                ],
                modules=SCHEDULER,
                environ={
                    **self.place.environ,
                    "LISTEN_FDS": count,
                    "LISTEN_FDNAMES": "gpushare.socket",
                    "NOTIFY_SOCKET": str(self.place.folder / "notify"),
                    "WATCHDOG_USEC": "3000000",
                    "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
                },
                cwd=Path(__file__).parents[2],
                pass_fds=[self.listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if ready:
            self.told("READY=1")

    def told(self, state: str) -> str:
        """Wait for a state."""
        while True:
            text = self.news.recv(4096).decode()
            if state in text.split("\n"):
                return text

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        self.listener.close()
        self.news.close()
