# SPDX-License-Identifier: BSD-3-Clause
"""Processes that take chunks of a pool of host memory, and the pool's table."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare._protocol import lib

HERE = Path(__file__).parent
MIB = 1 << 20
CHUNK = 16 * MIB
MAGIC = 0x67707570
UNIT = 2 * MIB
#: Up to and with the key.
HEADER = struct.Struct("=IIQQQIIII32s304x")
#: The users of each unit, the bits of the page-locks, whether the pages exist, and the times of the last use.
ENTRY = struct.Struct("=8QQI4x8I16x320x")
DATA = 2 * MIB
EXCLUSIVE = 1 << 63
#: The place of a chunk that is to leave memory.
GOING = 1
PATIENCE = 60.0


class Pool:
    """A pool like the scheduler's, or a pool that a scheduler made."""

    def __init__(self, chunks: int, fd: int | None = None) -> None:
        self.chunks = chunks
        if fd is not None:
            self.fd = fd
            self.memory = mmap.mmap(fd, HEADER.size + chunks * ENTRY.size)
            return
        self.fd = os.memfd_create("pool")
        os.ftruncate(self.fd, DATA + chunks * CHUNK)
        self.memory = mmap.mmap(self.fd, DATA)
        self.header(limit=chunks)

    def header(
        self,
        magic: int = MAGIC,
        version: int = lib.GPUSHARE_POOL_VERSION,
        offset: int = DATA,
        chunks: int | None = None,
        limit: int = 0,
        prepared_only: int = 0,
        directory: int | None = None,
        buckets: int | None = None,
    ) -> None:
        count = self.chunks if chunks is None else chunks
        directory = HEADER.size + self.chunks * ENTRY.size if directory is None else directory
        buckets = lib.gpushare_pool_directory_buckets(self.chunks) if buckets is None else buckets
        HEADER.pack_into(
            self.memory, 0,
            magic, version, offset, directory, buckets, count, limit, prepared_only, 0, b"k" * 32,
        )  # fmt: skip

    def entry(self, i: int) -> tuple[list[int], int, int, list[int]]:
        """Return a chunk's users, by unit, the bits of its page-locks, whether it is prepared, and the times of use."""
        found = ENTRY.unpack_from(self.memory, HEADER.size + i * ENTRY.size)
        return list(found[:8]), found[8], found[9], list(found[10:])

    def put(self, i: int, *, page_locked_by: int = 0, users: int = 0, prepared: int = 0) -> None:
        ENTRY.pack_into(
            self.memory,
            HEADER.size + i * ENTRY.size,
            *[users] * 8,
            page_locked_by,
            prepared,
            *[0] * 8,
        )

    def set_place(self, i: int, place: int) -> None:
        struct.pack_into("=I", self.memory, HEADER.size + i * ENTRY.size + 76, place)

    def set_users(self, i: int, users: list[int]) -> None:
        struct.pack_into("=8Q", self.memory, HEADER.size + i * ENTRY.size, *users)

    def users(self) -> set[int]:
        """Return the slots that use units."""
        bits = 0
        for i in range(self.chunks):
            for users in self.entry(i)[0]:
                bits |= users & ~EXCLUSIVE
        return {slot for slot in range(63) if bits >> slot & 1}

    def used_by(self, slot: int) -> list[int]:
        """Return the chunks of which the slot uses units."""
        return [
            i for i in range(self.chunks) if any(users >> slot & 1 for users in self.entry(i)[0])
        ]

    def page_locked_by(self, slot: int) -> list[int]:
        return [i for i in range(self.chunks) if self.entry(i)[1] >> slot & 1]

    def prepared(self) -> list[int]:
        return [i for i in range(self.chunks) if self.entry(i)[2]]

    def sweep(self, slot: int) -> None:
        """Clean up after a client that is dead."""
        bit = 1 << slot
        for i in range(self.chunks):
            users, page_locked_by, prepared, used_at = self.entry(i)
            ENTRY.pack_into(
                self.memory,
                HEADER.size + i * ENTRY.size,
                *(0 if of == bit | EXCLUSIVE else of & ~bit for of in users),
                page_locked_by & ~bit,
                prepared,
                *used_at,
            )

    def close(self) -> None:
        self.memory.close()
        os.close(self.fd)


class Client:
    """A process that has host memory from pools."""

    def __init__(self, program: Path, *pools: Pool) -> None:
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            pass_fds=[pool.fd for pool in pools],
        )

    def start(self, *words: float | str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.errors()
        assert not line.startswith("broken"), line
        return line

    def call(self, *words: float | str) -> str:
        self.start(*words)
        return self.answer()

    def offer(self, pool: Pool | None, slot: int = 0) -> None:
        self.call("offer", -1 if pool is None else pool.fd, slot)

    def take(self, bytes: int, value: int = 1) -> tuple[int, list[int]] | None:
        answer = self.call("take", bytes, value)
        if answer == "none":
            return None
        piece, *extents = (int(word) for word in answer.split())
        return piece, extents

    def taken(self, bytes: int, value: int = 1) -> int:
        taken = self.take(bytes, value)
        assert taken is not None
        return taken[0]

    def evict(self, piece: int, *values: int) -> tuple[int, ...] | None:
        """Evict data; return how many units are zeros, the same as before, shared and written."""
        answer = self.call("evict", piece, *values)
        return None if answer == "none" else tuple(int(word) for word in answer.split())

    def holds(self, piece: int, value: int = 1) -> bool:
        return self.call("holds", piece, value) == "1"

    @property
    def owned(self) -> int:
        """Units that it says it needs."""
        return int(self.call("figures").split()[0]) // UNIT

    @property
    def page_locked_late(self) -> int:
        return int(self.call("figures").split()[1]) // CHUNK

    @property
    def registered(self) -> int:
        return int(self.call("figures").split()[2])

    def maps(self, pool: Pool) -> int:
        """Count the mappings of a pool."""
        inode = os.fstat(pool.fd).st_ino
        lines = Path(f"/proc/{self.process.pid}/maps").read_text().splitlines()
        return sum(line.split()[4] == str(inode) for line in lines)

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def shared_bytes(self) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssShmem:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssShmem")

    @property
    def large_bytes(self) -> int:
        """Bytes of shared memory that it has in large pages."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("ShmemPmdMapped:"):
                return int(line.split()[1]) * 1024
        return 0

    def errors(self) -> str:
        """End it and return what it said."""
        self.process.kill()
        return self.process.communicate()[1]


SOURCES = (
    "memory/host",
    "memory/host_ahead",
    "memory/host_crew",
    "memory/host_disk",
    "memory/host_place",
    "memory/host_pool",
    "memory/host_state",
    "memory/population",
    "memory/staging",
    "base/lock",
    "base/print",
)


@pytest.fixture(scope="session")
def build_pool_client(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Callable[..., Path]:
    """Return a function that compiles the program, with flags."""
    import nvidia

    include = next(
        header.parent
        for path in nvidia.__path__
        for header in sorted(Path(path).glob("*/include/cuda.h"), reverse=True)
    )
    nvml = next(
        header
        for path in nvidia.__path__
        for header in sorted(Path(path).glob("*/include/nvml.h"), reverse=True)
    )
    made: dict[tuple[str, ...], Path] = {}

    def compile_with(*flags: str) -> Path:
        if flags in made:
            return made[flags]
        folder, csrc = tmp_path_factory.mktemp("host_pool"), root / "csrc"
        command = [sys.executable, str(csrc / "generate.py"), "--out", str(folder / "gen")]
        command += ["--include", str(include), "--nvml", str(nvml)]
        subprocess.run(command, check=True)
        interop = csrc / "compat/interop"
        command = ["cc", "-std=gnu11", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]
        command += ["-D_GNU_SOURCE", "-D__CUDA_API_VERSION_INTERNAL", f"-I{csrc / 'interposer'}"]
        command += [f"-I{csrc}", f"-I{folder / 'gen'}", f"-I{interop}", "-isystem", str(include)]
        command += ["-include", str(interop / "driver.h"), "-Wl,--wrap=madvise"]
        command += [*flags, "-o", str(folder / "host_pool")]
        command += ["-DGS_LOCK_RANKS", "-Wl,--wrap=gs_cond_timedwait_at", str(HERE / "host_pool.c")]
        command += [str(csrc / f"interposer/{name}.c") for name in SOURCES]
        subprocess.run(command, check=True)
        made[flags] = folder / "host_pool"
        return made[flags]

    return compile_with


@pytest.fixture
def make_pool() -> Iterator[Callable[..., Pool]]:
    pools: list[Pool] = []

    def make(chunks: int, fd: int | None = None) -> Pool:
        pools.append(Pool(chunks, fd))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


@pytest.fixture
def make_client(build_pool_client: Callable[..., Path]) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(*pools: Pool, flags: tuple[str, ...] = ()) -> Client:
        clients.append(Client(build_pool_client(*flags), *pools))
        return clients[-1]

    yield make
    for client in clients:
        client.process.kill()
        client.process.communicate()


MakePool = Callable[..., Pool]
MakeClient = Callable[..., Client]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
