# SPDX-License-Identifier: BSD-3-Clause
"""The tester finds defects that were put into the interposer (``seeds.py``), and nothing where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare import LIBRARIES
from tests.differential.fuzzing import report
from tests.differential.running import build_player
from tests.differential.seeds import DEFECTS, LIMIT, build, ground, hunt
from tests.support.workshop import Workshop, patched

#: Seconds in which the same programs find nothing on the sources as they are.
CALM = 10.0


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the player."""
    return build_player(tmp_path_factory.mktemp("player"))


@pytest.mark.parametrize("number", DEFECTS)
def test_a_defect_fits_the_sources(root: Path, number: str) -> None:
    """The search for it is slow, and runs rarely: a change of the sources must not go unnoticed until then."""
    defect = DEFECTS[number]
    assert len(patched(root / "csrc", defect.patches)) == len({p[0] for p in defect.patches})


@pytest.mark.slow
# Building the libraries takes some time, too.
@pytest.mark.timeout(LIMIT + 300)
@pytest.mark.parametrize("number", DEFECTS)
def test_a_seeded_defect_is_found(workshop: Workshop, player: Path, number: str) -> None:
    defect = DEFECTS[number]
    with ground(defect, player, build(workshop, defect), defect.scheduler) as here:
        assert hunt(here, defect, "seeded", LIMIT).finding is not None


@pytest.mark.slow
@pytest.mark.parametrize("number", DEFECTS)
def test_nothing_is_found_without_a_defect(player: Path, number: str) -> None:
    defect = DEFECTS[number]
    with ground(defect, player, LIBRARIES) as here:
        found = hunt(here, defect, "calm", CALM)
    assert found.finding is None, report(found.finding)
    # Otherwise it would have shown nothing.
    assert found.calls > 100
