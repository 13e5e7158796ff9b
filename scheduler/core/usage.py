# SPDX-License-Identifier: BSD-3-Clause
"""Who has had how much of each GPU lately, and is entitled to how much.

A process is *busy* on a GPU for the wall time for which work of its own is there, counted once, whatever runs side by
side within it. Processes that are busy at once take turns on the GPU, so that each one's clock also counts what the
others have: of that time they are charged for equal parts, and all together for no more than has passed. What a process
is charged for is its GPU time. It is summed for the group, its user, and the user's team, over a sliding window. All
times are seconds, shares are fractions of the window on one GPU.

A user who is in no team counts as a team of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .messages import Entitlement
from .policy_api import PATIENCE
from .usage_windows import PARTS, Decayed, Parts, Turns, Window, spread

if TYPE_CHECKING:
    from .model import Gpu, Group

#: Each user of whom nothing else is stated.
EACH = "user:*"
#: Entitled to nothing in particular.
NOTHING = Entitlement()
#: A group that has waited for ``PATIENCE`` counts as below a request, too, if it has had less than this.
LEAST = 0.02
#: What others of the same user or team have had does not serve the one that waits: after so many seconds it comes
#: before all others, whatever they had.
LONGEST_PATIENCE = 600.0
#: Use that differs by less than this fraction of the window is the same: what comes next decides.
STEP = 0.005
#: Fraction of the window by which a client that spreads its work over the time may stay below its limit: kernels of
#: 50 ms, and what is on its way of what it says.
SPREAD = 0.03
#: Two levels of the order are summed in one number: the coarse one in units of this.
_LEVEL = 10**6


class Claim(NamedTuple):
    """Who is entitled to what: ``team:NAME``, ``user:NAME`` or ``group:ID``."""

    whose: str
    entitlement: Entitlement


class MemoryRoom(NamedTuple):
    """Bytes of footprint that may be added before somebody's cap is reached; negative above it."""

    bytes: int
    whose: str


class UsageRank(NamedTuple):
    """A group's place in the order by GPU time; smaller comes first."""

    #: Between users; between users that have had the same; and between the groups of one user.
    user: float
    turn: float
    own: float


class _Meter(NamedTuple):
    """What a client said last of one GPU."""

    #: For how long it had been busy in all, up to when that is, and when it said so.
    busy: float
    end: float
    read: float
    #: How many of its submissions had ended.
    ended: int


class GpuTime:
    """Counts GPU time, and compares it with what everybody is entitled to.

    Parameters
    ----------
    window
        Seconds over which shares hold.
    buckets
        Into so many parts the window is divided.
    memory
        Seconds after which time counts for a third where more than the window matters: turns are longer than it.
    refresh
        Seconds for which ranks hold before the use since then may change them.
    """

    def __init__(
        self,
        window: float = 10.0,
        buckets: int = 100,
        refresh: float = 0.25,
        memory: float = 600.0,
    ) -> None:
        self.window, self._buckets, self.refresh, self.memory = window, buckets, refresh, memory
        self.longest_patience = LONGEST_PATIENCE
        #: Counts up when ranks may have changed enough to matter; because of use, once in ``refresh``.
        self.version = 0
        self._changed_at = float("-inf")
        self._windows: dict[tuple[str, str], Window] = {}
        self._decayed: dict[tuple[str, str], Decayed] = {}
        #: By GPU; and by group and GPU, for how long its processes were busy.
        self._at_once: dict[str, Turns] = {}
        self._busy: dict[tuple[str, str], Window] = {}
        self._gpus: set[str] = set()
        #: Who has had the limit, until when.
        self._full: dict[tuple[str, str], float] = {}
        #: By client and GPU: what it said last.
        self._meters: dict[tuple[int, str], _Meter] = {}
        self._submitted: dict[tuple[str, str], Window] = {}
        #: By user: who came first; and by user and GPU, when it last had anything there.
        self._came: dict[str, float] = {}
        self._turns: dict[tuple[str, str], float] = {}
        self._clients: dict[str, set[tuple[int, str]]] = {}
        self._claims: dict[str, Entitlement] = {}
        #: Of those, the ones that say something about time.
        self._timed: set[str] = set()
        #: Of those, the ones that bound on how many GPUs leases may be held at once.
        self.counted: set[str] = set()
        self._members: dict[str, tuple[str, ...]] = {}
        #: Teams, in the order in which they were stated: by when, counted.
        self._teams: dict[str, int] = {}
        self._stated = 0
        #: By group: its claims, and what they follow from.
        self._chains: dict[str, tuple[tuple[object, ...], tuple[Claim, ...]]] = {}
        self._users: dict[str, set[str]] = {}
        #: Groups of each user that people set shares for.
        self._shared: dict[str, set[str]] = {}
        #: Whether any share of time is set: for a team, a user, or a group that is known.
        self.active = False
        #: Whether the groups that are known are of more than one user.
        self.several_users = False

    # --- Who is entitled to what ------------------------------------------------------------------

    def entitle(self, whose: str, entitlement: Entitlement, members: Iterable[str] = ()) -> None:
        """State what a user (``user:NAME``) or team (``team:NAME``, of these users) is entitled to.

        ``user:*`` is each user of whom nothing else is stated. In a team are its members, and those who were said to
        be in it when they came; of several teams, a user belongs to the one that was stated last. A team without
        members that is entitled to nothing in particular is dissolved.
        """
        self._claims[whose] = entitlement
        if entitlement == NOTHING:
            del self._claims[whose]
        self._timed.discard(whose)
        if _is_timed(entitlement):
            self._timed.add(whose)
        self._see_whose_shares()
        self.counted.discard(whose)
        if entitlement.gpus:
            self.counted.add(whose)
        if whose.startswith("team:"):
            self._members.pop(whose, None)
            self._teams.pop(whose, None)
            members = tuple(members)
            if members:
                self._members[whose] = members
            if members or entitlement != NOTHING:
                self._stated += 1
                self._teams[whose] = self._stated
        self._chains.clear()
        self._full.clear()
        self.version += 1

    def of(self, group: Group) -> tuple[Claim, ...]:
        """Return what applies to a group: of its team if it has one, its user, and itself, in this order."""
        wishes = group.wishes
        made_of = (
            group.user,
            group.teams,
            wishes.request,
            wishes.limit,
            wishes.weight,
            wishes.memory,
        )
        known = self._chains.get(group.id)
        if known is not None and known[0] == made_of:
            return known[1]
        user = f"user:{group.user}"
        own = Entitlement(wishes.request, wishes.limit, wishes.weight, wishes.memory)
        stated = self._claims.get(user) or self._claims.get(EACH, NOTHING)
        chain = [Claim(user, stated), Claim(f"group:{group.id}", own)]
        team = self._team_of(group)
        if team is not None:
            chain.insert(0, Claim(team, self._claims.get(team, NOTHING)))
        self._chains[group.id] = made_of, tuple(chain)
        if known is not None:
            self._full.clear()
        timed = _is_timed(own)
        self._drop_user(group)
        self._users.setdefault(group.user, set()).add(group.id)
        # Who had nothing yet comes before who had, in the order in which they came.
        self._came.setdefault(group.user, -1.0 / (1 + len(self._came)))
        if timed:
            self._shared.setdefault(group.user, set()).add(group.id)
        self._see_whose_shares()
        if timed or known is not None or (self.several_users and len(self._users[group.user]) == 1):
            self.version += 1
        return tuple(chain)

    def teams_of(self, user: str) -> frozenset[str]:
        """Return the teams (``team:NAME``) that a user is stated to be a member of."""
        return frozenset(team for team, members in self._members.items() if user in members)

    def _team_of(self, group: Group) -> str | None:
        """Return the team that a group's user is in: of several, the one that was stated last."""
        found = [
            whose for whose in (f"team:{name}" for name in group.teams) if whose in self._teams
        ]
        found += [whose for whose, members in self._members.items() if group.user in members]
        return max(found, key=self._teams.__getitem__, default=None)

    def forget(self, group: Group) -> None:
        """The group is gone. What its user had stays counted until the window has moved on."""
        if self.active or self.several_users:
            self.version += 1
        self._drop_user(group)
        self._chains.pop(group.id, None)
        for key in self._clients.pop(group.id, ()):
            self._meters.pop(key, None)
        name = f"group:{group.id}"
        for gpu in self._gpus:
            self._windows.pop((name, gpu), None)
            self._submitted.pop((group.id, gpu), None)
            self._busy.pop((group.id, gpu), None)
            self._full.pop((name, gpu), None)
            self._decayed.pop((name, gpu), None)

    def _drop_user(self, group: Group) -> None:
        for table in (self._users, self._shared):
            groups = table.get(group.user, set())
            groups.discard(group.id)
            if not groups:
                table.pop(group.user, None)
        self._see_whose_shares()

    def _see_whose_shares(self) -> None:
        """Find whether anything depends on whose a group is: this is asked at each event."""
        self.active = bool(self._timed or self._shared)
        self.several_users = len(self._users) > 1

    def version_at(self, now: float) -> int:
        """Return a number that is another when ranks may be: by what changed, or because somebody's patience ended."""
        return self.version + int(now / PATIENCE)

    # --- Who has had how much ---------------------------------------------------------------------

    def meter(
        self, group: Group, gpu: str, client: int, busy: float, at: float, submissions: int = 0
    ) -> tuple[float, int]:
        """Take in for how long a client has been busy on a GPU since it attached; return what is new of both.

        ``busy``: seconds. Both only grow; a counter that went back began anew.
        """
        key = (client, gpu)
        known = self._meters.get(key)
        if known is None:
            known = _Meter(0.0, at - busy, at - busy, 0)
            self._clients.setdefault(group.id, set()).add(key)
        seconds = busy - known.busy if busy >= known.busy else max(busy, 0.0)
        count = submissions - known.ended if submissions >= known.ended else max(submissions, 0)
        since, end = known.read, known.end
        if seconds > 0:
            # What still runs is not in it. Where that explains what is missing, it was busy all the time until then.
            if count and end + seconds >= at - 2 * seconds / count:
                since = min(end, at - seconds)
                end = since + seconds
            else:
                since, end = min(since, at - seconds), at
            self._add(group, gpu, client, seconds, since, end)
        self._meters[key] = _Meter(busy, end, at, submissions)
        if count:
            self._window(self._submitted, (group.id, gpu)).put(self._spread(count, since, at))
        return seconds, count

    def add(self, group: Group, gpu: str, seconds: float, at: float) -> None:
        """Add the time up to a moment for which a group was busy that nothing meters."""
        if seconds > 0:
            self._add(group, gpu, 0, seconds, at - seconds, at)

    def _spread(self, seconds: float, since: float, at: float) -> Parts:
        return spread(seconds, since, at, self.window / self._buckets, self._buckets)

    def _add(
        self, group: Group, gpu: str, client: int, seconds: float, since: float, at: float
    ) -> None:
        names = tuple([claim.whose for claim in self.of(group)])
        parts = self._spread(seconds, since, at)
        charged: dict[str, int] = {}
        if not (self.active or self.several_users):
            # Nobody goes by it, and many may be at work: it is only kept in case somebody will.
            for whose in names:
                self._window(self._windows, (whose, gpu)).put(parts)
                charged[whose] = sum([part for _, part in parts])
        else:
            at_once = self._at_once.get(gpu)
            if at_once is None:
                at_once = self._at_once[gpu] = Turns(self.window, self._buckets)
            self._window(self._busy, (group.id, gpu)).put(parts)
            for (_, whoses), its in at_once.put((client, names), parts).items():
                for whose in whoses if its else ():
                    self._window(self._windows, (whose, gpu)).put(its)
                    charged[whose] = charged.get(whose, 0) + sum([part for _, part in its])
        for whose, more in charged.items():
            decayed = self._decayed.get((whose, gpu))
            if decayed is None:
                decayed = self._decayed[whose, gpu] = Decayed(at)
            decayed.add(more / PARTS, at, self.memory)
        self._turns[group.user, gpu] = at
        if (self.active or self.several_users) and at - self._changed_at >= self.refresh:
            self._changed_at = at
            self.version += 1

    def _window(self, windows: dict[tuple[str, str], Window], key: tuple[str, str]) -> Window:
        window = windows.get(key)
        if window is None:
            window = windows[key] = Window(self.window, self._buckets)
            self._gpus.add(key[1])
        return window

    def used(self, whose: str, gpu: str, now: float) -> float:
        """Return the seconds of a GPU that a team, user or group has had within the window."""
        window = self._windows.get((whose, gpu))
        return 0.0 if window is None else window.used(now)

    def share(self, whose: str, gpu: str, now: float) -> float:
        """Return the same as a fraction of the window."""
        return self.used(whose, gpu, now) / self.window

    def stretch(self, group: Group, gpu: str, now: float) -> float:
        """Return how many times as long as it had a GPU a group was busy there, as others were, too: in halves."""
        busy = self._busy.get((group.id, gpu))
        had = self.used(f"group:{group.id}", gpu, now)
        return 1.0 if busy is None or not had else math.ceil(2 * busy.used(now) / had - 0.2) / 2

    def rate(self, group: Group, gpu: str, now: float) -> float:
        """Return a group's submissions per second over the window, as far as they are metered."""
        window = self._submitted.get((group.id, gpu))
        return 0.0 if window is None else window.used(now) / self.window

    # --- What follows -----------------------------------------------------------------------------

    def limit(self, group: Group) -> float:
        """Return the least limit that applies to a group; 1 where there is none."""
        return min((c.entitlement.limit or 1.0 for c in self.of(group)), default=1.0)

    def throttled_until(self, group: Group, gpu: str, now: float) -> float | None:
        """When a group that has had its limit may have more; None: now. Until then, the answer stays the same."""
        found = self._limits_reached(group, gpu, now)
        for whose, until in found.items():
            self._full[whose, gpu] = until
        return max(found.values(), default=None)

    def limited_by(self, group: Group, gpu: str, now: float) -> str | None:
        """Return whose limit it is that a group has had."""
        found = self._limits_reached(group, gpu, now)
        return max(found, key=found.__getitem__, default=None)

    def limit_reached(self, group: Group, now: float) -> str | None:
        """Return whose limit a group has had on one of its GPUs."""
        found = (self.limited_by(group, uuid, now) for uuid in group.shares)
        return next((whose for whose in found if whose is not None), None)

    def _limits_reached(self, group: Group, gpu: str, now: float) -> dict[str, float]:
        """Return whose limits a group has had, and until when it is to wait for each of them."""
        found: dict[str, float] = {}
        for claim in self.of(group):
            limit = claim.entitlement.limit
            if not limit:
                continue
            key = (claim.whose, gpu)
            until = self._full.get(key, now)
            if until <= now:
                if self.used(claim.whose, gpu, now) < limit * self.window:
                    continue
                # Until there is room for a while: to be let in for each millisecond costs more than it brings.
                until = self._windows[key].below_at(limit * self.window * (1 - STEP), now)
            found[claim.whose] = until
        return found

    def deficit(self, group: Group, gpu: str, now: float) -> float:
        """Return the fraction of a GPU's time that a group's claims are below their request, at most.

        Where none is, by how much they are above it, negative; -1 without a request. A request counts as far as its
        limits leave room: nobody could give more to one that has had them.
        """
        missing, room = -1.0, 1.0
        for claim in self.of(group):
            entitlement = claim.entitlement
            if entitlement.request or entitlement.limit:
                share = self.share(claim.whose, gpu, now)
                if entitlement.request:
                    missing = max(missing, entitlement.request - share)
                if entitlement.limit:
                    room = min(room, entitlement.limit - SPREAD - share)
        return min(missing, room)

    def had_less(self, group: Group, other: Group, gpus: Iterable[str], now: float) -> bool:
        """Whether a group's team, user or itself had at most as much for the weight, over minutes, as the other's.

        Over the window it would be gained by taking turns that are longer than it.
        """
        for mine, theirs in zip(self.of(group), self.of(other), strict=False):
            if mine.whose != theirs.whose:
                return all(
                    self._over_minutes(mine, gpu, now) <= self._over_minutes(theirs, gpu, now)
                    for gpu in gpus
                )
        return True

    def _over_minutes(self, claim: Claim, gpu: str, now: float) -> float:
        decayed = self._decayed.get((claim.whose, gpu))
        had = 0.0 if decayed is None else decayed.until(now, self.memory)
        return had / claim.entitlement.weight

    def rank(self, group: Group, gpus: Iterable[str], now: float) -> UsageRank:
        """Return the numbers that order the groups that are waiting.

        At each level (teams, users; groups), groups below their request come first (negative), by how much is
        missing; then those that have had least for their weight. A number is 0 where there is nothing to tell apart.
        """
        chain = self.of(group)
        gpus = list(gpus)
        between = own = 0.0
        waited = 0.0 if group.wait is None else now - group.wait.since
        if self.active or self.several_users:
            between = self._score(chain[0], gpus, now, waited) * _LEVEL
            if len(chain) > 2:
                between += self._score(chain[1], gpus, now, waited)
        if group.user in self._shared:
            own = self._score(chain[-1], gpus, now, waited)
        return UsageRank(between, self.turn(group, gpus), own)

    def owed_more(self, group: Group, other: Group, now: float, swing: float) -> bool:
        """Whether a holder would come before one that waits, by their shares.

        What both have had swings by so much of the window as they take turns: it is the middle that is compared.
        """
        gpus = list(other.shares)
        waited = 0.0 if other.wait is None else now - other.wait.since
        for mine, theirs in zip(self.of(group), self.of(other), strict=False):
            if mine.whose != theirs.whose:
                if mine.whose == f"group:{group.id}" and group.user not in self._shared:
                    return False
                had = self._score(mine, gpus, now, 0.0, -swing / 2)
                return had < self._score(theirs, gpus, now, waited, swing / 2)
        return False

    def turn(self, group: Group, gpus: Iterable[str]) -> float:
        """Order of users who have had the same: by when they last had any of these GPUs; 0 where there is one user."""
        self.of(group)
        if not self.several_users:
            return 0.0
        found = self._came[group.user]
        for gpu in gpus:
            found = max(found, self._turns.get((group.user, gpu), found))
        return found

    def _score(
        self, claim: Claim, gpus: list[str], now: float, waited: float, more: float = 0.0
    ) -> float:
        """Order at one level, in steps: below 0 by what is missing of the request, then by use for the weight."""
        share = max((self.share(claim.whose, gpu, now) for gpu in gpus), default=0.0)
        share = max(0.0, share + more)
        missing = claim.entitlement.request - share
        if waited > PATIENCE and share < LEAST and self.active:
            missing = max(missing, min(waited / PATIENCE - 1, 1.0))
        if waited > self.longest_patience:
            missing = 2.0
        if missing > 0:
            return float(-1 - int(missing / STEP))
        # However small a weight is, it does not reach the next level.
        return float(min(int(share / claim.entitlement.weight / STEP), _LEVEL // 2))

    # --- Memory, and GPUs --------------------------------------------------------------------------

    def quotas(self, group: Group) -> list[Claim]:
        """Return those that bound on how many GPUs a group's user and team may hold leases at once."""
        if not self.counted:
            return []
        return [claim for claim in self.of(group)[:-1] if claim.entitlement.gpus]

    def applies(self, whose: str, group: Group) -> bool:
        """Whether a group is of a user or team."""
        return any(claim.whose == whose for claim in self.of(group)[:-1])

    def host_room(self, group: Group, groups: Iterable[Group]) -> MemoryRoom | None:
        """Return how much footprint may be added until its user's or team's bound for all GPUs; None: there is none.

        ``groups``: all that there are.
        """
        found: MemoryRoom | None = None
        for claim in self.of(group)[:-1]:
            cap = claim.entitlement.host
            if not cap:
                continue
            promised = sum(
                share.promised
                for other in groups
                if self.applies(claim.whose, other)
                for share in other.shares.values()
            )
            room = MemoryRoom(cap - promised, claim.whose)
            if found is None or room.bytes < found.bytes:
                found = room
        return found

    def memory_room(self, group: Group, gpu: Gpu) -> MemoryRoom | None:
        """Return how much may be promised to a group until its user's or team's cap; None: neither has one."""
        found: MemoryRoom | None = None
        for claim in self.of(group)[:-1]:
            cap = claim.entitlement.memory
            if not cap:
                continue
            promised = sum(
                s.promised for s in gpu.shares.values() if self.applies(claim.whose, s.group)
            )
            room = MemoryRoom(cap - promised, claim.whose)
            if found is None or room.bytes < found.bytes:
                found = room
        return found


def _is_timed(entitlement: Entitlement) -> bool:
    return bool(entitlement.request or entitlement.limit) or entitlement.weight != NOTHING.weight
