# SPDX-License-Identifier: BSD-3-Clause
"""Hibernation: idle groups also give back their CUDA contexts, and get them again when needed (``core.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .checks import Checks
from .costs import Costs
from .eligibility import NOTHING, PASSING, Eligibility, unfit_code, used_gpus, with_context
from .eviction_orders import EvictionOrders
from .leases import Leases
from .ledger import Ledger
from .messages import (
    Awake,
    Checkpointed,
    EndBurst,
    Hibernate,
    Hibernated,
    Notice,
    Park,
    Parked,
    Usage,
    Wake,
    Wakeup,
    Woken,
)
from .model import Client, Group, Hibernation, Model, Progress, Unfit, Wait, staying_contexts
from .notices import NoticeBoard
from .queue import WaitQueue
from .refusals import INCONCLUSIVE, NO_ROOM, UNSETTLED, WHY, as_said
from .relocation import Relocation
from .timers import Timers
from .turn import Turn
from .wakes import WakeOrders

#: The result of a CUDA call whose process cannot be woken: cudaErrorDevicesUnavailable.
UNAVAILABLE = 46
#: Why a group does not hibernate, by code.
TEXTS = {**WHY, NOTHING: "it has no CUDA context, so there is nothing to give back"}
#: The pause in seconds after which a checkpoint helper that does not run is no longer waited for.
LAST_PAUSE = 8.0


@dataclass(slots=True, eq=False)
class HibernationManager:
    """Hibernates groups, and wakes them."""

    model: Model
    turn: Turn
    timers: Timers
    checks: Checks
    ledger: Ledger
    eligibility: Eligibility
    costs: Costs
    queue: WaitQueue
    notices: NoticeBoard
    orders: EvictionOrders
    leases: Leases
    relocation: Relocation
    wakes: WakeOrders

    #: Seconds in which ``Park`` must be answered, and seconds in which all memory must have left before that.
    park_deadline: ClassVar[float] = 5.0
    leave_deadline: ClassVar[float] = 60.0
    #: Seconds before a refusal is checked again. A refusal that may pass by itself doubles this time while the group
    #: stays idle, up to that of other refusals.
    passing_refusal: ClassVar[float] = 5.0
    lasting_refusal: ClassVar[float] = 600.0
    #: The number of groups that may be about to hibernate at the same time.
    most_hibernating: ClassVar[int] = 16
    #: Seconds after which it is checked again whether a group that is about to hibernate still may.
    look_again: ClassVar[float] = 0.5
    #: Seconds after which a step that does not end is requested again.
    shortest_step_pause: ClassVar[float] = 1.0
    longest_step_pause: ClassVar[float] = 60.0

    def is_pressed(self, group: Group) -> bool:
        """Whether a group hibernates for the head of a queue that still waits for that."""
        state = group.hibernation
        return group.departs and state is not None and state.head is not None and state.head.queued

    def _may_go_on(self, group: Group) -> bool:
        """Whether a group that is about to hibernate still may: it is idle, or the head of a queue needs its room."""
        if self.is_pressed(group):
            return not group.silent and not self.eligibility.waits_for_growth(group)
        return self.eligibility.idle_since(group) is not None and not group.preferences.keep

    def schedule(self, group: Group, when: float | None = None) -> None:
        """Set the timer to check whether a group has been idle for long enough."""
        if when is None and self.model.rules.hibernate_after is not None:
            when = self.turn.now + self.model.rules.hibernate_after
        if group.hibernate_asked_at is not None:
            until = 0.0 if group.unfit is None else group.unfit.until
            when = max(self.turn.now + self.look_again, until)
        self.timers.set(group.rests, when if self.eligibility.able else None)

    def schedule_all(self) -> None:
        """Set this timer for all groups."""
        for group in self.model.groups.values():
            if group.hibernation is None:
                self.schedule(
                    group, None if self.model.rules.hibernate_after is None else self.turn.now
                )

    def check(self, group: Group) -> None:
        """Check whether a group may hibernate, or whether it is late with a step."""
        if group.hibernation is not None:
            self._overrun(group)
            return
        since = self.eligibility.idle_since(group)
        if since is None:
            self._request_burst_end(group)
        if group.preferences.keep or self.model.rules.hibernate_after is None:
            group.hibernate_asked_at = None  # the user has changed their mind since
        if group.hibernate_asked_at is not None:
            if since is None:
                self.schedule(group)
            else:
                self.begin(group)
            return
        after = self.model.rules.hibernate_after
        if after is None:
            return
        later = self.turn.now + max(after, self.look_again)
        if group.prefetch is not None:
            since = None  # it is about to be used
        due = later if since is None or group.preferences.keep else since + after
        if group.unfit is not None:
            due = max(due, group.unfit.until)
        if due > self.turn.now:
            self.schedule(group, due)
        else:
            self.begin(group)

    def _request_burst_end(self, group: Group) -> None:
        """Ask a group whether its burst is over. It does not report this outside cells while no group waits."""
        if group.busy and not group.cells:
            for client in group.granted.values():
                if client.busy:
                    self.turn.decisions.append(EndBurst(client.number, self.turn.now))

    def begin(self, group: Group, head: Wait | None = None) -> bool:
        """Evict all memory of a group, for the head of a queue if there is one; then it is to park."""
        code = unfit_code(group)
        if code == NOTHING:
            group.hibernate_asked_at = None
            self.schedule(group)
            return False
        if code:
            self._find_unfit(group, code, TEXTS[code], log=False)
            return False
        if len(self.model.hibernating) >= self.most_hibernating:
            if head is None:
                self.schedule(group, self.turn.now + 1.0)
            else:
                self.turn.recheck_at(self.turn.now + 1.0)
            return False
        frees = sum(s.unevictable + s.context for s in group.shares.values())
        group.unfit = None
        group.hibernation = Hibernation("evicting", self.turn.now, self.turn.now, frees, head=head)
        self.model.hibernating[group.id] = self.model.evacuating[group.id] = group
        self.timers.set(group.rests, self.turn.now + self.leave_deadline)
        self.turn.touch(group)
        if group.lease is not None:
            group.ended_at = self.turn.now - self.model.rules.debounce
            self.leases.revoke(group, head)
        self.evacuate(group)
        return True

    def evacuate(self, group: Group) -> None:
        """Order the remaining evictions of a group that is to park."""
        if group.lease is not None:
            return
        if not self._may_go_on(group):
            self._end_attempt(group)
            return
        for share in group.shares.values():
            if share.movable:
                self.orders.evict(share, share.movable)
                for holding in share.holdings.values():
                    if holding.stuck_until > self.turn.now:
                        self.timers.set(group.rests, holding.stuck_until)

    def park_those_that_left(self) -> None:
        """Tell the groups to park that have no memory left on the GPU.

        This comes after the decision on which waits are served, because the head may no longer need it.
        """
        for group in list(self.model.evacuating.values()):
            if group.lease is None and not any(s.resident for s in group.shares.values()):
                if self._may_go_on(group):
                    self._park(group)
                else:
                    self._end_attempt(group)

    def _park(self, group: Group) -> None:
        del self.model.evacuating[group.id]
        self._enter(group, "parking")
        self.timers.set(group.rests, self.turn.now + self.park_deadline)
        for client in with_context(group):
            if client.stage != "awake":
                continue
            self.model.last_serial += 1
            client.stage, client.park, client.parked = "parking", self.model.last_serial, True
            client.moved = ("", "")
            self.turn.decisions.append(Park(client.number, client.park))
        self.settle(group)

    def _enter(self, group: Group, stage: Progress) -> None:
        state = group.hibernation
        if state is not None and state.stage != stage:
            state.stage, state.since = stage, self.turn.now
            self.turn.touch(group)

    def _overrun(self, group: Group) -> None:
        """Handle a group whose memory has not left in time, or a client that has not answered ``Park``."""
        state = group.hibernation
        assert state is not None
        if state.stage == "evicting":
            if self.turn.now < state.began + self.leave_deadline:
                self.timers.set(group.rests, state.began + self.leave_deadline)
                self.evacuate(group)
            else:
                text = "the process's memory could not be evicted in time"
                self._find_unfit(group, "busy", text)
        elif state.stage == "parking":
            late = [c.pid for c in group.clients.values() if c.stage == "parking"]
            pids = ", ".join(map(str, late))
            text = f"process {pids} did not respond within {self.park_deadline:.0f} s"
            self._name_stuck(group, late[0], "park")
            self._find_unfit(group, "stuck", text)

    def _find_unfit(self, group: Group, code: str, text: str, *, log: bool = True) -> None:
        """End the attempt of a group that cannot hibernate now. Its parked clients go on."""
        unfit = self.refuse(group, code, text, log=log)
        if group.hibernation is not None:
            self._end_attempt(group)
        else:
            self.turn.touch(group)
        if self.model.rules.hibernate_after is not None:
            self.schedule(group, unfit.until)

    def refuse(self, group: Group, code: str, text: str, *, log: bool = True) -> Unfit:
        """Note that a group cannot hibernate, or not now."""
        passes, since = code in PASSING, self.eligibility.idle_since(group)
        again = since is not None and since <= group.refused_at
        group.refusals = group.refusals + 1 if again else 0
        group.refused_at = self.turn.now
        pause = self.lasting_refusal
        if passes:
            pause = min(self.passing_refusal * 2.0 ** min(group.refusals, 10), pause)
        else:
            group.hibernate_asked_at = None
        group.unfit = unfit = Unfit(code, text, self.turn.now, self.turn.now + pause)
        if log:
            self.turn.log("hibernate_failed", group, code=code, text=text)
        return unfit

    def reconsider(self, group: Group) -> None:
        """Allow another attempt, because a group's memory has changed and the reason for the refusal may have ended."""
        if group.unfit is not None and group.unfit.code not in PASSING:
            group.unfit = None

    def _end_attempt(self, group: Group) -> None:
        """End the attempt before anything was checkpointed."""
        self.model.evacuating.pop(group.id, None)
        for client in group.clients.values():
            if client.stage in ("parking", "parked"):
                self._release(client)
        self.settle(group)

    def _release(self, client: Client) -> None:
        """Notify a parked client that was not checkpointed that it may call the driver."""
        client.stage, client.needs = "awake", None
        if client.parked:
            client.parked = False
            self.turn.decisions.append(Hibernated(client.number, client.park, False))
        if client.asked:
            self.turn.decisions.append(Awake(client.number, client.asked))
            client.asked = 0
        self.leases.resume_client(client)

    def on_parked(self, client: Client, event: Parked) -> None:
        """Handle a client's answer to ``Park``."""
        group = client.group
        self.checks.usage(client.number, client.backend, event.needs)
        if client.stage != "parking" or client.park != event.serial:
            return  # it was notified meanwhile that it may call the driver
        if event.status != "done":
            # The client continues by itself.
            client.stage, client.parked = "awake", False
            self._find_unfit(group, event.status, TEXTS[event.status])
            return
        needs = event.needs
        client.needs = Usage(needs.gpu, 0, 0, needs.unevictable, needs.context)
        client.stage = "parked"
        client.home, client.sees = event.needs.gpu, event.sees
        if not self._may_go_on(group) or group.lease is not None:
            self._end_attempt(group)
            return
        if event.needs.gpu not in client.holdings or len(used_gpus(client)) > 1:
            self._find_unfit(group, "gpus", TEXTS["gpus"])
            return
        self.settle(group)

    def on_checkpointed(self, event: Checkpointed) -> None:
        """Handle the end of a checkpoint."""
        client = self.model.clients.get(event.client)
        if client is None:
            return
        group = client.group
        if client.stage == "parking" and not event.ok:
            # It had no order to park.
            client.stage, client.parked = "awake", False
            self._find_unfit(group, event.code, event.text)
            return
        state = group.hibernation
        if client.stage != "checkpointing" or state is None:
            return
        if client.gone:
            self._verify(client, event, state)
        elif event.ok:
            client.stage, client.parked = "hibernated", False
            needs = client.needs
            if needs is not None and needs.gpu in self.model.gpus:
                # A context takes more than it was admitted with, and a restore that lacks room may fail for good.
                held = min(event.held, self.model.gpus[needs.gpu].capacity) - needs.unevictable
                holding = client.holdings[needs.gpu]
                # It may state more than it takes. If no figure shows how much, the statement counts.
                known = 0 if holding.measured or held > 0 else needs.context
                needs.context = max(known, holding.context, held)
                if event.held:
                    self.ledger.note_overcharge(holding.share.gpu, max(0, holding.context - held))
            context = 0 if needs is None else needs.context
            self.turn.decisions.append(Hibernated(client.number, client.park, True, context))
            self.ledger.remove_contexts(client)
        else:
            state.failed = state.failed or (event.code, event.text)
            if event.code in UNSETTLED:
                # Whatever the outcome, its memory stays charged until it is known to be awake.
                client.stage, client.step_pause = "waking", 0.0
                self.turn.decisions.append(Wakeup(client.number))
            else:
                for holding in client.holdings.values():
                    self.ledger.add_unsettled(holding, -holding.unsettled)
                self._release(client)
            if event.code == "stuck":
                self._name_stuck(group, client.pid, "checkpoint")
        self.settle(group)

    def _verify(self, client: Client, event: Checkpointed, state: Hibernation[Wait]) -> None:
        """Handle the checkpoint of a client that was parked for an earlier scheduler."""
        needs = client.needs
        if event.ok:
            client.stage = "hibernated"
            if needs is not None and needs.gpu in self.model.gpus:
                gpu = self.model.gpus[needs.gpu]
                # If it was not checkpointed before, it held more than its residue.
                held = min(event.held, gpu.capacity) - needs.unevictable
                needs.context = max(needs.context, held)
                self.turn.require_reading(gpu)
            return
        if event.code in INCONCLUSIVE:
            client.stage = "hibernated"
            return
        # It needs no room if it never left the GPU. Otherwise, the driver refuses if there is none.
        state.failed = state.failed or (event.code, event.text)
        self.wakes.order(client)
        if event.code == "stuck":
            self._name_stuck(client.group, client.pid, "checkpoint")

    def request_wake(self, group: Group) -> None:
        """Wake a group that is needed, or is about to be."""
        state = group.hibernation
        if state is None:
            return
        if state.stage == "hibernating" or self.is_pressed(group):
            state.wanted = True
        elif state.stage in ("evicting", "parking"):
            self._end_attempt(group)
        else:
            state.needed = True
            for client in list(group.clients.values()):
                self._queue_wake(client)

    def wake_ahead(self, group: Group) -> None:
        """Wake a group before it needs to be awake. What it needs has room now, so it waits for none."""
        state = group.hibernation
        assert state is not None
        # It may have been needed earlier, and could not be woken then.
        state.needed = False
        for client in list(group.clients.values()):
            if client.stage == "hibernated":
                client.stage = "waiting"
                self.wake_up(client)

    def wake_mixed(self, group: Group) -> None:
        """Wake the whole of a group of which the previous scheduler had hibernated only some clients."""
        state, holders = group.hibernation, with_context(group)
        mixed = any(client.stage == "awake" for client in holders)
        if mixed and state is not None and state.stage in ("hibernating", "hibernated"):
            self.request_wake(group)

    def _queue_wake(self, client: Client, *, home: bool = False) -> None:
        """Have a hibernated client wait for the room that it needs; ``home``: on its previous GPU."""
        if client.stage == "hibernated":
            self.wakes.request(client, home=home)
            self.settle(client.group)

    def wake_up(self, client: Client) -> None:
        """Have a client restored for which there is room."""
        self.wakes.order(client)
        self.settle(client.group)

    def on_wake(self, client: Client, event: Wake) -> None:
        """Handle a parked client that must wake."""
        self.checks.usage(client.number, client.backend, event.needs)
        if client.stage == "awake":
            # It had not received that yet, and it ignores the answer to an earlier call.
            self.turn.decisions.append(Awake(client.number, event.serial, 0, *client.moved))
            return
        client.asked, client.ends = event.serial, event.cause == "exit"
        if client.gone and client.needs is not None and client.stage == "hibernated":
            client.needs.unevictable = event.needs.unevictable
            holding = client.holdings.get(client.needs.gpu)
            if holding is None or event.needs.context != holding.stated:
                client.needs.context = max(client.needs.context, event.needs.context)
        self.turn.mark_gpus(client.group)
        if event.cause == "exit" and client.stage == "hibernated":
            self._queue_wake(client)
        else:
            self.request_wake(client.group)

    def on_woken(self, event: Woken) -> None:
        """Handle the end of a restore."""
        client = self.model.clients.get(event.client)
        if client is None or client.stage != "waking":
            return
        group = client.group
        lost = client.step_pause >= LAST_PAUSE and client.parked and event.code == "helper"
        if event.ok or lost:
            # Without a helper, its state cannot be checked and it cannot be woken; most likely, nothing was done to it.
            self._awake(client, event.seconds)
        elif event.code in UNSETTLED or client.parked:
            # It may still end by itself, so what the client needs stays charged.
            pause = max(2 * client.step_pause, self.shortest_step_pause)
            client.step_pause = min(pause, self.longest_step_pause)
            self.timers.set(client.wakes, self.turn.now + client.step_pause)
            self._fail(client, event)
            if pause == self.shortest_step_pause:
                self._name_stuck(group, client.pid, "restore")
        else:
            self.ledger.remove_contexts(client)
            client.stage = "hibernated"
            home = self.relocation.return_home(client)
            if event.code == NO_ROOM:
                self._await_room(client, event, home=home)
            elif home:
                group.settled = True
                self.turn.log("wake_failed", group, code=event.code, text=event.text)
                self._queue_wake(client, home=True)
            else:
                self._fail(client, event)
        self.settle(group)

    def _await_room(self, client: Client, event: Woken, *, home: bool) -> None:
        """Return a client to the queue, because the GPU had less room than expected. Its calls go on waiting."""
        state = client.group.hibernation
        assert state is not None
        if state.lacked_room == 0:
            self.turn.log("wake_failed", client.group, code=event.code, text=event.text)
        if state.needed or client.asked:
            self.wakes.request_again(client, home=home)

    def _awake(self, client: Client, seconds: float) -> None:
        group, needs, state = client.group, client.needs, client.group.hibernation
        assert state is not None
        self.timers.set(client.wakes, None)
        for holding in client.holdings.values():
            self.ledger.add_unsettled(holding, -holding.unsettled)
            self.ledger.charge_residue(holding)
        if client.parked:
            self._release(client)
            return
        client.moved = ("", "")
        if needs is not None and client.home not in ("", needs.gpu):
            client.moved = client.home, needs.gpu
        self.costs.measure_wake(seconds)
        client.stage, client.needs = "awake", None
        if state.needed or client.asked:
            group.active_at = self.turn.now
        self.turn.mark_gpus(group)
        self.turn.decisions.append(Awake(client.number, client.asked, 0, *client.moved))
        client.asked = 0
        self.leases.resume_client(client)
        before, there = client.moved
        pair = {"gpu": there, "gpu_before": before} if there else {}
        self.turn.log("wake", group, seconds=seconds, **pair)

    def is_waking(self, group: Group) -> bool:
        """Whether a group is being restored for the lease that it waits for, without a failure so far."""
        state = group.hibernation
        if state is None or state.stage != "waking" or state.lacked_room:
            return False
        return any(c.stage == "waking" and c.step_pause == 0.0 for c in group.clients.values())

    def _fail(self, client: Client, event: Woken) -> None:
        """Notify a client that it cannot be woken now. Its next call asks again."""
        self.turn.log("wake_failed", client.group, code=event.code, text=event.text)
        if client.asked:
            self.turn.decisions.append(
                Awake(client.number, client.asked, UNAVAILABLE, text=as_said(event.text))
            )
            client.asked = 0
            # The answer to its call is also the answer to its wait for a lease.
            client.wants = False
            wait = client.group.wait
            if wait is not None and not any(c.wants for c in client.group.clients.values()):
                self.queue.dequeue(wait)

    def wake_again(self, client: Client) -> None:
        """Check a step that had not ended."""
        if client.stage == "waking":
            self.wakes.order_again(client)

    def cancel_wakes(self, group: Group) -> None:
        """End the waits of a group's clients for room. They stay hibernated."""
        if group.hibernation is not None:
            group.hibernation.needed = False
        for client in group.clients.values():
            client.asked = 0
            if client.stage == "waiting":
                client.stage = "hibernated"
        self.settle(group)

    def settle(self, group: Group) -> None:
        """Update the stage of a group after that of one of its clients has changed."""
        state = group.hibernation
        if state is None or group.id in self.model.evacuating:
            return
        stages = {client.stage for client in group.clients.values()}
        if "parking" in stages:
            return
        if "parked" in stages:
            self.timers.set(group.rests, None)
            for client in group.clients.values():
                if client.stage == "parked":
                    client.stage = "checkpointing"
                    for holding in client.holdings.values():
                        # It may exit at any moment. Until that is known, it must not hide other programs' use.
                        fixed = holding.unevictable + holding.context
                        self.ledger.add_unsettled(holding, fixed - holding.unsettled)
                    self.turn.decisions.append(Hibernate(client.number, client.home))
            stages = {client.stage for client in group.clients.values()}
        if "checkpointing" in stages:
            self._enter(group, "hibernating")
            return
        here = self.model.hibernating.pop(group.id, None) is not None
        if state.stage == "hibernating":
            self._conclude(group, state, begun_here=here)
            return
        if stages & {"waiting", "waking"}:
            self._enter(group, "waking")
        elif "hibernated" in stages:
            self._enter(group, "hibernated")
        else:
            group.hibernation = None
            self.leases.mark_silence_changed(group)
            self.schedule(group)

    def _conclude(self, group: Group, state: Hibernation[Wait], *, begun_here: bool) -> None:
        """Complete the hibernation of a group, or end it if some clients could not be checkpointed.

        ``begun_here`` is false if the previous scheduler had parked them.
        """
        self.timers.set(group.rests, None)
        if state.failed is not None:
            self.refuse(group, *state.failed)
        elif begun_here:
            group.hibernate_asked_at = None
            freed = state.frees - sum(map(staying_contexts, group.shares.values()))
            seconds = self.turn.now - state.began
            self.turn.log("hibernate", group, bytes=freed, seconds=seconds)
        self._enter(group, "hibernated")
        if state.failed is not None or state.wanted or group.wait is not None:
            state.wanted, state.needed = False, True
            for client in list(group.clients.values()):
                self._queue_wake(client)
        self.settle(group)

    def _name_stuck(self, group: Group, pid: int, step: str) -> None:
        params = {"name": group.name, "pid": pid, "step": step}
        notice = Notice(group.id, "hibernation_stuck", params)
        # It is tried again and again, so it replaces its own notice and no other.
        self.notices.withdraw(lambda told: told == notice)
        self.notices.on_notice(notice)
