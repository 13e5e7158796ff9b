# SPDX-License-Identifier: BSD-3-Clause
"""Users and administrators give commands."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import precondition, rule

from jupyter_gpushare.scheduler import policies
from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.world.constants import GPUS, GROUPS, MIB, USERS
from tests.scheduler.world.machine import Machine


class UserRules(Machine):
    """Rules by which users and administrators act."""

    @precondition(lambda self: self.processes)
    @rule(data=st.data(), evict=st.booleans())
    def release(self, data: Any, evict: bool) -> None:
        group = self.pick(data, list(self.processes.values())).group
        self.in_since.pop(group, None)
        self.over_since.pop(group, None)
        self.evicted.add(group)
        self.feed(ev.Release(group, evict))

    @precondition(lambda self: self.processes)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.feed(ev.Cancel(self.pick(data, list(self.processes.values())).group))

    @rule(
        group=st.sampled_from(GROUPS),
        preference=st.sampled_from(
            [
                {"priority": "background"},
                {"priority": "interactive"},
                {"priority": "agent"},
                {"priority": "auto"},
                {"keep": True},
                {"keep": False},
                {"frozen": True},
                {"frozen": False},
                {"memory": 300 * MIB},
                {"memory": 0},
                {"exclusive": True},
            ]
        ),
    )
    def adjust(self, group: str, preference: dict[str, Any]) -> None:
        self.adjust_group(group, preference)

    @precondition(lambda self: self.processes)
    @rule(
        data=st.data(),
        exclusive=st.booleans(),
        from_kernel=st.booleans(),
        agent=st.sampled_from([None, False, True]),
    )
    def cell(
        self, data: Any, exclusive: bool, from_kernel: bool, agent: bool | None = None
    ) -> None:
        """End the open cell of a group, or begin one."""
        group = self.core.groups[self.pick(data, list(self.processes.values())).group]
        if exclusive:
            self.feed(ev.Adjust(group.id, exclusive=True))
        if not group.cells:
            self.cells += 1
            self.feed(ev.Cell(group.id, "begin", str(self.cells), self.now, from_kernel, agent))
            return
        self.end_cell(group, next(iter(group.cells)), from_kernel)
        assert not group.preferences.exclusive

    @rule(group=st.sampled_from(GROUPS), count=st.sampled_from([0, 1, 3, 20]))
    def queue_cells(self, group: str, count: int) -> None:
        """Report a number of queued cells, whether it is right or wrong."""
        self.feed(ev.Queued(group, count))
        if group in self.core.groups:
            assert self.core.groups[group].queued == count

    @rule(mode=st.sampled_from(["auto", "on", "off"]))
    def configure(self, mode: Any) -> None:
        self.settings["anti_thrash"] = mode
        self.floated = self.floated or mode == "off"
        self.feed(ev.Configure(anti_thrash=mode))

    @rule(policy=st.sampled_from(sorted(policies.OURS)))
    def choose_policy(self, policy: str) -> None:
        self.settings["policy"] = policy
        self.feed(ev.Configure(policy=policy))
        assert self.core.policy.name == policy

    @rule(
        whose=st.sampled_from(["user:ada", "user:ben", "user:*", "team:all", "team:lab"]),
        share=st.sampled_from(
            [
                {},
                {"request": 0.5},
                {"limit": 0.3},
                {"weight": 3.0},
                {"gpus": 1},
                {"gpus": 1},
                {"gpus": 2},
                {"host": 600 * MIB},
            ]
        ),
    )
    def entitle(self, whose: str, share: dict[str, Any]) -> None:
        members = tuple(USERS.values()) if whose == "team:all" and share else ()
        self.feed(ev.Entitle(whose, ev.Entitlement(**share), members))

    @rule(gpu=st.sampled_from(GPUS), on=st.booleans())
    def drain(self, gpu: str, on: bool) -> None:
        self.feed(ev.Drain(gpu, on))
        assert self.core.gpus[gpu].drained == on

    @rule(group=st.sampled_from(GROUPS), on=st.booleans())
    def hold(self, group: str, on: bool) -> None:
        self.feed(ev.Hold(group, on))
        assert self.core.preferences_of(group).on_hold == on

    @rule(user=st.sampled_from(["ada", "ben"]), group=st.sampled_from(["", *GROUPS]))
    def focus(self, user: str, group: str) -> None:
        self.feed(ev.Focus(user, group))

    @rule(
        group=st.sampled_from(GROUPS), kind=st.sampled_from(["focus", "typing", "ready", "ready"])
    )
    def hint(self, group: str, kind: Any) -> None:
        self.feed(ev.Hint(group, kind))
