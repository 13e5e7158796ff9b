# SPDX-License-Identifier: BSD-3-Clause
"""Scenarios of prefetches: what explanations, metrics and other users are shown of them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.likelihood import HORIZON
from jupyter_gpushare.scheduler.core.prefetch import Obstacle
from jupyter_gpushare.scheduler.observability.counters import Counters
from jupyter_gpushare.scheduler.views import status as snapshot
from jupyter_gpushare.scheduler.views.explain import explain
from jupyter_gpushare.scheduler.views.redaction import Pseudonyms, View
from jupyter_gpushare.scheduler.views.words import answers
from jupyter_gpushare.scheduler.views.words.events import event_text
from jupyter_gpushare.scheduler.views.words.explanations import PREFETCHES
from tests.scheduler.core_machine import GIB, GPU, Machine, of
from tests.scheduler.prefetching import away, idle


def explained(m: Machine, group: str) -> Any:
    (found,) = answers.explanation(explain(m.core, m.now, group))["groups"]
    return found["prefetch"]


def test_an_explanation_shows_how_often_the_hint_was_right() -> None:
    m = Machine()
    a = away(m, "a", 40)
    assert explained(m, "a") is None
    m.do(ev.Hint("a", "typing"))
    found = explained(m, "a")
    assert (found["code"], found["params"]["hint"]) == ("restoring", "typing")
    assert found["text"] == (
        "getting ready, restoring its memory: its user is typing in it; GPU work follows within a minute in about 60% "
        "of cases"
    )
    a.end("quiet")
    a.restore()
    a.begin()
    a.end("cell")
    m.sleep(100)
    m.do(ev.Hint("a", "typing"))
    found = explained(m, "a")
    assert found["code"] == "there"
    assert found["params"]["trials"] == found["params"]["hits"] == 1
    lines = answers.explanation(explain(m.core, m.now, "a"))["lines"]
    assert "  ready: all of its memory is on the GPU" in lines


@pytest.mark.parametrize(
    ("obstacle", "code"),
    [
        (ev.Adjust("a", frozen=True), "stopped"),
        (ev.Drain(GPU, True), "draining"),
        (ev.Adjust("a", keep=True), "no_room"),
    ],
)
def test_an_explanation_states_why_there_is_no_prefetch(obstacle: ev.Event, code: str) -> None:
    m = Machine()
    away(m, "a", 60)
    m.runs("b", 70)
    m.do(obstacle)
    m.do(ev.Hint("a", "ready"))
    found = explained(m, "a")
    assert found["code"] == code
    assert found["text"].startswith("not getting ready: ")
    assert set(PREFETCHES) >= set(get_args(Obstacle)) - {"no_hint"}


def test_the_metrics_count_what_was_useful_and_what_was_in_vain() -> None:
    m, counters = Machine(), Counters()
    a = away(m, "a", 40)
    m.do(ev.Hint("a", "typing"))
    m.sleep(4.0)
    a.end("quiet")
    a.restore()
    a.begin()
    a.end("cell")
    m.do(ev.Release("a", evict=True))
    (order,) = of(ev.Evict, a.release())
    a.evict(order)
    m.do(ev.Hint("a", "ready"))
    a.end("quiet")
    a.restore()
    m.sleep(HORIZON)
    for line in m.history:
        counters.observe(line, m.core)
    found = {(s.name, *s.labels): s.value for s in counters.samples()}
    assert found["gpushare_prefetches_total", "used"] == 1
    assert found["gpushare_prefetches_total", "vain"] == 1
    assert found["gpushare_prefetches_total", "abandoned"] == 0
    assert found["gpushare_prefetched_bytes_total",] == 80 * GIB
    assert found["gpushare_hidden_wait_seconds_total",] == 4.0
    texts = [event_text({"kind": x.kind, **x.fields}) for x in m.history if x.kind == "prefetch"]
    assert texts == [
        "is getting ready, because it will probably be used soon",
        "used 40 GiB that a prefetch had restored, which saved about 4.0 s",
        "is getting ready, because it will probably be used soon",
        "was ready (40 GiB restored), but was not used",
    ]


def test_other_users_do_not_see_what_a_user_does_in_a_notebook() -> None:
    m = Machine()
    away(m, "a", 40, user="ada")
    m.do(ev.Hint("a", "typing"))
    owner = {"a": "ada"}.get
    ada, ben = (View(user, frozenset(), owner, Pseudonyms()) for user in ("ada", "ben"))
    status, reasons = snapshot.status(m.core, m.now), explain(m.core, m.now, "a")
    assert ada.status(status)["groups"][0]["prefetch"]["hint"] == "typing"
    assert ben.status(status)["groups"][0]["prefetch"] is None
    assert ada.explanation(reasons)["groups"][0]["prefetch"]["code"] == "restoring"
    assert ben.explanation(reasons)["groups"][0]["prefetch"] is None


def test_an_explanation_is_given_after_an_abandoned_eviction() -> None:
    m = Machine()
    away(m, "a", 60)
    b = idle(m, "b", 70, seconds=100)
    m.do(ev.Hint("a", "typing"))
    (order,) = of(ev.Evict, b.release())
    m.do(ev.Release("a"))
    assert b.evict(order) == []
    # Nothing is done any more, so nothing is looked at.
    assert m.core.prefetcher.why_not(m.core.groups["a"]) == "no_hint"
    m.do(ev.Hint("a", "focus"))
    assert explained(m, "a")["code"] == "unlikely"
    assert m.core.prefetcher.ordered == {}
