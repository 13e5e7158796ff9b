# SPDX-License-Identifier: BSD-3-Clause
"""The pool of host memory as clients use it: several real processes over one table, with and without a scheduler's."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.memory.pool import Pool as SchedulerPool
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import UNIT, Machine

HERE = Path(__file__).parent
MIB = 1 << 20
CHUNK = 16 * MIB
MAGIC = 0x67707570
HEADER = struct.Struct("=IIQIIII")
ENTRY = struct.Struct("=QII")
DATA = 2 * MIB
SCHEDULER = 255
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
        version: int = protocol.VERSION,
        offset: int = DATA,
        chunks: int | None = None,
        limit: int = 0,
        prepared_only: int = 0,
    ) -> None:
        count = self.chunks if chunks is None else chunks
        HEADER.pack_into(self.memory, 0, magic, version, offset, count, limit, prepared_only, 0)

    def entry(self, i: int) -> tuple[int, int, int]:
        page_locked_by, owner, prepared = ENTRY.unpack_from(
            self.memory, HEADER.size + i * ENTRY.size
        )
        return page_locked_by, owner, prepared

    def put(self, i: int, *, page_locked_by: int = 0, owner: int = 0, prepared: int = 0) -> None:
        ENTRY.pack_into(self.memory, HEADER.size + i * ENTRY.size, page_locked_by, owner, prepared)

    def owned_by(self, owner: int) -> list[int]:
        return [i for i in range(self.chunks) if self.entry(i)[1] == owner]

    def page_locked_by(self, slot: int) -> list[int]:
        return [i for i in range(self.chunks) if self.entry(i)[0] >> slot & 1]

    def prepared(self) -> list[int]:
        return [i for i in range(self.chunks) if self.entry(i)[2]]

    def sweep(self, slot: int) -> None:
        """Clean up after a client that is dead."""
        for i in range(self.chunks):
            page_locked_by, owner, prepared = self.entry(i)
            self.put(
                i,
                page_locked_by=page_locked_by & ~(1 << slot),
                owner=0 if owner == slot + 1 else owner,
                prepared=prepared,
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

    def holds(self, piece: int, value: int = 1) -> bool:
        return self.call("holds", piece, value) == "1"

    @property
    def owned(self) -> int:
        """Chunks that it says it owns."""
        return int(self.call("figures").split()[0]) // CHUNK

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


SOURCES = ("memory/host", "memory/host_pool", "memory/population", "base/lock", "base/print")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Callable[..., Path]:
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
        command += ["-DGS_LOCK_RANKS", str(HERE / "host_pool.c")]
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
def make_client(build: Callable[..., Path]) -> Iterator[Callable[..., Client]]:
    clients: list[Client] = []

    def make(*pools: Pool, flags: tuple[str, ...] = ()) -> Client:
        clients.append(Client(build(*flags), *pools))
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


def test_small_pieces_share_chunks(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(16)
    client = make_client(pool)
    client.offer(pool, slot=3)
    pieces = []
    for i in range(4):
        taken = client.take(20 * MIB - 512, value=i + 1)
        assert taken is not None
        pieces.append(taken[0])
        assert sum(taken[1]) == 20 * MIB - 512
        assert all(0 < extent <= CHUNK for extent in taken[1])
    assert len(pool.owned_by(4)) == client.owned == 5
    assert all(client.holds(piece, i + 1) for i, piece in enumerate(pieces))
    for piece in pieces:
        client.call("give", piece)
    assert pool.owned_by(4) == []
    assert client.owned == 0


def test_pieces_of_many_sizes_waste_little(make_pool: MakePool, make_client: MakeClient) -> None:
    """Whatever was freed in between, free space in our own chunks is used before another is claimed."""
    pool = make_pool(40)
    client = make_client(pool)
    client.offer(pool)
    draw = random.Random(7)
    units: dict[int, int] = {}
    for _ in range(300):
        if units and draw.random() < 0.45:
            piece = draw.choice(list(units))
            client.call("give", piece)
            del units[piece]
            continue
        want, before = draw.randint(1, 23), client.owned
        if sum(units.values()) + want > 40 * 8:
            continue
        free = before * 8 - sum(units.values())
        piece = client.taken(want * 2 * MIB)
        units[piece] = want
        # The rest of a piece may have to share with what is scattered; it never claims beside room enough.
        claimed = client.owned - before
        assert claimed <= want // 8 + (free < want % 8)


def test_memory_page_locked_in_advance_is_used_for_a_move(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool, slot=5)
    client.call("prepare", 4 * CHUNK)
    until(lambda: len(pool.page_locked_by(5)) == 4)
    assert pool.owned_by(6) == []
    client.taken(4 * CHUNK)
    assert client.page_locked_late == 0
    assert pool.owned_by(6) == pool.page_locked_by(5)
    client.taken(CHUNK)
    assert client.page_locked_late == 1
    assert len(pool.page_locked_by(5)) == client.registered == 5


def test_page_locking_in_advance_continues_while_the_application_computes(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("gate", 1)
    client.call("prepare", 3 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 3)


def test_chunks_of_others_are_page_locked_in_advance_and_stay_theirs(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(12)
    away, holder = make_client(pool), make_client(pool)
    away.offer(pool, slot=1)
    holder.offer(pool, slot=3)
    piece = away.taken(12 * CHUNK, value=7)
    holder.call("gate", 1)
    holder.call("prepare", 10 * CHUNK)
    until(lambda: holder.registered == 10)
    assert len(pool.page_locked_by(3)) == 10
    assert away.holds(piece, value=7)
    assert pool.owned_by(2) == list(range(12))
    # The one comes back, and the other leaves to where that was.
    away.call("give", piece)
    left = holder.taken(10 * CHUNK, value=8)
    assert holder.page_locked_late == 0
    assert holder.holds(left, value=8)
    assert pool.owned_by(4) == pool.page_locked_by(3)
    holder.call("give", left)
    holder.call("prepare", 0)
    until(lambda: pool.page_locked_by(3) == [])
    assert holder.registered == 0


def test_chunks_that_the_scheduler_frees_are_not_page_locked(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    # The scheduler is freeing these, after a look at which processes page-locked them.
    for chunk in range(4):
        pool.put(chunk, owner=SCHEDULER, prepared=1)
    client.call("prepare", 4 * CHUNK)
    time.sleep(0.6)
    # It sets a chunk's bit before it looks whose that is.
    until(lambda: pool.page_locked_by(0) == [])
    assert client.registered == 0


def test_chunks_above_the_target_are_unlocked(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 6 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 6)
    kept = client.taken(2 * CHUNK)
    client.call("prepare", 3 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 3)
    client.call("prepare", 0)
    until(lambda: pool.page_locked_by(0) == pool.owned_by(1))
    assert client.registered == 2
    assert client.holds(kept)
    client.call("give", kept)
    until(lambda: pool.page_locked_by(0) == [])
    assert client.registered == 0


def test_free_chunks_beyond_the_limit_are_unlocked_and_not_claimed(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(6)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 6 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 6)
    pool.header(limit=2)
    until(lambda: pool.page_locked_by(0) == [0, 1])
    piece = client.taken(2 * CHUNK)
    assert client.take(MIB) is None
    assert pool.owned_by(1) == [0, 1]
    assert client.holds(piece)


def test_a_take_that_fails_leaves_nothing_behind(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    piece = client.taken(20 * MIB)
    before = pool.owned_by(1)
    assert client.take(44 * MIB + 1) is None
    assert pool.owned_by(1) == before
    assert client.take(44 * MIB) is not None
    assert client.holds(piece)


def test_chunks_are_taken_prepared_then_page_locked_by_others_then_empty(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(6)
    pool.put(2, prepared=1, page_locked_by=1 << 9)
    pool.put(4, prepared=1)
    pool.put(1, owner=SCHEDULER)
    client = make_client(pool)
    client.offer(pool)
    order = []
    for _ in range(5):
        before = set(pool.owned_by(1))
        client.taken(CHUNK)
        order += [i for i in pool.owned_by(1) if i not in before]
    assert order == [4, 2, 0, 3, 5]
    assert set(order) <= set(pool.prepared())
    assert client.take(CHUNK) is None


@pytest.mark.parametrize(
    "header",
    [
        {"magic": 1},
        {"version": 1},
        {"chunks": 0},
        {"chunks": 5},
        {"chunks": 1 << 31},
        {"offset": 64},
        {"offset": DATA + 1},
        {"offset": 1 << 62},
    ],
)
def test_a_malformed_pool_is_refused(
    make_pool: MakePool, make_client: MakeClient, header: dict[str, int]
) -> None:
    pool = make_pool(4)
    pool.header(**header, limit=4)
    client = make_client(pool)
    client.offer(pool)
    assert client.holds(client.taken(5 * CHUNK))
    assert pool.owned_by(1) == []
    said = client.errors().splitlines()
    assert len(said) == 1
    assert "pool of host memory cannot be used" in said[0]


def test_a_place_out_of_range_is_refused(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool, slot=64)
    assert client.holds(client.taken(CHUNK))
    assert not client.maps(pool)


def test_a_driver_may_refuse_to_page_lock(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("refuse", 1)
    pieces = [client.taken(3 * CHUNK, value=i) for i in range(2)]
    client.call("prepare", 8 * CHUNK)
    assert all(client.holds(piece, i) for i, piece in enumerate(pieces))
    assert pool.page_locked_by(0) == []
    said = client.errors().splitlines()
    assert len(said) == 1
    assert "slower" in said[0]


def test_only_pages_that_the_scheduler_prepares_are_used(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    pool.header(limit=8, prepared_only=1)
    for i in (1, 4):
        pool.put(i, prepared=1)
    client = make_client(pool)
    client.offer(pool)
    # Nor for what is page-locked ahead.
    client.call("prepare", 8 * CHUNK)
    assert client.take(3 * CHUNK) is None
    piece = client.taken(2 * CHUNK)
    assert pool.owned_by(1) == pool.prepared() == [1, 4]
    assert client.take(UNIT) is None
    pool.put(6, prepared=1)
    client.taken(UNIT)
    client.call("give", piece)
    assert pool.prepared() == [1, 4, 6]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
@pytest.mark.parametrize("prepared", [0, 1])
def test_a_moves_chunks_are_populated_by_several_threads(
    make_pool: MakePool, make_client: MakeClient, prepared: int
) -> None:
    pool = make_pool(8)
    for i in range(8):
        pool.put(i, prepared=prepared)
    client = make_client(pool)
    client.offer(pool)
    before = client.threads
    client.call("company", 2)
    piece = client.taken(7 * CHUNK + MIB)
    assert client.call("company", 0) == "1"
    assert client.holds(piece)
    assert client.page_locked_late == client.registered == client.owned == 8
    assert pool.prepared() == pool.page_locked_by(0) == list(range(8))
    until(lambda: client.threads == before)


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
@pytest.mark.parametrize("nth", [1, 2, 4, 6])
@pytest.mark.parametrize("prepared", [0, 1])
def test_one_chunk_that_cannot_be_populated_fails_the_take(
    make_pool: MakePool,
    make_client: MakeClient,
    nth: int,
    prepared: int,
    flags: tuple[str, ...],
) -> None:
    pool = make_pool(8)
    for i in range(8):
        pool.put(i, prepared=prepared)
    client = make_client(pool, flags=flags)
    client.offer(pool)
    kept = client.taken(2 * CHUNK)
    client.call("fail_populating", nth, errno.ENOMEM)
    assert client.take(6 * CHUNK) is None
    assert len(pool.owned_by(1)) == client.owned == 2
    piece = client.taken(6 * CHUNK, value=2)
    assert client.holds(kept)
    assert client.holds(piece, value=2)
    assert client.registered == 8
    assert "ThreadSanitizer" not in client.errors()


def test_an_operating_system_without_populate_is_supported(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("fail_populating", 1, errno.EINVAL)
    piece = client.taken(4 * CHUNK)
    client.call("prepare", 6 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 6)
    assert client.holds(piece)


def test_pages_are_large_where_the_operating_system_supports_it(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    if client.call("makes_large_pages") == "0":
        pytest.skip("this machine has no large pages for shared memory now")
    client.offer(pool)
    piece = client.taken(4 * CHUNK)
    assert client.large_bytes > 0
    assert client.holds(piece)
    # Without a scheduler's pool, too.
    alone = make_client()
    alone.offer(None)
    piece = alone.taken(4 * CHUNK)
    assert alone.large_bytes > 0
    assert alone.holds(piece)


def test_pages_that_the_scheduler_prepares_are_large(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    made = SchedulerPool(8 * CHUNK)
    try:
        made.order(limit=8 * CHUNK, target=4 * CHUNK, most=8 * CHUNK)
        until(lambda: made.figures().prepared == 4 * CHUNK)
        pool = make_pool(8, os.dup(made.descriptor))
        client = make_client(pool)
        if client.call("makes_large_pages") == "0":
            pytest.skip("this machine has no large pages for shared memory now")
        client.offer(pool)
        tried = client.call("no_large_pages", 0)
        piece = client.taken(4 * CHUNK)
        assert client.call("no_large_pages", 0) == tried
        assert client.large_bytes > 0
        assert client.holds(piece)
    finally:
        made.close()


@pytest.mark.parametrize(
    ("error", "tries"), [(errno.EINVAL, 1), (errno.ENOMEM, 2)], ids=["never", "none now"]
)
def test_without_large_pages_the_system_is_rarely_asked_again(
    make_pool: MakePool, make_client: MakeClient, error: int, tries: int
) -> None:
    pool = make_pool(100)
    client = make_client(pool)
    client.offer(pool)
    client.call("no_large_pages", error)
    pieces = [client.taken(CHUNK) for _ in range(66)]
    assert int(client.call("no_large_pages", error)) == tries
    assert client.large_bytes == 0
    assert all(client.holds(piece) for piece in pieces)


def test_page_locks_end_with_their_context(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 4 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 4)
    piece = client.taken(2 * CHUNK)
    client.call("end_context")
    assert pool.page_locked_by(0) == []
    assert client.registered == 0
    assert client.holds(piece)
    client.call("give", piece)
    client.taken(2 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 4)


def test_the_pool_of_another_scheduler_replaces_the_first(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    """What is in the earlier pool lives on; then the pool goes."""
    first, second = make_pool(4), make_pool(4)
    client = make_client(first, second)
    client.offer(first, slot=1)
    old = client.taken(20 * MIB, value=1)
    client.offer(second, slot=2)
    new = client.taken(20 * MIB, value=2)
    assert len(first.owned_by(2)) == len(second.owned_by(3)) == 2
    assert client.holds(old, 1)
    assert client.holds(new, 2)
    client.call("give", old)
    until(lambda: not client.maps(first))
    assert first.owned_by(2) == first.page_locked_by(1) == []
    assert client.maps(second)
    assert client.holds(new, 2)


def test_the_same_pool_is_kept_when_sent_again(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool, slot=1)
    piece = client.taken(20 * MIB)
    client.offer(pool, slot=1)
    assert client.maps(pool) == 1
    client.taken(12 * MIB)
    assert len(pool.owned_by(2)) == 2
    assert client.holds(piece)


def test_the_descriptor_is_closed(make_pool: MakePool, make_client: MakeClient) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    before = client.descriptors
    client.offer(pool)
    client.taken(CHUNK)
    pool.header(magic=1)
    client.offer(pool)
    assert client.descriptors == before


def test_without_a_pool_memory_is_private_and_is_freed(make_client: MakeClient) -> None:
    client = make_client()
    client.offer(None)
    before = client.shared_bytes
    piece = client.taken(5 * CHUNK)
    assert client.owned == 5
    assert client.shared_bytes >= before + 5 * CHUNK
    client.call("give", piece)
    assert client.owned == 0
    until(lambda: client.shared_bytes < before + CHUNK)
    assert client.registered == 0


def test_a_scheduler_without_a_pool_may_follow_one_with_a_pool(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(4)
    client = make_client(pool)
    client.offer(pool)
    old = client.taken(CHUNK, value=1)
    client.offer(None)
    new = client.taken(CHUNK, value=2)
    assert len(pool.owned_by(1)) == 1
    assert client.owned == 2
    client.call("give", old)
    until(lambda: not client.maps(pool))
    assert client.holds(new, 2)


def test_a_forked_child_has_no_part_of_the_pool(
    make_pool: MakePool, make_client: MakeClient
) -> None:
    pool = make_pool(8)
    client = make_client(pool)
    client.offer(pool)
    client.call("prepare", 2 * CHUNK)
    until(lambda: len(pool.page_locked_by(0)) == 2)
    piece = client.taken(20 * MIB)
    owned = pool.owned_by(1)
    assert client.call("fork") == "0"
    assert pool.owned_by(1) == owned
    assert client.holds(piece)


@pytest.mark.parametrize("flags", [(), ("-fsanitize=thread",)], ids=["plain", "thread"])
def test_many_processes_use_one_pool_at_once(
    make_pool: MakePool, make_client: MakeClient, flags: tuple[str, ...]
) -> None:
    """Processes take, fill, compare and give; one dies; the scheduler gives pages back and changes the limit."""
    pool = make_pool(24)
    clients = [make_client(pool, flags=flags) for _ in range(3)]
    for slot, client in enumerate(clients):
        client.offer(pool, slot)
        client.start("stress", slot)
    victim, survivors = clients[0], clients[1:]
    draw = random.Random(3)

    def change_limit() -> None:
        for _ in range(60):
            pool.header(limit=draw.randint(16, 24))
            time.sleep(0.02)

    change_limit()
    until(lambda: pool.owned_by(1) != [])
    victim.process.kill()
    victim.process.wait()
    left = pool.owned_by(1)
    change_limit()
    for client in survivors:
        client.start("stop")
        assert client.answer() == "ok"
        client.call("prepare", 0)
    assert pool.owned_by(1) == left
    assert pool.owned_by(2) == pool.owned_by(3) == []
    # What they page-locked of the dead one's stays so until it is free.
    pool.sweep(0)
    until(lambda: pool.page_locked_by(1) == pool.page_locked_by(2) == [])
    pool.header(limit=24)
    assert survivors[0].holds(survivors[0].taken(24 * CHUNK))
    assert "ThreadSanitizer" not in "".join(client.errors() for client in survivors)


def pool_of(machine: Machine, make_pool: MakePool) -> Pool:
    """Open the pool that the machine's scheduler lends."""
    assert machine.scheduler is not None
    folder = Path(f"/proc/{machine.scheduler.pid}/fd")
    link = next(fd for fd in folder.iterdir() if "memfd:gpushare-pool" in os.readlink(fd))
    fd = os.open(link, os.O_RDWR | os.O_CLOEXEC)
    return make_pool(HEADER.unpack(os.pread(fd, HEADER.size, 0))[3], fd)


def owners(pool: Pool) -> set[int]:
    return {pool.entry(i)[1] for i in range(pool.chunks)} - {0, SCHEDULER}


def test_evicted_data_is_in_the_users_pool_and_is_freed_with_its_process(
    machine: Machine, make_pool: MakePool
) -> None:
    pool = pool_of(machine, make_pool)
    a, b, c = (machine.program(name) for name in "abc")
    at = {}
    for value, program in enumerate((a, b, c)):
        at[value] = program.filled(160 * UNIT, value)
        program.call("cell", phase="end")
    until(lambda: len(owners(pool)) == 2)
    os.kill(a.pid, signal.SIGKILL)
    until(lambda: len(owners(pool)) == 1)
    assert b.holds(at[1], 160 * UNIT, 1)
    b.call("cell", phase="end")
    assert c.holds(at[2], 160 * UNIT, 2)
    for program in (b, c):
        os.kill(program.pid, signal.SIGKILL)
    until(lambda: owners(pool) == set())
    until(lambda: all(pool.entry(i)[0] == 0 for i in range(pool.chunks)))


def test_data_in_the_pool_survives_a_dead_scheduler(machine: Machine, make_pool: MakePool) -> None:
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    a.call("cell", phase="end")
    at_b = b.filled(192 * UNIT, 2)
    b.call("cell", phase="end")
    earlier = pool_of(machine, make_pool)
    machine.kill_scheduler()
    machine.start_scheduler()
    assert a.holds(at_a, 192 * UNIT, 1)
    a.call("cell", phase="end")
    assert b.holds(at_b, 192 * UNIT, 2)
    until(lambda: owners(earlier) == set())
    # What came in gives its places back a moment after that.
    pool = pool_of(machine, make_pool)
    until(lambda: len(owners(pool)) == 1)
