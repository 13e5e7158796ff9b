# SPDX-License-Identifier: BSD-3-Clause
"""Counters since the scheduler's start, for metrics and reports. Sans-IO.

*Out-of-memory errors given* are allocations that were refused. *Avoided* are allocations that were granted although all
programs' memory together was more than the GPU has, so that one would have failed without us. A program that keeps
allocating in that state is counted once, until all fits again, because it would have failed once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, get_args

from ..core.messages import Class, Log
from ..core.model import excess, unchanged
from .metrics import Sample

if TYPE_CHECKING:
    from ..core.core import Core

#: Upper bounds of the histogram of waits, in seconds; one more has all longer waits.
WAITS = (0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(slots=True)
class Waits:
    """The waiting times of granted leases."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(WAITS) + 1))
    sum: float = 0.0

    def add(self, seconds: float) -> None:
        """Add a waiting time."""
        self.buckets[bisect_left(WAITS, seconds)] += 1
        self.sum += seconds


class Counters:
    """Counts what the core logs."""

    def __init__(self) -> None:
        self.waits: dict[Class, Waits] = {name: Waits() for name in get_args(Class)}
        #: Bytes, by GPU and direction (``in``, ``out``).
        self.moved: Counter[tuple[str, str]] = Counter()
        #: By the status of the refusal.
        self.given: Counter[str] = Counter()
        #: Hibernations, wakes, and failures of either.
        self.hibernations: Counter[str] = Counter()
        #: Prefetches by result; the bytes that they restored; and the seconds of waiting that they saved.
        self.prefetches: Counter[str] = Counter()
        self.prefetched, self.hidden = 0, 0.0
        #: Bytes that were evicted without a copy, by GPU and reason (``clean``, ``zero``, ``shared``).
        self.uncopied: Counter[tuple[str, str]] = Counter()
        self.avoided = self.revocations = self.stuck = self.underreported = 0
        #: By GPU, the groups whose allocation would have failed, and so would the next one.
        self._beyond: dict[str, set[str]] = {}

    def _add_uncopied(self, fields: Mapping[str, Any]) -> None:
        """Count what an eviction did not have to copy."""
        zero, shared = fields.get("zero", 0), fields.get("shared", 0)
        clean = unchanged(fields["bytes"], fields["copied"], zero, shared)
        for reason, size in (("clean", clean), ("zero", zero), ("shared", shared)):
            if size:
                self.uncopied[fields["gpu"], reason] += size

    def observe(self, entry: Log, core: Core) -> None:
        """Count an event."""
        fields = entry.fields
        match entry.kind:
            case "grant":
                group = core.groups.get(entry.group)
                self.waits["interactive" if group is None else group.activity_class].add(
                    fields["waited"]
                )
            case "evict" | "restore":
                direction = "out" if entry.kind == "evict" else "in"
                self.moved[fields["gpu"], direction] += fields["bytes"]
                if entry.kind == "evict":
                    self._add_uncopied(fields)
            case "revoke":
                self.revocations += 1
            case "hibernate" | "wake" | "hibernate_failed" | "wake_failed":
                self.hibernations[entry.kind] += 1
            case "prefetch" if fields["result"] != "begun":
                self.prefetches[fields["result"]] += 1
                self.prefetched += fields["bytes"]
                if fields["result"] == "used":
                    self.hidden += fields["seconds"]
            case "refuse":
                self.given[fields["code"]] += 1
            case "grow":
                self._grown(entry.group, fields["gpu"], fields["beyond"])
            case "notice" if fields["code"] == "stuck":
                self.stuck += 1
            case "notice" if fields["code"] == "underreported":
                self.underreported += 1

    def _grown(self, group: str, gpu: str, beyond: int) -> None:
        if beyond <= 0:
            self._beyond.pop(gpu, None)
        elif group not in (known := self._beyond.setdefault(gpu, set())):
            known.add(group)
            self.avoided += 1

    def update(self, core: Core) -> None:
        """Check whether all fits again, which no event reports."""
        for uuid in [
            u for u in self._beyond if (gpu := core.gpus.get(u)) is None or excess(gpu) <= 0
        ]:
            del self._beyond[uuid]

    def samples(self) -> Iterator[Sample]:
        """Return the counts (docs/reference/metrics.md)."""
        for name, waits in self.waits.items():
            metric = "gpushare_wait_seconds"
            bounds = (*map(str, WAITS), "+Inf")
            for bound, count in zip(bounds, accumulate(waits.buckets), strict=True):
                yield Sample(f"{metric}_bucket", (name, bound), count)
            yield Sample(f"{metric}_count", (name,), sum(waits.buckets))
            yield Sample(f"{metric}_sum", (name,), waits.sum)
        for labels, size in sorted(self.moved.items()):
            yield Sample("gpushare_moved_bytes_total", labels, size)
        for labels, size in sorted(self.uncopied.items()):
            yield Sample("gpushare_uncopied_bytes_total", labels, size)
        yield Sample("gpushare_revocations_total", (), self.revocations)
        yield Sample("gpushare_stuck_total", (), self.stuck)
        for kind in ("hibernate", "wake", "hibernate_failed", "wake_failed"):
            yield Sample("gpushare_hibernations_total", (kind,), self.hibernations[kind])
        for result in ("used", "vain", "abandoned"):
            yield Sample("gpushare_prefetches_total", (result,), self.prefetches[result])
        yield Sample("gpushare_prefetched_bytes_total", (), self.prefetched)
        yield Sample("gpushare_hidden_wait_seconds_total", (), self.hidden)
        yield Sample("gpushare_out_of_memory_avoided_total", (), self.avoided)
        for reason in ("device", "cap", "host"):
            yield Sample("gpushare_out_of_memory_given_total", (reason,), self.given[reason])
        yield Sample("gpushare_underreported_total", (), self.underreported)
