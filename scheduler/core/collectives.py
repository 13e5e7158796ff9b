# SPDX-License-Identifier: BSD-3-Clause
"""Lets a group of several processes, or on several GPUs, give its lease back though its parts wait for each other.

A collective operation's kernel runs on each GPU until its counterparts on the others have run. All clients of a group
are revoked at once, but their gates do not shut in one instant: one rank's kernel may be on its GPU while another's is
still to be submitted. The first then never drains (STUCK), and the second waits at its gate for the next lease.

So while a client does not drain, those of its group that have drained and wait at their gates are let through, one
submission each (STEP), under the lease that is being given back: the group's memory is all there, and nobody else could
use the room before the stuck one has drained anyway. Who has been let through drains and gives the lease back again,
and if that was not enough, is let through again. Only who has drained is: a rank that has submitted its part of the
operation is itself in it, so none gets ahead by more than what it submits in between.

It comes to an end: each step is a submission that the stuck one may wait for, or one that ends by itself. They become
rarer, the longer it takes, and after ``revoke_deadline`` there are no more, for then the stuck one waits for something
else. Where the roles change (the one that was let through is stuck now, and waits for the one that was stuck first),
the next step waits for twice as long, until both find the operation over in time.

A process may be stuck in the same way by itself: amid the submissions to several GPUs, or while a thread at the gate
holds a lock that a host function of a stream needs. Once it says so (STUCK), it is let through, too. Whether it needs
that or merely computes cannot be seen from here, so after some quick steps the pauses grow, and a program that computes
soon does so for less time than it pauses. There is no last step: without one, what such a program waits for would never
come. ``revoke_deadline`` does not end these steps either. Others are then served around the program.

The thread that holds the lock may also wait for memory that cannot move. While its group is stuck, such growth comes
first in the queue.
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
    """Of one revocation: who was let through."""

    lease: int
    #: Seconds until others are let through.
    pause: float
    #: Those of the last round, and those who have not come to their gate again since.
    last: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    #: Those that have said that they are stuck; how often they were let through, and when they may be again.
    stuck: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)
    own_due: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Collectives:
    """Lets submissions through that others of their group wait for."""

    model: Model
    turn: Turn
    timers: Timers
    answers: Answers
    leases: Leases

    #: Seconds after the revocation before the first step: by then, most have drained by themselves.
    first_step: ClassVar[float] = 0.03
    #: Of the time since the revocation, what passes until the next step at least.
    step_part: ClassVar[float] = 0.002
    #: Seconds after the revocation before a client that is stuck is let through while others that have drained wait.
    first_own_step: ClassVar[float] = 5.0
    #: So many steps of a client that is stuck come after ``own_step`` each, and as many again for each GPU beyond two.
    #: Then the pause grows with the square of their number: 25 steps take 2 s, and 66 take 30 s.
    quick_own_steps: ClassVar[int] = 8

    _steps: dict[str, _Steps] = field(default_factory=dict, init=False)

    def step_soon(self, group: Group) -> None:
        """Something happened to a group that may be stuck."""
        if group.lease is None or not group.yielding:
            if self._steps.pop(group.id, None) is not None:
                self.timers.set(steps(group.id), None)
            return
        if group.stuck is None and len(group.clients) == 1:
            return
        known = self._steps.get(group.id)
        if known is None or known.lease != group.lease:
            known = self._steps[group.id] = _Steps(group.lease, self.model.rules.shortest_step)
        since = group.revoked_at
        if group.stuck is None and self.turn.now >= since + self.model.rules.revoke_deadline:
            return
        pause = max(known.pause, self.step_part * (self.turn.now - since))
        self.timers.set(steps(group.id), max(self.turn.now + pause, since + self.first_step))

    def step_asked(self, client: Client) -> None:
        """A client has come to its gate."""
        if (known := self._steps.get(client.group.id)) is not None:
            known.elsewhere.discard(client.number)
        self.step_soon(client.group)

    def step_said_stuck(self, client: Client) -> None:
        """A client has said that it is stuck."""
        self.step_soon(client.group)
        if (known := self._steps.get(client.group.id)) is not None:
            known.stuck.add(client.number)

    def step(self, name: str) -> None:
        """Let those through that a stuck one may wait for."""
        group, known = self.model.groups.get(name), self._steps.get(name)
        if group is None or known is None or known.lease != group.lease or not group.yielding:
            self._steps.pop(name, None)
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
            self.timers.set(steps(name), min(looks))

    def _step_stuck(self, group: Group, known: _Steps) -> list[float]:
        """Let those through that have said that they are stuck, and return when each is due again."""
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
            self.leases.lend(client, known.lease)
            self.turn.decisions.append(Step(client.number, known.lease, again=True))
            self.answers.await_answer(client)
        self.turn.touch(group)

    def _is_ready(self, known: _Steps, client: Client) -> bool:
        """Whether one has drained and waits at its gate."""
        return (
            client.lease is None
            and client.wants
            and not client.silent
            and client.number not in known.elsewhere
        )

    def _has_room(self, client: Client) -> bool:
        """Whether what a client lacks may come in: it is charged for, and the room is there."""
        return client.group.floating or all(
            holding.resident >= holding.promised
            or (
                holding.share.ceiling is None
                and holding.share.gpu.filling is not holding.share
                and holding.share.gpu.free >= 0
            )
            for holding in client.holdings.values()
        )


def steps(group: str) -> Timer:
    """Return the timer of a group's next step."""
    return "step", group
