# SPDX-License-Identifier: BSD-3-Clause
"""Whole products together, as people install and upgrade them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.releases import NoHistory, Release, earlier, present, renumbered
from tests.support.hub.node import private_folder
from tests.support.machine import make_machine

#: The number of a protocol that does not exist.
FOREIGN = 77

__all__ = ["make_machine"]

#: The oldest version whose kernels and schedulers have to work with the present one: protocol 7, control requests 7.
BASELINE = "3eaaf1a9249d3a338760a985aa47153e05a27648"


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Make no loop: there is no server in this process."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Clean nothing up."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    with private_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def new(root: Path) -> Release:
    """Return the version in the working tree."""
    return present(root)


@pytest.fixture(scope="session")
def old(root: Path) -> Release:
    """Return the oldest version that has to work with the present one."""
    try:
        return earlier(root, BASELINE)
    except NoHistory as error:
        pytest.skip(f"no earlier version to test with: {error}")


@pytest.fixture(scope="session")
def foreign(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return a version whose scheduler shares no protocol with the present one."""
    return renumbered(root, tmp_path_factory.mktemp("foreign"), FOREIGN, build=False)


@pytest.fixture(scope="session")
def foreign_library(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return a version whose scheduler and library share no protocol with the present ones."""
    return renumbered(root, tmp_path_factory.mktemp("foreign"), FOREIGN, build=True)
