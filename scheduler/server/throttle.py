# SPDX-License-Identifier: BSD-3-Clause
"""How much of the scheduler one user may take, so that nobody harms the others by asking too much.

Time
    What handling a user's frames costs is measured. Frames are handled in slices, one connection's after the other's,
    and of each round of the event loop a user gets one turn; so whoever sends one frame waits for one turn of each of
    the others, however much those send over however many connections. Who has used more than its share of a window is
    not listened to for a while. Nothing is lost by that, and nobody is cut off: what it sends waits in its sockets.

Connections
    A user may have so many. Those that have not said whose they are have a time to do so, and are few in all: where
    there would be more, whoever has the most of them loses the oldest, so that a crowd keeps nobody else out.

Answers
    What a user's programs leave unread counts together.

A scheduler of one person has none of these bounds, but for the slices, each connection by itself.
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
    """What one user may take. 0: no bound."""

    #: Connections at once.
    connections: int = 256
    #: Connections, of all users, that have not said whose they are; and seconds until they have to have.
    unidentified: int = 64
    introduction: float = 10.0
    #: Bytes of answers that its connections leave unread together.
    unread: int = 16 << 20
    #: Fraction of the scheduler's time, and the seconds over which it holds.
    share: float = 0.5
    window: float = 0.2
    #: Seconds of a round of the event loop.
    turn: float = 0.004
    #: Seconds for which one connection's frames are handled at a stretch.
    stretch: float = 0.002


#: Lines of the log that a user's connections may cause in so many seconds.
LINES, LINES_FOR = 20, 60.0
#: Notices that they may have in as many: all see the last fifty.
NOTICES = 20

#: For a scheduler whose connections are all of one user.
PERSONAL = Limits(
    connections=0, unidentified=0, introduction=0.0, unread=0, share=0.0, turn=0.0, stretch=0.005
)


class Peer(Protocol):
    """A connection, as it is throttled."""

    #: Whose turn its frames take.
    lane: Lane

    def proceed(self, until: float) -> bool:
        """Handle frames that have come, until that time on the throttle's clock; return whether there are more."""

    @property
    def unread(self) -> int:
        """Bytes that were sent to it and that it has not read."""


@dataclass(slots=True, eq=False)
class Lane:
    """What one user's connections take."""

    peers: set[Peer] = field(default_factory=set)
    #: Those whose frames wait for the next turn, and those that left something unread when last written to.
    waiting: deque[Peer] = field(default_factory=deque)
    slow: set[Peer] = field(default_factory=set)
    #: Seconds that may be taken now, as of when.
    credit: float = 0.0
    at: float = 0.0
    #: Of an administrator, or a scheduler of one person: it takes what it likes.
    free: bool = False
    #: What is left of the turn, in which round.
    left: float = 0.0
    round: int = -1
    handle: asyncio.Handle | None = None
    #: Lines that it has caused since when, and how many were left out.
    lines: int = 0
    lines_since: float = 0.0
    unsaid: int = 0
    #: When it last had a notice, latest last.
    noticed: deque[float] = field(default_factory=lambda: deque(maxlen=NOTICES))


class Throttle:
    """Divides the scheduler among those who use it.

    Parameters
    ----------
    limits
        What each may take.
    clock
        Measures; seconds.
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
        #: Connections that have not said whose they are, oldest first, and of which process each is.
        self._unidentified: dict[Peer, tuple[int, int]] = {}

    # --- Connections --------------------------------------------------------------------------

    def admit(self, peer: Peer, whose: str, free: bool = False) -> bool:
        """Have a connection share a user's lane; False if that has too many already.

        It leaves the lane that it had before, and is given the new one in either case. With ``free``, it has one of its
        own, without bounds.
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
        """Take a connection out of its lane, and of those that are not known."""
        self._unidentified.pop(peer, None)
        lane = getattr(peer, "lane", None)
        if lane is None:
            return
        lane.peers.discard(peer)
        lane.slow.discard(peer)
        if peer in lane.waiting:
            lane.waiting.remove(peer)

    def sweep(self) -> None:
        """Forget users that have no connection; not at once, or who comes back would have its credit anew."""
        now = self.clock()
        for whose, lane in list(self._lanes.items()):
            if not lane.peers and now - lane.at > self.limits.window:
                del self._lanes[whose]

    def of(self, whose: str) -> Lane | None:
        """Return a user's lane."""
        return self._lanes.get(whose)

    def expect(self, peer: Peer, uid: int, pid: int) -> Peer | None:
        """Take in a connection that has not said whose it is; return one that has to go for it, if any."""
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
        """How many connections have not said whose they are."""
        return len(self._unidentified)

    def may_say(self, peer: Peer) -> int | None:
        """Return how many lines of the log about a user's connections were left out before one; None: it is, too."""
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
        """Whether a user may have one more notice now: they would push out those of the others."""
        lane, now = peer.lane, self.clock()
        if lane.free:
            return True
        if len(lane.noticed) == NOTICES and now - lane.noticed[0] < LINES_FOR:
            return False
        lane.noticed.append(now)
        return True

    # --- Answers ------------------------------------------------------------------------------

    def overflows(self, peer: Peer) -> bool:
        """Whether a connection that is written to leaves unread, with its user's others, more than there may be."""
        lane = peer.lane
        if not peer.unread:
            lane.slow.discard(peer)
            return False
        lane.slow.add(peer)
        most = self.limits.unread
        return bool(most) and not lane.free and sum(p.unread for p in lane.slow) > most

    # --- Time ---------------------------------------------------------------------------------

    def serve(self, peer: Peer) -> bool:
        """Handle the frames that have come over a connection; return whether some wait for its next turn.

        Until that has come, it is not to be read from.
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
            # It may have said meanwhile whose it is.
            peer.lane.waiting.append(peer)
            self._arm(peer.lane)
        return more

    def _arm(self, lane: Lane) -> None:
        if lane.handle is not None:
            return
        if lane.credit > 0 or lane.free:
            lane.handle = self._loop.call_soon(self._go_on, lane)
            return
        # Until it may go on for a while: else it would be woken for each frame.
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
