# SPDX-License-Identifier: BSD-3-Clause
"""An sdist of this checkout and the wheel that is built from it, as a release makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
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
    if not (root / "jupyter_gpushare" / "labextension" / "package.json").is_file():
        pytest.fail("the JupyterLab extension is not built: run `make labextension`")
    return build(root, "--sdist")


@pytest.fixture(scope="session")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the sdist holds."""
    folder = tmp_path_factory.mktemp("unpacked")
    subprocess.run(["tar", "-xzf", str(sdist), "-C", str(folder)], check=True)
    (inner,) = folder.iterdir()
    return inner


@pytest.fixture(scope="session")
def wheel(unpacked: Path, build: Build) -> Path:
    """Return the wheel for this machine, built from the sdist."""
    return build(unpacked, "--wheel")
