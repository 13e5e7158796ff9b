# SPDX-License-Identifier: BSD-3-Clause
"""One Jupyter kernel with its interposer, in the simulation of a node."""

from __future__ import annotations

from collections import deque

from ..core import messages as ev
from .calibration import Calibration
from .machine import Gpu, Process
from .tiers import Content
from .trace import Kernel

#: States of the gate: open; the burst is over, but the lease remains; there is no lease.
OPEN, HELD, SHUT = range(3)


class Client(Process):
    """One kernel and its interposer."""

    __slots__ = (
        "arriving",
        "asked",
        "bounded",
        "coming",
        "contended",
        "content",
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
        "present_at",
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
        "stated",
        "went_quiet",
    )

    def __init__(self, number: int, spec: Kernel, gpu: Gpu) -> None:
        super().__init__(number, spec, gpu)
        self.id = spec.name
        self.gate = SHUT
        #: When its user last did something.
        self.present_at = 0.0
        self.lease = 0
        self.revoked = 0
        self.releasing = self.requested = self.gone = False
        self.serial = 0
        #: Bytes: promised by the scheduler; on the GPU; in host memory. The rest has not been touched.
        self.promised = self.resident = self.host = 0
        #: What is in its memory; and bytes of the present piece that are being copied to host memory.
        self.content = Content(1.0, 0.0, 0.0)
        self.coming = 0
        #: What it states besides: bytes in host memory, clean, shared and on disk.
        self.stated = (0, 0, 0, 0)
        #: Growth that was requested and not answered: bytes, negative for a context.
        self.grows = 0
        #: Orders that wait for the end of a move, and the move in progress.
        self.orders: deque[ev.Evict | ev.Grant] = deque()
        self.moving: ev.Evict | ev.Grant | None = None
        self.moving_since = 0.0
        self.leaving = self.arriving = self.asked = self.copied = self.piece = 0
        self.expects = False
        self.filling = False
        self.room = self.room_lease = 0
        #: Groups that wait, or hold a lease with it; since when it has been quiet, and the gap that ends a burst.
        self.contended = 0
        self.quiet_since = 0.0
        self.quiet_gap = 0.0
        self.quiet_token = 0
        self.went_quiet = False
        #: The bounds of the last PACE; and the previous bound until the work in flight has drained.
        self.inflight: float | None = None
        self.bounded: float | None = None
        self.stall = 0.010
        self.share = 1.0
        #: Whether it reports its GPU time, whether the next report is scheduled, and its last report.
        self.meters = self.metered = False
        self.metered_busy = 0.0

    def usage(self) -> ev.Usage:
        """Return its statement of its memory."""
        host, clean, shared, disk = self.stated
        return ev.Usage(
            self.gpu.uuid,
            self.promised,
            self.resident,
            0,
            self.context,
            host,
            min(clean, self.resident),
            shared,
            disk,
        )

    def begin_move(
        self, order: ev.Evict | ev.Grant, size: int, costs: Calibration, now: float
    ) -> None:
        """Begin to move so many bytes, as the scheduler ordered."""
        self.moving, self.moving_since = order, now
        self.asked, self.copied = size, 0
        self.content.begin_move()
        self.piece = max(costs.smallest_piece, min(costs.piece, size // costs.pieces))

    def moved(self, order: ev.Evict, now: float) -> ev.Moving:
        """Return its report during an eviction."""
        return ev.Moving(
            self.number,
            order.serial,
            self.usage(),
            self.copied,
            self.content.copied,
            now - self.moving_since,
            "partial",
            *self._found(),
        )

    def evicted(self, order: ev.Evict, now: float) -> ev.Evicted:
        """Return its report at the end of an eviction."""
        return ev.Evicted(
            self.number,
            order.serial,
            self.usage(),
            self.copied,
            self.content.copied,
            now - self.moving_since,
            "done" if self.copied >= order.bytes or not self.resident else "partial",
            *self._found(),
        )

    def restored(self, status: ev.MoveStatus, now: float) -> ev.Restored:
        """Return its report at the end of a restore."""
        return ev.Restored(
            self.number,
            self.lease,
            self.usage(),
            max(0, self.asked - self.allocated + self.resident),
            self.content.copied,
            now - self.moving_since,
            status,
            zero=self.content.zero,
        )

    def _found(self) -> tuple[int, int, int]:
        """Return what the present eviction hashed, and found to be zeros or shared."""
        return self.content.hashed, self.content.zero, self.content.shared
