# SPDX-License-Identifier: BSD-3-Clause
"""Reports a simulation: figures for programs, and a table that compares policies for users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .outcome import Outcome

GIB = 1 << 30
#: GPU time up to which a cell counts as short: what docs/explanation/scheduling.md calls ``interactive_burst``.
SHORT = 2.0
PERCENTILES = (50, 90, 95, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return an interpolated percentile of sorted values; 0 if there are none."""
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {
        **found,
        "max": ordered[-1] if ordered else 0.0,
        "mean": math.fsum(ordered) / len(ordered) if ordered else 0.0,
    }


def figures(outcome: Outcome) -> dict[str, Any]:
    """Return the figures of one policy; seconds, bytes, fractions."""
    span = outcome.end * outcome.gpus
    cells: dict[str, Any] = {}
    for label, found in sorted(outcome.cells.items()):
        # Cells that never use the GPU do not wait.
        pairs = [(w, g) for w, g in zip(found.waits, found.work, strict=True) if g > 0]
        short = [wait for wait, work in pairs if work <= SHORT]
        cells[label] = {
            "count": len(pairs),
            "wait": _spread([wait for wait, _ in pairs]),
            "short": len(short),
            "wait_short": _spread(short),
        }
    jobs: dict[str, Any] = {}
    for label, ended in sorted(outcome.jobs.items()):
        ratios = [c / a for c, a in zip(ended.completions, ended.alone, strict=True)]
        jobs[label] = {
            "count": len(ratios),
            "completion": _spread(ended.completions),
            "alone": math.fsum(ended.alone) / len(ratios),
            "slowdown": math.fsum(ratios) / len(ratios),
        }
    fair = outcome.fairness / outcome.fairness_weight if outcome.fairness_weight else None
    shown: dict[str, Any] = _rounded(
        {
            "cells": cells,
            "jobs": jobs,
            "kernels": outcome.kernels,
            "failed": outcome.failed,
            "starved": outcome.starved,
            "longest_without": outcome.longest_gap,
            "end": outcome.end,
            "utilisation": outcome.delivered / span if span else 0.0,
            "gpu_seconds": outcome.delivered,
            "fairness": fair,
            "moved_out": outcome.moved_out,
            "moved_in": outcome.moved_in,
            "uncopied": outcome.uncopied,
            "host_peak": outcome.host_peak,
            "disk_peak": outcome.disk_peak,
            "disk_written": outcome.disk_written,
            "disk_read": outcome.disk_read,
            "disk_waiting": outcome.disk_waiting,
            "moving": outcome.moving,
            "moving_fraction": outcome.moving / span if span else 0.0,
            "peak_memory": outcome.peak,
            "events": outcome.events,
        }
    )
    return shown


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def rows(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the lines of the table: the name of a figure, then its value for each policy."""
    lines: list[tuple[str, ...]] = []

    def line(text: str, values: Sequence[str]) -> None:
        lines.append((text, *values))

    all_figures = list(results.values())
    for label in _labels(all_figures, "cells"):
        found = [f["cells"].get(label) for f in all_figures]
        line(f"{label} cells that ended", [_count(f, "count") for f in found])
        for name in ("p50", "p90", "p95", "p99", "max"):
            text = f"  wait, {'longest' if name == 'max' else name}"
            line(text, [_seconds(f and f["wait"][name]) for f in found])
        for name in ("p95", "p99"):
            text = f"  of those up to {SHORT:.0f} s of GPU time, {name}"
            line(text, [_seconds(f and f["wait_short"][name]) for f in found])
    exclusive = results.get("exclusive")
    for label in _labels(all_figures, "jobs"):
        found = [f["jobs"].get(label) for f in all_figures]
        line(f"{label} jobs that ended", [_count(f, "count") for f in found])
        for name, text in (("mean", "mean"), ("p50", "p50"), ("p95", "p95")):
            line(f"  completion, {text}", [_seconds(f and f["completion"][name]) for f in found])
        line("  over alone, mean", ["-" if not f else f"{f['slowdown']:.2f}x" for f in found])
        alone = exclusive and exclusive["jobs"].get(label)
        if alone:
            base = alone["completion"]["mean"]
            values = [
                "-" if not f else f"{(f['completion']['mean'] / base - 1) * 100:+.1f}%"
                for f in found
            ]
            line("  mean against exclusive", values)
    line("utilisation of the GPUs", [f"{f['utilisation'] * 100:.1f}%" for f in all_figures])
    line(
        "fairness (Jain's index)",
        ["-" if f["fairness"] is None else f"{f['fairness']:.3f}" for f in all_figures],
    )
    moved = [f"{(f['moved_out'] + f['moved_in']) / GIB:.1f} GiB" for f in all_figures]
    line("moved, out and in", moved)
    for name, text in (
        ("uncopied", "evicted without a copy"),
        ("host_peak", "host memory, most on a node"),
        ("disk_peak", "disk, most on a node"),
    ):
        if any(f[name] for f in all_figures):
            line(text, [f"{f[name] / GIB:.1f} GiB" for f in all_figures])
    if any(f["disk_peak"] for f in all_figures):
        line("waited for the disk", [_seconds(f["disk_waiting"]) for f in all_figures])
    line("time spent moving", [f"{f['moving_fraction'] * 100:.2f}%" for f in all_figures])
    line("longest without any GPU time", [_seconds(f["longest_without"]) for f in all_figures])
    line("starved", [str(f["starved"]) for f in all_figures])
    line("failed for want of memory", [str(f["failed"]) for f in all_figures])
    line("all had left after", [_seconds(f["end"]) for f in all_figures])
    return lines


def _labels(all_figures: Sequence[Mapping[str, Any]], kind: str) -> list[str]:
    return sorted({label for f in all_figures for label in f[kind]})


def _count(found: Mapping[str, Any] | None, name: str) -> str:
    return "0" if not found else str(found[name])


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"
