# SPDX-License-Identifier: BSD-3-Clause
"""The class ``agent``: which groups have it, how agents make way for people, and how they share among themselves."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.views.explain import explain
from jupyter_gpushare.scheduler.views.words.explanations import with_texts
from tests.scheduler.core_machine import FREE, Lab, Process, of
from tests.scheduler.turns import Turns, waiting
from tests.support.properties import examples


def cell(lab: Lab, group: str, name: str, *, agent: bool) -> None:
    lab.do(ev.Cell(group, "begin", name, lab.now, from_kernel=False, agent=agent))


def class_of(lab: Lab, group: str) -> Any:
    return lab.group(group)["class"]


def idle(lab: Lab, name: str, gib: float, seconds: float = 0.0, **more: Any) -> Process:
    """A process that has worked, and has neither work nor a lease any more; its memory is on the GPU."""
    process = lab.runs(name, gib, **more)
    lab.works([process], seconds)
    lab.end(process)
    lab.do(ev.Release(name))
    process.release()
    return process


def leave(lab: Lab, process: Process) -> None:
    """Its Jupyter kernel ends. What its user has had stays counted."""
    del lab.processes[process.number]
    lab.do(ev.Detach(process.number))


# --- Which groups have it -------------------------------------------------------------------------


def test_a_user_can_set_the_class_agent() -> None:
    lab = Lab()
    lab.asks("a", priority="agent")
    lab.runs("a", 10)
    assert class_of(lab, "a") == "agent"
    lab.asks("a", priority="auto")
    assert class_of(lab, "a") == "interactive"


def test_an_agents_cell_sets_the_class_until_a_person_runs_one() -> None:
    lab = Lab()
    a = lab.runs("a", 10)
    cell(lab, "a", "1", agent=True)
    assert class_of(lab, "a") == "agent"
    lab.works([a], 5)
    assert class_of(lab, "a") == "agent", "however long it runs"
    lab.end(a)
    assert class_of(lab, "a") == "agent", "also afterwards"
    cell(lab, "a", "2", agent=False)
    assert class_of(lab, "a") == "interactive"


def test_an_agents_cell_during_a_persons_does_not_change_the_class() -> None:
    lab = Lab()
    lab.runs("a", 10)
    cell(lab, "a", "1", agent=False)
    cell(lab, "a", "2", agent=True)
    assert class_of(lab, "a") == "interactive"


def test_the_servers_report_decides_after_the_kernels() -> None:
    lab = Lab()
    lab.runs("a", 10)
    for name, agent in (("1", True), ("2", False), ("3", False), ("4", True)):
        before = class_of(lab, "a")
        lab.do(ev.Cell("a", "begin", name, lab.now, from_kernel=True))
        assert class_of(lab, "a") == before
        cell(lab, "a", name, agent=agent)
        assert class_of(lab, "a") == ("agent" if agent else "interactive")
        lab.do(ev.Cell("a", "end", name, lab.now, from_kernel=True))


@pytest.mark.parametrize("chosen", ["interactive", "agent", "background"])
@pytest.mark.parametrize("agent", [False, True])
def test_a_users_choice_wins(chosen: Any, agent: bool) -> None:
    lab = Lab()
    lab.asks("a", priority=chosen)
    lab.runs("a", 10)
    cell(lab, "a", "1", agent=agent)
    assert class_of(lab, "a") == chosen


def test_the_class_agent_is_explained() -> None:
    lab = Lab()
    lab.runs("a", 10)
    cell(lab, "a", "1", agent=True)
    [group] = explain(lab.core, lab.now, "a")["groups"]
    assert group["why_class"]["code"] == "agent_cell"
    assert with_texts(group)["why_class"]["text"].startswith("agent: ")


# --- Order ----------------------------------------------------------------------------------------


def test_agents_come_after_people_and_before_background_work() -> None:
    lab = Lab()
    waiting(lab, job={"priority": "background"}, agent={"priority": "agent"}, person={})
    assert lab.order == ["person", "agent", "job"]


def test_an_agent_comes_after_people_who_have_had_more_gpu_time() -> None:
    lab = Lab()
    leave(lab, idle(lab, "busy", 10, seconds=5, user="ada"))
    waiting(lab, agent={"user": "ben", "priority": "agent"}, person={"user": "ada"})
    assert lab.order == ["person", "agent"]


def test_a_persons_long_cell_comes_before_agents() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    person = lab.runs("person", 60)
    cell(lab, "person", "1", agent=False)
    lab.works([person], 5)
    lab.process("agent", 60).request()
    lab.sleep(1)
    assert of(ev.Revoke, lab.process("short", 60).request())
    person.release()
    person.request()
    assert class_of(lab, "person") == "background"
    assert [name for name in lab.order if name != "short"] == ["person", "agent"]


def test_an_agent_does_not_starve() -> None:
    lab = Lab()
    waiting(lab, agent={"priority": "agent"})
    lab.sleep(599)
    lab.process("early", 20).request()
    assert lab.order == ["early", "agent"]
    lab.sleep(30)
    lab.process("late", 20).request()
    assert lab.order[0] == "agent"


def test_the_agent_that_has_had_less_gpu_time_comes_first() -> None:
    lab = Lab()
    for name in ("rich", "poor"):
        lab.asks(name, priority="agent")
    rich = idle(lab, "rich", 10, seconds=5)
    lab.runs("full", 90)
    rich.grow(15)
    rich.request()
    lab.sleep(1)
    lab.process("poor", 20).request()
    assert lab.order == ["poor", "rich"]
    explained = explain(lab.core, lab.now, "rich")["groups"][0]
    assert explained["before"][0]["code"] == "agent_time"


def test_the_rule_that_puts_people_before_agents_is_explained() -> None:
    lab = Lab()
    waiting(lab, agent={"priority": "agent"}, person={})
    [group] = explain(lab.core, lab.now, "agent")["groups"]
    assert group["before"][0]["code"] == "people"
    assert "people's cells go before agents" in with_texts(group)["before"][0]["text"]


def test_an_agents_gpu_time_does_not_delay_its_users_cells() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    leave(lab, idle(lab, "agent", 10, seconds=5, user="ada"))
    leave(lab, idle(lab, "other", 10, seconds=1, user="ben"))
    waiting(lab, ben={"user": "ben"}, ada={"user": "ada"})
    assert lab.order == ["ada", "ben"]


# --- Paces and time slices ------------------------------------------------------------------------


def test_a_persons_burst_pauses_agents_of_all_users() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    agent, person = lab.runs("agent", 10, user="ben"), lab.runs("person", 10, user="ada")
    cell(lab, "person", "1", agent=False)
    lab.works([person], 1.5)
    assert lab.pace(agent).inflight == 0
    lab.works([person], 5)
    assert class_of(lab, "person") == "background"
    assert lab.pace(agent).inflight == 0, "the person still waits for the long cell"
    lab.end(person)
    lab.sleep(0.1)
    assert lab.pace(agent).inflight is None or lab.pace(agent).inflight > 0


def test_paused_agents_rarely_submit() -> None:
    lab = Lab()
    agents = []
    for number in range(5):
        lab.asks(f"agent{number}", priority="agent")
        agents.append(lab.runs(f"agent{number}", 5))
    person = lab.runs("person", 10)
    cell(lab, "person", "1", agent=False)
    assert person.lease
    assert [lab.pace(agent).stall for agent in agents] == [2.5] * 5


def test_an_agents_burst_pauses_background_work() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    lab.asks("job", priority="background")
    agent, job = lab.runs("agent", 10), lab.runs("job", 10)
    assert lab.pace(job).inflight == 0
    assert lab.pace(agent) == FREE


def test_background_work_does_not_pause_for_a_paused_agent() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    lab.asks("job", priority="background")
    lab.runs("agent", 10, user="ada")
    job, person = lab.runs("job", 10, user="ben"), lab.runs("person", 10, user="cy")
    lab.works([person], 3)
    cell(lab, "person", "1", agent=False)
    lab.works([person], 3)
    assert lab.pace(job).inflight is None


def test_an_agent_makes_way_for_a_person_after_two_seconds() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    agent = lab.runs("agent", 90, user="ada")
    person = lab.process("person", 90, user="ben")
    assert of(ev.Revoke, person.request()) == []
    assert of(ev.Revoke, lab.sleep(2.1)) == [ev.Revoke(agent.number, agent.lease)]


def test_a_person_does_not_make_way_for_an_agent() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    person = lab.runs("person", 90, user="ada")
    cell(lab, "person", "1", agent=False)
    lab.process("agent", 90, user="ben").request()
    assert of(ev.Revoke, lab.sleep(300)) == []
    assert of(ev.Revoke, lab.sleep(310)) == [ev.Revoke(person.number, person.lease)]


# --- Memory ---------------------------------------------------------------------------------------


def test_an_agents_memory_is_evicted_before_that_of_people() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    idle(lab, "person", 40)
    lab.sleep(60)
    agent = idle(lab, "agent", 40)
    orders = of(ev.Evict, lab.process("other", 50).request() + lab.sleep(1))
    assert [order.client for order in orders] == [agent.number]


def test_an_agent_waits_for_a_minute_before_it_takes_a_persons_memory() -> None:
    lab = Lab()
    lab.asks("agent", priority="agent")
    person = idle(lab, "person", 60)
    lab.sleep(30)
    agent = lab.process("agent", 60)
    assert of(ev.Evict, agent.request() + lab.sleep(59)) == []
    assert [order.client for order in of(ev.Evict, lab.sleep(2))] == [person.number]


# --- Among themselves -----------------------------------------------------------------------------


def jain(parts: list[float]) -> float:
    return sum(parts) ** 2 / (len(parts) * sum(part * part for part in parts))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from([0.2, 1.0, 5.0, 20.0]), min_size=2, max_size=4),
    st.booleans(),
)
def test_agents_that_take_turns_have_equal_gpu_time(lengths: list[float], one_user: bool) -> None:
    """However long their bursts are, and whether they are of one user or several."""
    turns = Turns()
    agents = []
    for number, length in enumerate(lengths):
        turns.asks(f"g{number}", priority="agent")
        user = "ada" if one_user else f"user{number}"
        agents.append(turns.plays(f"g{number}", length, user=user))
    turns.play(300, step=0.2)
    had = [turns.had(agent) for agent in agents]
    assert jain(had) >= 0.95, had


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    agents=st.lists(st.sampled_from([0.2, 1.0, 5.0]), min_size=1, max_size=3),
    person=st.sampled_from([0.2, 1.0, 5.0]),
    user=st.sampled_from(["ada", "ben"]),
)
def test_a_person_waits_no_longer_than_agents_need_to_make_way(
    agents: list[float], person: float, user: str
) -> None:
    """Whoever has had more: a person's cell waits for the drain of one agent, and each agent is served in the end."""
    turns = Turns()
    for number, length in enumerate(agents):
        turns.asks(f"g{number}", priority="agent")
        turns.plays(f"g{number}", length, user="ada")
    turns.play(20, step=0.2)
    one = turns.plays("person", person, user=user)
    turns.play(60, step=0.2)
    assert turns.longest[one.number] <= turns.core.rules.background_quantum + 0.5
