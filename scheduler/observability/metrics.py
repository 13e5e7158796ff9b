# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's figures as Prometheus reads them (docs/metrics.md).

``Figures`` are what the request ``metrics`` answers. The text is made by whoever asks: the scheduler has no port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .counters import WAITS

if TYPE_CHECKING:
    from prometheus_client import Metric

#: What `metrics` answers.
Figures = Mapping[str, Any]

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

_MEMORY = ("total", "reserve", "resident", "pinned", "contexts", "foreign", "ghosts", "free")


class Sample(NamedTuple):
    """One value."""

    name: str
    labels: tuple[str, ...]
    value: float


def samples(figures: Figures | None) -> Iterator[Sample]:
    """Return the values; None: the scheduler does not answer. Histograms are apart (`families`)."""
    yield Sample("gpushare_up", (), float(figures is not None))
    if figures is None:
        return
    yield Sample("gpushare_uptime_seconds", (), figures["uptime"])
    for gpu in figures["gpus"]:
        uuid = gpu["uuid"]
        yield Sample("gpushare_gpu_info", (uuid, str(gpu["index"]), gpu["name"]), 1)
        for kind in _MEMORY:
            yield Sample("gpushare_gpu_memory_bytes", (uuid, kind), gpu[kind])
        if gpu["utilization"] is not None:
            yield Sample("gpushare_gpu_utilization_ratio", (uuid,), gpu["utilization"] / 100)
        for name in ("draining", "leases", "waiting"):
            yield Sample(f"gpushare_gpu_{name}", (uuid,), float(gpu[name]))
        yield Sample("gpushare_outside_processes", (uuid,), gpu["outside"])
    for one in figures["groups"]:
        yield Sample("gpushare_groups", (one["class"], one["state"]), one["count"])
    yield Sample("gpushare_users", (), len(figures["users"]))
    for user in figures["users"]:
        for kind in ("resident", "swapped", "pinned"):
            yield Sample("gpushare_user_memory_bytes", (user["name"], kind), user[kind])
    for name, seconds in figures["gpu_seconds"].items():
        yield Sample("gpushare_user_gpu_seconds_total", (name,), seconds)
    for kind, size in figures["host"].items():
        yield Sample("gpushare_host_memory_bytes", (kind,), size)
    counted = figures["counters"]
    for move in counted["moved"]:
        labels = (move["gpu"], move["direction"])
        yield Sample("gpushare_moved_bytes_total", labels, move["bytes"])
    yield Sample("gpushare_revocations_total", (), counted["revocations"])
    yield Sample("gpushare_stuck_total", (), counted["stuck"])
    for kind in ("hibernate", "wake", "hibernate_failed", "wake_failed"):
        count = counted["hibernations"].get(kind, 0)
        yield Sample("gpushare_hibernations_total", (kind,), count)
    yield Sample("gpushare_out_of_memory_avoided_total", (), counted["avoided"])
    for reason in ("device", "cap", "host"):
        given = counted["given"].get(reason, 0)
        yield Sample("gpushare_out_of_memory_given_total", (reason,), given)
    yield Sample("gpushare_underreported_total", (), counted["underreported"])
    for kind, count in figures["connections"].items():
        yield Sample("gpushare_connections", (kind,), count)
    yield Sample("gpushare_event_loop_lag_seconds", (), figures["loop_lag"])


def families(figures: Figures | None, labels: Mapping[str, str] | None = None) -> Iterable[Metric]:
    """Return the metrics as a collector of ``prometheus_client`` does.

    Parameters
    ----------
    figures
        What the request ``metrics`` answered; None: nobody did.
    labels
        What all of them have besides, such as the node.
    """
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    more = labels or {}
    found: dict[str, Any] = {}
    for sample in samples(figures):
        family = found.get(sample.name)
        if family is None:
            kind, names, text = METRICS[sample.name]
            make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            family = found[sample.name] = make(sample.name, text, labels=[*more, *names])
        family.add_metric([*more.values(), *sample.labels], sample.value)
    if figures is not None:
        name = "gpushare_wait_seconds"
        _, names, text = METRICS[name]
        family = found[name] = HistogramMetricFamily(name, text, labels=[*more, *names])
        for kind, waits in figures["counters"]["waits"].items():
            total, buckets = 0, []
            for bound, count in zip((*map(str, WAITS), "+Inf"), waits["buckets"], strict=True):
                total += count
                buckets.append((bound, total))
            family.add_metric([*more.values(), kind], buckets, waits["sum"])
    return list(found.values())


def text(figures: Figures | None, labels: Mapping[str, str] | None = None) -> str:
    """Return the metrics in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterable[Metric]:
            return families(figures, labels)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    return generate_latest(registry).decode()
