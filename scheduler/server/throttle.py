# SPDX-License-Identifier: BSD-3-Clause
"""Limits how much of the scheduler one user may take, so that no user harms the others with too many requests.

Time
    The cost of handling a user's frames is measured. Frames are handled in slices, one connection after the other, and
    each user gets one turn in each round of the event loop. So a user who sends one frame waits for one turn of each
    other user, however much these send over however many connections. A user who has used more than their share of a
    window is not served for a while. Nothing is lost and no connection ends, because the frames wait in the sockets.

Connections
    The number of a user's connections is limited. Connections without an identity must identify themselves in time, and
    their total number is small. When there are too many, the process with the most of them loses its oldest, so that a
    crowd does not shut the others out.

Answers
    The bytes that a user's programs leave unread count together.

A scheduler of one user has none of these limits except the slices, each connection by itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one user. 0: no limit."""

    #: Connections at once.
    connections: int = 256
    #: Connections of all users without an identity; and the seconds in which they must identify themselves.
    unidentified: int = 64
    introduction: float = 10.0
    #: Bytes of answers that the user's connections leave unread together.
    unread: int = 16 << 20
    #: The fraction of the scheduler's time, and the seconds over which it applies.
    share: float = 0.5
    window: float = 0.2
    #: Seconds of a round of the event loop.
    turn: float = 0.004
    #: Seconds for which one connection's frames are handled without a pause.
    stretch: float = 0.002


#: Log lines that a user's connections may cause, in this many seconds.
LINES, LINES_FOR = 20, 60.0
#: Notices in this many seconds; all users see the last fifty.
NOTICES = 20

#: The limits if all connections are of one user.
PERSONAL = Limits(
    connections=0, unidentified=0, introduction=0.0, unread=0, share=0.0, turn=0.0, stretch=0.005
)


class Peer(Protocol):
    """A connection, as it is throttled."""

    #: The lane whose turn its frames take.
    lane: Lane

    def proceed(self, until: float) -> bool:
        """Handle frames until a time on the throttle's clock; return whether there are more."""

    @property
    def unread(self) -> int:
        """Return the bytes that were sent to it and that it has not read."""


@dataclass(slots=True, eq=False)
class Lane:
    """What one user's connections take."""

    peers: set[Peer] = field(default_factory=set)
    #: Connections whose frames wait for the next turn, and connections that left something unread at the last write.
    waiting: deque[Peer] = field(default_factory=deque)
    slow: set[Peer] = field(default_factory=set)
    #: Seconds that may be taken now, and when this was computed.
    credit: float = 0.0
    at: float = 0.0
    #: Whether it has no limits: it is an administrator's, or the scheduler has one user.
    free: bool = False
    #: Time left in the turn, and the round that it belongs to.
    left: float = 0.0
    round: int = -1
    handle: asyncio.Handle | None = None
    #: Log lines that it has caused, since when, and how many were left out.
    lines: int = 0
    lines_since: float = 0.0
    unsaid: int = 0
    #: When it had its last notices, latest last.
    noticed: deque[float] = field(default_factory=lambda: deque(maxlen=NOTICES))


class Throttle:
    """Divides the scheduler among its users.

    Parameters
    ----------
    limits
        The limits of each user.
    clock
        The clock, in seconds.
    """

    def __init__(
        self, limits: Limits = PERSONAL, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.limits = limits
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, Lane] = {}
        self._round = 0
        self._turning = False
        #: Connections without an identity, oldest first, and the process of each.
        self._unidentified: dict[Peer, tuple[int, int]] = {}

    # --- Connections --------------------------------------------------------------------------

    def admit(self, peer: Peer, whose: str, free: bool = False) -> bool:
        """Have a connection share a user's lane; return False if that has too many already.

        In either case it leaves its previous lane and gets the new one. With ``free``, it gets one of its own, without
        limits.
        """
        limits = self.limits
        self.leave(peer)
        if free or not limits.turn:
            lane = Lane(free=True)
        else:
            credit = limits.share * limits.window
            lane = self._lanes.setdefault(whose, Lane(credit=credit, at=self.clock()))
        peer.lane = lane
        lane.peers.add(peer)
        return lane.free or not limits.connections or len(lane.peers) <= limits.connections

    def leave(self, peer: Peer) -> None:
        """Remove a connection from its lane, and from those without an identity."""
        self._unidentified.pop(peer, None)
        lane = getattr(peer, "lane", None)
        if lane is None:
            return
        lane.peers.discard(peer)
        lane.slow.discard(peer)
        if peer in lane.waiting:
            lane.waiting.remove(peer)

    def sweep(self) -> None:
        """Forget users without connections; not at once, since a user who returns would have full credit again."""
        now = self.clock()
        for whose, lane in list(self._lanes.items()):
            if not lane.peers and now - lane.at > self.limits.window:
                del self._lanes[whose]

    def of(self, whose: str) -> Lane | None:
        """Return a user's lane."""
        return self._lanes.get(whose)

    def expect(self, peer: Peer, uid: int, pid: int) -> Peer | None:
        """Add a connection without an identity; return one that must end for it, if any."""
        most = self.limits.unidentified
        self._unidentified[peer] = uid, pid
        if not most or len(self._unidentified) <= most:
            return None
        crowd = Counter(self._unidentified.values())
        largest = max(crowd.values())
        found = next(p for p, whose in self._unidentified.items() if crowd[whose] == largest)
        del self._unidentified[found]
        return found

    @property
    def unidentified(self) -> int:
        """Return the number of connections without an identity."""
        return len(self._unidentified)

    def may_log(self, peer: Peer) -> int | None:
        """Return how many log lines about a user were left out before this one; None: this line is also left out."""
        lane, now = peer.lane, self.clock()
        if lane.free:
            return 0
        if now - lane.lines_since > LINES_FOR:
            lane.lines, lane.lines_since = 0, now
        lane.lines += 1
        if lane.lines > LINES:
            lane.unsaid += 1
            return None
        unsaid, lane.unsaid = lane.unsaid, 0
        return unsaid

    def may_notify(self, peer: Peer) -> bool:
        """Whether a user may add a notice now. Too many would push out those of the others."""
        lane, now = peer.lane, self.clock()
        if lane.free:
            return True
        if len(lane.noticed) == NOTICES and now - lane.noticed[0] < LINES_FOR:
            return False
        lane.noticed.append(now)
        return True

    # --- Answers ------------------------------------------------------------------------------

    def overflows(self, peer: Peer) -> bool:
        """Whether a connection that is written to, with its user's others, leaves more unread than allowed."""
        lane = peer.lane
        if not peer.unread:
            lane.slow.discard(peer)
            return False
        lane.slow.add(peer)
        most = self.limits.unread
        return bool(most) and not lane.free and sum(p.unread for p in lane.slow) > most

    # --- Time ---------------------------------------------------------------------------------

    def serve(self, peer: Peer) -> bool:
        """Handle the frames of a connection; return whether some wait for its next turn.

        Until that turn, the connection must not be read.
        """
        lane = peer.lane
        now = self.clock()
        if lane.waiting or not self._may_go(lane, now):
            lane.waiting.append(peer)
            self._arm(lane)
            return True
        return self._run(lane, peer, now)

    def _may_go(self, lane: Lane, now: float) -> bool:
        if lane.free:
            return True
        limits = self.limits
        full = limits.share * limits.window
        lane.credit = min(full, lane.credit + limits.share * (now - lane.at))
        lane.at = now
        if lane.round != self._round:
            lane.round, lane.left = self._round, limits.turn
            if not self._turning:
                self._turning = True
                self._loop.call_soon(self._next_round)
        return lane.left > 0 and lane.credit > 0

    def _next_round(self) -> None:
        self._turning = False
        self._round += 1

    def _run(self, lane: Lane, peer: Peer, now: float) -> bool:
        more = peer.proceed(now + self.limits.stretch)
        if not lane.free:
            spent = self.clock() - now
            lane.left -= spent
            lane.credit -= spent
        if more:
            # It may have identified itself in the meantime.
            peer.lane.waiting.append(peer)
            self._arm(peer.lane)
        return more

    def _arm(self, lane: Lane) -> None:
        if lane.handle is not None:
            return
        if lane.credit > 0 or lane.free:
            lane.handle = self._loop.call_soon(self._go_on, lane)
            return
        # Only until it may go on for a while. Otherwise, it would be woken for each frame.
        share, window = self.limits.share, self.limits.window
        pause = (share * window / 4 - lane.credit) / share
        lane.handle = self._loop.call_later(pause, self._go_on, lane)

    def _go_on(self, lane: Lane) -> None:
        lane.handle = None
        while lane.waiting:
            now = self.clock()
            if not self._may_go(lane, now):
                break
            self._run(lane, lane.waiting.popleft(), now)
            if lane.free:
                break
        if lane.waiting:
            self._arm(lane)
