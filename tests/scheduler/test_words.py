# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from jupyter_gpushare.kernel_provisioner.in_kernel import amounts as of_kernels
from jupyter_gpushare.scheduler.core.policy_api import State
from jupyter_gpushare.scheduler.core.refusals import WHY
from jupyter_gpushare.scheduler.views.words import amounts, answers
from jupyter_gpushare.scheduler.views.words.events import event_text
from jupyter_gpushare.scheduler.views.words.groups import (
    STATES,
    estimate_text,
    hibernation_text,
    preferences_text,
    remark,
    state_text,
)
from jupyter_gpushare.scheduler.views.words.notices import notice_text
from jupyter_gpushare.scheduler.views.words.reasons import REASONS as WORDED
from jupyter_gpushare.scheduler.views.words.reasons import reason_text

GIB = 1 << 30

#: Amounts and their texts; the tests of labextension/src/core/format.ts read them, too.
FORMATS = json.loads((Path(__file__).parents[1] / "formats.json").read_text())

#: What docs/reference/control.md lists, with parameters as the scheduler gives them.
REASONS = {
    "needs_memory": {"need": 6 * GIB, "lack": 2 * GIB, "holder_name": "a", "yields_in": 3.0},
    "serialised": {"holder": "k", "holder_name": "a", "yields_in": None},
    "making_room": {"lack": GIB, "gpu": "GPU-1", "victims": ["a", "b"]},
    "filling": {
        "arrived": GIB,
        "footprint": 3 * GIB,
        "gpu": "GPU-1",
        "victims": ["b"],
    },
    "draining": {"holder": "k", "holder_name": "a", "for": 0.5},
    "stuck": {"holder": "k", "holder_name": "a", "for": 40.0, "kernel": "gemm", "kernel_for": 50.0},
    "behind": {"ahead": "k", "ahead_name": "a"},
    "residency": {"holder": "k", "holder_name": "a", "until_in": 0.2},
    "foreign_use": {"lack": GIB, "gpu": "GPU-1", "foreign": 3 * GIB},
    "crowded": {"lack": GIB, "gpu": "GPU-1", "fixed": 3 * GIB},
    "frozen": {},
    "on_hold": {},
    "quota_gpus": {"whose": "user:ada", "gpus": 1, "own": 1, "holder_name": "a", "yields_in": 3.0},
    "gpu_draining": {"gpu": "GPU-1"},
    "kept": {"holder": "k", "holder_name": "a", "until_in": 250.0, "lack": GIB, "gpu": "GPU-1"},
    "exclusive": {"holder": "k", "holder_name": "a", "until_in": 30.0, "lack": GIB, "gpu": "GPU-1"},
    "limited": {"whose": "user:ada", "until_in": 2.5},
    "thrashing": {"holder": "k", "holder_name": "a", "yields_in": 3.0},
    "waking": {"for": 0.4, "estimate": 0.8},
    "no_room": {"need": GIB, "gpu": "GPU-1", "attempts": 2},
    "dying": {"lack": GIB, "gpu": "GPU-1", "pending_reclaim": 3 * GIB},
    "returning": {"lack": GIB, "gpu": "GPU-1", "clients": 2},
    "host_memory": {"lack": GIB, "gpu": "GPU-1", "until_in": 20.0},
    "restore_failed": {"attempts": 3, "error": 999},
}


#: A status in which nothing goes on.
NOTHING = {
    **{"groups": [], "gpus": [], "notices": []},
    "settings": {"policy": "burst", "quantum": 0.5, "anti_thrash": "auto", "hibernate_after": 600},
}


def test_every_documented_reason_has_words() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "control.md").read_text(
        encoding="utf-8"
    )
    table = page.split("| code | params |")[1].split("\n\n")[0]
    documented = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(documented) == set(WORDED) == set(REASONS)


@pytest.mark.parametrize("code", REASONS)
def test_a_reason_is_worded_with_its_figures(code: str) -> None:
    text = reason_text({"code": code, "params": REASONS[code]})
    assert text not in ("", code)
    names = ["a"] if "holder_name" in REASONS[code] or "ahead_name" in REASONS[code] else []
    assert all(re.search(rf"\b{name}\b", text) for name in names)


@pytest.mark.parametrize(
    ("code", "params", "text"),
    [
        ("needs_memory", {}, "needs 2 GiB more; a's turn ends within 3.0 s"),
        (
            "needs_memory",
            {"yields_in": None},
            "needs 2 GiB more; a's turn ends when its work is done",
        ),
        ("making_room", {}, "making room by evicting 1 GiB of a, b"),
        ("making_room", {"victims": []}, "making room by evicting 1 GiB"),
        ("filling", {}, "restoring its memory while evicting b: 1 GiB of 3 GiB"),
        ("filling", {"victims": []}, "restoring its memory: 1 GiB of 3 GiB"),
        (
            "kept",
            {},
            "needs 1 GiB more; a keeps its idle memory on the GPU, for at most 4 min 10 s more",
        ),
        ("kept", {"until_in": None}, "needs 1 GiB more; a keeps its idle memory on the GPU"),
        (
            "exclusive",
            {},
            "a has the GPU to itself for one cell, for at most 30 s more",
        ),
        ("exclusive", {"lack": 0}, "a has the GPU to itself for one cell, for at most 30 s more"),
        ("frozen", {}, "frozen; unfreeze it to continue"),
        ("quota_gpus", {}, "user ada may use 1 GPU at once; a's turn ends within 3.0 s"),
        (
            "quota_gpus",
            {"holder_name": None, "whose": "team:lab", "gpus": 2},
            "team lab may use 2 GPUs at once; other notebooks of the same user or team are ahead",
        ),
        (
            "quota_gpus",
            {"own": 2},
            "user ada may use 1 GPU at once, and this notebook alone uses 2; restart it on fewer GPUs",
        ),
        (
            "draining",
            {"kernel": "void sgemm<float>(int)", "kernel_for": 3.2},
            "the CUDA kernel `void sgemm<float>(int)` of a has been running for 3.2 s",
        ),
        (
            "draining",
            {"kernel": "k" * 100, "kernel_for": 3.2},
            f"the CUDA kernel `{'k' * 57}...` of a has been running for 3.2 s",
        ),
        (
            "draining",
            {"kernel": None},
            "waiting for a to finish its queued GPU work (0.5 s so far)",
        ),
        (
            "limited",
            {},
            "user ada has reached the GPU time limit; more in 2.5 s",
        ),
        (
            "limited",
            {"whose": "team:course"},
            "team course has reached the GPU time limit; more in 2.5 s",
        ),
        (
            "limited",
            {"whose": "group:k"},
            "it has reached the GPU time limit; more in 2.5 s",
        ),
        (
            "thrashing",
            {},
            "paging slowed both notebooks down when they ran side by side, so they take turns; "
            "a's turn ends within 3.0 s",
        ),
    ],
)
def test_reasons_and_codes_become_sentences(
    code: str, params: dict[str, object], text: str
) -> None:
    assert reason_text({"code": code, "params": {**REASONS[code], **params}}) == text


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        ((4.0, 2.5, 9.0), "about 4 s (2-9 s)"),
        ((0.42, 0.28, 1.11), "about 0.4 s (0.2-1.2 s)"),
        ((0.0, 0.0, 0.0), "about 0.0 s (at most 0.0 s)"),
        ((65.0, 40.0, 130.2), "about 1 min 5 s (40 s to 2 min 10 s)"),
        ((58.0, 50.0, 59.4), "about 58 s (50-60 s)"),
    ],
)
def test_estimates_are_worded(estimate: tuple[float, float, float], text: str) -> None:
    found = dict(zip(("seconds", "low", "high"), estimate, strict=True))
    assert estimate_text(found) == text


@pytest.mark.parametrize("nothing", [None, {}, 4.0])
def test_an_invalid_estimate_has_no_words(nothing: object) -> None:
    assert estimate_text(nothing) == ""


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (
            {"state": "hibernated", "hibernation": {"frees": 719 << 20, "estimate": 1.2}},
            "freed 719 MiB; wakes in about 1.2 s",
        ),
        ({"state": "hibernated", "hibernation": {"frees": GIB, "estimate": None}}, "freed 1 GiB"),
        (
            {
                "state": "waking",
                "hibernation": {"state": "waking", "frees": GIB, "estimate": 1.2},
                "reason": {"code": "waking", "params": {"for": 0.4, "estimate": 0.8}},
            },
            "waking up from hibernation (about 0.8 s more)",
        ),
        ({"state": "idle", "hibernation": {"state": "parking"}}, "is being hibernated"),
        (
            {"state": "running", "hibernation": {"state": "ordered"}},
            "will hibernate as soon as it is idle",
        ),
        (
            {"state": "idle", "hibernation": {"state": "refused", "code": "ipc", "text": "x"}},
            "cannot hibernate: x",
        ),
        # Hibernation that is off, or that does not apply, has no remark.
        ({"state": "idle", "hibernation": {"state": "refused", "code": "off", "text": "x"}}, ""),
        ({"state": "idle", "hibernation": None}, ""),
    ],
)
def test_hibernation_states_are_worded(group: dict[str, object], text: str) -> None:
    assert remark(group) == text


def test_queued_cells_are_worded() -> None:
    for count, text in ((0, ""), (1, "1 more cell is queued"), (20, "20 more cells are queued")):
        assert remark({"state": "running", "queued": count}) == text


def test_reasons_against_hibernation_are_worded() -> None:
    assert hibernation_text({}) == ""
    assert hibernation_text({"hibernation": {"able": None, "code": None, "text": ""}}) == ""
    found = {"able": False, "code": "driver", "text": "the driver is older than 570"}
    assert hibernation_text({"hibernation": found}) == (
        "Hibernation is unavailable: the driver is older than 570"
    )


def test_the_panel_shows_reasons_in_the_schedulers_words() -> None:
    panel = Path(__file__).parents[2] / "labextension" / "src" / "words" / "refusals.ts"
    texts = dict(
        re.findall(
            r"case '(\w+)':\s+return trans\.__\(\s*['\"](.*?)['\"]\s*\);",
            panel.read_text(encoding="utf-8"),
        )
    )
    assert texts == WHY


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            {"kind": "hibernate", "bytes": 719 << 20, "seconds": 0.64},
            "was hibernated in 0.6 s, which freed 719 MiB",
        ),
        ({"kind": "wake", "seconds": 0.5}, "woke in 0.5 s"),
        ({"kind": "wake", "seconds": 0.5, "gpu": "GPU-1"}, "woke in 0.5 s on GPU-1"),
        ({"kind": "hibernate_failed", "code": "ipc", "text": "x"}, "could not be hibernated: x"),
        ({"kind": "wake_failed", "code": "failed", "text": "x"}, "could not be woken: x"),
        ({"kind": "wake_failed", "code": "room", "text": "x"}, "could not be woken yet: x"),
        ({"kind": "hibernate_failed", "code": "ipc", "text": ""}, "could not be hibernated: ipc"),
        (
            {
                **{"kind": "notice", "code": "hibernation_stuck"},
                "params": {"name": "a", "pid": 7, "step": "park"},
            },
            "is taking longer than expected to hibernate (pid 7). It will continue in the background.",
        ),
        (
            {
                **{"kind": "settings", "policy": "burst", "quantum": "auto"},
                **{"anti_thrash": "auto", "hibernate_after": None},
            },
            "policy burst, quantum auto, anti-thrash auto, hibernation off",
        ),
    ],
)
def test_events_are_worded(event: dict[str, object], text: str) -> None:
    assert event_text(event) == text


def test_preferences_are_worded() -> None:
    usual = {"priority": "auto", "keep": False, "frozen": False, "memory": 0, "limit": 0.0}
    assert preferences_text(usual) == preferences_text(None) == ""
    assert preferences_text({**usual, "priority": "interactive", "weight": 1.0}) == "interactive"
    asked = {"priority": "background", "keep": True, "frozen": True, "memory": 20 * GIB}
    asked |= {"request": 0.125, "limit": 0.5, "weight": 2.0}
    assert preferences_text({**asked, "exclusive": True}) == (
        "background, keep, frozen, memory 20 GiB, request 12.5%, limit 50%, weight 2, exclusive"
    )


@pytest.mark.parametrize(
    ("why", "error", "words"),
    [("full", "", "maximum size"), ("slow", "", "faster than"), ("failed", "no space", "no space")],
)
def test_the_end_of_a_recording_is_worded(why: str, error: str, words: str) -> None:
    params = {"file": "/f", "why": why, "error": error}
    text = notice_text({"group": "", "code": "recording_ended", "params": params}, "")
    assert text.startswith("the recording to /f ended: ")
    assert words in text


def test_an_unknown_reason_stays_a_code() -> None:
    assert reason_text({"code": "new_one", "params": {}}) == "new one"
    assert reason_text({"code": "needs_memory", "params": {}}) == "needs memory"
    assert reason_text(None) == ""


@pytest.mark.parametrize(("count", "text"), FORMATS["sizes"])
def test_sizes_are_worded(count: float, text: str) -> None:
    assert amounts.size(count) == of_kernels.size(count) == text


@pytest.mark.parametrize(("fraction", "text"), FORMATS["fractions"])
def test_fractions_are_worded(fraction: float, text: str) -> None:
    assert amounts.percent(fraction) == of_kernels.percent(fraction) == text


@pytest.mark.parametrize(("seconds", "text"), FORMATS["durations"])
def test_durations_are_worded(seconds: float, text: str) -> None:
    assert amounts.duration(seconds) == of_kernels.duration(seconds) == text


def test_notices_are_worded() -> None:
    notice = {"group": "k", "code": "started_without_interposer", "params": {"status": -11}}
    text = notice_text(notice, "a.ipynb")
    assert text.startswith("a.ipynb uses the GPU without taking turns")
    assert "-11" in text
    assert notice_text({"code": "new_one"}, "a.ipynb") == "a.ipynb: new one"
    stuck = {"code": "hibernation_stuck", "params": {"name": "a", "pid": 7, "step": "restore"}}
    assert (
        notice_text(stuck, "a")
        == "a is taking longer than expected to wake (pid 7). It will continue in the background."
    )
    stuck["params"] = {"name": "", "pid": 0, "step": "park"}
    told = notice_text(stuck, "another user")
    assert (
        told
        == "another user is taking longer than expected to hibernate. It will continue in the background."
    )


def test_a_notice_without_a_group_names_none() -> None:
    params = {"policy": "ours", "instead": "burst", "error": "No."}
    found = {"code": "policy_failed", "params": params}
    assert notice_text(found, "") == 'the policy "ours" failed and was replaced by "burst": No.'
    found["params"] = {**params, "error": ""}
    assert notice_text(found, "") == 'the policy "ours" failed and was replaced by "burst"'
    assert notice_text({"code": "new_one", "params": {}}, "") == "new one"


@pytest.mark.parametrize("value", ["x", -1, 1e999, [], {}, None])
@pytest.mark.parametrize("code", ["underreported", "hibernation_stuck", "stuck", "policy_failed"])
def test_parameters_of_any_kind_do_no_harm(code: str, value: object) -> None:
    """A program may give a notice any parameters, and the scheduler makes its sentence."""
    keys = ("bytes", "user", "pid", "step", "policy", "instead", "error")
    for key in keys:
        assert notice_text({"code": code, "params": {key: value}}, "a")
    assert notice_text({"code": code, "params": dict.fromkeys(keys, value)}, "a")


def test_a_status_is_in_the_order_in_which_it_is_listed() -> None:
    states = ["idle", "waiting", "of_a_newer_scheduler", "running"]
    groups = [
        {"id": name, "name": name, "state": state, "position": None, "reason": None}
        for name, state in zip("abcd", states, strict=True)
    ]
    reason = {"code": "behind", "params": {"ahead_name": "d"}}
    groups[1] |= {"position": 2, "reason": reason, "preferences": {"keep": True}}
    notice = {"group": "d", "code": "new_one", "params": {}}
    said = answers.status({**NOTHING, "groups": groups, "notices": [notice]})
    assert [group["id"] for group in said["groups"]] == ["d", "b", "a", "c"]
    waits = said["groups"][1]
    assert waits["words"] == {
        "state": "waiting (2)",
        "preferences": "keep",
        "why": "d is ahead in the queue",
    }
    assert waits["reason"] == {**reason, "text": "d is ahead in the queue"}
    assert said["notices"] == [{**notice, "text": "d: new one"}]


def test_unstated_memory_is_worded() -> None:
    process = {"gpu": "GPU-1", "pid": 9, "user": "ada", "bytes": GIB, "claimed": 1 << 20}
    gpu = {"uuid": "GPU-1", "index": 3, "draining": True}
    codes = ("outside", "underreported")
    processes = [{**process, "code": code} for code in codes]
    said = answers.status({**NOTHING, "gpus": [gpu], "processes": processes})
    assert [one["text"] for one in said["processes"]] == [
        "a program not managed by gpushare (ada, pid 9) uses 1 GiB on GPU 3",
        "a kernel (ada, pid 9) uses 1 GiB on GPU 3 but reports only 1 MiB",
    ]
    assert said["words"] == {
        "draining": ["GPU 3 is draining: no new leases are granted"],
        "hibernation": "",
        "settings": "policy burst, quantum 0.5 s, anti-thrash auto, hibernate after 10 min",
    }


def test_one_state_has_one_word_everywhere() -> None:
    root = Path(__file__).parents[2]
    lab = (root / "labextension" / "src" / "words" / "short.ts").read_text()
    function = re.search(r"function stateName\(.*?\n\}", lab, re.S)
    assert function
    said = dict(re.findall(r"case '(\w+)':\s+return trans\.__\('([^']*)'\)", function[0]))
    assert said == STATES
    assert set(STATES) == set(get_args(State))


def test_states_are_worded() -> None:
    assert state_text({"state": "idle_lease", "position": None}) == "idle lease"
    assert preferences_text({"on_hold": True}) == "on hold"
    assert state_text({"state": "waiting", "position": 2}) == "waiting (2)"
    assert state_text({"state": "of_a_newer_scheduler"}) == "of_a_newer_scheduler"
