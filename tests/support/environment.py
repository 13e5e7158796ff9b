# SPDX-License-Identifier: BSD-3-Clause
"""The environment of programs that tests start."""

from __future__ import annotations

import os
import shutil

#: Chromium under its names. The first one has no windows, which saves a third of the processor time.
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

#: Of our settings, what all programs keep: the compiler of their CUDA kernels.
COMPILER = "GPUSHARE_SIM_CXX"


def inherited(*prefixes: str) -> dict[str, str]:
    """Return the environment without our settings, and without variables that begin otherwise."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == COMPILER or not name.startswith(("GPUSHARE_", *prefixes))
    }


def find_chromium() -> str | None:
    """Return the path of the system's Chromium."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)
