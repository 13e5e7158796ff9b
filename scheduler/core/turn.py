# SPDX-License-Identifier: BSD-3-Clause
"""The handling of one event: its time, the marks of what it may have changed, and the decisions so far."""

from __future__ import annotations

import math
from typing import Any

from .messages import Decision, Log, ReadDevice
from .model import Gpu, Group


class Turn:
    """The state while one event is handled.

    There is one object for all events, because marks that no step has dealt with are kept for the next event: a grant
    may change the class of a group, and so the order of the queue.
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
        #: The time of the event, and the decisions so far.
        self.now = 0.0
        #: The time of the first event.
        self.first = math.inf
        self.decisions: list[Decision] = []
        #: GPUs on which to decide again.
        self.dirty: dict[str, Gpu] = {}
        #: Groups that something happened to: their state or their class may have changed.
        self.touched: dict[str, Group] = {}
        self.to_classify: dict[str, Group] = {}
        #: GPUs whose paces may have changed; and groups with a client that has a lease but was not sent its pace yet.
        self.paces_stale: dict[str, Gpu] = {}
        self.pace_unsent: dict[str, Group] = {}
        #: GPUs on which the numbers of waiting groups or of holders may have changed.
        self.contention_stale: dict[str, Gpu] = {}
        #: Holders to which to send these numbers again even if they did not change.
        self.to_notify: dict[str, Group] = {}
        #: GPUs for which another amount of host memory may be needed.
        self.reserve_stale: dict[str, Gpu] = {}
        #: Whether the number of GPUs on which a group holds leases may have changed.
        self.quotas_stale = False
        #: When to decide again on the current GPU.
        self.again: float | None = None

    def recheck_at(self, when: float) -> None:
        """Decide again on the current GPU at this time at the latest."""
        if self.again is None or when < self.again:
            self.again = when

    def touch(self, group: Group) -> None:
        """Mark a group that something happened to."""
        self.touched[group.id] = self.to_classify[group.id] = group
        self.mark_gpus(group)

    def mark_gpus(self, group: Group) -> None:
        """Mark the GPUs of a group, because something happened that may change the decisions there."""
        for uuid, share in group.shares.items():
            gpu = self.dirty[uuid] = share.gpu
            gpu.victims.changed[share.number] = share

    def notify_again(self, group: Group) -> None:
        """Have a group notified of contention again, because its clients, GPUs or preferences have changed."""
        self.to_notify[group.id] = group
        for share in group.shares.values():
            share.gpu.subscribers = None

    def drop_marks(self, group: Group) -> None:
        """Drop the marks of a group that has left."""
        for marks in (self.touched, self.to_classify, self.to_notify):
            marks.pop(group.id, None)

    def require_reading(self, gpu: Gpu) -> None:
        """Decide on a GPU only after another reading, because the last one does not show what has left."""
        gpu.read_at = -math.inf
        self.dirty[gpu.uuid] = gpu
        self.request_reading(gpu)

    def request_reading(self, gpu: Gpu) -> None:
        """Request a reading of a GPU."""
        if gpu.reading.asked_at is None:
            gpu.reading.asked_at = self.now
            self.decisions.append(ReadDevice(gpu.uuid))

    def record(self, kind: str, group: Group, **fields: Any) -> None:
        """Mark a group that something happened to, and write a line of the history."""
        self.touch(group)
        self.log(kind, group, **fields)

    def log(self, kind: str, group: Group, **fields: Any) -> None:
        """Write a line of the history."""
        self.decisions.append(Log(kind, group.id, fields))


def mark_shares(group: Group) -> None:
    """Mark the shares of a group, because the conditions for taking their memory may have changed."""
    for share in group.shares.values():
        share.gpu.victims.changed[share.number] = share
