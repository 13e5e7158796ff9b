# SPDX-License-Identifier: BSD-3-Clause
"""The real core with obedient clients whose GPU time is bounded, in virtual time."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.simulation.calibration import Calibration
from jupyter_gpushare.scheduler.simulation.machine import Gpu, Process
from jupyter_gpushare.scheduler.simulation.node import Client, Node
from jupyter_gpushare.scheduler.simulation.trace import Kernel

GIB = 1 << 30
COSTS = replace(Calibration(), context=1, headroom=0)
#: Of an H200, as all else; and of one so small that memory moves in a moment.
TOTAL, SMALL = COSTS.gpu_memory, 16 * GIB
WINDOW = 10.0
#: Seconds of a share that are not lost if they are not used at once (``pace.c``).
LONGEST_CREDIT = 0.050
FOR_EVER = 1 << 40


class Holder(Client):
    """A program that always has the next kernel, and its interposer."""

    def __init__(self, number: int, spec: Kernel, gpu: Gpu) -> None:
        super().__init__(number, spec, gpu)
        #: What the GPU had done for it by when, seconds; between two moments, it did so evenly.
        self.moments, self.done = [0.0], [0.0]
        self.began: float | None = None
        #: What its meter says: seconds, and kernels.
        self.finished, self.kernels = 0.0, 0
        self.submitted_at = self.admitted_at = 0.0
        self.waits_for_pace = 0
        self.credit, self.credit_at = 0.0, 0.0
        self.frozen = False
        #: Since when it has been owed a kernel, and for how long at most it ever was.
        self.owed_since, self.longest = 0.0, 0.0

    def patience(self, now: float) -> float:
        """For how long it must not submit."""
        self.credit += (now - self.credit_at) * self.share
        running = 0.0 if self.began is None else now - self.began
        self.credit = min(self.credit, (LONGEST_CREDIT + running) * self.share)
        self.credit_at = now
        if self.share < 1 and self.credit < 0:
            return min(-self.credit / self.share, 1.0) + 1e-9
        if self.inflight != 0.0:
            return 0.0
        return max(0.0, max(self.submitted_at, self.admitted_at) + self.stall - now)

    def had(self, since: float, until: float) -> float:
        """How many seconds of the GPU it had between two moments."""
        return self._by(until) - self._by(since)

    def _by(self, moment: float) -> float:
        after = bisect_right(self.moments, moment)
        if after in (0, len(self.moments)):
            return self.done[-1] if after else 0.0
        begin, end = self.moments[after - 1 : after + 1]
        before, then = self.done[after - 1 : after + 1]
        return before + (then - before) * (moment - begin) / (end - begin)


class Lab(Node):
    """Holders under the real core."""

    def __init__(
        self, policy: str, gpus: int, memory: int, meter: float, **configured: Any
    ) -> None:
        super().__init__(COSTS, memory, gpus, 1e9, policy, 1000 * GIB, meter)
        self.holders: list[Holder] = []
        self._feed(ev.Configure(**configured))

    def process(self, number: int, spec: Kernel, gpu: Gpu) -> Holder:
        holder = Holder(number, spec, gpu)
        holder.quiet_gap = self.costs.quiet
        self._by_number[number] = holder
        self.holders.append(holder)
        self._store.add(holder)
        return holder

    def until(self, end: float, arrivals: list[tuple[Kernel, int]]) -> None:
        """Run until a time."""
        self.at(end, self._end, None)
        self.run(arrivals)
        for holder in self.holders:
            if holder.wants:
                self._note(holder)

    def _end(self, _: None) -> None:
        self.alive = 0

    def feed_at(self, when: float, event: ev.Event) -> None:
        self.at(when, self._feed, event)

    def freeze_at(self, when: float, group: str, frozen: bool) -> None:
        self.at(when, self._freeze, (group, frozen))

    def _freeze(self, argument: tuple[str, bool]) -> None:
        group, frozen = argument
        for holder in self.holders:
            if holder.id == group:
                self._note(holder)
                holder.frozen = frozen
                holder.owed_since = self.now
        self._feed(ev.Adjust(group, frozen=frozen, later=True))

    def _note(self, holder: Holder) -> None:
        if not holder.frozen and holder.began is None:
            holder.longest = max(holder.longest, self.now - holder.owed_since)

    def _advance(self, gpu: Gpu) -> None:
        since = gpu.last
        super()._advance(gpu)
        if gpu.last > since:
            for process in gpu.running:
                assert isinstance(process, Holder)
                process.moments += since, gpu.last
                process.done += (
                    process.done[-1],
                    process.done[-1] + process.rate * (gpu.last - since),
                )

    # --- A program --------------------------------------------------------------------------------

    def _submit(self, process: Process) -> None:
        assert isinstance(process, Holder)
        process.submitted_at = process.owed_since = self.now
        super()._submit(process)

    def _start(self, process: Process) -> None:
        assert isinstance(process, Holder)
        process.waits_for_pace += 1
        patience = process.patience(self.now)
        if patience > 0:
            self.at(self.now + patience, self._try_again, (process, process.waits_for_pace))
            return
        self._note(process)
        process.admitted_at = process.began = self.now
        super()._start(process)

    def _try_again(self, argument: tuple[Holder, int]) -> None:
        holder, token = argument
        if token == holder.waits_for_pace and holder.lease and not holder.releasing:
            self._start(holder)

    def _ended(self, holder: Holder) -> None:
        assert holder.began is not None
        holder.finished += self.now - holder.began
        holder.kernels += 1
        holder.patience(self.now)
        holder.credit -= self.now - holder.began
        holder.began, holder.owed_since = None, self.now

    def _stop(self, process: Process) -> None:
        assert isinstance(process, Holder)
        super()._stop(process)
        self._ended(process)

    def _done(self, process: Process) -> None:
        assert isinstance(process, Holder)
        self._ended(process)
        super()._done(process)

    def _give_up(self, client: Client) -> None:
        assert isinstance(client, Holder)
        client.waits_for_pace += 1
        super()._give_up(client)

    # --- Its interposer ---------------------------------------------------------------------------

    def _speed(self, process: Process) -> float:
        return process.demand

    def _on_pace(self, decision: ev.Pace) -> None:
        holder = self._by_number[decision.client]
        assert isinstance(holder, Holder)
        holder.patience(self.now)
        if holder.share == 1.0:
            holder.credit = 0.0
        super()._on_pace(decision)
        if holder.meters and not holder.metered:
            holder.metered = True
            self.at(self.now + self.meter, self._meter, holder)
        if holder.wants and holder.began is None and holder.gate == 0:
            self._try_again((holder, holder.waits_for_pace))

    def _meter(self, client: Client) -> None:
        client.metered = client.meters and not client.gone
        if client.metered:
            self.at(self.now + self.meter, self._meter, client)
            self._tell_meter(client)

    def _tell_meter(self, client: Client) -> None:
        assert isinstance(client, Holder)
        self._feed(
            ev.Meter(client.number, client.gpu.uuid, client.finished, client.kernels, self.now)
        )


@dataclass
class Mix:
    """The kernels and their entitlements."""

    kernels: list[tuple[Kernel, int]]
    entitled: list[ev.Entitle]
    gpus: int = 1
    memory: int = TOTAL
    frozen: list[tuple[str, float, float]] = field(default_factory=list)

    def run(
        self, policy: str, seconds: float, meter: float = COSTS.meter, **configured: Any
    ) -> Lab:
        """Have them on a GPU for so long."""
        lab = Lab(policy, self.gpus, self.memory, meter, **configured)
        for event in self.entitled:
            lab._feed(event)
        for group, begin, end in self.frozen:
            lab.freeze_at(begin, group, True)
            lab.freeze_at(end, group, False)
        lab.until(seconds, self.kernels)
        assert not lab.core.model.notices, "the policy failed"
        return lab


def works(
    name: str,
    user: str,
    length: float,
    size: int,
    at: float = 0.0,
    pause: float = 0.0,
    **preferences: Any,
) -> Kernel:
    """A program of a footprint of so many GiB that has kernels of one length to run for ever."""
    steps = [("gpu", length, 1.0)] + ([("cpu", pause)] if pause else [])
    return Kernel(
        name, user, "works", at, (("allocate", size * GIB), ("repeat", FOR_EVER, tuple(steps))),
        **preferences,
    )  # fmt: skip
