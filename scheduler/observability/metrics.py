# SPDX-License-Identifier: BSD-3-Clause
"""The scheduler's metrics as Prometheus reads them (docs/reference/metrics.md).

The request ``metrics`` returns samples, of which the client makes text with ``prometheus_client``. The scheduler has no
port, and does not load that library, which takes 14 ms to load and ten times as long to count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import Metric

#: As in ``prometheus_client.exposition``, which is only loaded when needed.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Definition(NamedTuple):
    """A metric: its name, its labels, and its meaning."""

    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


_GPU = ("gpu",)
_WHOSE = ("user", "team")

METRICS: dict[str, Definition] = {
    "gpushare_up": Definition(
        "gauge",
        (),
        "1 if the scheduler responds",
    ),
    "gpushare_uptime_seconds": Definition(
        "gauge",
        (),
        "time since the scheduler started",
    ),
    "gpushare_gpu_info": Definition(
        "gauge",
        ("gpu", "index", "name"),
        "always 1; its labels hold the GPU's index and name",
    ),
    "gpushare_gpu_memory_bytes": Definition(
        "gauge",
        ("gpu", "kind"),
        "memory of a GPU by kind: resident, unevictable, contexts, foreign (other programs), pending_reclaim "
        "(processes that have exited), free. Their sum is the total. reserve is the part of free that is never "
        "promised",
    ),
    "gpushare_gpu_utilization_ratio": Definition(
        "gauge",
        _GPU,
        "fraction of the time in which a CUDA kernel ran, as reported by NVML",
    ),
    "gpushare_gpu_power_watts": Definition(
        "gauge",
        _GPU,
        "power of a GPU, as reported by NVML; missing if NVML has no figure",
    ),
    "gpushare_gpu_energy_joules_total": Definition(
        "counter",
        _GPU,
        "energy of a GPU; missing if it is not measured",
    ),
    "gpushare_gpu_idle_energy_joules_total": Definition(
        "counter",
        _GPU,
        "the part of a GPU's energy that it consumed while no notebook was computing",
    ),
    "gpushare_gpu_draining": Definition(
        "gauge",
        _GPU,
        "1 while the GPU is being drained",
    ),
    "gpushare_gpu_leases": Definition(
        "gauge",
        _GPU,
        "notebooks and programs that hold a lease on the GPU",
    ),
    "gpushare_gpu_waiting": Definition(
        "gauge",
        _GPU,
        "notebooks and programs that are waiting for the GPU and could be served",
    ),
    "gpushare_groups": Definition(
        "gauge",
        ("class", "state"),
        "notebooks and programs",
    ),
    "gpushare_users": Definition(
        "gauge",
        (),
        "users with notebooks or programs",
    ),
    "gpushare_user_memory_bytes": Definition(
        "gauge",
        ("user", "kind"),
        "a user's memory on all GPUs: resident, swapped (in host memory), unevictable; and disk (evicted data on disk)",
    ),
    "gpushare_user_memory_clean_bytes": Definition(
        "gauge",
        ("user",),
        "the part of a user's resident memory that can be evicted without a copy, because it has not changed",
    ),
    "gpushare_user_memory_shared_bytes": Definition(
        "gauge",
        ("user",),
        "the part of a user's swapped memory that other notebooks of the same user also hold; it is stored once, and "
        "counts for each of them",
    ),
    "gpushare_user_gpu_seconds_total": Definition(
        "counter",
        ("user",),
        "GPU time that a user's notebooks have used",
    ),
    "gpushare_use_seconds_total": Definition(
        "counter",
        _WHOSE,
        "GPU time that the notebooks of a user and team have used",
    ),
    "gpushare_use_energy_joules_total": Definition(
        "counter",
        _WHOSE,
        "energy of the GPUs for these notebooks, without idle energy; missing if it is not measured",
    ),
    "gpushare_use_byte_seconds_total": Definition(
        "counter",
        (*_WHOSE, "kind"),
        "memory of these notebooks, multiplied by time: gpu (on GPUs), host (evicted data in host memory), disk "
        "(evicted data on disk)",
    ),
    "gpushare_use_moved_bytes_total": Definition(
        "counter",
        _WHOSE,
        "memory of these notebooks that was restored and evicted",
    ),
    "gpushare_host_memory_bytes": Definition(
        "gauge",
        ("kind",),
        "evicted data: budget (of host memory), swapped (host memory in use), shared (host memory saved by storing "
        "equal data once), disk (data on disk), promised",
    ),
    "gpushare_disk_bytes": Definition(
        "gauge",
        ("kind",),
        "disk for evicted data of idle notebooks: size (the most that may be there), used, written and read (since the "
        "start). Missing if there is no disk",
    ),
    "gpushare_disk_failed": Definition(
        "gauge",
        (),
        "1 if no more data goes to the disk because of an error. Missing if there is no disk",
    ),
    "gpushare_wait_seconds": Definition(
        "histogram",
        ("class",),
        "waiting time of each granted lease",
    ),
    "gpushare_moved_bytes_total": Definition(
        "counter",
        ("gpu", "direction"),
        "memory that was restored (in) and evicted (out)",
    ),
    "gpushare_uncopied_bytes_total": Definition(
        "counter",
        ("gpu", "reason"),
        "memory that was evicted without a copy: clean (it had not changed), zero (it was all zeros), shared (another "
        "notebook of the user has the same data in host memory)",
    ),
    "gpushare_revocations_total": Definition(
        "counter",
        (),
        "revoked leases",
    ),
    "gpushare_stuck_total": Definition(
        "counter",
        (),
        "processes that did not respond to a revocation in time",
    ),
    "gpushare_hibernations_total": Definition(
        "counter",
        ("kind",),
        "hibernations (hibernate, hibernate_failed) and wakes (wake, wake_failed)",
    ),
    "gpushare_prefetches_total": Definition(
        "counter",
        ("result",),
        "prefetches by result: used, vain (not used within a minute, or another notebook needed the room), abandoned "
        "(stopped before the notebook was ready, usually because another one needed the GPU)",
    ),
    "gpushare_prefetched_bytes_total": Definition(
        "counter",
        (),
        "memory that prefetches have restored",
    ),
    "gpushare_hidden_wait_seconds_total": Definition(
        "counter",
        (),
        "waiting time for memory that prefetches have saved",
    ),
    "gpushare_out_of_memory_avoided_total": Definition(
        "counter",
        (),
        "allocations that succeeded although the notebooks' combined memory exceeded the GPU; counted once per "
        "notebook until everything fits again",
    ),
    "gpushare_out_of_memory_given_total": Definition(
        "counter",
        ("reason",),
        "refused allocations: device (more than the GPU has), cap (a limit), host (not enough host memory)",
    ),
    "gpushare_underreported_total": Definition(
        "counter",
        (),
        "processes found to use more memory than they report",
    ),
    "gpushare_outside_processes": Definition(
        "gauge",
        _GPU,
        "processes on the GPU that do not share",
    ),
    "gpushare_connections": Definition("gauge", ("kind",), "connections: client, control"),
    "gpushare_event_loop_lag_seconds": Definition(
        "gauge",
        (),
        "longest delay of the scheduler's event loop in the last minute",
    ),
}


class Sample(NamedTuple):
    """One value, with the values of its metric's labels; a histogram's bucket also has its bound."""

    name: str
    labels: Sequence[str]
    value: float


#: The result of `metrics`: samples, in which tuples have become lists in JSON.
Samples = Iterable[tuple[str, Sequence[str], float]]


def families(samples: Samples | None, labels: Mapping[str, str] | None = None) -> Iterable[Metric]:
    """Return the metrics like a collector of ``prometheus_client``.

    Parameters
    ----------
    samples
        The answer to the request ``metrics``; None: no scheduler answered.
    labels
        Labels that all of them get in addition, such as the node.
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
