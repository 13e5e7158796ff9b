# SPDX-License-Identifier: BSD-3-Clause
"""An opportunistic job's rate is adapted to what the production job can bear: TGS's rules.

Production is what is interactive. Its throughput is sampled each five seconds, and compared with the best that it had:
while it is as good, the opportunistic jobs get more, at first by half as much again (slow start), later a little at a
time; once it falls, they get less.

What differs: TGS counts thread blocks, of which the opportunistic job may submit so many in 50 ms. Here production is
measured in submissions, and the opportunistic job is held to a share of the GPU's time, which its client measures. A
step of at least 1000 blocks is thus one of at least a hundredth. Several opportunistic jobs divide the share. Memory is
ours: leases, not unified memory with hints.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from ..core.policy_api import GpuView, GroupView, Parts, Speed, View, WaitView
from .fcfs import FirstComeFirstServed

#: Seconds between samples, and how many there are to compare.
PERIOD, SAMPLES = 5.0, 5
#: Shares of the GPU's time: the first, the least, and the least step.
FIRST, LEAST, STEP = 0.02, 0.001, 0.01
#: Production is as good as ever with so little lost; and is hurt with so much: everything begins anew.
BEARABLE, HURT = 0.03, 0.09
#: With so much lost so often in a row, its best is no measure any longer.
CHANGED, PATIENCE = 0.12, 20


@dataclass(slots=True)
class _Rate:
    """What the opportunistic jobs of one GPU may have."""

    share: float = FIRST
    slow_start: bool = True
    best: float = 0.0
    sampled_at: float = 0.0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    #: Samples in a row with much less than the best; and whether the last step was up.
    worse: int = 0
    rose: bool = False

    def sample(self, throughput: float) -> None:
        """Take in the production's throughput, and adapt."""
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
    """Adapts the rate of what is in the background to what is interactive."""

    name = "tgs"
    serialises = False
    #: Seconds of waiting that production outweighs.
    favour = 600.0

    def __init__(self, view: View) -> None:
        super().__init__(view)
        self._rates: dict[str, _Rate] = {}

    def queue_parts(self, wait: WaitView) -> Parts:
        """Production first, and then by age; ten minutes of waiting make up for it."""
        opportunistic = wait.group.activity_class == "background"
        own = {"came": wait.since, "background": self.favour if opportunistic else 0.0}
        return (own, *self.ties(wait))

    def quantum(self, group: GroupView, wait: WaitView | None) -> float | None:
        """Leave it to the core: TGS has none, its jobs run side by side."""
        return None

    def paces(self, gpu: GpuView) -> dict[str, Speed]:
        """Hold the opportunistic jobs beside production to their share."""
        production, others = self._holders(gpu)
        if not production or not others:
            return {}
        rate = self._rates.setdefault(gpu.uuid, _Rate(sampled_at=self.view.now))
        if self.view.now >= rate.sampled_at + PERIOD:
            rate.sampled_at = self.view.now
            rate.sample(sum(self.view.times.rate(g, gpu.uuid, self.view.now) for g in production))
        held = Speed(share=rate.share / len(others), meter=True)
        speeds = {g.id: Speed(meter=True) for g in production}
        speeds.update((g.id, held) for g in others)
        return speeds

    def pace_again(self, gpu: GpuView) -> float | None:
        """At the next sample."""
        rate = self._rates.get(gpu.uuid)
        if rate is None or not all(self._holders(gpu)):
            return None
        return max(rate.sampled_at + PERIOD, self.view.now)

    def _holders(self, gpu: GpuView) -> tuple[list[GroupView], list[GroupView]]:
        production: list[GroupView] = []
        others: list[GroupView] = []
        for group in gpu.holders.values():
            interactive = group.activity_class == "interactive"
            (production if interactive else others).append(group)
        return production, others
