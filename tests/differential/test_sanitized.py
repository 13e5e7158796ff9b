# SPDX-License-Identifier: BSD-3-Clause
"""Random programs under the sanitizers: what the interposer and the simulated driver do there is sound."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.differential.fuzzing import Totals, fuzz
from tests.differential.programs import Recipe
from tests.differential.running import Player, build_player, place
from tests.interposer.test_sanitizers import SANITIZERS, sanitized

__all__ = ["sanitized"]

#: A kernel that fails raises SIGSEGV, which the simulated driver handles.
MORE = {"ASAN_OPTIONS": "handle_segv=0:handle_sigbus=0", "TSAN_OPTIONS": "handle_segv=0"}


def all_said(player: Player) -> str:
    """Return all that a player and its programs wrote on standard error."""
    size = os.fstat(player.errors.fileno()).st_size
    return os.pread(player.errors.fileno(), size, 0).decode(errors="replace")


def nothing_is_found(
    folder: Path, build: Callable[[str], tuple[Path, str]], name: str, seconds: float, *only: str
) -> None:
    """Run random programs for so long. What the two runs of a program return is for other tests to compare."""
    words, _, settings, _ = SANITIZERS[name]
    libraries, runtime = build(name)
    environ = dict(settings)
    for variable in MORE.keys() & environ.keys():
        environ[variable] += f":{MORE[variable]}"
    totals = Totals()
    player = build_player(folder)
    with place(
        player, libraries=libraries, seed=name, environ=environ, preload_first=[runtime]
    ) as here:
        findings = fuzz(
            here,
            totals,
            seed=name,
            recipe=Recipe(only=only),
            seconds=seconds,
            shrinking=0.0,
            patience=120.0,
        )
        with contextlib.closing(findings):
            for finding in findings:
                del finding
        said = "".join(all_said(one) for pair in here.players for one in pair)
    assert not any(word in said for word in words), said
    assert totals.calls > 100


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_in_a_few_programs(
    tmp_path: Path, sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    nothing_is_found(tmp_path, sanitized, name, 4.0, "copies", "kernels", "streams", "async")


@pytest.mark.slow
@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_in_programs_of_all_kinds(
    tmp_path: Path, sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    nothing_is_found(tmp_path, sanitized, name, 60.0)
