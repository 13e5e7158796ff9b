# SPDX-License-Identifier: BSD-3-Clause
"""Lets a group of several processes or GPUs release its lease even though its parts wait for each other.

The CUDA kernel of a collective operation runs on each GPU until its counterparts on the other GPUs have run. All
clients of a group are revoked at once, but their gates do not shut at the same instant: one rank's kernel may be on its
GPU while another rank's is still to be submitted. The first then never drains (STUCK), and the second waits at its gate
for the next lease.

So while a client does not drain, other clients of its group may submit once more (STEP), under the lease that is being
released. These are clients that have drained and wait at their gates. The group's memory is still there, and no other
group could use the room before the stuck client has drained anyway. A client that gets such a step drains and releases
the lease again; if that was not enough, it gets another one. Only drained clients get steps: a rank that has submitted
its part of the operation is inside it, so no rank gets ahead by more than one step's submissions.

This ends, because each step is a submission that the stuck client may wait for, or one that ends by itself. The steps
become rarer over time, and stop after ``revoke_deadline``, because then the stuck client waits for something else. The
roles may change: a client that got a step is stuck now, and waits for the first stuck client. The next step then comes
after twice the pause, until both see the end of the operation in time.

A process can also be stuck by itself: between submissions to several GPUs, or while a thread at the gate holds a lock
that a host function of a stream needs. Once it reports this (STUCK), it gets steps, too. The scheduler cannot see
whether it needs them or merely computes. So after some quick steps the pauses grow, and a program that computes soon
does so for less time than it pauses. There is no last step, because such a program might wait forever without one, and
``revoke_deadline`` does not end these steps either. Other groups are then served around the program.

The thread that holds the lock may also wait for unevictable memory. While its group is stuck, such growth comes first
in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from .answers import Answers
from .leases import Leases
from .messages import Step
from .model import Client, Group, Model
from .timers import Timer, Timers
from .turn import Turn


@dataclass(slots=True)
class _Steps:
    """The steps during one revocation."""

    lease: int
    #: Seconds until the next steps.
    pause: float
    #: The clients that got a step in the last round; and the clients among them that have not reached their gate since.
    last: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    #: The clients that have reported that they are stuck; the number of their steps; and when each may get the next
    #: one.
    stuck: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)
    own_due: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Collectives:
    """Lets clients submit once more if other clients of their group wait for them."""

    model: Model
    turn: Turn
    timers: Timers
    answers: Answers
    leases: Leases

    #: Seconds after the revocation before the first step. By then, most groups have drained by themselves.
    first_step: ClassVar[float] = 0.03
    #: The fraction of the time since the revocation that must pass before the next step.
    step_part: ClassVar[float] = 0.002
    #: Seconds after the revocation before a stuck client gets steps while other clients that have drained wait.
    first_own_step: ClassVar[float] = 5.0
    #: The number of steps of a stuck client that come after ``own_step`` each, and as many again for each GPU beyond
    #: two. Then the pause grows with the square of their number: 25 steps take 2 s, and 66 take 30 s.
    quick_own_steps: ClassVar[int] = 8

    #: By group, the steps during its revocation. It may be over, and then the next call removes them.
    steps: dict[str, _Steps] = field(default_factory=dict, init=False)

    def schedule_step(self, group: Group) -> None:
        """Set the timer of the next step of a group that may be stuck."""
        if group.lease is None or not group.yielding:
            if self.steps.pop(group.id, None) is not None:
                self.timers.set(step_timer(group.id), None)
            return
        if group.stuck is None and len(group.clients) == 1:
            return
        known = self.steps.get(group.id)
        if known is None or known.lease != group.lease:
            known = self.steps[group.id] = _Steps(group.lease, self.model.rules.shortest_step)
        since = group.revoked_at
        if group.stuck is None and self.turn.now >= since + self.model.rules.revoke_deadline:
            return
        pause = max(known.pause, self.step_part * (self.turn.now - since))
        self.timers.set(step_timer(group.id), max(self.turn.now + pause, since + self.first_step))

    def on_gate_reached(self, client: Client) -> None:
        """Note that a client waits at its gate."""
        if (known := self.steps.get(client.group.id)) is not None:
            known.elsewhere.discard(client.number)
        self.schedule_step(client.group)

    def on_stuck(self, client: Client) -> None:
        """Note that a client has reported that it is stuck."""
        self.schedule_step(client.group)
        if (known := self.steps.get(client.group.id)) is not None:
            known.stuck.add(client.number)

    def step(self, name: str) -> None:
        """Give steps to the clients that a stuck one may wait for."""
        group, known = self.model.groups.get(name), self.steps.get(name)
        if group is None or known is None or known.lease != group.lease or not group.yielding:
            self.steps.pop(name, None)
            return
        late = self.turn.now >= group.revoked_at + self.model.rules.revoke_deadline
        waiting = [] if late else [c for c in group.clients.values() if self._is_ready(known, c)]
        ready = [c for c in waiting if self._has_room(c)]
        looks: list[float] = []
        if ready:
            self._step_drained(group, known, ready)
        elif waiting:
            looks.append(self.turn.now + self.model.rules.room_step)
        if known.stuck:
            own_from = group.revoked_at + self.first_own_step if waiting else self.turn.now
            looks += [own_from] if own_from > self.turn.now else self._step_stuck(group, known)
        if looks:
            self.timers.set(step_timer(name), min(looks))

    def _step_stuck(self, group: Group, known: _Steps) -> list[float]:
        """Give steps to the clients that have reported that they are stuck; return when each is due again."""
        stuck = [client for client in group.granted.values() if client.number in known.stuck]
        for client in stuck:
            if known.own_due.get(client.number, 0.0) > self.turn.now:
                continue
            if self._has_room(client):
                known.own[client.number] = known.own.get(client.number, 0) + 1
                self.turn.decisions.append(Step(client.number, known.lease))
            known.own_due[client.number] = self.turn.now + self._own_pause(known, client)
        return [known.own_due[client.number] for client in stuck]

    def _own_pause(self, known: _Steps, client: Client) -> float:
        gpus = sum(holding.context > 0 for holding in client.holdings.values())
        quick = self.quick_own_steps * max(1, gpus - 1)
        return self.model.rules.own_step * max(1.0, (known.own.get(client.number, 0) / quick) ** 2)

    def _step_drained(self, group: Group, known: _Steps, ready: list[Client]) -> None:
        now_ready = {client.number for client in ready}
        if known.last and not known.last & now_ready and known.last & group.granted.keys():
            known.pause = min(2 * known.pause, self.model.rules.longest_step)
        known.last = now_ready
        known.elsewhere |= now_ready
        for client in ready:
            known.own_due[client.number] = self.turn.now + self._own_pause(known, client)
            self.leases.grant_step(client, known.lease)
            self.turn.decisions.append(Step(client.number, known.lease, again=True))
            self.answers.await_answer(client)
        self.turn.touch(group)

    def _is_ready(self, known: _Steps, client: Client) -> bool:
        """Whether a client has drained and waits at its gate."""
        return (
            client.lease is None
            and client.wants
            and not client.silent
            and client.number not in known.elsewhere
        )

    def _has_room(self, client: Client) -> bool:
        """Whether the memory that a client lacks may be restored: it is charged for, and there is room."""
        return client.group.floating or all(
            holding.resident >= holding.promised
            or (
                holding.share.ceiling is None
                and holding.share.gpu.filling is not holding.share
                and holding.share.gpu.free >= 0
            )
            for holding in client.holdings.values()
        )


def step_timer(group: str) -> Timer:
    """Return the timer of a group's next step."""
    return "step", group
