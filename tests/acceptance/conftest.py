# SPDX-License-Identifier: BSD-3-Clause
"""Whole products together, as people install and upgrade them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.releases import NoHistory, Release, earlier, present, renumbered
from tests.interposer.conftest import make_machine

#: The number of a protocol that does not exist.
FOREIGN = 77

__all__ = ["make_machine"]

#: The oldest version whose kernels and schedulers have to work with the present one: protocol 6.
BASELINE = "02ba8c4bd7bc782bbc5e7652407c613eae895e1a"


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
