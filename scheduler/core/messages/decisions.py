# SPDX-License-Identifier: BSD-3-Clause
"""Decisions: the scheduler's core returns them, and the server carries them out."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .values import Growth


class Grant(Struct, frozen=True):
    """A lease. With ``filling``, its room is still being made, and ``Room`` states how much of it is there."""

    client: int
    lease: int
    filling: bool = False


class Revoke(Struct, frozen=True):
    client: int
    lease: int


class Step(Struct, frozen=True):
    """Let one submission through that waits at the gate, under the lease that the client's group is releasing.

    With ``again``, the client has released the lease already, and holds it again until it sends ``Released``.
    """

    client: int
    lease: int
    again: bool = False


class Evict(Struct, frozen=True):
    client: int
    serial: int
    gpu: str
    bytes: int


class Grown(Struct, frozen=True):
    client: int
    serial: int
    status: Growth
    promised: int
    text: str = ""


class CancelWaits(Struct, frozen=True):
    client: int


class Contended(Struct, frozen=True):
    """``waiting``: groups that wait for one of the client's GPUs. ``beside``: groups that also hold a lease there.

    If either is not 0, a burst is over once nothing was submitted for the quiet gap. Both are exact when sent, and are
    sent again when one of them changes from or to 0.
    """

    client: int
    waiting: int
    beside: int = 0


class EndBurst(Struct, frozen=True):
    """Tell the client that its burst is over, unless it goes on submitting."""

    client: int
    at: float


class Pace(Struct, frozen=True):
    """How fast a client with a lease may submit. It holds until the next ``Pace``.

    Attributes
    ----------
    inflight
        Seconds of its own work, as measured, that may be in flight: 0 pauses the client, None sets no bound. Unless it
        is paused, one submission may always be in flight.
    stall
        Seconds without a submission after which one is let through despite the bound, within the share.
    share
        The fraction of the wall time for which its work may be on the GPU; 1: all.
    meter
        Whether the client measures each submission and reports its GPU time (``Meter``).
    """

    client: int
    inflight: float | None = None
    stall: float = 0.010
    share: float = 1.0
    meter: bool = False


class Room(Struct, frozen=True):
    """Bytes of the client's footprint that may be on the GPU now, or ``ALL``, under a grant that fills.

    With ``last``, the lease brings no more unless the promise grows; the GPU accesses the rest in host memory.
    """

    client: int
    lease: int
    gpu: str
    resident: int
    last: bool = False


class Prepare(Struct, frozen=True):
    """The bytes of the host memory pool that the client keeps page-locked, in use or ahead of need."""

    client: int
    bytes: int


class PreparePool(Struct, frozen=True):
    """The bytes of the host memory pool that the server keeps prepared, in use or ahead of need."""

    bytes: int


class Spill(Struct, frozen=True):
    """Which clients' host memory may go to the disk: first that of the longest idle, then that of waiting clients.

    The memory of the first ``at_once`` goes there now, and that of the others when host memory is needed. Both lists
    hold until the next decision of their kind.
    """

    clients: tuple[int, ...]
    at_once: int = 0


class Fetch(Struct, frozen=True):
    """The clients whose host memory is to come back from the disk, in this order."""

    clients: tuple[int, ...]


class Park(Struct, frozen=True):
    """Stay out of the driver, so that the process can be checkpointed; ``Parked`` answers."""

    client: int
    serial: int


class Hibernate(Struct, frozen=True):
    """Have the client's process checkpointed; ``Checkpointed`` answers."""

    client: int
    gpu: str = ""


class Wakeup(Struct, frozen=True):
    """Have the client's process restored; ``Woken`` answers.

    With ``gpu_from`` and ``gpu_to``, it is restored on the second GPU instead of the first. ``needs``: bytes that it
    takes on the GPU ``gpu``; 0: not known.
    """

    client: int
    gpu_from: str = ""
    gpu_to: str = ""
    gpu: str = ""
    needs: int = 0


class Hibernated(Struct, frozen=True):
    """The result of parking a client. Unless it is ``done``, the client may call the driver.

    ``context``: bytes that its contexts took, as far as is known.
    """

    client: int
    serial: int
    done: bool
    context: int = 0


class Awake(Struct, frozen=True):
    """A parked client may call the driver, or (``status``, a CUresult) cannot be woken now.

    ``serial``: that of the ``Wake``; 0: no thread of the client waits for it. Unless they are empty, what was on
    ``gpu_from`` is now on ``gpu_to``.
    """

    client: int
    serial: int
    status: int = 0
    gpu_from: str = ""
    gpu_to: str = ""
    text: str = ""


class ReadDevice(Struct, frozen=True):
    """Pass the core a new ``Device`` event for this GPU, in ``after`` seconds at the earliest."""

    gpu: str
    after: float = 0.0


class Log(Struct, frozen=True):
    """One line of the history (docs/reference/control.md, "Events")."""

    kind: str
    group: str
    fields: dict[str, Any] = {}


Decision = (
    Grant | Revoke | Step | Evict | Grown | CancelWaits | Contended | EndBurst | Pace | Room | Prepare | PreparePool
    | Spill | Fetch | Park | Hibernate | Wakeup | Hibernated | Awake | ReadDevice | Log
)  # fmt: skip
