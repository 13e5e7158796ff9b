# SPDX-License-Identifier: BSD-3-Clause
"""GPU time that groups and users have had, and ranks that follow from their entitlements."""

from __future__ import annotations

from collections.abc import Iterable

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from jupyter_gpushare.scheduler.core.messages import Entitlement
from jupyter_gpushare.scheduler.core.model import Gpu, Group, Preferences, Share, Wait
from jupyter_gpushare.scheduler.core.usage import GpuTime
from tests.support.properties import examples

GPU = "GPU-0"
GIB = 1 << 30


def group(name: str, user: str = "ada", **preferences: float) -> Group:
    return Group(name, f"{name}.ipynb", 1, user=user, preferences=Preferences(**preferences))  # type: ignore[arg-type]


def order(times: GpuTime, groups: Iterable[Group], now: float) -> list[str]:
    return [g.id for g in sorted(groups, key=lambda g: times.rank(g, [GPU], now))]


# --- Counting -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.001, 15.0), st.floats(0.0, 1.0)),
        min_size=1,
        max_size=60,
    ),
    st.floats(0.0, 25.0),
)
def test_the_window_matches_a_full_list(had: list[tuple[float, float]], later: float) -> None:
    times, one = GpuTime(window=10.0), group("a")
    now, busy = 50.0, 0.0
    times.meter(one, GPU, 1, 0.0, now)
    pieces: list[tuple[float, float, float]] = []
    for passed, part in had:
        pieces.append((now, now + passed, part))
        now += passed
        busy += part * passed
        times.meter(one, GPU, 1, busy, now)
    now += later
    exact = sum(max(0.0, until - max(since, now - 10)) * part for since, until, part in pieces)
    # What falls into the bucket that slides out is taken to be spread over it.
    for whose in ("group:a", "user:ada"):
        assert times.used(whose, GPU, now) == pytest.approx(exact, abs=0.1 + 1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=100), st.floats(0.1, 9.0))
def test_the_predicted_time_of_lower_use_is_right(bursts: list[float], target: float) -> None:
    times, one = GpuTime(), group("a", limit=target / 10)
    now = 30.0
    for burst in bursts:
        now += 0.2
        times.add(one, GPU, burst, now)
    until = times.throttled_until(one, GPU, now)
    if until is None:
        assert times.used("group:a", GPU, now) <= target + 1e-9
    else:
        assert until > now
        assert times.throttled_until(one, GPU, (now + until) / 2) == until
        assert times.throttled_until(one, GPU, until) is None
        assert times.used("group:a", GPU, until) == pytest.approx(target * 0.995)


def test_a_counter_that_decreases_has_restarted() -> None:
    times, one = GpuTime(), group("a")
    assert times.meter(one, GPU, 1, 2.0, 50.0, 10) == (2.0, 10)
    assert times.meter(one, GPU, 1, 2.5, 51.0, 15) == (0.5, 5)
    assert times.meter(one, GPU, 1, 0.25, 52.0, 1) == (0.25, 1)
    assert times.used("group:a", GPU, 52.0) == pytest.approx(2.75)
    assert times.rate(one, GPU, 52.0) == pytest.approx(1.6)


def test_processes_users_and_gpus_are_summed_separately() -> None:
    times = GpuTime()
    a, b, c = group("a"), group("b"), group("c", "ben")
    times.entitle("team:t", Entitlement(weight=2), ["ada", "ben"])
    times.meter(a, GPU, 1, 1.0, 47.0)
    times.meter(a, GPU, 2, 1.0, 48.0)
    times.meter(a, "GPU-1", 1, 4.0, 50.0)
    times.add(b, GPU, 0.5, 49.0)
    times.add(c, GPU, 0.25, 50.0)
    used = {k: times.used(k, GPU, 50.0) for k in ("group:a", "user:ada", "user:ben", "team:t")}
    assert used == pytest.approx(
        {"group:a": 2.0, "user:ada": 2.5, "user:ben": 0.25, "team:t": 2.75}
    )
    assert times.used("user:ada", "GPU-1", 50.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("busy", "had"),
    [
        ((1.0, 1.0), (0.5, 0.5)),
        ((0.4, 0.5), (0.4, 0.5)),
        # For 0.3 of the time, both were.
        ((1.0, 0.3), (0.85, 0.15)),
        ((0.7, 0.6), (0.55, 0.45)),
        ((1.0, 1.0, 0.3), (0.45, 0.45, 0.1)),
        ((1.0, 0.0, 1.0), (0.5, 0.0, 0.5)),
    ],
)
@pytest.mark.parametrize("interval", [0.1, 1.0, 0.25])
def test_concurrently_busy_processes_divide_the_time(
    busy: tuple[float, ...], had: tuple[float, ...], interval: float
) -> None:
    """Whichever process reports last, and however rarely: whole buckets, or parts of them."""
    times = GpuTime(window=10.0)
    groups = [group(f"g{n}", f"u{n}") for n in range(len(busy))]
    for one in groups:
        times.of(one)
    for number in range(round(8 / interval) + 1):
        passed = number * interval
        for n, (one, rate) in enumerate(zip(groups, busy, strict=True)):
            times.meter(one, GPU, n + 1, rate * passed, 50.0 + passed)
    used = [times.used(f"group:{one.id}", GPU, 58.0) / 8 for one in groups]
    assert used == pytest.approx(had, abs=0.02)
    assert times._over_minutes(times.of(groups[0])[0], GPU, 58.0) == pytest.approx(
        8 * had[0], rel=0.02
    )


meterings = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0.01, 0.7), st.floats(0.0, 1.0)), min_size=1, max_size=80
)


@settings(max_examples=examples(50), deadline=None)
@given(meterings)
def test_the_total_never_exceeds_the_elapsed_time(said: list[tuple[int, float, float]]) -> None:
    """Whatever processes report, no group is charged for more time than it was busy."""
    times = GpuTime(window=100.0, buckets=1000)
    groups = [group("a"), group("a"), group("b", "ben"), group("c", "cy")]
    times.entitle("team:t", Entitlement(weight=2), ["ada", "ben", "cy"])
    now, busy, read = 50.0, [0.0] * 4, [50.0] * 4
    for n in range(4):
        times.meter(groups[n], GPU, n, 0.0, now)
    for n, passed, part in said:
        now += passed
        busy[n] += part * (now - read[n])
        read[n] = now
        times.meter(groups[n], GPU, n, busy[n], now)
    ada, ben, cy, team = (
        times.used(whose, GPU, now) for whose in ("user:ada", "user:ben", "user:cy", "team:t")
    )
    assert team == pytest.approx(ada + ben + cy)
    # Less would be a gift, and more than each was busy for a fine.
    assert max(busy) - 1e-6 <= team <= min(sum(busy), now - 50.0 + 0.2) + 1e-6
    assert ada <= busy[0] + busy[1] + 1e-6
    assert ben <= busy[2] + 1e-6
    assert cy <= busy[3] + 1e-6


def test_work_that_outlasts_a_reading_counts_when_it_ran() -> None:
    """CUDA kernels of 30 ms in a row: each reading lacks the running one."""
    times, a, b = GpuTime(), group("a"), group("b", "ben")
    times.of(a), times.of(b)
    for step in range(81):
        at = 50.0 + step / 10
        for n, one in enumerate((a, b)):
            ended = int((at - 50.0) / 0.03)
            times.meter(one, GPU, n, ended * 0.03, at, ended)
    assert times.used("group:a", GPU, 58.0) == pytest.approx(4.0, abs=0.06)
    assert times.used("group:b", GPU, 58.0) == pytest.approx(4.0, abs=0.06)
    assert times.stretch(a, GPU, 58.0) == 2.0


def test_kernels_that_are_longer_than_between_two_readings_count_for_when_they_ran() -> None:
    """Two groups are always busy side by side, and a third is busy for a third of the time."""
    times = GpuTime()
    groups = group("a"), group("b", "ben"), group("c", "cy")
    for one in groups:
        times.of(one)
    for step in range(81):
        passed = step / 10
        for n, one in enumerate(groups):
            length = 0.17 if n < 2 else 0.1
            ended = int(passed / (length if n < 2 else 0.3) + 1e-9)
            times.meter(one, GPU, n, ended * length, 50.0 + passed, ended)
    used = [times.used(f"group:{one.id}", GPU, 58.0) for one in groups]
    assert sum(used) == pytest.approx(8.0, abs=0.2)
    assert used[0] == pytest.approx(used[1], abs=0.2)


def test_the_gpu_time_of_a_user_outlives_the_kernel() -> None:
    times, a = GpuTime(), group("a", limit=0.5)
    times.meter(a, GPU, 1, 6.0, 50.0)
    times.forget(a)
    assert times.used("user:ada", GPU, 50.0) == pytest.approx(6.0)
    assert times.used("group:a", GPU, 50.0) == 0.0
    assert not times.active


# --- Entitlements ---------------------------------------------------------------------------------


def test_shares_of_team_user_and_group_apply() -> None:
    times, a = GpuTime(), group("a", limit=0.5)
    times.entitle("user:ada", Entitlement(request=0.25))
    times.entitle("team:t", Entitlement(limit=0.75), ["ada"])
    assert [c.whose for c in times.of(a)] == ["team:t", "user:ada", "group:a"]
    assert times.limit(a) == 0.5
    a.preferences = Preferences(limit=0.9)
    assert times.limit(a) == 0.75
    times.entitle("team:t", Entitlement())
    assert [c.whose for c in times.of(a)] == ["user:ada", "group:a"]


def test_a_user_is_in_the_team_that_was_stated_last() -> None:
    times, a = GpuTime(), group("a")
    times.entitle("team:s", Entitlement(weight=2), ["ada"])
    times.entitle("team:t", Entitlement(weight=3), ["ada"])
    times.entitle("team:s", Entitlement())
    assert times.of(a)[0].whose == "team:t"


def test_is_active_while_a_share_of_time_is_set() -> None:
    times, a = GpuTime(), group("a", memory=5 * GIB)

    def active(preferences: Preferences | None = None, **entitlement: float) -> bool:
        if preferences is not None:
            a.preferences = preferences
        times.entitle("user:ada", Entitlement(**entitlement))  # type: ignore[arg-type]
        times.of(a)
        return times.active

    assert not active(memory=GIB)
    assert active(Preferences(weight=2))
    assert not active(Preferences())
    assert active(limit=0.5)
    assert not active()


def test_memory_is_counted_over_all_that_a_user_or_team_has() -> None:
    times = GpuTime()
    gpu = Gpu(GPU, 0, "", 100 * GIB, 0, 0, 0.0, 1e10)
    a, b, c = group("a"), group("b"), group("c", "ben")
    for one in (a, b, c):
        gpu.shares[one.id] = one.shares[GPU] = Share(one, gpu, promised=10 * GIB)
    assert times.memory_room(a, gpu) is None
    times.entitle("user:ada", Entitlement(memory=30 * GIB))
    assert times.memory_room(a, gpu) == (10 * GIB, "user:ada")
    assert times.memory_room(c, gpu) is None
    times.entitle("team:t", Entitlement(memory=25 * GIB), ["ada", "ben"])
    assert times.memory_room(c, gpu) == (-5 * GIB, "team:t")
    assert times.memory_room(a, gpu) == (-5 * GIB, "team:t")


# --- Order ----------------------------------------------------------------------------------------


def test_with_one_user_and_no_shares_all_are_the_same() -> None:
    times, a, b = GpuTime(), group("a"), group("b")
    times.add(a, GPU, 5.0, 50.0)
    assert times.rank(a, [GPU], 50.0) == times.rank(b, [GPU], 50.0) == (0.0, 0.0, 0.0)
    assert times.last_served(a, [GPU]) == times.last_served(b, [GPU]) == 0.0


def test_of_several_users_who_had_least_comes_first() -> None:
    times = GpuTime()
    a, b, c = group("a"), group("b", "ben"), group("c", "cy")
    times.add(a, GPU, 5.0, 50.0)
    times.add(b, GPU, 1.0, 50.0)
    assert order(times, (a, b, c), 50.0) == ["c", "b", "a"]
    assert order(times, (group("a2"), c), 50.0) == ["c", "a2"], "all groups of a user are that user"


def test_of_users_who_had_the_same_whose_turn_is_longest_ago_comes_first() -> None:
    times = GpuTime()
    a, b, c = group("a"), group("b", "ben"), group("c", "cy")
    assert times.last_served(a, [GPU]) < 0 or times.several_users is False
    turns = [times.last_served(g, [GPU]) for g in (a, b, c)]
    assert times.last_served(a, [GPU]) < turns[1] < turns[2]
    times.add(a, GPU, 0.01, 50.0)
    times.add(b, GPU, 0.01, 40.0)
    assert times.last_served(c, [GPU]) < times.last_served(b, [GPU]) < times.last_served(a, [GPU])


def test_gpu_time_on_another_gpu_does_not_count_as_a_turn_on_this_gpu() -> None:
    """Otherwise, a notebook would wait behind all others for as long as its user computes elsewhere."""
    times = GpuTime()
    a, b = group("a"), group("b", "ben")
    times.add(a, "GPU-1", 5.0, 50.0)
    times.add(b, GPU, 0.01, 40.0)
    assert times.last_served(a, [GPU]) < times.last_served(b, [GPU])
    assert times.last_served(b, ["GPU-1"]) < times.last_served(a, ["GPU-1"])
    assert times.last_served(b, [GPU, "GPU-1"]) < times.last_served(a, [GPU, "GPU-1"])


def test_a_group_that_waited_for_ten_minutes_comes_first_also_without_entitlements() -> None:
    """It needs two GPUs, and another notebook of its user has all of one."""
    times = GpuTime()
    both, other = group("both"), group("b", "ben")
    both.wait, other.wait = Wait(both, 1, 1000.0), Wait(other, 2, 1600.0)
    times.add(group("a"), "GPU-1", 9.0, 1599.0)
    times.add(other, GPU, 1.0, 1599.0)
    assert times.rank(other, [GPU], 1599.0) < times.rank(both, [GPU, "GPU-1"], 1599.0)
    assert times.rank(both, [GPU, "GPU-1"], 1601.0) < times.rank(other, [GPU], 1601.0)


def test_spare_time_goes_by_weight() -> None:
    times = GpuTime()
    a, b = group("a"), group("b", "ben")
    times.entitle("user:ada", Entitlement(weight=3))
    times.add(a, GPU, 4.0, 50.0)
    times.add(b, GPU, 2.0, 50.0)
    assert order(times, (a, b), 50.0) == ["a", "b"]
    times.add(a, GPU, 3.0, 50.0)
    assert order(times, (a, b), 50.0) == ["b", "a"]


def test_a_user_below_the_request_comes_before_a_user_with_less_gpu_time() -> None:
    times = GpuTime()
    a, b = group("a"), group("b", "ben")
    times.entitle("user:ada", Entitlement(request=0.5))
    times.add(a, GPU, 4.0, 50.0)
    times.add(b, GPU, 1.0, 50.0)
    assert order(times, (a, b), 50.0) == ["a", "b"]
    times.add(a, GPU, 1.5, 50.0)
    assert order(times, (a, b), 50.0) == ["b", "a"]


def test_the_largest_deficit_comes_first() -> None:
    times = GpuTime()
    a, b = group("a"), group("b", "ben")
    times.entitle("user:ada", Entitlement(request=0.4))
    times.entitle("user:ben", Entitlement(request=0.4))
    times.add(a, GPU, 3.0, 50.0)
    times.add(b, GPU, 1.0, 50.0)
    assert order(times, (a, b), 50.0) == ["b", "a"]


def test_teams_come_before_users_and_users_before_groups() -> None:
    times = GpuTime()
    times.entitle("team:t", Entitlement(), ["ada", "ben"])
    a, b, c = group("a"), group("b", "ben"), group("c", "cy")
    times.add(a, GPU, 3.0, 50.0)
    times.add(c, GPU, 2.0, 50.0)
    # The team has had more than the user without a team, although one member had nothing.
    assert order(times, (a, b, c), 50.0) == ["c", "b", "a"]


def test_weights_of_a_users_own_groups_do_not_affect_other_users() -> None:
    times = GpuTime()
    greedy, plain, other = group("g", weight=1000), group("p"), group("o", "ben")
    times.add(plain, GPU, 1.0, 50.0)
    times.add(greedy, GPU, 1.0, 50.0)
    times.add(other, GPU, 1.0, 50.0)
    assert order(times, (plain, greedy, other), 50.0) == ["o", "g", "p"]


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.3, 0.6, 0.9]), min_size=2, max_size=5), st.data())
def test_no_user_starves_whatever_the_entitlements(
    requests: list[float], data: st.DataObject
) -> None:
    """Even if the requests exceed the GPU, each waiting group is served within two minutes."""
    times = GpuTime()
    groups = [group(f"g{n}", f"u{n}") for n in range(len(requests))]
    for one in groups:
        one.wait = Wait(one, 1, 50.0)
    for n, request in enumerate(requests):
        times.entitle(f"user:u{n}", Entitlement(request=request))
    lengths = data.draw(st.lists(st.sampled_from([0.2, 1.0]), min_size=1, max_size=5))
    now, served = 50.0, dict.fromkeys((g.id for g in groups), 50.0)
    for turn in range(2000):
        first = min(groups, key=lambda g: (times.rank(g, [GPU], now), times.last_served(g, [GPU])))
        length = lengths[turn % len(lengths)]
        now += length
        times.add(first, GPU, length, now)
        first.wait = Wait(first, 1, now)
        served[first.id] = now
        assert now - min(served.values()) <= 90.0


def test_ranks_change_at_a_limited_rate() -> None:
    times = GpuTime(refresh=0.25)
    a, b = group("a"), group("b", "ben")
    for one in (a, b):
        times.of(one)
    before = times.version
    for step in range(1000):
        times.add(a, GPU, 0.001, 50.0 + step / 1000)
    assert 1 <= times.version - before <= 4


def test_with_one_user_and_no_shares_ranks_never_change() -> None:
    times, a = GpuTime(), group("a")
    times.of(a)
    before = times.version
    times.add(a, GPU, 5.0, 50.0)
    times.add(group("b"), GPU, 5.0, 60.0)
    assert times.version == before


# --- Limits ---------------------------------------------------------------------------------------


def test_looking_up_a_limit_does_not_prolong_a_pause() -> None:
    """People may ask at any time, and a replay of what was recorded does not know when they did."""
    times, one = GpuTime(window=10.0), group("a", limit=0.5)
    times.add(one, GPU, 5.05, 50.0)
    assert times.limited_by(one, GPU, 50.0) == "group:a"
    # Below the limit, and not yet by as much as ends a pause.
    assert times.used("group:a", GPU, 55.02) == pytest.approx(4.98)
    assert times.throttled_until(one, GPU, 55.02) is None


def test_looking_up_past_use_changes_nothing() -> None:
    asked, other = GpuTime(), GpuTime()
    one = group("a")
    for times in (asked, other):
        times.add(one, GPU, 5.0, 50.0)
    for step in range(100):
        asked.had_less(one, group("b", "ben"), [GPU], 50.0 + step / 3)
    had = [times._over_minutes(times.of(one)[0], GPU, 90.0) for times in (asked, other)]
    assert had[0] == had[1]


@settings(max_examples=examples(25), deadline=None)
@given(
    limit=st.floats(0.05, 0.95),
    kernels=st.lists(st.floats(0.0005, 0.050), min_size=1, max_size=20),
    whose=st.sampled_from(["user", "group"]),
)
def test_a_limit_holds_within_two_percent(limit: float, kernels: list[float], whose: str) -> None:
    """The user always has work, in CUDA kernels of up to 50 ms, and is stopped only between them."""
    times = GpuTime()
    one = group("a", limit=limit if whose == "group" else 0.0)
    if whose == "user":
        times.entitle("user:ada", Entitlement(limit=limit))
    now, busy, turn = 100.0, 0.0, 0
    ran: list[tuple[float, float]] = []
    while now < 135.0:
        until = times.throttled_until(one, GPU, now)
        if until is not None:
            assert times.limited_by(one, GPU, now) == f"{whose}:{'ada' if whose == 'user' else 'a'}"
            now = until
            continue
        length = kernels[turn % len(kernels)]
        # A slow test tells nothing more: short kernels run a hundred at a time.
        length *= max(1, int(0.050 / length))
        turn += 1
        ran.append((now, now + length))
        now += length
        busy += length
        times.meter(one, GPU, 1, busy, now)
    for end in (115.0, 121.7, 130.0, 134.9):
        begin = end - 10
        had = sum(max(0.0, min(u, end) - max(s, begin)) for s, u in ran)
        assert had / 10 == pytest.approx(limit, abs=0.02)
