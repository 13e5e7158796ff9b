# SPDX-License-Identifier: BSD-3-Clause
"""The GPU time that teams, users and groups have had: what ``usage.py`` counts, and what it hands over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from .messages import LearntTime, LearntWindow
from .usage_windows import Decayed, Window

#: Before the name of a team or user: the part of its time that its agents had.
AGENTS = "agents:"
#: Before the id of a group.
_GROUP = "group:"
#: The number of users whose order is handed over.
MOST_USERS = 1000


@dataclass(slots=True, eq=False)
class UsageTables:
    """GPU time by who had it and GPU: a team, user or group (``team:NAME``, ``user:NAME``, ``group:ID``)."""

    #: Seconds of the window, and the number of its parts.
    seconds: float
    parts: int
    windows: dict[tuple[str, str], Window] = field(default_factory=dict)
    decayed: dict[tuple[str, str], Decayed] = field(default_factory=dict)
    #: By the id of a group and GPU: for how long its processes were busy over the window, and since it came; and its
    #: submissions.
    busy: dict[tuple[str, str], Window] = field(default_factory=dict)
    totals: dict[tuple[str, str], float] = field(default_factory=dict)
    submitted: dict[tuple[str, str], Window] = field(default_factory=dict)
    #: The GPUs of these tables, and whether any agent has had GPU time.
    gpus: set[str] = field(default_factory=set)
    agents: bool = False
    #: By user: the order in which they came; and by user and GPU, when it last had time there.
    came: dict[str, float] = field(default_factory=dict)
    served: dict[tuple[str, str], float] = field(default_factory=dict)

    def learnt(self, now: float) -> dict[str, dict[str, LearntTime]]:
        """Return what each team, user and group has had, by GPU."""
        found: dict[str, dict[str, LearntTime]] = {}
        for (whose, gpu), decayed in self.decayed.items():
            window = self.windows.get((whose, gpu))
            had = None if window is None else window.learnt(now)
            time = LearntTime(had, decayed.seconds, decayed.at)
            if whose.startswith(_GROUP):
                key = (whose.removeprefix(_GROUP), gpu)
                busy, submitted = self.busy.get(key), self.submitted.get(key)
                time = replace(
                    time,
                    busy=None if busy is None else busy.learnt(now),
                    submitted=None if submitted is None else submitted.learnt(now),
                    total=self.totals.get(key, 0.0),
                )
            found.setdefault(whose, {})[gpu] = time
        return found

    def recall(self, whose: str, learnt: Mapping[str, LearntTime]) -> None:
        """Apply what a team, user or group has had according to another scheduler."""
        for gpu, time in learnt.items():
            self.gpus.add(gpu)
            self._fill(self.windows, (whose, gpu), time.window)
            self.decayed[whose, gpu] = Decayed(time.at)
            self.decayed[whose, gpu].seconds = time.seconds
            if whose.startswith(_GROUP):
                key = (whose.removeprefix(_GROUP), gpu)
                self._fill(self.busy, key, time.busy)
                self._fill(self.submitted, key, time.submitted)
                if time.total:
                    self.totals[key] = time.total

    def _fill(
        self, table: dict[tuple[str, str], Window], key: tuple[str, str], had: LearntWindow | None
    ) -> None:
        if had is not None:
            table[key] = Window(self.seconds, self.parts)
            table[key].recall(had)

    def order(self) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Return the order in which the last users came, and when each last had time on each GPU."""
        came = dict(list(self.came.items())[-MOST_USERS:])
        served: dict[str, dict[str, float]] = {}
        for (user, gpu), at in self.served.items():
            if user in came:
                served.setdefault(user, {})[gpu] = at
        return came, served
