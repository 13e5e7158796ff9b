# SPDX-License-Identifier: BSD-3-Clause
"""Processes that are not parked, because they are busy or have memory that cannot leave the GPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.bed import Bed
from tests.interposer.scripted import PIECE


def refusal(bed: Bed) -> str:
    """Ask, and see that everything goes on."""
    status = bed.park().status
    assert bed.a.call("info")["result"] == 0
    assert bed.hibernator.state(bed.a.pid) == "running"
    return status


def test_a_busy_process_is_not_parked(bed: Bed) -> None:
    pointer = int(bed.a.call("alloc", bytes=PIECE)["pointer"])
    filling = bed.a.start("fill", pointer=pointer, bytes=PIECE, value=7, thread="1")
    bed.script.next(ev.Request)
    bed.script.send(*bed.script.grant(filling=False))
    assert bed.a.result(filling)["result"] == 0
    assert refusal(bed) == "busy"
    bed.take_back()
    bed.parked()


def test_a_process_with_an_open_capture_is_not_parked(bed: Bed) -> None:
    stream = bed.a.call("stream")["stream"]
    begun = bed.a.start("raw", function="cuStreamBeginCapture_v2", arguments=[stream, 2])
    bed.lend()
    assert bed.a.result(begun)["result"] == 0
    assert refusal(bed) == "capture"
    ended = bed.a.call("raw", function="cuStreamEndCapture", arguments=[stream, "out"])
    assert ended["result"] == 0
    bed.take_back()
    bed.parked()


def test_a_process_on_several_gpus_is_not_parked(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(GPUSHARE_SIM_DEVICES="2", GPUSHARE_PLACE="0")
    assert bed.a.call("init", ordinal=1)["result"] == 0
    assert refusal(bed) == "gpus"


def test_a_process_with_managed_memory_is_not_parked(bed: Bed) -> None:
    allocated = bed.a.call("raw", function="cuMemAllocManaged", arguments=["out", 4096, 1])
    assert allocated["result"] == 0
    assert refusal(bed) == "managed"


def test_a_process_that_shares_memory_by_ipc_is_not_parked(bed: Bed) -> None:
    pointer = int(bed.a.call("alloc", bytes=PIECE)["pointer"])
    exported = bed.run("raw", function="cuIpcGetMemHandle", arguments=["out", pointer])
    assert exported["result"] == 0
    assert refusal(bed) == "ipc"


def test_a_process_with_much_unevictable_memory_is_not_parked(make_bed: Callable[..., Bed]) -> None:
    bed = make_bed(GPUSHARE_SIM_MEMORY=str(1 << 30))
    side = 8192
    for status in ("done", "unevictable"):
        descriptor = b"".join(
            value.to_bytes(size, "little")
            for value, size in ((side, 8), (side, 8), (0x20, 4), (1, 4))
        )
        made = bed.a.call("raw", function="cuArrayCreate_v2", arguments=["out", descriptor.hex()])
        assert made["result"] == 0
        assert bed.park().status == status
        bed.script.send(protocol.hibernated(bed.serial, done=False))
        side = 4096


@pytest.mark.parametrize(("world", "status"), [("2", "nccl"), ("1", "done")])
def test_ranks_with_communicators_are_not_parked(
    make_bed: Callable[..., Bed], world: str, status: str
) -> None:
    bed = make_bed(program={"WORLD_SIZE": world})
    library = bed.machine.folder / "libnccl.so.2"
    shutil.copy2(LIBRARIES / "sim/libnvrtc.so.13", library)
    bed.a.call("load_library", path=str(library))
    assert bed.park().status == status


def test_a_process_that_looks_up_nccl_kernels_is_not_parked(bed: Bed) -> None:
    for name, status in (("allReduce", "done"), ("_Z9ncclDevKernel_AllReduce", "nccl")):
        text = (name.encode() + b"\0").hex()
        assert bed.a.call("raw", function="cuLibraryGetKernel", arguments=["out", 0, text])[
            "result"
        ]
        assert bed.park().status == status
        bed.script.send(protocol.hibernated(bed.serial, done=False))


def test_a_process_on_the_plain_backend_is_not_parked(make_bed: Callable[..., Bed]) -> None:
    assert refusal(make_bed(program={"GPUSHARE_BACKEND": "plain"})) == "plain"
