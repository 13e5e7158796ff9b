# SPDX-License-Identifier: BSD-3-Clause
"""Builds of our libraries with sanitizers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.builds import build

#: What every such build says where locks are taken in another order than that of their ranks.
OUT_OF_ORDER = "locks out of order"

#: What they say where more is subtracted from a figure of a device than it is.
BELOW_ZERO = "a device's memory is below zero"

#: What each build says when it has found something, the runtime that has to come first, its settings, and how far it is
#: optimised, so that building and running together take least.
SANITIZERS = {
    # Python leaves much behind at its end; NVIDIA's own conventions leak by design.
    "address,undefined": (
        ("ERROR: AddressSanitizer", "runtime error:", OUT_OF_ORDER, BELOW_ZERO),
        "libasan.so",
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        "-O0",
    ),
    "thread": (
        ("WARNING: ThreadSanitizer", OUT_OF_ORDER, BELOW_ZERO),
        "libtsan.so",
        {"TSAN_OPTIONS": "report_signal_unsafe=0"},
        "-O1",
    ),
}


@pytest.fixture(scope="session")
def sanitized(root: Path) -> Callable[[str], tuple[Path, str]]:
    """Return a function that builds our libraries with a sanitizer: their folder and its runtime."""

    @cache
    def make(name: str) -> tuple[Path, str]:
        flags = f"CFLAGS={SANITIZERS[name][3]} -g1"
        folder = name.replace(",", "-")
        libraries = build(root, folder, "interposer", "sim", f"SANITIZE={name}", flags)
        runtime = subprocess.run(
            ["cc", f"-print-file-name={SANITIZERS[name][1]}"],
            check=True,
            capture_output=True,
            text=True,
        )
        return libraries, runtime.stdout.strip()

    return make
