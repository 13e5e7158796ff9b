# SPDX-License-Identifier: BSD-3-Clause
"""The table of driver functions is complete, and the generator accepts no other."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

Rows = list[dict[str, str]]
Generated = Callable[[Rows], subprocess.CompletedProcess[str]]
Generator = Callable[[str], ModuleType]

# Functions that take a stream and yet need no gate: they submit nothing that touches memory.
NOT_A_SUBMISSION = re.compile(
    r"cuStream(Query|Synchronize|Destroy|Get\w+|SetAttribute|CopyAttributes|IsCapturing"
    r"|UpdateCaptureDependencies|WaitEvent|EndCaptureToCig)(_v\d)?(_ptsz)?"
    r"|cuEventRecord(WithFlags)?(_ptsz)?"
)


@pytest.fixture
def rows(root: Path) -> Rows:
    with (root / "csrc/driver_api.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def generated(root: Path, headers: Path, generator: Generator, tmp_path: Path) -> Generated:
    """Run the generator with other rows."""

    def run(rows: Rows) -> subprocess.CompletedProcess[str]:
        table = tmp_path / "driver_api.csv"
        with table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, generator("table").COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        command = [sys.executable, str(root / "csrc/generate.py"), "--out", str(tmp_path / "gen")]
        command += ["--table", str(table), "--include", str(headers)]
        command += ["--nvml", str(headers / "nvml.h")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def row_of(rows: Rows, function: str) -> dict[str, str]:
    return next(row for row in rows if row["function"] == function)


def test_the_table_is_accepted(generated: Generated, rows: Rows) -> None:
    done = generated(rows)
    assert done.returncode == 0, done.stderr


def test_a_function_without_a_row_is_refused(generated: Generated, rows: Rows) -> None:
    done = generated([row for row in rows if row["function"] != "cuMemcpyBatchAsync_v2_ptsz"])
    assert done.returncode == 2
    assert (
        "cuMemcpyBatchAsync_v2_ptsz: declared by the headers, but not in the table" in done.stderr
    )
    assert done.stderr.count(": declared") == 1


def test_a_row_without_a_function_is_refused(generated: Generated, rows: Rows) -> None:
    extra = {**rows[0], "function": "cuNoSuchThing"}
    done = generated([*rows, extra])
    assert done.returncode == 2
    assert "cuNoSuchThing: in the table, but not declared by the headers" in done.stderr


@pytest.mark.parametrize(
    ("function", "change", "sentence"),
    [
        ("cuLaunchKernel_ptsz", {"hook": "pass"}, "so hook must not be 'pass'"),
        ("cuMemFreeHost", {"hook": "gate"}, "so hook must not be 'gate'"),
        ("cuModuleUnload", {"hook": "gate"}, "so hook must not be 'gate'"),
        ("cuEventQuery", {"hook": "gate"}, "so hook must not be 'gate'"),
        ("cuStreamSynchronize", {"hook": "gate"}, "so hook must not be 'gate'"),
        ("cuInit", {"hook": "hooked"}, "hook 'hooked' is none of"),
        ("cuInit", {"class": "z"}, "class 'z' is none of"),
        ("cuInit", {"parked": "jumps"}, "parked 'jumps' is none of"),
        ("cuMemcpy", {"parked": "enters"}, "must not enter the driver while parked"),
    ],
)
def test_a_wrong_row_is_refused(
    generated: Generated, rows: Rows, function: str, change: dict[str, str], sentence: str
) -> None:
    row_of(rows, function).update(change)
    done = generated(rows)
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.startswith(f"{function}: ")]
    assert sentence in done.stderr


def test_a_duplicate_function_is_refused(generated: Generated, rows: Rows) -> None:
    done = generated([*rows, rows[5]])
    assert done.returncode == 2
    assert f"{rows[5]['function']} is there twice" in done.stderr


def test_an_undefined_custom_function_does_not_link(
    generated: Generated, rows: Rows, tmp_path: Path, root: Path, headers: Path
) -> None:
    row_of(rows, "cuDeviceGetName")["hook"] = "custom"
    assert generated(rows).returncode == 0
    stubs = sorted((tmp_path / "gen").glob("real_stubs_x86_64.S"))[0]
    object_file = tmp_path / "stubs.o"
    machine = subprocess.run(["cc", "-dumpmachine"], capture_output=True, text=True, check=True)
    if not machine.stdout.startswith("x86_64"):
        stubs = stubs.with_name("real_stubs_aarch64.S")
    subprocess.run(["cc", "-c", "-o", str(object_file), str(stubs)], check=True)
    entries = tmp_path / "entries.o"
    csrc = root / "csrc"
    folders = [csrc, csrc / "interposer", csrc / "compat/interop", stubs.parent, headers]
    command = ["cc", "-std=gnu11", "-fPIC", "-O0", "-D__CUDA_API_VERSION_INTERNAL"]
    command += ["-include", str(csrc / "compat/interop/driver.h"), *(f"-I{f}" for f in folders)]
    subprocess.run(
        [*command, "-c", "-o", str(entries), str(stubs.with_name("entries.c"))], check=True
    )
    command = ["cc", "-shared", "-Wl,-z,defs", "-Wl,-Bsymbolic"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "lib.so"), str(object_file), str(entries)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    missing = set(re.findall(r"undefined reference to [`'](\w+)'", done.stderr))
    assert "gs_hook_cuDeviceGetName" in missing
    # The unchanged rows: a function that is passed on is there, a custom one is not.
    assert {"gs_hook_cuInit", "cuGetProcAddress"} <= missing
    assert not {"cuDeviceGetCount", "gs_hook_cuDeviceGetCount", "cuGetErrorName"} & missing


def test_every_typedef_has_a_function(declared: dict[str, tuple[str, ...]], headers: Path) -> None:
    """The headers' other list of the driver's functions names none that the table lacks."""
    bases = {re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) for name in declared}
    for header in headers.glob("cuda*Typedefs.h"):
        named = set(re.findall(r"\*PFN_(cu\w+?)_v\d{4,}(?:_pt[sd][sz])?\)", header.read_text()))
        assert named, f"no typedef found in {header.name}"
        assert named - bases - {"cuWGLGetDevice"} == set()


def test_columns_follow_from_the_name(rows: Rows) -> None:
    for row in rows:
        variant = re.search(r"_(ptsz|ptds)$", row["function"])
        assert row["stream_variant"] == (variant[1] if variant else "")
        assert row["base"] == re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", row["function"])


def test_variants_of_a_function_are_of_one_class(rows: Rows) -> None:
    """A program compiled for another version or for per-thread streams is treated the same way, or refused."""
    classes: dict[str, set[str]] = {}
    hooks: dict[str, set[str]] = {}
    for row in rows:
        classes.setdefault(row["base"], set()).add(row["class"])
        hooks.setdefault(row["base"], set()).add(row["hook"])
    assert {base: found for base, found in classes.items() if len(found) > 1} == {}
    assert {base: found for base, found in hooks.items() if len(found - {"refuse"}) > 1} == {}


def test_every_submission_into_a_stream_is_hooked(
    rows: Rows, declared: dict[str, tuple[str, ...]]
) -> None:
    """Independent of the classes: what takes a stream by value is gated, unless it submits nothing."""
    unguarded = {
        row["function"]
        for row in rows
        if row["hook"] == "pass"
        and any(re.match(r"CUstream\s+\w+$", p) for p in declared[row["function"]])
    }
    assert {name for name in unguarded if not NOT_A_SUBMISSION.fullmatch(name)} == set()


def test_every_copy_and_fill_is_hooked(rows: Rows) -> None:
    unguarded = [
        row["function"]
        for row in rows
        if re.match(r"cu(Memcpy|Memset|Launch|GraphLaunch|MemPrefetch)", row["function"])
        and row["hook"] not in ("gate", "custom")
    ]
    assert unguarded == []


def test_the_stream_of_a_call_is_found(
    generator: Generator, declared: dict[str, tuple[str, ...]]
) -> None:
    def stream(name: str) -> tuple[str, str]:
        function = generator("declarations").Function(name, declared[name])
        found: tuple[str, str] = generator("wrappers").stream_argument(function)
        return found

    assert stream("cuLaunchKernel") == ("hStream", "GS_STREAM_LEGACY")
    assert stream("cuLaunchKernel_ptsz") == ("hStream", "GS_STREAM_PTSZ")
    assert stream("cuLaunchKernelEx_ptsz") == (
        "config != NULL ? config->hStream : NULL",
        "GS_STREAM_PTSZ",
    )
    assert stream("cuMemcpyHtoD_v2") == ("NULL", "GS_STREAM_NONE")
    assert stream("cuMemcpyHtoD_v2_ptds") == ("NULL", "GS_STREAM_NONE_PTDS")


def test_the_work_of_a_call_is_found(
    generator: Generator, rows: Rows, declared: dict[str, tuple[str, ...]]
) -> None:
    def work(name: str) -> str:
        row = row_of(rows, name)
        function = generator("declarations").Function(
            name, declared[name], row["hook"], row["class"]
        )
        found: str = generator("wrappers").work_of(function)
        return found

    assert work("cuLaunchKernelEx_ptsz") == "GS_WORK_FUNCTION(f)"
    assert work("cuMemcpyBatchAsync_v2") == "GS_WORK_COPY"
    assert work("cuMemsetD2D8Async") == "GS_WORK_FILL"
    assert work("cuMemPrefetchAsync_v2") == "GS_WORK_PREFETCH"
    # The GPU has nothing to do for them, or not at once.
    assert work("cuMemAdvise_v2") == "GS_WORK_NONE"
    assert work("cuModuleLoadData") == "GS_WORK_NONE"
    assert work("cuLaunchHostFunc") == "GS_WORK_ORDER"
    assert work("cuStreamWaitValue32_v2") == "GS_WORK_ORDER"


def test_synchronous_copies_can_be_split(
    generator: Generator, declared: dict[str, tuple[str, ...]]
) -> None:
    cut = [name for name in declared if generator("wrappers").IN_PIECES.fullmatch(name)]
    assert len(cut) == 8
    for name in cut:
        to, source, size = declared[name]
        assert size.startswith("size_t ")
        assert "ize" not in to + source
