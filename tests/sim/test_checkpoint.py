# SPDX-License-Identifier: BSD-3-Clause
"""The driver's checkpoints: what one process locks, saves and restores of another."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest
from elftools.elf.elffile import ELFFile

from tests.sim.checkpoint_process import (
    CHECKPOINTED,
    EVERY,
    ILLEGAL_STATE,
    LOCKED,
    NOT_READY,
    NOT_SUPPORTED,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    RICH,
    RUNNING,
    STEPS,
    Start,
)
from tests.support.sim import LIBRARIES, PRELUDE
from tests.support.stopping import go_on, stop

Machine = Callable[..., dict[str, str]]

CHECKS = """
for address, data in contents.items():
    assert (read(address, data.size, np.uint8) == data).all(), hex(address)
assert reach() == {True}
assert [can_write(a) for a in contents] == [True, True, True, True, False]
assert read(answer, 1, np.int32)[0] == 43
assert (read(numbers, 256) == 1).all()
assert (read(scratch, 256) == 1).all(), "an allocation of a graph"
back = np.zeros(64, np.uint8)
ok(D.cuMemcpyAtoH(back.ctypes.data, array, 0, 64))
assert (back == line).all()
assert error(D.cuEventQuery(last)) == 0 and ok(D.cuEventElapsedTime(first, last)) == elapsed
ok(D.cuMemFree(scratch))
ok(D.cuGraphLaunch(executable, stream))
launch_add(stream)
ok(D.cuEventRecord(last, stream))
ok(D.cuEventSynchronize(last))
assert (read(numbers, 256) == 3).all()
# Registered and allocated host memory.
assert ctypes.string_at(page_locked, 4096) == bytes([9]) * 4096
ok(D.cuMemcpyDtoHAsync(host.ctypes.data, plain, host.nbytes, stream))
ok(D.cuStreamSynchronize(stream))
assert (host == contents[int(plain)][: host.size]).all()
assert error(D.cuMemHostRegister(host.ctypes.data, host.nbytes, 0)) == 712
# Access is what it was, and all can be mapped, unmapped and freed.
assert int(ok(D.cuMemGetAccess(prop.location, int(reserved) + 2 * GRAIN))) == 1
address = int(reserved) + GRAIN
ok(D.cuMemMap(address, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(address, GRAIN))
ok(D.cuMemMap(empty, GRAIN, 0, spare, 0))
ok(D.cuMemUnmap(empty, GRAIN))
ok(D.cuMemUnmap(reserved, GRAIN))
ok(D.cuMemMap(reserved, GRAIN, 0, handle, 0))
access.flags = WRITE
ok(D.cuMemSetAccess(reserved, GRAIN, [access], 1))
assert (read(reserved, GRAIN, np.uint8) == contents[int(reserved)]).all()
for one in (handle, second, spare):
    ok(D.cuMemRelease(one))
ok(D.cuMemFreeAsync(pooled, stream))
ok(D.cuStreamSynchronize(stream))
ok(D.cuMemFree(plain))
ok(D.cuArrayDestroy(array))
ok(D.cuStreamDestroy(stream))
ok(D.cuLibraryUnload(library))
"""


def test_a_process_is_restored_as_it_was(machine: Machine, start: Start) -> None:
    environment = machine(memory="64MiB", context_growth="3MiB")
    target, hibernator = start(environment, PRELUDE), start(environment)
    target(RICH)
    before, processes = hibernator("used()")
    assert before > 16 + 3 + 3 + 6
    assert processes == 1
    assert target("reach()") == {True}
    assert hibernator(f"lock({target.pid}), state({target.pid}), used()[0]") == (0, LOCKED, before)
    assert hibernator(f"checkpoint({target.pid}), state({target.pid})") == (0, CHECKPOINTED)
    assert hibernator("used()") == (4, 0), "4 MiB stay, and no process is listed"
    assert target("reach()") == {False}
    # What is in use by another process, the contents cannot come back to.
    assert hibernator("begin(); alloc(40 << 20) > 2")
    assert hibernator(f"restore({target.pid}), state({target.pid})") == (
        OUT_OF_MEMORY,
        CHECKPOINTED,
    )
    assert target("reach()") == {False}
    hibernator("lib.cuDevicePrimaryCtxReset_v2(0)")
    assert hibernator(f"restore({target.pid}), state({target.pid}), used()") == (
        0,
        LOCKED,
        (before, 1),
    )
    assert hibernator(f"unlock({target.pid}), state({target.pid})") == (0, RUNNING)
    target(CHECKS)


def exported() -> list[str]:
    """Return all calls that the library has."""
    with (LIBRARIES / "libcuda.so.1").open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
        return sorted(
            symbol.name
            for symbol in symbols
            if symbol["st_shndx"] != "SHN_UNDEF" and re.match(r"cu[A-Z]", symbol.name)
        )


def test_every_call_of_a_locked_process_waits(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    assert hibernator(f"lock({target.pid})") == 0
    free = {
        *("cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"),
        *("cuGetProcAddress", "cuGetProcAddress_v2"),
        *(name for name in exported() if name.startswith("cuCheckpoint")),
    }
    names = [name for name in exported() if name not in free]
    assert len(free) == 12
    assert len(names) > 390
    # One whose end is seen, and the others, which would fall over what they were given.
    target(f"behind('holds({pointer}, 5, 4096)')")
    target(
        f"""
threading.stack_size(128 << 10)
returned = []

def call(name):
    getattr(lib, name)(*[ctypes.c_void_p()] * 12)
    returned.append(name)

for name in {names!r}:
    threading.Thread(target=call, args=(name,), daemon=True).start()
"""
    )
    end = time.monotonic() + 60
    while target("waiting()") != len(names) + 1:
        assert target("returned") == [], "these do not wait"
        assert time.monotonic() < end, "these return: " + str(target("returned"))
        time.sleep(0.01)
    assert target("results, returned") == ([], [])
    text = "ctypes.create_string_buffer(8)"
    assert target(f"lib.cuDriverGetVersion({text})") == 0
    assert target(f"lib.cuGetErrorName(1, {text}), lib.cuGetErrorString(1, {text})") == (0, 0)
    assert target(f"lib.cuGetProcAddress(b'cuInit', {text}, 13000, ctypes.c_uint64())") == 0
    target.kill()
    assert hibernator(f"state({target.pid})") == -OPERATING_SYSTEM


def test_waiting_calls_continue_after_the_restore(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    for between in ("", "checkpoint({0}), restore({0}), "):
        assert hibernator(f"lock({target.pid})") == 0
        target(f"behind('lib.cuCtxSynchronize() or holds({pointer}, 5, 4096)')")
        target.until("waiting()", 1)
        steps = hibernator((between + "unlock({0}),").format(target.pid))
        assert set(steps) == {0}
        target.until("results", [True])
        assert target("results.clear(), waiting()")[1] == 0
    # A child is not locked with its parent, nor can it use the driver.
    assert hibernator(f"lock({target.pid})") == 0
    child = "pid = os.fork()\nif pid == 0: os._exit(lib.cuCtxSynchronize())\n"
    assert target(child + "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])") == 3
    # A locked process can still exit.
    target.send("sys.exit(3)")
    assert target.process.wait(60) == 3


#: Work that lasts until it is told, and a thread that calls the driver until then.
BUSY = """
go = threading.Event()
wait = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait() and None)

def query():
    while not go.is_set():
        lib.cuStreamQuery(None)
    return lib.cuCtxGetCurrent(None)
"""


def test_a_lock_waits_for_work_up_to_its_timeout(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator = start(environment), start(environment)
    pointer = target("begin(4096)")
    target(BUSY)
    assert target("lib.cuLaunchHostFunc(None, wait, None)") == 0
    assert (
        target(f"lib.cuMemsetD8Async(ctypes.c_uint64({pointer}), 3, ctypes.c_size_t(64), None)")
        == 0
    )
    assert hibernator(f"lock({target.pid}, 100), state({target.pid})") == (NOT_READY, RUNNING)
    assert target("lib.cuStreamQuery(None)") == NOT_READY, "it runs, and its work too"
    # So it does if a thread waits for the work. The driver counts the call once the thread is inside.
    assert target("fail('cuCtxSynchronize/0ms')") == 0
    target("behind('lib.cuCtxSynchronize()')")
    target.until("injected()", 1)
    assert hibernator(f"lock({target.pid}, 100), state({target.pid})") == (NOT_READY, RUNNING)
    hibernator.send(f"lock({target.pid})")
    target("behind('query()')")
    target.until("waiting()", 1)
    target("go.set()")
    assert hibernator.answer() == 0
    target.until("results", [0])
    assert target("waiting()") == 1
    assert hibernator(f"unlock({target.pid})") == 0
    target.until("results", [0, 1])
    assert target(f"holds({pointer}, 3, 64)")


def test_a_stopped_process_answers_once_it_continues(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    stop(target.pid)
    hibernator.send(f"state({target.pid}), lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == (RUNNING, 0)
    stop(target.pid)
    hibernator.send(f"state({target.pid}), unlock({target.pid})")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == (LOCKED, 0)
    # The time that a lock is given is for the work alone.
    stop(target.pid)
    hibernator.send(f"lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    go_on(target.pid)
    assert hibernator.answer() == 0
    stop(target.pid)
    hibernator.send(f"checkpoint({target.pid})")
    assert hibernator.is_silent(0.3)
    # The caller is gone; its request is done once the process continues, and a new caller waits for that.
    hibernator.kill()
    other.send(f"state({target.pid})")
    assert other.is_silent(0.3)
    go_on(target.pid)
    assert other.answer() == CHECKPOINTED
    assert other(f"restore({target.pid}), unlock({target.pid})") == (0, 0)
    assert target(f"holds({pointer}, 5, 4096)")
    # A lock whose owner is gone has no effect.
    hibernator = start(environment)
    stop(target.pid)
    hibernator.send(f"lock({target.pid}, 50)")
    assert hibernator.is_silent(0.3)
    hibernator.kill()
    go_on(target.pid)
    target.send(f"holds({pointer}, 5, 4096)")
    assert not target.is_silent(60)
    assert target.answer()
    assert other(f"state({target.pid}), lock({target.pid}), unlock({target.pid})") == (
        RUNNING,
        0,
        0,
    )
    # A process that is killed while it is stopped has ended.
    stop(target.pid)
    other.send(EVERY.format(target.pid))
    assert other.is_silent(0.3)
    target.kill()
    assert other.answer() == (-OPERATING_SYSTEM, *[OPERATING_SYSTEM] * 4)


def test_the_caller_may_be_killed_in_each_step(machine: Machine, start: Start) -> None:
    environment = machine()
    target, other = start(environment), start(environment)
    pointer = target("begin(4096)")
    assert target(f"fill({pointer}, 5, 4096)") == 0
    # The lock is undone; all else goes on to its end.
    after = (RUNNING, CHECKPOINTED, LOCKED, RUNNING)
    for step, reached in zip(STEPS, after, strict=True):
        again = 0 if step == "Lock" else ILLEGAL_STATE
        for code, answers in (("state", reached), (step.lower(), again)):
            hibernator = start(environment)
            before = target("injected()")
            assert target(f"fail('cuCheckpointProcess{step}/hang')") == 0
            hibernator.send(f"{step.lower()}({target.pid})")
            target.until("injected()", before + 1)
            other.send(f"{code}({target.pid})")  # has to wait for what is under way
            assert other.is_silent(0.1)
            hibernator.kill()
            assert other.is_silent(0.1)
            target("fail('')")
            assert other.answer() == answers
            back = {"Checkpoint": "restore", "Restore": "checkpoint", "Unlock": "lock"}
            if code == "state" and step in back:
                assert other(f"{back[step]}({target.pid})") == 0
    assert target(f"holds({pointer}, 5, 4096)")


def test_a_lock_ends_when_its_owner_is_killed(machine: Machine, start: Start) -> None:
    environment = machine()
    target, hibernator, other = start(environment), start(environment), start(environment)
    target("begin(4096)")
    target(BUSY)
    assert target("lib.cuLaunchHostFunc(None, wait, None)") == 0
    hibernator.send(f"lock({target.pid})")
    target("behind('query()')")
    target.until("waiting()", 1)
    hibernator.kill()
    target("go.set()")
    # No other process has to ask for that.
    target.until("results", [1])
    assert other(f"state({target.pid})") == RUNNING


@pytest.mark.parametrize("how", ["hang", "die"])
def test_the_target_may_be_killed_in_each_step(machine: Machine, start: Start, how: str) -> None:
    environment = machine(memory="64MiB")
    hibernator = start(environment)
    for number, step in enumerate(STEPS):
        target = start(environment)
        target("begin(40 << 20)")
        done = hibernator(f"[f({target.pid}) for f in (lock, checkpoint, restore)[:{number}]]")
        assert done == [0] * number
        assert target(f"fail('cuCheckpointProcess{step}/{how}')") == 0
        hibernator.send(f"{step.lower()}({target.pid})")
        if how == "hang":
            target.until("injected()", 1)
            target.kill()
        assert hibernator.answer() == OPERATING_SYSTEM
        assert target.process.wait(60) == -signal.SIGKILL
        assert hibernator(f"state({target.pid}), used()") == (-OPERATING_SYSTEM, (0, 0))


def test_a_process_moves_to_another_gpu(machine: Machine, start: Start) -> None:
    environment = machine(
        devices=4, memory="64MiB,64MiB,16MiB,64MiB", model="A,A,A,B", context="8MiB"
    )
    hibernator = start(environment)
    target = start(environment | {"CUDA_VISIBLE_DEVICES": "0,1"})
    pointer = target("begin(20 << 20)")
    assert target(f"fill({pointer}, 5, 20 << 20)") == 0
    hibernator("lib.cuInit(0)")
    uuids = hibernator("[uuid(i) for i in range(4)]")
    usage = "[used(i)[0] for i in range(3)]"
    assert hibernator(usage) == [28, 0, 0]
    assert hibernator(f"lock({target.pid}), checkpoint({target.pid})") == (0, 0)

    def moved(*pairs: tuple[int, int]) -> object:
        text = ", ".join(f"({uuids[old]!r}, {uuids[new]!r})" for old, new in pairs)
        return hibernator(f"restore({target.pid}, {text})")

    def swapped(one: int, other: int) -> object:
        places = {one: other, other: one}
        return moved(*((i, places.get(i, i)) for i in range(4)))

    stay = (2, 2), (3, 3)
    assert moved((0, 1)) == 1, "each GPU of the machine must be among them"
    assert moved((0, 1), (1, 0)) == moved((0, 1), (1, 0), (2, 2)) == 1
    assert moved((0, 1), (0, 0), *stay) == moved((0, 1), (1, 1), *stay) == 1
    assert hibernator(f"restore({target.pid}, ({uuids[0]!r}, bytes(16)))") == 1
    assert swapped(0, 3) == NOT_SUPPORTED
    assert swapped(0, 2) == OUT_OF_MEMORY
    assert hibernator(f"state({target.pid})") == CHECKPOINTED
    assert hibernator(usage) == [4, 0, 0]
    assert swapped(0, 1) == 0
    assert hibernator(usage) == [0, 28, 0]
    assert hibernator(f"unlock({target.pid})") == 0
    assert target(f"holds({pointer}, 5, 20 << 20)")
    assert target("uuid(0), uuid(1)") == (uuids[1], uuids[0]), "what it did not use takes the place"
    assert target("bus(0)") == "0000:01:00.0", "as it was"
    assert target("begin(4 << 20, 0) > 2 and alloc(1 << 20) > 2")
    assert hibernator(usage) == [0, 33, 0]
    # Now it has something on both, and both change places.
    assert target("begin(2 << 20, 1) > 2")
    assert hibernator(usage) == [10, 33, 0]
    assert hibernator(f"lock({target.pid}), checkpoint({target.pid})") == (0, 0)
    assert hibernator(usage) == [4, 4, 0]
    assert moved((1, 0), (0, 1)) == 1
    assert swapped(1, 0) == 0
    assert hibernator(usage) == [33, 10, 0]
    assert hibernator(f"unlock({target.pid})") == 0
    assert target("uuid(0), uuid(1)") == (uuids[0], uuids[1])
    assert target(f"begin(); lib.cuDevicePrimaryCtxReset_v2(1), holds({pointer}, 5, 20 << 20)") == (
        0,
        True,
    )
    assert hibernator(usage) == [33, 0, 0]


def test_checkpoints_take_time_and_leave_a_residue(machine: Machine, start: Start) -> None:
    environment = machine(
        bandwidth="100MiB", checkpoint_ms=40, restore_ms=20, checkpoint_left="1MiB"
    )
    target, hibernator = start(environment), start(environment)
    target("begin(5 << 20)")
    assert hibernator(f"lock({target.pid})") == 0
    for call, least in (("checkpoint", 0.09), ("restore", 0.07)):
        code = f"t = time.monotonic(); r = {call}({target.pid}); r, time.monotonic() - t >= {least}"
        assert hibernator(code) == (0, True)
        if call == "checkpoint":
            assert hibernator("used()[0]") == 1


def test_page_locked_memory_makes_checkpoints_longer(machine: Machine, start: Start) -> None:
    environment = machine(checkpoint_locked_bandwidth="100MiB")
    target, hibernator = start(environment), start(environment)
    target("begin(1 << 20)")
    allocate = "lib.cuMemHostAlloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(8 << 20), 0)"
    assert target(allocate) == 0
    assert hibernator(f"lock({target.pid})") == 0
    for call in ("checkpoint", "restore"):
        code = f"t = time.monotonic(); r = {call}({target.pid}); r, time.monotonic() - t >= 0.08"
        assert hibernator(code) == (0, True)
