# SPDX-License-Identifier: BSD-3-Clause
"""What all tests share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest_plugins = ("pytest_jupyter.jupyter_server",)

#: The repository's top folder.
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's top folder."""
    return ROOT


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the system's Chromium."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium here (Debian: apt-get install chromium)")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an NVIDIA GPU where there is none."""
    if item.get_closest_marker("gpu") and not os.path.exists("/dev/nvidiactl"):
        pytest.skip("no NVIDIA GPU here")
