# SPDX-License-Identifier: BSD-3-Clause
"""What goes into the scheduler's core (events) and what comes out of it (decisions).

Sizes are bytes, times seconds on CLOCK_MONOTONIC, GPUs are named by NVML's UUID string. A ``client`` is the number of a
connection, never used twice. The classes mirror ``csrc/protocol.h``; ``server.py`` translates.

Nobody changes what was said. The classes are not frozen all the same: a crowd is told by the hundred, and to make a
frozen one takes four times as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Backend = Literal["plain", "swap", "managed"]
Phase = Literal["begin", "end"]
Cause = Literal["none", "cell", "idle", "quiet", "release", "revoke", "growth", "failed", "exit"]
Growth = Literal["resident", "swapped", "device", "cap", "host"]
MoveStatus = Literal["done", "partial", "failed"]
#: What a client answers to ``Park``: ``done``, or why it is not to be checkpointed.
Parking = Literal["done", "busy", "capture", "gpus", "nccl", "ipc", "managed", "pinned", "plain"]
WakeCause = Literal["call", "exit"]
#: The order of the GPUs that a group without one gets: the scheduler's, the one that is stated, or none still.
Keep = Literal["none", "it", "ask"]
AntiThrash = Literal["auto", "on", "off"]
#: What people ask for; with ``auto``, the group's class follows from what it does (``burst_model.py``).
Priority = Literal["auto", "interactive", "background"]
#: What a group counts as.
Class = Literal["interactive", "background"]
#: Seconds, or ``"auto"``: from the measured cost of moving.
Quantum = float | Literal["auto"]
#: As ``Room.resident``: the room for all that is promised is there.
ALL = (1 << 64) - 1


@dataclass(slots=True)
class Usage:
    """What one client holds on one GPU."""

    gpu: str
    promised: int = 0
    resident: int = 0
    pinned: int = 0
    context: int = 0
    host: int = 0


# --- Events: from clients -------------------------------------------------------------------------


@dataclass(slots=True)
class Attach:
    """A client said HELLO. ``lease`` is set if it goes on under a lease of an earlier scheduler."""

    client: int
    pid: int
    group: str
    name: str
    backend: Backend
    cap: int = 0
    usages: tuple[Usage, ...] = ()
    reattach: bool = False
    leased: bool = False
    busy: bool = False
    lease: int = 0
    #: May hold more than a GPU has: what has no room is used from the host.
    oversubscribe: bool = False
    #: Whose it is: shares and fairness are between users.
    user: str = ""
    #: Groups of users that it is in, as the system or JupyterHub knows them.
    teams: tuple[str, ...] = ()
    #: It is parked, so it may be checkpointed: ``pinned`` and ``context`` are what it needs to be awake.
    hibernated: bool = False
    #: The GPUs that it may use then; none: that is not known.
    sees: tuple[str, ...] = ()


@dataclass(slots=True)
class Detach:
    """A client's connection ended. What it held stays charged until the device is seen without it."""

    client: int


@dataclass(slots=True)
class Request:
    client: int
    serial: int


@dataclass(slots=True)
class Burst:
    client: int
    phase: Phase
    cause: Cause
    at: float


@dataclass(slots=True)
class Meter:
    """What a client has had of one GPU since it attached: both only grow.

    ``busy``: seconds for which work of its own was on the GPU, as its events say; what ran side by side counts once.
    """

    client: int
    gpu: str
    busy: float
    submissions: int
    at: float


@dataclass(slots=True)
class Stuck:
    """A client that was revoked cannot give its lease back yet: this kernel still runs, since ``since``."""

    client: int
    lease: int
    kernel: str
    since: float


@dataclass(slots=True)
class Released:
    client: int
    lease: int
    cause: Cause


@dataclass(slots=True)
class Grow:
    """A client wants more memory: at least ``least``, best ``most`` promised bytes.

    ``oversubscribe``: more than the GPU has, if need be; the client is one that oversubscribes from now on.
    ``urgent``: an open stream capture needs what is allocated, or what runs may; until it is done, the lease is kept.
    """

    client: int
    serial: int
    least: Usage
    most: int
    oversubscribe: bool = False
    urgent: bool = False


@dataclass(slots=True)
class UsageChanged:
    client: int
    usage: Usage


@dataclass(slots=True)
class Evicted:
    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus


@dataclass(slots=True)
class Moving:
    """Of an eviction that is under way: what has left so far. ``Evicted`` comes in the end all the same."""

    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus


@dataclass(slots=True)
class Restored:
    client: int
    lease: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus
    #: The driver's error, if not all could be moved; 0: not known.
    error: int = 0


@dataclass(slots=True)
class Parked:
    """Answers ``Park``.

    ``needs``: what it needs on its GPU to be awake, ``pinned`` and ``context``; ``sees``: the GPUs that it may use.
    """

    client: int
    serial: int
    status: Parking
    needs: Usage
    sees: tuple[str, ...] = ()


@dataclass(slots=True)
class Wake:
    """A parked client is needed: a thread of it waits to enter the driver, or the process ends."""

    client: int
    serial: int
    cause: WakeCause
    needs: Usage


@dataclass(slots=True)
class Cell:
    """A cell began or ended, as the kernel's hook (``client``) or the server (by ``group``) saw it."""

    group: str
    phase: Phase
    msg_id: str
    at: float
    from_kernel: bool


# --- Events: from people and the machine ----------------------------------------------------------


@dataclass(slots=True)
class Cancel:
    group: str


@dataclass(slots=True)
class Release:
    """End the group's burst and give its lease back; with ``offload``, move all its memory out too."""

    group: str
    offload: bool = False


@dataclass(slots=True)
class HibernateNow:
    """People want a group to hibernate as soon as it is idle."""

    group: str


@dataclass(slots=True)
class WakeNow:
    """People want a hibernated group to be awake before its next cell."""

    group: str


@dataclass(slots=True)
class Rename:
    group: str
    name: str


@dataclass(slots=True)
class Adjust:
    """People ask something for a group; what is None stays as it is.

    ``memory``: bytes of footprint on each GPU, 0 for none. ``request``, ``limit``, ``weight``: as in ``Entitlement``.
    ``later``: remember it for a group that has no process yet.
    """

    group: str
    priority: Priority | None = None
    keep: bool | None = None
    frozen: bool | None = None
    memory: int | None = None
    request: float | None = None
    limit: float | None = None
    weight: float | None = None
    exclusive: bool | None = None
    later: bool = False


@dataclass(frozen=True, slots=True)
class Entitlement:
    """What one group, user or team of users is entitled to; fractions are of one GPU's time over the window.

    ``request``: guaranteed, 0 for nothing. ``limit``: never more, 0 for none. ``weight``: of what is spare. ``memory``:
    bytes of footprint on each GPU in all, 0 for no cap. Of users and teams alone: ``gpus``: most GPUs on which their
    groups may hold leases at once, 0 for all. ``host``: bytes of footprint over all GPUs, which may all have to lie in
    host memory, 0 for no cap.
    """

    request: float = 0.0
    limit: float = 0.0
    weight: float = 1.0
    memory: int = 0
    gpus: int = 0
    host: int = 0


@dataclass(slots=True)
class Entitle:
    """An admin states what somebody is entitled to.

    ``user:NAME``; ``user:*``: each user of whom nothing else is stated; or ``team:NAME``: its ``members`` (users), and
    whoever said so of himself (``Attach.teams``).
    """

    whose: str
    entitlement: Entitlement
    members: tuple[str, ...] = ()


@dataclass(slots=True)
class Focus:
    """The notebook in front of one user: among that user's own, it comes first. Empty: none."""

    user: str
    group: str


@dataclass(slots=True)
class Configure:
    quantum: Quantum | None = None
    anti_thrash: AntiThrash | None = None
    policy: str | None = None
    #: Seconds of idleness after which a group hibernates; 0: none does.
    hibernate_after: float | None = None


@dataclass(slots=True)
class Hold:
    """An administrator takes the GPU from a group until he lets it go on: its user cannot."""

    group: str
    on: bool


@dataclass(slots=True)
class Drain:
    """An administrator wants a GPU empty: no lease is granted there, those that are there end, memory leaves."""

    gpu: str
    on: bool


@dataclass(slots=True)
class Maintain:
    """An administrator tells everybody something, such as when the machine will be stopped. Empty: no more."""

    text: str


@dataclass(slots=True)
class Device:
    """A reading of one GPU's memory (NVML). The first one of a GPU makes it known to the core."""

    gpu: str
    total: int
    used: int
    name: str = ""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Awaited:
    """A client of the previous scheduler that has not attached to this one yet."""

    #: Its process and when that was started, as `pool.start_time` has it; 0 and "" where they cannot be seen.
    pid: int
    started: str
    group: str
    usages: tuple[Usage, ...]


@dataclass(slots=True)
class Await:
    """The previous scheduler left a list of its clients; their positions are their numbers in `Desist`."""

    clients: tuple[Awaited, ...]


@dataclass(slots=True)
class Desist:
    """Clients of the previous scheduler have exited, or (``late``) had time enough to attach again."""

    clients: tuple[int, ...]
    late: bool = False


@dataclass(slots=True)
class Measured:
    """What the contexts of a client take on a GPU, as the driver says."""

    client: int
    gpu: str
    bytes: int


@dataclass(slots=True)
class HostMemory:
    """How many bytes of host memory swapped data may take in all.

    ``most``: what that could be at most, if no other program needed any.
    """

    budget: int
    most: int = 0


@dataclass(slots=True)
class Hibernatable:
    """Whether processes can be checkpointed here at all; if not, ``code`` and ``text`` say why.

    ``moves``: they can be restored on another GPU of the same kind.
    """

    able: bool
    moves: bool = False
    code: str = ""
    text: str = ""


@dataclass(slots=True)
class Checkpointed:
    """What came of ``Hibernate``; or, with ``ok`` false, of ``Park``: the process is one that must not be parked."""

    client: int
    ok: bool
    code: str = ""
    text: str = ""
    seconds: float = 0.0
    #: Bytes that the process had on its GPU before, as the driver says; 0: it does not say.
    held: int = 0


@dataclass(slots=True)
class Woken:
    """What came of ``Wakeup``."""

    client: int
    ok: bool
    code: str = ""
    text: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Notice:
    group: str
    code: str
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Tick:
    """The time that ``Core.deadline()`` asked for has come."""


Event = (
    Attach | Detach | Request | Burst | Meter | Stuck | Released | Grow | UsageChanged | Evicted | Moving | Restored
    | Parked | Wake | Cell | Cancel | Release | HibernateNow | WakeNow | Rename | Adjust | Entitle | Hold | Drain
    | Maintain | Focus | Configure | Device | Measured | Await | Desist | HostMemory | Hibernatable
    | Checkpointed | Woken | Notice | Tick
)  # fmt: skip


# --- Decisions ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Grant:
    """A lease. ``filling``: its room is still being made; ``Room`` says how much of it is there."""

    client: int
    lease: int
    filling: bool = False


@dataclass(slots=True)
class Revoke:
    client: int
    lease: int


@dataclass(slots=True)
class Step:
    """Let one submission through that waits at the gate, under the lease that the client's group is giving back.

    ``again``: the client has given it back, and has it again until it is released.
    """

    client: int
    lease: int
    again: bool = False


@dataclass(slots=True)
class Evict:
    client: int
    serial: int
    gpu: str
    bytes: int


@dataclass(slots=True)
class Grown:
    client: int
    serial: int
    status: Growth
    promised: int
    text: str = ""


@dataclass(slots=True)
class CancelWaits:
    client: int


@dataclass(slots=True)
class Contended:
    """``waiting``: groups that wait for a GPU of the client's. ``beside``: groups that hold a lease there too.

    With either, a burst is over once nothing was submitted for the quiet gap. They are exact when told, and told anew
    when one of them changes between none and some.
    """

    client: int
    waiting: int
    beside: int = 0


@dataclass(slots=True)
class EndBurst:
    """Tell the client that its burst is over, unless it goes on submitting."""

    client: int
    at: float


@dataclass(slots=True)
class Pace:
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


@dataclass(slots=True)
class Room:
    """Under a grant that fills: so many bytes of the client's footprint may be on the GPU now, or ``ALL``.

    ``last``: the lease brings no more, unless the promise grows; the rest is used from the host.
    """

    client: int
    lease: int
    gpu: str
    resident: int
    last: bool = False


@dataclass(slots=True)
class Prepare:
    """Have so many bytes of the host's pool page-locked, in use or ahead of need."""

    client: int
    bytes: int


@dataclass(slots=True)
class Stock:
    """Have so many bytes of the host's pool at hand, in use or ahead of need."""

    bytes: int


@dataclass(slots=True)
class Park:
    """Stay out of the driver, so that the process can be checkpointed; ``Parked`` answers."""

    client: int
    serial: int


@dataclass(slots=True)
class Hibernate:
    """Have the client's process checkpointed; ``Checkpointed`` answers."""

    client: int
    gpu: str = ""


@dataclass(slots=True)
class Wakeup:
    """Have the client's process restored; ``Woken`` answers. With GPUs: the second in the place of the first.

    ``needs``: bytes that it takes on the GPU ``gpu``; 0: not known.
    """

    client: int
    gpu_from: str = ""
    gpu_to: str = ""
    gpu: str = ""
    needs: int = 0


@dataclass(slots=True)
class Hibernated:
    """Tell a parked client what came of it; not ``done``: it may call the driver.

    ``context``: bytes that its contexts took, as far as is known.
    """

    client: int
    serial: int
    done: bool
    context: int = 0


@dataclass(slots=True)
class Awake:
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


@dataclass(slots=True)
class ReadDevice:
    """Give the core a fresh ``Device`` event for this GPU, not before ``after`` seconds from now."""

    gpu: str
    after: float = 0.0


@dataclass(slots=True)
class Log:
    """One line of the history (docs/control.md, "Events")."""

    kind: str
    group: str
    fields: dict[str, Any] = field(default_factory=dict)


Decision = (
    Grant | Revoke | Step | Evict | Grown | CancelWaits | Contended | EndBurst | Pace | Room | Prepare | Stock
    | Park | Hibernate | Wakeup | Hibernated | Awake | ReadDevice | Log
)  # fmt: skip
