# SPDX-License-Identifier: BSD-3-Clause
"""Which GPU a kernel uses first."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.placement import PATIENCE, Outlook, Placement, rank
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY

GIB = 1 << 30
GPUS = tuple(f"GPU-{n:08x}-0000-0000-0000-000000000000" for n in range(3))

outlooks = st.lists(
    st.builds(
        Outlook,
        gpu=st.uuids().map(str),
        room=st.integers(0, 100),
        spare=st.integers(-50, 100),
        wait=st.floats(0, 1e4),
        own=st.integers(0, 3),
        all=st.integers(0, 5),
        draining=st.booleans(),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda outlook: outlook.gpu,
)


@given(outlooks, st.integers(0, 100))
def test_an_order_has_each_gpu_once_and_the_best_first(found: list[Outlook], need: int) -> None:
    order = rank(found, need)
    assert sorted(order) == sorted(outlook.gpu for outlook in found)
    assert order == rank(found, need)
    by_name = {outlook.gpu: outlook for outlook in found}
    first = by_name[order[0]]
    if any(not outlook.draining for outlook in found):
        assert not first.draining
    usable = [o for o in found if o.draining == first.draining and o.room > 0]
    if any(outlook.room >= need for outlook in usable):
        assert first.room >= need
    if any(outlook.room >= need and outlook.spare >= need for outlook in usable):
        assert first.spare >= need


@given(outlooks, st.integers(0, 100), st.data())
def test_a_gpu_that_gets_worse_does_not_rank_higher(
    found: list[Outlook], need: int, data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(found) - 1))
    before = rank(found, need).index(found[number].gpu)
    worse = replace(
        found[number],
        wait=found[number].wait + data.draw(st.floats(0, 1e4)),
        own=found[number].own + data.draw(st.integers(0, 2)),
        all=found[number].all + data.draw(st.integers(0, 2)),
        spare=found[number].spare - data.draw(st.integers(0, 50)),
    )
    after = rank([*found[:number], worse, *found[number + 1 :]], need).index(worse.gpu)
    assert after >= before


class Node:
    """A core with three GPUs, and placement on it."""

    def __init__(self, *totals: int) -> None:
        self.core = Core(REGISTRY, Rules(reserve=0))
        self.now = 100.0
        self.clients = 0
        for index, (gpu, total) in enumerate(zip(GPUS, totals or (100,) * 3, strict=True)):
            self.do(ev.Device(gpu, total * GIB, 0, "Test", index))
        self.do(ev.HostMemory(1000 * GIB))
        self.placement = Placement(self.core)

    def do(self, event: ev.Event) -> None:
        for decision in self.core.handle(event, self.now):
            if isinstance(decision, ev.ReadDevice):
                gpu = self.core.gpus[decision.gpu]
                self.do(ev.Device(gpu.uuid, gpu.total, gpu.used, gpu.name, gpu.index))

    def place(self, group: str, user: str = "ada", pid: int = 0, **more: object) -> tuple[str, ...]:
        gpus = more.pop("gpus", GPUS)
        order, _ = self.placement.place(
            group, user, gpus, pid=pid or hash(group), now=self.now, **more
        )  # type: ignore[arg-type]
        return order

    def attach(self, group: str, gib: int = 0, user: str = "ada", pid: int = 0) -> int:
        """A process of a group attaches, on the first GPU of its order."""
        first = self.place(group, user, pid or hash(group))[0]
        self.clients += 1
        usages = (ev.Usage(first, gib * GIB, 0, 0, GIB),) if gib else ()
        self.do(
            ev.Attach(
                self.clients, pid or hash(group), group, group, "swap", usages=usages, user=user
            )
        )
        self.placement.attached(group, pid or hash(group))
        return self.clients

    def leave(self, client: int) -> None:
        group = self.core.clients[client].group
        if len(group.clients) == 1:
            self.placement.leaves(group, self.now)
        self.do(ev.Detach(client))


def test_kernels_without_memory_spread_over_the_gpus() -> None:
    node = Node()
    assert [node.place(group)[0] for group in "abc"] == list(GPUS)
    assert node.place("d")[0] == GPUS[0]


def test_the_kernels_of_each_user_spread_over_the_gpus() -> None:
    node = Node()
    for group, user in (("a", "ada"), ("b", "ben"), ("c", "ben")):
        node.attach(group, 1, user)
    first = {g.id: next(iter(g.shares)) for g in node.core.groups.values()}
    assert first == {"a": GPUS[0], "b": GPUS[1], "c": GPUS[2]}
    assert node.place("d", "ben")[0] == GPUS[0]
    assert node.place("e", "ada")[0] != GPUS[0]


def test_a_known_kernel_goes_where_it_fits() -> None:
    node = Node(40, 100, 80)
    client = node.attach("large", 0)
    usage = ev.Usage(GPUS[1], 70 * GIB, 0, 0, GIB)
    node.do(ev.UsageChanged(client, usage))
    node.leave(client)
    assert node.placement.need("large") == 70 * GIB
    node.attach("other", 50)
    assert next(iter(node.core.groups["other"].shares)) == GPUS[1]
    # One GPU could never hold it, one has no room beside the other.
    assert node.place("large") == (GPUS[2], GPUS[1], GPUS[0])
    # What people allow it may be less than it had.
    node.do(ev.Adjust("large", memory=30 * GIB, later=True))
    assert node.placement.need("large") == 30 * GIB


def test_a_drained_gpu_comes_last() -> None:
    node = Node()
    node.core.gpus[GPUS[0]].drained = True
    assert node.place("a") == (GPUS[1], GPUS[2], GPUS[0])


def test_a_kernel_that_would_have_to_wait_goes_elsewhere() -> None:
    node = Node()
    busy = node.attach("busy", 90)
    waits = node.attach("waits", 0)
    node.do(ev.UsageChanged(waits, ev.Usage(GPUS[0], 90 * GIB, 0, 0, GIB)))
    node.do(ev.Request(busy, 1))
    node.do(ev.Request(waits, 1))
    assert node.place("new", "ben")[-1] == GPUS[0]


def test_an_order_stays_while_the_group_has_a_process() -> None:
    node = Node()
    node.attach("other", 1)
    client = node.attach("a", 1, pid=7)
    order = node.place("a", pid=7)
    full = node.attach("full", 0)
    node.do(ev.UsageChanged(full, ev.Usage(order[0], 90 * GIB, 0, 0, GIB)))
    assert node.place("a", pid=8) == order
    assert node.place("a", pid=9, gpus=GPUS[:2]) == tuple(g for g in order if g in GPUS[:2])
    # A process that has asked and is on its way keeps it, too.
    node.leave(client)
    assert node.place("a", pid=10) == order
    node.now += PATIENCE + 1
    assert node.place("a", pid=11) != order


def test_a_restarted_kernel_is_placed_again() -> None:
    node = Node()
    client = node.attach("a", 1, pid=7)
    assert node.place("a", pid=7)[0] == GPUS[0]
    node.leave(client)
    node.attach("b", 50)
    assert node.place("a", pid=8)[0] == GPUS[1]


@pytest.mark.parametrize("keep", ["it", "ask"])
def test_a_stated_order_is_used_for_the_group(keep: str) -> None:
    node = Node()
    node.attach("other", 1)
    stated = (GPUS[0], GPUS[2], GPUS[1])
    assert node.place("a", pid=7, gpus=stated, keep=keep) == stated
    assert (node.place("a", pid=8) == stated) == (keep == "it")
    # Only where it has none.
    assert node.place("a", pid=9, keep=keep) == node.place("a", pid=8)


def test_unknown_gpus_come_last() -> None:
    node = Node()
    strange = "GPU-ffffffff-0000-0000-0000-000000000000"
    assert node.place("a", gpus=(strange, *GPUS)) == (*GPUS, strange)
