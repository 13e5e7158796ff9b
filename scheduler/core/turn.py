# SPDX-License-Identifier: BSD-3-Clause
"""One turn of the core: the event's time, what the event made dirty, and the decisions so far."""

from __future__ import annotations

import math
from typing import Any

from .messages import Decision, Log, ReadDevice
from .model import Gpu, Group


class Turn:
    """What happens while one event is handled.

    There is one for all events, since marks that no step of a turn dealt with are left for the next turn: a grant may
    change what a group counts as, and so the order of the queue.
    """

    __slots__ = (
        "again",
        "contention_stale",
        "decisions",
        "dirty",
        "first",
        "now",
        "pace_unsent",
        "paces_stale",
        "quotas_stale",
        "reserve_stale",
        "to_classify",
        "to_notify",
        "touched",
    )

    def __init__(self) -> None:
        #: The time of the event, and what was decided so far.
        self.now = 0.0
        #: The time of the first event.
        self.first = math.inf
        self.decisions: list[Decision] = []
        #: GPUs on which it has to be decided again.
        self.dirty: dict[str, Gpu] = {}
        #: Groups that something happened to: their state may have changed, and what they count as.
        self.touched: dict[str, Group] = {}
        self.to_classify: dict[str, Group] = {}
        #: GPUs of which the paces may have changed; and groups with a client that got a lease and no pace yet.
        self.paces_stale: dict[str, Gpu] = {}
        self.pace_unsent: dict[str, Group] = {}
        #: GPUs on which it may have changed whether groups wait, or hold leases.
        self.contention_stale: dict[str, Gpu] = {}
        #: Holders to be sent the number of waiting and running groups again, although it did not change.
        self.to_notify: dict[str, Group] = {}
        #: GPUs of which another part of the host's memory may be needed.
        self.reserve_stale: dict[str, Gpu] = {}
        #: It may have changed on how many GPUs groups hold leases.
        self.quotas_stale = False
        #: When to look again at the GPU that is looked at.
        self.again: float | None = None

    def begin(self, now: float) -> None:
        """Begin with an event."""
        self.now = now
        self.first = min(self.first, now)
        self.decisions = []

    def look_at(self, when: float) -> None:
        """Look again then at what is looked at now."""
        if self.again is None or when < self.again:
            self.again = when

    def touch(self, group: Group) -> None:
        """Mark a group that something happened to."""
        self.touched[group.id] = self.to_classify[group.id] = group
        self.concern(group)

    def concern(self, group: Group) -> None:
        """Mark the GPUs of a group: something happened that may change what can be done there."""
        for uuid, share in group.shares.items():
            gpu = self.dirty[uuid] = share.gpu
            gpu.victims.changed[share.number] = share

    def notify_again(self, group: Group) -> None:
        """Mark a group that is to be told otherwise who waits: other clients, other GPUs, another wish."""
        self.to_notify[group.id] = group
        for share in group.shares.values():
            share.gpu.subscribers = None

    def forget(self, group: Group) -> None:
        """Drop the marks of a group that has left."""
        for marks in (self.touched, self.to_classify, self.to_notify):
            marks.pop(group.id, None)

    def reread(self, gpu: Gpu) -> None:
        """Decide on a GPU only after another reading: the last one does not show what has left."""
        gpu.read_at = -math.inf
        self.dirty[gpu.uuid] = gpu
        self.ask(gpu)

    def ask(self, gpu: Gpu) -> None:
        """Ask for a reading of a GPU."""
        if gpu.asked_at is None:
            gpu.asked_at = self.now
            self.decisions.append(ReadDevice(gpu.uuid))

    def record(self, kind: str, group: Group, **fields: Any) -> None:
        """Mark a group that something happened to, and write a line of the history."""
        self.touch(group)
        self.log(kind, group, **fields)

    def log(self, kind: str, group: Group, **fields: Any) -> None:
        """Write a line of the history."""
        self.decisions.append(Log(kind, group.id, fields))


def stir(group: Group) -> None:
    """Mark the shares of a group of which it may have changed how their memory may be taken."""
    for share in group.shares.values():
        share.gpu.victims.changed[share.number] = share
