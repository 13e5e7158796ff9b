# SPDX-License-Identifier: BSD-3-Clause
"""A simulated machine whose processes hibernate, for scenarios of the core."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from tests.scheduler.core_machine import GIB, GPU, Machine, Process

MIB = 1 << 20
CONTEXT = GIB // 2
OTHER = "GPU-1"


class Kernel(Process):
    """A process with a CUDA context, which answers unless it is deaf."""

    machine: Night
    #: What it answers to ``Park``; None: nothing.
    parking: str | None = "done"
    #: What becomes of its checkpoint and its restore; None: nothing, yet.
    checkpoint: str | None = ""
    restores: str | None = ""
    #: It does not answer ``Evict``.
    late = False
    #: It submits nothing now, and says so if it is asked.
    rests = False
    #: It is parked; it is off the GPU; what it needs to come back.
    parked = away = False
    needs = ev.Usage(GPU)
    serial = 0
    #: Bytes of the context that it begins.
    begins = 0
    sees: tuple[str, ...] = ()

    def usage(self) -> ev.Usage:
        usage = super().usage()
        usage.gpu = self.machine.place_of.get(self.number, GPU)
        return usage

    def obey(self, decision: ev.Decision) -> None:
        match decision:
            case ev.Evict() if not self.late:
                self.evict(decision)
            case ev.Revoke() if self.lease:
                self.release()
            case ev.EndBurst() if self.rests:
                self.end("idle")
            case ev.Park() if self.parking is not None:
                self.park(decision)
            case ev.Hibernate() if self.checkpoint is not None:
                self.machine.checkpointed(self, self.checkpoint)
            case ev.Wakeup() if self.restores is not None:
                self.machine.woken(self, self.restores, decision)
            case ev.Hibernated():
                assert self.parked or self.parking is None
                self.parked = decision.done
            case ev.Grown() if self.begins:
                assert decision.status in ("resident", "swapped")
                self.context, self.begins = self.begins, 0
                self.machine.do(ev.UsageChanged(self.number, self.usage()))
            case ev.Awake():
                if decision.status == 0:
                    assert not self.away
                    self.parked = False

    def park(self, order: ev.Park) -> None:
        assert self.parking is not None
        self.parked = self.parking == "done"
        needs = self.needs = ev.Usage(self.usage().gpu, 0, 0, self.unevictable, self.context)
        sees = self.sees or tuple(self.machine.core.gpus)
        self.machine.do(ev.Parked(self.number, order.serial, self.parking, needs, sees))  # type: ignore[arg-type]

    def call(self, cause: Any = "call") -> list[ev.Decision]:
        """A thread of its wants to enter the driver."""
        assert self.parked
        self.serial += 1
        return self.machine.do(ev.Wake(self.number, self.serial, cause, self.needs))

    @property
    def hibernation(self) -> Any:
        return self.machine.group(self.group)["hibernation"]

    @property
    def where(self) -> str:
        return self.state if self.hibernation is None else self.hibernation["state"]


class Night(Machine):
    """A machine whose processes obey, and whose driver can checkpoint."""

    def __init__(self, *, gpus: int = 1, able: bool = True, **settings: Any) -> None:
        #: Where clients are, unless it is the first GPU.
        self.place_of: dict[int, str] = {}
        self.said: list[ev.Decision] = []
        #: What each that is checkpointed leaves on its GPU.
        self.residue = 0
        super().__init__(**settings)
        if gpus > 1:
            self.do(ev.Device(OTHER, 100 * GIB, 0, "Test GPU", 1))
        if able:
            self.do(ev.Hibernatable(True, moves=gpus > 1))

    def reading(self, gpu: str = GPU) -> ev.Device:
        held = self.foreign + self.pending_reclaim if gpu == GPU else 0
        for number, process in self.processes.items():
            if self.place_of.get(number, GPU) == gpu:
                held += process.resident
                away = getattr(process, "away", False)
                held += self.residue if away else process.unevictable + process.context
        return ev.Device(gpu, 100 * GIB, held, "Test GPU", int(gpu == OTHER))

    def do(self, event: ev.Event) -> list[ev.Decision]:
        found = []
        for decision in self.core.handle(event, self.now):
            match decision:
                case ev.ReadDevice():
                    if not self.slow:
                        found += self.do(self.reading(decision.gpu))
                case ev.Log():
                    self.history.append(decision)
                case ev.PreparePool() | ev.Prepare():
                    pass
                case _:
                    found.append(decision)
                    self.said.append(decision)
                    process = self.processes[decision.client]
                    if isinstance(decision, ev.Grant):
                        process.lease = decision.lease
                    if isinstance(process, Kernel):
                        process.obey(decision)
        return found

    def kernel(
        self, group: str, gib: float = 0, *, context: int = CONTEXT, user: str = ""
    ) -> Kernel:
        kernel = Kernel(self, len(self.processes) + 1, group)
        kernel.attach(user=user)
        self.begin_context(kernel, context)
        if gib:
            assert kernel.grow(gib) is not None
        return kernel

    def begin_context(self, kernel: Kernel, context: int = CONTEXT) -> None:
        gpu = self.place_of.get(kernel.number, GPU)
        least = ev.Usage(gpu, kernel.promised, kernel.resident, kernel.unevictable, context)
        kernel.begins = context
        self.do(ev.Grow(kernel.number, 3, least, kernel.promised))

    def ran(self, group: str, gib: float = 10, user: str = "") -> Kernel:
        """One that has run a cell."""
        kernel = self.kernel(group, gib, user=user)
        kernel.request()
        kernel.restore()
        kernel.end()
        return kernel

    def asleep(self, group: str, gib: float = 10, user: str = "") -> Kernel:
        kernel = self.ran(group, gib, user)
        self.do(ev.HibernateNow(group))
        assert kernel.where == "hibernated"
        return kernel

    def checkpointed(self, kernel: Kernel, code: str) -> None:
        kernel.away = not code
        self.do(ev.Checkpointed(kernel.number, not code, code, code and f"it says {code}", 0.6))

    def woken(self, kernel: Kernel, code: str, order: ev.Wakeup) -> None:
        if not code:
            kernel.away = False
            if order.gpu_to:
                self.place_of[kernel.number] = order.gpu_to
        self.do(ev.Woken(kernel.number, not code, code, code and f"it says {code}", 0.5))

    def orders(self, kind: type[Any]) -> list[Any]:
        return [d for d in self.said if isinstance(d, kind)]

    def logged(self, kind: str) -> list[ev.Log]:
        return [line for line in self.history if line.kind == kind]
