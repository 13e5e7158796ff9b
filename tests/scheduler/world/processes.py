# SPDX-License-Identifier: BSD-3-Clause
"""A simulated process: an obedient client, with its physical memory."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from jupyter_gpushare.scheduler.core import messages as ev


@dataclass
class Memory:
    promised: int = 0
    mapped: int = 0
    #: Bytes in host memory: copies of evicted memory.
    host: int = 0
    #: Bytes on the GPU that have not changed since they were last copied; and how many quarters of what is restored
    #: will not change.
    clean: int = 0
    unchanging: int = 0
    unevictable: int = 0
    #: Bytes with which its contexts were admitted, and bytes that they take beyond that (fewer if negative).
    context: int = 0
    surplus: int = 0
    #: It was checkpointed: of its unevictable memory only the context's residue is on the GPU.
    away: bool = False
    left: int = 0

    def usage(self, gpu: str) -> ev.Usage:
        clean, shared = min(self.clean, self.mapped), self.host // 3
        return ev.Usage(
            gpu,
            self.promised,
            self.mapped,
            self.unevictable,
            self.context,
            self.host,
            clean,
            shared,
        )

    def move_out(self, piece: int) -> int:
        """Evict a piece, its clean part first; return how much of it was copied."""
        free = min(self.clean, self.mapped, piece)
        self.clean -= free
        self.mapped -= piece
        self.host += piece
        return piece - free

    def move_in(self, piece: int) -> None:
        self.mapped += piece
        self.clean = min(self.clean + piece * self.unchanging // 4, self.mapped)
        self.host = min(self.host, self.promised - self.mapped)

    @property
    def physical(self) -> int:
        return self.mapped + self.fixed

    @property
    def fixed(self) -> int:
        return self.left if self.away else self.unevictable + self.context + self.surplus


@dataclass
class Eviction:
    """An eviction that a process carries out."""

    order: ev.Evict
    #: Bytes that it will move in all: fewer than ordered if it fails.
    size: int
    done: int = 0
    copied: int = 0


@dataclass
class Restore:
    """A restore that a process carries out."""

    filling: bool
    #: Bytes that may be resident on each GPU by now.
    gpus: dict[str, int]
    #: GPUs whose limit will not rise any more.
    last: set[str] = field(default_factory=set)
    came: Counter[str] = field(default_factory=Counter)
    wanted: bool = True
    #: It requested the lease once more after the grant, and is sent all room again.
    again: bool = False


@dataclass(eq=False)
class Process:
    """An obedient client, with its physical memory."""

    number: int
    group: str
    memory: dict[str, Memory] = field(default_factory=dict)
    lease: int | None = None
    busy: bool = False
    waiting: bool = False
    growing: ev.Grow | None = None
    contended: int = 0
    inbox: deque[ev.Decision] = field(default_factory=deque)
    outbox: deque[ev.Event] = field(default_factory=deque)
    leaving: deque[Eviction] = field(default_factory=deque)
    arriving: Restore | None = None
    pace: ev.Pace | None = None
    #: Seconds of each GPU that it has used.
    had: Counter[str] = field(default_factory=Counter)
    #: It may oversubscribe; and the last final limit of resident bytes on each GPU.
    over: bool = False
    limits: dict[str, int] = field(default_factory=dict)
    #: It receives, sends and does nothing.
    stopped: bool = False
    #: It stays out of the driver; the number of the order to do so, and of its own request to be awake.
    parked: bool = False
    park: int = 0
    asks: int = 0
    #: The GPUs that it may use.
    sees: tuple[str, ...] = ()
    #: Its library is an older version, which does not park while it waits for a lease.
    old: bool = False
    #: It was restored from one GPU on another, and was not told yet.
    moved: tuple[str, str] = ("", "")
    #: Steps that the driver is to carry out.
    steps: deque[ev.Hibernate | ev.Wakeup] = field(default_factory=deque)

    def needs(self) -> ev.Usage:
        """Return the memory that it needs to be awake, on the GPU that it was on."""
        gpu, memory = max(self.memory.items(), key=lambda m: m[1].unevictable + m[1].context)
        return ev.Usage(gpu, 0, 0, memory.unevictable, memory.context)

    def limit(self, gpu: str) -> int:
        return self.limits.get(gpu, ev.ALL)

    def on(self, gpu: str) -> Memory:
        # Of the memory of every fifth process, all changes, and nothing of every fifth one's.
        return self.memory.setdefault(gpu, Memory(unchanging=self.number % 5))
