# SPDX-License-Identifier: BSD-3-Clause
"""Random programs under the sanitizers, and under the check of the locks' order, which is in these builds, too."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from jupyter_gpushare import LIBRARIES
from tests.differential.fuzzing import Totals, fuzz
from tests.differential.programs import Recipe
from tests.differential.running import Player, build_player, place
from tests.support.builds import build
from tests.support.sanitizers import BELOW_ZERO, OUT_OF_ORDER, SANITIZERS, sanitized

__all__ = ["sanitized"]

#: A kernel that fails raises SIGSEGV, which the simulated driver handles.
MORE = {"ASAN_OPTIONS": "handle_segv=0:handle_sigbus=0", "TSAN_OPTIONS": "handle_segv=0"}


def all_said(player: Player) -> str:
    """Return all that a player and its programs wrote on standard error."""
    size = os.fstat(player.errors.fileno()).st_size
    return os.pread(player.errors.fileno(), size, 0).decode(errors="replace")


@pytest.fixture(scope="module")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_player(tmp_path_factory.mktemp("player"))


def nothing_is_said(
    player: Path,
    libraries: Path,
    seed: str,
    words: Sequence[str],
    seconds: float,
    *only: str,
    environ: Mapping[str, str] | None = None,
    preload: Sequence[str] = (),
) -> None:
    """Run random programs for so long. What the two runs of a program return is for other tests to compare."""
    # The places where locks are taken are in no other build.
    library = (libraries / "libgpushare.so").read_bytes()
    assert OUT_OF_ORDER.encode() in library
    assert BELOW_ZERO.encode() in library
    assert re.search(rb"interposer/client/lease\.c:\d+\0", library)
    totals = Totals()
    with place(
        player, libraries=libraries, seed=seed, environ=environ, preload_first=preload
    ) as here:
        findings = fuzz(
            here,
            totals,
            seed=seed,
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


def nothing_is_found(
    player: Path, build: Callable[[str], tuple[Path, str]], name: str, seconds: float, *only: str
) -> None:
    """Run random programs under a sanitizer."""
    words, _, settings, _ = SANITIZERS[name]
    libraries, runtime = build(name)
    environ = dict(settings)
    for variable in MORE.keys() & environ.keys():
        environ[variable] += f":{MORE[variable]}"
    nothing_is_said(
        player, libraries, name, words, seconds, *only, environ=environ, preload=[runtime]
    )


@pytest.fixture(scope="session")
def checked(root: Path) -> Path:
    """Build the interposer with the check of the locks' order and without a sanitizer; return its folder."""
    libraries = build(root, "ranks", "interposer", "LOCK_RANKS=1", "CFLAGS=-O0 -g1")
    sim = libraries / "sim"
    sim.unlink(missing_ok=True)
    sim.symlink_to(LIBRARIES / "sim")
    return libraries


def test_locks_are_taken_in_order_in_programs_of_all_kinds(player: Path, checked: Path) -> None:
    nothing_is_said(player, checked, "ranks", [OUT_OF_ORDER, BELOW_ZERO], 5.0)


@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_in_a_few_programs(
    player: Path, sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    nothing_is_found(player, sanitized, name, 4.0, "copies", "kernels", "streams", "async")


@pytest.mark.slow
@pytest.mark.parametrize("name", SANITIZERS)
def test_nothing_is_found_in_programs_of_all_kinds(
    player: Path, sanitized: Callable[[str], tuple[Path, str]], name: str
) -> None:
    nothing_is_found(player, sanitized, name, 60.0)
