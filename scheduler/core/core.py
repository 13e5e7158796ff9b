# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's core: events and the time go in, decisions come out. It has no sockets, threads or clock of its own.

The parts that apply the rules below are made in ``assembly.py``. docs/contributing/design.md, "The core", lists what
each of them does.

Rules
-----
On each GPU, at all times (docs/contributing/design.md, "The one idea")::

    leased footprints + all other resident, unevictable and context bytes
        + use by other programs + memory pending reclaim  <=  total - reserve

The left side is kept as running sums (``model/``); ``Gpu.free`` is the difference. A lease is granted only if, on every
GPU of its group, the bytes that the group lacks there (``Share.need``) are at most ``free``. From then on, these bytes
count as *arriving*. A group gets all of its GPUs or none, so it never holds one GPU while it waits for another. Room
appears in three ways only:

- a client confirms an eviction
- a lease is released, so that its missing bytes are no longer charged
- a reading of NVML shows that the memory of a dead process is free

Waiting
-------
The queue is in the policy's order. The first wait for a GPU is its *head*, and room is made only for heads. Another
wait may pass a head if three conditions hold: it needs no eviction and no revocation; its group was not revoked for the
head; and the head could still be served from leases that are older than its time at the head (``Wait.barrier``). So a
head waits for a fixed set of leases, each of which is revoked once its quantum is over. It is granted in bounded time,
provided that holders yield, and then the next wait is the head. Other programs' use or memory pending reclaim may keep
a head from being served even if all holders yield. It then keeps its place and holds up no other wait.

Room is made in the order in which it becomes available, then by kind:

    ==============  ==================================================  =====================================
    kind            when its memory may be taken                        how
    ==============  ==================================================  =====================================
    no lease        after debounce or residency (below)                 Evict
    idle lease      as above                                            Revoke; on Released, Evict
    waiting         as above; last in the queue first                   Evict
    running         after its quantum                                   Revoke; on Released, Evict
    kept            when the head has waited for its patience (below)   as for its kind
    ==============  ==================================================  =====================================

- *Debounce*: 10 ms after the end of a cell, because a "Run All" submits again within about 4 ms.
- *Queued cells*: while more cells wait in its Jupyter kernel (``cell_queue.py``), a group that is between two cells
  keeps its lease and its memory, as if it ran: for a second at most, and within its quantum.
- *Residency*: after any other end of a burst, the memory stays for min(10 x cost of moving the footprint x number of
  groups at work, quantum) since it was restored. Clean memory has a cost only on its way back (``costs.py``). Residency
  ends early once the group has had no work for as long as the move takes, or is expected to have none for that long
  (``Residency``).
- A group that comes back within its residency, with its memory still on the GPU, continues its *time slice* before any
  head. The clock of the slice does not start again, so this cannot go on for longer than the head had to wait anyway.
  The group may need more than before, because it released its lease to grow. Room is then made for it, too, from groups
  that do not run.

Nothing is taken before all that the head needs is available (apart from the debounce), because the memory would be
unused meanwhile. If the victims have more, a little more than needed is taken: figures change while they are read, and
a second round would take as long as the first.

Preferences
-----------
Users may ask for special treatment of a group (``Preferences``). A preference shifts the rules above and never
suspends them: its cost to other groups is bounded, and memory is still evicted if the GPU is over-committed.

- *Background* and *interactive* set the group's class, whatever it does (``activity.py``).
- *Keep*: while the group does not run, a wait that is younger than ``keep_patience`` cannot take its memory. If all of
  that memory is resident, the group may run before such a wait, which could not use the memory anyway. A kept group
  that is revoked at the end of its quantum is like any other until its next lease. So is one that waits and is not
  fully resident: otherwise two kept groups could each wait for the other's memory.
- *Frozen*: the group is revoked. Its waits for a lease are passed over, and keep their place. Its memory may leave at
  once, kept or not. *On hold* is the same, set by an administrator, and only an administrator can end it.
- *Memory*: growth beyond this size is refused.
- *Request*, *limit*, *weight*: see ``usage.py``. A group that has reached its limit is granted nothing until the window
  has moved on; its waits are passed over like those of a frozen group.
- *Exclusive*: until its open cell ends, the group counts as running. ``exclusive_limit`` is its quantum and its
  residency, and it is not notified that other groups wait, so that it keeps its lease between bursts. The preference
  ends when the limit is reached.

Clients that do not answer
--------------------------
The bounds above hold for holders that yield. A client may fail to yield: its process was stopped, its CUDA kernel does
not end, or it is faulty. It is late after ``revoke_deadline`` plus ten times the time that its moves should take
(``Leases.on_answer_timeout``). From then on its memory counts as unavailable: a wait that needs it is not a head, so it
holds up only waits that could not be served without it. The status names the client. Its group is charged for the GPU's
time, and is granted nothing, since it could not release it. An answer ends all of this (``Leases.receive_answer``). A
client that answers but frees nothing for as long is asked again at growing intervals, and in between its memory counts
as unavailable, too.

Bounds
------
The bounds that administrators set (``quotas.py``) hold under every policy. A group is passed over if its user or team
would hold leases on too many GPUs, or if one of its GPUs is drained. It holds up no other wait. Waits under one quota
are served in the queue's order, and holders make way for them as for waits that need their memory. On a drained GPU
every lease ends after its quantum, and all evictable memory leaves.

Policies
--------
The policy orders the queue (``Wait.rank``) and the victims, sets quanta, and bounds how fast holders may submit
(``Pace``). By default, victims are ordered by when they are expected back and by what their move costs now. The
policy's answers are kept until something happens on that GPU that may change them: a change of a lease, burst, class,
cell, focus or meter. A policy that raises an exception is replaced (``policy_guard.py``).

Filling
-------
If all that a head lacks is already being evicted, its lease begins at once (``Grant.filling``): its memory arrives
while the others' memory leaves. Its share is charged only for the room that it was *allotted*. Every byte that comes
free on that GPU is allotted to it (``Room``) before any other group can use it. So the inequality holds at each step,
and ``free`` is 0 for all others. The rest is *owed*: the next wait needs that much more. Only one share fills on a GPU
at a time, so no leaving byte is counted twice.

Such a group holds a lease while it waits for room, and yet no cycle can result. It waits for evictions that have begun,
which need no lease and no room of another group on a GPU. They do need host memory. The group's own pieces give it back
as they arrive, and a part of it is never promised (``Limits``), so that one piece can always leave. If evictions fail
or fall short, other victims are evicted for the rest. If there are none, the group releases the lease after a bounded
time. It keeps what has arrived, and returns to its old place in the queue.

The peak use of host memory during a switch is therefore what the GPUs cannot hold plus what is in flight. If everything
left before anything arrived, it would include the new group's swapped data as well.

Hibernation
-----------
A group also gives back its CUDA contexts (``hibernation.py``), as a whole or not at all, once it has had no work, no
wait and no open cell for ``hibernate_after``. Its lease is revoked, and all of its memory leaves. Its clients then
*park* (``Park``), so that none of their threads is in the driver, and the driver checkpoints them (``Hibernate``). On a
drained GPU this happens after ``hibernate_pressure``. A kept group never hibernates. Work that arrives before the
checkpoint has begun ends the attempt; later, the group is woken as soon as the checkpoint has ended. A refusal is
remembered for a while.

A head that lacks room even if all holders yield makes other groups hibernate if that suffices (``pressure.py``): idle
groups, longest idle first; waiting groups, last in the queue first; running groups, after their quantum; and kept
groups after ``keep_patience``. While the head waits, their own work does not end the attempt. Such a head holds up
other waits as any head does: later waits pass only if it can still be served from the remaining groups. A group that
hibernated for the head is woken after the head was served. Otherwise, if several must leave, the first would be back
before the last has left. A group that hibernates while it waits for a lease keeps its place. It is woken there once
there is room for its contexts *and* its memory (``Wait.for_lease``), and that room is kept until it has its lease. So
each grant costs a bounded number of hibernations, and no group is woken only to hibernate again before it could run.

A client's memory is taken off its GPU only when its checkpoint is confirmed, and is given to other groups only after a
reading. Memory that this reading still shows counts as use by other programs. If the outcome of a step is unknown,
everything stays charged. A client that was parked for an earlier scheduler may still hold all its memory. Its
checkpoint is ordered again, and until the answer arrives, that memory counts as used by other programs.

A hibernated client is woken by its next call of the driver, by the start of a cell, and by a user's command. The room
that it needs for that is admitted like growth: it waits in the queue, room is made, and the wait can be cancelled. The
client is then charged, restored (``Wakeup``) and notified (``Awake``). If the restore fails, it stays hibernated, and
its next call tries again. If its GPU lacks room, is drained, or works for other groups, it may be restored on another
GPU. That GPU must have the same name, be visible to the client, and have room and no work.

Contexts together may thus exceed a GPU's memory. A group that hibernates is promised only so much that there is room
for the other group that needs the most, and for the residues of all others. So any two groups can run side by side, as
they could without hibernation. Some bytes cannot leave, because their group cannot hibernate or because they are its
residue. They are refused if they would leave too little for what another group was promised (``Limits.crowded_out``).
So every footprint that was admitted can be served.

Prefetch
--------
A hint, such as the first keystroke after a pause, may make it likely that a group will use the GPU within a minute
(``likelihood.py``). The last step of the cycle then wakes the group and restores its memory (``prefetch.py``): into
free room, or into that of idle groups that are less likely to be used. It begins only on GPUs where no wait could be
served and no memory moves on demand, and ends as soon as that changes. Until its first use, the lease
(``Group.lease_ahead``) does not count as work: it has no time slice, and no rule above considers it.

Reservations
------------
A program may reserve the GPU for a group that does not wait for it (``reservations.py``). Its wait is like any other,
but its grant goes to clients that did not request it. They restore their memory, and the lease is kept for
``reservation_hold``, as if the group was running and that were its quantum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from .assembly import Assembly
from .checks import ProtocolViolation
from .messages import Decision, Event, Learnt, Request
from .model import Client, Gpu, Group, Preferences, Wait
from .policy_api import PolicyRegistry
from .rules import Rules


class UnknownGroup(LookupError):
    """No group has this id or name. The text is one sentence for the user."""

    #: The code for programs (docs/reference/control.md).
    code = "unknown_group"


class Core:
    """Decides which groups hold a lease. Pass every event to ``handle`` and carry out what it returns, in order.

    Parameters
    ----------
    policies
        The installed policies.
    rules
        The settings to start with.
    """

    def __init__(self, policies: PolicyRegistry, rules: Rules | None = None) -> None:
        parts = Assembly(policies, Rules() if rules is None else rules)
        self.model, self.turn, self.timers = parts.model, parts.turn, parts.timers
        self.times, self.costs = parts.times, parts.costs
        self.policy, self.view, self.residency = parts.policy, parts.view, parts.residency
        self.sources, self.commands = parts.sources, parts.user_commands
        self.cycle, self.prefetcher = parts.cycle, parts.prefetcher
        self._recollection = parts.recollection
        self._host_reserve, self._disk, self._pacer = parts.host_reserve, parts.disk, parts.pacer
        self._contention, self._notices = parts.contention, parts.notices
        self.client_handlers, self.other_handlers = parts.client_handlers(), parts.other_handlers()

    # --- The interface ----------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Decision]:
        """Apply an event, and return the decisions in the order in which to carry them out.

        Raises
        ------
        ProtocolViolation
            The client sent an impossible statement. Disconnect it, and then send ``Detach`` if it was attached.
        ValueError
            A setting is not valid. The text is one sentence for the user.
        """
        self._begin(now)
        # 1. Apply the event to the model.
        self._apply(event)
        # 2. Rank, plan, evict or grant.
        self.cycle.run()
        # 3. Notify clients of what has changed for them.
        self._notify()
        return self.turn.decisions

    def handle_all(self, events: Sequence[Event], now: float) -> list[Decision]:
        """Apply events of the same moment, and decide once, because deciding takes most of the time."""
        *first, last = events
        if not first:
            return self.handle(last, now)
        self._begin(now)
        for event in first:
            self._apply(event)
        return self.turn.decisions + self.handle(last, now)

    def deadline(self) -> float | None:
        """Return when the core needs a ``Tick`` unless an event comes first."""
        return self.timers.earliest()

    def learnt(self) -> Learnt:
        """Return what this core has learnt, for the core of the next scheduler (``Recall``)."""
        return self._recollection.learnt()

    def find_group(self, text: str, *, among: Callable[[str], bool] | None = None) -> str:
        """Return the id of the group with this id, unique prefix of it, or name.

        Parameters
        ----------
        text
            The id, prefix or name.
        among
            Returns whether the user may see the group with an id; default: all.

        Raises
        ------
        LookupError
            No group fits (``UnknownGroup``), or several do. The text is one sentence for the user.
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

    # --- State that other packages read ------------------------------------------------------------

    @property
    def rules(self) -> Rules:
        """The settings in effect."""
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

    def preferences_of(self, group: str) -> Preferences:
        """Return the preferences for the group with this id, even if it has no client at present."""
        return self.commands.preferences_of(group)

    # --- The steps --------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Set the time of the event, and begin a new list of decisions."""
        turn = self.turn
        turn.now = self.view.now = now
        turn.first = min(turn.first, now)
        turn.decisions = []

    def _apply(self, event: Event) -> None:
        """Pass an event to its handler, with the client that sent it."""
        of_client = self.client_handlers.get(type(event))
        if of_client is None:
            self.other_handlers[type(event)](event)
            return
        number = cast("Request", event).client
        client = self.model.clients.get(number)
        if client is None:
            raise ProtocolViolation(number, "is not attached")
        of_client(client, event)

    def _notify(self) -> None:
        """Notify clients of what has changed for them."""
        turn = self.turn
        # 1. Their paces.
        if turn.paces_stale or turn.pace_unsent:
            self._pacer.pace()
        # 2. The failure of a policy.
        if self.policy.failure is not None:
            self._notices.report_policy_failure(*self.policy.failure, instead=self.policy.name)
            self.policy.failure = None
        # 3. Which host memory goes to the disk, and which comes back.
        has_disk = self.model.disk_size or self.model.on_disk
        if self._disk.stale or (has_disk and (turn.touched or self._host_reserve.asked)):
            self._disk.decide()
        # 4. The host memory to prepare.
        if turn.reserve_stale or self._host_reserve.asked:
            prepare, again = self._host_reserve.decide(turn.now, turn.reserve_stale)
            turn.decisions += prepare
            self.timers.set(("pool", ""), again)
            turn.reserve_stale.clear()
        # 5. Contention: whether other groups wait for their GPUs or run there.
        self._contention.notify_holders()
        # 6. Record since when groups are in the state that the status shows.
        for group in turn.touched.values():
            state = group.state
            if state != group.shown:
                group.shown, group.since = state, turn.now
        turn.touched.clear()
        # 7. Deal with the marks that are left at once: a grant may have changed the class of a group, and so the order.
        if turn.dirty:
            self.timers.set(("again", ""), turn.now)
