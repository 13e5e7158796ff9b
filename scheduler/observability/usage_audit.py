# SPDX-License-Identifier: BSD-3-Clause
"""Finds processes with more GPU memory than their client states, and processes without a client, from NVML. Sans-IO.

Such use is reported, not prevented. The driver's figure of a process is compared with its client's statements. A
process that holds noticeably more in several readings is reported. Other processes lose nothing meanwhile: memory that
is used and not stated counts as other programs' use, which is promised to no process. Small differences come from the
client's contexts, and are charged to it: they depend on the driver, the GPU and the modules of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.core import Core

#: The bytes, and the fraction of the statement, by which a process may exceed its statement and the size of its
#: contexts, because contexts grow a little, and the driver rounds.
TOLERANCE, PART = 256 << 20, 0.05
#: Bytes that the driver uses for a context in addition to NVML's figure, and at most this fraction of that figure:
#: 6 MiB in addition to 610 MiB on an NVIDIA H200 (driver 580).
BESIDE, BESIDE_PART = 8 << 20, 1 / 64
#: The number of readings in a row after which it is reported.
READINGS = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """What a client may hold on a GPU at most, from its statements and promises, in bytes."""

    client: int
    group: str
    user: str
    #: Besides contexts.
    bytes: int
    #: Whether it holds exactly that, less ``spare``: nothing is being moved.
    exact: bool = True
    #: The stated size of its contexts, and their charge.
    context: int = 0
    charged: int = 0
    #: The part of ``bytes`` that it may allocate without a request and has not allocated.
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A process with memory that no client stated."""

    gpu: str
    pid: int
    bytes: int
    #: Bytes that its client states; 0 without a client.
    claimed: int
    #: Empty for a process without a client.
    user: str = ""
    group: str = ""
    client: int = 0

    @property
    def excess(self) -> int:
        """Bytes beyond the statement."""
        return max(0, self.bytes - self.claimed)


def claims(core: Core, pids: Mapping[int, int]) -> dict[str, dict[int, list[Claim]]]:
    """Return what clients may hold, by GPU and process.

    Parameters
    ----------
    core
        The core, with the clients' statements.
    pids
        The process of each client, by its number on the scheduler's system.
    """
    found: dict[str, dict[int, list[Claim]]] = {}
    for number, client in core.clients.items():
        pid = pids.get(number, 0)
        for uuid, holding in client.holdings.items() if pid else ():
            # Promised memory may be about to arrive.
            most, spare = holding.resident, 0
            if client.group.lease is not None:
                most = max(most, holding.promised)
                # Managed memory arrives by itself.
                if client.backend == "swap" and uuid not in client.restoring:
                    spare = most - holding.resident
            still = not (holding.evicting or holding.unsettled) and client.stage == "awake"
            exact = most == holding.resident + spare and still
            most += holding.unevictable
            group = client.group
            claim = Claim(
                number, group.id, group.user, most, exact, holding.stated, holding.context, spare
            )
            found.setdefault(uuid, {}).setdefault(pid, []).append(claim)
    return found


class UsageAudit:
    """Remembers processes that held more than stated in the last readings.

    Parameters
    ----------
    tolerance, part, readings
        What counts as noticeably more, and in how many readings it must be found.
    """

    def __init__(
        self, tolerance: int = TOLERANCE, part: float = PART, readings: int = READINGS
    ) -> None:
        self._tolerance, self._part, self._readings = tolerance, part, readings
        self._times: dict[tuple[str, int], int] = {}
        #: Bytes of the contexts of clients' processes in the last reading, except suspicious ones.
        self._contexts: dict[tuple[str, int], int] = {}
        self._found: dict[str, list[Finding]] = {}
        #: By client, bytes of its contexts in the last reading; and whether the next one may differ.
        self.measured: dict[int, int] = {}
        self.unsettled = False

    def observe(
        self, gpu: str, held: Mapping[int, int], stated: Mapping[int, list[Claim]], room: int = 0
    ) -> list[Finding]:
        """Apply a reading; return the processes to report, each once for as long as it lasts.

        Parameters
        ----------
        gpu
            The GPU.
        held
            Bytes that each process holds there.
        stated
            What the clients among these processes may hold.
        room
            Bytes that the contexts of a process may always take.
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
        """Compute what each of a process's clients is to be charged for contexts.

        A client frees memory before it states so, so the charge changes no further than the last two readings agree.
        The same applies to memory that it may allocate without a request, for which a first reading does not suffice.
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
        """Return these as described in control.md; ``users``: uid and name of the processes' users."""
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
