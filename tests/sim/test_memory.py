# SPDX-License-Identifier: BSD-3-Clause
"""Capacity, virtual memory, managed memory and what NVML says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sim.programs import VIRTUAL, used
from tests.support.sim import MIB, Talker, command, run

Machine = Callable[..., dict[str, str]]
Talk = Callable[[dict[str, str], str], Talker]

HOLD = """
device = use()
block = driver.cuMemAlloc({bytes})
say(error(block))
hear()
"""


def test_two_processes_share_the_capacity(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="4MiB")
    first = talk(environment, HOLD.format(bytes=40 * MIB))
    assert first.heard() == "0"
    second = talk(environment, HOLD.format(bytes=20 * MIB))
    assert second.heard() == "2"
    assert used(environment) == 48 * MIB
    first.tell()
    assert first.close() == 0
    third = talk(environment, HOLD.format(bytes=20 * MIB))
    assert third.heard() == "0"


def test_a_killed_process_frees_its_memory(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="4MiB")
    first = talk(environment, HOLD.format(bytes=50 * MIB))
    assert first.heard() == "0"
    first.kill()
    second = talk(environment, HOLD.format(bytes=50 * MIB))
    assert second.heard() == "0"


def test_processes_in_pid_namespaces_of_their_own_count_like_any_other(
    machine: Machine, talk: Talk
) -> None:
    """As a driver's do in containers: alive or not, by the process id that the caller sees."""
    apart = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine permits no namespaces")
    environment = machine(memory="64MiB", context="4MiB")
    code = HOLD.format(bytes=40 * MIB).replace("hear()", "say(str(os.getpid()))\nhear()")
    with subprocess.Popen(
        [*apart, *command(code)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert [first.stdout.readline().strip() for _ in range(2)] == ["0", "1"]
        assert used(environment) == 44 * MIB
        (child,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        run(
            environment,
            f"""
            import pynvml
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            (found,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            assert (found.pid, found.usedGpuMemory) == ({child}, 44 << 20), found
            """,
        )
        second = talk(environment, HOLD.format(bytes=40 * MIB))
        assert second.heard() == "2"
        first.kill()
        first.communicate()
    third = talk(environment, HOLD.format(bytes=40 * MIB))
    assert third.heard() == "0"


def test_dying_process_holds_its_bytes_until_its_teardown(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="4MiB", teardown_ms=3_000)
    first = talk(environment, HOLD.format(bytes=50 * MIB))
    assert first.heard() == "0"
    first.kill()
    assert used(environment) == 54 * MIB
    deadline = time.monotonic() + 60
    while used(environment) != 0:
        assert time.monotonic() < deadline


def test_a_killed_process_frees_the_compute_engine(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="4MiB")
    code = """
    device = use()
    stream = device.create_stream()
    kernel = compile(ADD).get_kernel("add")
    block = ok(driver.cuMemAlloc(64))
    ok(driver.cuMemsetD32(block, 0, 16))
    say()
    hear()
    for _ in range(3):
        run_add(stream, kernel, block, 16)
    say("running")
    """
    holder = talk(environment | {"GPUSHARE_SIM_KERNEL_NS": "600000000000"}, code + "hear()\n")
    waiter = talk(
        environment, code + "stream.sync()\n    say(str(read(block, 1)[0]))\n    hear()\n"
    )
    assert (holder.heard(), waiter.heard()) == ("ready", "ready")
    holder.tell()
    assert holder.heard() == "running"
    holder.kill()
    waiter.tell()
    assert waiter.heard() == "running"
    assert waiter.heard() == "3.0"


def test_evict_and_restore_at_the_same_address(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
copy = read(address, COUNT)
unmap()
assert free() == empty, "what is unmapped and released is free"
map()
assert (read(address, COUNT, np.uint8) == 0xCD).all(), "fresh memory is poisoned"
write(address, copy)
run_add(stream, kernel, address, COUNT)
stream.sync()
assert (read(address, COUNT) == data + np.float32(1)).all()
""",
    )


def test_a_forgotten_copy_back_is_visible(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
unmap()
map()
run_add(stream, kernel, address, COUNT)
stream.sync()
assert not (read(address, COUNT) == data + np.float32(1)).any()
""",
    )


@pytest.mark.parametrize("forgotten", ["map", "access"])
def test_forgotten_mapping_is_an_illegal_address(machine: Machine, forgotten: str) -> None:
    run(
        machine(),
        VIRTUAL
        + f"""
unmap()
if {forgotten!r} == "access":
    map(give_access=False)
"""
        + """
run_add(stream, kernel, address, COUNT)
raw = driver.CUstream(int(stream.handle))
assert error(driver.cuStreamSynchronize(raw)) == 700
assert error(driver.cuMemAlloc(64)) == 700, "the error is sticky"
assert error(driver.cuMemcpyDtoH(data.ctypes.data, address, 4)) == 700
ok(driver.cuDevicePrimaryCtxReset(0))
""",
    )


def test_abort_on_fault(machine: Machine) -> None:
    done = run(
        machine(abort_on_fault=1),
        VIRTUAL + "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        "unmap()\nrun_add(stream, kernel, address, COUNT)\nstream.sync()\n",
        check=False,
    )
    assert done.returncode == -6, done.stderr


def test_header_rules_of_virtual_memory(machine: Machine) -> None:
    run(
        machine(),
        VIRTUAL
        + """
half = SIZE // 2
assert error(driver.cuMemUnmap(address, half)) == 1, "only whole mappings"
assert error(driver.cuMemAddressFree(address, SIZE)) == 1, "not while something is mapped"
assert error(driver.cuMemCreate(SIZE + 1, properties, 0)) == 1, "granularity"
handle = ok(driver.cuMemRetainAllocationHandle(int(address)))
assert error(driver.cuMemMap(address, SIZE, 0, handle, 0)) == 1, "already mapped"
unmap()
assert free() < empty, "a retained handle keeps its memory"
ok(driver.cuMemRelease(handle))
assert free() == empty
assert error(driver.cuMemRelease(handle)) == 1
ok(driver.cuMemAddressFree(address, SIZE))
""",
    )


def test_managed_thrash_costs_faults_and_prefetch_does_not(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB", fault_bandwidth="4GiB", bandwidth="64GiB")
    code = """
    device = use()
    stream = device.create_stream()
    kernel = compile(ADD).get_kernel("add")
    SIZE = 48 << 20
    raw = driver.CUstream(int(stream.handle))
    block = ok(driver.cuMemAllocManaged(SIZE, 1))
    ok(driver.cuMemsetD32Async(block, 0, SIZE // 4, raw))
    stream.sync()
    place = driver.CUmemLocation()
    say()
    for line in sys.stdin:
        if line.strip() != "launch":
            host = line.strip() == "out"
            kinds = driver.CUmemLocationType
            place.type = kinds.CU_MEM_LOCATION_TYPE_HOST if host else kinds.CU_MEM_LOCATION_TYPE_DEVICE
            place.id = 0
            ok(driver.cuMemPrefetchAsync(block, SIZE, place, 0, raw))
        else:
            run_add(stream, kernel, block, SIZE // 4)
        stream.sync()
        now = counters()
        say(f"{now.faulted} {now.prefetched} {now.stolen}")
    """
    pair = [talk(environment, code) for _ in range(2)]
    for one in pair:
        assert one.heard() == "ready"

    def do(one: Talker, what: str) -> list[int]:
        one.tell(what)
        return [int(figure) for figure in one.heard().split()]

    do(pair[0], "launch")
    do(pair[1], "launch")
    before = do(pair[0], "launch")
    do(pair[1], "launch")
    after = do(pair[0], "launch")
    assert after[0] - before[0] >= 32 * MIB, "each turn faults in what the other pushed out"
    assert after[2] - before[2] >= 32 * MIB
    do(pair[0], "out")
    do(pair[1], "in")
    before = do(pair[1], "launch")
    do(pair[1], "out")
    resident = do(pair[0], "in")
    final = do(pair[0], "launch")
    assert final[0] == resident[0], "what was prefetched does not fault"
    assert before[1] > 0
    assert used(environment) == 50 * MIB


def test_one_process_may_oversubscribe_managed_memory(machine: Machine) -> None:
    run(
        machine(memory="16MiB", context="1MiB", fault_bandwidth="16GiB"),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile(ADD).get_kernel("add")
        count = 6 << 20
        block = ok(driver.cuMemAllocManaged(count * 4, 1))
        assert error(driver.cuMemAlloc(count * 4)) == 2
        ok(driver.cuMemsetD32(block, 0, count))
        for turn in range(3):
            before = counters().faulted
            run_add(stream, kernel, block, count)
            stream.sync()
            assert counters().faulted - before >= count * 4
        assert (read(block, count) == 3).all()
        """,
    )


def test_stream_ordered_allocation(machine: Machine) -> None:
    run(
        machine(),
        """
        device = use()
        stream = device.create_stream()
        kernel = compile(ADD).get_kernel("add")
        before = ok(driver.cuMemGetInfo())[0]
        raw = driver.CUstream(int(stream.handle))
        block = ok(driver.cuMemAllocAsync(4 << 20, raw))
        ok(driver.cuMemsetD32Async(block, 0, 1 << 20, raw))
        run_add(stream, kernel, block, 1 << 20)
        host = np.empty(1 << 20, np.float32)
        ok(driver.cuMemcpyDtoHAsync(host.ctypes.data, block, host.nbytes, raw))
        ok(driver.cuMemFreeAsync(block, raw))
        ok(driver.cuStreamSynchronize(raw))
        assert (host == 1).all()
        assert ok(driver.cuMemGetInfo())[0] == before
        assert error(driver.cuMemFree(block)) == 1
        """,
    )


def test_pitched_copies(machine: Machine) -> None:
    run(
        machine(),
        """
        use()
        pointer, pitch = ok(driver.cuMemAllocPitch(100 * 4, 7, 4))
        assert pitch % 512 == 0
        data = np.arange(700, dtype=np.float32).reshape(7, 100)
        back = np.zeros((7, 50), np.float32)
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost = data.ctypes.data
        copy.srcPitch = 400
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice = pointer
        copy.dstPitch = pitch
        copy.WidthInBytes, copy.Height = 400, 7
        ok(driver.cuMemcpy2D(copy))
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.srcDevice = pointer
        copy.srcPitch = pitch
        copy.srcXInBytes = 200
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.dstHost = back.ctypes.data
        copy.dstPitch = 200
        copy.WidthInBytes, copy.Height = 200, 7
        ok(driver.cuMemcpy2D(copy))
        assert (back == data[:, 50:]).all()
        """,
    )


def test_nvml_and_cuda_agree(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="128MiB", reserved="24MiB", context="8MiB", devices=2)
    holder = talk(environment, HOLD.format(bytes=16 * MIB))
    assert holder.heard() == "0"
    code = """
    import pynvml
    device = use()
    block = ok(driver.cuMemAlloc(32 << 20))
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == ok(driver.cuDeviceGetCount()) == 2
    handle = pynvml.nvmlDeviceGetHandleByUUID("GPU-" + device.uuid)
    assert pynvml.nvmlDeviceGetIndex(handle) == 0
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert [memory.free, memory.total - newer.reserved] == ok(driver.cuMemGetInfo()) == [64 << 20, 128 << 20]
    assert newer.reserved == 24 << 20 and newer.used == memory.used - newer.reserved == 64 << 20
    assert [newer.free, newer.total] == [memory.free, memory.total]
    uses = {one.pid: one.usedGpuMemory for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    assert uses[os.getpid()] == 40 << 20 and sorted(uses.values()) == [24 << 20, 40 << 20], uses
    other = pynvml.nvmlDeviceGetHandleByIndex(1)
    assert pynvml.nvmlDeviceGetUUID(other) != pynvml.nvmlDeviceGetUUID(handle)
    assert pynvml.nvmlDeviceGetMemoryInfo(other).used == newer.reserved
    """
    run(environment, code)


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("memory", "two"),
        ("memory", "2GB"),
        ("devices", "17"),
        ("bandwidth", "0"),
        ("compute_capability", "9"),
        ("name", "a/b"),
        ("kernel_ns", "-1"),
    ],
)
def test_malformed_parameters_are_named(machine: Machine, parameter: str, value: str) -> None:
    environment = machine() | {f"GPUSHARE_SIM_{parameter.upper()}": value}
    done = run(environment, "print(error(driver.cuInit(0)))")
    assert done.stdout.strip() == "1"
    (line,) = done.stderr.splitlines()
    assert f"GPUSHARE_SIM_{parameter.upper()}='{value}'" in line


def test_the_first_process_fixes_the_machine(machine: Machine, talk: Talk) -> None:
    environment = machine(memory="64MiB", context="1MiB")
    first = talk(environment, HOLD.format(bytes=MIB))
    assert first.heard() == "0"
    code = "use(); print(ok(driver.cuMemGetInfo())[1])"
    late = subprocess.run(
        command(code),
        env=environment | {"GPUSHARE_SIM_MEMORY": "128MiB"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert late.stdout.strip() == str(64 * MIB)
    assert len(late.stderr.splitlines()) == 1
    assert "GPUSHARE_SIM_MEMORY" in late.stderr
    first.tell()
    assert first.close() == 0
    again = run(environment | {"GPUSHARE_SIM_MEMORY": "128MiB"}, code)
    assert again.stdout.strip() == str(128 * MIB)
