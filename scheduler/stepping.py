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

A process that uses several GPUs may be stuck in the same way by itself, amid the submissions to its GPUs. Once it says
so, it is let through a bounded number of times: another that merely computes would go on for as long as it likes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import Step
from .leases import Leases
from .state import Client, Group


@dataclass(slots=True)
class _Steps:
    """Of one revocation: who was let through."""

    lease: int
    #: Seconds until others are let through.
    pause: float
    #: Those of the last round, and those who have not come to their gate again since.
    last: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    #: How often those were that had not drained.
    own: dict[int, int] = field(default_factory=dict)


class Stepper(Leases):
    """Has submissions let through that others of their group wait for."""

    #: Seconds between two steps of a group, at first and at most; and of a client that has not drained.
    shortest_step, longest_step = 0.002, 0.064
    own_step = 0.020
    #: Seconds until it is seen again whether there is room for what those lack who could be let through.
    room_step = 0.010
    #: Seconds after the revocation before the first step: by then, most have drained by themselves.
    first_step = 0.030
    #: Of the time since the revocation, what passes until the next step at least.
    step_part = 0.002
    #: So often a client that has not drained is let through, for each GPU that it has beside the first.
    most_own_steps = 8
    _steps: dict[str, _Steps]

    def _step_soon(self, group: Group) -> None:
        """Something happened to a group that may be stuck."""
        if group.lease is None or not group.yielding:
            if self._steps.pop(group.id, None) is not None:
                self._timers.set(steps(group.id), None)
            return
        if group.stuck is None and len(group.clients) == 1:
            return
        known = self._steps.get(group.id)
        if known is None or known.lease != group.lease:
            known = self._steps[group.id] = _Steps(group.lease, self.shortest_step)
        since = group.revoked_at
        if self._now >= since + self.revoke_deadline:
            return
        pause = max(known.pause, self.step_part * (self._now - since))
        self._timers.set(steps(group.id), max(self._now + pause, since + self.first_step))

    def _step_asked(self, client: Client) -> None:
        """A client has come to its gate."""
        if (known := self._steps.get(client.group.id)) is not None:
            known.elsewhere.discard(client.number)
        self._step_soon(client.group)

    def _step(self, name: str) -> None:
        """Let those through that a stuck one may wait for."""
        group, known = self.groups.get(name), self._steps.get(name)
        if group is None or known is None or known.lease != group.lease or not group.yielding:
            self._steps.pop(name, None)
            return
        if self._now >= group.revoked_at + self.revoke_deadline:
            return
        waiting = [c for c in group.clients.values() if self._is_ready(known, c)]
        ready = [c for c in waiting if self._has_room(c)]
        if ready:
            self._step_drained(group, known, ready)
            return
        if waiting:
            self._timers.set(steps(name), self._now + self.room_step)
            return
        if group.stuck is None:
            return
        own = [c for c in group.granted.values() if self._may_step(known, c)]
        for client in own:
            known.own[client.number] = known.own.get(client.number, 0) + 1
            self._out.append(Step(client.number, known.lease))
        if own:
            self._timers.set(steps(name), self._now + self.own_step)

    def _step_drained(self, group: Group, known: _Steps, ready: list[Client]) -> None:
        now_ready = {client.number for client in ready}
        if known.last and not known.last & now_ready and known.last & group.granted.keys():
            known.pause = min(2 * known.pause, self.longest_step)
        known.last = now_ready
        known.elsewhere |= now_ready
        for client in ready:
            client.lease = known.lease
            group.granted[client.number] = client
            self._set_busy(client, True)
            self._out.append(Step(client.number, known.lease, again=True))
            self._await_answer(client)
        self._touch(group)

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

    def _may_step(self, known: _Steps, client: Client) -> bool:
        """Whether one that has not drained may wait for what it submits to another GPU."""
        gpus = sum(holding.context > 0 for holding in client.holdings.values())
        return (
            not client.silent
            and client.lease == known.lease
            and known.own.get(client.number, 0) < self.most_own_steps * (gpus - 1)
        )


def steps(group: str) -> str:
    """Return the name of the timer of a group's next step."""
    return f"step {group}"
