# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare demo``: the notebooks as they are shipped, and the run that checks itself."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.cli.demo import command as demo
from jupyter_gpushare.cli.demo import sizing
from jupyter_gpushare.cli.demo.plan import DemoError
from jupyter_gpushare.scheduler.gpu.drivers import Driver, find_driver
from tests.support import fork_server
from tests.support.folders import socket_folder

NOTEBOOKS = [demo.EXAMPLES / name for name in demo.NOTEBOOKS]
COMMAND = [sys.executable, "-m", "jupyter_gpushare.cli.main", "demo"]
MIB = 1 << 20
GIB = 1 << 30


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "GPUSHARE_SIM": "1", **variables}


def processes(folder: str) -> list[str]:
    """The processes whose command names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if folder in words:
            found.append(words)
    return found


# --- The notebooks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    assert all(cell.metadata.gpushare_demo["title"] for cell in cells)
    assert sum(cell.metadata.gpushare_demo.get("checks", False) for cell in cells) >= 2
    assert any(cell.cell_type == "markdown" for cell in notebook.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_users_think_longer_than_a_switch_takes(path: Path) -> None:
    """Before each cell that needs the notebook's data on the GPU."""
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.gpushare_demo["run"] == "cells"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    pauses = [cell.metadata.gpushare_demo.get("pause", 0) for cell in cells]
    assert min(pauses[4:]) >= 2 * sizing.SWITCH
    assert sum(pauses) >= 8


# --- The run ------------------------------------------------------------------------------------------------------


def copy_hurried(folder: Path) -> None:
    """Copy the notebooks as they are shipped, except that their users think faster."""
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        for part in (notebook, *notebook.cells):
            if "pause" in (stated := part.metadata.get("gpushare_demo", {})):
                stated["pause"] /= 5
        nbformat.write(notebook, folder / path.name)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """What the demo writes and prints on a small simulated GPU."""
    folder = tmp_path_factory.mktemp("demo")
    copy_hurried(folder)
    report = folder / "report.json"
    code = f"""if True:
        import pathlib, sys
        from jupyter_gpushare.cli import main
        from jupyter_gpushare.cli.demo import command as demo
        demo.EXAMPLES = pathlib.Path({str(folder)!r})
        sys.exit(main.main(sys.argv[1:]))
    """
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--run", "--json", str(report)],
        env=environment(GPUSHARE_SIM_MEMORY="64MiB"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text()), done.stdout


def test_run_passes_on_the_simulated_gpu(outcome: tuple[dict[str, Any], str]) -> None:
    report, printed = outcome
    assert report["passed"]
    assert report["problems"] == []
    assert report["simulated"]
    assert report["gpu"]["total"] == 64 * MIB
    assert report["fraction"] == 0.75
    assert "a simulated GPU, 64 MiB" in printed
    assert "\033" not in printed


def test_both_competed_for_the_gpu(outcome: tuple[dict[str, Any], str]) -> None:
    report, _ = outcome
    assert set(report["notebooks"]) == {"heat", "cat"}
    moved = 0
    for notebook in report["notebooks"].values():
        assert notebook["waits"] > 0 or (notebook["evicted"] > 0 and notebook["restored"] > 0)
        assert notebook["backend"] == "swap"
        moved += notebook["copied_out"]
    # They have 48 MiB each, and there are 64.
    assert moved > 16 * MIB
    assert sum(n["given_up_at_cell_end"] for n in report["notebooks"].values()) >= 4
    assert report["handovers"] >= 2


def test_summary_compares_both_ways(outcome: tuple[dict[str, Any], str]) -> None:
    report, printed = outcome
    assert report["ratio"] == report["together"] / report["one_after_the_other"]
    assert report["pauses"] == 18
    assert 0 <= report["pauses_used_by_others"] <= report["pauses"]
    summary = printed[printed.index("\nSummary\n") :]
    assert f"{report['one_after_the_other']:.1f} s" in summary
    assert f"{report['together']:.1f} s" in summary
    assert f"In {report['pauses_used_by_others']} of 18 pauses" in summary
    assert "All 16 results are the same as those of the CPU" in summary
    assert printed.endswith("\nPassed.\n")


def test_progress_begins_before_the_server_starts(outcome: tuple[dict[str, Any], str]) -> None:
    _, printed = outcome
    assert printed.startswith("Measuring the GPU and starting Jupyter ...\nGPU: a simulated GPU")
    # A dot for each cell of the runs for comparison.
    assert re.search(r"heat  \.{10}  +[0-9.]+ s\n   cat   \.{10}  +[0-9.]+ s\n", printed)


def test_all_that_should_be_checked_was(outcome: tuple[dict[str, Any], str]) -> None:
    report, printed = outcome
    for path in NOTEBOOKS:
        cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
        due = sum(cell.metadata.gpushare_demo.get("checks", False) for cell in cells)
        for found in (report["checks_alone"][path.stem], report["notebooks"][path.stem]["checks"]):
            assert len(found) >= due
    for notebook in report["notebooks"].values():
        for found in notebook["checks"]:
            assert found in printed


def test_timeline_says_who_waits_and_why(outcome: tuple[dict[str, Any], str]) -> None:
    report, printed = outcome
    waits = [event for event in report["events"] if event["kind"] == "wait"]
    assert waits
    assert printed.count("… waiting: ") == len(waits)
    assert all(event["reason"]["code"] for event in waits)
    moves = [event for event in report["events"] if event["kind"] == "evict" and event["bytes"]]
    assert len(re.findall(r" ↓ [0-9.]+ \w+ evicted ", printed)) == len(moves)


def test_a_wrong_result_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_hurried(tmp_path)
    for path in tmp_path.iterdir():
        text = path.read_text(encoding="utf-8")
        # A CUDA kernel that is slightly wrong, at one point of millions.
        text = text.replace("0.5f * here[column]", "0.5f * here[column] + (row + column == 0)")
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr(demo, "EXAMPLES", tmp_path)
    for name, value in environment(GPUSHARE_SIM_MEMORY="64MiB").items():
        monkeypatch.setenv(name, value)
    from jupyter_gpushare.cli.main import main

    assert main(["demo", "--run"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED: heat.ipynb: 'check every point' failed: AssertionError" in printed
    assert "Passed" not in printed


@pytest.fixture
def short_path() -> Iterator[Path]:
    with socket_folder() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_interrupted_it_leaves_nothing(short_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*COMMAND, "--run"],
        env=environment(GPUSHARE_SIM_MEMORY="64MiB", TMPDIR=str(short_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        deadline = time.monotonic() + 60
        while not any("ipykernel_launcher" in words for words in processes(str(short_path))):
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()[0].decode()
            time.sleep(0.1)
        process.send_signal(number)
        status = process.wait(60)
    assert status == 128 + number
    deadline = time.monotonic() + 60
    while processes(str(short_path)):
        assert time.monotonic() < deadline, processes(str(short_path))
        time.sleep(0.1)
    assert list(short_path.iterdir()) == []


# --- Bad input ----------------------------------------------------------------------------------------------------


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command where it ends at once."""
    return fork_server.run(
        [*COMMAND[1:], *arguments],
        environ=environment(**variables),
        modules=["jupyter_gpushare.cli.main", "jupyter_gpushare.cli.demo.command"],
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--run", "--backend", "magic"], "invalid memory backend 'magic'"),
        (["--run", "--backend", "plain"], "could not share"),
        (["--run", "--fraction", "1.5"], "invalid share '1.5'"),
        (["--run", "--fraction", "half"], "invalid share 'half'"),
        (["--run", "--port", "http"], "invalid port 'http'"),
        (["--run", "--json", "/nowhere/at/all.json"], "the folder /nowhere/at does not exist"),
        (["--json", "report.json"], "--json requires --run"),
        (["--walk"], "unknown option '--walk'. See: gpushare demo --help"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], complaint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("gpushare: ")
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_compiler_is_named() -> None:
    done = run("--run", GPUSHARE_SIM_CXX="no-such-compiler")
    assert done.returncode == 2
    assert "no-such-compiler, which is not installed" in done.stderr


# --- What it runs on ----------------------------------------------------------------------------------------------


#: As on an NVIDIA H200: page-locking at 4 GB/s, copies at 55 GB/s each way.
H200 = sizing.Speed(1 / 4e9, 2 / 55e9)


def test_size_is_what_the_pauses_can_move() -> None:
    total, room = 140 * GIB, 137 * GIB
    fraction, remark = sizing.choose_fraction(total, room, 200 * GIB, H200)
    moved = 2 * fraction * total - room
    # They do not fit together, and both the first switch and all others end within a pause or two.
    assert moved > 0.02 * room
    assert moved * H200.first <= sizing.FIRST_SWITCH + 0.001
    assert moved * H200.again <= sizing.SWITCH
    assert "less than a pause" in remark


def test_size_is_three_quarters_of_a_small_gpu() -> None:
    fraction, _ = sizing.choose_fraction(256 * MIB, 240 * MIB, 4 * GIB, H200)
    assert fraction == 0.75


def test_size_on_a_slow_machine_still_makes_them_compete() -> None:
    slow = sizing.Speed(1e-3, 1e-3)
    fraction, _ = sizing.choose_fraction(256 * MIB, 240 * MIB, 4 * GIB, slow)
    assert 2 * fraction * 256 * MIB == pytest.approx(1.02 * 240 * MIB)


def test_size_is_what_the_host_can_hold() -> None:
    total, room = 140 * GIB, 137 * GIB
    fast = sizing.Speed(1e-12, 1e-12)
    fraction, remark = sizing.choose_fraction(total, room, 100 * GIB, fast)
    # During a switch, the host holds what does not fit of both notebooks.
    assert 0 < 2 * (2 * fraction * total - room) < 100 * GIB
    assert "The host has room for 100 GiB" in remark
    with pytest.raises(DemoError, match="more host memory than is available"):
        sizing.choose_fraction(total, room, 4 * GIB, fast)


def test_speed_is_measured() -> None:
    variables = environment(GPUSHARE_SIM_MEMORY="64MiB")
    driver = find_driver(variables)
    assert driver is not None
    speed = sizing.measure_speed(driver, variables, 64 * MIB)
    assert speed.first > 0
    assert speed.again > 0


def test_a_driver_that_fails_is_reported(tmp_path: Path) -> None:
    driver = Driver(tmp_path / "none.so", None, False)
    with pytest.raises(DemoError, match=r"cannot load .*none\.so.*gpushare doctor"):
        sizing.measure_speed(driver, os.environ, GIB)


def test_a_real_gpu_uses_the_swap_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_driver", lambda _: Driver(Path("/d"), Path("/n"), False))
    monkeypatch.setattr(demo, "_real_gpu", lambda _: (140 * GIB, 0))
    monkeypatch.setattr(demo, "_require_compiler", lambda: None)
    monkeypatch.setattr(demo, "host_budget", lambda *_: 200 * GIB)
    monkeypatch.setattr(demo, "measure_speed", lambda *_: H200)
    plan = demo.make_plan({}, None, None, "machine")
    assert plan.environ["GPUSHARE_BACKEND"] == "swap"
    assert plan.environ["GPUSHARE_FORBID_MANAGED"] == "1"
    assert "GPUSHARE_SIM" not in plan.environ
    assert 0.5 < plan.fraction < 0.55
    assert demo.make_plan({}, None, 0.7, "machine").fraction == 0.7
    with pytest.raises(DemoError, match="only on the simulated driver"):
        demo.make_plan({}, "managed", None, "machine")


# --- For JupyterLab -----------------------------------------------------------------------------------------------


def test_copies_never_overwrite(tmp_path: Path) -> None:
    folder = demo._copy(tmp_path)
    assert sorted(path.name for path in folder.glob("*.ipynb")) == sorted(demo.NOTEBOOKS)
    mine = folder / demo.NOTEBOOKS[0]
    mine.write_text("mine", encoding="utf-8")
    (folder / demo.NOTEBOOKS[1]).unlink()
    assert demo._copy(tmp_path) == folder
    assert mine.read_text(encoding="utf-8") == "mine"
    assert (folder / demo.NOTEBOOKS[1]).read_bytes() == NOTEBOOKS[1].read_bytes()


def test_jupyterlab_opens_both(tmp_path: Path) -> None:
    """By its own API: what it restores when it starts."""
    pytest.importorskip("jupyterlab_server")
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    folder = demo._copy(tmp_path) / demo.WORKSPACES
    workspace = WorkspacesManager(str(folder)).load("default")
    dock = workspace["data"]["layout-restorer:data"]["main"]["dock"]
    opened = [area["widgets"][0] for area in dock["children"]]
    assert [workspace["data"][name]["data"]["path"] for name in opened] == list(demo.NOTEBOOKS)


def test_copies_go_elsewhere_where_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    (tmp_path / demo.FOLDER).write_text("a file of the user's", encoding="utf-8")
    folder = demo._copy(tmp_path)
    assert folder.parent == elsewhere
    assert (folder / demo.NOTEBOOKS[0]).is_file()
    assert (tmp_path / demo.FOLDER).read_text(encoding="utf-8") == "a file of the user's"
