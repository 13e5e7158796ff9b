# SPDX-License-Identifier: BSD-3-Clause
"""What comes out of the scheduler's core."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .values import Growth


class Grant(Struct, frozen=True):
    """A lease. ``filling``: its room is still being made; ``Room`` says how much of it is there."""

    client: int
    lease: int
    filling: bool = False


class Revoke(Struct, frozen=True):
    client: int
    lease: int


class Step(Struct, frozen=True):
    """Let one submission through that waits at the gate, under the lease that the client's group is giving back.

    ``again``: the client has given it back, and has it again until it is released.
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
    """``waiting``: groups that wait for a GPU of the client's. ``beside``: groups that hold a lease there too.

    With either, a burst is over once nothing was submitted for the quiet gap. They are exact when told, and told anew
    when one of them changes between none and some.
    """

    client: int
    waiting: int
    beside: int = 0


class EndBurst(Struct, frozen=True):
    """Tell the client that its burst is over, unless it goes on submitting."""

    client: int
    at: float


class Pace(Struct, frozen=True):
    """How fast a client with a lease may submit; what it was told last holds until it is told anew.

    Attributes
    ----------
    inflight
        Seconds of its own work, as measured, that may be in flight: 0 pauses it, None bounds nothing. One submission
        may always be, unless it is paused.
    stall
        Where it could not submit for so many seconds, one submission is let through all the same; not beyond the share.
    share
        Fraction of the wall time that its work may be on the GPU; 1: all.
    meter
        Whether it has to say how much it had (``Meter``), measured to the submission.
    """

    client: int
    inflight: float | None = None
    stall: float = 0.010
    share: float = 1.0
    meter: bool = False


class Room(Struct, frozen=True):
    """Under a grant that fills: so many bytes of the client's footprint may be on the GPU now, or ``ALL``.

    ``last``: the lease brings no more, unless the promise grows; the rest is used from the host.
    """

    client: int
    lease: int
    gpu: str
    resident: int
    last: bool = False


class Prepare(Struct, frozen=True):
    """Have so many bytes of the host's pool page-locked, in use or ahead of need."""

    client: int
    bytes: int


class Stock(Struct, frozen=True):
    """Have so many bytes of the host's pool at hand, in use or ahead of need."""

    bytes: int


class Park(Struct, frozen=True):
    """Stay out of the driver, so that the process can be checkpointed; ``Parked`` answers."""

    client: int
    serial: int


class Hibernate(Struct, frozen=True):
    """Have the client's process checkpointed; ``Checkpointed`` answers."""

    client: int
    gpu: str = ""


class Wakeup(Struct, frozen=True):
    """Have the client's process restored; ``Woken`` answers. With GPUs: the second in the place of the first.

    ``needs``: bytes that it takes on the GPU ``gpu``; 0: not known.
    """

    client: int
    gpu_from: str = ""
    gpu_to: str = ""
    gpu: str = ""
    needs: int = 0


class Hibernated(Struct, frozen=True):
    """Tell a parked client what came of it; not ``done``: it may call the driver.

    ``context``: bytes that its contexts took, as far as is known.
    """

    client: int
    serial: int
    done: bool
    context: int = 0


class Awake(Struct, frozen=True):
    """Tell a parked client that it may call the driver; or (``status``, a CUresult) that it cannot be woken now.

    ``serial``: of the ``Wake``; 0: nobody of the client's has asked. What was on ``gpu_from`` is on ``gpu_to`` now,
    unless they are empty.
    """

    client: int
    serial: int
    status: int = 0
    gpu_from: str = ""
    gpu_to: str = ""
    text: str = ""


class ReadDevice(Struct, frozen=True):
    """Give the core a fresh ``Device`` event for this GPU, not before ``after`` seconds from now."""

    gpu: str
    after: float = 0.0


class Log(Struct, frozen=True):
    """One line of the history (docs/reference/control.md, "Events")."""

    kind: str
    group: str
    fields: dict[str, Any] = {}


Decision = (
    Grant | Revoke | Step | Evict | Grown | CancelWaits | Contended | EndBurst | Pace | Room | Prepare | Stock
    | Park | Hibernate | Wakeup | Hibernated | Awake | ReadDevice | Log
)  # fmt: skip
