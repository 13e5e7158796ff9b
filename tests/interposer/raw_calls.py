# SPDX-License-Identifier: BSD-3-Clause
"""Calls of the driver with the bytes of their structs."""

from __future__ import annotations

import struct

from tests.support.machine import Program

#: CUmemAllocationProp and CUmemPoolProps: device memory of GPU 0.
PROPERTIES = struct.pack("<iiiiQQ", 1, 0, 1, 0, 0, 0).hex()
POOL = struct.pack("<iiiiQQ56x", 1, 0, 1, 0, 0, 0).hex()
#: The fields of an IPC handle: a mark, the name of the process's socket, and the owner of the memory.
TOKEN = struct.Struct("<8sQQQQiI")


def raw(program: Program, function: str, *arguments: int | str | None) -> int:
    """Call a function that succeeds, and return what it wrote first."""
    answer = program.call("raw", function=function, arguments=list(arguments))
    assert answer["result"] == 0, (function, answer, program.errors)
    return int.from_bytes(bytes.fromhex(answer["out"][0])[:8], "little") if answer["out"] else 0
