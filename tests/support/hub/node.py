# SPDX-License-Identifier: BSD-3-Clause
"""A real node scheduler over the simulated GPUs of this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support import fork_server
from tests.support.environment import inherited
from tests.support.hub.hub import Hub, until
from tests.support.lab import PATIENCE
from tests.support.scheduler import SCHEDULER


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder whose path is short enough for a socket, and whose name is that of a simulated GPU."""
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        for left in Path("/dev/shm").glob(f"gpushare-sim-{folder.name}*"):
            left.unlink()


def small_machine(folder: Path) -> dict[str, str]:
    """Return the environment in which there is one simulated GPU, whose memory a test may fill.

    Its CUDA kernels take a while, but no time of a processor.
    """
    return {
        "GPUSHARE_SIM": "1",
        "GPUSHARE_SIM_CONTEXT": "2MiB",
        "GPUSHARE_SIM_KERNEL_NS": "5000000",
        "GPUSHARE_SIM_MEMORY": "128MiB",
        "GPUSHARE_SIM_NAME": folder.name,
    }


class Node:
    """A node scheduler in a process of its own, which can be killed and started again; it ends with the ``with`` block.

    Parameters
    ----------
    folder
        A private folder whose path is short enough for a socket.
    environ
        Its environment, beside this process's own: the simulated machine.
    token
        A token of the Hub's by which to ask it, where the uid that runs the tests identifies no user.
    settings
        What is in its configuration.
    """

    def __init__(
        self, folder: Path, environ: Mapping[str, str], *, token: str = "", **settings: Any
    ) -> None:
        self.folder = folder
        self.socket = folder / "run" / "scheduler.sock"
        self._environ = environ
        self._token = token
        settings = {
            "socket": str(self.socket),
            "state_dir": str(folder / "state"),
            **settings,
        }
        self._config = folder / "gpushare.py"
        self._config.write_text(
            "".join(f"c.NodeScheduler.{name} = {value!r}\n" for name, value in settings.items())
        )
        self.process: fork_server.Process | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "scheduler.log").open("ab") as log:
            self.process = fork_server.popen(
                [
                    *("-m", "jupyter_gpushare.cli.main", "scheduler"),
                    *("--config", str(self._config), "--log-level", "info"),
                ],
                environ={**inherited(), **self._environ},
                modules=SCHEDULER,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(self._answers, lambda: self.log)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        try:
            with ControlClient(self.socket):
                return True
        except ControlError:
            return False

    def kill(self) -> None:
        """End it as the kernel's OOM killer does."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def status(self) -> dict[str, Any]:
        """Return all that it knows, as an administrator sees it."""
        with ControlClient(self.socket, timeout=PATIENCE) as control:
            if self._token:
                control.request("login", token=self._token)
            return control.request("status")["status"]  # type: ignore[no-any-return]

    def command(self, *arguments: str) -> str:
        """Run `gpushare` on the scheduler's machine, and return what it prints."""
        return subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare.cli.main", *arguments],
            env={**os.environ, **self._environ, "GPUSHARE_SOCKET": str(self.socket)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    @property
    def log(self) -> str:
        """What it has written so far, and those before it."""
        return (self.folder / "scheduler.log").read_text(errors="replace")

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(PATIENCE)


@contextlib.contextmanager
def node_beside(hub: Hub, folder: Path, **settings: Any) -> Iterator[Node]:
    """Run a Hub, and the scheduler of a small machine whose files are in a folder.

    All processes have the uid that runs the tests: only the Hub knows their users. No process loses the GPU before an
    hour is over.

    Parameters
    ----------
    hub, folder
        The Hub, and the folder.
    settings
        Further configuration of the scheduler.
    """
    with (
        Node(
            folder,
            small_machine(folder),
            token=hub.token,
            shared_uids=[os.getuid()],
            hub_api_url=hub.api,
            quantum=3600,
            **settings,
        ) as node,
        hub,
    ):
        yield node
