# SPDX-License-Identifier: BSD-3-Clause
"""Entitlements to GPU time hold, and no group starves for them: the real core, with obedient clients.

Time is virtual. The GPU takes turns between processes, so that a kernel takes its length alone, and n times as long
beside n - 1 others; a client has one on the GPU at a time, waits as PACE says (``csrc/interposer/gate/pace.c``), and
meters what has ended, by the clock: what others' kernels took in between is in it (``csrc/interposer/gate/meter.c``).
What the properties compare is what the GPU did for each and when, and none of the core's own figures, nor the meters'.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core import usage as gpu_time
from jupyter_gpushare.scheduler.policies.priority import HighestPriority
from jupyter_gpushare.scheduler.policies.tgs import Tgs
from jupyter_gpushare.scheduler.simulation.trace import Kernel
from tests.scheduler.entitled import COSTS, GIB, SMALL, TOTAL, WINDOW, Lab, Mix, works
from tests.support.properties import PROPERTY_TIMEOUT, examples

#: Seconds, ten minutes as a rule: shorter, so that they matter as often as all else does.
FAVOUR = 60.0
SETTINGS: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck)}

# --- What there may be ----------------------------------------------------------------------------

USERS = ("ada", "ben", "cy")
TEAM = "team:t"
requests = st.sampled_from([0.0, 0.0, 0.2, 0.5, 0.9])
limits = st.sampled_from([0.0, 0.0, 0.1, 0.3, 0.6])
weights = st.sampled_from([1.0, 1.0, 0.25, 4.0])


@st.composite
def entitlements(draw: Any, memory: bool = False) -> ev.Entitlement:
    cap = draw(st.sampled_from([0, 0, 120 * GIB])) if memory else 0
    return ev.Entitlement(draw(requests), draw(limits), draw(weights), cap)


@st.composite
def mixes(draw: Any) -> Mix:
    """Up to four groups, on one GPU, the other or both, that fit side by side or not; all sorts of entitlements."""
    gpus = draw(st.integers(1, 2))
    kernels: list[tuple[Kernel, int]] = []
    frozen = []
    for n in range(draw(st.integers(2, 4))):
        spec = works(
            f"k{n}",
            draw(st.sampled_from(USERS)),
            draw(st.sampled_from([0.050, 0.200, 1.0])),
            draw(st.sampled_from([5, 40, 80, 120])),
            draw(st.sampled_from([0.0, 0.0, 3.0, 20.0])),
            draw(st.sampled_from([0.0, 0.0, 0.004, 0.3])),
            priority=draw(st.sampled_from(["auto", "interactive", "background"])),
            request=draw(requests),
            limit=draw(limits),
            weight=draw(weights),
        )
        where = draw(st.sampled_from([(0,), (0,), (gpus - 1,), tuple(range(gpus))]))
        kernels += [(spec, index) for index in where]
        if draw(st.integers(0, 5)) == 0:
            begin = draw(st.sampled_from([1.0, 15.0, 40.0]))
            frozen.append((spec.name, begin, begin + draw(st.sampled_from([0.5, 20.0]))))
    entitled = [
        ev.Entitle(f"user:{user}", draw(entitlements(memory=True)))
        for user in sorted({k.user for k, _ in kernels})
    ]
    members = draw(st.sampled_from([(), ("ada",), ("ada", "ben"), USERS]))
    if members:
        entitled.append(ev.Entitle(TEAM, draw(entitlements()), members))
    return Mix(kernels, entitled, gpus, frozen=frozen)


def longest_wait(mix: Mix, quantum: float) -> float:
    """The bound that is derived at ``test_every_wait_ends``."""
    groups = {k.name for k, _ in mix.kernels}
    moves = 2 * sum(k.footprint() for k, _ in mix.kernels) / COSTS.both_ways
    return FAVOUR + 45 + len(groups) * (quantum + moves + WINDOW)


def check_limits(mix: Mix, lab: Lab, seconds: float) -> None:
    """In any window, no user exceeds the limit by more than 2%."""
    limited = [(f"group:{k.name}", k.limit, {k.name}) for k, _ in mix.kernels]
    for event in mix.entitled:
        users = set(event.members) or {event.whose.removeprefix("user:")}
        names = {k.name for k, _ in mix.kernels if k.user in users}
        limited.append((event.whose, event.entitlement.limit, names))
    for whose, limit, names in limited:
        if not limit:
            continue
        for index in range(mix.gpus):
            among = [h for h in lab.holders if h.id in names and h.gpu.index == index]
            for end in range(20, int(2 * seconds) + 1):
                had = sum(h.had(end / 2 - WINDOW, end / 2) for h in among) / WINDOW
                assert had <= limit + 0.02, f"{whose} had {had:.3f}, {end / 2} s"


# --- Liveness -------------------------------------------------------------------------------------


@pytest.mark.timeout(PROPERTY_TIMEOUT)
@pytest.mark.parametrize(
    ("policy", "most"), [("burst", 5), ("gemini", 3), ("fcfs", 2), ("tgs", 2), ("priority", 2)]
)
def test_every_wait_ends(policy: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group that has work and is not frozen is served, whatever the entitlements.

    The bound: what puts others before one that waits is over after ``FAVOUR`` (what is ten minutes as a rule:
    ``LONGEST_PATIENCE``, and the favours of ``tgs`` and ``priority``), and 45 s of class, length and focus. By then
    each other group may have as long a wait behind it, and has one turn: the longest quantum, the moves of all that
    there is, out and in, and a window, for those that have had their limit.
    """
    monkeypatch.setattr(gpu_time, "LONGEST_PATIENCE", FAVOUR)
    monkeypatch.setattr(
        Tgs, "favour", {"interactive": 0.0, "agent": FAVOUR / 2, "background": FAVOUR}
    )
    favour = {"interactive": FAVOUR / 2, "agent": FAVOUR / 4, "background": 0.0}
    monkeypatch.setattr(HighestPriority, "class_favour", favour)
    monkeypatch.setattr(HighestPriority, "weight_favour", FAVOUR / 8)

    @settings(max_examples=examples(most), **SETTINGS)
    @given(mixes(), st.sampled_from([2.0, 2.0, "auto"]), st.sampled_from(["auto", "auto", "on"]))
    def check(mix: Mix, quantum: Any, anti_thrash: Any) -> None:
        bound = longest_wait(mix, 30.0 if quantum == "auto" else quantum)
        lab = mix.run(policy, bound + 20, meter=0.5, quantum=quantum, anti_thrash=anti_thrash)
        for holder in lab.holders:
            assert holder.failed or holder.longest <= bound, f"{holder.id}: {holder.longest} s"

    check()


def test_no_user_of_a_team_at_its_limit_starves() -> None:
    """Neither side by side nor in turns, beside a user without a limit."""
    for size in (20, 60):
        kernels = [(works(f"k{n}", user, 0.020, size), 0) for n, user in enumerate(USERS)]
        mix = Mix(kernels, [ev.Entitle(TEAM, ev.Entitlement(limit=0.2), USERS[:2])])
        lab = mix.run("burst", 200.0)
        check_limits(mix, lab, 200.0)
        had = [h.had(0.0, 200.0) / 200 for h in lab.holders]
        assert min(had[:2]) >= 0.05
        assert had[2] >= 0.45


def test_a_kernel_without_a_request_is_served_beside_others_of_its_user() -> None:
    """The others request more than there is, and by turns are always below it."""
    kernels = [
        (works(f"k{n}", "ada", 0.2, 80, request=r), 0) for n, r in enumerate((0.9, 0.9, 0.0))
    ]
    lab = Mix(kernels, []).run("burst", 200.0, meter=0.5)
    assert max(h.longest for h in lab.holders) <= 100.0


def test_a_group_on_two_gpus_is_served_although_its_team_is_at_the_limit_on_one() -> None:
    """Others made way for it on both, and came back on the one while it waited for the limit on the other."""
    kernels = [
        (works("right", "ben", 1.0, 80, pause=0.3), 1),
        *((works("both", "ada", 1.0, 40, priority="background"), gpu) for gpu in (0, 1)),
        (works("left", "cy", 1.0, 40, priority="interactive", pause=0.3), 0),
    ]
    mix = Mix(kernels, [ev.Entitle(TEAM, ev.Entitlement(limit=0.1), USERS)], gpus=2)
    lab = mix.run("burst", 200.0, meter=0.5, anti_thrash="on")
    assert max(h.longest for h in lab.holders) <= 100.0, {h.id: h.longest for h in lab.holders}


# --- Limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(policies.OURS))
def test_a_limit_holds_beside_a_pausing_group_while_another_waits(policy: str) -> None:
    """By the clock, the pausing group is busy all the time: it was charged for half of the other's time."""
    kernels = [
        (works("limited", "ada", 0.001, 5, priority="interactive", limit=0.1), 0),
        (works("pauses", "ada", 0.001, 80, priority="background"), 0),
        (works("waits", "ada", 0.001, 80, priority="background"), 0),
    ]
    mix = Mix(kernels, [])
    check_limits(mix, mix.run(policy, 15.0), 15.0)


@st.composite
def limited_mixes(draw: Any) -> Mix:
    """Up to four processes, some of one group, with kernels of up to 50 ms; some limits change, or come later."""
    count = draw(st.integers(1, 4))
    kernels: list[tuple[Kernel, int]] = []
    for n in range(count):
        spec = works(
            f"k{draw(st.sampled_from([0, n]))}",
            draw(st.sampled_from(USERS)),
            # What runs side by side takes as many times as long.
            draw(st.sampled_from([0.004, 0.050])) / count,
            draw(st.sampled_from([5, 5, 40, 80])),
            draw(st.sampled_from([0.0, 3.0])),
            draw(st.sampled_from([0.0, 0.0, 0.004, 0.3])),
            request=draw(requests),
            limit=draw(limits),
            weight=draw(weights),
        )
        user = next((k.user for k, _ in kernels if k.name == spec.name), spec.user)
        kernels.append((replace(spec, user=user), 0))
    # What is asked for a group is asked by its last process.
    last = {k.name: k for k, _ in kernels}
    kernels = [(replace(k, limit=last[k.name].limit), i) for k, i in kernels]
    entitled = [ev.Entitle(f"user:{u}", draw(entitlements())) for u in USERS]
    members = draw(st.sampled_from([USERS[:2], USERS]))
    entitled.append(ev.Entitle(TEAM, draw(entitlements()), members))
    return Mix(kernels, entitled)


@settings(max_examples=examples(12), **SETTINGS)
@given(limited_mixes(), st.sampled_from(sorted(policies.OURS)))
def test_no_user_exceeds_the_limit(mix: Mix, policy: str) -> None:
    """A kernel, a user, a team: over any 10 s at most the limit and 2 %, under every policy."""
    check_limits(mix, mix.run(policy, 40.0), 40.0)


@pytest.mark.parametrize("others", [1, 2])
def test_a_user_with_a_limit_reaches_it_beside_others(others: int) -> None:
    """The client keeps to it by its own clock, which counts what the others have in between."""
    kernels = [(works("a", "ada", 0.010, 5, limit=0.2), 0)]
    kernels += [(works(f"b{n}", "ben", 0.010, 5), 0) for n in range(others)]
    lab = Mix(kernels, []).run("burst", 60.0)
    check_limits(lab=lab, mix=Mix(kernels, []), seconds=60.0)
    had = [h.had(20, 60) / 40 for h in lab.holders]
    assert had[0] >= 0.17
    assert sum(had) >= 0.97


# --- Requests and weights -------------------------------------------------------------------------


@st.composite
def divisions(
    draw: Any, sizes: list[int], parts: list[float], most: float
) -> tuple[Mix, list[float]]:
    """Two to four that always have work, and what each requests: a user, a team, or one of a user's own kernels."""
    whose = draw(st.sampled_from(["user", "team", "own"]))
    kernels: list[tuple[Kernel, int]] = []
    entitled: list[ev.Entitle] = []
    asked: list[float] = []
    for n in range(draw(st.integers(2, 4))):
        part = min(draw(st.sampled_from(parts)), round(most - sum(asked), 3))
        asked.append(part)
        share = {"request": part, "weight": draw(weights)}
        if draw(st.booleans()):
            share["limit"] = min(1.0, part + 0.1)
        user = "ada" if whose == "own" else f"u{n}"
        spec = works(
            f"k{n}", user, draw(st.sampled_from([0.010, 0.050])), draw(st.sampled_from(sizes)),
            priority=draw(st.sampled_from(["auto", "interactive", "background"])),
            **(share if whose == "own" else {}),
        )  # fmt: skip
        kernels.append((spec, 0))
        if whose != "own":
            name = f"user:{user}" if whose == "user" else f"team:{n}"
            members = (user,) if whose == "team" else ()
            entitled.append(ev.Entitle(name, ev.Entitlement(**share), members))
    return Mix(kernels, entitled), asked


@settings(max_examples=examples(6), **SETTINGS)
@given(divisions([5, 20], [0.0, 0.1, 0.3, 0.45, 0.9], 0.9))
def test_side_by_side_all_users_get_their_requests(division: tuple[Mix, list[float]]) -> None:
    """Where the requests add up to at most 0.9: over each 30 s, whatever the others are and ask for, less 4 %."""
    mix, asked = division
    lab = mix.run("burst", 70.0)
    for holder, request in zip(lab.holders, asked, strict=True):
        for begin in range(20, 41):
            assert holder.had(begin, begin + 30) / 30 >= request - 0.04, (holder.id, begin)


def test_no_group_pauses_for_a_user_with_a_low_limit() -> None:
    """It reaches its limit beside the others: otherwise the GPU idles, and users with a request miss theirs."""
    lengths, sizes = (0.05, 0.01, 0.05, 0.01), (20, 20, 5, 20)
    shares = [
        ev.Entitlement(request=0.45),
        ev.Entitlement(request=0.1, limit=0.2),
        ev.Entitlement(request=0.35),
        ev.Entitlement(limit=0.1, weight=0.25),
    ]
    mix = Mix(
        [
            (works(f"k{n}", f"u{n}", length, size, priority="interactive" if n == 3 else "background"), 0)
            for n, (length, size) in enumerate(zip(lengths, sizes, strict=True))
        ],
        [ev.Entitle(f"user:u{n}", share) for n, share in enumerate(shares)],
    )  # fmt: skip
    lab = mix.run("burst", 70.0)
    for begin in range(20, 41):
        had = [holder.had(begin, begin + 30) / 30 for holder in lab.holders]
        for mine, share in zip(had, shares, strict=True):
            assert mine >= share.request - 0.02
        assert sum(had) >= 0.97


def test_a_request_below_a_limit_is_met_by_long_cuda_kernels_beside_others() -> None:
    """Beside three others, a kernel of 50 ms takes 200 ms: its client may save up less than that."""
    lengths, sizes = (0.05, 0.01, 0.05, 0.05), (20, 5, 20, 5)
    shares = [
        ev.Entitlement(request=0.3),
        ev.Entitlement(request=0.1, weight=4.0),
        ev.Entitlement(request=0.1, limit=0.2),
        ev.Entitlement(request=0.4, limit=0.5),
    ]
    mix = Mix(
        [(works(f"k{n}", f"u{n}", *spec), 0) for n, spec in enumerate(zip(lengths, sizes, strict=True))],
        [ev.Entitle(f"user:u{n}", share) for n, share in enumerate(shares)],
    )  # fmt: skip
    lab = mix.run("burst", 70.0)
    for begin in range(20, 41):
        for holder, share in zip(lab.holders, shares, strict=True):
            assert holder.had(begin, begin + 30) / 30 >= share.request - 0.03, (holder.id, begin)


def test_a_request_above_the_limit_pauses_no_group() -> None:
    kernels = [
        (works("a", "ada", 0.020, 5, request=0.6, limit=0.2), 0),
        (works("b", "ben", 0.020, 5), 0),
    ]
    lab = Mix(kernels, []).run("burst", 40.0)
    had = [h.had(20, 40) / 20 for h in lab.holders]
    assert 0.17 <= had[0] <= 0.22
    assert sum(had) >= 0.97


@pytest.mark.parametrize("user", ["ada", "ben"])
def test_requests_come_before_interactivity(user: str) -> None:
    """A group that pauses for a request makes no other group pause."""
    kernels = [
        (works("train", "ada", 0.020, 5, priority="background", request=0.6), 0),
        (works("plot", user, 0.020, 5, priority="interactive"), 0),
    ]
    train, plot = Mix(kernels, []).run("burst", 40.0).holders
    assert train.had(10, 40) / 30 >= 0.58
    assert plot.had(10, 40) / 30 >= 0.3


@settings(max_examples=examples(6), **SETTINGS)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=2, max_size=4),
    st.sampled_from(["user", "team", "own"]),
    st.sampled_from([0.010, 0.050]),
)
def test_spare_time_is_divided_by_weight(heavy: list[float], whose: str, length: float) -> None:
    """Side by side for 60 s, GPU time is divided by weight, within 5%."""
    check_weights(heavy, whose, length, TOTAL)


@pytest.mark.parametrize("heavy", [[1.0, 1.0], [1.0, 3.0], [2.0, 1.0]])
@pytest.mark.parametrize("whose", ["user", "own"])
def test_spare_time_in_turns_is_divided_by_weight(heavy: list[float], whose: str) -> None:
    """Within a tenth, as a window has few turns: of two, where a switch takes a fifth of a second."""
    check_weights(heavy, whose, 0.020, SMALL, off=0.10)


def check_weights(
    heavy: list[float], whose: str, length: float, memory: int, off: float = 0.05
) -> None:
    kernels: list[tuple[Kernel, int]] = []
    entitled: list[ev.Entitle] = []
    for n, weight in enumerate(heavy):
        user = "ada" if whose == "own" else f"u{n}"
        preferences = {"weight": weight} if whose == "own" else {}
        kernels.append((works(f"k{n}", user, length, 9, **preferences), 0))
        if whose != "own":
            name, members = (f"team:{n}", (user,)) if whose == "team" else (f"user:{user}", ())
            entitled.append(ev.Entitle(name, ev.Entitlement(weight=weight), members))
    lab = Mix(kernels, entitled, memory=memory).run("burst", 120.0)
    had = [h.had(60, 120) for h in lab.holders]
    for mine, weight in zip(had, heavy, strict=True):
        assert abs(mine / sum(had) - weight / sum(heavy)) <= off, (had, heavy)
