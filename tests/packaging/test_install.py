# SPDX-License-Identifier: BSD-3-Clause
"""What pip makes of the sdist on a machine without Node.js works in a fresh virtual environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import jupyter_gpushare
from tests.packaging.conftest import Fresh


@pytest.fixture(scope="module")
def installed(wheel: Path, fresh: Fresh) -> Fresh:
    fresh.run("python", "-m", "pip", "install", "--no-index", str(wheel))
    return fresh


def test_the_command_runs(installed: Fresh) -> None:
    assert jupyter_gpushare.__version__ in installed.run("gpushare", "--version")


def test_the_package_comes_from_the_fresh_environment(installed: Fresh) -> None:
    code = """if True:
        import json, jupyter_gpushare, jupyter_gpushare._protocol as protocol
        print(json.dumps([jupyter_gpushare.__file__, protocol.__file__, str(jupyter_gpushare.LIBRARIES)]))
    """
    for path in json.loads(installed.run("python", "-c", code)):
        assert Path(path).is_relative_to(installed.prefix)


def test_the_server_finds_the_extension_enabled(installed: Fresh) -> None:
    listed = installed.run("python", "-m", "jupyter_server.extension.serverextension", "list")
    lines = [line for line in listed.splitlines() if "jupyter_gpushare" in line]
    assert any("enabled" in line for line in lines), listed
    assert any("OK" in line for line in lines), listed
    assert not any("error" in line.lower() for line in lines), listed


def test_the_extension_can_be_disabled_and_enabled_by_its_name(installed: Fresh) -> None:
    command = ("python", "-m", "jupyter_server.extension.serverextension")
    installed.run(*command, "disable", "--sys-prefix", "jupyter_gpushare")
    assert "jupyter_gpushare disabled" in installed.run(*command, "list")
    installed.run(*command, "enable", "--sys-prefix", "jupyter_gpushare")
    assert "jupyter_gpushare enabled" in installed.run(*command, "list")


def test_jupyter_client_finds_the_provisioner(installed: Fresh) -> None:
    code = """if True:
        from jupyter_client.provisioning import KernelProvisionerFactory
        print(KernelProvisionerFactory.instance().get_provisioner_entries()["gpushare"])
    """
    said = installed.run("python", "-c", code)
    assert "jupyter_gpushare.kernel_provisioner:GpuShareProvisioner" in said


def test_jupyterlab_finds_the_labextension(installed: Fresh) -> None:
    listed = installed.run("python", "-m", "jupyterlab.labextensions", "list")
    assert f"jupyter-gpushare v{jupyter_gpushare.__version__}" in listed
    assert "enabled" in next(line for line in listed.splitlines() if "jupyter-gpushare" in line)
