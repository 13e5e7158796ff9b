# SPDX-License-Identifier: BSD-3-Clause
"""Makes the parts of a core and connects them.

Each part gets only what it needs. docs/contributing/design.md lists the purpose of each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from . import messages as ev
from .activity import Activity, ActivityClassifier
from .answers import Answers
from .attachment import Attachment, Departure, GroupRegistry
from .burst_events import BurstEvents
from .cell_queue import CellQueue
from .checks import Checks
from .collectives import Collectives
from .contention import ContentionNotices
from .costs import Costs
from .cycle import Cycle, GpuCycle
from .disk_tier import DiskTier
from .eligibility import Eligibility
from .eviction import VictimChooser
from .eviction_orders import EvictionOrders
from .filling import Filling
from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .hibernation_commands import HibernationCommands
from .hints import Hints
from .host_reserve import HostReserve
from .leases import Leases
from .ledger import Ledger
from .likelihood import UseLikelihood
from .limits import Limits
from .memory_events import MemoryEvents
from .model import Client, Model
from .notices import NoticeBoard
from .pacing import Pacer
from .paging import ThrashingDetector
from .planner import Planner
from .policy_api import PolicyRegistry, View
from .policy_guard import PolicyGuard
from .policy_view import PolicyView
from .preferences import PreferenceStore
from .prefetch import Prefetcher
from .pressure import Pressure
from .queue import WaitQueue
from .quotas import Quotas
from .readings import Readings
from .reasons import Sources
from .recollection import Recollection
from .relief import OvercommitRelief
from .relocation import Relocation
from .reservations import Reservations
from .residency import Residency
from .room_maker import RoomMaker
from .rooms import Rooms
from .rules import Rules
from .serving import Admission, Serving, WaitLog
from .shares import Shares
from .takeover import ReturningClients, Takeover
from .timer_events import TimerEvents
from .timers import Timers
from .turn import Turn
from .usage import GpuTime
from .user_commands import UserCommands
from .wakes import WakeOrders


class Assembly:
    """The parts of one core, in the order in which they depend on each other. Its parameters are those of ``Core``."""

    def __init__(self, policies: PolicyRegistry, rules: Rules) -> None:
        self._make_state(rules)
        self._make_accounts()
        self._make_planner(policies)
        self._make_notices()
        self._make_leases()
        self._make_hibernation()
        self._make_cycle()
        self._make_handlers()

    # fmt: off

    def _make_state(self, rules: Rules) -> None:
        """Make what the other parts change: the model, the marks of the current event, timers and statistics."""
        self.model = Model(rules)
        self.turn, self.timers = Turn(), Timers()
        self.times, self.thrash = GpuTime(rules.window), ThrashingDetector()
        self.classes = ActivityClassifier(rules.interactive_burst, rules.interactive_pause)
        self.preferences, self.host_reserve = PreferenceStore(), HostReserve(self.model)
        self.likelihood = UseLikelihood(self.model.hinted)
        self.hints = Hints(self.model, self.turn, self.timers, self.likelihood)

    def _make_accounts(self) -> None:
        """Make the parts that count memory and compare it with limits."""
        self.checks = Checks(self.model)
        self.ledger = Ledger(self.model, self.turn)
        self.readings = Readings(self.model, self.turn, self.ledger)
        self.eligibility = Eligibility(self.model, self.turn)
        self.limits = Limits(self.model, self.turn, self.times, self.eligibility)
        self.costs = Costs(self.model)
        self.disk = DiskTier(self.model, self.turn, self.timers, self.eligibility)

    def _make_planner(self, policies: PolicyRegistry) -> None:
        """Make the policy, the queue that it orders, and the parts that plan from both."""
        self.view = PolicyView(self.model, self.times, self.costs, self.classes)
        # A policy passes back only groups that the core gave to it, so these are of the core's own class.
        self.policy = PolicyGuard(policies, self.model.rules.policy, cast("View", self.view))
        self.residency = Residency(self.model, self.turn, self.policy, self.costs)
        self.chooser = VictimChooser(self.model, self.turn, self.policy, self.residency)
        self.planner = Planner(
            self.model, self.turn, self.policy, self.thrash, self.eligibility, self.residency, self.chooser
        )
        self.queue = WaitQueue(self.model, self.turn, self.policy)

    def _make_notices(self) -> None:
        """Make the parts that follow the work of groups, and that notify their clients."""
        self.activity = Activity(self.model, self.turn, self.timers, self.times, self.classes, self.queue)
        self.cell_queue = CellQueue(self.model, self.turn, self.hints)
        self.pacer = Pacer(
            self.model, self.turn, self.timers, self.times, self.policy, self.thrash, self.activity
        )
        self.contention = ContentionNotices(self.turn)
        self.notices = NoticeBoard(self.model, self.turn)
        self.rooms = Rooms(self.model, self.turn, self.ledger, self.readings)
        self.answers = Answers(self.model, self.turn, self.timers, self.costs)

    def _make_leases(self) -> None:
        """Make the parts that grant and revoke leases, and that promise and evict memory."""
        self.orders = EvictionOrders(self.model, self.turn, self.ledger, self.answers)
        self.leases = Leases(
            self.model, self.turn, self.timers, self.ledger, self.planner, self.queue, self.activity, self.contention,
            self.notices, self.rooms, self.answers, self.orders,
        )
        self.shares = Shares(self.model, self.turn, self.timers, self.ledger, self.orders, self.leases)
        self.growth = GrowthAdmission(
            self.model, self.turn, self.policy, self.ledger, self.readings, self.limits, self.planner, self.queue,
            self.rooms, self.orders, self.leases, self.shares,
        )
        self.room_maker = RoomMaker(self.model, self.turn, self.readings, self.orders, self.leases)
        self.filling = Filling(
            self.model, self.turn, self.readings, self.residency, self.planner, self.rooms, self.leases,
            self.room_maker,
        )
        self.relief = OvercommitRelief(
            self.turn, self.policy, self.readings, self.residency, self.orders, self.leases
        )
        self.quotas = Quotas(
            self.model, self.turn, self.times, self.readings, self.residency, self.planner, self.orders, self.leases
        )
        self.collectives = Collectives(self.model, self.turn, self.timers, self.answers, self.leases)

    def _make_hibernation(self) -> None:
        """Make the parts that hibernate and wake groups."""
        self.relocation = Relocation(
            self.model, self.turn, self.times, self.ledger, self.queue, self.shares
        )
        self.wakes = WakeOrders(self.model, self.turn, self.ledger, self.queue, self.relocation)
        self.hibernation = HibernationManager(
            self.model, self.turn, self.timers, self.checks, self.ledger, self.eligibility, self.costs, self.queue,
            self.notices, self.orders, self.leases, self.relocation, self.wakes,
        )
        self.pressure = Pressure(
            self.model, self.turn, self.eligibility, self.residency, self.hibernation
        )
        self.prefetcher = Prefetcher(
            self.model, self.turn, self.times, self.policy, self.residency, self.chooser, self.readings, self.hints,
            self.leases, self.orders, self.hibernation,
        )
        self.reservations = Reservations(
            self.model, self.turn, self.timers, self.times, self.queue, self.residency, self.leases, self.hibernation,
            self.notices,
        )
        self.hibernation_commands = HibernationCommands(
            self.model, self.turn, self.hibernation, self.hints, self.reservations
        )

    def _make_cycle(self) -> None:
        """Make the scheduling cycle."""
        self.sources = Sources(
            self.model, self.times, self.planner, self.eligibility, self.hibernation, self.pressure
        )
        self.admission = Admission(
            self.model, self.turn, self.limits, self.queue, self.leases, self.growth, self.hibernation
        )
        self.serving = Serving(
            self.model, self.turn, self.times, self.planner, self.readings, self.room_maker, self.leases,
            self.filling, self.hibernation, self.pressure, self.admission, self.quotas,
            WaitLog(self.model, self.turn, self.sources, self.planner, self.queue),
        )
        self.timer_events = TimerEvents(
            self.model, self.turn, self.host_reserve, self.disk, self.activity, self.leases, self.hibernation,
            self.collectives, self.hints, self.reservations,
        )
        self.gpu_cycle = GpuCycle(
            self.model, self.turn, self.timers, self.times, self.host_reserve, self.readings, self.activity,
            self.growth, self.filling, self.pressure, self.quotas, self.relief, self.serving,
        )
        self.cycle = Cycle(
            self.model, self.turn, self.timers, self.times, self.policy, self.queue, self.activity, self.hibernation,
            self.admission, self.quotas, self.timer_events, self.gpu_cycle, self.prefetcher, self.reservations,
        )

    def _make_handlers(self) -> None:
        """Make the parts that apply events."""
        self.user_commands = UserCommands(
            self.model, self.turn, self.times, self.policy, self.classes, self.preferences, self.queue, self.activity,
            self.cell_queue, self.notices, self.orders, self.leases, self.hibernation, self.hints, self.reservations,
        )
        self.recollection = Recollection(
            self.model, self.turn, self.times, self.classes, self.thrash, self.likelihood, self.preferences
        )
        self.groups = GroupRegistry(
            self.model, self.turn, self.timers, self.times, self.classes, self.thrash, self.preferences, self.hints,
            self.recollection,
        )
        self.returning = ReturningClients(self.model, self.turn)
        self.takeover = Takeover(
            self.model, self.turn, self.ledger, self.queue, self.activity, self.rooms, self.answers, self.leases
        )
        self.attachment = Attachment(
            self.model, self.turn, self.host_reserve, self.checks, self.ledger, self.shares, self.hibernation,
            self.groups, self.returning, self.takeover,
        )
        self.departure = Departure(
            self.model, self.turn, self.timers, self.host_reserve, self.queue, self.leases, self.shares,
            self.hibernation, self.groups, self.takeover,
        )
        self.burst_events = BurstEvents(
            self.model, self.turn, self.times, self.classes, self.thrash, self.queue, self.activity,
            self.cell_queue, self.leases, self.hibernation, self.collectives, self.prefetcher, self.reservations,
        )
        self.memory_events = MemoryEvents(
            self.model, self.turn, self.timers, self.host_reserve, self.checks, self.ledger, self.readings,
            self.leases, self.shares, self.growth, self.hibernation, self.prefetcher, self.reservations,
        )

    # fmt: on

    def client_handlers(self) -> dict[type[Any], Callable[[Client, Any], None]]:
        """Return the handler of each type of event that an attached client sends."""
        return {
            ev.Detach: self.departure.on_detach,
            ev.Request: self.burst_events.on_request,
            ev.Burst: self.burst_events.on_burst,
            ev.Meter: self.burst_events.on_meter,
            ev.Stuck: self.burst_events.on_stuck,
            ev.Released: self.burst_events.on_released,
            ev.Grow: self.memory_events.on_grow,
            ev.UsageChanged: self.memory_events.on_usage,
            ev.Evicted: self.memory_events.on_evicted,
            ev.Moving: self.memory_events.on_moving,
            ev.Restored: self.memory_events.on_restored,
            ev.Parked: self.hibernation.on_parked,
            ev.Wake: self.prefetcher.on_wake,
        }

    def other_handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        """Return the handler of each other type of event."""
        return {
            ev.Attach: self.attachment.on_attach,
            ev.Checkpointed: self.hibernation.on_checkpointed,
            ev.Woken: self.hibernation.on_woken,
            ev.Hibernatable: self.hibernation_commands.on_hibernatable,
            ev.Reserve: self.reservations.on_reserve,
            ev.HibernateNow: self.hibernation_commands.on_hibernate_now,
            ev.WakeNow: self.hibernation_commands.on_wake_now,
            ev.Cell: self.user_commands.on_cell,
            ev.Queued: self.cell_queue.on_queued,
            ev.Cancel: self.user_commands.on_cancel,
            ev.Release: self.user_commands.on_release,
            ev.Rename: self.user_commands.on_rename,
            ev.Adjust: self.user_commands.on_adjust,
            ev.Entitle: self.user_commands.on_entitle,
            ev.Hold: self.user_commands.on_hold,
            ev.Drain: self.quotas.on_drain,
            ev.Maintain: self.user_commands.on_maintain,
            ev.Focus: self.user_commands.on_focus,
            ev.Hint: self.hints.on_hint,
            ev.Configure: self.user_commands.on_configure,
            ev.Device: self.readings.on_device,
            ev.Measured: self.readings.on_measured,
            ev.Recall: self.recollection.on_recall,
            ev.Await: self.returning.on_await,
            ev.Desist: self.returning.on_desist,
            ev.HostMemory: self.limits.on_host_memory,
            ev.Disk: self.disk.on_disk,
            ev.Notice: self.notices.on_notice,
            ev.Tick: self.cycle.on_tick,
        }
