# SPDX-License-Identifier: BSD-3-Clause
"""The core and processes that follow its decisions at once, on any number of GPUs."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views import status as snapshot

GIB = 1 << 30
TOTAL = 100 * GIB
SPEED = 10 * GIB


class Node:
    """GPUs of 100 GiB with obedient processes: each hears and does at once what it is told."""

    def __init__(self, gpus: int = 3) -> None:
        self.core = Core(
            REGISTRY, Rules(reserve=0, bandwidth=SPEED, margin=0, interactive_burst=1e9)
        )
        self.now = 100.0
        self.kernels: dict[int, Kernel] = {}
        self.history: list[ev.Log] = []
        for index in range(gpus):
            self.do(self.reading(f"GPU-{index}"))
        self.do(ev.HostMemory(1000 * GIB))

    def reading(self, gpu: str) -> ev.Device:
        held = sum(u.resident + u.context for k in self.kernels.values() for u in k.on(gpu))
        return ev.Device(gpu, TOTAL, held, gpu, int(gpu[-1]))

    def do(self, event: ev.Event) -> list[ev.Decision]:
        """Give an event to the core, and carry out its decisions in all clients."""
        decisions = self.core.handle(event, self.now)
        for decision in decisions:
            if isinstance(decision, ev.Log):
                self.history.append(decision)
            elif isinstance(decision, ev.ReadDevice):
                self.do(self.reading(decision.gpu))
            elif not isinstance(decision, ev.PreparePool | ev.Prepare):
                self.kernels[decision.client].obey(decision)
        return decisions

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while (deadline := self.core.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.do(ev.Tick())
        self.now = until

    def kernel(self, group: str, user: str, gpu: str, gib: int = 10, **more: Any) -> Kernel:
        """Return a kernel that has a context and memory on a GPU, and does nothing."""
        kernel = Kernel(self, len(self.kernels) + 1, group)
        self.kernels[kernel.number] = kernel
        self.do(ev.Attach(kernel.number, 7, group, f"{group}.ipynb", "swap", user=user, **more))
        kernel.grow(gpu, gib)
        return kernel

    def status(self) -> dict[str, Any]:
        return snapshot.status(self.core, self.now)


class Kernel:
    """One process, on any GPUs."""

    def __init__(self, node: Node, number: int, group: str) -> None:
        self.node, self.number, self.group = node, number, group
        self.usages: dict[str, ev.Usage] = {}
        self.lease = 0
        self.answer: ev.Grown | None = None

    def on(self, gpu: str) -> list[ev.Usage]:
        return [u for u in self.usages.values() if u.gpu == gpu]

    def grow(self, gpu: str, gib: int, context: int = 0) -> ev.Grown:
        """Allocate more, and return what came of it."""
        self.answer = None
        now = self.usages.get(gpu, ev.Usage(gpu))
        promised = now.promised + gib * GIB
        least = ev.Usage(gpu, promised, now.resident, 0, now.context + context * GIB, now.host)
        self.node.do(ev.Grow(self.number, 1, least, promised))
        assert self.answer is not None
        answer = self.answer
        if answer.status in ("resident", "swapped"):
            resident = promised if answer.status == "resident" and self.lease else now.resident
            self.usages[gpu] = ev.Usage(gpu, promised, resident, 0, least.context, now.host)
            self.node.do(ev.UsageChanged(self.number, self.usages[gpu]))
        return answer

    def run(self) -> None:
        """Submit work that does not end."""
        if self.lease:
            self.node.do(ev.Burst(self.number, "begin", "none", self.node.now))
        else:
            self.node.do(ev.Request(self.number, 1))

    def end(self) -> None:
        """Its cell is over; the lease stays."""
        self.node.do(ev.Burst(self.number, "end", "cell", self.node.now))

    def obey(self, decision: ev.Decision) -> None:
        do, number = self.node.do, self.number
        match decision:
            case ev.Grant():
                self.lease = decision.lease
                for gpu, usage in self.usages.items():
                    size = usage.promised - usage.resident
                    self.usages[gpu] = ev.Usage(
                        gpu, usage.promised, usage.promised, 0, usage.context
                    )
                    do(
                        ev.Restored(
                            number, self.lease, self.usages[gpu], size, size, size / SPEED, "done"
                        )
                    )
            case ev.Revoke():
                lease, self.lease = self.lease, 0
                do(ev.Released(number, lease, "revoke"))
            case ev.Evict():
                usage, size = self.usages[decision.gpu], decision.bytes
                left = usage.resident - size
                self.usages[decision.gpu] = ev.Usage(
                    decision.gpu, usage.promised, left, 0, usage.context, usage.promised - left
                )
                do(
                    ev.Evicted(
                        number, decision.serial, self.usages[decision.gpu], size, size,
                        size / SPEED, "done",
                    )
                )  # fmt: skip
            case ev.Grown():
                self.answer = decision

    @property
    def said(self) -> Any:
        return next(g for g in self.node.status()["groups"] if g["id"] == self.group)

    @property
    def reason(self) -> Any:
        return self.said["reason"]
