# SPDX-License-Identifier: BSD-3-Clause
"""An sdist goes into a fresh virtual environment of a machine without Node.js and works there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

import jupyter_gpushare


@dataclass(frozen=True)
class Installed:
    prefix: Path
    env: dict[str, str]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [str(self.prefix / "bin" / command[0]), *command[1:]],
            cwd=self.prefix,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return re.sub(r"\x1b\[\d*m", "", done.stdout + done.stderr)


@pytest.fixture(scope="module")
def installed(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    prefix = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
    # Its dependencies are those of this environment, so that the registry is not asked. A folder named in a .pth
    # file is searched, but its own .pth files (this checkout's editable install) are not read.
    major, minor = sys.version_info[:2]
    site = prefix / "lib" / f"python{major}.{minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    traps = tmp_path_factory.mktemp("traps")
    for name in ("node", "npm", "yarn", "jlpm"):
        trap = traps / name
        trap.write_text(f"#!/bin/sh\necho there is no {name} here >&2\nexit 127\n")
        trap.chmod(0o755)
    home = tmp_path_factory.mktemp("home")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "GPUSHARE", "PYTHON", "VIRTUAL_ENV"))
    }
    env |= {"PATH": f"{traps}:{os.defpath}", "HOME": str(home)}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    fresh = Installed(prefix, env)
    fresh.run("python", "-m", "pip", "install", "--no-build-isolation", "--no-index", str(sdist))
    return fresh


def test_the_command_runs(installed: Installed) -> None:
    assert jupyter_gpushare.__version__ in installed.run("gpushare", "--version")


def test_the_package_comes_from_the_fresh_environment(installed: Installed) -> None:
    code = """if True:
        import json, jupyter_gpushare, jupyter_gpushare._protocol as protocol
        print(json.dumps([jupyter_gpushare.__file__, protocol.__file__, str(jupyter_gpushare.LIBRARIES)]))
    """
    for path in json.loads(installed.run("python", "-c", code)):
        assert Path(path).is_relative_to(installed.prefix)


def test_the_server_finds_the_extension_enabled(installed: Installed) -> None:
    listed = installed.run("python", "-m", "jupyter_server.extension.serverextension", "list")
    lines = [line for line in listed.splitlines() if "jupyter_gpushare" in line]
    assert any("enabled" in line for line in lines), listed
    assert any("OK" in line for line in lines), listed
    assert not any("error" in line.lower() for line in lines), listed


def test_the_extension_can_be_disabled_and_enabled_by_its_name(installed: Installed) -> None:
    command = ("python", "-m", "jupyter_server.extension.serverextension")
    installed.run(*command, "disable", "--sys-prefix", "jupyter_gpushare")
    assert "jupyter_gpushare disabled" in installed.run(*command, "list")
    installed.run(*command, "enable", "--sys-prefix", "jupyter_gpushare")
    assert "jupyter_gpushare enabled" in installed.run(*command, "list")


def test_jupyter_client_finds_the_provisioner(installed: Installed) -> None:
    code = """if True:
        from jupyter_client.provisioning import KernelProvisionerFactory
        print(KernelProvisionerFactory.instance().get_provisioner_entries()["gpushare"])
    """
    said = installed.run("python", "-c", code)
    assert "jupyter_gpushare.kernel_provisioner:GpuShareProvisioner" in said


def test_jupyterlab_finds_the_labextension(installed: Installed) -> None:
    listed = installed.run("python", "-m", "jupyterlab.labextensions", "list")
    assert f"jupyter-gpushare v{jupyter_gpushare.__version__}" in listed
    assert "enabled" in next(line for line in listed.splitlines() if "jupyter-gpushare" in line)
