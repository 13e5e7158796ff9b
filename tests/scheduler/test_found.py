# SPDX-License-Identifier: BSD-3-Clause
"""Examples that the property tests found, reduced to a few events each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views.estimates import Forecast
from jupyter_gpushare.scheduler.views.explain import explain
from jupyter_gpushare.scheduler.views.status import status
from tests.scheduler.script import Chosen, begin

MIB = 1 << 20
GPU, OTHER_GPU = "GPU-0", "GPU-1"

Timed = tuple[ev.Event, float]


def device(used: int) -> ev.Device:
    return ev.Device(GPU, 1000 * MIB, used * MIB, "Test GPU", 0)


def usage(promised: int, resident: int, unevictable: int = 0) -> ev.Usage:
    return ev.Usage(
        GPU, promised * MIB, resident * MIB, unevictable * MIB, host=(promised - resident) * MIB
    )


def attach(number: int, group: str, user: str, *usages: ev.Usage, lease: int = 0) -> ev.Attach:
    return ev.Attach(
        number, 100 + number, group, group, "swap", usages=usages, user=user,
        reattach=lease > 0, leased=lease > 0, busy=lease > 0, lease=lease,
    )  # fmt: skip


def decide(
    events: list[Timed],
    look: Callable[[Core, float], object] = lambda core, now: None,
    **settings: Any,
) -> tuple[Core, list[list[ev.Decision]]]:
    """Return a core after these events, and what it decided."""
    core = Core(
        REGISTRY, Rules(**{"quantum": 0.5, "anti_thrash": "off", "bandwidth": 1e9, **settings})
    )
    decisions = []
    for event, now in events:
        decisions.append(core.handle(event, now))
        look(core, now)
    return core, decisions


# --- Reading the core's state changes nothing -----------------------------------------------------


def look(core: Core, now: float) -> None:
    """Ask for all that people may ask for."""
    status(core, now, None, Forecast().estimates(core, now))
    for group in core.groups.values():
        explain(core, now, group.id)
        core.times.of(group)


def test_a_status_after_a_new_entitlement_does_not_change_the_order() -> None:
    """Entitlements were computed at the first query, which counted as a change of them."""
    at = 1000.5
    events: list[Timed] = [
        (device(976), at),
        (ev.HostMemory(4000 * MIB), at),
        (attach(4, "d", "cy", usage(137, 137), lease=4), at),
        (attach(5, "a", "ada", usage(424, 376)), at),
        (attach(6, "b", "ada", usage(264, 264), lease=2), at),
        (ev.Entitle("team:all", ev.Entitlement(host=600 * MIB), ("ada", "ben", "cy")), at),
        (attach(7, "a", "ada", usage(0, 0)), at),
        (ev.Request(5, 0), at),
        (ev.Evicted(5, 1, usage(424, 350), 26 * MIB, 26 * MIB, 0.026, "done"), at),
        (ev.Grow(6, 10, usage(282, 264), 286 * MIB), at),
        (ev.Grow(7, 13, usage(0, 0, unevictable=137), 0), at),
        (device(976), at + 0.5),
    ]
    assert decide(events, look)[1] == decide(events)[1]


# --- What the core missed --------------------------------------------------------------------------


def other(used: int) -> ev.Device:
    return ev.Device(OTHER_GPU, 1000 * MIB, used * MIB, "Test GPU", 1)


def on_other(promised: int, unevictable: int = 0) -> ev.Usage:
    return ev.Usage(OTHER_GPU, promised * MIB, 0, unevictable * MIB, host=promised * MIB)


def test_a_quota_also_limits_admissions_of_the_same_event() -> None:
    """The lease was held on no GPU before its first memory there was admitted."""
    core, decisions = decide(
        [
            (device(300), 1000.0),
            (other(80), 1000.0),
            (attach(3, "a", "ada", usage(100, 100), lease=1), 1000.0),
            (attach(6, "c", "ben", on_other(0), lease=2), 1000.0),
            (ev.Entitle("team:all", ev.Entitlement(gpus=1), ("ada", "ben")), 1000.0),
            (ev.Grow(6, 9, on_other(0, unevictable=128), 0), 1000.0),
        ]
    )
    assert ev.Revoke(6, 2) in decisions[-1]
    assert core.groups["c"].yielding


def test_waiting_groups_are_served_once_a_silent_group_is_revoked() -> None:
    """It had not answered another order for too long, so it counted as not to be had at once, and no timer ran."""
    core, _ = decide(
        [
            (device(90), 1000.0),
            (other(90), 1000.0),
            (attach(2, "b", "ada", usage(0, 0)), 1000.0),
            (attach(3, "c", "ben", usage(0, 0)), 1000.0),
            (attach(4, "d", "cy", usage(0, 0)), 1000.0),
            (device(90), 1000.0),
            (ev.Request(3, 6), 1000.0),
            (ev.UsageChanged(2, usage(28, 28)), 1040.5),
            (device(118), 1040.5),
            (attach(5, "d", "cy", on_other(0)), 1041.0),
            (other(90), 1041.0),
            (ev.Request(2, 15), 1041.0),
            (ev.Request(5, 17), 1041.0),
            (ev.Release("b", evict=True), 1041.04),
            (ev.Adjust("b", exclusive=True), 1041.04),
            (ev.Cell("b", "begin", "4", 1041.04, from_kernel=True), 1041.04),
        ],
        anti_thrash="on",
        policy="fcfs",
        revoke_deadline=20.0,
        exclusive_limit=80.0,
    )
    now, silent, waiting = 1041.04, core.groups["b"], core.groups["d"]
    while not silent.yielding:
        due = core.deadline()
        assert due is not None
        now = max(now, due)
        for decision in core.handle(ev.Tick(), now):
            if isinstance(decision, ev.ReadDevice):
                core.handle(device(118) if decision.gpu == GPU else other(90), now)
    assert silent.overdue
    assert waiting.lease is None
    assert core.deadline() == now, "no timer is set"
    core.handle(ev.Tick(), now)
    assert waiting.lease is not None


def test_oversubscription_does_not_use_memory_of_a_group_that_is_silent_on_another_gpu() -> None:
    """They need no more than what it leaves, so they are served beside it."""
    over = ev.Attach(
        8, 108, "d", "d", "swap", usages=(usage(251, 0),), user="cy", oversubscribe=True
    )
    core, _ = decide(
        [
            (device(790), 1000.0),
            (other(80), 1000.0),
            (attach(1, "a", "ada", usage(713, 713)), 1000.0),
            (attach(11, "a", "ada", on_other(0), lease=1), 1000.0),
            (over, 1000.0),
            (device(790), 1000.0),
            (ev.Release("a"), 1000.0),
            (ev.Tick(), 1100.0),
        ]
    )
    assert core.groups["a"].overdue
    share = core.groups["d"].shares[GPU]
    assert share.gpu.lost == 0
    assert share.goal == share.gpu.free


def checkpointing() -> Core:
    """Return a core in which b, whose context takes 200 MiB, is being checkpointed; others use 28 MiB."""
    context = ev.Usage(GPU, 0, 0, context=200 * MIB)
    core, _ = decide(
        [
            (device(228), 1000.0),
            (ev.HostMemory(4000 * MIB), 1000.0),
            (ev.Hibernatable(True), 1000.0),
            (attach(1, "b", "ada", context), 1000.0),
            (device(228), 1000.0),
            (ev.HibernateNow("b"), 1001.0),
            (ev.Parked(1, 1, "done", context), 1001.0),
        ]
    )
    assert core.clients[1].stage == "checkpointing"
    assert core.gpus[GPU].foreign == 28 * MIB
    return core


def test_a_possibly_ended_context_does_not_hide_foreign_use() -> None:
    """Its room counted twice: for the context, and for another group while the context's fate was unknown."""
    core = checkpointing()
    core.handle(device(28), 1001.2)
    core.handle(ev.Checkpointed(1, False, "stuck", "stuck", 0.5, 0), 1001.5)
    core.handle(device(28), 1001.5)
    assert core.gpus[GPU].foreign == 28 * MIB
    core.handle(ev.Woken(1, True, "", "", 0.5), 1002.0)
    core.handle(device(228), 1002.0)
    assert core.gpus[GPU].foreign == 28 * MIB
    assert core.gpus[GPU].unsettled == 0


def test_a_measurement_of_a_possibly_ended_context_is_ignored() -> None:
    core = checkpointing()
    core.handle(ev.Measured(1, GPU, 0), 1001.2)
    core.handle(ev.Checkpointed(1, False, "failed", "failed", 0.5, 0), 1001.5)
    assert core.gpus[GPU].context == 200 * MIB
    assert core.gpus[GPU].unsettled == 0


def test_a_context_is_restored_where_its_measured_size_fits() -> None:
    """It states twice as much, which the GPU has no room for any more, so it waited for ever."""
    needs, alike = (ev.Usage(GPU, 0, 0, context=size * MIB) for size in (200, 100))
    _, decisions = decide(
        [
            (device(50), 1000.0),
            (ev.HostMemory(4000 * MIB), 1000.0),
            (ev.Hibernatable(True), 1000.0),
            (attach(2, "a", "ada", alike), 1000.0),
            (ev.Measured(2, GPU, 50 * MIB), 1000.0),
            (device(150), 1000.0),
            (attach(1, "b", "ada", needs), 1000.0),
            (device(150), 1000.0),
            (ev.HibernateNow("b"), 1001.0),
            (ev.Parked(1, 1, "done", needs), 1001.0),
            (ev.Checkpointed(1, True, "", "", 0.5, 100 * MIB), 1001.5),
            (device(830), 1001.5),
            (ev.Wake(1, 2, "call", needs), 1001.6),
            (device(830), 1001.6),
        ]
    )
    assert [d.needs for said in decisions for d in said if isinstance(d, ev.Wakeup)] == [100 * MIB]


def test_a_context_counts_in_full_although_memory_left_since_the_last_reading() -> None:
    """The first reading after its begin shows both; what had left seemed to be what the context does not take."""
    core, decisions = decide(
        [
            (device(900), 1000.0),
            (ev.HostMemory(4000 * MIB), 1000.0),
            (attach(1, "a", "ada", usage(500, 500)), 1000.0),
            (attach(2, "b", "ada", usage(0, 0)), 1000.0),
            (attach(3, "c", "ada", usage(400, 400)), 1000.0),
            (device(900), 1000.0),
            (ev.Grow(2, 5, ev.Usage(GPU, 0, 0, context=200 * MIB), 0), 1001.0),
            (device(900), 1001.0),
        ]
    )
    (order,) = [d for d in decisions[-1] if isinstance(d, ev.Evict)]
    left = 900 - order.bytes // MIB
    moved = ev.Evicted(
        order.client, order.serial, usage(500, left - 400), order.bytes, order.bytes, 0.1, "done"
    )
    assert any(isinstance(d, ev.Grown) for d in core.handle(moved, 1001.0005))
    core.handle(ev.UsageChanged(2, ev.Usage(GPU, 0, 0, context=200 * MIB)), 1001.0005)
    core.handle(device(left + 200), 1001.0005)
    assert core.gpus[GPU].context == 200 * MIB
    assert core.gpus[GPU].foreign == 0


# --- In the world of the property tests -----------------------------------------------------------


def test_a_context_smaller_than_stated_wakes_where_it_fits() -> None:
    script = begin([1], context=100)
    script.contexts_are_measured(GPU)
    script.all_processes_go_idle(told=False, outcomes=[], calling=[])
    script.settle()
    process = script.processes[1]
    while not process.parked:
        script.settle()
    script.foreign[GPU] = script.room(GPU) - 90 * MIB
    script.submit_from(process)
    script.settle()
    assert script.core.clients[1].stage == "awake"
    script.teardown()


def test_a_request_repeated_during_evictions_is_sent_the_room_again() -> None:
    """Its second request crossed the grant."""
    script = begin([500, 640], host=1000, hibernates=False)
    first, second = script.processes.values()
    script.send_next(second)
    script.advance(script.now + 1.0)
    while not second.inbox:
        script.receive_next(first)
        while first.outbox:
            script.send_next(first)
    granted = [d for d in second.inbox if isinstance(d, ev.Grant | ev.Room)]
    assert [type(d) for d in granted] == [ev.Grant, ev.Room]
    second.inbox.clear()
    second.inbox.extend(granted)
    script.feed(ev.Request(second.number, 99))
    assert list(second.inbox) == granted * 2
    script.settle()
    assert second.busy
    script.teardown()


def test_an_interactive_group_soon_releases_for_a_group_below_its_request() -> None:
    """Before the move of its memory has paid off."""
    script = begin([600, 0, 600], quantum="auto", hibernates=False)
    script.entitle("team:lab", {"request": 0.5})
    script.settle()
    holder, _, waiting = script.processes.values()
    assert script.core.groups[holder.group].activity_class == "interactive"
    assert script.core.residency.residency(script.core.groups[holder.group]) > 5.0
    script.advance(script.now + 2.1)
    script.settle()
    assert waiting.lease is not None
    script.teardown()


def test_host_memory_is_reckoned_with_measured_contexts() -> None:
    """More is admitted where contexts were measured to take less than they state."""
    script = begin([767, 0], context=200, host=400)
    script.contexts_are_measured(GPU)
    process = script.join("c", (GPU,))
    script.ask(process, GPU, 156 * MIB, 0, 0)
    script.settle()
    assert process.memory[GPU].promised >= 156 * MIB
    script.submit_from(process)
    script.all_processes_are_served()
    assert script.served[process.number]
    script.teardown()


def test_a_whole_cell_is_not_interrupted_for_a_group_that_waits_for_kept_memory() -> None:
    """What people keep may be had before the cell's time is over, its lease may not."""
    whole = {"exclusive": True}
    script = begin([50, 50, 500], context=200, dearer=True, preferences=[whole, whole])
    for group in "ab":
        script.adjust_group(group, {"keep": True})
    first, second, waiting = script.processes.values()
    since = script.now
    while waiting.lease is None:
        script.settle()
        assert first.lease is not None or script.now >= since + script.core.rules.exclusive_limit
        script.advance(script.now + 1.0)
    assert first.parked or second.parked
    script.teardown()


def test_a_group_blocked_by_a_silent_groups_quota_delays_no_other_of_its_team() -> None:
    """It needs another GPU than the silent one has, so its wait reserved that for as long as that one lived."""
    core, _ = decide(
        [
            (device(161), 1000.0),
            (other(0), 1000.0),
            (ev.Entitle("team:all", ev.Entitlement(gpus=1), ("ada", "ben")), 1000.0),
            (attach(1, "a", "ada", usage(161, 161), lease=1), 1000.0),
            (attach(2, "b", "ada", on_other(161)), 1000.0),
            (attach(3, "c", "ben", usage(161, 0)), 1000.0),
            (device(161), 1000.0),
            (other(0), 1000.0),
            (ev.Request(2, 5), 1001.0),
            (ev.Request(3, 6), 1002.0),
            (ev.Tick(), 1010.0),
            (ev.Tick(), 1100.0),
            (device(161), 1100.0),
        ],
        policy="fcfs",
        revoke_deadline=20.0,
    )
    assert core.groups["a"].overdue
    assert core.groups["b"].lease is None
    assert core.groups["c"].lease is not None


def test_others_keep_their_room_when_a_context_is_measured_during_a_restore() -> None:
    """The context was charged for more than it takes, which hid 41 MiB of others; the group that filled got them."""
    core, decisions = decide(
        [
            (device(891), 1000.0),
            (attach(1, "a", "ada", usage(400, 0)), 1000.0),
            (attach(2, "b", "ada", ev.Usage(GPU, 800 * MIB, 800 * MIB, context=100 * MIB)), 1000.0),
            (device(891), 1000.0),
            (ev.Request(1, 5), 1000.0),
            (ev.Measured(2, GPU, 50 * MIB), 1000.0),
            (device(891), 1000.0),
        ]
    )  # fmt: skip
    assert core.groups["a"].filling
    rooms = [d.resident for said in decisions for d in said if isinstance(d, ev.Room)]
    assert 0 < max(rooms) <= (980 - 891) * MIB


def test_others_keep_their_room_when_a_checkpoint_shows_the_size_of_a_context() -> None:
    """The context was charged for more than it took, which hid 41 MiB of others; a group was granted them."""
    needs = ev.Usage(GPU, 0, 0, context=100 * MIB)
    core, _ = decide(
        [
            (device(91), 1000.0),
            (ev.HostMemory(4000 * MIB), 1000.0),
            (ev.Hibernatable(True), 1000.0),
            (attach(1, "a", "ada", usage(800, 0)), 1000.0),
            (attach(2, "b", "ada", needs), 1000.0),
            (device(91), 1000.0),
            (ev.HibernateNow("b"), 1001.0),
            (ev.Parked(2, 1, "done", needs), 1001.0),
            (device(91), 1001.0),
            (ev.Request(1, 5), 1001.0),
            (ev.Checkpointed(2, True, "", "", 0.5, 50 * MIB), 1001.5),
            (device(41), 1001.5),
        ]
    )
    gpu = core.gpus[GPU]
    assert gpu.arriving == 800 * MIB
    assert gpu.foreign + gpu.left == 41 * MIB


def test_memory_is_available_soon_after_a_cell_ends_whose_lease_was_revoked() -> None:
    """Its work was over with its cell, although its last burst was not."""
    options: dict[str, Any] = {
        "foreign": 26,
        "steady": False,
        "quantum": "auto",
        "anti_thrash": "on",
    }
    script = begin([154, 573, 146], context=100, **options)
    first = script.processes[1]
    script.cell(Chosen(1), exclusive=True, from_kernel=False)
    script.allocate_unevictable(Chosen(1), size=146 * MIB)
    script.report_stuck_kernel(Chosen(1))
    script.settle()
    assert first.lease is None
    script.all_processes_go_idle(told=False, outcomes=[], calling=[])
    script.all_processes_are_served()
    script.teardown()


def silent_within_an_eviction(others: int) -> list[Timed]:
    """Return the events after which b, of which 400 MiB are to leave, has not answered for too long."""
    used = 600 + others
    return [
        (device(used), 1000.0),
        (attach(1, "a", "ada", usage(50, 0, unevictable=200)), 1000.0),
        (attach(2, "b", "ada", usage(400, 400)), 1000.0),
        (device(used), 1000.0),
        (ev.Release("b", evict=True), 1000.0),
        (ev.Tick(), 1100.0),
        (device(used), 1100.0),
    ]


def test_freed_memory_is_not_taken_for_foreign_use_while_a_client_is_silent() -> None:
    """What b was told to evict could be gone, and others have grown as much: so the room stayed lost."""
    events = [
        *silent_within_an_eviction(0),
        (ev.UsageChanged(1, usage(50, 0)), 1101.0),
        (device(400), 1101.0),
    ]
    core, _ = decide(events, revoke_deadline=20.0)
    assert core.groups["b"].silent
    assert core.gpus[GPU].foreign == 0


def test_others_keep_their_room_when_a_silent_client_evicts_after_all() -> None:
    """A reading shows what has left before the client says so, and what it shows after that may be what a brings in."""
    events = [*silent_within_an_eviction(41), (ev.Request(1, 5), 1100.0), (device(241), 1101.0)]
    core, decisions = decide(events, revoke_deadline=20.0)
    assert core.groups["b"].silent
    assert core.gpus[GPU].arriving == 50 * MIB
    serial = next(d.serial for said in decisions for d in said if isinstance(d, ev.Evict))
    size = 400 * MIB
    core.handle(ev.Evicted(2, serial, usage(400, 0), size, size, 0.4, "done"), 1102.0)
    core.handle(device(241), 1102.0)
    assert core.gpus[GPU].foreign == 41 * MIB


def test_memory_is_evicted_before_another_grant_of_the_same_cycle() -> None:
    """A grant makes the residency of all other groups longer, but not of memory that was evicted for the grant."""
    script = begin([110, 596], quantum="auto", context=100, foreign=62, dearer=True)
    script.report_stuck_kernel(Chosen(1))
    script.all_processes_go_idle(told=False, outcomes=[], calling=[])
    script.teardown()


def test_no_group_parks_for_a_head_that_is_served_at_once() -> None:
    """The release that made room for the head was also the one after which the other had left the GPU."""
    script = begin(
        [137, 0, 0, 0],
        policy="fcfs", foreign=23, context=278, dearer=True,
        preferences=[{"exclusive": True}, {"priority": "background"}],
    )  # fmt: skip
    script.hold("a", True)
    script.pass_time(2.0)
    script.all_processes_go_idle(told=False, outcomes=["failed", "", "late"], calling=[False])
    script.teardown()


def test_a_hibernated_group_wakes_although_host_memory_cannot_hold_all_evictions() -> None:
    """It was woken once all of its memory had room, so the others' had to leave before anything of its own came."""
    script = begin(
        [546, 760, 691, 325],
        policy="priority", steady=False, foreign=55, host=1000, context=200, dearer=True,
        preferences=[{"priority": "background"}],
    )  # fmt: skip
    script.all_processes_are_served()
    script.other_programs_use_the_gpu(GPU, 202)
    outcomes = ["stuck", "stuck", "helper", "late"]
    script.all_processes_go_idle(told=True, outcomes=outcomes, calling=[True, False, True, False])
    script.all_processes_are_served()
    script.teardown()


def test_a_hibernated_group_wakes_although_all_others_leave_a_residue() -> None:
    """Its own residue counted as foreign use, so it seemed to lack room whichever groups hibernated."""
    script = begin([0, 0, 0, 0], context=200, residue=80, dearer=True)
    script.settle()
    script.contexts_are_measured(GPU)
    for number in (1, 2):
        script.processes[number].sees = (GPU,)
        script.ask(script.processes[number], GPU, 525 * MIB, 0, 0)
    for _ in range(4):
        script.all_processes_are_served()
        script.memory_of_hibernated_processes_is_not_charged()
        script.parked_clients_have_no_lease()
    assert script.core.gpus[GPU].context_sizes.residue == 80 * MIB
    script.teardown()


def test_an_oversubscribing_group_wakes_with_as_much_as_its_context_leaves() -> None:
    """While it hibernated, it wanted all of the GPU that was free, and room for its context beside."""
    core, decisions = decide(
        [
            (device(100), 1000.0),
            (ev.HostMemory(4000 * MIB), 1000.0),
            (ev.Hibernatable(True), 1000.0),
            (
                ev.Attach(
                    1, 101, "a", "a", "swap", user="ada", oversubscribe=True, hibernated=True,
                    usages=(ev.Usage(GPU, 900 * MIB, 0, 0, 200 * MIB, 900 * MIB),), sees=(GPU,),
                ),
                1000.0,
            ),
            (ev.Checkpointed(1, True), 1000.0),
            (attach(2, "b", "ada", ev.Usage(GPU, 0, 0, context=96 * MIB)), 1000.0),
            (device(100), 1000.0),
            (ev.Request(1, 3), 1001.0),
            (ev.Wake(1, 4, "call", ev.Usage(GPU, 0, 0, context=200 * MIB)), 1001.0),
            (device(100), 1001.0),
        ],
        anti_thrash="auto",
        hibernate_after=None,
    )  # fmt: skip
    assert [d.needs for said in decisions for d in said if isinstance(d, ev.Wakeup)] == [200 * MIB]
    assert core.clients[1].stage == "waking"


def test_two_clients_parked_for_the_previous_scheduler_are_checkpointed_and_served() -> None:
    """Each was thought to hibernate: what they held counted as others' use, and so kept them from their room."""
    script = begin(
        [575, 432, 142],
        quantum=5.0, policy="priority", foreign=77, host=1000, context=324, residue=4, dearer=True,
        preferences=[{"exclusive": True}, {"exclusive": True}],
    )  # fmt: skip
    script.the_scheduler_is_replaced()
    outcomes = ["late", "", "failed", "stuck", "failed", ""]
    script.all_processes_go_idle(told=True, outcomes=outcomes, calling=[True, False, True])
    for number in (1, 3):
        script.stop(data=Chosen(number))
    script.process_dies(data=Chosen(3))
    script.cancel(data=Chosen(2))
    script.a_connection_breaks(data=Chosen(2))
    script.configure(mode="auto")
    turns = [(0, False, True), (4, True, True), (3, True, True), (5, False, False)]
    turns += [(3, False, True), (4, False, False), (3, False, True), (1, False, True)]
    script.exchange_messages(turns=turns)
    script.hibernate_or_wake(data=Chosen(1), hibernate=False)
    script.memory_of_a_dead_process_is_freed()
    script.the_scheduler_is_replaced()
    script.a_connection_breaks(data=Chosen(4))
    script.contexts_are_measured(gpu="GPU-1")
    script.all_processes_are_served()
    script.teardown()


def test_a_group_does_not_hibernate_for_another_between_two_queued_cells() -> None:
    script = begin([0, 0, 463], quantum="auto", policy="fcfs", context=175, dearer=True)
    script.process_dies(data=Chosen(2))
    script.the_scheduler_is_replaced()
    script.settle()
    for count in (0, 1):
        script.run_next_cell(data=Chosen(1), count=count, pause=1.5, from_kernel=False)
    script.teardown()
