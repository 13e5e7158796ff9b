# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import __version__
from jupyter_gpushare.scheduler.gpu.drivers import libraries
from tests.cli.conftest import MODULES
from tests.support import fork_server
from tests.support.folders import socket_folder
from tests.support.scheduler import SCHEDULER

GPUSHARE = [sys.executable, "-m", "jupyter_gpushare.cli.main"]


@pytest.fixture(autouse=True)
def _place(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket_folder() as folder:
        monkeypatch.setenv("GPUSHARE_SIM", "1")
        monkeypatch.setenv("GPUSHARE_SIM_NAME", Path(folder).name)
        monkeypatch.setenv("GPUSHARE_SOCKET", f"{folder}/s")
        monkeypatch.setenv("GPUSHARE_HIBERNATION_DRIVERS", f"{folder}/state/drivers")
        yield


def doctor(
    *arguments: str, under: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    return fork_server.run(
        [*GPUSHARE[1:], *under, *(GPUSHARE if under else ()), "doctor", *arguments],
        environ={**os.environ, **environment},
        modules=MODULES,
        timeout=90,
    )


@contextmanager
def scheduler(*arguments: str) -> Iterator[None]:
    process = fork_server.popen(
        ["-m", "jupyter_gpushare.scheduler", "--parent-pipe", *arguments],
        modules=SCHEDULER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        with process.stdin:
            assert process.stdout.readline() == b"ready\n"
            yield
        process.wait(90)


def findings(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["topic"]: finding for finding in json.loads(done.stdout)}


def test_everything_is_ok_with_a_scheduler() -> None:
    done = doctor("--json", under=("run", "--"))
    found = findings(done)
    for topic in (
        "interposer",
        "driver",
        "NVML",
        "GPU 0",
        "backend",
        "scheduler",
        "host memory",
        "hibernation",
        "LD_PRELOAD",
    ):
        assert found[topic]["state"] == "ok", found[topic]
    assert "simulated" in found["driver"]["found"]
    assert found["backend"]["found"].startswith("swap (chosen automatically")
    assert f"version {__version__}" in found["scheduler"]["found"]
    assert "a test CUDA program connected" in found["LD_PRELOAD"]["found"]
    assert done.returncode == (1 if any(f["state"] == "fail" for f in found.values()) else 0)


def test_without_a_scheduler_it_explains_how_to_start_one() -> None:
    found = findings(doctor("--json"))
    assert found["scheduler"]["state"] == "warn"
    assert "gpushare scheduler" in found["scheduler"]["found"]
    assert found["LD_PRELOAD"]["state"] == "warn"


def test_problems_come_with_a_remedy(tmp_path: Path) -> None:
    done = doctor("--json", GPUSHARE_SIM="", GPUSHARE_DRIVER=str(tmp_path / "none"))
    assert done.returncode == 1
    assert findings(done)["driver"]["state"] == "fail"
    assert "which is not a file" in findings(done)["driver"]["found"]
    (tmp_path / "libcuda.so.1").write_text("no library")
    done = doctor("--json", GPUSHARE_SIM="", GPUSHARE_DRIVER=str(tmp_path / "libcuda.so.1"))
    assert done.returncode == 1
    assert "cannot load " in findings(done)["driver"]["found"]
    assert findings(done)["driver"]["remedy"]


def test_hibernation_is_reported_as_available_or_enabled() -> None:
    assert findings(doctor("--json"))["hibernation"]["found"] == "available"
    two = {"GPUSHARE_SIM_DEVICES": "2"}
    found = findings(doctor("--json", under=("run", "--"), **two))["hibernation"]
    assert found["state"] == "ok"
    assert found["found"].startswith("enabled: idle notebooks leave the GPU after 600 s")
    assert "another GPU of the same model" in found["found"]


def test_hibernation_that_is_off() -> None:
    with scheduler("--hibernate-after", "off"):
        found = findings(doctor("--json"))["hibernation"]
    assert (found["state"], found["found"]) == ("ok", "off")
    assert "gpushare set --hibernate-after" in found["remedy"]


@pytest.mark.parametrize(
    ("version", "why"),
    [("565.57.01", "is older than 570"), ("610.57.04", "run gpushare doctor --hibernate-check")],
)
def test_drivers_that_cannot_hibernate(version: str, why: str) -> None:
    old = {"GPUSHARE_SIM_DRIVER_VERSION": version}
    for under in ((), ("run", "--")):
        found = findings(doctor("--json", under=under, **old))["hibernation"]
        assert found["state"] == "warn"
        assert found["found"].startswith("unavailable: the driver")
        assert version in found["found"]
        assert why in found["found"]


def test_a_missing_hibernator_is_reported(tmp_path: Path) -> None:
    found = libraries()
    for library in found.preload():
        (tmp_path / library.name).symlink_to(library)
    said = findings(doctor("--json", GPUSHARE_LIBRARIES=str(tmp_path)))["hibernation"]
    assert said["state"] == "warn"
    assert "gpushare-hibernator cannot be run: No such file" in said["found"]


def test_another_provisioner_is_reported() -> None:
    found = findings(
        doctor("--json", GPUSHARE_SIM="", JUPYTER_DEFAULT_PROVISIONER_NAME="local-provisioner")
    )
    assert found["provisioner"]["state"] == "warn"
    assert "'local-provisioner'" in found["provisioner"]["found"]


@pytest.mark.parametrize("file", ["jupyter_config.json", "jupyter_server_config.json"])
def test_a_configuration_with_another_provisioner_is_reported(tmp_path: Path, file: str) -> None:
    chosen = {"KernelProvisionerFactory": {"default_provisioner_name": "local-provisioner"}}
    (tmp_path / file).write_text(json.dumps(chosen))
    found = findings(doctor("--json", GPUSHARE_SIM="", JUPYTER_CONFIG_DIR=str(tmp_path)))
    assert found["provisioner"]["state"] == "warn"
    assert "your Jupyter configuration" in found["provisioner"]["found"]


@pytest.mark.parametrize(
    ("environment", "state", "said"),
    [
        ({"GPUSHARE_BACKEND": "plain"}, "warn", "plain (set by GPUSHARE_BACKEND"),
        ({"GPUSHARE_BACKEND": "fast"}, "fail", "invalid GPUSHARE_BACKEND=fast"),
        (
            {"GPUSHARE_BACKEND": "managed", "GPUSHARE_FORBID_MANAGED": "1"},
            "fail",
            "GPUSHARE_FORBID_MANAGED is set",
        ),
        ({"GPUSHARE_BACKEND": "managed"}, "ok", "managed (set by GPUSHARE_BACKEND"),
    ],
)
def test_backends(environment: dict[str, str], state: str, said: str) -> None:
    finding = findings(doctor("--json", **environment))["backend"]
    assert finding["state"] == state
    assert said in finding["found"]


def test_the_text_has_a_line_for_each_finding() -> None:
    text, found = (doctor(*flags, GPUSHARE_SIM="") for flags in ((), ("--json",)))
    lines = [line for line in text.stdout.splitlines() if "-> " not in line]
    assert all(line.startswith(("ok  ", "warn", "FAIL")) for line in lines)
    assert len(lines) == len(findings(found))


def test_the_managed_check() -> None:
    done = doctor("--managed-check")
    assert done.returncode == 0, done.stdout
    assert "without losing data" in done.stdout
    refused = doctor("--managed-check", GPUSHARE_FORBID_MANAGED="1")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "GPUSHARE_FORBID_MANAGED" in refused.stderr


def test_a_driver_that_passes_the_check_is_allowed() -> None:
    untested = {"GPUSHARE_SIM_DRIVER_VERSION": "595.45.04"}
    done = doctor("--hibernate-check", **untested)
    assert done.returncode == 0, done.stdout
    assert (
        "hibernated and woke processes 6 times without losing data, and killed 2 of them"
        in done.stdout
    )
    assert "issue 53" in done.stderr
    assert findings(doctor("--json", **untested))["hibernation"]["state"] == "ok"
    # Only this version is allowed.
    other = {"GPUSHARE_SIM_DRIVER_VERSION": "595.50.01"}
    assert findings(doctor("--json", **other))["hibernation"]["state"] == "warn"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("cuCheckpointProcessRestore=OPERATING_SYSTEM", "restore of process"),
        ("cuCheckpointProcessCheckpoint=UNKNOWN", "checkpoint of process"),
    ],
)
def test_a_driver_that_fails_the_check_is_not_allowed(fault: str, why: str) -> None:
    untested = {"GPUSHARE_SIM_DRIVER_VERSION": "595.45.04"}
    done = doctor("--hibernate-check", GPUSHARE_SIM_FAIL=fault, **untested)
    assert done.returncode == 1
    assert why in done.stdout
    assert findings(doctor("--json", **untested))["hibernation"]["state"] == "warn"


def test_a_check_reports_that_it_cannot_write_its_result(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = doctor(
        "--hibernate-check", GPUSHARE_HIBERNATION_DRIVERS=str(tmp_path / "file" / "drivers")
    )
    assert done.returncode == 1
    assert "GPUSHARE_HIBERNATION_DRIVERS" in done.stdout


@pytest.mark.parametrize("extra", ["", "jupyterhub"])
def test_packages_that_are_too_old(extra: str, tmp_path: Path) -> None:
    # This metadata is found before that of the installed package.
    folder = tmp_path / "jupyter_gpushare-1.dist-info"
    folder.mkdir()
    marker = f'; extra == "{extra}"' if extra else ""
    (folder / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: jupyter-gpushare\nVersion: 1\n"
        f"Requires-Dist: tornado>=1000{marker}\nRequires-Dist: pyzmq>=1{marker}\n"
    )
    found = findings(doctor("--json", PYTHONPATH=str(tmp_path)))["packages"]
    assert found["state"] == ("warn" if extra else "fail")
    assert "requires tornado>=1000, but" in found["found"]
    assert found["remedy"] == "run: pip install 'tornado>=1000'"


def test_packages_and_kernelspecs(tmp_path: Path) -> None:
    data = {"JUPYTER_DATA_DIR": str(tmp_path), "JUPYTER_PATH": str(tmp_path / "none")}
    found = findings(doctor("--json", **data))
    assert found["packages"]["state"] == "ok", found["packages"]
    assert "papermill" in found["kernelspecs"]["found"]
    assert "gpushare kernelspec add" in found["kernelspecs"]["remedy"]
    subprocess.run(
        [*GPUSHARE, "kernelspec", "add", "shared"], env={**os.environ, **data}, check=True
    )
    found = findings(doctor("--json", **data))
    assert found["kernelspecs"]["found"] == "share the GPU in every front end: shared"
    assert not found["kernelspecs"]["remedy"]
