# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints that the driver refuses, and checkpoints that fail."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.sim.checkpoint_process import (
    CHECKPOINTED,
    EVERY,
    FAILED,
    ILLEGAL_STATE,
    LOCKED,
    NOT_INITIALIZED,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    RICH,
    RUNNING,
    STEPS,
    UNKNOWN,
    Start,
)
from tests.support.sim import PRELUDE

Machine = Callable[..., dict[str, str]]

THREAD = """(lambda tid: (
    lib.cuCheckpointProcessGetRestoreThreadId({}, ctypes.byref(tid)), tid.value
))(ctypes.c_int())"""


def test_wrong_order_and_wrong_arguments_are_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    gone = start(environment)
    gone.kill()
    for pid, result in (
        *((target.pid, NOT_INITIALIZED), (os.getpid(), NOT_INITIALIZED)),
        *((gone.pid, OPERATING_SYSTEM), (2**22 + 1, OPERATING_SYSTEM), (0, 1), (-1, 1)),
    ):
        every = f"{EVERY.format(pid)}, {THREAD.format(pid)}[0]"
        assert hibernator(every) == (-result, *[result] * 5)
        # The first query comes before any use of the machine.
        hibernator("lib.cuInit(0)")
    target("begin(4096)")
    calls = {"lock": RUNNING, "checkpoint": LOCKED, "restore": CHECKPOINTED, "unlock": LOCKED}
    for step, now in (("", RUNNING), ("lock", LOCKED), ("checkpoint", CHECKPOINTED)):
        if step:
            assert hibernator(f"{step}({target.pid})") == 0
        for name, before in calls.items():
            if before != now:
                assert hibernator(f"{name}({target.pid})") == ILLEGAL_STATE, (name, now)
        assert other(f"state({target.pid})") == now, "whichever process asks"
    assert other(f"restore({target.pid}), unlock({target.pid})") == (0, 0)
    # Arguments: what is reserved is zero, and storage of the caller's is not there.
    nonzero = "(ctypes.c_ubyte * 64)(*[0] * 60, 1, 0, 0, 0)"
    for name in ("Lock", "Checkpoint", "Restore", "Unlock"):
        assert hibernator(f"lib.cuCheckpointProcess{name}({target.pid}, {nonzero})") == 1
    storage = "(ctypes.c_uint64 * 8)({})"
    for name, at in (("Checkpoint", "1"), ("Restore", "0, 0, 1")):
        code = f"lib.cuCheckpointProcess{name}({target.pid}, {storage.format(at)})"
        assert hibernator(code) == NOT_SUPPORTED
    assert hibernator("lib.cuCheckpointOperationComplete(None)") == NOT_SUPPORTED
    assert hibernator(f"lib.cuCheckpointProcessGetState({target.pid}, None)") == 1
    result, tid = hibernator(THREAD.format(target.pid))
    assert result == 0
    with open(f"/proc/{target.pid}/task/{tid}/comm") as file:
        assert file.read() == "sim-checkpoint\n"
    # A process may do it to itself, and is heard by another machine's not at all.
    me = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert target(me) == (0, 0, 0, 0)
    assert start(machine())(f"state({target.pid})") == -NOT_INITIALIZED


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_a_caller_without_access_to_a_process_is_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    hibernator("lib.cuInit(0); os.setuid(65534)")
    for code in ("", "begin(4096)"):
        target(code)
        assert hibernator(EVERY.format(target.pid)) == (-OPERATING_SYSTEM, *[OPERATING_SYSTEM] * 4)


def test_injected_failures_leave_the_state(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    for step, before in zip(STEPS, (RUNNING, LOCKED, CHECKPOINTED, LOCKED), strict=True):
        call = f"{step.lower()}({target.pid})"
        for side in (target, hibernator):
            assert side(f"fail('cuCheckpointProcess{step}:1=NOT_PERMITTED')") == 0
            assert hibernator(f"{call}, state({target.pid})") == (800, before)
            assert side(f"fail('cuCheckpointProcess{step}:1/30ms')") == 0
            assert hibernator(
                f"t = time.monotonic(); r = {call}; r, time.monotonic() - t >= 0.03"
            ) == (
                0,
                True,
            )
            if side is target:  # back
                back = {"Lock": "unlock", "Checkpoint": "restore", "Restore": "checkpoint"}
                assert hibernator(f"{back.get(step, 'lock')}({target.pid})") == 0
        assert side("injected()") > 0
    assert target(f"holds({pointer}, 5, 4096)")
    # In one process, the thread tells what is asked from what is done.
    assert target("fail('cuCheckpointProcessLock%sim-checkpoint=UNKNOWN')") == 0
    assert target(f"lock({target.pid}), injected()") == (UNKNOWN, 9)
    assert target("fail('cuCheckpointProcessLock%!sim-checkpoint=SYSTEM_NOT_READY')") == 0
    assert target(f"lock({target.pid}), injected()") == (802, 10)
    assert hibernator("fail('cuCheckpointProcessGetState=NOT_PERMITTED')") == 0
    assert hibernator(f"state({target.pid})") == -800
    # From the environment, without cuInit; and hanging in the process that asks.
    mine = start({**environment, "GPUSHARE_SIM_FAIL": "cuCheckpointProcessLock:1/hang"})
    mine(f"behind('lock({target.pid})')")
    mine.until("injected()", 1)
    assert mine(f"fail(''), state({target.pid})")[0] == 0
    mine.until(f"state({target.pid})", RUNNING if target("fail('')") else LOCKED)
    mine.until("results", [802 if target("fail('')") else 0])
    # For good: no caller waits for ever, and all data is lost.
    assert target("fail('cuCheckpointProcessCheckpoint=LAUNCH_FAILED/fatal')") == 0
    target("behind('lib.cuCtxSynchronize()')")
    target.until("waiting()", 1)
    assert mine(f"checkpoint({target.pid}), state({target.pid})") == (719, FAILED)
    target.until("results", [719])
    every = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert mine(every) == (ILLEGAL_STATE,) * 4


def test_malformed_effects_are_refused(machine: Machine, start: Start) -> None:
    target = start(machine())
    target("begin()")
    for rule in ("cuMemMap/forget", "cuMemMap/5s", "cuMemMap/ms", "cuMemMap/99999999ms"):
        assert target(f"fail({rule!r})") == -1
    assert target("fail('cuMemGetInfo/1ms,cuMemGetInfo_v2/200ms')") == 0


def test_reservations_may_be_lost(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment, PRELUDE), start(environment)
    target(RICH)
    target("fail('cuCheckpointProcessRestore:1/forget')")
    cycle = (
        f"lock({target.pid}), checkpoint({target.pid}), restore({target.pid}), unlock({target.pid})"
    )
    assert hibernator(cycle) == (0,) * 4
    target(
        """
assert (read(reserved, GRAIN, np.uint8) == contents[int(reserved)]).all(), "what was mapped is there"
ok(D.cuMemMap(int(reserved) + GRAIN, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(int(reserved) + GRAIN, GRAIN))
assert error(D.cuMemMap(empty, GRAIN, 0, spare, 0)) == 1
assert error(D.cuMemMap(empty, GRAIN, 0, spare, 0)) == 1
ok(D.cuMemAddressFree(empty, GRAIN))
again = ok(D.cuMemAddressReserve(GRAIN, 0, int(empty), 0))
assert int(again) == int(empty)
ok(D.cuMemMap(empty, GRAIN, 0, spare, 0))
"""
    )
    assert hibernator(cycle) == (0,) * 4


MANAGED = "p = ctypes.c_uint64(); lib.cuMemAllocManaged(ctypes.byref(p), ctypes.c_size_t(4096), 1)"
IPC = "h = (ctypes.c_char * 64)(); lib.cuIpcGetMemHandle(h, ctypes.c_uint64({}))"
EXPORT = """
class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int), ("id", ctypes.c_int),
                ("rest", ctypes.c_uint64 * 2)]

handle, fd = ctypes.c_uint64(), ctypes.c_int()
size = ctypes.c_size_t(2 << 20)
made = lib.cuMemCreate(ctypes.byref(handle), size, ctypes.byref(Properties(1, 1, 1)), ctypes.c_uint64())
made or lib.cuMemExportToShareableHandle(ctypes.byref(fd), handle, 1, ctypes.c_uint64())
"""


def test_shared_or_managed_memory_is_refused(machine: Machine, start: Start) -> None:
    environment = machine()
    hibernator = start(environment)
    for code in (MANAGED, IPC, EXPORT):
        target = start(environment)
        pointer = target("begin(4096)")
        assert target(f"fill({pointer}, 5, 4096)") == 0
        assert target(code.format(pointer) if code is IPC else code) == 0
        assert hibernator(f"lock({target.pid}), checkpoint({target.pid}), state({target.pid})") == (
            0,
            NOT_SUPPORTED,
            LOCKED,
        )
        assert hibernator(f"unlock({target.pid})") == 0
        assert target(f"holds({pointer}, 5, 4096)")


VERSION = """
version, text, address = ctypes.c_int(), ctypes.create_string_buffer(80), ctypes.c_void_p()
lib.cuDriverGetVersion(ctypes.byref(version))
nvml.nvmlInit_v2()
nvml.nvmlSystemGetDriverVersion(text, 80)
other = ctypes.c_int()
nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(other))
lib.cuGetProcAddress(b"cuCheckpointProcessLock", ctypes.byref(address), 13000, ctypes.c_uint64())
version.value == other.value and version.value, text.value.decode(), address.value is not None
"""


def test_old_drivers_have_no_checkpoints(machine: Machine, start: Start) -> None:
    environment = machine(devices=2)
    assert start(environment)(VERSION) == (13000, "580.00.sim", True)
    new = start(environment)
    for version, text, cuda in (("565.57", "565.57", 12070), ("535", "535.00.sim", 12020)):
        old = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": version})
        assert old(VERSION) == (cuda, text, False)
        old("begin(4096)")
        assert old(EVERY.format(old.pid)) == (-NOT_SUPPORTED, *[NOT_SUPPORTED] * 4)
        assert new(f"state({old.pid})") == -NOT_INITIALIZED
    young = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": "570.86.10"})
    assert young(VERSION) == (12080, "570.86.10", True)
    young("begin(4096)")
    steps = (
        f"lock({young.pid}), checkpoint({young.pid}), restore({young.pid}, (bytes(16), bytes(16)))"
    )
    assert young(steps) == (0, 0, 1), "other GPUs came with 580"
    assert young(f"restore({young.pid}), unlock({young.pid})") == (0, 0)
    wrong = start(environment | {"GPUSHARE_SIM_DRIVER_VERSION": "12.4"})
    assert wrong("lib.cuInit(0), lock(1)") == (1, 1)
