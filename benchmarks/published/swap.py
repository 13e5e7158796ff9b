# SPDX-License-Identifier: BSD-3-Clause
"""How fast device memory moves: out, back, and both at once, compared with a page-locked copy in the same run.

Sizes are fractions of the GPU: on an NVIDIA H200 (139 GiB) one notebook holds 24 GiB, and two that switch hold 90 GiB
each. The time of a move is the time that a user waits, which includes draining, copying, unmapping, mapping and the
scheduler's messages::

    gpushare bench swap --gib 24
    gpushare bench switch --gib 45
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

from ..harness.checkpoint import checkpoint_rates
from ..harness.figures import Figure, fraction_right, quartile_distance
from ..harness.machine import Machine, machine
from ..programs.distinct import DistinctHolder
from ..programs.holder import Holder, torch_can

GIB = 1 << 30
#: Fractions of the GPU: 24 GiB and 90 GiB of an H200's 139.8.
ONE, HALF = 24 / 139.8, 90 / 139.8
#: Room for the two notebooks' CUDA contexts, in bytes.
CONTEXTS = 2 * GIB
#: Bytes of one tensor.
TENSOR = 512 << 20
ROUNDS, SWITCHES = 5, 6
#: How many notebooks hold the same data, and the part of ``ONE`` that each of them holds.
ALIKE, ALIKE_PART = 10, 1 / 3
#: Bytes per second of the simulated GPU's copies.
SIMULATED = "2000000000"
#: What a newcomer holds: with ``ONE``, more than there is.
NEWCOMER = 0.93
#: How long the pool may be prepared before the first eviction is timed in that variant, seconds.
AHEAD = 20.0
#: Seconds after which an eviction has failed.
PATIENCE = 120.0
#: Goals for a first eviction, as parts of a page-locked copy: nothing was prepared, and it was seen coming.
UNPREPARED_GOAL, PREPARED_GOAL = 0.3, 0.7
#: Goals for later moves: of a page-locked copy in the same direction, and in both at once.
MOVE_GOAL, SWITCH_GOAL = 0.98, 0.93


def run(gib: float | None = None) -> Iterator[Figure]:
    """Measure one notebook's memory on its way out and back, and the driver's own checkpoint.

    Parameters
    ----------
    gib
        What the notebook holds (default: `ONE`).
    """
    with machine(whole=True, GPUSHARE_SIM_BANDWIDTH=SIMULATED) as here:
        torch = torch_can(here.driver.simulated)
        one = _round(_gpu(here)["total"] * ONE if gib is None else gib * GIB)
        limit = _limit(here, one)
        yield from _first(here, torch, one, limit)
        yield from _one(here, torch, one, limit)
        yield from _alike(here, _round(one * ALIKE_PART))
    yield from checkpoint_rates()


def switch(gib: float | None = None) -> Iterator[Figure]:
    """Measure switches between two notebooks that do not fit together.

    Parameters
    ----------
    gib
        What each of them holds; the GPU then has room for one of them (default: `HALF` of the whole GPU).
    """
    with machine(scheduler=False, whole=True, GPUSHARE_SIM_BANDWIDTH=SIMULATED) as here:
        flags = [] if gib is None else here.all_but(int(gib * GIB) + CONTEXTS)
        here.start_scheduler(*flags)
        total = _gpu(here)["total"]
        limit = _limit(here, _round(total * ONE))
        size = _round(total * HALF if gib is None else gib * GIB)
        yield from _switch(here, torch_can(here.driver.simulated), size, limit)


def _limit(here: Machine, size: int) -> dict[str, float]:
    """Bytes per second of page-locked copies, without us."""
    bare = Holder(here.bare_environ(), torch=False)
    try:
        found: dict[str, float] = bare.call("page_locked", size)
    finally:
        bare.close()
    return found


def _round(size: float) -> int:
    return int(size) // (4 << 20) * (4 << 20)


def _gpu(here: Machine) -> dict[str, Any]:
    status = here.control("status")["status"]
    assert isinstance(status, dict)
    found: dict[str, Any] = status["gpus"][0]
    return found


def _resident(here: Machine, name: str) -> int:
    gpus = here.group(name)["gpus"]
    assert isinstance(gpus, list)
    return int(gpus[0]["resident"])


def _held(here: Machine, name: str) -> int:
    gpus = here.group(name)["gpus"]
    assert isinstance(gpus, list)
    return int(gpus[0]["footprint"]) + int(gpus[0]["context"])


def _totals(here: Machine, name: str) -> tuple[int, int]:
    totals = here.group(name)["totals"]
    assert isinstance(totals, dict)
    return int(totals["evicted"]), int(totals["restored"])


def _evict(here: Machine, name: str) -> tuple[float, int]:
    """Move all of a group's memory out; seconds from the request to the end, and bytes."""
    evicted = _totals(here, name)[0]
    start = time.monotonic()
    here.control("evict", group=f"bench-{name}")
    # The status may be older than the order.
    while _resident(here, name) > 0 or _totals(here, name)[0] == evicted:
        if time.monotonic() > start + PATIENCE:
            raise RuntimeError(f"{name} was not evicted within {PATIENCE:.0f} s")
        time.sleep(0.001)
    taken = time.monotonic() - start
    return taken, _totals(here, name)[0] - evicted


def _page_locked(here: Machine) -> int:
    """Bytes of the pool that are page-locked ahead of need."""
    status = here.control("status")["status"]
    assert isinstance(status, dict)
    return int((status["host"].get("pool") or {}).get("page_locked", 0))


def _first(here: Machine, torch: bool, size: int, limit: dict[str, float]) -> Iterator[Figure]:
    """Time the first eviction of a client: by itself, and for a newcomer that was seen coming."""
    holder = Holder(here.client_environ("first"), torch=torch)
    holder.call("hold", size, min(TENSOR, size // 4), 1)
    prepared = min(1.0, _page_locked(here) / size)
    taken, moved = _evict(here, "first")
    what = f"{moved / GIB:.1f} GiB, no other notebook, {prepared:.0%} prepared"
    yield from _first_eviction(what, moved, taken, limit, UNPREPARED_GOAL)
    yield _equal("bytes equal after that", holder)
    holder.close()
    _until_gone(here)

    holder = Holder(here.client_environ("second"), torch=torch)
    holder.call("hold", size, min(TENSOR, size // 4), 1)
    holder.call("touch")
    other = Holder(here.client_environ("newcomer"), torch=False)
    reserved = _round(_gpu(here)["total"] * NEWCOMER)
    other.call("reserve", reserved)
    # What was reserved and never written is in no figure of the status.
    held = sum(_held(here, name) for name in ("second", "newcomer"))
    lack = held + reserved - _gpu(here)["total"]
    until = time.monotonic() + AHEAD
    while _page_locked(here) < lack and time.monotonic() < until:
        time.sleep(0.05)
    prepared = min(1.0, _page_locked(here) / lack)
    start, end = other.call("touch")
    moved = _totals(here, "second")[0]
    what = f"{moved / GIB:.1f} GiB, for a newcomer, {prepared:.0%} prepared"
    yield from _first_eviction(what, moved, end - start, limit, PREPARED_GOAL)
    other.close()
    yield _equal("bytes equal after that too", holder)
    holder.close()
    _until_gone(here)


def _first_eviction(
    what: str, moved: int, taken: float, limit: dict[str, float], goal: float
) -> Iterator[Figure]:
    metric, rate = f"first eviction, {what}", moved / taken
    yield Figure("swap", metric, rate / 1e9, "GB/s", limit["out"] / 1e9, 1, 0.0)
    share = f"{metric}, of a page-locked copy"
    yield Figure("swap", share, rate / limit["out"], "", None, 1, 0.0, goal, at_least=True)


def _equal(metric: str, holder: Holder) -> Figure:
    return fraction_right("swap", metric, float(holder.call("equal")))


def _until_gone(here: Machine) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        status = here.control("status")["status"]
        assert isinstance(status, dict)
        if not status["groups"] and status["gpus"][0]["pending_reclaim"] == 0:
            return
        time.sleep(0.05)


def _one(here: Machine, torch: bool, size: int, limit: dict[str, float]) -> Iterator[Figure]:
    """Time evictions and restores of one notebook, while no other program wants the GPU.

    Between two evictions, it changes every byte, or none.
    """
    holder = Holder(here.client_environ("one"), torch=torch)
    holder.call("hold", size, min(TENSOR, size // 4), 1)
    out: dict[str, list[float]] = {"all changed": [], "unchanged": []}
    back: list[float] = []
    for turn in range(2 * ROUNDS + 2):
        change = ("all changed", "unchanged")[turn % 2]
        if change == "all changed":
            holder.call("add")
        taken, _ = _evict(here, "one")
        start, end = holder.call("touch")
        if turn >= 2:  # the first two find pages and page-lock them
            out[change].append(taken)
            back.append(end - start)
    for metric, times, bare in (
        ("evict, all changed", out["all changed"], limit["out"]),
        ("evict, unchanged", out["unchanged"], limit["out"]),
        ("restore", back, limit["back"]),
    ):
        rates = [size / seconds / 1e9 for seconds in times]
        yield _of(f"{metric}, {size / GIB:.1f} GiB", rates, "GB/s", bare / 1e9, MOVE_GOAL)
        yield _of(f"{metric}, seconds", times, "s", size / bare)
    yield _equal("bytes equal", holder)
    holder.close()
    _until_gone(here)


def _of(
    metric: str, values: list[float], unit: str, limit: float, least: float | None = None
) -> Figure:
    """Return a median. The goal, if there is one, is a part of the limit."""
    return Figure(
        "swap",
        metric,
        statistics.median(values),
        unit,
        limit,
        len(values),
        quartile_distance(values),
        None if least is None else least * limit,
        at_least=least is not None,
    )


def _alike(here: Machine, size: int) -> Iterator[Figure]:
    """Measure the host memory of evicted notebooks of one user that hold the same data, none of it twice."""
    holders = [DistinctHolder(here.client_environ(f"alike-{i}"), torch=False) for i in range(ALIKE)]
    for i, holder in enumerate(holders):
        holder.call("hold", size, min(TENSOR, size // 4), 1)
        _evict(here, f"alike-{i}")
    status = here.control("status")["status"]
    assert isinstance(status, dict)
    used = status["host"]["pool"]["in_use"]
    metric = f"host memory of {ALIKE} notebooks with the same {size / GIB:.1f} GiB"
    yield Figure("swap", metric, used / GIB, "GiB", size / GIB, 1, 0.0)
    equal = [float(holder.call("equal")) for holder in holders]
    yield fraction_right("swap", f"bytes equal in all {ALIKE}", statistics.mean(equal), ALIKE)
    for holder in holders:
        holder.close()
    _until_gone(here)


def _switch(here: Machine, torch: bool, size: int, limit: dict[str, float]) -> Iterator[Figure]:
    """Time switches between two notebooks that do not fit together: one's memory leaves while the other's arrives."""
    names = ("left", "right")
    holders = {name: Holder(here.client_environ(name), torch=torch) for name in names}
    for seed, name in enumerate(names):
        holders[name].call("hold", size, min(TENSOR, size // 4), 100 * (seed + 1))
        holders[name].call("touch")
    for change in ("all changed", "unchanged"):
        rates: list[float] = []
        seconds: list[float] = []
        moved: list[float] = []
        for turn in range(SWITCHES + 2):
            name, other = names[turn % 2], names[1 - turn % 2]
            if change == "all changed":
                holders[other].call("add")
            before = [sum(_totals(here, each)) for each in names]
            start, end = holders[name].call("touch")
            after = [sum(_totals(here, each)) for each in names]
            if turn >= 2:  # the first two find pages and page-lock them
                rates.append((sum(after) - sum(before)) / (end - start) / 1e9)
                seconds.append(end - start)
                moved.append((sum(after) - sum(before)) / GIB)
        what = f"switch of two, {size / GIB:.1f} GiB each, {change}"
        yield _of(f"{what}, both ways together", rates, "GB/s", limit["both"] / 1e9, SWITCH_GOAL)
        arriving = statistics.median(moved) / 2 * GIB
        yield _of(
            f"{what}, seconds ({statistics.median(moved):.1f} GiB moved)",
            seconds,
            "s",
            arriving / limit["back"],
        )
    for name in names:
        yield _equal(f"bytes equal, {name}", holders[name])
    for holder in holders.values():
        holder.close()
    _until_gone(here)
