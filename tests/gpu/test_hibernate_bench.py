# SPDX-License-Identifier: BSD-3-Clause
"""The benchmark of hibernation, small, on the simulated driver: that it measures what it says, ends, and ends all."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.benchmarks.experiments import ranges
from jupyter_gpushare.benchmarks.harness import hibernation
from jupyter_gpushare.benchmarks.harness.figures import Figure
from jupyter_gpushare.benchmarks.harness.machine import Machine
from jupyter_gpushare.benchmarks.programs.sleeper import Kernel
from jupyter_gpushare.benchmarks.published import hibernate
from jupyter_gpushare.cli.main import main
from jupyter_gpushare.scheduler.gpu import checked_drivers

GIB, MIB = 1 << 30, 1 << 20
Figures = dict[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Use the simulated driver; return what is in the environment of all that is started."""
    found = f"GPUSHARE_TEST_MARK={uuid.uuid4().hex}"
    monkeypatch.setenv(*found.split("="))
    monkeypatch.setenv("GPUSHARE_SIM", "1")
    return found


@pytest.fixture(autouse=True)
def _no_process_is_left(mark: str) -> Iterator[None]:
    yield
    deadline = time.monotonic() + 30
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def processes(mark: str) -> list[str]:
    """Return the command lines of the processes that were started with the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (
                folder.name != str(os.getpid())
                and mark.encode() in (folder / "environ").read_bytes()
            ):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [line for line in found if line]


def bench(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Figures:
    """Run parts of it; return the figures by what was measured."""
    found = main(["bench", "hibernate", "--json", "--time-limit", "120", *arguments])
    said = capsys.readouterr()
    assert found == status, said.err
    assert "missed" not in said.err
    return {figure["metric"]: figure for figure in map(json.loads, said.out.splitlines())}


def test_a_hibernated_kernel_uses_only_the_residue(capsys: pytest.CaptureFixture[str]) -> None:
    whole, own = bench(capsys, "--part", "memory").values()
    for figure in (whole, own):
        # Beside the context of an idle kernel.
        assert figure["bare"] * MIB >= hibernation.CONTEXT // hibernation.SCALE
        assert figure["value"] * MIB <= hibernation.REST // hibernation.SCALE


def test_times_are_shown_beside_the_drivers_own_and_the_possible(
    capsys: pytest.CaptureFixture[str],
) -> None:
    figures = bench(capsys, "--part", "out", "wake", "--gib", "0.5")
    for way, metric, step in (
        ("out", "hibernate order to done", "checkpoint"),
        ("wake", "cell run to its first kernel's end, hibernated", "restore"),
    ):
        what = f"{way}, {0.5 / hibernation.SCALE:.3g} GiB: "
        ours, alone = figures[what + metric], figures[f"{what}the driver's {step} alone"]
        assert ours["n"] == hibernate.ROUNDS
        assert ours["value"] > 0
        assert ours["bare"] == alone["value"] > 0
        assert sum(metric.startswith(what) for metric in figures) == 5


@pytest.mark.slow
def test_more_kernels_live_than_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernate, "SIMULATED_CAP", 2.5 * GIB)
    monkeypatch.setattr(hibernate, "SIMULATED_KERNELS", 6)
    monkeypatch.setattr(hibernate, "PATIENCE", 1.0)
    figures = bench(capsys, "--part", "crowd", "--seconds", "3")
    (live,) = (figure for metric, figure in figures.items() if "live under" in metric)
    assert 1 <= live["bare"] < live["value"] == 6
    assert figures["crowd: with every byte right"]["value"] == 6
    assert figures["crowd: each wake"]["n"] >= 1
    assert figures["crowd: times that wake failed"]["value"] == 0
    assert figures["crowd: cell run to its first kernel's end, p95"]["n"] >= 1
    assert figures["crowd: host memory of a process, next to its resident set"]["value"] > 0


def test_every_byte_is_compared_after_each_cycle(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hibernate, "INTERRUPTED", 0.5)
    figures = bench(capsys, "--part", "cycles", "--cycles", "10", "--seed", "3")
    # By several kernels at once.
    assert figures["cycles with every byte equal"]["value"] == 10
    assert figures["each: hibernate order to done"]["n"] >= 5


def test_a_kernel_is_woken_on_another_gpu_and_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hibernate, "CHANGES", 2)
    wake, times = bench(capsys, "--part", "elsewhere").values()
    assert times["value"] == 2
    assert wake["n"] == 2
    assert wake["bare"] > 0
    # This driver can hibernate a process, but not wake it on another GPU.
    (tmp_path / "checked").write_text("570.86.15\n")
    monkeypatch.setenv(checked_drivers.VARIABLE, str(tmp_path / "checked"))
    monkeypatch.setenv("GPUSHARE_SIM_DRIVER_VERSION", "570.86.15")
    assert main(["bench", "hibernate", "--part", "elsewhere"]) == 1
    assert "nothing can be woken on another GPU here" in capsys.readouterr().err


def test_a_checkpoint_is_timed_with_pages_locked_and_without(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_SIM_FAIL", "cuCheckpointProcessRestore/50ms")
    figures = bench(capsys, "--part", "pages", "--gib", "1")
    restores = [figure for metric, figure in figures.items() if metric.endswith("restore")]
    assert len(restores) == 3
    assert all(figure["value"] >= 0.05 and figure["bare"] >= 0.05 for figure in restores)
    assert len([metric for metric in figures if metric.endswith("page-lock")]) == 2
    monkeypatch.setenv("GPUSHARE_SIM_FAIL", "cuMemHostRegister:1=OUT_OF_MEMORY")
    assert main(["bench", "hibernate", "--part", "pages", "--gib", "1"]) == 1


def test_ranges_that_the_driver_loses_are_distinguished(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "SMALL_SIZES", (2 * MIB,))
    monkeypatch.setattr(ranges, "PROCESSES", {ranges.PINNED: ranges.PROCESSES[ranges.PINNED]})
    monkeypatch.setenv("GPUSHARE_SIM_FAIL", "cuCheckpointProcessRestore/forget")
    figures = bench(capsys, "--part", "mapping")
    assert all(figure["bare"] == 0 for figure in figures.values())
    failed = {metric for metric, figure in figures.items() if figure["value"]}
    forgotten = (*ranges.EMPTY[:3], "one each, every other one mapped")
    assert failed == {metric for metric in figures if any(each in metric for each in forgotten)}
    # Reserved again, they are as good as new.
    assert all(metric.endswith(f"cuMemMap CUDA_ERROR_INVALID_VALUE ({n})")
               for metric in failed for n in [2 if "every other" in metric else 4])  # fmt: skip


def test_a_missed_goal_is_reported_but_does_not_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = Figure(
        "hibernate", "kernels in a thimble", 3.0, "kernels", None, 1, 0.0, 4.0, at_least=True
    )
    monkeypatch.setattr(hibernate, "_memory", lambda *_: iter([figure]))
    assert main(["bench", "hibernate", "--part", "memory"]) == 0
    missed = "gpushare: hibernate: missed: kernels in a thimble: 3 kernels, the goal is 4\n"
    assert capsys.readouterr().err == missed


def test_a_byte_that_differs_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Kernel.call

    def other(self: Kernel, *command: Any) -> Any:
        return False if command == ("equal",) else call(self, *command)

    monkeypatch.setattr(Kernel, "call", other)
    assert main(["bench", "hibernate", "--part", "memory"]) == 1
    assert "has bytes that differ" in capsys.readouterr().err


def test_the_benchmark_ends_at_its_time_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver never answers the kernel's first calls.
    monkeypatch.setenv("GPUSHARE_SIM_FAIL", "cuDevicePrimaryCtxRetain%!gpushare/hang")
    assert main(["bench", "hibernate", "--part", "memory", "--time-limit", "3"]) == 1
    assert "it was not done within 3 s" in capsys.readouterr().err


def test_the_benchmark_ends_at_its_time_limit_during_a_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Machine.control

    def ask_too_late(machine: Machine, op: str, **parameters: Any) -> dict[str, Any]:
        assert machine.scheduler is not None
        # The clock kills the scheduler when the time is over.
        machine.scheduler.wait(60)
        return ask(machine, op, **parameters)

    monkeypatch.setattr(Machine, "control", ask_too_late)
    assert main(["bench", "hibernate", "--part", "memory", "--time-limit", "3"]) == 1
    assert "it was not done within 3 s" in capsys.readouterr().err


def test_an_unknown_part_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "hibernate", "--part", "magic"]) == 1
    assert "no part is called magic; there are memory, out" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--kernels", "--cycles", "--time-limit", "--size"])
def test_numbers_must_be_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "hibernate", option, "0"]) == 2
    assert "must be greater than 0" in capsys.readouterr().err
