# SPDX-License-Identifier: BSD-3-Clause
"""The results of simulated machines, and the error if a simulation has none."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True)
class Cells:
    """Cells of one class: for how many seconds each waited, and how many seconds of GPU time it needed."""

    waits: array[float] = field(default_factory=lambda: array("d"))
    work: array[float] = field(default_factory=lambda: array("d"))

    def add(self, other: Cells) -> None:
        """Add the cells of another machine."""
        self.waits.extend(other.waits)
        self.work.extend(other.work)


@dataclass(slots=True)
class Jobs:
    """Jobs of one class: seconds from their arrival to their end, and seconds that they would take alone."""

    completions: array[float] = field(default_factory=lambda: array("d"))
    alone: array[float] = field(default_factory=lambda: array("d"))

    def add(self, other: Jobs) -> None:
        """Add the jobs of another machine."""
        self.completions.extend(other.completions)
        self.alone.extend(other.alone)


@dataclass(slots=True)
class Outcome:
    """The results of one machine, or of several.

    Attributes
    ----------
    end
        When the last kernel left, seconds.
    asked, delivered
        GPU time, seconds of a whole GPU.
    moved_out, moved_in
        Bytes copied.
    uncopied
        Bytes evicted without a copy.
    host_peak, disk_peak
        The most bytes of evicted data in the host memory of a node, and on its disk, without kept copies.
    disk_written, disk_read
        Bytes.
    disk_waiting
        Seconds by which moves took longer because of the disk.
    moving
        Seconds for which anything moved on a GPU, summed over the GPUs.
    starved
        Kernels that wanted a GPU for a long time and got nothing of it meanwhile.
    failed
        Kernels that could not get their memory.
    fairness, fairness_weight
        Sums over the windows: of Jain's index, and of the weights by which to divide it.
    paces
        By class: the GPU time of each kernel, for each second from its arrival to its end.
    longest_gap
        The longest time for which a kernel wanted a GPU and got nothing of it, seconds.
    peak
        The largest part of a GPU's memory that was ever in use.
    events
        Events that the core handled.
    """

    cells: dict[str, Cells] = field(default_factory=dict)
    jobs: dict[str, Jobs] = field(default_factory=dict)
    gpus: int = 0
    end: float = 0.0
    asked: float = 0.0
    delivered: float = 0.0
    moved_out: int = 0
    moved_in: int = 0
    uncopied: int = 0
    host_peak: int = 0
    disk_peak: int = 0
    disk_written: int = 0
    disk_read: int = 0
    disk_waiting: float = 0.0
    moving: float = 0.0
    kernels: int = 0
    starved: int = 0
    failed: int = 0
    fairness: float = 0.0
    fairness_weight: float = 0.0
    longest_gap: float = 0.0
    peak: float = 0.0
    events: int = 0
    paces: dict[str, list[float]] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Add the results of another machine."""
        for label, cells in other.cells.items():
            self.cells.setdefault(label, Cells()).add(cells)
        for label, jobs in other.jobs.items():
            self.jobs.setdefault(label, Jobs()).add(jobs)
        for label, paces in other.paces.items():
            self.paces.setdefault(label, []).extend(paces)
        self.gpus += other.gpus
        self.end = max(self.end, other.end)
        self.asked += other.asked
        self.delivered += other.delivered
        self.moved_out += other.moved_out
        self.moved_in += other.moved_in
        self.uncopied += other.uncopied
        self.host_peak = max(self.host_peak, other.host_peak)
        self.disk_peak = max(self.disk_peak, other.disk_peak)
        self.disk_written += other.disk_written
        self.disk_read += other.disk_read
        self.disk_waiting += other.disk_waiting
        self.moving += other.moving
        self.kernels += other.kernels
        self.starved += other.starved
        self.failed += other.failed
        self.fairness += other.fairness
        self.fairness_weight += other.fairness_weight
        self.longest_gap = max(self.longest_gap, other.longest_gap)
        self.peak = max(self.peak, other.peak)
        self.events += other.events


class Stalled(RuntimeError):
    """A defect of the core: time does not pass, or a wait never ends."""
