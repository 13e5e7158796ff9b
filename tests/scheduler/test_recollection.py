# SPDX-License-Identifier: BSD-3-Clause
"""What a core has learnt goes to the core of the next scheduler, which then estimates as the first one would."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.recollection import Recollection
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from tests.support.properties import examples

GIB = 1 << 30
GPUS = "GPU-0", "GPU-1"
USERS = {"a": "ann", "b": "ann", "c": "bob"}
MANAGED = "c"


class Node:
    """A core, and clients that use it one after the other, one for each group."""

    def __init__(self, now: float = 100.0) -> None:
        self.core, self.now = Core(REGISTRY, Rules()), now
        for index, gpu in enumerate(GPUS):
            self.feed(ev.Device(gpu, 80 * GIB, 0, "Test GPU", index))
        self.feed(ev.HostMemory(100 * GIB))
        self.busy = dict.fromkeys(USERS, 0.0)

    def feed(self, event: ev.Event) -> list[ev.Decision]:
        return self.core.handle(event, self.now)

    def attach(self) -> None:
        for number, (group, user) in enumerate(USERS.items(), 1):
            usages = tuple(ev.Usage(gpu, GIB, GIB, 0, 256 << 20) for gpu in GPUS)
            backend: ev.Backend = "managed" if group == MANAGED else "swap"
            self.feed(ev.Attach(number, number, group, group, backend, usages=usages, user=user))

    def attach_again(self, group: str) -> None:
        usages = tuple(ev.Usage(gpu, GIB, GIB, 0, 256 << 20) for gpu in GPUS)
        self.feed(ev.Attach(9, 9, group, group, "swap", usages=usages, user=USERS[group]))

    def work(self, group: str, kind: str, seconds: float) -> None:
        """Have a group do something that lasts."""
        number = list(USERS).index(group) + 1
        if kind == "hint":
            self.feed(ev.Hint(group, "typing"))
            self.now += seconds
            return
        if kind == "pause":
            self.now += seconds
            self.feed(ev.Tick())
            return
        if kind == "move":
            usage = ev.Usage(GPUS[0], GIB, GIB, 0, 256 << 20)
            self.feed(ev.Restored(number, 0, usage, 2 * GIB, 2 * GIB, seconds, "done"))
            return
        self.feed(ev.Cell(group, "begin", "m", self.now, False, kind == "agent"))
        self.feed(ev.Request(number, 1))
        lease = self.core.groups[group].lease
        self.now += seconds
        self.busy[group] += seconds
        self.feed(ev.Meter(number, GPUS[0], self.busy[group], 10, self.now))
        self.feed(ev.Burst(number, "end", "cell", self.now))
        self.feed(ev.Cell(group, "end", "m", self.now, False, None))
        if lease is not None and self.core.groups[group].lease is not None:
            self.feed(ev.Released(number, lease, "idle"))

    def estimates(self) -> dict[str, Any]:
        """Return what decisions depend on, apart from leases and memory."""
        core, found = self.core, {}
        for group in core.groups.values():
            found[group.id] = (
                [core.view.expected(group)],
                [group.burst.lengths.expected(so_far) for so_far in (0.0, 0.1, 3.0)],
                [group.absences.ends_within(so_far, 60.0, 0.05) for so_far in (0.0, 5.0)],
                group.activity_class,
                core.times.rank(group, GPUS, self.now),
                [core.times.share(f"user:{group.user}", gpu, self.now) for gpu in GPUS],
                [core.times.rate(group, gpu, self.now) for gpu in GPUS],
                [core.times.busy_total(group, gpu, self.now) for gpu in GPUS],
                core.times.lately(group, GPUS, self.now),
                core.costs.wake_estimate(group),
                group.totals,
            )
        for gpu in core.gpus.values():
            found[gpu.uuid] = gpu.bandwidth, gpu.context, gpu.free
        for one, group in (("a", core.groups["a"]), ("c", core.groups["c"])):
            found[f"less {one}"] = core.times.had_less(group, core.groups["b"], GPUS, self.now)
        return found


def handed_over(learnt: ev.Learnt) -> ev.Learnt:
    return msgspec.json.decode(msgspec.json.encode(learnt), type=ev.Learnt)


steps = st.tuples(
    st.sampled_from(list(USERS)),
    st.sampled_from(["work", "work", "agent", "hint", "pause", "move"]),
    st.sampled_from([0.01, 0.3, 2.5, 70.0]),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(steps, max_size=30))
def test_the_next_core_estimates_as_the_last_one_would(taken: list[tuple[str, str, float]]) -> None:
    before = Node()
    before.attach()
    for step in taken:
        before.work(*step)
    before.feed(ev.Tick())
    after = Node(before.now)
    after.feed(ev.Recall(handed_over(before.core.learnt())))
    after.attach()
    for gpu in after.core.gpus.values():
        assert gpu.free == before.core.gpus[gpu.uuid].free
    found, expected = after.estimates(), before.estimates()
    for name, its in expected.items():
        assert repr(found[name]) == repr(its)
    assert after.core.learnt().groups == before.core.learnt().groups


def test_a_charge_that_is_corrected_after_a_group_has_left_can_be_handed_over() -> None:
    node = Node()
    node.attach()
    for group, number in (("a", 1), ("c", 3)):
        node.feed(ev.Cell(group, "begin", "m", node.now, False, False))
        node.feed(ev.Request(number, 1))
    node.now += 5.0
    node.feed(ev.Meter(1, GPUS[0], 5.0, 10, node.now))
    node.feed(ev.Detach(1))
    # Both were busy at once, so each is charged a half.
    node.feed(ev.Meter(3, GPUS[0], 5.0, 10, node.now))
    node.attach_again("a")
    window = node.core.times.tables.windows.get(("group:a", GPUS[0]))
    assert window is not None
    assert min(window.buckets) < 0
    assert handed_over(node.core.learnt()).groups["a"].times[GPUS[0]].window is None


def test_preferences_of_groups_with_clients_are_not_handed_over() -> None:
    node = Node()
    node.attach()
    for group in ("a", "absent"):
        node.feed(ev.Adjust(group, frozen=True, later=True))
    assert node.core.learnt().preferences.keys() == {"absent"}


def some(core: Core) -> ev.Learnt:
    return replace(
        core.learnt(),
        groups={"a": ev.LearntGroup(bursts=(5.0, 5.0))},
        gpus={GPUS[0]: ev.LearntGpu(bandwidth=7.0, residue=1 << 20, residues=(1 << 20,))},
    )


def test_a_group_that_returns_too_late_is_new() -> None:
    for late, expected in ((0.0, 5.0), (Recollection.patience, 1.0)):
        node = Node()
        node.feed(ev.Recall(some(node.core)))
        node.now += late
        node.attach()
        assert node.core.groups["a"].burst.lengths.expected(0.0) == pytest.approx(expected)


def test_a_group_that_has_not_returned_is_handed_over_again() -> None:
    node = Node()
    node.feed(ev.Recall(some(node.core)))
    assert node.core.learnt().groups == some(node.core).groups
    node.now += Recollection.patience
    node.feed(ev.Tick())
    assert node.core.learnt().groups == {}


def test_a_core_that_serves_clients_or_whose_clock_began_later_recalls_nothing() -> None:
    node = Node()
    learnt = some(node.core)
    node.attach()
    node.feed(ev.Recall(learnt))
    assert node.core.gpus[GPUS[0]].bandwidth != 7.0
    node = Node()
    node.feed(ev.Recall(replace(learnt, at=node.now + 1)))
    assert node.core.gpus[GPUS[0]].bandwidth != 7.0


def test_what_lasts_beyond_a_restart_of_the_machine_has_no_times() -> None:
    node = Node()
    node.attach()
    node.work("a", "work", 2.5)
    node.feed(ev.Adjust("x", keep=True, later=True))
    lasting = node.core.learnt().lasting()
    assert (lasting.groups, lasting.times, lasting.served, lasting.came) == ({}, {}, {}, {})
    after = Node(1.0)
    after.feed(ev.Recall(lasting))
    assert after.core.preferences_of("x").keep


def test_windows_of_another_length_are_dropped() -> None:
    node = Node()
    node.attach()
    node.work("a", "work", 2.5)
    learnt = node.core.learnt()
    after = Node(node.now)
    after.feed(ev.Recall(replace(learnt, window=2 * learnt.window)))
    after.attach()
    group = after.core.groups["a"]
    assert after.core.times.share("user:ann", GPUS[0], after.now) == 0.0
    assert group.burst.lengths.learnt() == learnt.groups["a"].bursts


def test_at_most_so_many_groups_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recollection, "most", 2)
    node = Node()
    node.attach()
    assert set(node.core.learnt().groups) == {"a", "b"}
