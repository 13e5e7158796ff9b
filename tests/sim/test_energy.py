# SPDX-License-Identifier: BSD-3-Clause
"""The power of simulated GPUs, and the energy that follows from it."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.sim import run

Machine = Callable[..., dict[str, str]]

METER = """
import pynvml
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)

def read():
    '''Return the joules, and the times before and after they were read.'''
    before = time.monotonic()
    joules = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
    return joules, before, time.monotonic()

def watts(work=lambda: time.sleep(0.03)):
    '''Return the least and the greatest mean power for the time of some work.'''
    first, before_first, after_first = read()
    work()
    second, before, after = read()
    spent = second - first
    return (spent - 0.001) / (after - before_first), (spent + 0.001) / (before - after_first)

def takes(expected):
    least, most = watts()
    return least <= expected <= most
"""


def test_the_energy_follows_contexts_and_kernels(machine: Machine) -> None:
    run(
        machine(power_bare=50, power_context=100, power_busy=400, kernel_ns=20_000_000),
        METER
        + """
assert takes(50)
device = use()
assert takes(100)
kernel = compile(ADD).get_kernel("add")
stream = device.create_stream()
block = ok(driver.cuMemAlloc(1 << 20))
def work():
    for _ in range(4):
        run_add(stream, kernel, block, 16)
    stream.sync()
first, begin, after = read()
work()
second, before, end = read()
# Four kernels of 20 ms each, and otherwise only a context.
assert second - first >= 100 * (before - after) + 300 * 0.08 - 0.001
assert second - first <= 400 * (end - begin) + 0.001
ok(driver.cuDevicePrimaryCtxReset(0))
assert takes(50)
""",
    )


def test_the_power_is_the_mean_since_the_last_reading(machine: Machine) -> None:
    run(
        machine(power_bare=50, power_context=100),
        METER
        + """
def power():
    time.sleep(0.025)
    return pynvml.nvmlDeviceGetPowerUsage(handle)
assert power() == power() == 50_000
use()
assert 50_000 <= power() <= 100_000
assert power() == power() == 100_000
""",
    )


def test_nvml_may_lack_either_figure(machine: Machine) -> None:
    code = """
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    if SLICE:
        handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    found = []
    for name in ("TotalEnergyConsumption", "PowerUsage"):
        try:
            getattr(pynvml, "nvmlDeviceGet" + name)(handle)
            found.append(True)
        except pynvml.NVMLError_NotSupported:
            found.append(False)
    assert found == EXPECTED, found
    """
    for parameters, expected in (
        ({"energy": 2}, [True, True]),
        ({"energy": 1}, [False, True]),
        ({"energy": 0}, [False, False]),
        ({"mig": 2}, [False, False]),
    ):
        told = f"SLICE, EXPECTED = {'mig' in parameters}, {expected}\n"
        run(machine(**parameters), told + code.replace("\n    ", "\n"))
