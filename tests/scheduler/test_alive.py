# SPDX-License-Identifier: BSD-3-Clause
"""Whether a scheduler that hangs is noticed, and in time."""

from __future__ import annotations

import configparser
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.server import alive
from tests.support.client import PATIENCE
from tests.support.scheduler import Scheduler
from tests.support.stopping import stop

DEPLOY = Path(__file__).parents[2] / "deploy"
#: Seconds within which a hanging service must be replaced, and seconds that a start may take.
REPLACED, START = 20.0, 4.0


def ask(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.scheduler.server.alive"],
        env={**os.environ, "GPUSHARE_SOCKET": str(path)},
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_the_probe_uses_the_protocol() -> None:
    frame = next(protocol.FrameReader().feed(protocol.encode_json(protocol.CONTROL, {})))
    assert frame.type == alive._CONTROL
    assert alive._HEADER.size == struct.calcsize("=IHH") == 8


def test_a_working_scheduler_is_alive(scheduler: Scheduler) -> None:
    done = ask(scheduler.path)
    assert (done.returncode, done.stderr) == (0, "")
    # Its log has nothing of it.
    assert scheduler.log == ""


def test_a_hanging_scheduler_is_not_alive(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop(scheduler.process.pid)
    try:
        begun = time.monotonic()
        assert "has not responded for 3 s" in alive.answers(os.fsencode(scheduler.path))
        assert time.monotonic() - begun >= alive.PATIENCE
    finally:
        scheduler.process.send_signal(signal.SIGCONT)
    assert alive.answers(os.fsencode(scheduler.path)) == ""


def test_a_missing_scheduler_is_not_alive(tmp_path: Path) -> None:
    done = ask(tmp_path / "none")
    assert done.returncode == 1
    assert "No such file" in done.stderr
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "refused" in alive.answers(os.fsencode(tmp_path / "s"))


@pytest.mark.parametrize("name", ["gpushare.service", "gpushare-hub.service"])
def test_systemd_replaces_a_hanging_scheduler_in_time(name: str) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(DEPLOY / "systemd" / name)
    service = parser["Service"]
    # Any other signal would wait for a process that is stopped.
    assert service["WatchdogSignal"] == "SIGKILL"
    assert service["Type"] == "notify"
    assert service.getfloat("WatchdogSec") + service.getfloat("RestartSec") + START <= REPLACED


@pytest.mark.parametrize("name", ["scheduler.yaml", "hub/hub.yaml"])
def test_kubernetes_replaces_a_hanging_scheduler_in_time(name: str) -> None:
    made = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())
    (container,) = made["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    # It hangs right after an answer; the last of the probes that fail takes all the time that it has.
    longest = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert longest + probe["terminationGracePeriodSeconds"] + START <= REPLACED
    # A start may take longer.
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120
    if command := probe.get("exec", {}).get("command"):
        assert re.sub("[0-9]", "", command[0]) == "python"
        assert command[1:] == ["-m", alive.__spec__.name]
