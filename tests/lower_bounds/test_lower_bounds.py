# SPDX-License-Identifier: BSD-3-Clause
"""The product with the lowest declared version of every dependency (`make test-lower-bounds`)."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import pkgutil
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import jupyter_gpushare
from tests.support.lab import Lab, environment
from tests.support.notebook import Notebook, until

#: Not for import: examples, configuration files, programs, and modules that need the extras `test` and `mcp`.
NOT_IMPORTED = (
    "jupyter_gpushare.benchmarks.published.lab",
    "jupyter_gpushare.benchmarks.programs.rank",
    "jupyter_gpushare.cli.doctor.probe",
    "jupyter_gpushare.cli.mcp.tools",
    "jupyter_gpushare.deploy.docker.jupyterhub_config",
    "jupyter_gpushare.deploy.kubernetes.gpushare",
    "jupyter_gpushare.examples",
)

USES_CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == cuda.cuMemAlloc_v2(ctypes.byref(pointer), 1 << 20) == 0
print("used CUDA")
"""


@pytest.fixture
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    yield folder
    shutil.rmtree(folder)
    Path("/dev/shm", f"gpushare-sim-{folder.name}").unlink(missing_ok=True)


def gpushare(environ: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_lowest_versions_are_installed() -> None:
    declared = importlib.metadata.requires("jupyter-gpushare") or []
    extras = ("", "demo", "jupyterhub", "kubernetes", "plots", "pytest")
    looked_at = set()
    lowest: dict[str, Version] = {}
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        applies = marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)
        if not applies or requirement.name == "jupyter-gpushare":
            continue
        (bound,) = requirement.specifier
        assert bound.operator == ">=", requirement
        # One package may have another bound for newer versions of Python.
        lowest[requirement.name] = max(
            Version(bound.version), lowest.get(requirement.name, Version("0"))
        )
        looked_at.add(requirement.name)
    assert {"jupyter-server", "jupyterlab", "jupyterhub", "grpcio", "pytest"} <= looked_at
    for name, bound in lowest.items():
        installed = Version(importlib.metadata.version(name))
        same = installed.release[: len(bound.release)] == bound.release
        assert same, f"{name} {installed} is installed, and {bound} is declared"


def test_every_module_can_be_imported() -> None:
    modules = pkgutil.walk_packages(jupyter_gpushare.__path__, "jupyter_gpushare.")
    failed = []
    for name in [module.name for module in modules]:
        if name.startswith(NOT_IMPORTED):
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            failed.append(f"{name}: {error!r}")
    assert not failed


def test_notebooks_share_a_gpu(runtime: Path, tmp_path: Path, root: Path) -> None:
    environ = environment(runtime)
    with Lab(tmp_path, environ, root) as lab:
        assert lab.shared_status()["unshared"] == []
        with Notebook(lab) as first, Notebook(lab) as second:
            assert first.has_its_data()
            assert second.has_its_data()
            groups = {group["id"]: group for group in lab.status()["groups"]}
            assert groups.keys() == {first.id, second.id}
            assert lab.status()["unshared"] == []
            asked = first.run("%gpushare --json")
            assert asked["status"] == "ok", asked
            shown = gpushare(environ, "status")
            assert first.id[:8] in shown, shown
            # A kernel that crashes shares again.
            crashed = first.pid
            first.begin("os._exit(7)")
            until(lambda: not Path(f"/proc/{crashed}").exists(), "the kernel has crashed")
            first.connect()
            assert lab.status()["unshared"] == []
            assert first.value("__import__('os').environ['GPUSHARE_GROUP']") == first.id


def test_the_command_line_works(runtime: Path, tmp_path: Path, root: Path) -> None:
    environ = {
        **environment(runtime),
        "JUPYTER_DATA_DIR": str(tmp_path / "data"),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "config"),
        "PYTHONPATH": str(root),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpushare.scheduler", "--parent-pipe"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as scheduler:
        assert scheduler.stdout is not None
        assert scheduler.stdout.readline() == b"ready\n"
        ran = gpushare(environ, "run", "--", sys.executable, "-c", USES_CUDA)
        assert ran == "used CUDA\n"
        found = json.loads(gpushare(environ, "doctor", "--json"))
        assert {finding["topic"]: finding["state"] for finding in found}["packages"] == "ok"
        gpushare(environ, "kernelspec", "add", "shared")
        assert "shared" in os.listdir(tmp_path / "data" / "kernels")
        gpushare(environ, "status")
