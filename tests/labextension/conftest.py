# SPDX-License-Identifier: BSD-3-Clause
"""Playwright runs an event loop under the tests; pytest-jupyter must not want one of its own here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Make no loop: there is no server in this process."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Clean nothing up."""
