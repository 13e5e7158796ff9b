# SPDX-License-Identifier: BSD-3-Clause
"""What pages have been told, and what has changed since (docs/contributing/lab-protocol.md, "Live by push").

Sans-IO. A state is what `GET gpushare/api/status` answers, less what concerns the viewer alone.
"""

from __future__ import annotations

from typing import Any

State = dict[str, Any]

#: Members of the state that a delta brings whole.
MEMBERS = ("availability", "host", "settings", "hibernation", "notices", "unshared")

#: What counts with time is no change unless it is this far from what counting says: seconds, and for an estimate its
#: share.
JUMP = 0.5
JUMP_OF_ESTIMATE = 0.2
#: Memory that the host could spare is no change unless it is this far from what was told, as a share.
BREATH = 0.05


class Changes:
    """What has changed since pages were told; it stays changed until `take`, also where it changes back.

    Parameters
    ----------
    state
        What they have been told.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        #: As they were told last.
        self._members = {name: state[name] for name in MEMBERS}
        self._gpus: dict[str, State] = {gpu["uuid"]: gpu for gpu in state["gpus"]}
        #: With the time from which they count.
        self._groups: dict[str, tuple[State, float]] = {
            group["id"]: (group, state["time"]) for group in state["groups"]
        }
        self._clear()

    def _clear(self) -> None:
        self._of_members: set[str] = set()
        self._of_gpus: set[str] = set()
        self._of_groups: set[str] = set()
        self._removed: set[str] = set()
        self._spans: dict[Any, State] = {}
        self._samples: list[list[Any]] = []
        #: More has changed than a delta can express, so pages must request the whole state.
        self.unspeakable = False

    @property
    def any(self) -> bool:
        """Whether there is something to tell."""
        return bool(
            self._of_members
            or self._of_gpus
            or self._of_groups
            or self._removed
            or self._spans
            or self._samples
            or self.unspeakable
        )

    def see(self, state: State, timeline: State | None = None) -> None:
        """Take in the newest state, and the part of the timeline that is new."""
        self._state = state
        self._of_members.update(
            name
            for name in MEMBERS
            if self._members[name] != state[name]
            and not (name == "host" and _only_breathes(self._members[name], state[name]))
        )
        self._see_gpus(state["gpus"])
        self._see_groups(state["groups"], state["time"])
        if timeline is not None:
            self._spans.update((span["id"], span) for span in timeline["spans"])
            self._samples.extend(timeline["samples"])

    def take(self) -> State:
        """Return the delta, less its number; from here on it has been told."""
        state = self._state
        gpus = [gpu for gpu in state["gpus"] if gpu["uuid"] in self._of_gpus]
        groups = [group for group in state["groups"] if group["id"] in self._of_groups]
        delta = {
            "time": state["time"],
            "set": {name: state[name] for name in MEMBERS if name in self._of_members},
            "gpus": gpus,
            "groups": groups,
            "removed": sorted(self._removed),
            "spans": list(self._spans.values()),
            "samples": self._samples,
        }
        self._members.update(delta["set"])
        self._gpus.update((gpu["uuid"], gpu) for gpu in gpus)
        self._groups.update((group["id"], (group, state["time"])) for group in groups)
        self._clear()
        return delta

    def untold(self, samples: list[list[Any]]) -> list[list[Any]]:
        """Return those samples that the next delta does not bring."""
        coming = {(sample[0], sample[1]) for sample in self._samples}
        return [sample for sample in samples if (sample[0], sample[1]) not in coming]

    def _see_gpus(self, gpus: list[State]) -> None:
        self._of_gpus.update(g["uuid"] for g in gpus if self._gpus.get(g["uuid"]) != g)
        if self._gpus.keys() - {g["uuid"] for g in gpus}:
            self._gpus = {g["uuid"]: g for g in gpus}
            self.unspeakable = True

    def _see_groups(self, groups: list[State], now: float) -> None:
        present = set()
        for group in groups:
            name = group["id"]
            present.add(name)
            told = self._groups.get(name)
            if told is None:
                self._groups[name] = group, now
                self._removed.discard(name)
            elif name in self._of_groups or _only_counts(told[0], group, now - told[1]):
                continue
            self._of_groups.add(name)
        for name in self._groups.keys() - present:
            del self._groups[name]
            self._of_groups.discard(name)
            self._removed.add(name)


def _only_breathes(before: State | None, after: State | None) -> bool:
    """Whether the host is what it was, but for what the machine has to spare, which is never the same twice."""
    if before is None or after is None:
        return False
    old, new = ({**host, **(host["pool"] or {}), "pool": None} for host in (before, after))
    return old.keys() == new.keys() and all(
        abs(value - old[name]) <= BREATH * old[name]
        if name in ("budget", "limit")
        else value == old[name]
        for name, value in new.items()
    )


def _only_counts(before: State, after: State, passed: float) -> bool:
    """Whether a group is unchanged, except for counters that have grown by the seconds that passed."""
    if before.keys() != after.keys():
        return False
    for name, new in after.items():
        old = before[name]
        if old == new:
            # A value that should have counted and stands still is a jump, too.
            if name not in _COUNTING or new is None:
                continue
        elif name not in _COUNTING:
            return False
        if not _COUNTING[name](old, new, passed):
            return False
    return True


def _down(old: Any, new: Any, passed: float) -> bool:
    if old is None or new is None:
        return old is new
    return bool(abs(new - max(0.0, old - passed)) <= JUMP)


def _up(old: Any, new: Any, passed: float) -> bool:
    """Whether a value has counted up for some of the time: it does only while its group waits, or runs."""
    if old is None or new is None:
        return old is new
    return bool(-JUMP <= new - old <= passed + JUMP)


def _estimate(old: Any, new: Any, passed: float) -> bool:
    if old is None or new is None:
        return old is new
    if old.keys() != new.keys():
        return False
    for name, value in new.items():
        counted = max(0.0, old[name] - passed)
        if abs(value - counted) > max(JUMP, JUMP_OF_ESTIMATE * counted):
            return False
    return True


def _reason(old: Any, new: Any, passed: float) -> bool:
    if old is None or new is None:
        return old is new
    params = new["params"]
    counts = {"yields_in": _down, "until_in": _down, "estimate": _down, "for": _up}
    return (
        old["code"] == new["code"]
        and old["params"].keys() == params.keys()
        and all(
            counts[name](old["params"][name], value, passed)
            if name in counts
            else old["params"][name] == value
            for name, value in params.items()
        )
    )


def _work(old: Any, new: Any, passed: float) -> bool:
    """Whether nothing differs in a cell, or in a group's totals, but for how long it has waited and run."""
    if old is None or new is None:
        return old is new
    return old.keys() == new.keys() and all(
        _up(old[name], value, passed) if name in ("waited", "ran") else old[name] == value
        for name, value in new.items()
    )


#: The members of a group that count with time, and what tells whether they have only counted.
_COUNTING = {
    "yields_in": _down,
    "estimate": _estimate,
    "reason": _reason,
    "cell": _work,
    "totals": _work,
}
