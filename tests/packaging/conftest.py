# SPDX-License-Identifier: BSD-3-Clause
"""Builds the sdist and the wheel of this checkout, and creates environments to install them into."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest


class Build(Protocol):
    """Runs ``python -m build`` with what is installed here; returns the one file that it made."""

    def __call__(self, source: Path, kind: str, env: Mapping[str, str] | None = None) -> Path:
        """Build the sdist (kind ``--sdist``) or the wheel (``--wheel``) of a source folder."""


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the function that builds."""

    def run(source: Path, kind: str, env: Mapping[str, str] | None = None) -> Path:
        out = tmp_path_factory.mktemp("dist")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "build",
                "--no-isolation",
                kind,
                "--outdir",
                str(out),
                str(source),
            ],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (made,) = out.iterdir()
        return made

    return run


@pytest.fixture(scope="session")
def sdist(root: Path, build: Build) -> Path:
    """Return the sdist."""
    for built in ("labextension/package.json", "hub/static/page.js"):
        if not (root / "jupyter_gpushare" / built).is_file():
            pytest.fail(f"{built} is not built: run `make labextension`")
    return build(root, "--sdist")


@pytest.fixture(scope="session")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the sdist holds."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(folder)], check=True)
    (inner,) = folder.iterdir()
    return inner


@dataclass(frozen=True)
class Fresh:
    """A virtual environment of its own.

    Attributes
    ----------
    prefix
        Its folder.
    env
        The environment of its commands.
    """

    prefix: Path
    env: dict[str, str]

    def run(self, *command: str) -> str:
        """Run a command of it and return what it said."""
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


def _environment(factory: pytest.TempPathFactory, missing: Iterable[str]) -> Fresh:
    prefix = factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    # Its dependencies and its pip are those of this environment, so that the registry is not asked. A folder named in a
    # .pth file is searched, but its own .pth files (this checkout's editable install) are not read.
    major, minor = sys.version_info[:2]
    site = prefix / "lib" / f"python{major}.{minor}" / "site-packages"
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    traps = factory.mktemp("traps")
    for name in missing:
        trap = traps / name
        trap.write_text(f"#!/bin/sh\necho there is no {name} here >&2\nexit 127\n")
        trap.chmod(0o755)
    home = factory.mktemp("home")
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("JUPYTER", "GPUSHARE", "PYTHON", "VIRTUAL_ENV"))
    }
    env |= {"PATH": f"{traps}:{os.defpath}", "HOME": str(home)}
    env |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return Fresh(prefix, env)


NODE = ("node", "npm", "yarn", "jlpm")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++", "ld", "as", "make", "gmake")


@pytest.fixture(scope="session")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Return an environment on a machine without Node.js."""
    return _environment(tmp_path_factory, NODE)


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Return an environment on a machine without Node.js and compilers."""
    return _environment(tmp_path_factory, (*NODE, *COMPILERS))


@pytest.fixture(scope="session")
def wheel(sdist: Path, fresh: Fresh, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel for this machine, as pip builds it from the sdist before it installs it."""
    out = tmp_path_factory.mktemp("wheel")
    options = ("--no-build-isolation", "--no-index", "--no-deps", "--wheel-dir", str(out))
    fresh.run("python", "-m", "pip", "wheel", *options, str(sdist))
    (made,) = out.iterdir()
    return made
