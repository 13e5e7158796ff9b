# SPDX-License-Identifier: BSD-3-Clause
"""Random programs do under the interposer what they do bare; and the tester itself finds what is different."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.differential.fuzzing import Totals, fuzz, report
from tests.differential.programs import GROUPS, generate, shrink
from tests.differential.running import (
    Difference,
    Places,
    Run,
    build_player,
    compare,
    documented,
    place,
)

SECONDS = 25.0


@pytest.fixture(scope="session")
def player(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the player."""
    return build_player(tmp_path_factory.mktemp("player"))


@pytest.fixture
def here(player: Path) -> Iterator[Places]:
    """Return a place where programs run."""
    with place(player, seed="test") as made:
        yield made


def test_every_call_returns_what_the_bare_driver_returns(here: Places) -> None:
    totals = Totals()
    findings = fuzz(
        here,
        totals,
        seed="test",
        seconds=SECONDS,
        shrinking=0.0,
    )
    with contextlib.closing(findings):
        finding = next(findings, None)
    assert finding is None, report(finding)
    # Otherwise it would have shown nothing.
    assert totals.calls > 100
    assert totals.disturbances > 10


def test_the_player_sees_bytes_and_results(here: Places) -> None:
    bare, interposed = here.run(
        0,
        [
            "0 alloc 0 5000",
            "0 writenow 0 0 5000 7 1",
            "0 read 0 0 5000",
            "0 mkstream 2 1 0",
            "0 set 0 2 0 10 100 3",
            "0 read 0 0 5000",
            "0 wrong 1",
        ],
    )
    assert compare(bare, interposed, ()) is None
    reads = [line for line in bare.traces[0].splitlines() if " read " in line]
    assert len(reads) == 2
    assert reads[0].split("bytes=")[1] != reads[1].split("bytes=")[1]
    assert "7 wrong cuMemAlloc=1" in bare.traces[0]


@pytest.mark.parametrize(
    "wait",
    [
        pytest.param("", id="no wait"),
        # The thread captures, so it may not wait for the stream.
        pytest.param("cuStreamSynchronize=900 ", id="refused wait"),
    ],
)
def test_host_functions_count_for_the_stream_that_they_are_in(here: Places, wait: str) -> None:
    # The first host function runs when there is another stream in the slot.
    program = [
        "! GPUSHARE_SIM_STRICT=1",
        "0 alloc 0 64",
        "0 writenow 0 0 64 1 1",
        "0 alloc 1 64",
        "0 writenow 1 0 64 1 1",
        "0 mkstream 2 1 0",
        "0 mkstream 3 1 0",
        "0 slow 4900000",
        *["0 mix 0 1 2 64 1"] * 60,
        "0 host 2 3",
        "0 begin 3 1 0",
        f"0 rmstream 2 {1 if wait else 0}",
        "0 mkstream 2 1 0",
        "0 host 2 3",
    ]
    number = len(program)
    chain = number * 0x9E3779B97F4A7C15 % 2**64
    for run in here.run(0, program):
        lines = run.traces[0].splitlines()
        assert f"{number - 2} rmstream {wait}cuEventDestroy=0 cuStreamDestroy=0" in lines
        assert f"{number} stream2 chain={chain:016x}" in lines


@pytest.mark.parametrize(("work", "executables"), [("host 2 3", 1), ("set 0 2 0 0 64 1", 2)])
def test_host_functions_of_a_graph_run_once_at_a_time(
    here: Places, work: str, executables: int
) -> None:
    # Two executables of one graph run at once, and the order of their host functions is up to time.
    program = [
        "0 alloc 0 64",
        "0 writenow 0 0 64 1 1",
        "0 mkstream 2 1 0",
        "0 mkstream 3 1 0",
        "0 begin 2 1 0",
        f"0 {work}",
        "0 endcapture 1",
        "0 instantiate 0",
        "0 launch 0 2",
        "0 rmgraph 0 0",
        "0 instantiate 0",
        "0 launch 0 3",
    ]
    for run in here.run(0, program):
        assert run.traces[0].count("cuGraphLaunch=0") == executables


def test_a_hang_is_a_difference_with_stacks(here: Places) -> None:
    # The host function waits for a lock that the thread holds.
    program = ["0 mkstream 2 1 0", "0 lock 0", "0 host 2 0", "0 forever"]
    bare, interposed = here.run(0, program, 3.0)
    assert bare.status is None
    assert interposed.status is None
    text = compare(bare, interposed, ())
    assert text is not None
    assert text.startswith("hung")
    assert "sim-stream" in text
    # The threads of the program say where they are.
    for player in here.players[0]:
        assert "pause+" in player.said()


def test_allowed_differences_are_not_reported() -> None:
    bare = Run(0, 1, ("1 info cuMemGetInfo=0 free=10 total=20\n",))
    other = Run(0, 1, ("1 info cuMemGetInfo=0 free=12 total=20\n",))
    wrong = Run(0, 1, ("1 info cuMemGetInfo=2 free=12 total=20\n",))
    assert compare(bare, other, documented()) is None
    assert compare(bare, other, ()) is not None
    assert compare(bare, wrong, documented()) is not None
    row = Difference("info", "free", "1*", "12", "a reason")
    assert compare(bare, other, (row,)) is None


def test_a_seed_is_a_program_and_all_groups_come_up() -> None:
    assert generate("a") == generate("a") != generate("b")
    names = {line.split()[1] for number in range(300) for line in generate(str(number))}
    missing = {op.name for group in GROUPS.values() for op in group} - names
    assert not missing


def test_a_program_is_shrunk_as_far_as_possible() -> None:
    program = [f"0 alloc {number} 900" for number in range(60)]

    def fails(lines: list[str]) -> bool:
        return any(line.startswith("0 alloc 7 ") for line in lines)

    assert shrink(program, fails, 30.0) == ["0 alloc 7 0"]


FOUND = sorted((Path(__file__).with_name("found")).glob("*.txt"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_found_differences_stay_fixed(here: Places, path: Path) -> None:
    program = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    for _ in range(3):
        text = compare(*here.run(0, program), documented())
        assert text is None, text
