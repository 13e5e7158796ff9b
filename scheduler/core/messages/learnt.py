# SPDX-License-Identifier: BSD-3-Clause
"""What a core has learnt, for the core of the next scheduler.

Times are those of the core's clock, so they are valid only until the machine restarts. ``Learnt.lasting`` returns the
part that stays valid. The bounds are checked where a file is decoded.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

#: Seconds of a duration; a time; bytes; and a count or a sum that fades.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
Moment = Annotated[float, Meta(ge=-1e12, le=1e12)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Amount = Annotated[float, Meta(ge=0, le=1e15)]
#: Nanoseconds, or a number of submissions in units of one thousand millionth.
Part = Annotated[int, Meta(ge=0, le=1 << 62)]
#: The largest numbers of a group's recent lengths, of residues, and of the parts of a window.
Lengths = Annotated[tuple[Seconds, ...], Meta(max_length=64)]
Residues = Annotated[tuple[Bytes, ...], Meta(max_length=64)]
Parts = Annotated[tuple[Part, ...], Meta(max_length=4096)]


class LearntTrials(Struct, frozen=True, array_like=True):
    """Hints, and how many of them were right (``likelihood.py``)."""

    trials: Amount
    hits: Amount


class LearntWindow(Struct, frozen=True, array_like=True):
    """A sliding window: the number of its newest part, and its parts, the newest first."""

    newest: Annotated[int, Meta(ge=0, le=1 << 53)]
    parts: Parts


class LearntTime(Struct, frozen=True, omit_defaults=True):
    """The GPU time of a team, user or group on one GPU (``usage.py``)."""

    window: LearntWindow | None = None
    #: The time that counts less the longer ago it was, and up to when.
    seconds: Seconds = 0.0
    at: Moment = 0.0
    #: Of a group: its busy time and its submissions over the window, and its busy time since it came.
    busy: LearntWindow | None = None
    submitted: LearntWindow | None = None
    total: Seconds = 0.0


class LearntWork(Struct, frozen=True, array_like=True):
    """The GPU time of a group's cell, or since its last pause (``activity.py``)."""

    had: Seconds
    last: Moment
    due: bool
    long: bool
    agent: bool


class LearntThroughput(Struct, frozen=True, omit_defaults=True):
    """A group's submissions and their GPU time, with and without resident memory (``paging.py``)."""

    resident: tuple[Amount, Amount] = (0.0, 0.0)
    floating: tuple[Amount, Amount] = (0.0, 0.0)
    #: Until when it takes turns, and the pause after the next failure.
    until: Moment = 0.0
    pause: Seconds = 0.0


class LearntMoves(Struct, frozen=True, omit_defaults=True):
    """A group's counters, and what was evicted since its memory was last restored."""

    bursts: Part = 0
    waits: Part = 0
    evicted: Part = 0
    restored: Part = 0
    evicted_at: Moment | None = None
    bytes: Part = 0
    copied: Part = 0
    zero: Part = 0
    shared: Part = 0
    hashed: Part = 0
    over: bool = False


class LearntGroup(Struct, frozen=True, omit_defaults=True):
    """What a core has learnt about one group."""

    bursts: Lengths = ()
    absences: Lengths = ()
    trials: dict[str, LearntTrials] = {}
    work: LearntWork | None = None
    throughput: LearntThroughput | None = None
    moves: LearntMoves | None = None
    #: By GPU.
    times: dict[str, LearntTime] = {}


class LearntGpu(Struct, frozen=True, omit_defaults=True):
    """What a core has learnt about one GPU: its bandwidth, and the sizes of contexts and residues (``readings.py``)."""

    bandwidth: Annotated[float, Meta(gt=0, le=1e15)] | None = None
    #: Bytes with which a context was admitted, and bytes that it took.
    taken: tuple[Annotated[int, Meta(ge=1, le=1 << 50)], Bytes] = (1, 1)
    residue: Bytes | None = None
    residues: Residues = ()


class Learnt(Struct, frozen=True, omit_defaults=True):
    """What a core has learnt."""

    #: The time at which the core handed this over, and the length of its windows.
    at: Moment
    window: Seconds
    groups: dict[str, LearntGroup] = {}
    #: By UUID.
    gpus: dict[str, LearntGpu] = {}
    #: The trials of all groups, by the kind of hint.
    trials: dict[str, LearntTrials] = {}
    #: Seconds that a wake takes without moves.
    wake: Seconds | None = None
    #: By team or user, and GPU; whether agents had any of it; and by user, its place in the order in which users came.
    times: dict[str, dict[str, LearntTime]] = {}
    agents: bool = False
    came: dict[str, Moment] = {}
    #: By user and GPU: when the user last had time there.
    served: dict[str, dict[str, Moment]] = {}
    #: The preferences for groups without a client.
    preferences: dict[str, dict[str, Any]] = {}

    def lasting(self) -> Learnt:
        """Return the part that stays valid when the machine restarts."""
        return Learnt(
            0.0,
            self.window,
            gpus=self.gpus,
            trials=self.trials,
            wake=self.wake,
            preferences=self.preferences,
        )

    def without_gpus(self) -> Learnt:
        """Return a copy without the GPUs, whose figures may differ with another driver."""
        return replace(self, gpus={}, wake=None)
