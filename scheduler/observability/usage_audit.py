# SPDX-License-Identifier: BSD-3-Clause
"""Who holds more of a GPU than its client says, and who uses one without us, as NVML has it. Sans-IO.

It is found, not prevented: what the driver says of a process is compared with what its client stated, and a process
that holds noticeably more in several readings is named. Other processes lose nothing by it meanwhile: what is used and
not stated counts as foreign use, which is promised to no process. What is not noticeable is what the client's contexts
take, and is charged to it: that depends on the driver, the GPU and the modules that the process loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.core import Core

#: A process may hold so many bytes more than its client states and than its contexts may take, and such a part of what
#: it states: contexts grow a little, and the driver rounds.
TOLERANCE, PART = 256 << 20, 0.05
#: What the driver holds for a context beside what NVML says of the process, bytes, and at most such a part of these: 6
#: MiB beside 610 on an NVIDIA H200 (driver 580).
BESIDE, BESIDE_PART = 8 << 20, 1 / 64
#: It is named once it held more in so many readings, one after the other.
READINGS = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """What a client may hold on a GPU at most, by what it states and was allowed, bytes."""

    client: int
    group: str
    user: str
    #: Besides contexts.
    bytes: int
    #: Whether it holds just that, less ``spare``: nothing of it is on its way in or out.
    exact: bool = True
    #: What it states of contexts, and what is charged for them.
    context: int = 0
    charged: int = 0
    #: Of ``bytes``, what it may allocate without asking again and has not.
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A process that holds what nobody stated."""

    gpu: str
    pid: int
    bytes: int
    #: What its client states; 0 for one that is none.
    claimed: int
    #: Empty for a process that is no client.
    user: str = ""
    group: str = ""
    client: int = 0

    @property
    def excess(self) -> int:
        """Bytes that it holds beyond what is stated."""
        return max(0, self.bytes - self.claimed)


def claims(core: Core, pids: Mapping[int, int]) -> dict[str, dict[int, list[Claim]]]:
    """Return what may be held, by GPU and process.

    Parameters
    ----------
    core
        Knows what clients state.
    pids
        The process of each client, as the scheduler's system numbers it.
    """
    found: dict[str, dict[int, list[Claim]]] = {}
    for number, client in core.clients.items():
        pid = pids.get(number, 0)
        for uuid, holding in client.holdings.items() if pid else ():
            # What it was allowed may be on its way in.
            most, spare = holding.resident, 0
            if client.group.lease is not None:
                most = max(most, holding.promised)
                # Managed memory comes in by itself.
                if client.backend == "swap" and uuid not in client.restoring:
                    spare = most - holding.resident
            still = not (holding.evicting or holding.unsettled) and client.stage == "awake"
            exact = most == holding.resident + spare and still
            most += holding.pinned
            group = client.group
            claim = Claim(
                number, group.id, group.user, most, exact, holding.stated, holding.context, spare
            )
            found.setdefault(uuid, {}).setdefault(pid, []).append(claim)
    return found


class Suspicion:
    """Remembers who held more than stated in the last readings.

    Parameters
    ----------
    tolerance, part, readings
        What counts as noticeably more, and how often it has to be found.
    """

    def __init__(
        self, tolerance: int = TOLERANCE, part: float = PART, readings: int = READINGS
    ) -> None:
        self._tolerance, self._part, self._readings = tolerance, part, readings
        self._times: dict[tuple[str, int], int] = {}
        #: What the contexts of clients' processes took in the last reading, of those that are not suspicious.
        self._contexts: dict[tuple[str, int], int] = {}
        self._found: dict[str, list[Finding]] = {}
        #: By client, the bytes that its contexts took in the last reading; and whether the next one may say otherwise.
        self.measured: dict[int, int] = {}
        self.unsettled = False

    def see(
        self, gpu: str, held: Mapping[int, int], stated: Mapping[int, list[Claim]], room: int = 0
    ) -> list[Finding]:
        """Take in a reading; return those who are to be named, each once for as long as it lasts.

        Parameters
        ----------
        gpu
            Of which GPU it is.
        held
            Bytes that each process holds there.
        stated
            What the clients among them may hold.
        room
            Bytes that the contexts of a process may take in any case.
        """
        named, listed = [], []
        self.measured = {}
        for pid, size in sorted(held.items()):
            mine = stated.get(pid)
            if mine is None:
                listed.append(Finding(gpu, pid, size, 0))
                continue
            memory = sum(claim.bytes for claim in mine)
            contexts = sum(claim.context for claim in mine)
            claimed, key = memory + contexts, (gpu, pid)
            most = memory + max(contexts, room)
            if size - most <= self._tolerance + self._part * claimed:
                self._times.pop(key, None)
                if all(claim.exact for claim in mine):
                    beside = min(BESIDE, int(size * BESIDE_PART))
                    memory -= sum(claim.spare for claim in mine)
                    self._measure(key, max(0, size + beside - memory), mine)
                continue
            self._contexts.pop(key, None)
            times = self._times[key] = self._times.get(key, 0) + 1
            if times >= self._readings:
                one = max(mine, key=lambda claim: claim.bytes)
                found = Finding(gpu, pid, size, claimed, one.user, one.group, one.client)
                listed.append(found)
                if times == self._readings:
                    named.append(found)
        clients = held.keys() & stated.keys()
        for remembered, there in ((self._times, held.keys()), (self._contexts, clients)):
            for key in [k for k in remembered if k[0] == gpu and k[1] not in there]:
                del remembered[key]
        self._found[gpu] = listed
        return named

    def _measure(self, key: tuple[str, int], taken: int, mine: list[Claim]) -> None:
        """Find what each of a process's clients is to be charged for contexts.

        A client frees memory before it states so. So the charge changes no further than the last two readings agree.
        The same holds for what it allocates without asking, so a first reading does not suffice while it may.
        """
        charged = sum(claim.charged for claim in mine)
        may_allocate = any(claim.spare for claim in mine)
        before = self._contexts.get(key, charged if may_allocate else taken)
        self._contexts[key] = taken
        left = min(max(charged, min(before, taken)), max(before, taken))
        self.unsettled = self.unsettled or left != taken
        stated = sum(claim.context for claim in mine)
        for claim in mine:
            part = -(-left * claim.context // stated) if stated else left
            self.measured[claim.client] = part
            left -= part
            stated -= claim.context

    @property
    def unsure(self) -> bool:
        """Whether the last readings do not suffice: a process held more, or its contexts took more or less."""
        return self.unsettled or any(times < self._readings for times in self._times.values())

    @property
    def findings(self) -> list[Finding]:
        """Return what the last readings found."""
        return [found for listed in self._found.values() for found in listed]

    def status(self, users: Mapping[int, tuple[int | None, str]]) -> list[dict[str, Any]]:
        """Return the same as control.md describes it; ``users``: uid and name of the processes' users."""
        listed = []
        for found in self.findings:
            uid, name = users.get(found.pid, (None, ""))
            listed.append(
                {
                    "gpu": found.gpu,
                    "pid": found.pid,
                    "code": "underreported" if found.client else "outside",
                    "user": found.user or name,
                    "uid": uid,
                    "group": found.group or None,
                    "bytes": found.bytes,
                    "claimed": found.claimed,
                }
            )
        return listed
