# SPDX-License-Identifier: BSD-3-Clause
"""Events: the input of the scheduler's core."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from .learnt import Learnt
from .values import (
    AntiThrash,
    Backend,
    Cause,
    HintKind,
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
    """A client sent HELLO. ``lease`` is set if it goes on under a lease of an earlier scheduler."""

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
    #: Whether it may hold more than a GPU has. The GPU accesses what has no room in host memory.
    oversubscribe: bool = False
    #: Its user: shares and fairness are between users.
    user: str = ""
    #: The user's groups, according to the system or JupyterHub.
    teams: tuple[str, ...] = ()
    #: Whether it is parked, and so may be checkpointed: ``unevictable`` and ``context`` are what it needs to be awake.
    hibernated: bool = False
    #: The GPUs that it may use then; empty: not known.
    sees: tuple[str, ...] = ()


class Detach(Struct, frozen=True):
    """A client's connection ended. Its memory stays charged until a reading of the GPU shows that it is free."""

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
    """A client's use of one GPU since it attached. Both figures only grow.

    ``busy``: seconds for which its own work was on the GPU according to its CUDA events. Work that ran side by side
    counts once.
    """

    client: int
    gpu: str
    busy: float
    submissions: int
    at: float


class Stuck(Struct, frozen=True):
    """A client whose lease was revoked cannot release it yet: this CUDA kernel has been running since ``since``."""

    client: int
    lease: int
    kernel: str
    since: float


class Released(Struct, frozen=True):
    client: int
    lease: int
    cause: Cause


class Grow(Struct, frozen=True):
    """A client wants more memory: at least ``least``, and up to ``most`` promised bytes.

    With ``oversubscribe``, it may get more than the GPU has, and the client oversubscribes from now on. With
    ``urgent``, an open stream capture or running work may need the memory, so the lease is kept until it is allocated.
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
    """An eviction has ended.

    ``bytes`` left the GPU. Of these, ``copied`` had to be copied to host memory, ``zero`` were zeros, and ``shared``
    are equal to data that another client of the user holds there. The rest had not changed since its last copy.
    ``hashed``: bytes whose hashes were computed to find that out.
    """

    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus
    hashed: int = 0
    zero: int = 0
    shared: int = 0


class Moving(Struct, frozen=True):
    """The progress of an eviction: what has left so far. ``Evicted`` still follows at the end."""

    client: int
    serial: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus
    hashed: int = 0
    zero: int = 0
    shared: int = 0


class Restored(Struct, frozen=True):
    client: int
    lease: int
    usage: Usage
    bytes: int
    copied: int
    duration: float
    status: MoveStatus
    #: The driver's error if not everything could be moved; 0: not known.
    error: int = 0
    #: As in ``Evicted``. A restore hashes nothing and shares nothing.
    hashed: int = 0
    zero: int = 0
    shared: int = 0


class Parked(Struct, frozen=True):
    """The answer to ``Park``.

    ``needs``: what the client needs on its GPU to be awake (``unevictable`` and ``context``). ``sees``: the GPUs that
    it may use.
    """

    client: int
    serial: int
    status: Parking
    needs: Usage
    sees: tuple[str, ...] = ()


class Wake(Struct, frozen=True):
    """A parked client must wake: one of its threads waits to enter the driver, or the process exits."""

    client: int
    serial: int
    cause: WakeCause
    needs: Usage


class Cell(Struct, frozen=True):
    """A cell began or ended, as reported by the Jupyter kernel's hook or by the Jupyter server.

    ``agent``: whether an agent began it, and no person; None: not known. Only the Jupyter server knows, and its report
    of a cell often arrives after the Jupyter kernel's.
    """

    group: str
    phase: Phase
    msg_id: str
    at: float
    from_kernel: bool
    agent: bool | None = None


class Queued(Struct, frozen=True):
    """The number of cells that were sent to a group's Jupyter kernel and have not begun, as the Jupyter server counts.

    It is only a hint: it may be late, and it may stay too high if the Jupyter server fails.
    """

    group: str
    count: int


# --- From users, administrators and the machine ---------------------------------------------------


class Cancel(Struct, frozen=True):
    group: str


class Release(Struct, frozen=True):
    """End the group's burst and release its lease. With ``evict``, also evict all of its memory."""

    group: str
    evict: bool = False


class Reserve(Struct, frozen=True):
    """A user reserves the GPU for a group, or cancels the reservation (``on`` false)."""

    group: str
    on: bool = True


class HibernateNow(Struct, frozen=True):
    """A user wants a group to hibernate as soon as it is idle."""

    group: str


class WakeNow(Struct, frozen=True):
    """A user wants a hibernated group to wake before its next cell."""

    group: str


class Rename(Struct, frozen=True):
    group: str
    name: str


class Adjust(Struct, frozen=True):
    """A user changes the preferences for a group. A field that is None stays as it is.

    ``memory``: the cap of the footprint on each GPU in bytes, 0 for none. ``request``, ``limit``, ``weight``: as in
    ``Entitlement``. With ``later``, the preferences are remembered for a group that has no process yet.
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
    """What one group, user or team of users is entitled to. Fractions are of one GPU's time over the window.

    - ``request``: the guaranteed fraction, 0 for none
    - ``limit``: the largest fraction, 0 for no limit
    - ``weight``: the weight in the spare time
    - ``memory``: the cap of the footprint on each GPU in bytes, 0 for none
    - ``gpus`` (users and teams only): the number of GPUs on which their groups may hold leases at once, 0 for all
    - ``host`` (users and teams only): the cap of the footprint over all GPUs in bytes, since all of it may have to be
      kept in host memory, 0 for none
    """

    request: float = 0.0
    limit: float = 0.0
    weight: float = 1.0
    memory: int = 0
    gpus: int = 0
    host: int = 0


class Entitle(Struct, frozen=True):
    """An administrator sets an entitlement.

    ``whose`` is ``user:NAME``, ``user:*`` for each user without an entitlement of their own, or ``team:NAME``. A team
    consists of its ``members`` (users) and of the users whose clients name it (``Attach.teams``).
    """

    whose: str
    entitlement: Entitlement
    members: tuple[str, ...] = ()


class Focus(Struct, frozen=True):
    """The notebook in front of one user, which comes first among that user's own. Empty: none."""

    user: str
    group: str


class Hint(Struct, frozen=True):
    """A sign that a group will soon use the GPU (``likelihood.py``). Nothing happens if it is on the GPU already."""

    group: str
    kind: HintKind


class Configure(Struct, frozen=True):
    quantum: Quantum | None = None
    anti_thrash: AntiThrash | None = None
    policy: str | None = None
    #: Seconds of idleness after which a group hibernates; 0: never.
    hibernate_after: float | None = None
    #: Whether groups get ready before they use the GPU.
    prefetch: bool | None = None


class Hold(Struct, frozen=True):
    """An administrator puts a group on hold, or ends that. Its user cannot end it."""

    group: str
    on: bool


class Drain(Struct, frozen=True):
    """An administrator drains a GPU: no lease is granted there, the present ones end, and memory leaves."""

    gpu: str
    on: bool


class Maintain(Struct, frozen=True):
    """An administrator's message to all users, for example when the machine will be stopped. Empty: none."""

    text: str


class Device(Struct, frozen=True):
    """A reading of one GPU's memory (NVML). The first reading of a GPU adds it to the core."""

    gpu: str
    total: int
    used: int
    name: str = ""
    index: int = 0


class Awaited(Struct, frozen=True):
    """A client of the previous scheduler that has not attached to this one yet."""

    #: Its process, and when that started, as returned by `pool.start_time`; 0 and "" if they are not visible.
    pid: int
    started: str
    group: str
    usages: tuple[Usage, ...]


class Await(Struct, frozen=True):
    """The previous scheduler left a list of its clients; their positions are their numbers in `Desist`."""

    clients: tuple[Awaited, ...]


class Desist(Struct, frozen=True):
    """Clients of the previous scheduler have exited, or (``late``) have had enough time to attach again."""

    clients: tuple[int, ...]
    late: bool = False


class Recall(Struct, frozen=True):
    """What the previous scheduler had learnt. It comes after the GPUs and before the clients."""

    learnt: Learnt


class Measured(Struct, frozen=True):
    """The driver's figure for the contexts of a client on a GPU."""

    client: int
    gpu: str
    bytes: int


class HostMemory(Struct, frozen=True):
    """The bytes of host memory that all swapped data may take.

    ``most``: the budget if no other program needed host memory. ``shared``: bytes that the statements of clients count
    more than once, because equal data of one user is stored once.
    """

    budget: int
    most: int = 0
    shared: int = 0


class Disk(Struct, frozen=True):
    """The state of the disk to which host memory may go.

    Attributes
    ----------
    size
        Bytes that may be there; 0: no more data goes there.
    held
        Bytes of each client that are there.
    apart
        Clients whose memory cannot go there, because they have no place in a pool.
    """

    size: int
    held: dict[int, int] = {}
    apart: tuple[int, ...] = ()


class Hibernatable(Struct, frozen=True):
    """Whether processes can be checkpointed on this machine. If not, ``code`` and ``text`` give the reason.

    ``moves``: whether they can be restored on another GPU of the same kind.
    """

    able: bool
    moves: bool = False
    code: str = ""
    text: str = ""


class Checkpointed(Struct, frozen=True):
    """The result of ``Hibernate``, or, with ``ok`` false, of ``Park``: the process must not be parked."""

    client: int
    ok: bool
    code: str = ""
    text: str = ""
    seconds: float = 0.0
    #: Bytes that the process had on its GPU before, according to the driver; 0: not known.
    held: int = 0


class Woken(Struct, frozen=True):
    """The result of ``Wakeup``."""

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
    """The time that ``Core.deadline()`` returned has come."""


Event = (
    Attach | Detach | Request | Burst | Meter | Stuck | Released | Grow | UsageChanged | Evicted | Moving | Restored
    | Parked | Wake | Cell | Queued | Cancel | Release | Reserve | HibernateNow | WakeNow | Rename | Adjust | Entitle
    | Hold | Drain | Maintain | Focus | Hint | Configure | Device | Measured | Recall | Await | Desist | HostMemory
    | Disk | Hibernatable | Checkpointed | Woken | Notice | Tick
)  # fmt: skip
