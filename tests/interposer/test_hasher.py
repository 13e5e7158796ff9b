# SPDX-License-Identifier: BSD-3-Clause
"""Device memory is hashed by a CUDA kernel of the interposer, which the simulated driver recognises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nvidia
import pytest

from tests.support.sim import sim_env

HERE = Path(__file__).parent
UNIT = 2 << 20
#: Runs the program in a given way, on a simulated machine with these parameters: its last lines.
Hash = Callable[..., list[str]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Return the program that hashes."""
    csrc, folder = root / "csrc", tmp_path_factory.mktemp("hasher")
    include = next(h.parent for p in nvidia.__path__ for h in Path(p).glob("*/include/cuda.h"))
    make = ["make", "--silent", "-C", str(csrc), f"PYTHON={sys.executable}", f"BUILD={folder}"]
    subprocess.run([*make, f"{folder}/gen/digest_ptx.h"], check=True)
    interop = csrc / "compat/interop"
    command = ["cc", "-std=gnu11", "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
    command += ["-D_GNU_SOURCE", "-D__CUDA_API_VERSION_INTERNAL", "-DGS_LOCK_RANKS"]
    command += [f"-I{path}" for path in (csrc / "interposer", csrc, folder / "gen", interop)]
    command += ["-isystem", str(include), "-include", str(interop / "driver.h")]
    command += [
        str(csrc / f"interposer/{name}.c") for name in ("memory/hasher", "base/lock", "base/print")
    ]
    command += [str(folder / "gen/real_names.c"), str(HERE / "hasher.c")]
    subprocess.run([*command, "-o", str(folder / "hasher"), "-ldl"], check=True)
    return folder / "hasher"


@pytest.fixture
def hash_memory(program: Path) -> Hash:
    """Return a function that runs the program and checks that all is well."""

    def run(way: str, **parameters: str | int) -> list[str]:
        with sim_env(None, **parameters) as environment:
            environment["GPUSHARE_LOG"] = "debug"
            done = subprocess.run([program, way], env=environment, capture_output=True, text=True)
        *lines, last = done.stdout.splitlines() or [f"status {done.returncode}"]
        assert last == "done", done.stdout + done.stderr
        return lines + done.stderr.splitlines()

    return run


@pytest.mark.parametrize("way", ["compare", "zero", "limits", "contexts", "capture"])
@pytest.mark.parametrize("strict", [0, 1])
def test_digests_are_as_defined(hash_memory: Hash, way: str, strict: int) -> None:
    assert hash_memory(way, strict=strict) == []


def test_a_driver_that_refuses_the_kernel_is_asked_once(hash_memory: Hash) -> None:
    lines = hash_memory("refused", fail="cuModuleLoadData:1=INVALID_IMAGE")
    assert lines == ["gpushare: evicted data is not hashed (CUDA error 200)"]


@pytest.mark.parametrize(
    "call", ["cuModuleLoadData", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate:2"]
)
def test_a_full_gpu_is_asked_again(hash_memory: Hash, call: str) -> None:
    number = "" if ":" in call else ":1"
    lines = hash_memory("refused-once", fail=f"{call}{number}=OUT_OF_MEMORY")
    assert lines == ["gpushare: evicted data is not hashed (CUDA error 2)"]


@pytest.mark.parametrize("way", ["lost", "lost-silently"])
def test_a_launch_without_effect_gives_no_digest(hash_memory: Hash, way: str) -> None:
    hash_memory(way, fail="cuLaunchKernel:1=UNKNOWN/later")


@pytest.mark.parametrize(
    ("ignored", "seen"), [(None, "different"), (5000, "equal"), (5001, "different")]
)
def test_a_digest_can_be_made_to_ignore_a_byte(
    hash_memory: Hash, ignored: int | None, seen: str
) -> None:
    parameters: dict[str, int] = {} if ignored is None else {"digest_ignores": ignored}
    assert hash_memory("byte-5000", **parameters) == [seen]


def test_hashing_takes_the_time_of_reading_the_memory(hash_memory: Hash) -> None:
    [line] = hash_memory("duration", memory_bandwidth="64MiB")
    took, kernels, hashed = map(int, line.split())
    assert took >= 125_000_000
    assert (kernels, hashed) == (0, 4 * UNIT)


def test_an_instant_driver_refuses_the_kernel(hash_memory: Hash) -> None:
    """It computes nothing, so the digests would be wrong."""
    lines = hash_memory("refused", instant=1)
    assert lines == ["gpushare: evicted data is not hashed (CUDA error 200)"]
