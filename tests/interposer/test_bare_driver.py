# SPDX-License-Identifier: BSD-3-Clause
"""No program is worse off than on the bare driver: each row runs twice, as those of ``test_kinds.py`` do."""

from __future__ import annotations

import pytest

from tests.interposer.conftest import Machine
from tests.interposer.test_kinds import run_alone, run_shared

ROWS = {
    "a kernel that was launched before an allocation writes to it": """
use()
stream = stream_of()
code = compile('''extern "C" __global__ void deliver(volatile unsigned long long *mailbox) {
    while (!mailbox[0]) {}
    *(volatile unsigned *)mailbox[0] = 42;
}''')
function = function_of(code, "deliver")
host = ok(driver.cuMemHostAlloc(4096, 0))
mailbox = np.frombuffer((ctypes.c_char * 4096).from_address(int(host)), np.uint64)
for allocate in (
    lambda: ok(driver.cuMemAlloc(4 * MIB)),
    lambda: ok(driver.cuMemAllocAsync(4 * MIB, stream_of())),
    lambda: mapped_empty(4 * MIB),
):
    mailbox[:] = 0
    assert start(function, stream, host) == 0
    block = allocate()
    mailbox[0] = int(block)
    ok(driver.cuStreamSynchronize(stream))
    step()
    assert read(block, 1, np.uint32)[0] == 42
""",
}

MAPPED_EMPTY = """
def mapped_empty(size):
    address = reserve(size)
    ok(driver.cuMemMap(address, size, 0, ok(driver.cuMemCreate(size, properties(), 0)), 0))
    ok(driver.cuMemSetAccess(address, size, [access(0)], 1))
    return address
"""


@pytest.mark.parametrize("row", ROWS)
def test_it_is_as_without_us(machine: Machine, row: str) -> None:
    code = MAPPED_EMPTY + ROWS[row]
    assert run_alone(code) == run_shared(machine, code) > 0
