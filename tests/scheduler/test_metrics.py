# SPDX-License-Identifier: BSD-3-Clause
"""Metrics, as a scheduler that serves clients has them, and as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.observability.counters import WAITS, Counters
from jupyter_gpushare.scheduler.observability.metrics import METRICS, text
from jupyter_gpushare.scheduler.policies import REGISTRY
from tests.support.scheduler import GIB, Scheduler, state, until


def values(found: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples by their names and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(found)
        for sample in family.samples
    }


def test_the_page_lists_every_metric(root: Path) -> None:
    page = (root / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|$", page, re.MULTILINE)
    assert rows == [
        (name, kind, ", ".join(f"`{label}`" for label in labels), meaning)
        for name, (kind, labels, meaning) in METRICS.items()
    ]


def test_a_scheduler_counts_its_actions(scheduler: Scheduler) -> None:
    gpu = scheduler.gpu
    with scheduler.client("a") as a, scheduler.client("b") as b, scheduler.control() as control:
        a.grow(6 * GIB)
        a.run()
        # Both together are more than the GPU of 8 GiB has.
        b.grow(6 * GIB)
        b.request()
        until(lambda: state(scheduler, "b")["state"] == "waiting")
        control.request("release", group="a")
        a.expect(ev.Revoke)
        a.release()
        a.evict()
        until(lambda: state(scheduler, "b")["state"] != "waiting")
        # The scheduler reads what a GPU does once a second.
        until(lambda: "gpushare_gpu_power_watts" in text(control.request("metrics")["metrics"]))
        with scheduler.client("c") as c:
            assert c.grow(20 * GIB).status == "device"
            found = values(text(control.request("metrics")["metrics"], {"node": "n1"}))
    missing = {
        name
        for name, (kind, _, _) in METRICS.items()
        if not any(n.startswith(name) for n, _ in found)
    }
    # The scheduler adds these up once a second, or has no disk.
    assert missing <= {
        "gpushare_disk_bytes",
        "gpushare_disk_failed",
        "gpushare_user_gpu_seconds_total",
        "gpushare_gpu_energy_joules_total",
        "gpushare_gpu_idle_energy_joules_total",
        "gpushare_use_seconds_total",
        "gpushare_use_energy_joules_total",
        "gpushare_use_byte_seconds_total",
        # All that was evicted was copied.
        "gpushare_uncopied_bytes_total",
    }

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted({"node": "n1", **labels}.items()))]

    assert value("gpushare_up") == 1
    assert value("gpushare_gpu_memory_bytes", gpu=gpu, kind="total") == 8 * GIB
    assert value("gpushare_revocations_total") == 1
    assert value("gpushare_out_of_memory_avoided_total") == 1
    assert value("gpushare_out_of_memory_given_total", reason="device") == 1
    assert value("gpushare_out_of_memory_given_total", reason="cap") == 0
    assert value("gpushare_moved_bytes_total", gpu=gpu, direction="out") > 0
    assert value("gpushare_gpu_power_watts", gpu=gpu) >= 72
    assert value("gpushare_connections", kind="client") == 3
    waits = [
        value("gpushare_wait_seconds_count", **{"class": c}) for c in ("interactive", "background")
    ]
    assert sum(waits) == 2
    assert value("gpushare_wait_seconds_bucket", **{"class": "interactive", "le": "+Inf"}) == 2


def test_a_missing_scheduler_is_reported_as_down() -> None:
    assert values(text(None)) == {("gpushare_up", ()): 0}


def test_an_avoided_error_counts_once_until_all_fits_again() -> None:
    core, counters = Core(REGISTRY), Counters()

    def grow(group: str, beyond: int) -> int:
        counters.observe(ev.Log("grow", group, {"promised": 1, "gpu": "G", "beyond": beyond}), core)
        return counters.avoided

    assert [grow("a", 0), grow("b", 5), grow("b", 9), grow("a", 9)] == [0, 1, 1, 2]
    assert [grow("b", 0), grow("b", 1)] == [2, 3]
    # Memory that was freed says nothing: it is looked for.
    counters.update(core)
    assert grow("b", 1) == 4


@pytest.mark.parametrize(("waited", "place"), [(0.0, 0), (0.01, 0), (0.02, 1), (1e9, len(WAITS))])
def test_a_wait_is_in_the_bucket_of_the_next_upper_bound(waited: float, place: int) -> None:
    counters = Counters()
    counters.observe(ev.Log("grant", "x", {"waited": waited}), Core(REGISTRY))
    assert counters.waits["interactive"].buckets.index(1) == place
