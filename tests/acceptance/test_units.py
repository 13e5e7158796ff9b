# SPDX-License-Identifier: BSD-3-Clause
"""The units of systemd: their commands run with no more rights than the units give them.

These tests need no systemd; `test_machine.py` has the units run by it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support.hub.container import FORBIDDEN, Container, begin
from tests.support.hub.hub_api import ADMIN, READ, HubApi
from tests.support.lab import PATIENCE

UNITS = (
    "gpushare.socket",
    "gpushare.service",
    "gpushare-hub.service",
    "gpushare-hibernator.service",
)
COMMAND = "/opt/gpushare/bin/gpushare"
#: A number as systemd gives to a DynamicUser.
UID = 61184

#: Becomes the command with the socket as its descriptor 3, and without the right to gain others.
ACTIVATE = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


def service(root: Path, unit: str) -> list[tuple[str, str]]:
    """Return what a unit says under [Service], in order: a name can stand there several times."""
    text = (root / "deploy" / "systemd" / unit).read_text().partition("[Service]")[2]
    lines = (line.strip() for line in text.partition("\n[")[0].splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return [(name, value) for name, _, value in pairs]


def command(root: Path, unit: str, config: Path) -> list[str]:
    """Return a unit's command, with our interpreter and another configuration."""
    (line,) = (value for name, value in service(root, unit) if name == "ExecStart")
    program, *arguments, _ = line.split()
    assert program == COMMAND
    assert arguments[-1] == "--config"
    return [sys.executable, "-m", "jupyter_gpushare.cli.main", *arguments, str(config)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="gpushare-unit-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing")
def test_systemd_accepts_the_units_together(root: Path, tmp_path: Path) -> None:
    for unit in UNITS:
        text = (root / "deploy" / "systemd" / unit).read_text()
        (tmp_path / unit).write_text(text.replace(COMMAND, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / unit) for unit in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a process as another user")
def test_the_scheduler_runs_on_a_read_only_system(root: Path, folder: Path) -> None:
    for name in ("run", "state", "etc"):
        (folder / name).mkdir()
    os.chown(folder / "state", UID, UID)
    # As docs/how-to/admin/workstation.md says for the simulated driver: root makes the machine, and it is empty.
    machine = Path("/dev/shm", f"gpushare-sim-{folder.name}")
    machine.touch()
    machine.chmod(0o666)
    config = folder / "etc" / "gpushare.py"
    sample = (root / "deploy" / "systemd" / "gpushare.py").read_text()
    path = folder / "run" / "scheduler.sock"
    config.write_text(
        f"{sample}\nc.NodeScheduler.socket = {str(path)!r}\n"
        f"c.NodeScheduler.state_dir = {str(folder / 'state')!r}\n"
    )
    base = [*map(str, (root, sys.prefix, sys.base_prefix, folder / "etc", folder / "run"))]
    volumes = [str(folder / "state"), str(machine)]
    sandbox = Container({one: one for one in base}, {one: one for one in volumes}, uid=UID)
    sandbox.save(folder / "sandbox.json")
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news,
    ):
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(64)
        news.settimeout(PATIENCE)
        address = f"gpushare-unit-{uuid.uuid4().hex}"
        news.bind(f"\0{address}")
        process = subprocess.Popen(
            [
                *begin(folder / "sandbox.json"),
                *(sys.executable, "-c", ACTIVATE, str(listener.fileno())),
                *command(root, "gpushare.service", config),
            ],
            env={
                "GPUSHARE_SIM": "1",
                "GPUSHARE_SIM_MEMORY": "64MiB",
                "GPUSHARE_SIM_NAME": folder.name,
                "HOME": "/",
                "LISTEN_FDS": "1",
                "LISTEN_FDNAMES": "gpushare.socket",
                "NOTIFY_SOCKET": f"@{address}",
                "PATH": os.environ["PATH"],
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONPATH": str(root),
                "STATE_DIRECTORY": str(folder / "state"),
                "WATCHDOG_USEC": "12000000",
            },
            pass_fds=[listener.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            told = ""
            while "READY=1" not in told:
                try:
                    told = news.recv(4096).decode()
                except TimeoutError:
                    process.kill()
                    _, text = process.communicate()
                    if process.returncode == FORBIDDEN:
                        pytest.skip(text.strip())
                    pytest.fail(f"the service did not become ready: {text}")
            with ControlClient(path) as control:
                status = control.request("status")["status"]
                control.request("drain", gpu="0")
            assert len(status["gpus"]) == 1
            while "WATCHDOG=1" not in told:
                told = news.recv(4096).decode()
        finally:
            process.send_signal(signal.SIGTERM)
            _, text = process.communicate(timeout=PATIENCE)
            machine.unlink()
    assert process.returncode == 0, text
    # What outlives it is its own user's, and of no other's business.
    written = [one for one in (folder / "state").rglob("*") if one.is_file()]
    assert written
    for one in written:
        found = one.stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o077) == (UID, 0), one
    # The socket is root's, and stays for the next scheduler.
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="the unit runs its command as root")
def test_the_hub_service_runs_on_a_read_only_system(root: Path, folder: Path) -> None:
    config = folder / "hub.py"
    config.write_text('c.GpuShareHub.url = "http://127.0.0.1:0/services/gpushare/"\n')
    base = [*map(str, (root, sys.prefix, sys.base_prefix, folder))]
    Container({one: one for one in base}, uid=0).save(folder / "sandbox.json")
    with HubApi() as hub:
        environ = {
            **hub.environ(hub.token("gpushare", ADMIN, READ, kind="service")),
            "GPUSHARE_SOCKET": str(folder / "scheduler.sock"),
            "HOME": "/",
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(root),
        }
        process = subprocess.Popen(
            [*begin(folder / "sandbox.json"), *command(root, "gpushare-hub.service", config)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if line:
                with urllib.request.urlopen(json.loads(line)["url"] + "health") as answer:
                    assert json.load(answer)["status"] == "ok"
        finally:
            process.terminate()
            _, text = process.communicate(timeout=PATIENCE)
    if process.returncode == FORBIDDEN:
        pytest.skip(text.strip())
    assert line, text
    assert process.returncode == 0, text
