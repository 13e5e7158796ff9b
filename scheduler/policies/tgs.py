# SPDX-License-Identifier: BSD-3-Clause
"""Adapts the rate of opportunistic jobs to what the production job can bear: the rules of TGS.

Production jobs are the interactive groups. Their throughput is sampled every five seconds and compared with the best so
far. While it is as good, the opportunistic jobs get more, at first by half as much again (slow start), later a little
at a time. Once it falls, they get less.

The differences: TGS counts the thread blocks that the opportunistic job may submit in 50 ms. Here, production is
measured in submissions, and the opportunistic job is held to a share of the GPU's time, which its client measures. A
step of at least 1000 blocks is thus one of at least a hundredth. Several opportunistic jobs divide the share. Memory is
managed by our leases, not by unified memory with hints.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from ..core.policy_api import GpuView, GroupView, Paces, Parts, Speed, View, WaitView
from .fcfs import FirstComeFirstServed

#: Seconds between samples, and the number of samples to compare.
PERIOD, SAMPLES = 5.0, 5
#: Shares of the GPU's time: the first, the smallest, and the smallest step.
FIRST, LEAST, STEP = 0.02, 0.001, 0.01
#: The loss up to which production counts as undisturbed; and the loss from which everything starts over.
BEARABLE, HURT = 0.03, 0.09
#: After this much loss in this many samples in a row, the best so far no longer counts.
CHANGED, PATIENCE = 0.12, 20


@dataclass(slots=True)
class _Rate:
    """What the opportunistic jobs of one GPU may use."""

    share: float = FIRST
    slow_start: bool = True
    best: float = 0.0
    sampled_at: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    #: Samples in a row with much less than the best; and whether the last step was up.
    worse: int = 0
    rose: bool = False

    def sample(self, throughput: float) -> None:
        """Add a sample of the production's throughput, and adapt the rate."""
        self.samples.append(throughput)
        if len(self.samples) > 1:
            self.best = max(self.best, *((a + b) / 2 for a, b in pairwise(self.samples)))
        else:
            self.best = max(self.best, throughput)
        if self.best == 0:
            return
        if sum(s < 0.01 * self.best for s in self.samples) > SAMPLES // 2:
            # Production is idle.
            self.share, self.slow_start = 1.0, True
            return
        lost = (self.best - throughput) / self.best
        self.worse = self.worse + 1 if lost >= CHANGED else 0
        if self.worse >= PATIENCE:
            self.best, self.share, self.worse = self.best * 0.8, self.share / 2, 0
        elif lost >= HURT:
            self.share, self.slow_start, self.rose = self.share / 10, True, False
        elif self.slow_start:
            self.rose = lost <= BEARABLE
            self.share = self.share * 1.5 if self.rose else self.share / 1.5
            self.slow_start = self.rose
        elif lost < BEARABLE or (lost == BEARABLE and not self.rose):
            self.share, self.rose = self.share + STEP, True
        else:
            self.share, self.rose = self.share - max(0.08 * self.share, STEP), False
        self.share = min(max(self.share, LEAST), 1.0)


class Tgs(FirstComeFirstServed):
    """Adapts the rate of background groups to the interactive groups."""

    name = "tgs"
    serialises = False
    #: Seconds of waiting that production outweighs, and that an agent outweighs other opportunistic jobs.
    favour: ClassVar[dict[str, float]] = {"interactive": 0.0, "agent": 300.0, "background": 600.0}

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._rates: dict[str, _Rate] = {}

    def queue_parts(self, wait: WaitView) -> Parts:
        """Production first, then by age; ten minutes of waiting make up for that."""
        delay = self.favour[wait.group.activity_class]
        own = {"came": wait.since, "background": delay}
        return (own, *self.ties(wait))

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Leave it to the core, because the jobs of TGS run side by side."""
        return None

    def paces(self, gpu: GpuView) -> Paces:
        """Hold the opportunistic jobs to their share while production runs, until the next sample."""
        production, others = self._holders(gpu)
        if not production or not others:
            return {}, None
        rate = self._rates.setdefault(gpu.uuid, _Rate(sampled_at=self.view.now))
        if self.view.now >= rate.sampled_at + PERIOD:
            rate.sampled_at = self.view.now
            rate.sample(sum(self.view.times.rate(g, gpu.uuid, self.view.now) for g in production))
        held = Speed(share=rate.share / len(others), meter=True)
        speeds = {g.id: Speed(meter=True) for g in production}
        speeds.update((g.id, held) for g in others)
        return speeds, rate.sampled_at + PERIOD

    def _holders(self, gpu: GpuView) -> tuple[list[GroupView], list[GroupView]]:
        production: list[GroupView] = []
        others: list[GroupView] = []
        for group in gpu.holders.values():
            interactive = group.activity_class == "interactive"
            (production if interactive else others).append(group)
        return production, others
