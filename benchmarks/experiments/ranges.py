# SPDX-License-Identifier: BSD-3-Clause
"""Which address ranges can be mapped again after a checkpoint: an experiment with the driver alone, without us.

A process reserves ranges of addresses and brings them into all states that memory of ours can be in while it is
evicted, and some more. Another process has the driver checkpoint and restore it. Then each range is mapped, written,
read and unmapped, its addresses are freed and reserved again at the same place, and it is mapped once more. What fails
is listed by call and error, compared with a process that was not checkpointed::

    gpushare bench hibernate --part mapping
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from subprocess import Popen
from typing import Any

from ..harness.checkpoint import Watcher
from ..harness.figures import Figure
from ..harness.machine import MIB, machine
from ..programs.holder import Holder, serve

#: Bytes of one mapping, on a real GPU and on the simulated driver.
SIZES, SMALL_SIZES = (2 * MIB, 128 * MIB), (2 * MIB, 4 * MIB)
#: Mappings of one reservation.
PIECES = 4
#: What has become of a mapping when the checkpoint comes.
MAPPED = ("mapped", "mapped, unmapped, mapped again", "every other one mapped")
EMPTY = (
    "never mapped",
    "mapped, unmapped, released",
    "mapped, unmapped, memory kept",
    "addresses freed",
)
#: Bytes at either end of a mapping that are written and read.
END = 4096
#: Kinds of processes: nothing is mapped in it, or ranges of all kinds; the latter has page-locked memory, too.
PINNED = "among mapped ones"
PROCESSES = {"nothing mapped anywhere": EMPTY, PINNED: (*MAPPED, *EMPTY)}
#: Of a simulated GPU, bytes.
SIMULATED = 512 * MIB


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_DEVICE = _Location(1, 0)


@dataclass
class Piece:
    """One mapping."""

    address: int
    size: int
    value: int
    handle: int = 0
    mapped: bool = False


@dataclass
class Range:
    """One reservation."""

    layout: str
    state: str
    exportable: bool
    pieces: list[Piece]
    address: int = 0
    calls: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(piece.size for piece in self.pieces)


class Ranges:
    """What the process can be told that has them."""

    def __init__(self) -> None:
        self._cuda = cuda = ctypes.CDLL("libcuda.so.1")
        number, pointer, size = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
        for name, arguments in {
            "cuMemAddressReserve": [pointer, size, size, number, number],
            "cuMemAddressFree": [number, size],
            "cuMemCreate": [pointer, size, pointer, number],
            "cuMemRelease": [number],
            "cuMemMap": [number, size, size, number, number],
            "cuMemUnmap": [number, size],
            "cuMemSetAccess": [number, size, pointer, size],
            "cuMemsetD8_v2": [number, ctypes.c_ubyte, size],
            "cuMemcpyDtoH_v2": [pointer, number, size],
            "cuMemcpyHtoD_v2": [number, pointer, size],
            "cuMemHostRegister_v2": [pointer, size, ctypes.c_uint],
            "cuMemHostUnregister": [pointer],
            "cuMemAlloc_v2": [pointer, size],
            "cuMemFree_v2": [number],
        }.items():
            getattr(cuda, name).argtypes = arguments
        context = ctypes.c_void_p()
        for call, given in (
            ("cuInit", (0,)),
            ("cuDevicePrimaryCtxRetain", (ctypes.byref(context), 0)),
            ("cuCtxSetCurrent", (context,)),
        ):
            if result := getattr(cuda, call)(*given):
                raise RuntimeError(f"{call}: CUDA error {result}")
        self._ranges: list[Range] = []
        self._host: tuple[mmap.mmap, int] | None = None

    # --- Calls ------------------------------------------------------------------------------------

    def _name(self, result: int) -> str:
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorName(result, ctypes.byref(text))
        return text.value.decode() if text.value else f"CUDA error {result}"

    def _call(self, of: Range, when: str, call: str, *arguments: Any) -> bool:
        """Call the driver and note what fails."""
        of.calls += 1
        result = getattr(self._cuda, call)(*arguments)
        if result:
            of.failed[f"{when}{call.removesuffix('_v2')} {self._name(result)}"] += 1
        return bool(result == 0)

    def _map(self, of: Range, piece: Piece, when: str) -> bool:
        """Map memory there, new if there is none yet; whether it can be used."""
        if not piece.handle:
            properties = _Properties(1, int(of.exportable), _DEVICE)
            handle = ctypes.c_uint64()
            made = ctypes.byref(handle), piece.size, ctypes.byref(properties), 0
            if not self._call(of, when, "cuMemCreate", *made):
                return False
            piece.handle = handle.value
        if not self._call(of, when, "cuMemMap", piece.address, piece.size, 0, piece.handle, 0):
            return False
        piece.mapped = True
        access = _Access(_DEVICE, 3)
        given = piece.address, piece.size, ctypes.byref(access), 1
        return self._call(of, when, "cuMemSetAccess", *given)

    def _unmap(self, of: Range, piece: Piece, when: str, *, keep: bool = False) -> None:
        if piece.mapped:
            piece.mapped = not self._call(of, when, "cuMemUnmap", piece.address, piece.size)
        if piece.handle and not keep:
            self._call(of, when, "cuMemRelease", piece.handle)
            piece.handle = 0

    def _write(self, of: Range, piece: Piece, when: str) -> None:
        for at in (piece.address, piece.address + piece.size - END):
            self._call(of, when, "cuMemsetD8_v2", at, piece.value, END)

    def _read(self, of: Range, piece: Piece, when: str) -> None:
        found = ctypes.create_string_buffer(END)
        for at in (piece.address, piece.address + piece.size - END):
            if (
                self._call(of, when, "cuMemcpyDtoH_v2", found, at, END)
                and found.raw != bytes([piece.value]) * END
            ):
                of.failed[f"{when}other contents"] += 1

    def _reserve(self, of: Range, when: str) -> bool:
        """Reserve the range's addresses: where they were before if it had any."""
        address = ctypes.c_uint64()
        given = ctypes.byref(address), of.size, 0, of.address, 0
        if not self._call(of, when, "cuMemAddressReserve", *given):
            return False
        if of.address and address.value != of.address:
            of.failed[f"{when}cuMemAddressReserve gives another address"] += 1
        of.address, at = address.value, address.value
        for piece in of.pieces:
            piece.address = at
            at += piece.size
        return True

    # --- Commands ---------------------------------------------------------------------------------

    def make(self, states: list[str], sizes: list[int], exportable: bool) -> bool:
        """Make ranges in all these states, of mappings of these sizes."""
        values = itertools.cycle(range(1, 256))
        for state, size in itertools.product(states, sizes):
            for layout, ranges, pieces in (("one reservation", 1, PIECES), ("one each", PIECES, 1)):
                for number in range(ranges):
                    made = [Piece(0, size, next(values)) for _ in range(pieces)]
                    of = Range(layout, state, exportable, made)
                    self._ranges.append(of)
                    self._bring(of, odd=number % 2 == 1)
        wrong = [of.failed for of in self._ranges if of.failed]
        if wrong:
            raise RuntimeError(f"before any checkpoint: {wrong[0]}")
        return True

    def _bring(self, of: Range, *, odd: bool) -> None:
        """Bring a new range into its state."""
        self._reserve(of, "")
        if of.state == "never mapped":
            return
        for piece in of.pieces:
            self._map(of, piece, "")
            self._write(of, piece, "")
        for number, piece in enumerate(of.pieces):
            if of.state in EMPTY or (of.state == MAPPED[2] and (odd or number % 2)):
                self._unmap(of, piece, "", keep=of.state == EMPTY[2])
            elif of.state == MAPPED[1]:
                self._unmap(of, piece, "")
                self._map(of, piece, "")
                self._write(of, piece, "")
        if of.state == EMPTY[3]:
            self._call(of, "", "cuMemAddressFree", of.address, of.size)

    def pin(self, size: int) -> bool:
        """Register host memory, and allocate device memory the plain way."""
        of = Range("host memory", "registered", False, [Piece(0, size, 7)])
        memory = mmap.mmap(-1, size)
        memory.write(b"\x07" * size)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        block = ctypes.c_uint64()
        self._call(of, "", "cuMemHostRegister_v2", at, size, 0)
        self._call(of, "", "cuMemAlloc_v2", ctypes.byref(block), size)
        self._call(of, "", "cuMemcpyHtoD_v2", block.value, at, size)
        if of.failed:
            raise RuntimeError(f"before any checkpoint: {of.failed}")
        of.address, of.pieces[0].address = at, block.value
        self._ranges.append(of)
        self._host = memory, at
        return True

    def try_all(self) -> list[tuple[str, str, int, dict[str, int]]]:
        """Use all of them; of each kind its name and variant, how many calls were made, and what failed how often."""
        told: dict[tuple[str, str], tuple[int, Counter[str]]] = {}
        for of in self._ranges:
            of.calls = 0
            if of.layout == "host memory":
                self._try_host(of)
            else:
                self._try(of)
            variant = f"{of.pieces[0].size // MIB} MiB"
            key = f"{of.layout}, {of.state}", variant
            calls, failed = told.get(key, (0, Counter()))
            told[key] = calls + of.calls, failed + of.failed
        return [(*key, calls, dict(failed)) for key, (calls, failed) in told.items()]

    def _try(self, of: Range) -> None:
        if of.state == EMPTY[3]:
            if not self._reserve(of, ""):
                return
        else:
            for piece in of.pieces:
                if piece.mapped:
                    self._read(of, piece, "as it was: ")
                    self._unmap(of, piece, "as it was: ")
        self._use(of, "")
        # What a client does that was refused: the addresses are freed, and reserved again at the same place.
        self._call(of, "", "cuMemAddressFree", of.address, of.size)
        if self._reserve(of, "reserved again: "):
            self._use(of, "reserved again: ")
            self._call(of, "", "cuMemAddressFree", of.address, of.size)

    def _use(self, of: Range, when: str) -> None:
        for piece in of.pieces:
            kept = piece.handle != 0
            if self._map(of, piece, when):
                if kept:
                    self._read(of, piece, "memory kept: ")
                self._write(of, piece, when)
        for piece in of.pieces:
            if piece.mapped:
                self._read(of, piece, when)
            self._unmap(of, piece, when)

    def _try_host(self, of: Range) -> None:
        (piece,) = of.pieces
        assert self._host is not None
        memory, at = self._host
        self._read(of, piece, "as it was: ")
        if memory[:] != bytes([piece.value]) * piece.size:
            of.failed["as it was: other contents on the host"] += 1
        for when in ("", "registered again: "):
            memory[:] = bytes([piece.value + 1]) * piece.size
            self._call(of, when, "cuMemcpyHtoD_v2", piece.address, at, piece.size)
            piece.value += 1
            self._read(of, piece, when)
            memory[:] = bytes(piece.size)
            self._call(of, when, "cuMemcpyDtoH_v2", at, piece.address, piece.size)
            if memory[:] != bytes([piece.value]) * piece.size:
                of.failed[f"{when}other contents on the host"] += 1
            self._call(of, when, "cuMemHostUnregister", at)
            if when == "":
                self._call(of, when, "cuMemHostRegister_v2", at, piece.size, 0)
        self._call(of, "", "cuMemFree_v2", piece.address)


class RangesHolder(Holder):
    """The parent's end of it."""

    module = __name__


def mapping(started: Callable[[Popen[str]], None] = lambda _: None) -> Iterator[Figure]:
    """Try all ranges after a checkpoint; ``started`` is told of each process."""
    with machine(scheduler=False, whole=True, GPUSHARE_SIM_MEMORY=str(SIMULATED)) as here:
        watcher = Watcher(here.bare_environ(), here.driver, started)
        try:
            if not watcher.able:
                raise RuntimeError("the driver cannot checkpoint a process (it is older than 570)")
            sizes = SMALL_SIZES if here.driver.simulated else SIZES
            for (where, states), exportable in itertools.product(PROCESSES.items(), (False, True)):
                found = []
                named = f"{where}, exportable" if exportable else where
                for checkpointed in (True, False):
                    process = RangesHolder(here.bare_environ(), torch=False, started=started)
                    try:
                        process.call("make", states, sizes, exportable)
                        if where == PINNED:
                            process.call("pin", sizes[0])
                        if checkpointed and (refused := _checkpoint(watcher, process)):
                            yield Figure("mapping", f"{named}: {refused}", 1.0, "", None, 1, 0.0)
                            break
                        found.append(process.call("try_all"))
                    finally:
                        process.close()
                else:
                    yield from _figures(named, *found)
        finally:
            watcher.close()


def _checkpoint(watcher: Watcher, process: Holder) -> str:
    """Have a process checkpointed and restored; which step the driver refused."""
    for step in ("Lock", "Checkpoint", "Restore", "Unlock"):
        try:
            watcher.step(step, process.process.pid)
        except RuntimeError as error:
            return str(error)
    return ""


def _figures(
    where: str,
    after: list[tuple[str, str, int, dict[str, int]]],
    without: list[tuple[str, str, int, dict[str, int]]],
) -> Iterator[Figure]:
    alike: dict[tuple[str, str], list[tuple[str, Counter[str]]]] = {}
    for (name, variant, calls, failed), (*_, beside) in zip(after, without, strict=True):
        said = ", ".join(f"{what} ({count})" for what, count in failed.items())
        counts = Counter(failed=sum(failed.values()), beside=sum(beside.values()), calls=calls)
        alike.setdefault((name, said or "nothing fails"), []).append((variant, counts))
    for (name, said), variants in alike.items():
        total = sum((counts for _, counts in variants), Counter[str]())
        metric = f"{where}: {name} ({'; '.join(variant for variant, _ in variants)}): {said}"
        failed_calls, beside_calls = float(total["failed"]), float(total["beside"])
        yield Figure("mapping", metric, failed_calls, "", beside_calls, total["calls"], 0.0)


if __name__ == "__main__":
    sys.exit(serve(Ranges()))
