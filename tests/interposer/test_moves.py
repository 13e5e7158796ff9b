# SPDX-License-Identifier: BSD-3-Clause
"""While memory moves, and where there are many blocks of it: what threads wait for, and how long a walk takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nvidia
import pytest

from tests.interposer.rows import MAPPED_EMPTY, Runner, evict
from tests.support.machine import Machine
from tests.support.sim import LIBRARIES, MIB

HERE = Path(__file__).parent
CHANGES = """
import faulthandler, threading
faulthandler.dump_traceback_later(100, exit=True)
use()
sim = ctypes.CDLL(os.environ["GPUSHARE_DRIVER"])

def injected():
    counted = Counters()
    sim.gpushare_sim_counters(ctypes.byref(counted), ctypes.sizeof(counted))
    return counted.injected

def hang_at(calls):
    assert sim.gpushare_sim_fail(f"{calls}/hang".encode()) == 0

def go_on():
    assert sim.gpushare_sim_fail(b"") == 0

def until(condition):
    while not condition():
        time.sleep(0.001)

size = 32 * MIB
address, handle = mapped(size, 1)
# Nothing has written to it, so it leaves at once, and does not queue behind the copy that hangs.
other = mapped_empty(4 * MIB)
context = ok(driver.cuCtxGetCurrent())
changed = []

def change():
    ok(driver.cuCtxSetCurrent(context))
    changed.append(error(driver.cuMemSetAccess(address, size, [access(0)], 1)))

thread = threading.Thread(target=change)
"""
#: A block of 16 pieces leaves, and the copy of the second does not end. Meanwhile a thread changes the block's mapping.
CHANGE_OF_WHAT_MOVES = """
def sleeps(thread):
    def is_asleep():
        time.sleep(0.001)
        return open(f"/proc/self/task/{thread.native_id}/stat").read().rpartition(")")[2].split()[0] == "S"
    return all(is_asleep() for _ in range(20))

hang_at("cuMemcpyDtoHAsync%gpushare:2")
say("filled")
hear()
until(lambda: injected() == 1)
thread.start()
until(lambda: sleeps(thread))
ok(driver.cuMemSetAccess(other, 4 * MIB, [access(0)], 1))
assert int(ok(driver.cuMemGetAddressRange(other))[1]) == 4 * MIB
hang_at("cuMemcpyDtoHAsync%gpushare:2")
thread.join()
until(lambda: injected() == 2)
assert changed == [0]
go_on()
assert holds(address, size, 1)
"""
#: A thread is changing a block's mapping when an eviction begins, and goes on when all other data has left.
EVICTION_OF_WHAT_CHANGES = """
hang_at("cuMemSetAccess%!gpushare")
thread.start()
until(lambda: injected() == 1)
say("changing")
hear()
go_on()
thread.join()
assert changed == [0]
say("changed")
hear()
assert holds(address, size, 1)
"""


def runner_of(machine: Machine, code: str) -> Runner:
    environ = machine.environment("a")
    environ["LD_PRELOAD"] += f":{LIBRARIES / 'libnvrtc.so.13'}"
    return Runner(environ, MAPPED_EMPTY + CHANGES + code)


def test_a_thread_that_waits_for_a_piece_blocks_no_other_thread(machine: Machine) -> None:
    runner = runner_of(machine, CHANGE_OF_WHAT_MOVES)
    try:
        assert runner.heard() == "filled"
        evict(machine, "a", busy=True)
        runner.tell()
        assert runner.heard() is None
    finally:
        runner.close()


def test_an_eviction_waits_for_a_block_that_a_thread_is_changing(machine: Machine) -> None:
    def resident() -> int:
        return sum(gpu["resident"] for gpu in machine.group("a")["gpus"])

    runner = runner_of(machine, EVICTION_OF_WHAT_CHANGES)
    try:
        assert runner.heard() == "changing"
        evict(machine, "a", busy=True)
        machine.until(lambda: resident() == 32 * MIB)
        runner.tell()
        assert runner.heard() == "changed"
        machine.until(lambda: resident() == 0)
        runner.tell()
        assert runner.heard() is None
    finally:
        runner.close()


def names(compiled: Path, kind: str) -> set[str]:
    """Return the names of one kind that the symbols of an object have."""
    command = ["nm", "--format=just-symbols", kind, str(compiled)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Return the program that counts the steps of a visit."""
    csrc, folder = root / "csrc", tmp_path_factory.mktemp("visits")
    headers = {
        name: next(h for p in nvidia.__path__ for h in Path(p).glob(f"*/include/{name}"))
        for name in ("cuda.h", "nvml.h")
    }
    include, nvml = headers["cuda.h"].parent, headers["nvml.h"]
    command = [sys.executable, str(csrc / "generate.py"), "--out", str(folder / "gen")]
    subprocess.run([*command, "--include", str(include), "--nvml", str(nvml)], check=True)
    interop = csrc / "compat/interop"
    command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O1", "-pthread", "-Wall", "-Wextra"]
    command += ["-Werror", "-D_GNU_SOURCE", "-D__CUDA_API_VERSION_INTERNAL"]
    command += [f"-I{path}" for path in (csrc / "interposer", csrc, folder / "gen", interop)]
    command += ["-isystem", str(include), "-include", str(interop / "driver.h")]
    counted = folder / "blocks.o"
    source = csrc / "interposer/memory/blocks.c"
    coverage = ["-fsanitize-coverage=trace-pc", "-c", "-o", str(counted), str(source)]
    subprocess.run([*command, *coverage], check=True)
    defines = folder / "visits.o"
    subprocess.run([*command, "-c", "-o", str(defines), str(HERE / "visits.c")], check=True)
    # What visits do not come to is not there.
    missing = names(counted, "--undefined-only") - names(defines, "--defined-only")
    command += [f"-Wl,--defsym={name}=0" for name in missing if name.startswith("gs_")]
    command += ["-o", str(folder / "visits")]
    subprocess.run([*command, str(defines), str(counted)], check=True)
    return folder / "visits"


def test_a_visit_of_all_blocks_takes_as_many_steps_as_there_are_blocks(visits: Path) -> None:
    """Peer access is set so, and the memory of a context that has failed is given back so."""

    def steps(count: int) -> int:
        done = subprocess.run([visits, str(count)], capture_output=True, text=True, check=True)
        visited, taken = map(int, done.stdout.split())
        assert visited == count * 3 // 4
        return taken

    assert steps(40_000) < 45 * steps(1_000)
