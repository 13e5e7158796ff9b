# SPDX-License-Identifier: BSD-3-Clause
"""Clients that hold more than stated are named, and processes that are no clients are listed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

import jupyter_gpushare
from jupyter_gpushare.scheduler.observability.usage_audit import (
    BESIDE,
    PART,
    READINGS,
    TOLERANCE,
    Claim,
    UsageAudit,
)
from tests.support.client import PATIENCE
from tests.support.scheduler import GIB, Scheduler, state, until

MIB = 1 << 20
SIMULATED = str(Path(jupyter_gpushare.__file__).parent / "lib" / "sim")
#: Allocates without the interposer, and waits to be ended.
OUTSIDE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(int(sys.argv[1]))) == 0
print("there", flush=True)
sys.stdin.read()
"""


def claim(
    size: int,
    client: int = 1,
    *,
    exact: bool = True,
    context: int = 0,
    charged: int = 0,
    spare: int = 0,
) -> Claim:
    return Claim(client, f"g{client}", "ada", size, exact, context, charged, spare)


def test_a_client_above_its_statement_in_several_readings_is_named_once() -> None:
    suspicion = UsageAudit()
    stated, held = {7: [claim(GIB)]}, {7: 2 * GIB}
    for _ in range(READINGS - 1):
        assert suspicion.observe("G", held, stated) == []
        assert suspicion.findings == []
    (named,) = suspicion.observe("G", held, stated)
    assert (named.user, named.group, named.pid, named.excess) == ("ada", "g1", 7, GIB)
    assert suspicion.observe("G", held, stated) == []
    (shown,) = suspicion.status({7: (1000, "ada")})
    assert (shown["code"], shown["bytes"], shown["claimed"]) == ("underreported", 2 * GIB, GIB)
    # Once it holds what it states, the count starts again.
    suspicion.observe("G", {7: GIB}, stated)
    assert suspicion.findings == []
    assert suspicion.observe("G", held, stated) == []


def test_a_single_normal_reading_clears_the_suspicion() -> None:
    suspicion = UsageAudit()
    for size in (2 * GIB, GIB) * 3 * READINGS:
        assert suspicion.observe("G", {7: size}, {7: [claim(GIB)]}) == []


def test_clients_of_one_process_count_together_and_unknown_processes_are_listed() -> None:
    suspicion = UsageAudit()
    stated = {7: [claim(GIB, 1), claim(GIB, 2)]}
    for _ in range(2 * READINGS):
        assert suspicion.observe("G", {7: 2 * GIB, 9: MIB}, stated) == []
    (outside,) = suspicion.status({9: (33, "www-data")})
    assert outside == {
        "gpu": "G", "pid": 9, "code": "outside", "user": "www-data", "uid": 33, "group": None,
        "bytes": MIB, "claimed": 0,
    }  # fmt: skip
    suspicion.observe("G", {}, {})
    assert suspicion.findings == []


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_no_client_is_named_within_the_tolerance(size: int, stated: int) -> None:
    suspicion = UsageAudit()
    named = [suspicion.observe("G", {7: size}, {7: [claim(stated)]}) for _ in range(READINGS)]
    assert any(named) == (size - stated > TOLERANCE + PART * stated)


def test_contexts_are_measured_while_memory_does_not_move() -> None:
    suspicion = UsageAudit()
    stated = {7: [claim(GIB, 1, context=64 * MIB)], 8: [claim(GIB, 2, context=64 * MIB)]}
    suspicion.observe("G", {7: GIB + 200 * MIB, 8: GIB + 10 * MIB, 9: GIB}, stated)
    # Besides what NVML says of a process, the driver holds a little for it.
    assert suspicion.measured == {1: 200 * MIB + BESIDE, 2: 10 * MIB + BESIDE}
    # While its memory moves, a reading says nothing of it.
    moving = {**stated, 7: [claim(2 * GIB, 1, exact=False)]}
    suspicion.observe("G", {7: GIB + 50 * MIB, 8: GIB + 10 * MIB}, moving)
    assert suspicion.measured.keys() == {2}
    # A process that is suspected holds more than a context would.
    suspicion.observe("G", {7: 2 * GIB, 8: GIB + 10 * MIB}, stated)
    assert suspicion.measured.keys() == {2}
    suspicion.observe("G", {8: GIB + 10 * MIB}, {7: stated[7]})
    assert suspicion.measured == {}


def test_one_reading_between_a_free_and_its_statement_changes_no_charge() -> None:
    suspicion = UsageAudit()
    stated = {7: [claim(GIB, context=64 * MIB, charged=300 * MIB)]}
    taken = 300 * MIB - BESIDE
    for held in (GIB + taken, taken, GIB + taken):
        suspicion.observe("G", {7: held}, stated)
        assert suspicion.measured == {1: 300 * MIB}
    suspicion.unsettled = False
    suspicion.observe("G", {7: GIB + 2 * taken}, stated, GIB)
    assert suspicion.measured == {1: 300 * MIB}
    assert suspicion.unsure
    suspicion.observe("G", {7: GIB + 2 * taken}, stated, GIB)
    assert suspicion.measured == {1: 2 * taken + BESIDE}


def test_memory_yet_to_be_allocated_hides_no_context() -> None:
    suspicion = UsageAudit()
    stated = {7: [claim(2 * GIB, context=64 * MIB, charged=64 * MIB, spare=GIB)]}
    # It may have allocated a moment ago, without having stated so yet: one reading does not suffice.
    suspicion.observe("G", {7: GIB + 200 * MIB}, stated)
    assert suspicion.measured == {1: 64 * MIB}
    assert suspicion.unsure
    suspicion.unsettled = False
    suspicion.observe("G", {7: GIB + 100 * MIB}, stated)
    assert suspicion.measured == {1: 100 * MIB + BESIDE}
    suspicion.observe("G", {7: GIB + 100 * MIB}, stated)
    suspicion.unsettled = False
    suspicion.observe("G", {7: GIB + 100 * MIB}, stated)
    assert not suspicion.unsure


@given(st.lists(st.integers(0, 1 << 30), min_size=1, max_size=4), st.integers(0, 1 << 28))
def test_the_clients_of_one_process_are_charged_for_its_contexts_together(
    contexts: list[int], taken: int
) -> None:
    suspicion = UsageAudit()
    stated = {7: [claim(GIB, n, context=size) for n, size in enumerate(contexts)]}
    held = GIB * len(contexts) + taken
    suspicion.observe("G", {7: held}, stated, GIB)
    assert sum(suspicion.measured.values()) == taken + min(BESIDE, held // 64)


def test_contexts_of_the_usual_size_are_no_suspicion() -> None:
    """On a small GPU they take far more than they were admitted with."""
    suspicion = UsageAudit()
    for _ in range(2 * READINGS):
        assert suspicion.observe("G", {7: 600 * MIB}, {7: [claim(0, context=MIB)]}, 512 * MIB) == []
    assert suspicion.findings == []


def test_a_program_outside_is_listed_with_its_user_and_charged_as_foreign_use(
    scheduler: Scheduler, environ: dict[str, str]
) -> None:
    command = [sys.executable, "-c", OUTSIDE, str(GIB)]
    with subprocess.Popen(
        command,
        env={**environ, "LD_LIBRARY_PATH": SIMULATED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"there\n"

        def listed() -> bool:
            with scheduler.control() as control:
                status = control.request("status")["status"]
            (gpu,) = status["gpus"]
            found = [one for one in status["processes"] if one["pid"] == program.pid]
            return bool(found) and found[0]["bytes"] >= GIB and gpu["foreign"] >= GIB

        until(listed)
        with scheduler.control() as control:
            (one,) = control.request("status")["status"]["processes"]
        assert (one["code"], one["uid"]) == ("outside", os.getuid())
        program.communicate(timeout=PATIENCE)


@contextlib.contextmanager
def understating(
    scheduler: Scheduler, environ: dict[str, str], size: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client that says that it has nothing, in a process that has something."""
    client = OUTSIDE.replace(
        'print("there", flush=True)',
        "from pathlib import Path\n"
        "from tests.support.client import FakeClient\n"
        "client = FakeClient(Path(sys.argv[2]), 'liar', sys.argv[3], name='liar.ipynb')\n"
        "client.attach()\n"
        "client.change(client.usage)\n"
        'print("there", flush=True)',
    )
    with subprocess.Popen(
        [sys.executable, "-c", client, str(size), str(scheduler.path), scheduler.gpu],
        env={**environ, "LD_LIBRARY_PATH": SIMULATED},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"there\n"
        yield program


def test_context_memory_beyond_the_statement_is_not_foreign_use(
    scheduler: Scheduler, environ: dict[str, str]
) -> None:
    with understating(scheduler, environ, 64 * MIB) as program:

        def gpu() -> dict[str, Any]:
            with scheduler.control() as control:
                return dict(control.request("status")["status"]["gpus"][0])

        until(lambda: gpu()["contexts"] >= 64 * MIB)
        assert gpu()["foreign"] == 0
        program.communicate(timeout=PATIENCE)
        until(lambda: gpu()["contexts"] == gpu()["foreign"] == 0)


def test_a_client_that_states_less_than_it_holds_is_named(
    scheduler: Scheduler, environ: dict[str, str]
) -> None:
    with understating(scheduler, environ, GIB) as program:

        def notices() -> list[dict[str, object]]:
            with scheduler.control() as control:
                found = control.request("status")["status"]["notices"]
            return [one["params"] for one in found if one["code"] == "underreported"]

        until(lambda: bool(notices()))
        (params,) = notices()
        assert params["pid"] == program.pid
        assert params["user"] == state(scheduler, "liar")["user"]
        with scheduler.control() as control:
            (gpu,) = control.request("status")["status"]["gpus"]
        # Whatever it states, its memory is promised to no other.
        assert gpu["foreign"] >= GIB
        program.communicate(timeout=PATIENCE)
