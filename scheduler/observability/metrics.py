# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's metrics as Prometheus reads them (docs/reference/metrics.md).

The request ``metrics`` answers samples. The client makes text of them with ``prometheus_client``: the scheduler has
no port, and does without that library, which takes 14 ms to load and ten times as long to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import Metric

#: Of ``prometheus_client.exposition``: loaded with it only.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Definition(NamedTuple):
    """A metric: what it is of, its labels, and what it means."""

    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


_GPU = ("gpu",)

METRICS: dict[str, Definition] = {
    "gpushare_up": Definition("gauge", (), "1 if the scheduler answers"),
    "gpushare_uptime_seconds": Definition("gauge", (), "since the scheduler started"),
    "gpushare_gpu_info": Definition(
        "gauge", ("gpu", "index", "name"), "1: says which GPU has which number and name"
    ),
    "gpushare_gpu_memory_bytes": Definition(
        "gauge",
        ("gpu", "kind"),
        "a GPU's memory by kind: resident, pinned, contexts, foreign (other programs), ghosts (of processes that "
        "ended), free; together they are the total. reserve: the part of free that is never promised",
    ),
    "gpushare_gpu_utilization_ratio": Definition(
        "gauge", _GPU, "part of the time in which a kernel ran, as NVML says"
    ),
    "gpushare_gpu_draining": Definition("gauge", _GPU, "1 while an administrator empties it"),
    "gpushare_gpu_leases": Definition("gauge", _GPU, "groups that hold a lease there"),
    "gpushare_gpu_waiting": Definition(
        "gauge", _GPU, "groups that wait for it and could be served"
    ),
    "gpushare_groups": Definition(
        "gauge", ("class", "state"), "lease groups: kernels and programs"
    ),
    "gpushare_users": Definition("gauge", (), "users that have lease groups"),
    "gpushare_user_memory_bytes": Definition(
        "gauge", ("user", "kind"), "a user's memory on all GPUs: resident, swapped, pinned"
    ),
    "gpushare_user_gpu_seconds_total": Definition(
        "counter",
        ("user",),
        "GPU time that a user's kernels were busy for since the scheduler started",
    ),
    "gpushare_host_memory_bytes": Definition(
        "gauge", ("kind",), "host memory for swapped data: budget, swapped, promised"
    ),
    "gpushare_wait_seconds": Definition(
        "histogram", ("class",), "how long leases were waited for, of each that was granted"
    ),
    "gpushare_moved_bytes_total": Definition(
        "counter", ("gpu", "direction"), "memory that was moved in and out"
    ),
    "gpushare_revocations_total": Definition("counter", (), "leases that were taken back"),
    "gpushare_stuck_total": Definition(
        "counter", (), "processes that did not answer a revocation in time"
    ),
    "gpushare_hibernations_total": Definition(
        "counter",
        ("kind",),
        "kernels that hibernated (hibernate), woke (wake), or could not (hibernate_failed, wake_failed)",
    ),
    "gpushare_out_of_memory_avoided_total": Definition(
        "counter",
        (),
        "allocations that were granted though all kernels' memory did not fit together; one for each kernel until all "
        "fits again",
    ),
    "gpushare_out_of_memory_given_total": Definition(
        "counter",
        ("reason",),
        "allocations that were refused: device (more than the GPU has), cap (a limit), host (nothing to back it)",
    ),
    "gpushare_underreported_total": Definition(
        "counter", (), "processes that were found to hold more than they state"
    ),
    "gpushare_outside_processes": Definition(
        "gauge", _GPU, "processes on the GPU that are no clients"
    ),
    "gpushare_connections": Definition("gauge", ("kind",), "connections: client, control"),
    "gpushare_event_loop_lag_seconds": Definition(
        "gauge", (), "longest delay of the scheduler's timer in the last minute"
    ),
}


class Sample(NamedTuple):
    """One value, with the values of its metric's labels; of a bucket of a histogram, its bound is one more."""

    name: str
    labels: Sequence[str]
    value: float


#: What `metrics` answers: samples, as tuples have become lists in JSON.
Samples = Iterable[tuple[str, Sequence[str], float]]


def families(samples: Samples | None, labels: Mapping[str, str] | None = None) -> Iterable[Metric]:
    """Return the metrics as a collector of ``prometheus_client`` does.

    Parameters
    ----------
    samples
        What the request ``metrics`` answered; None: no scheduler did.
    labels
        What all of them have in addition, such as the node.
    """
    from prometheus_client import Metric

    found: dict[str, Metric] = {}
    for sample, values, value in [("gpushare_up", (), 0.0)] if samples is None else samples:
        name = sample if sample in METRICS else sample.rpartition("_")[0]
        kind, names, text = METRICS[name]
        if name not in found:
            found[name] = Metric(name.removesuffix("_total"), text, kind)
        named = dict(zip((*names, "le"), values, strict=False))
        found[name].add_sample(sample, {**(labels or {}), **named}, value)
    return found.values()


def text(samples: Samples | None, labels: Mapping[str, str] | None = None) -> str:
    """Return the metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterable[Metric]:
            return families(samples, labels)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()
