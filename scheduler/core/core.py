# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's core: events and a clock in, decisions out. No sockets, no threads, no clock of its own.

``Core`` makes the collaborators that apply the rules below; design.md, "The core", says which does what.

Rules
-----
On each GPU, at all times (docs/contributing/design.md, "The one idea")::

    leased footprints + all resident, pinned and context bytes + foreign use + ghosts  <=  total - reserve

The left side is kept as running sums (``model/``); ``Gpu.free`` is the difference. A lease is granted only if, on
every GPU of its group, what the group lacks there (``Share.need``) is at most ``free``; from then on the missing part
counts as *arriving*. All or nothing, so nobody holds one GPU while waiting for another. Only three things bring room:
an eviction that was answered, a lease given back (its missing part is charged no more), and a death that NVML shows.

Who waits, and for how long
---------------------------
The queue is in the policy's order. The first that waits for a GPU is its *head*; only for heads is room made. One who
is not a head may pass if it needs no eviction and no revocation, if it was not revoked for the head, and if the head
could still be served from leases that are older than its time at the head (``Wait.barrier``). So a head waits for a
fixed set of leases, each of which is revoked once its quantum is over: it is granted in bounded time provided that
holders yield, then the next is the head. A head that could not be served if everybody yielded (foreign use, ghosts)
keeps its place and holds nobody up.

Room is made in the order in which it can be had, then by kind:

    ==============  ==================================================  =====================================
    kind            memory may be taken                                 how
    ==============  ==================================================  =====================================
    no lease        after debounce or residency (below)                 Evict
    held            likewise                                            Revoke, on Released Evict
    waiting         likewise; last in the queue first                   Evict
    running         after its quantum                                   Revoke, on Released Evict
    kept            once it was waited for with patience (below)        as for its kind
    ==============  ==================================================  =====================================

- *Debounce*: after the end of a cell, 10 ms: a Run All submits again within some 4 ms.
- *Residency*: after any other end, min(10 x cost of moving the footprint x how many are at work, quantum)
  since the memory was in; or until the group had no work for as long as the move takes, or is expected to have none
  for that long (``Residency``).
- A group that comes back within its residency, with its memory still in, continues its *turn* before any head: the
  turn's clock is not wound again, so this cannot go on beyond what the head had to wait for anyway. If it needs more
  than before (it gave its lease up to grow), room is made for it too, from those that do not run.

Nothing is taken before all that the head needs can be had (give or take the debounce): it would idle meanwhile.
Of what is taken, a little more than lacks leaves, where there is more: figures vary while they are read, and a second
round would cost as much waiting as the first.

Wishes
------
People may ask something for a group (``Wishes``). It shifts the rules above, and never suspends them: what each wish
costs the others is bounded, and memory that has to leave because there is too much leaves all the same.

- *Background* and *interactive*: what the group counts as, whatever it does (``activity.py``).
- *Keep*: while it does not run, whoever came less than ``keep_patience`` ago cannot have its memory. If that is all in,
  it may run before them, who could not have it anyway. Revoked at the end of its quantum, it is as any other until its
  next lease. So is one that waits and is not all in: else each would wait for what the other holds.
- *Frozen*: it is revoked; its waits for a lease are passed over as if they were not there, and keep their place. Its
  memory may leave at once, kept or not. *Held* is the same, said by an administrator, and nobody else ends it.
- *Memory*: growth beyond it is refused.
- *Request*, *limit*, *weight*: ``usage.py``. Who has had its limit is granted nothing until the window has moved on;
  its waits are passed over like those of one that is frozen.
- *Exclusive*: until its open cell ends it counts as running, ``exclusive_limit`` is its quantum and its residency, and
  nobody tells it that others wait: so it does not go quiet. The end of the limit ends the wish.

Who does not answer
-------------------
All that is said above of how long one waits is said of holders that yield. One that does not - its process was stopped,
its kernel never ends, it lies - is late after ``revoke_deadline`` and ten times what its moves should take
(``Leases.miss``). From then on what it holds counts as not to be had: nobody who needs it is a head, so nobody is held
up by it but those who could not be served without it. It is named, is charged for the GPU's time, and is granted
nothing, since it could not give it back. Its answer ends all that (``Leases.hear``). Whoever answers, but lets nothing
go for as long, is asked again ever more rarely, and counts as not to be had in between.

Bounds
------
What administrators bound (``quotas.py``) holds under every policy. Who would hold leases on more GPUs than its user or
team may at once is passed over, and so is who waits for a GPU that is drained: they hold nobody up. Of one quota, those
that wait are served in the queue's order, and holders make way for them as for those that wait for their memory. On a
drained GPU every lease ends after its quantum, and all memory leaves that can.

Policies
--------
The policy orders the queue (``Wait.rank``) and the victims, sets quanta, and says how fast holders may submit
(``Pace``). What it says is kept until something happens that may change it: a lease, a burst, a class, a cell, a focus
or a meter on that GPU. A policy that raises is replaced (``policy_guard.py``).

Filling
-------
A head whose lack is on its way out, all of it, is granted at once (``Grant.filling``): what it has in host memory then
arrives while the others' leaves. Its share is charged only for the room that it was *allotted*; every byte that comes
free on that GPU is allotted to it (``Room``) before anybody else can have it, so the inequality holds at each step and
``free`` is 0 for all others. What it was not allotted yet is *owed*: whoever waits next needs that much more. One share
at a time fills on a GPU, so what leaves is never counted on twice.

It holds a lease while it waits for room, and yet no cycle can come of that: what it waits for are evictions under way,
which need no lease and nobody else's room on a GPU. They do need host memory, which its own pieces give back as they
arrive, and of which a part is never promised (``Limits``), so that one piece can always leave. Where evictions fail or
fall short, other victims are ordered for the rest; where there are none it gives the lease back after a bounded time,
keeps what has arrived, and comes back to its old place.

The peak of host memory during a switch is therefore what the GPUs cannot hold and what is in flight, and not, as it
would be if all left before anything arrived, the newcomer's swapped data besides.

Hibernation
-----------
A group that has had no work, no wait and no open cell for ``hibernate_after`` gives its contexts back too
(``hibernation.py``), as a whole or not at all: its lease is revoked, all its memory leaves, its clients *park* (none of
their threads is in the driver, ``Park``), then the driver checkpoints them (``Hibernate``). So it does after
``hibernate_pressure`` on a drained GPU. Never if it is kept. Work that comes up before the checkpoint has begun ends
the attempt; after that, it is woken as soon as the checkpoint has ended. A refusal is remembered for a while.

A head that lacks room even if everybody yields has other groups hibernate, if that suffices (``pressure.py``): idle
ones, longest first; those that wait, the last first; those that run, after their quantum; and kept ones after
``keep_patience``. Their own work does not end the attempt while the head waits. Such a head holds others up as any head
does: later ones pass only if what all others would leave suffices for it. A group that hibernated for it is woken after
it was served: where several have to leave, the first would be back before the last one has left. A group that
hibernates while it waits for a lease keeps its place, and is woken there once its contexts *and* its memory have room
(``Wait.for_lease``); until it has its lease, that room is kept for it. So each grant costs a bounded number of
hibernations, and a group that could not run is not woken to be pressed again.

What a client held is taken off its GPU only when its checkpoint is confirmed, and is given to others only after a
reading: what that shows all the same counts as others' use. Where it is not known how a step ended, everything stays
charged. A client that was parked for an earlier scheduler may still hold all its memory. Its checkpoint is ordered
again, and until the answer arrives, that memory counts as used by other programs.

It is woken by its next call of the driver, by the begin of a cell, and by people. What it needs for that is admitted as
growth is: it waits in the queue, room is made, the wait can be cancelled. Then it is charged, then restored
(``Wakeup``), then told (``Awake``). If the restore fails it is hibernated still, and its next call tries again. Where
its GPU lacks room, is drained, or is at work for others while another of the same name that it sees has room and
nothing to do, it may be restored there.

Contexts together may so be more than a GPU has. Of the groups that hibernate, each is promised no more than what leaves
room for the one of them that needs the most, and for what the others leave on the GPU all the same (their residues);
so any of them can run beside each other one, as it could without this. Bytes that cannot leave, since their group
cannot hibernate or since they are its residue, are refused if they would leave too little for what another group was
promised (``Limits.crowded_out``): so every footprint that was admitted can be served.

"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from .activity import Activity, Classes
from .alarms import Alarms
from .announcements import Announcements
from .answers import Answers
from .attachment import Attachment, Departure, GroupRegistry
from .burst_events import BurstEvents
from .checks import Checks, ProtocolViolation
from .collectives import Collectives
from .contention import ContentionNotices
from .costs import Costs
from .cycle import Cycle, GpuCycle
from .eligibility import Eligibility
from .eviction import VictimChooser
from .eviction_orders import EvictionOrders
from .filling import Filling
from .growth import GrowthAdmission
from .hibernation import HibernationManager
from .hibernation_commands import HibernationCommands
from .host_reserve import HostReserve
from .leases import Leases
from .ledger import Ledger
from .limits import Limits
from .memory_events import MemoryEvents
from .messages import (
    Adjust,
    Attach,
    Await,
    Burst,
    Cancel,
    Cell,
    Checkpointed,
    Configure,
    Decision,
    Desist,
    Detach,
    Device,
    Drain,
    Entitle,
    Event,
    Evicted,
    Focus,
    Grow,
    Hibernatable,
    HibernateNow,
    Hold,
    HostMemory,
    Maintain,
    Measured,
    Meter,
    Moving,
    Notice,
    Parked,
    Release,
    Released,
    Rename,
    Request,
    Restored,
    Stuck,
    Tick,
    UsageChanged,
    Wake,
    WakeNow,
    Woken,
)
from .model import Client, Gpu, Group, Model, Wait, Wishes
from .notices import NoticeBoard
from .pacing import Pacer
from .paging import Detector
from .planner import Planner
from .policy_api import PolicyRegistry, View
from .policy_guard import Guard
from .policy_view import PolicyView
from .preferences import Memory
from .pressure import Pressure
from .queue import WaitQueue
from .quotas import Quotas
from .readings import Readings
from .reasons import Sources
from .relief import OvercommitRelief
from .relocation import Relocation
from .residency import Residency
from .room_maker import RoomMaker
from .rooms import Rooms
from .rules import Rules
from .serving import Admission, Serving, WaitLog
from .shares import Shares
from .takeover import ReturningClients, Takeover
from .timers import Timers
from .turn import Turn
from .usage import GpuTime
from .user_commands import UserCommands


class UnknownGroup(LookupError):
    """No group has the id or the name that was asked for; the text is one sentence for the person who asked."""

    #: For programs (docs/reference/control.md).
    code = "unknown_group"


class Core:
    """Decides who holds a lease. Feed every event to ``handle`` and carry out what it returns, in order.

    Parameters
    ----------
    policies
        The policies that there are.
    rules
        The settings that hold at first.
    """

    def __init__(self, policies: PolicyRegistry, rules: Rules | None = None) -> None:
        rules = Rules() if rules is None else rules
        self.model = model = Model(rules)
        turn, timers = Turn(), Timers()
        times, thrash = GpuTime(rules.window), Detector()
        classes = Classes(rules.interactive_burst, rules.interactive_pause)
        preferences, host_reserve = Memory(), HostReserve(model)
        # Each has what it needs, and no more: so they are made in the order in which they depend on each other.
        # fmt: off
        checks = Checks(model)
        ledger = Ledger(model, turn)
        readings = Readings(model, turn, ledger)
        eligibility = Eligibility(model, turn)
        limits = Limits(model, turn, times, eligibility)
        costs = Costs(model)
        # A policy returns only groups that it was given, so they may be of our own class.
        view = PolicyView(model, times, costs, classes)
        policy = Guard(policies, model.rules.policy, cast("View", view))
        residency = Residency(model, turn, policy, costs)
        chooser = VictimChooser(model, turn, policy, residency)
        planner = Planner(model, turn, policy, thrash, eligibility, residency, chooser)
        queue = WaitQueue(model, turn, policy)
        activity = Activity(turn, timers, times, classes, queue)
        pacer = Pacer(model, turn, timers, times, policy, thrash, activity)
        contention = ContentionNotices(turn)
        notices = NoticeBoard(model, turn)
        rooms = Rooms(model, turn, ledger, readings)
        answers = Answers(model, turn, timers, costs)
        orders = EvictionOrders(model, turn, ledger, answers)
        leases = Leases(
            model, turn, timers, ledger, planner, queue, activity, contention, notices, rooms, answers,
            orders,
        )
        shares = Shares(model, turn, timers, ledger, orders, leases)
        growth = GrowthAdmission(
            model, turn, policy, ledger, readings, limits, planner, queue, rooms, orders, leases, shares,
        )
        room_maker = RoomMaker(model, turn, readings, orders, leases)
        filling = Filling(model, turn, readings, residency, planner, rooms, leases, room_maker)
        relocation = Relocation(model, turn, times, ledger, queue, shares)
        hibernation = HibernationManager(
            model, turn, timers, checks, ledger, eligibility, costs, queue, notices, orders, leases,
            relocation,
        )
        hibernation_commands = HibernationCommands(model, turn, hibernation)
        pressure = Pressure(model, turn, eligibility, residency, hibernation)
        admission = Admission(model, turn, limits, queue, leases, growth, hibernation)
        quotas = Quotas(model, turn, times, readings, residency, planner, orders, leases)
        collectives = Collectives(model, turn, timers, answers, leases)
        relief = OvercommitRelief(turn, policy, readings, residency, orders, leases)
        sources = Sources(model, times, planner, eligibility, hibernation, pressure)
        wait_log = WaitLog(model, turn, sources, planner, queue)
        serving = Serving(
            model, turn, times, planner, readings, room_maker, filling, hibernation, pressure, admission, quotas,
            wait_log,
        )
        alarms = Alarms(model, turn, host_reserve, activity, leases, hibernation, collectives)
        gpu_cycle = GpuCycle(
            model, turn, timers, times, host_reserve, readings, activity, growth, filling, pressure, quotas,
            relief, serving,
        )
        cycle = Cycle(
            model, turn, timers, times, policy, queue, activity, hibernation, admission, quotas, alarms,
            gpu_cycle,
        )
        announcements = Announcements(turn, timers, policy, host_reserve, pacer, contention, notices)
        user_commands = UserCommands(
            model, turn, times, policy, classes, preferences, queue, activity, notices, orders, leases,
            hibernation,
        )
        returning = ReturningClients(model, turn)
        takeover = Takeover(model, turn, ledger, queue, activity, rooms, answers, leases)
        groups = GroupRegistry(model, turn, timers, times, classes, thrash, preferences)
        attachment = Attachment(
            model, turn, host_reserve, checks, ledger, shares, hibernation, groups, returning, takeover,
        )
        departure = Departure(
            model, turn, timers, host_reserve, queue, leases, shares, hibernation, groups, takeover,
        )
        burst_events = BurstEvents(
            model, turn, times, classes, thrash, queue, activity, leases, hibernation,
            collectives,
        )
        memory_events = MemoryEvents(
            model, turn, timers, host_reserve, checks, ledger, readings, leases, shares, growth,
            hibernation,
        )
        # fmt: on
        self.turn, self.timers, self.times, self.costs = turn, timers, times, costs
        self.policy, self.view, self.residency = policy, view, residency
        self.sources, self.commands = sources, user_commands
        self.cycle, self.announcements = cycle, announcements
        #: What handles each kind of event that an attached client sends.
        self.client_inputs: dict[type[Any], Callable[[Client, Any], None]] = {
            Detach: departure.on_detach,
            Request: burst_events.on_request,
            Burst: burst_events.on_burst,
            Meter: burst_events.on_meter,
            Stuck: burst_events.on_stuck,
            Released: burst_events.on_released,
            Grow: memory_events.on_grow,
            UsageChanged: memory_events.on_usage,
            Evicted: memory_events.on_evicted,
            Moving: memory_events.on_moving,
            Restored: memory_events.on_restored,
            Parked: hibernation.on_parked,
            Wake: hibernation.on_wake,
        }
        #: What handles each other kind.
        self.inputs: dict[type[Any], Callable[[Any], None]] = {
            Attach: attachment.on_attach,
            Checkpointed: hibernation.on_checkpointed,
            Woken: hibernation.on_woken,
            Hibernatable: hibernation_commands.on_hibernatable,
            HibernateNow: hibernation_commands.on_hibernate_now,
            WakeNow: hibernation_commands.on_wake_now,
            Cell: user_commands.on_cell,
            Cancel: user_commands.on_cancel,
            Release: user_commands.on_release,
            Rename: user_commands.on_rename,
            Adjust: user_commands.on_adjust,
            Entitle: user_commands.on_entitle,
            Hold: user_commands.on_hold,
            Drain: quotas.on_drain,
            Maintain: user_commands.on_maintain,
            Focus: user_commands.on_focus,
            Configure: user_commands.on_configure,
            Device: readings.on_device,
            Measured: readings.on_measured,
            Await: returning.on_await,
            Desist: returning.on_desist,
            HostMemory: limits.on_host_memory,
            Notice: notices.on_notice,
            Tick: self._pass_time,
        }

    # --- The interface ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Take an event in; return what is to be done, in this order.

        Raises
        ------
        ProtocolViolation
            The client said what cannot be; disconnect it (and then send ``Detach`` if it was attached).
        ValueError
            A setting is not valid; the text is one sentence for the person who asked.
        """
        turn = self.turn
        turn.begin(now)
        self.view.now = now
        # 1. Apply the event to the model.
        self._apply(event)
        # 2. Rank, plan, evict or grant.
        self.cycle.run()
        # 3. Tell clients: pace, contention, timers.
        self.announcements.run()
        return turn.decisions

    def hear(self, events: Sequence[Event], now: float) -> list[Decision]:
        """Take in events of the same moment, and decide once: most of the time goes into deciding."""
        *first, last = events
        if not first:
            return self.handle(last, now)
        self.turn.begin(now)
        self.view.now = now
        for event in first:
            self._apply(event)
        return self.turn.decisions + self.handle(last, now)

    def deadline(self) -> float | None:
        """When the core wants a ``Tick``, unless an event comes first."""
        return self.timers.earliest()

    def find_group(self, text: str, *, among: Callable[[str], bool] | None = None) -> str:
        """Return the id of the group with this id, unique prefix of it, or name.

        Parameters
        ----------
        text
            What somebody asked for.
        among
            Says of a group's id whether they know of it; default: of all.

        Raises
        ------
        LookupError
            None (``UnknownGroup``) or several fit; the text is one sentence for the person who asked.
        """
        groups = [g for g in self.model.groups.values() if among is None or among(g.id)]
        if any(g.id == text for g in groups):
            return text
        found = [g.id for g in groups if text and g.id.startswith(text)]
        found = found or [g.id for g in groups if g.name == text]
        if len(found) == 1:
            return found[0]
        if found:
            raise LookupError(f"{text!r} fits several groups: {', '.join(found)}")
        raise UnknownGroup(f"no group on the GPU has the id or name {text!r}")

    # --- What others may read ----------------------------------------------------------------------

    @property
    def rules(self) -> Rules:
        """The settings that hold."""
        return self.model.rules

    @property
    def gpus(self) -> dict[str, Gpu]:
        """All GPUs, by UUID."""
        return self.model.gpus

    @property
    def groups(self) -> dict[str, Group]:
        """All groups, by id."""
        return self.model.groups

    @property
    def clients(self) -> dict[int, Client]:
        """All clients, by number."""
        return self.model.clients

    @property
    def queue(self) -> list[Wait]:
        """The waits, in order."""
        return self.model.queue

    def wishes_of(self, group: str) -> Wishes:
        """Return what users asked for the group with this id, whether it is there or not."""
        return self.commands.wishes_of(group)

    def _apply(self, event: Event) -> None:
        """Have an event handled, with the client that it is from."""
        of_client = self.client_inputs.get(type(event))
        if of_client is None:
            self.inputs[type(event)](event)
            return
        number = cast("Request", event).client
        client = self.model.clients.get(number)
        if client is None:
            raise ProtocolViolation(number, "is not attached")
        of_client(client, event)

    def _pass_time(self, event: Tick) -> None:
        """Only the time has changed."""
