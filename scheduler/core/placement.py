# SPDX-License-Identifier: BSD-3-Clause
"""Which GPU a Jupyter kernel uses first. Its processes request this before they initialise CUDA. No sockets, no clock.

The answer is an order of the GPUs that the kernel may use, so that its device 0 is the GPU that suits it best. All of
its processes get the same order, as long as one of them is attached or about to attach (``Placement``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .core import Core
from .messages import Keep
from .model import Gpu, Group

#: Seconds in which a process must attach after its request. It initialises the driver meanwhile.
PATIENCE = 60.0
#: Waits (seconds) that differ by less than this factor count as equal, and so do waits that are shorter than it.
ALIKE = 2.0
#: The number of kernels whose memory is remembered.
MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a kernel can expect of one GPU.

    Attributes
    ----------
    gpu
        Its UUID.
    room
        Bytes that one kernel could have there at most: 0 if the GPU is not known.
    spare
        Bytes of ``room`` that were promised to no kernel; negative if more was promised than there is.
    wait
        Seconds until its time slice would begin if not all kernels fit at once.
    own, all
        The numbers of kernels of the same user, and of all, that are there or about to come.
    draining
        Whether no lease is granted there.
    """

    gpu: str
    room: int = 0
    spare: int = 0
    wait: float = 0.0
    own: int = 0
    all: int = 0
    draining: bool = False


def rank(outlooks: Sequence[Outlook], need: int = 0) -> list[str]:
    """Return the GPUs in the best order for a kernel.

    A GPU comes earlier if, in this order of weight:

    - it is not drained
    - it can hold what the kernel needs
    - it can hold this besides all other kernels
    - its time slice comes sooner
    - it has fewer kernels of the same user, then fewer kernels
    - it has more spare room

    Equal GPUs keep the order in which they were passed.

    Parameters
    ----------
    outlooks
        One for each GPU, in the kernel's own order.
    need
        Bytes that it is expected to use; 0: not known.
    """

    def worth(outlook: Outlook) -> tuple[object, ...]:
        return (
            outlook.draining,
            outlook.room <= 0,
            outlook.room < need,
            outlook.spare < need,
            _step(outlook.wait),
            outlook.own,
            outlook.all,
            -outlook.spare,
        )

    return [outlook.gpu for outlook in sorted(outlooks, key=worth)]


def _step(wait: float) -> int:
    """Return a value that differs only where waits differ enough to matter."""
    step = 0
    while wait >= ALIKE and step < 40:
        wait /= ALIKE
        step += 1
    return step


@dataclass(slots=True)
class _Placed:
    """The order of one kernel's GPUs."""

    order: tuple[str, ...]
    user: str
    #: Its processes that have asked and not attached yet, by pid: since when.
    coming: dict[int, float] = field(default_factory=dict)


class Placement:
    """Remembers the orders of kernels, and places new kernels.

    Parameters
    ----------
    core
        The core, which has the groups on each GPU.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._placed: dict[str, _Placed] = {}
        #: Bytes on one GPU that kernels had when they left.
        self._had: OrderedDict[str, int] = OrderedDict()

    def place(
        self,
        group: str,
        user: str,
        gpus: Sequence[str],
        *,
        pid: int,
        now: float,
        keep: Keep = "none",
    ) -> tuple[tuple[str, ...], bool]:
        """Return a kernel's GPUs in its order, and whether it had that order already.

        Parameters
        ----------
        group, user
            The kernel's lease group, and its user.
        gpus
            The GPUs that the process may use, in its own order.
        pid
            The process, which is about to attach.
        now
            Seconds on the core's clock.
        keep
            The order of a kernel that has none yet: the scheduler's (``"none"``), this one (``"it"``), or still none
            (``"ask"``).
        """
        self._expire(now)
        placed = self._placed.get(group)
        known = placed is not None
        if placed is None:
            order = tuple(gpus)
            if keep == "none":
                order = tuple(rank(self.outlooks(group, user, gpus), self.need(group)))
            if keep == "ask":
                return order, False
            placed = self._placed[group] = _Placed(order, user)
        if group not in self._core.groups or pid not in self._pids(group):
            placed.coming[pid] = now
        places = {gpu: place for place, gpu in enumerate(placed.order)}
        ordered = tuple(sorted(gpus, key=lambda gpu: places.get(gpu, len(places))))
        return ordered, known

    def attached(self, group: str, pid: int) -> None:
        """Note that a process of a kernel has attached."""
        if (placed := self._placed.get(group)) is not None:
            placed.coming.pop(pid, None)

    def moved(self, group: str, before: str, gpu: str) -> None:
        """Exchange two GPUs in the order of a kernel that was woken on another GPU."""
        if (placed := self._placed.get(group)) is not None:
            other = {before: gpu, gpu: before}
            placed.order = tuple(other.get(uuid, uuid) for uuid in placed.order)

    def leaves(self, group: Group, now: float) -> None:
        """Forget the order of a kernel whose last process is about to leave. Its next process gets a new one."""
        had = max(
            (share.promised + share.unevictable for share in group.shares.values()), default=0
        )
        self._had.pop(group.id, None)
        if had:
            self._had[group.id] = had
        while len(self._had) > MOST_REMEMBERED:
            self._had.popitem(last=False)
        placed = self._placed.get(group.id)
        if placed is not None and not self._is_coming(placed, now):
            del self._placed[group.id]

    def learnt(self) -> dict[str, int]:
        """Return the bytes on one GPU that kernels had when they left."""
        return dict(self._had)

    def recall(self, had: Mapping[str, int]) -> None:
        """Apply the sizes of kernels that left another scheduler."""
        self._had.update(list(had.items())[-MOST_REMEMBERED:])

    def need(self, group: str) -> int:
        """Return the bytes on one GPU that a kernel is expected to use; 0: not known."""
        had = self._had.get(group, 0)
        most = self._core.preferences_of(group).memory
        return min(had, most) if most else had

    def outlooks(self, group: str, user: str, gpus: Iterable[str]) -> list[Outlook]:
        """Return what a kernel can expect of each of these GPUs."""
        need = self.need(group)
        about: dict[str, dict[str, str]] = {}
        for known in self._core.groups.values():
            for uuid in known.shares:
                about.setdefault(uuid, {})[known.id] = known.user
        for name, placed in self._placed.items():
            there = self._core.groups.get(name)
            # Until it holds something, it counts on the GPU to which it is going.
            if there is None or not there.shares:
                about.setdefault(placed.order[0], {})[name] = placed.user
        return [self._outlook(uuid, need, user, group, about.get(uuid, {})) for uuid in gpus]

    def _outlook(
        self, uuid: str, need: int, user: str, group: str, about: Mapping[str, str]
    ) -> Outlook:
        gpu = self._core.gpus.get(uuid)
        others = [whose for name, whose in about.items() if name != group]
        counts = others.count(user), len(others)
        if gpu is None:
            return Outlook(uuid, 0, 0, 0.0, *counts)
        room = max(0, gpu.capacity - gpu.pending_reclaim)
        spare = room - gpu.promised
        wait = 0.0 if spare >= need and not gpu.queue else self._wait(gpu)
        return Outlook(uuid, room, spare, wait, *counts, gpu.drained)

    def _wait(self, gpu: Gpu) -> float:
        """Return the seconds that the running and waiting groups on a GPU take: each its burst, or its quantum."""
        groups = {**gpu.holders, **{wait.group.id: wait.group for wait in gpu.queue}}
        return sum(
            min(self._core.view.expected(group), self._core.residency.quantum_of(group))
            for group in groups.values()
            if group.lease is None or group.busy
        )

    def _pids(self, group: str) -> set[int]:
        return {client.pid for client in self._core.groups[group].clients.values()}

    def _is_coming(self, placed: _Placed, now: float) -> bool:
        return any(since + PATIENCE > now for since in placed.coming.values())

    def _expire(self, now: float) -> None:
        """Forget processes that did not attach."""
        for group, placed in list(self._placed.items()):
            if group not in self._core.groups and not self._is_coming(placed, now):
                del self._placed[group]
