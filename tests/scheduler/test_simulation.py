# SPDX-License-Identifier: BSD-3-Clause
"""The simulator: the real core and the real command, in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.main import main
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.observability.recording import RecordedCore, write_header
from jupyter_gpushare.scheduler.observability.recording import write as write_entry
from jupyter_gpushare.scheduler.policies import OURS, REGISTRY
from jupyter_gpushare.scheduler.simulation.calibration import H200
from jupyter_gpushare.scheduler.simulation.generate import GENERATORS, generate
from jupyter_gpushare.scheduler.simulation.node import Node
from jupyter_gpushare.scheduler.simulation.recorded import convert_lines
from jupyter_gpushare.scheduler.simulation.run import BASELINES, place, simulate
from jupyter_gpushare.scheduler.simulation.trace import Header, Kernel, Step, Trace, read
from jupyter_gpushare.scheduler.simulation.trace import write as write_trace

GIB = 1 << 30
HEADER = {"format": "gpushare-trace", "version": 1, "name": "small", "gpu_memory": 10 * GIB}
#: Two of these fit on their own only: memory has to move.
NOTEBOOK: list[Any] = [
    ["cell"],
    ["cpu", 0.2],
    ["allocate", 6 * GIB],
    ["gpu", 0.5],
    ["end"],
    ["think", 3.0],
    [
        "repeat",
        4,
        [["cell"], ["gpu", 0.2, 0.5], ["cpu", 0.1], ["gpu", 0.1], ["end"], ["think", 2.0]],
    ],
    ["free", 5 * GIB],
    ["cell"],
    ["gpu", 0.1],
    ["end"],
]
JOB: list[Any] = [["allocate", 2 * GIB], ["repeat", 20, [["gpu", 0.5], ["cpu", 0.05]]]]
KERNELS = [
    {"kernel": "a", "user": "ada", "at": 0, "steps": NOTEBOOK},
    {"kernel": "b", "user": "ben", "at": 1, "steps": NOTEBOOK},
    {"kernel": "j", "user": "ada", "class": "background", "at": 0.5, "priority": "background"}
    | {"steps": JOB},
]
#: What these ask of the GPU, seconds.
WORK = 2 * (0.5 + 4 * (0.1 + 0.1) + 0.1) + 10.0
CELLS = 2 * 6


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [HEADER, *KERNELS]))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["simulate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["simulate", *map(str, arguments)]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("gpushare: ")
    assert shown.err.count("\n") == 1
    return shown.err


def test_every_policy_serves_all_requested_work(
    capsys: pytest.CaptureFixture[str], trace: Path
) -> None:
    names = [*OURS, *BASELINES]
    out = json.loads(run(capsys, "--trace", trace, "--policy", ",".join(names), "--json"))
    assert list(out["policies"]) == names
    for name, found in out["policies"].items():
        assert found["peak_memory"] <= 1, name
        if name == "shared":
            # No notebook makes room, so one of them has no memory.
            assert found["failed"] == 1
            continue
        assert found["failed"] == 0, name
        assert found["kernels"] == 3, name
        assert found["cells"]["interactive"]["count"] == CELLS, name
        assert found["jobs"]["background"]["count"] == 1, name
        assert found["gpu_seconds"] == pytest.approx(WORK), name
        moves = name not in BASELINES
        assert (found["moved_out"] > 0) is (found["moved_in"] > 0) is moves, name
        assert found["jobs"]["background"]["completion"]["max"] >= 11.0, name


def test_the_table_names_policies_side_by_side(trace: Path) -> None:
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "simulate", "--trace", str(trace)]
    shown = subprocess.run(
        [*command, "--policy", "burst,exclusive"], capture_output=True, text=True, check=True
    )
    lines = shown.stdout.splitlines()
    assert lines[0] == "small: 3 kernels on 1 GPU"
    assert lines[1].split() == ["burst", "exclusive"]
    for text in ("wait, p95", "completion, mean", "utilisation", "fairness", "moved", "starved"):
        assert any(text in line for line in lines), text
    assert shown.stderr == ""


def test_the_same_seed_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--generate", "research", "--with", "hours=0.05", "--with", "researchers=3"]
    asked += ["--with", "jobs=1", "--policy", "burst,shared", "--json", "--gpus", 2]
    first = run(capsys, *asked, "--seed", 7)
    assert run(capsys, *asked, "--seed", 7) == first
    assert run(capsys, *asked, "--seed", 8) != first


def test_processes_change_nothing(tmp_path: Path) -> None:
    loop = ["repeat", 3000, [["gpu", 0.01], ["cpu", 0.01]]]
    rows = [{**HEADER, "gpus": 9}]
    rows += [{"kernel": f"k{i}", "at": i, "steps": [loop]} for i in range(4)]
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "simulate", "--trace", str(path)]
    command += ["--policy", "exclusive,shared", "--json", "--processes"]
    shown = [
        subprocess.run([*command, count], capture_output=True, check=True).stdout
        for count in ("1", "3")
    ]
    assert shown[0] == shown[1]
    assert json.loads(shown[0])["policies"]["shared"]["gpu_seconds"] == pytest.approx(120)


def test_a_written_trace_equals_the_generated_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "class.jsonl"
    options = ["--policy", "shared", "--json"]
    asked = ["--generate", "students", "--with", "students=4", "--with", "hours=0.1"]
    made = run(capsys, *asked, *options, "--write", path)
    assert run(capsys, "--trace", path, *options) == made


# Agents have no example: what the core decides on the examples is recorded (``golden.py``).
@pytest.mark.parametrize("name", sorted(GENERATORS.keys() - {"agents"}))
def test_committed_traces_name_a_generator_and_its_parameters(name: str) -> None:
    folder = Path(__file__).parents[2] / "examples" / "traces"
    found = [read(path).header for path in sorted(folder.glob("*.jsonl"))]
    headers = [header for header in found if header.generate == name]
    assert headers
    for header in headers:
        assert set(header.parameters) <= set(GENERATORS[name].parameters)


@pytest.mark.parametrize("load", [0.4, 1.2])
def test_a_class_requests_as_much_as_its_load(load: float) -> None:
    trace = generate("students", 3, {"load": load, "hours": 2.0})
    assert len(trace.kernels) == 50
    work = sum(kernel.work() for kernel in trace.kernels)
    assert work / 7200 == pytest.approx(load, rel=0.1)


# --- The machine ----------------------------------------------------------------------------------


def outcome(kernels: list[Kernel], policy: str, gpus: int = 1) -> Any:
    trace = Trace(Header("test", gpus), tuple(sorted(kernels, key=lambda k: (k.at, k.name))))
    [(_, found)] = simulate(trace, [policy], gpus, meter=0.1, starving=300.0)
    return found


def bursts_beside_training() -> list[Kernel]:
    """Bursts of 5 ms each 50 ms, beside a training loop; both fit."""
    cell: tuple[Step, ...] = (("cell",), ("gpu", 0.005, H200.small_burst), ("end",))
    return [
        Kernel("i", "ada", "interactive", 1.0, (("repeat", 200, (*cell, ("think", 0.05))),)),
        Kernel("t", "ada", "background", 0.0, (("gpu", 30.0, 1.0),), "background"),
    ]


def test_bursts_beside_training_slow_down_as_measured() -> None:
    shared = outcome(bursts_beside_training(), "shared")
    ratio = sum(shared.cells["interactive"].waits) / (200 * 0.005)
    assert (
        0.37 <= ratio <= 0.50
    )  # docs/explanation/benchmarks.md and the calibration: p99 +37 to +50 %
    gated = outcome(bursts_beside_training(), "burst")
    assert sum(gated.cells["interactive"].waits) / (200 * 0.005) < ratio / 2
    # Training keeps at least 85 % while the bursts go on.
    assert gated.jobs["background"].completions[0] < 30.0 + 0.15 * 200 * 0.055 + 0.5


def test_a_switch_moves_at_the_measured_speed() -> None:
    back: tuple[Step, ...] = (("cell",), ("gpu", 1.0, 1.0), ("end",))
    big: tuple[Step, ...] = (("allocate", 90 * GIB), *back, ("think", 5.0))
    kernels = [
        Kernel("a", "ada", "interactive", 0.0, (*big, *back)),
        Kernel("b", "ben", "interactive", 2.5, big),
    ]
    found = outcome(kernels, "fcfs")
    assert found.moved_out >= found.moved_in > 40 * GIB
    # 90 + 90 GiB and contexts, of 139.8 GiB: some 43 GiB leave, and come back while as many leave.
    lack = found.moved_in / H200.both_ways
    assert lack < max(found.cells["interactive"].waits) < 1.5 * lack


def test_the_exclusive_policy_serves_one_after_the_other() -> None:
    jobs = [Kernel(f"j{i}", "u", "x", 0.1 * i, (("gpu", 10.0, 1.0),)) for i in range(4)]
    found = outcome(jobs, "exclusive", gpus=2)
    assert [round(c, 3) for c in found.jobs["x"].completions] == [10.0, 10.0, 19.8, 19.8]
    shared = outcome(jobs, "shared", gpus=2)
    assert all(19.5 < c <= 20 for c in shared.jobs["x"].completions)


def test_kernels_are_placed_where_fewest_of_their_class_are() -> None:
    def job(name: str, at: float, size: int, label: str = "x") -> Kernel:
        return Kernel(name, "u", label, at, (("allocate", size * GIB), ("gpu", 50.0, 1.0)))

    kernels = (
        job("a", 0, 50),
        job("b", 1, 10),
        job("c", 2, 1, "y"),  # as many of its class everywhere: where the least is promised
        job("d", 3, 5),
        job("e", 90, 1),  # all others would have left
    )
    placed = place(Trace(Header("test", 2), kernels), 2)
    assert [index for _, index in placed] == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("policy", ["burst", "fcfs"])
def test_work_beyond_the_capacity_is_conserved(policy: str) -> None:
    """Random work with memory for a third of it: nothing is lost, nothing exceeds the GPU, all ends."""
    asked = {"students": 7, "hours": 0.05, "load": 1.0, "arrival_s": 20, "footprint_gib": 2}
    made = generate("students", 5, asked)
    trace = Trace(Header("test", 1, gpu_memory=14 * GIB, host_memory=64 * GIB), made.kernels)
    [(_, found)] = simulate(trace, [policy], 1, meter=0.5, starving=300.0)
    cells = sum(1 for k in trace.kernels for step in k.walk() if step[0] == "cell")
    assert found.failed == 0
    assert sum(len(c.waits) for c in found.cells.values()) == cells
    assert found.delivered == pytest.approx(found.asked) == sum(k.work() for k in trace.kernels)
    assert found.asked <= found.end
    assert 0.5 < found.peak <= 1
    assert found.moved_out >= found.moved_in > 0


def test_a_kernel_without_service_for_long_has_starved() -> None:
    jobs = [Kernel(f"j{i}", "u", "x", 0.0, (("gpu", 400.0, 1.0),)) for i in range(3)]
    found = outcome(jobs, "exclusive")
    assert (found.starved, round(found.longest_gap)) == (2, 800)
    assert outcome(jobs, "shared").starved == 0


# --- What people get wrong ------------------------------------------------------------------------

GOOD = json.dumps(HEADER)


def kernel(**fields: Any) -> str:
    return json.dumps({"kernel": "a", "at": 0, "steps": [], **fields})


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "the trace is empty"),
        (["{"], "line 1 is not JSON"),
        (["[1]"], "line 1 has to be a JSON object"),
        (['{"format": "other"}'], 'line 1: "format" has to be'),
        (['{"format": "gpushare-trace", "version": 9}'], 'line 1: "version" is 9'),
        ([json.dumps({**HEADER, "gpus": 0})], 'line 1: "gpus" has to be a whole number from 1'),
        ([json.dumps({**HEADER, "color": 1})], 'line 1: "color" is a field that nobody knows'),
        ([GOOD], "has no kernels"),
        ([json.dumps({**HEADER, "generate": "students"}), kernel()], "but kernels follow"),
        ([json.dumps({**HEADER, "generate": "nobody"})], "no generator is called 'nobody'"),
        ([GOOD, "7"], "line 2 has to be a JSON object"),
        ([GOOD, json.dumps({"kernel": "a", "at": 0})], 'line 2: "steps" is missing'),
        ([GOOD, kernel(), "", kernel()], "line 4: \"kernel\" names 'a' a second time"),
        ([GOOD, kernel(at=-1)], 'line 2: "at" has to be a number from 0'),
        ([GOOD, kernel(at=float("nan"))], 'line 2: "at" has to be a number'),
        ([GOOD, kernel(at=True)], 'line 2: "at" has to be a number'),
        ([GOOD, kernel(priority="high")], 'line 2: "priority" has to be one of auto'),
        ([GOOD, kernel(steps="gpu")], 'line 2: "steps" has to be a list'),
        ([GOOD, kernel(steps=[["gpu", 1], ["dance"]])], "line 2: steps[1] is a step that nobody"),
        ([GOOD, kernel(steps=[["gpu"]])], "line 2: steps[0] is"),
        ([GOOD, kernel(steps=[["gpu", -1]])], "line 2: steps[0] 'gpu' needs seconds above 0"),
        ([GOOD, kernel(steps=[["gpu", 1, 2]])], "line 2: steps[0] 'gpu' has a demand of 2"),
        ([GOOD, kernel(steps=[["allocate", 0.5]])], "needs a whole number of bytes"),
        ([GOOD, kernel(steps=[["allocate", 11 * GIB]])], "more than the 10737418240 bytes"),
        ([GOOD, kernel(steps=[["free", 5]])], "line 2: \"steps\" frees more than was allocated"),
        ([GOOD, kernel(steps=[["cell"]])], "line 2: steps begins a cell that never ends"),
        ([GOOD, kernel(steps=[["end"]])], "line 2: steps ends a cell that was not begun"),
        ([GOOD, kernel(steps=[["repeat", 2, [["nap"]]]])], "line 2: steps[0][2][0] is a step"),
        ([GOOD, kernel(steps=[["repeat", 0, [["cpu", 1]]]])], "line 2: steps[0] repeats 0 times"),
        ([GOOD, kernel(steps=[["repeat", 2, []]])], "line 2: steps[0] has to be"),
        ([GOOD, "[" * 100_000], "line 2 is not JSON"),
    ],
)  # fmt: skip
def test_a_bad_trace_is_reported_with_line_and_field(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, lines: list[str], said: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    assert said in complaint(capsys, "--trace", path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--generate", "students", "--with", "load"],
            "invalid parameter --with load; use NAME=NUMBER",
        ),
        (["--generate", "students", "--with", "weight=1"], "no parameter 'weight'; there are gpus"),
        (["--generate", "students", "--with", "load=-1"], "load has to be from 0.01"),
        (["--generate", "students", "--policy", "burst,best"], "unknown policy 'best'"),
        (["--trace", "/nowhere.jsonl"], "/nowhere.jsonl: No such file"),
        (["--generate", "students", "--plot", "x.pdf"], "has to end in .png or .svg"),
        (["--generate", "students", "--plot", "/nowhere/x.png"], "there is no such folder"),
        (["--record-from", "/nowhere"], "/nowhere: No such file"),
    ],
)
def test_impossible_simulations_are_reported(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert said in complaint(capsys, *arguments)


# --- Pictures -------------------------------------------------------------------------------------


def test_pictures_are_drawn_and_the_same_each_time(
    capsys: pytest.CaptureFixture[str], trace: Path, tmp_path: Path
) -> None:
    for name in ("a.svg", "b.svg", "c.png"):
        run(capsys, "--trace", trace, "--policy", "burst,exclusive", "--plot", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"</svg>" in (tmp_path / "a.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_names_the_package(
    capsys: pytest.CaptureFixture[str], trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = complaint(capsys, "--trace", trace, "--plot", tmp_path / "a.png")
    assert "pip install 'jupyter-gpushare[plots]'" in said


# --- Recordings -----------------------------------------------------------------------------------


def test_a_recording_becomes_a_trace_without_the_waits() -> None:
    core = RecordedCore(REGISTRY, Rules(policy="fcfs"))
    gpu = "GPU-0"
    now = 1000.0

    def take(event: ev.Event, after: float = 0.0) -> list[ev.Decision]:
        nonlocal now
        now += after
        decisions = core.handle(event, now)
        for decision in decisions:
            if isinstance(decision, ev.ReadDevice):
                decisions = decisions + core.handle(ev.Device(gpu, 10 * GIB, 0), now)
        return decisions

    take(ev.HostMemory(64 * GIB))
    take(ev.Device(gpu, 10 * GIB, 0))
    take(ev.Attach(1, 1, "k", "train.ipynb", "swap", user="ada"))
    take(ev.Cell("k", "begin", "m1", now, True), 2.0)
    take(ev.Grow(1, 1, ev.Usage(gpu, GIB), GIB), 0.25)
    take(ev.UsageChanged(1, ev.Usage(gpu, GIB)))
    take(ev.Request(1, 1))
    lease = next(iter(core.model.leased.values())).lease
    assert lease is not None
    take(ev.Restored(1, lease, ev.Usage(gpu, GIB, GIB), GIB, 0, 0.01, "done"), 7.0)  # it waited
    take(ev.Burst(1, "end", "quiet", now + 1.5), 1.5)
    take(ev.Burst(1, "begin", "none", now + 0.5), 0.5)
    take(ev.Burst(1, "end", "cell", now + 0.125), 0.125)
    take(ev.Cell("k", "end", "m1", now, True))
    take(ev.Cell("k", "begin", "m2", now + 30, True), 30.0)
    take(ev.Cell("k", "end", "m2", now + 1, True), 1.0)
    take(ev.Detach(1), 4.0)
    lines = [write_header(core.header()), *map(write_entry, core.entries())]
    trace = convert_lines(lines, "mine")
    [found] = trace.kernels
    assert (found.user, found.label, found.at) == ("ada", "interactive", 0.0)
    assert trace.header.gpu_memory == 10 * GIB
    assert trace.header.host_memory == 64 * GIB
    rounded = [tuple(round(v, 6) if isinstance(v, float) else v for v in s) for s in found.steps]
    assert rounded == [
        ("cpu", 2.0),
        ("cell",),
        ("cpu", 0.25),
        ("allocate", GIB),
        ("gpu", 1.5, 1.0),
        ("cpu", 0.5),
        ("gpu", 0.125, 1.0),
        ("end",),
        ("think", 30.0),
        ("cell",),
        ("cpu", 1.0),
        ("end",),
        ("think", 4.0),
    ]
    assert outcome([found], "burst").delivered == pytest.approx(1.625)


def test_a_trace_of_a_recording_can_be_written_and_read(tmp_path: Path) -> None:
    steps = (("cell",), ("gpu", 0.5, 1.0), ("end",), ("think", 1.0))
    trace = Trace(Header("x"), (Kernel("k#1", "ada", "interactive", 0.5, steps),))
    path = tmp_path / "x.jsonl"
    with path.open("w") as file:
        write_trace(trace, file)
    assert read(path) == trace


def test_a_model_of_people_adds_only_hints() -> None:
    alone, people = (generate("students", 3, {"people": on, "hours": 0.3}) for on in (0, 1))
    for quiet, present in zip(alone.kernels, people.kernels, strict=True):
        assert [s for s in quiet.steps if s[0] not in ("think", "hint")] == [
            s for s in present.steps if s[0] not in ("think", "hint")
        ]
        assert present.alone() == pytest.approx(quiet.alone(), abs=0.1)
    kinds = Counter(s[1] for k in people.kernels for s in k.steps if s[0] == "hint")
    cells = sum(s[0] == "cell" for k in people.kernels for s in k.steps)
    # Each pause ends with both, and some have more.
    assert cells < kinds["typing"] < kinds["focus"] < 1.3 * cells


def test_memory_is_back_before_the_next_cell_of_a_person() -> None:
    size = 90 << 30
    cell = (("cell",), ("gpu", 0.5, 1.0), ("end",))
    back = (("think", 40.0), ("hint", "typing"), ("think", 10.0))
    steps = (("allocate", size), *cell, *back, *cell, *back, *cell)
    kernels = tuple(
        Kernel(name, name, "interactive", at, steps) for name, at in (("a", 0.0), ("b", 25.0))
    )
    trace = Trace(Header("two", 1), kernels)
    waits = {}
    for prefetch in (False, True):
        node = Node(H200, trace.header.gpu_memory, 1, 300.0, "burst", 1 << 40, 1.0, prefetch)
        waits[prefetch] = sorted(node.run(place(trace, 1)).cells["interactive"].waits)
    # They do not fit together, so each cell needs a move. Before the first cells, there is nothing to restore.
    assert min(waits[False][1:]) > 0.9
    assert max(waits[True][:4]) < 0.01
