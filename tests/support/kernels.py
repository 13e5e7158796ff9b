# SPDX-License-Identifier: BSD-3-Clause
"""Lets the Jupyter kernels that a test itself starts be forks of a process that has imported ipykernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jupyter_client.launcher
import pytest

from tests.support import fork_server

#: What a kernel imports.
MODULES = (
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.extensions.storemagic",
    "argcomplete",
    "debugpy.server.api",
    "psutil",
    "sqlite3",
    "tornado.platform.asyncio",
    "tornado.queues",
)


def start(command: Sequence[str], **options: Any) -> Any:
    """Start a kernel, as ``subprocess.Popen`` does."""
    if command[:3] != [sys.executable, "-m", "ipykernel_launcher"]:
        return subprocess.Popen(command, **options)
    return fork_server.popen(command[1:], environ=options.pop("env"), modules=MODULES, **options)


@pytest.fixture(autouse=True)
def forked_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the kernels."""
    monkeypatch.setattr(jupyter_client.launcher, "Popen", start)


@pytest.fixture
def real_kernels(monkeypatch: pytest.MonkeyPatch, forked_kernels: None) -> None:
    """Start the kernels of this test, because it looks at their start, or at what Linux shows of them.

    For a fork, that is the fork server's command line and the environment that the fork server was started with.
    """
    monkeypatch.setattr(jupyter_client.launcher, "Popen", subprocess.Popen)
