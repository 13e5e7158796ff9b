# SPDX-License-Identifier: BSD-3-Clause
"""What the sdist and the wheel hold, where the wheel says that it runs, and that it works in a fresh environment.

One file: another worker of pytest would build them again.
"""

from __future__ import annotations

import configparser
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import pytest

import jupyter_gpushare
from tests.packaging.conftest import Fresh

pytestmark = pytest.mark.slow

ROOMS = (
    "scheduler",
    "client",
    "kernel_provisioner",
    "server_extension",
    "cli",
    "benchmarks",
    "deploy",
    "hub",
)
LIBRARIES = (
    "libgpushare.so",
    "libgpushare-alias.so",
    "libgpushare-nvml.so",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
    "sim/libnvrtc.so.13",
)
PROGRAM = "jupyter_gpushare/lib/gpushare-hibernator"
OLDEST_GLIBC = (2, 17)


def readelf(option: str, library: Path) -> str:
    env = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        ["readelf", "--wide", option, str(library)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def newest_glibc(library: Path) -> tuple[int, int]:
    found = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", readelf("--version-info", library))
    return max(((int(major), int(minor)) for major, minor in found), default=(0, 0))


def modules(names: Iterable[str], room: str) -> list[str]:
    return [name for name in names if name.endswith(f"/{room}/__init__.py")]


@pytest.fixture(scope="module")
def content(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("content")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def binaries(content: Path) -> list[Path]:
    return [content / PROGRAM, *(path for path in content.rglob("*") if ".so" in path.suffixes)]


def test_sdist_holds_sources_and_the_built_labextension(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        assert not [member.name for member in archive if member.issym() or member.islnk()]
    top = sdist.name.removesuffix(".tar.gz")
    inner = {str(PurePosixPath(name).relative_to(top)) for name in names}
    assert len(names) == len(inner)
    assert {
        "LICENSE",
        "README.md",
        "csrc/protocol.h",
        "csrc/Makefile",
        "hatch_build.py",
        "labextension/yarn.lock",
        "jupyter_gpushare/hub/static/page.js",
        "jupyter_gpushare/hub/static/third-party-licenses.json",
        "jupyter_gpushare/labextension/package.json",
    } <= inner
    for room in ROOMS:
        assert modules(inner, room) == [f"jupyter_gpushare/{room}/__init__.py"]
    built = [
        name
        for name in inner
        if re.search(r"(^|/)node_modules/|\.so(\.|$)|\.o$|\.pyc$|/gpushare-hibernator$", name)
    ]
    assert not built
    assert sdist.stat().st_size < 2 << 20


def test_wheel_holds_everything_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        # Installers give it to the file.
        assert archive.getinfo(PROGRAM).external_attr >> 16 & 0o111 == 0o111
    assert [name for name, count in Counter(names).items() if count > 1] == []
    data = next(name for name in names if ".data/" in name).split("/")[0] + "/data"
    assert {
        *(f"jupyter_gpushare/lib/{library}" for library in LIBRARIES),
        "jupyter_gpushare/_protocol.abi3.so",
        "jupyter_gpushare/py.typed",
        "jupyter_gpushare/deploy/helm/jupyter-gpushare/templates/_helpers.tpl",
        "jupyter_gpushare/deploy/kubernetes/kustomization.yaml",
        "jupyter_gpushare/examples/heat.ipynb",
        "jupyter_gpushare/hub/static/page.html",
        "jupyter_gpushare/hub/static/page.js",
        f"{data}/share/jupyter/labextensions/jupyter-gpushare/package.json",
        f"{data}/share/jupyter/labextensions/jupyter-gpushare/install.json",
        f"{data}/etc/ipython/startup/jupyter-gpushare.py",
        f"{data}/etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
    } <= set(names)
    assert any(re.search(r"/labextensions/jupyter-gpushare/static/.*\.js$", name) for name in names)
    for room in ROOMS:
        assert modules(names, room) == [f"jupyter_gpushare/{room}/__init__.py"]
    assert {name.split("/")[0].split("-")[0] for name in names} == {"jupyter_gpushare"}


def test_wheel_lists_and_licenses_the_packages_that_it_bundles(content: Path) -> None:
    (sbom,) = content.glob("*.dist-info/sboms/*.cdx.json")
    listed = {c["purl"].split("/", 1)[1] for c in json.loads(sbom.read_text())["components"]}
    reports = [json.loads(p.read_text()) for p in content.rglob("third-party-licenses.json")]
    bundled = [package for report in reports for package in report["packages"]]
    assert listed == {f"{quote(p['name'])}@{p['versionInfo']}" for p in bundled}
    assert {"react", "react-dom", "style-loader"} <= {p["name"] for p in bundled}
    assert [p["name"] for p in bundled if not p["extractedText"]] == []


def test_wheel_holds_no_program_that_needs_the_tests(content: Path) -> None:
    package = content / "jupyter_gpushare"
    needing = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) tests\b", path.read_text(), re.M)
    ]
    # `gpushare bench lab` is for a checkout, as its docstring says.
    assert needing == ["benchmarks/published/lab.py"]


def test_wheel_declares_its_entry_points(content: Path) -> None:
    (info,) = content.glob("*.dist-info")
    points = configparser.ConfigParser()
    points.read(info / "entry_points.txt")
    assert points["console_scripts"]["gpushare"] == "jupyter_gpushare.cli.main:main"
    provisioners = points["jupyter_client.kernel_provisioners"]
    assert provisioners["gpushare"] == "jupyter_gpushare.kernel_provisioner:GpuShareProvisioner"


def test_wheel_names_the_labextension_to_remove_it_by(content: Path) -> None:
    (install,) = content.rglob("install.json")
    package = json.loads(install.read_text())["packageName"]
    assert package.replace("_", "-") == "jupyter-gpushare"


def test_wheel_runs_on_manylinux2014(wheel: Path, content: Path) -> None:
    assert wheel.name.endswith(f"-cp310-abi3-manylinux_2_17_{platform.machine()}.whl")
    for library in binaries(content):
        assert newest_glibc(library) <= OLDEST_GLIBC, library


def dynamic(entry: str, library: Path) -> set[str]:
    return set(re.findall(rf"\({entry}\).*\[(.*)\]", readelf("--dynamic", library)))


def test_interposer_needs_libc_alone(content: Path) -> None:
    libc = {"libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1"}
    lib = content / "jupyter_gpushare" / "lib"
    assert dynamic("NEEDED", lib / "libgpushare.so") <= libc
    assert dynamic("NEEDED", lib / "libgpushare-nvml.so") <= libc
    assert dynamic("NEEDED", lib / "libgpushare-alias.so") <= {"libcuda.so.1"}
    assert dynamic("NEEDED", content / PROGRAM) <= libc


def test_libraries_carry_the_names_that_programs_ask_for(content: Path) -> None:
    lib = content / "jupyter_gpushare" / "lib"
    assert dynamic("SONAME", lib / "libgpushare.so") == {"libcuda.so.1"}
    assert dynamic("SONAME", lib / "libgpushare-alias.so") == {"libcuda.so"}
    assert dynamic("SONAME", lib / "libgpushare-nvml.so") == {"libnvidia-ml.so.1"}


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None or platform.machine() != "x86_64",
    reason="no cross compiler (Debian: apt-get install gcc-aarch64-linux-gnu)",
)
def test_a_cross_compiler_makes_an_aarch64_wheel(
    unpacked: Path, content: Path, tmp_path: Path, build: Callable[..., Path]
) -> None:
    wheel = build(unpacked, "--wheel", env={"GPUSHARE_CC": "aarch64-linux-gnu-gcc"})
    assert wheel.name.endswith("-cp310-abi3-manylinux_2_17_aarch64.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    libraries = binaries(tmp_path)
    names = {str(library.relative_to(tmp_path)) for library in libraries}
    assert names == {str(library.relative_to(content)) for library in binaries(content)}
    for library in libraries:
        assert "AArch64" in readelf("--file-header", library), library
        assert newest_glibc(library) <= OLDEST_GLIBC, library


def test_a_missing_compiler_is_named_in_one_line(unpacked: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path)],
        cwd=unpacked,
        env={**os.environ, "GPUSHARE_CC": "no-such-cc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "cannot be built: no C compiler 'no-such-cc'; install one" in said
    assert not list(tmp_path.glob("*.whl"))


# --- In a fresh virtual environment of a machine without Node.js ---


@pytest.fixture(scope="module")
def installed(wheel: Path, fresh: Fresh) -> Fresh:
    fresh.run("python", "-m", "pip", "install", "--no-index", str(wheel))
    return fresh


def test_the_command_runs(installed: Fresh) -> None:
    assert jupyter_gpushare.__version__ in installed.run("gpushare", "--version")


def test_the_hibernator_runs(installed: Fresh) -> None:
    code = """if True:
        import subprocess, jupyter_gpushare
        program = jupyter_gpushare.LIBRARIES / "gpushare-hibernator"
        print(subprocess.run([program], capture_output=True, text=True).stderr)
    """
    assert "usage: gpushare-hibernator --driver PATH" in installed.run("python", "-c", code)


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
