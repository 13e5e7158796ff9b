# SPDX-License-Identifier: BSD-3-Clause
"""What goes into the scheduler's core."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .values import (
    AntiThrash,
    Backend,
    Cause,
    MoveStatus,
    Parking,
    Phase,
    Priority,
    Quantum,
    Usage,
    WakeCause,
)

# --- From clients ---------------------------------------------------------------------------------


class Attach(Struct, frozen=True):
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


class Detach(Struct, frozen=True):
    """A client's connection ended. What it held stays charged until the device is seen without it."""

    client: int


class Request(Struct, frozen=True):
    client: int
    serial: int


class Burst(Struct, frozen=True):
    client: int
    phase: Phase
    cause: Cause
    at: float


class Meter(Struct, frozen=True):
    """What a client has had of one GPU since it attached: both only grow.

    ``busy``: seconds for which work of its own was on the GPU, as its events say; what ran side by side counts once.
    """

    client: int
    gpu: str
    busy: float
    submissions: int
    at: float


class Stuck(Struct, frozen=True):
    """A client that was revoked cannot give its lease back yet: this kernel still runs, since ``since``."""

    client: int
    lease: int
    kernel: str
    since: float


class Released(Struct, frozen=True):
    client: int
    lease: int
    cause: Cause


class Grow(Struct, frozen=True):
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


class UsageChanged(Struct, frozen=True):
    client: int
    usage: Usage


class Evicted(Struct, frozen=True):
    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus


class Moving(Struct, frozen=True):
    """Of an eviction that is under way: what has left so far. ``Evicted`` comes in the end all the same."""

    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus


class Restored(Struct, frozen=True):
    client: int
    lease: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus
    #: The driver's error, if not all could be moved; 0: not known.
    error: int = 0


class Parked(Struct, frozen=True):
    """Answers ``Park``.

    ``needs``: what it needs on its GPU to be awake, ``pinned`` and ``context``; ``sees``: the GPUs that it may use.
    """

    client: int
    serial: int
    status: Parking
    needs: Usage
    sees: tuple[str, ...] = ()


class Wake(Struct, frozen=True):
    """A parked client is needed: a thread of it waits to enter the driver, or the process ends."""

    client: int
    serial: int
    cause: WakeCause
    needs: Usage


class Cell(Struct, frozen=True):
    """A cell began or ended, as the kernel's hook (``client``) or the server (by ``group``) saw it."""

    group: str
    phase: Phase
    msg_id: str
    at: float
    from_kernel: bool


# --- From people and the machine ------------------------------------------------------------------


class Cancel(Struct, frozen=True):
    group: str


class Release(Struct, frozen=True):
    """End the group's burst and give its lease back; with ``offload``, move all its memory out too."""

    group: str
    offload: bool = False


class HibernateNow(Struct, frozen=True):
    """People want a group to hibernate as soon as it is idle."""

    group: str


class WakeNow(Struct, frozen=True):
    """People want a hibernated group to be awake before its next cell."""

    group: str


class Rename(Struct, frozen=True):
    group: str
    name: str


class Adjust(Struct, frozen=True):
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


class Entitlement(Struct, frozen=True):
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


class Entitle(Struct, frozen=True):
    """An admin states what somebody is entitled to.

    ``user:NAME``; ``user:*``: each user of whom nothing else is stated; or ``team:NAME``: its ``members`` (users), and
    whoever said so of himself (``Attach.teams``).
    """

    whose: str
    entitlement: Entitlement
    members: tuple[str, ...] = ()


class Focus(Struct, frozen=True):
    """The notebook in front of one user: among that user's own, it comes first. Empty: none."""

    user: str
    group: str


class Configure(Struct, frozen=True):
    quantum: Quantum | None = None
    anti_thrash: AntiThrash | None = None
    policy: str | None = None
    #: Seconds of idleness after which a group hibernates; 0: none does.
    hibernate_after: float | None = None


class Hold(Struct, frozen=True):
    """An administrator takes the GPU from a group until he lets it go on: its user cannot."""

    group: str
    on: bool


class Drain(Struct, frozen=True):
    """An administrator wants a GPU empty: no lease is granted there, those that are there end, memory leaves."""

    gpu: str
    on: bool


class Maintain(Struct, frozen=True):
    """An administrator tells everybody something, such as when the machine will be stopped. Empty: no more."""

    text: str


class Device(Struct, frozen=True):
    """A reading of one GPU's memory (NVML). The first one of a GPU makes it known to the core."""

    gpu: str
    total: int
    used: int
    name: str = ""
    index: int = 0


class Awaited(Struct, frozen=True):
    """A client of the previous scheduler that has not attached to this one yet."""

    #: Its process and when that was started, as `pool.start_time` has it; 0 and "" where they cannot be seen.
    pid: int
    started: str
    group: str
    usages: tuple[Usage, ...]


class Await(Struct, frozen=True):
    """The previous scheduler left a list of its clients; their positions are their numbers in `Desist`."""

    clients: tuple[Awaited, ...]


class Desist(Struct, frozen=True):
    """Clients of the previous scheduler have exited, or (``late``) had time enough to attach again."""

    clients: tuple[int, ...]
    late: bool = False


class Measured(Struct, frozen=True):
    """What the contexts of a client take on a GPU, as the driver says."""

    client: int
    gpu: str
    bytes: int


class HostMemory(Struct, frozen=True):
    """How many bytes of host memory swapped data may take in all.

    ``most``: what that could be at most, if no other program needed any.
    """

    budget: int
    most: int = 0


class Hibernatable(Struct, frozen=True):
    """Whether processes can be checkpointed here at all; if not, ``code`` and ``text`` say why.

    ``moves``: they can be restored on another GPU of the same kind.
    """

    able: bool
    moves: bool = False
    code: str = ""
    text: str = ""


class Checkpointed(Struct, frozen=True):
    """What came of ``Hibernate``; or, with ``ok`` false, of ``Park``: the process is one that must not be parked."""

    client: int
    ok: bool
    code: str = ""
    text: str = ""
    seconds: float = 0.0
    #: Bytes that the process had on its GPU before, as the driver says; 0: it does not say.
    held: int = 0


class Woken(Struct, frozen=True):
    """What came of ``Wakeup``."""

    client: int
    ok: bool
    code: str = ""
    text: str = ""
    seconds: float = 0.0


class Notice(Struct, frozen=True):
    group: str
    code: str
    params: dict[str, Any] = {}


class Tick(Struct, frozen=True):
    """The time that ``Core.deadline()`` asked for has come."""


Event = (
    Attach | Detach | Request | Burst | Meter | Stuck | Released | Grow | UsageChanged | Evicted | Moving | Restored
    | Parked | Wake | Cell | Cancel | Release | HibernateNow | WakeNow | Rename | Adjust | Entitle | Hold | Drain
    | Maintain | Focus | Configure | Device | Measured | Await | Desist | HostMemory | Hibernatable
    | Checkpointed | Woken | Notice | Tick
)  # fmt: skip
