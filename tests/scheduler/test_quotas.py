# SPDX-License-Identifier: BSD-3-Clause
"""Quotas of GPUs and of memory, drained GPUs, and what is kept from running (``scheduler/core/quotas.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.views.explain import explain
from tests.scheduler.quota_node import GIB, Kernel, Node

#: Seconds that 10 GiB may stay, and a little.
QUANTUM = 10.1


def quota(node: Node, whose: str, members: tuple[str, ...] = (), **entitlement: Any) -> None:
    node.do(ev.Entitle(whose, ev.Entitlement(**entitlement), members))


# --- GPUs at once ---------------------------------------------------------------------------------


def test_a_group_beyond_its_gpu_quota_waits_and_delays_no_other() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    first, second = node.kernel("a1", "ada", "GPU-0"), node.kernel("a2", "ada", "GPU-1")
    other = node.kernel("b", "ben", "GPU-1", 95)
    first.run()
    second.run()
    assert first.lease
    assert not second.lease
    assert second.reason["code"] == "quota_gpus"
    params = second.reason["params"]
    assert {name: params[name] for name in ("whose", "gpus", "own", "holder_name")} == {
        "whose": "user:ada", "gpus": 1, "own": 1, "holder_name": "a1.ipynb",
    }  # fmt: skip
    assert 0 < params["yields_in"] <= 30
    # There is no room for both it and ben: a request that is passed over is not ahead of ben.
    other.run()
    assert other.lease
    (told,) = explain(node.core, node.now, "a2")["groups"]
    assert told["next"] == {"code": "quota", "params": {"whose": "user:ada", "gpus": 1}}


def test_groups_of_the_same_user_release_at_once_if_idle_or_after_their_quantum() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    first, second = node.kernel("a1", "ada", "GPU-0"), node.kernel("a2", "ada", "GPU-1")
    first.run()
    first.end()
    second.run()
    # The first group was idle, so that none had to wait.
    assert (first.lease, bool(second.lease)) == (0, True)
    first.run()
    assert first.reason["params"]["holder"] == "a2"
    node.sleep(first.reason["params"]["yields_in"] + 0.1)
    assert first.lease
    assert not second.lease
    # And back, for as long as both want it: their turns are equally long.
    second.run()
    node.sleep(QUANTUM)
    assert second.lease


def test_an_idle_group_is_not_revoked_before_the_waiting_group_could_run() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    first, second = node.kernel("a1", "ada", "GPU-0", 5), node.kernel("a2", "ada", "GPU-1", 60)
    other = node.kernel("b", "ben", "GPU-1", 90)
    other.run()
    first.run()
    first.end()
    second.run()
    # It does nothing, but neither could the second before ben's turn is over.
    assert first.lease
    first.run()
    node.sleep(29)
    assert first.lease
    node.sleep(3)
    assert not first.lease
    assert second.lease
    assert not other.lease


def test_groups_on_gpus_already_in_use_run_side_by_side() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    first, second = node.kernel("a1", "ada", "GPU-0"), node.kernel("a2", "ada", "GPU-0")
    first.run()
    second.run()
    assert first.lease
    assert second.lease


def test_a_later_group_on_a_gpu_in_use_does_not_prolong_a_wait() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    first, second = node.kernel("a1", "ada", "GPU-0"), node.kernel("a2", "ada", "GPU-1")
    third = node.kernel("a3", "ada", "GPU-0")
    first.run()
    second.run()
    third.run()
    # It would fit beside the first, and keep its GPU in use.
    assert not third.lease
    assert third.reason["code"] == "quota_gpus"
    node.sleep(QUANTUM)
    assert second.lease
    node.sleep(QUANTUM)
    assert third.lease


def test_a_team_quota_applies_to_all_its_users_together() -> None:
    node = Node()
    quota(node, "team:lab", ("cy",), gpus=1)
    first = node.kernel("a", "ada", "GPU-0", teams=("staff", "lab"))
    second = node.kernel("b", "cy", "GPU-1")
    stranger = node.kernel("c", "ben", "GPU-2", teams=("staff",))
    for kernel in (first, second, stranger):
        kernel.run()
    assert [bool(k.lease) for k in (first, second, stranger)] == [True, False, True]
    assert second.reason["params"]["whose"] == "team:lab"


def test_the_default_quota_applies_to_each_user_without_an_entry() -> None:
    node = Node()
    quota(node, "user:*", gpus=1)
    quota(node, "user:ben", gpus=2)
    kernels = [
        node.kernel(f"{user}{gpu}", user, f"GPU-{gpu}") for user in ("ada", "ben") for gpu in (0, 1)
    ]
    for kernel in kernels:
        kernel.run()
    assert [bool(k.lease) for k in kernels] == [True, False, True, True]
    assert kernels[1].reason["params"]["whose"] == "user:ada"
    quota(node, "user:*")
    node.sleep(0.1)
    assert kernels[1].lease


def test_one_kernel_cannot_begin_to_use_more_gpus_than_the_quota() -> None:
    node = Node()
    quota(node, "user:ada", gpus=1)
    kernel = node.kernel("a", "ada", "GPU-0")
    kernel.run()
    answer = kernel.grow("GPU-1", 1, context=1)
    assert answer.status == "cap"
    assert answer.text == (
        "user ada may use 1 GPU at once, and this kernel already uses as many; "
        "select it with CUDA_VISIBLE_DEVICES"
    )
    # What it was refused does not count as used.
    kernel.end()
    node.do(ev.Release("a"))
    kernel.run()
    assert kernel.lease


def test_a_kernel_above_a_lowered_quota_stops_with_the_reason() -> None:
    node = Node()
    kernel = node.kernel("a", "ada", "GPU-0")
    kernel.grow("GPU-1", 5)
    other = node.kernel("b", "ada", "GPU-2")
    kernel.run()
    quota(node, "user:ada", gpus=1)
    assert not kernel.lease
    kernel.run()
    other.run()
    assert other.lease
    assert kernel.reason["code"] == "quota_gpus"
    assert kernel.reason["params"] == {"whose": "user:ada", "gpus": 1, "own": 2}
    (told,) = explain(node.core, node.now, "a")["groups"]
    assert told["next"]["code"] == "administrator"


def test_a_holder_that_begins_to_use_another_gpu_keeps_within_the_quota() -> None:
    node = Node()
    quota(node, "user:ada", gpus=2)
    first, second = node.kernel("a", "ada", "GPU-0"), node.kernel("b", "ada", "GPU-1")
    first.run()
    second.run()
    assert first.lease
    assert second.lease
    first.grow("GPU-2", 5)
    # The oldest stays, and the other one waits for its turn.
    assert first.lease
    assert not second.lease
    second.run()
    assert second.reason["code"] == "quota_gpus"
    node.sleep(1.5 * QUANTUM)
    assert second.lease


# --- Memory over all GPUs -------------------------------------------------------------------------


def test_growth_beyond_the_bound_for_all_gpus_is_refused_with_the_figures() -> None:
    node = Node()
    quota(node, "user:ada", host=30 * GIB)
    node.kernel("a", "ada", "GPU-0", 20)
    kernel = node.kernel("b", "ada", "GPU-1", 5)
    answer = kernel.grow("GPU-1", 8)
    assert answer.status == "host"
    assert answer.text == (
        "8.00 GiB more would exceed the host memory quota of user ada by 3.00 GiB, because all GPU memory may have "
        "to be evicted to the host"
    )
    assert kernel.grow("GPU-1", 5).status == "swapped"
    assert node.kernel("c", "ben", "GPU-1", 60).usages


@pytest.mark.parametrize(
    ("entitlement", "sentence"),
    [
        ({"gpus": -1}, "gpus must be a whole number of GPUs, at most 1024, 0 for no limit, not -1"),
        ({"gpus": 1.5}, "gpus must be"),
        ({"gpus": True}, "gpus must be"),
        ({"gpus": 4096}, "gpus must be"),
        ({"host": -1}, "host must be a whole number of bytes, 0 for no limit, not -1"),
        ({"host": "1GiB"}, "host must be"),
    ],
)
def test_impossible_quotas_are_refused(entitlement: Any, sentence: str) -> None:
    node = Node()
    with pytest.raises(ValueError, match=sentence):
        quota(node, "user:ada", **entitlement)
    assert not node.core.times.counted


# --- Drained GPUs ---------------------------------------------------------------------------------


def test_a_drained_gpu_becomes_empty_and_grants_nothing_until_undrained() -> None:
    node = Node(2)
    runs, idle = node.kernel("a", "ada", "GPU-0", 20), node.kernel("b", "ben", "GPU-0", 20)
    idle.run()
    idle.end()
    runs.run()
    elsewhere = node.kernel("c", "cy", "GPU-1")
    node.do(ev.Drain("GPU-0", True))
    # An idle group releases at once; a running group keeps its quantum.
    assert (idle.lease, idle.usages["GPU-0"].resident) == (0, 0)
    assert runs.lease
    elsewhere.run()
    assert elsewhere.lease
    node.sleep(31)
    assert (runs.lease, runs.usages["GPU-0"].resident) == (0, 0)
    runs.run()
    assert not runs.lease
    assert runs.reason == {"code": "gpu_draining", "params": {"gpu": "GPU-0"}}
    assert runs.said["estimate"] is None
    assert [gpu["draining"] for gpu in node.status()["gpus"]] == [True, False]
    node.do(ev.Drain("GPU-0", False))
    assert runs.lease
    drains = [entry.fields for entry in node.history if entry.kind == "drain"]
    assert drains == [{"gpu": "GPU-0", "on": True}, {"gpu": "GPU-0", "on": False}]


def test_a_whole_cell_does_not_prevent_a_drain() -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0", 20)
    node.do(ev.Cell("a", "begin", "1", node.now, from_kernel=True))
    kernel.run()
    node.do(ev.Adjust("a", exclusive=True))
    node.do(ev.Drain("GPU-0", True))
    node.sleep(31)
    assert not kernel.lease


def test_no_context_begins_on_a_drained_gpu_until_undrained() -> None:
    node = Node(1)
    node.do(ev.Drain("GPU-0", True))
    kernel = Kernel(node, 1, "a")
    node.kernels[1] = kernel
    node.do(ev.Attach(1, 7, "a", "a.ipynb", "swap", user="ada"))
    node.do(ev.Grow(1, 1, ev.Usage("GPU-0", context=GIB), 0))
    assert kernel.answer is None
    assert kernel.reason["code"] == "gpu_draining"
    node.do(ev.Drain("GPU-0", False))
    assert kernel.answer is not None
    assert kernel.answer.status == "resident"


def test_an_unknown_gpu_cannot_be_drained() -> None:
    node = Node(1)
    with pytest.raises(ValueError, match=r"knows no GPU 'GPU-9'; it knows GPU-0"):
        node.do(ev.Drain("GPU-9", True))


# --- Held, and told -------------------------------------------------------------------------------


def test_a_group_on_hold_waits_until_an_administrator_resumes_it() -> None:
    node = Node(1)
    kernel = node.kernel("a", "ada", "GPU-0")
    kernel.run()
    node.do(ev.Hold("a", True))
    assert not kernel.lease
    kernel.run()
    assert kernel.reason == {"code": "on_hold", "params": {}}
    with pytest.raises(ValueError, match="only an administrator can let it continue"):
        node.do(ev.Adjust("a", frozen=False))
    # Its other preferences are accepted.
    node.do(ev.Adjust("a", priority="background"))
    assert kernel.said["preferences"]["on_hold"] is True
    # Also as a new process of the same kernel.
    node.do(ev.Detach(kernel.number))
    again = node.kernel("a", "ada", "GPU-0")
    again.run()
    assert not again.lease
    node.do(ev.Hold("a", False))
    assert again.lease


def test_maintenance_is_announced_once_and_removed_when_it_is_over() -> None:
    node = Node(1)
    assert node.status()["maintenance"] is None
    for text in ("stops at 18:00", "stops at 18:00", "stops at 19:00"):
        node.do(ev.Maintain(text))
    assert node.status()["maintenance"] == "stops at 19:00"
    told = [(e.kind, e.fields["params"]["text"]) for e in node.history if e.kind == "notice"]
    assert told == [("notice", "stops at 18:00"), ("notice", "stops at 19:00")]
    assert [n["params"]["text"] for n in node.status()["notices"]] == ["stops at 19:00"]
    node.do(ev.Maintain(""))
    assert node.status()["maintenance"] is None
    assert node.status()["notices"] == []
    assert node.history[-1] == ev.Log("maintenance", "", {"text": ""})
