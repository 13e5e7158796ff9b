# SPDX-License-Identifier: BSD-3-Clause
"""Which GPU a kernel uses first: asked by its processes before they initialise CUDA. Sans-IO: no sockets, no clock.

What a kernel gets is an order of the GPUs that it may use, so that its device 0 is the one that suits it best. All of
its processes get the same order, as long as one of them is attached or about to be (``Placement``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .core import Core
from .messages import Keep
from .model import Gpu, Group

#: Seconds for which one that has asked may take to attach: the driver's initialisation lies in between.
PATIENCE = 60.0
#: Waits (seconds) that differ by less than this factor are alike, and so are those shorter than it.
ALIKE = 2.0
#: Kernels of which it is remembered how much memory they had.
MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a kernel may expect of one GPU.

    Attributes
    ----------
    gpu
        Its UUID.
    room
        Bytes that one kernel could have there at most: none where the GPU is not known.
    spare
        Bytes of ``room`` that nobody was promised; negative where more was promised than there is.
    wait
        Seconds until its turn would come, where not all can be there at once.
    own, all
        How many kernels of the same user, and of all, are there or are about to come.
    draining
        No lease is granted there.
    """

    gpu: str
    room: int = 0
    spare: int = 0
    wait: float = 0.0
    own: int = 0
    all: int = 0
    draining: bool = False


def rank(outlooks: Sequence[Outlook], need: int = 0) -> list[str]:
    """Return the GPUs in the order in which a kernel should have them.

    First those that are not drained, then those that could hold what it needs at all, then those that hold it beside
    all others, then those where its turn comes sooner, then those with fewer kernels of its user, with fewer kernels,
    with more room to spare. Among equals, the order in which they were asked for stays.

    Parameters
    ----------
    outlooks
        One for each GPU, in the order in which the kernel would have them.
    need
        Bytes that it is expected to use; 0: nothing is known.
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
    """Tell apart what differs enough to matter."""
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
    #: Its processes that have asked and are not attached yet, by pid: since when.
    coming: dict[int, float] = field(default_factory=dict)


class Placement:
    """Remembers who was placed where, and places those that come.

    Parameters
    ----------
    core
        Knows who is on which GPU.
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
        """Return a kernel's GPUs in its order, and whether it had that order before.

        Parameters
        ----------
        group, user
            The kernel's lease group, and whose it is.
        gpus
            Those that the process may use, in the order in which it would have them.
        pid
            The process, which is going to attach.
        now
            Seconds on the core's clock.
        keep
            What a kernel is to have that has no order: the scheduler's (``"none"``), this one (``"it"``), or none still
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
        """A process of a kernel has attached."""
        if (placed := self._placed.get(group)) is not None:
            placed.coming.pop(pid, None)

    def moved(self, group: str, before: str, gpu: str) -> None:
        """A kernel was woken on another GPU: the two change places in its order."""
        if (placed := self._placed.get(group)) is not None:
            other = {before: gpu, gpu: before}
            placed.order = tuple(other.get(uuid, uuid) for uuid in placed.order)

    def leaves(self, group: Group, now: float) -> None:
        """The last process of a kernel is about to leave: what comes after it is placed anew."""
        had = max((share.promised + share.pinned for share in group.shares.values()), default=0)
        self._had.pop(group.id, None)
        if had:
            self._had[group.id] = had
        while len(self._had) > MOST_REMEMBERED:
            self._had.popitem(last=False)
        placed = self._placed.get(group.id)
        if placed is not None and not self._is_coming(placed, now):
            del self._placed[group.id]

    def need(self, group: str) -> int:
        """Return the bytes on one GPU that a kernel is expected to use; 0: nothing is known."""
        had = self._had.get(group, 0)
        most = self._core.wishes_of(group).memory
        return min(had, most) if most else had

    def outlooks(self, group: str, user: str, gpus: Iterable[str]) -> list[Outlook]:
        """Return what a kernel may expect of each of these GPUs."""
        need = self.need(group)
        about: dict[str, dict[str, str]] = {}
        for known in self._core.groups.values():
            for uuid in known.shares:
                about.setdefault(uuid, {})[known.id] = known.user
        for name, placed in self._placed.items():
            there = self._core.groups.get(name)
            # Until it holds something, it counts where it is going to.
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
        """Return the seconds that those take who run or wait on a GPU: each its burst, or its quantum."""
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
        """Forget those that never came."""
        for group, placed in list(self._placed.items()):
            if group not in self._core.groups and not self._is_coming(placed, now):
                del self._placed[group]
