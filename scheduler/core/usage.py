# SPDX-License-Identifier: BSD-3-Clause
"""The GPU time that groups, users and teams have had lately, and what they are entitled to.

A process is *busy* on a GPU for the wall time for which its own work is there; work that runs side by side counts once.
Processes that are busy at once take turns on the GPU, so each one's clock also counts the others' time. For that time
they are charged equal parts, and all together for no more than has passed. What a process is charged for is its GPU
time. It is summed for the group, its user, and the user's team over a sliding window. All times are seconds; shares are
fractions of the window on one GPU.

A user who is in no team counts as a team of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from .messages import Entitlement
from .policy_api import PATIENCE
from .usage_tables import AGENTS, UsageTables
from .usage_windows import PARTS, ChargedTime, Decayed, Parts, Window, spread

if TYPE_CHECKING:
    from .model import Gpu, Group

#: Each user without an entitlement of their own.
EACH = "user:*"
#: The entitlement if none is set.
NOTHING = Entitlement()
#: A group that has waited for ``PATIENCE`` also counts as below a request if it has had less than this.
LEAST = 0.02
#: Seconds of waiting after which a wait comes before all others, whatever other groups of its user or team have had.
LONGEST_PATIENCE = 600.0
#: Uses that differ by less than this fraction of the window count as equal.
STEP = 0.005
#: The fraction of the window by which a client that spreads its work may stay below its limit. CUDA kernels of 50 ms
#: and reports in flight cause this.
SPREAD = 0.03
#: Two levels of the order are summed in one number: the first one in units of this.
_LEVEL = 10**6


class Claim(NamedTuple):
    """An entitlement, and whose it is: ``team:NAME``, ``user:NAME`` or ``group:ID``."""

    whose: str
    entitlement: Entitlement


class MemoryRoom(NamedTuple):
    """Bytes of footprint that may be added before a user's or team's cap is reached; negative above it."""

    bytes: int
    whose: str


class UsageRank(NamedTuple):
    """A group's place in the order by GPU time; smaller comes first."""

    #: Between users; between users that have had the same; and between the groups of one user.
    user: float
    last_served: float
    own: float


class _Meter(NamedTuple):
    """The last report of a client about one GPU."""

    #: Its total busy time, until when, and when it reported this.
    busy: float
    end: float
    read: float
    #: The number of its submissions that had ended.
    ended: int


class GpuTime:
    """Counts GPU time, and compares it with entitlements.

    Parameters
    ----------
    window
        Seconds over which shares hold.
    buckets
        The number of parts of the window.
    memory
        Seconds after which time counts for a third, for comparisons over more than the window, as time slices are
        longer.
    refresh
        Seconds for which ranks are valid before use since then may change them.
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
        #: Increases when ranks may have changed enough to matter; because of use, at most once in ``refresh``.
        self.version = 0
        self._changed_at = float("-inf")
        self.tables = tables = UsageTables(window, buckets)
        self._windows, self._decayed, self._busy = tables.windows, tables.decayed, tables.busy
        self._submitted, self._totals = tables.submitted, tables.totals
        self._came, self._last_served = tables.came, tables.served
        #: By GPU, the processes that are busy at once.
        self._at_once: dict[str, ChargedTime] = {}
        #: By user, team or group and GPU: until when its limit is reached.
        self._full: dict[tuple[str, str], float] = {}
        #: By client and GPU: its last report.
        self._meters: dict[tuple[int, str], _Meter] = {}
        self._clients: dict[str, set[tuple[int, str]]] = {}
        self._claims: dict[str, Entitlement] = {}
        #: The users and teams that have an entitlement of time.
        self._timed: set[str] = set()
        #: The users and teams that have a quota of GPUs on which they may hold leases at once.
        self.counted: set[str] = set()
        self._members: dict[str, tuple[str, ...]] = {}
        #: The order in which teams were set.
        self._teams: dict[str, int] = {}
        self._stated = 0
        #: By group: its claims, and what they were computed from.
        self._chains: dict[str, tuple[tuple[object, ...], tuple[Claim, ...]]] = {}
        self._users: dict[str, set[str]] = {}
        #: By user: the groups for which users set shares.
        self._shared: dict[str, set[str]] = {}
        #: Whether any share of time is set: for a team, a user, or a group that is known.
        self.active = False
        #: Whether the groups that are known are of more than one user.
        self.several_users = False

    # --- Entitlements -----------------------------------------------------------------------------

    def entitle(self, whose: str, entitlement: Entitlement, members: Iterable[str] = ()) -> None:
        """Set the entitlement of a user (``user:NAME``) or a team (``team:NAME``, of these users).

        ``user:*`` is each user without an entitlement of their own. A team consists of its members and of the users
        whose clients name it. A user of several teams belongs to the one that was set last. A team without members and
        without an entitlement is dissolved.
        """
        self._claims[whose] = entitlement
        if entitlement == NOTHING:
            del self._claims[whose]
        self._timed.discard(whose)
        if _is_timed(entitlement):
            self._timed.add(whose)
        self._update_flags()
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
        """Return what applies to a group: the claims of its team if it has one, its user, and itself, in this order."""
        preferences = group.preferences
        made_of = (
            group.user,
            group.teams,
            preferences.request,
            preferences.limit,
            preferences.weight,
            preferences.memory,
        )
        known = self._chains.get(group.id)
        if known is not None and known[0] == made_of:
            return known[1]
        user = f"user:{group.user}"
        own = Entitlement(
            preferences.request, preferences.limit, preferences.weight, preferences.memory
        )
        stated = self._claims.get(user) or self._claims.get(EACH, NOTHING)
        chain = [Claim(user, stated), Claim(f"group:{group.id}", own)]
        team = self._team_of(group)
        if team is not None:
            chain.insert(0, Claim(team, self._claims.get(team, NOTHING)))
        if group.assumed:
            return tuple(chain)
        self._chains[group.id] = made_of, tuple(chain)
        if known is not None:
            self._full.clear()
        timed = _is_timed(own)
        self._drop_user(group)
        self._users.setdefault(group.user, set()).add(group.id)
        # Users without any time yet come before the others, in the order in which they came.
        self._came.setdefault(group.user, -1.0 / (1 + len(self._came)))
        if timed:
            self._shared.setdefault(group.user, set()).add(group.id)
        self._update_flags()
        if timed or known is not None or (self.several_users and len(self._users[group.user]) == 1):
            self.version += 1
        return tuple(chain)

    def teams_of(self, user: str) -> frozenset[str]:
        """Return the teams (``team:NAME``) of which a user is a set member."""
        return frozenset(team for team, members in self._members.items() if user in members)

    def _team_of(self, group: Group) -> str | None:
        """Return the team of a group's user: of several, the one that was set last."""
        found = [
            whose for whose in (f"team:{name}" for name in group.teams) if whose in self._teams
        ]
        found += [whose for whose, members in self._members.items() if group.user in members]
        return max(found, key=self._teams.__getitem__, default=None)

    def forget(self, group: Group) -> None:
        """Forget a group that has left. Its user's time stays counted until the window has moved on."""
        if self.active or self.several_users:
            self.version += 1
        self._drop_user(group)
        self._chains.pop(group.id, None)
        for key in self._clients.pop(group.id, ()):
            self._meters.pop(key, None)
        name = f"group:{group.id}"
        for gpu in self.tables.gpus:
            self._windows.pop((name, gpu), None)
            self._submitted.pop((group.id, gpu), None)
            self._busy.pop((group.id, gpu), None)
            self._totals.pop((group.id, gpu), None)
            self._full.pop((name, gpu), None)
            self._decayed.pop((name, gpu), None)

    def _drop_user(self, group: Group) -> None:
        for table in (self._users, self._shared):
            groups = table.get(group.user, set())
            groups.discard(group.id)
            if not groups:
                table.pop(group.user, None)
        self._update_flags()

    def _update_flags(self) -> None:
        """Compute once whether anything depends on the users of groups, because each event reads that."""
        self.active = bool(self._timed or self._shared)
        self.several_users = len(self._users) > 1

    def version_at(self, now: float) -> int:
        """Return a number that changes when ranks may have: because of use, entitlements, or the length of waits."""
        return self.version + int(now / PATIENCE)

    # --- GPU time ---------------------------------------------------------------------------------

    def meter(
        self, group: Group, gpu: str, client: int, busy: float, at: float, submissions: int = 0
    ) -> tuple[float, int]:
        """Apply the report of a client's busy time on a GPU since it attached; return the increase of both figures.

        ``busy``: seconds. Both figures only grow; a counter that decreased began again at 0.
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
            # Work that still runs is not included. If that explains the missing time, the process was busy until then.
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
        """Add the time up to ``at`` for which a group was busy without a meter."""
        if seconds > 0:
            self._add(group, gpu, 0, seconds, at - seconds, at)

    def _spread(self, seconds: float, since: float, at: float) -> Parts:
        return spread(seconds, since, at, self.window / self._buckets, self._buckets)

    def _add(
        self, group: Group, gpu: str, client: int, seconds: float, since: float, at: float
    ) -> None:
        claims = self.of(group)
        names = tuple([claim.whose for claim in claims])
        if group.activity_class == "agent":
            # Of a team's or user's time, that of agents must not put people's cells later.
            self.tables.agents = True
            names += tuple([AGENTS + claim.whose for claim in claims[:-1]])
        else:
            self._last_served[group.user, gpu] = at
        parts = self._spread(seconds, since, at)
        key = (group.id, gpu)
        self._totals[key] = self._totals.get(key, 0.0) + seconds
        charged: dict[str, int] = {}
        if not (self.active or self.several_users):
            # Nothing depends on it now, and many groups may be at work, so it is only kept in case something will.
            for whose in names:
                self._window(self._windows, (whose, gpu)).put(parts)
                charged[whose] = sum([part for _, part in parts])
        else:
            at_once = self._at_once.get(gpu)
            if at_once is None:
                at_once = self._at_once[gpu] = ChargedTime(self.window, self._buckets)
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
        ordered = self.active or self.several_users or self.tables.agents
        if ordered and at - self._changed_at >= self.refresh:
            self._changed_at = at
            self.version += 1

    def busy_total(self, group: Group, gpu: str, now: float) -> float:
        """Return for how many seconds the processes of a group were busy on a GPU since it came, up to now."""
        total = self._totals.get((group.id, gpu), 0.0)
        if group.busy and not (group.metered and not group.overdue):
            # The current burst is counted when it ends.
            total += max(0.0, now - max(group.burst.ran_since, group.burst.counted_until))
        return total

    def _window(self, windows: dict[tuple[str, str], Window], key: tuple[str, str]) -> Window:
        window = windows.get(key)
        if window is None:
            window = windows[key] = Window(self.window, self._buckets)
            self.tables.gpus.add(key[1])
        return window

    def used(self, whose: str, gpu: str, now: float) -> float:
        """Return the seconds of a GPU that a team, user or group has had within the window."""
        window = self._windows.get((whose, gpu))
        return 0.0 if window is None else window.used(now)

    def share(self, whose: str, gpu: str, now: float) -> float:
        """Return the fraction of the window that a team, user or group has had."""
        return self.used(whose, gpu, now) / self.window

    def stretch(self, group: Group, gpu: str, now: float) -> float:
        """Return the ratio of a group's busy time to its GPU time, in halves: above 1 if others were busy, too."""
        busy = self._busy.get((group.id, gpu))
        had = self.used(f"group:{group.id}", gpu, now)
        return 1.0 if busy is None or not had else math.ceil(2 * busy.used(now) / had - 0.2) / 2

    def rate(self, group: Group, gpu: str, now: float) -> float:
        """Return a group's submissions per second over the window, as far as they are metered."""
        window = self._submitted.get((group.id, gpu))
        return 0.0 if window is None else window.used(now) / self.window

    # --- Consequences -----------------------------------------------------------------------------

    def limit(self, group: Group) -> float:
        """Return the least limit that applies to a group; 1 if there is none."""
        return min((c.entitlement.limit or 1.0 for c in self.of(group)), default=1.0)

    def throttled_until(self, group: Group, gpu: str, now: float) -> float | None:
        """Return when a group that has reached its limit may have more; None: now. Until then, this does not change."""
        found = self._limits_reached(group, gpu, now)
        for whose, until in found.items():
            self._full[whose, gpu] = until
        return max(found.values(), default=None)

    def limited_until(self, group: Group, gpu: str, now: float) -> float | None:
        """Return what ``throttled_until`` returns, and remember nothing."""
        return max(self._limits_reached(group, gpu, now).values(), default=None)

    def limited_by(self, group: Group, gpu: str, now: float) -> str | None:
        """Return the team, user or group whose limit a group has reached."""
        found = self._limits_reached(group, gpu, now)
        return max(found, key=found.__getitem__, default=None)

    def limit_reached(self, group: Group, now: float) -> str | None:
        """Return whose limit a group has reached on one of its GPUs."""
        found = (self.limited_by(group, uuid, now) for uuid in group.shares)
        return next((whose for whose in found if whose is not None), None)

    def _limits_reached(self, group: Group, gpu: str, now: float) -> dict[str, float]:
        """Return whose limits a group has reached, and until when it must wait for each."""
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
                # Wait until there is room for a while, because each short slice costs more than it brings.
                until = self._windows[key].below_at(limit * self.window * (1 - STEP), now)
            found[claim.whose] = until
        return found

    def deficit(self, group: Group, gpu: str, now: float) -> float:
        """Return by what fraction of a GPU's time a group's claims are below their request, at most.

        If none is below, return by how much they are above it, negative; -1 without a request. A request counts only as
        far as the limits leave room, since no scheduling could give more.
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
        """Whether a group's team, user or itself had at most as much time for its weight as another's, over minutes.

        Over the window, a group could gain from time slices that are longer than it.
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
        if self.tables.agents:
            agents = self._decayed.get((AGENTS + claim.whose, gpu))
            had -= 0.0 if agents is None else agents.until(now, self.memory)
        return had / claim.entitlement.weight

    def lately(self, group: Group, gpus: Iterable[str], now: float) -> float:
        """Return the seconds of one GPU's time that a group has had for its weight; see ``memory``."""
        own = self.of(group)[-1]
        return max((self._over_minutes(own, gpu, now) for gpu in gpus), default=0.0)

    def rank(self, group: Group, gpus: Iterable[str], now: float) -> UsageRank:
        """Return the numbers that order the groups that are waiting.

        At each level (teams, users; groups), groups below their request come first (negative), by how much is
        missing; then groups that have had least for their weight. A number is 0 where all groups are equal.
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
        return UsageRank(between, self.last_served(group, gpus), own)

    def owed_more(self, group: Group, other: Group, now: float, swing: float) -> bool:
        """Whether a holder comes before a wait according to their shares.

        As they take turns, their use of the window swings by ``swing``, so the midpoints are compared.
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

    def last_served(self, group: Group, gpus: Iterable[str]) -> float:
        """Return the order of users that have had the same: when they last had these GPUs; 0 if there is one user."""
        self.of(group)
        if not self.several_users:
            return 0.0
        # Only the user of an assumed group may be new.
        found = self._came.get(group.user, -1.0 / (1 + len(self._came)))
        for gpu in gpus:
            found = max(found, self._last_served.get((group.user, gpu), found))
        return found

    def _score(
        self, claim: Claim, gpus: list[str], now: float, waited: float, more: float = 0.0
    ) -> float:
        """Return the order at one level in steps: below 0, the missing part of the request; otherwise the use."""
        share = max((self.share(claim.whose, gpu, now) for gpu in gpus), default=0.0)
        share = max(0.0, share + more)
        use = share
        if self.tables.agents:
            use = max((self._without_agents(claim.whose, gpu, now) for gpu in gpus), default=0.0)
            use = max(0.0, use + more)
        missing = claim.entitlement.request - share
        if waited > PATIENCE and share < LEAST and self.active:
            missing = max(missing, min(waited / PATIENCE - 1, 1.0))
        if waited > self.longest_patience:
            missing = 2.0
        if missing > 0:
            return float(-1 - int(missing / STEP))
        # Even for the smallest weight, it does not reach the next level.
        return float(min(int(use / claim.entitlement.weight / STEP), _LEVEL // 2))

    def _without_agents(self, whose: str, gpu: str, now: float) -> float:
        """Return the fraction of the window that a team, user or group has had, without its agents."""
        return self.share(whose, gpu, now) - self.share(AGENTS + whose, gpu, now)

    # --- Memory, and GPUs --------------------------------------------------------------------------

    def quotas(self, group: Group) -> list[Claim]:
        """Return the claims that bound the number of GPUs on which a group's user and team may hold leases."""
        if not self.counted:
            return []
        return [claim for claim in self.of(group)[:-1] if claim.entitlement.gpus]

    def applies(self, whose: str, group: Group) -> bool:
        """Whether a group belongs to a user or team."""
        return any(claim.whose == whose for claim in self.of(group)[:-1])

    def host_room(self, group: Group, groups: Iterable[Group]) -> MemoryRoom | None:
        """Return how much footprint may be added below the user's or team's cap for all GPUs; None: there is no cap.

        ``groups``: all groups.
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
        """Return how much may be promised to a group below its user's or team's cap; None: there is no cap."""
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
