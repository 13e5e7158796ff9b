# SPDX-License-Identifier: BSD-3-Clause
"""The environment of programs that tests start."""

from __future__ import annotations

import os

#: Of our settings, what all programs keep: the compiler of their CUDA kernels.
COMPILER = "GPUSHARE_SIM_CXX"


def inherited(*prefixes: str) -> dict[str, str]:
    """Return the environment without our settings, and without variables that begin otherwise."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == COMPILER or not name.startswith(("GPUSHARE_", *prefixes))
    }
