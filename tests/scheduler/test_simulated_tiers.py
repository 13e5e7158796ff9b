# SPDX-License-Identifier: BSD-3-Clause
"""The simulator with memory that does not change, is empty or equal, and with a disk."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jupyter_gpushare.cli.main import main
from jupyter_gpushare.scheduler.simulation.calibration import H200
from jupyter_gpushare.scheduler.simulation.host_store import HostStore
from jupyter_gpushare.scheduler.simulation.node import Node
from jupyter_gpushare.scheduler.simulation.outcome import Outcome
from jupyter_gpushare.scheduler.simulation.tiers import PLAIN, Tiers
from jupyter_gpushare.scheduler.simulation.trace import Header, Kernel, Step, Trace, parse, write
from tests.support.properties import examples

GIB = 1 << 30
#: The contexts of three notebooks, and one footprint of 6 GiB.
GPU = 9 * GIB


def notebook(name: str, at: float, user: str = "ada", rounds: int = 6, **content: Any) -> Kernel:
    """Return a notebook of 6 GiB that computes now and then."""
    cell: tuple[Step, ...] = (("cell",), ("gpu", 0.5, 1.0), ("end",), ("think", 9.0))
    steps: tuple[Step, ...] = (
        *(("cell",), ("allocate", 6 * GIB), ("gpu", 0.5, 1.0), ("end",), ("think", 9.0)),
        ("repeat", rounds, cell),
    )
    return Kernel(name, user, "interactive", at, steps, **content)


def turns(user: str = "", **content: Any) -> list[Kernel]:
    """Return three notebooks of which one fits at a time."""
    return [notebook(name, 3.0 * n, user or name, **content) for n, name in enumerate("abc")]


def simulated(
    tiers: Tiers = PLAIN, host: int = 64 * GIB, kernels: list[Kernel] | None = None
) -> Outcome:
    node = Node(H200, GPU, 1, 300.0, "burst", host, 0.5, tiers=tiers)
    return node.run([(kernel, 0) for kernel in kernels or turns()])


def test_memory_that_does_not_change_is_copied_once() -> None:
    usual, found = simulated(), simulated(Tiers(changed=0.0))
    assert usual.uncopied == 0
    assert usual.moved_out > 10 * 6 * GIB
    assert found.moved_out <= 3 * 6 * GIB
    assert found.uncopied > 10 * 6 * GIB
    # Only the way in is left, which then has the link to itself.
    assert found.moving < 0.9 * usual.moving
    assert found.delivered == pytest.approx(usual.delivered)


def test_a_part_that_changes_is_copied_each_time() -> None:
    found = simulated(Tiers(changed=0.25))
    rest = found.moved_out - 3 * 6 * GIB
    assert rest == pytest.approx(0.25 * (rest + found.uncopied), rel=0.1)


def test_zeros_are_neither_copied_nor_stored() -> None:
    found = simulated(Tiers(zeros=1.0))
    assert (found.moved_out, found.moved_in, found.host_peak) == (0, 0, 0)
    assert found.uncopied > 0


def test_equal_memory_of_one_user_is_stored_once() -> None:
    usual = simulated(kernels=turns("ada"))
    assert usual.host_peak >= 11 * GIB
    found = simulated(Tiers(equal=1.0), kernels=turns("ada"))
    assert found.host_peak <= 6 * GIB
    apart = simulated(Tiers(equal=1.0), kernels=turns())
    assert apart.host_peak >= 11 * GIB, "nothing is shared between users"


def test_copies_are_kept_only_where_evicted_data_leaves_room() -> None:
    tight = simulated(Tiers(changed=0.0), host=16 * GIB)
    wide = simulated(Tiers(changed=0.0), host=64 * GIB)
    assert tight.failed == wide.failed == 0
    assert tight.uncopied < wide.uncopied
    assert tight.host_peak <= 16 * GIB


def test_a_disk_makes_room_for_notebooks_that_would_be_refused() -> None:
    assert simulated(host=8 * GIB).failed > 0
    found = simulated(Tiers(disk=32 * GIB), host=8 * GIB)
    assert found.failed == 0
    assert found.host_peak <= 8 * GIB
    assert 0 < found.disk_peak <= 32 * GIB
    assert found.disk_read <= found.disk_written


def test_a_slower_disk_takes_longer() -> None:
    fast, slow = (
        simulated(Tiers(disk=32 * GIB, disk_speed=speed), host=8 * GIB) for speed in (6e9, 1e9)
    )
    assert slow.disk_waiting > fast.disk_waiting
    assert slow.end > fast.end


def test_a_kernel_of_the_trace_may_have_its_own_content() -> None:
    kernels = [notebook("a", 0.0, zeros=1.0), notebook("b", 3.0), notebook("c", 6.0)]
    found = simulated(kernels=kernels)
    assert found.uncopied > 0
    file = io.StringIO()
    write(Trace(Header("own"), tuple(kernels)), file)
    assert "zeros" in file.getvalue()
    assert parse(file.getvalue().splitlines()).kernels == tuple(kernels)


class CheckedStore(HostStore):
    """A store that checks after each step that its sums are those of its parts."""

    def settle(self, client: Any) -> None:
        super().settle(client)
        used: dict[str, list[tuple[int, int]]] = {}
        kept = disk = 0
        for other in self._clients.values():
            content = other.content
            stored = content.filled(other.host) - content.disk
            assert 0 <= content.kept <= other.resident
            assert content.disk >= 0
            assert stored >= 0
            kept, disk = kept + content.kept, disk + content.disk
            used.setdefault(other.spec.user, []).append((stored, int(stored * content.equal)))
        taken = sum(
            sum(stored - equal for stored, equal in parts) + max(equal for _, equal in parts)
            for parts in used.values()
        )
        assert (self._used, self._kept, self._disk) == (taken, kept, disk)
        assert disk <= self._tiers.disk
        assert self._coming >= 0
        if kept:
            assert taken + self._coming + kept <= self._size, "copies are kept without room"
        # The core has the same figures, and refuses what cannot be.
        host, clean, shared, on_disk = client.stated
        assert 0 <= shared <= host
        assert 0 <= clean <= client.resident
        assert on_disk == client.content.disk


@settings(max_examples=examples(25), deadline=None)
@given(
    changed=st.sampled_from([0.0, 0.3, 1.0]),
    zeros=st.sampled_from([0.0, 0.2, 1.0]),
    equal=st.sampled_from([0.0, 0.5, 1.0]),
    disk=st.sampled_from([0, 32 * GIB]),
    host=st.sampled_from([8 * GIB, 14 * GIB, 64 * GIB]),
    user=st.sampled_from(["", "ada"]),
)
def test_all_data_is_accounted_for(
    changed: float, zeros: float, equal: float, disk: int, host: int, user: str
) -> None:
    tiers = Tiers(changed, zeros, equal, disk)
    node = Node(H200, GPU, 1, 300.0, "burst", host, 0.5, tiers=tiers)
    node._store = CheckedStore(tiers, H200, host, node.outcome)
    found = node.run([(kernel, 0) for kernel in turns(user)])
    assert found.host_peak <= host
    if disk:
        assert found.failed == 0
    if not found.failed:
        # All that was copied in was evicted before.
        assert found.moved_in <= found.moved_out + found.uncopied
    # Nothing stays behind.
    assert (node._store._used, node._store._kept, node._store._disk) == (0, 0, 0)


def test_the_command_takes_sizes_and_fractions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    with path.open("w") as file:
        write(Trace(Header("three", gpu_memory=GPU), tuple(turns("ada"))), file)
    command = ["simulate", "--trace", str(path), "--policy", "burst"]
    options = ["--host-memory", "8G", "--disk", "32G", "--disk-speed", "2G"]
    content = ["--changed", "0.2", "--zeros", "0.1", "--equal", "0.5"]
    assert main([*command, *options, *content, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]["burst"]
    assert found["uncopied"] > 0
    assert 0 < found["host_peak"] <= 8 * GIB
    assert main([*command, *options]) == 0
    shown = capsys.readouterr().out
    for row in ("host memory, most on a node", "disk, most on a node", "waited for the disk"):
        assert row in shown
    assert "evicted without a copy" not in shown
    for bad in (["--changed", "1.5"], ["--zeros", "x"], ["--disk-speed", "0"]):
        with pytest.raises(SystemExit):
            main([*command, *bad])
        assert "invalid" in capsys.readouterr().err
