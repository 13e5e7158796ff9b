# SPDX-License-Identifier: BSD-3-Clause
"""One Jupyter kernel with its interposer, as the node's simulation knows it."""

from __future__ import annotations

from collections import deque

from ..core import messages as ev
from .calibration import Calibration
from .machine import Gpu, Process
from .trace import Kernel

#: States of the gate: submissions go through; the burst is over, and the lease is still held; there is no lease.
OPEN, HELD, SHUT = range(3)


class Client(Process):
    """One kernel and its interposer."""

    __slots__ = (
        "arriving",
        "asked",
        "bounded",
        "contended",
        "copied",
        "expects",
        "filling",
        "gate",
        "gone",
        "grows",
        "host",
        "id",
        "inflight",
        "lease",
        "leaving",
        "metered",
        "metered_busy",
        "meters",
        "moving",
        "moving_since",
        "orders",
        "piece",
        "promised",
        "quiet_gap",
        "quiet_since",
        "quiet_token",
        "releasing",
        "requested",
        "resident",
        "revoked",
        "room",
        "room_lease",
        "serial",
        "share",
        "stall",
        "went_quiet",
    )

    def __init__(self, number: int, spec: Kernel, gpu: Gpu) -> None:
        super().__init__(number, spec, gpu)
        self.id = spec.name
        self.gate = SHUT
        self.lease = 0
        self.revoked = 0
        self.releasing = self.requested = self.gone = False
        self.serial = 0
        #: Bytes: promised by the scheduler; on the GPU; in host memory. What is in neither has not been touched.
        self.promised = self.resident = self.host = 0
        #: Growth that is out: bytes, negative for a context.
        self.grows = 0
        #: Orders that wait for the end of a move, and the move that is under way.
        self.orders: deque[ev.Evict | ev.Grant] = deque()
        self.moving: ev.Evict | ev.Grant | None = None
        self.moving_since = 0.0
        self.leaving = self.arriving = self.asked = self.copied = self.piece = 0
        self.expects = False
        self.filling = False
        self.room = self.room_lease = 0
        #: Others that wait or are beside it; since when it has been quiet, and for how long it has to be.
        self.contended = 0
        self.quiet_since = 0.0
        self.quiet_gap = 0.0
        self.quiet_token = 0
        self.went_quiet = False
        #: What PACE said; what it was bounded to until what is in flight has drained.
        self.inflight: float | None = None
        self.bounded: float | None = None
        self.stall = 0.010
        self.share = 1.0
        #: Whether it says what it had, whether it will look again, and what it said last.
        self.meters = self.metered = False
        self.metered_busy = 0.0

    def usage(self) -> ev.Usage:
        """Return what it states that it holds."""
        return ev.Usage(self.gpu.uuid, self.promised, self.resident, 0, self.context, self.host)

    def begin_move(
        self, order: ev.Evict | ev.Grant, size: int, costs: Calibration, now: float
    ) -> None:
        """Begin to move so many bytes, as the scheduler ordered."""
        self.moving, self.moving_since = order, now
        self.asked, self.copied = size, 0
        self.piece = max(costs.smallest_piece, min(costs.piece, size // costs.pieces))

    def moved(self, order: ev.Evict, now: float) -> ev.Moving:
        """Return what it states in the midst of an eviction."""
        return ev.Moving(
            self.number,
            order.serial,
            self.usage(),
            self.copied,
            self.copied,
            now - self.moving_since,
            "partial",
        )

    def evicted(self, order: ev.Evict, now: float) -> ev.Evicted:
        """Return what it states at the end of an eviction."""
        return ev.Evicted(
            self.number,
            order.serial,
            self.usage(),
            self.copied,
            self.copied,
            now - self.moving_since,
            "done" if self.copied >= order.bytes or not self.resident else "partial",
        )

    def restored(self, status: ev.MoveStatus, now: float) -> ev.Restored:
        """Return what it states at the end of a restore."""
        return ev.Restored(
            self.number,
            self.lease,
            self.usage(),
            max(0, self.asked - self.allocated + self.resident),
            self.copied,
            now - self.moving_since,
            status,
        )
