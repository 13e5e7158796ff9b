# SPDX-License-Identifier: BSD-3-Clause
"""The core and its clients, without processes: what a client reports goes to the core at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.core.core import Core
from jupyter_gpushare.scheduler.core.rules import Rules
from jupyter_gpushare.scheduler.policies import REGISTRY
from jupyter_gpushare.scheduler.views import status as snapshot

GIB = 1 << 30
GPU = "GPU-0"
TOTAL = 100 * GIB
SPEED = 10 * GIB
#: A policy that orders those of one class by age alone, and leaves the quantum to the core.
BY_AGE = "tgs"


class Process:
    """One client: what it says goes to the core at once, with its memory as it then is."""

    def __init__(self, machine: Machine, number: int, group: str, backend: Any = "swap") -> None:
        self.machine, self.number, self.group, self.backend = machine, number, group, backend
        self.promised = self.resident = self.unevictable = self.context = 0
        #: The fraction of its resident memory that has not changed.
        self.unchanged = 0.0
        self.lease = 0
        self.moved: dict[int, int] = {}

    def usage(self) -> ev.Usage:
        swapped = self.promised - self.resident
        return ev.Usage(
            GPU, self.promised, self.resident, self.unevictable, self.context, swapped,
            clean=int(self.unchanged * self.resident),
        )  # fmt: skip

    def attach(self, **more: Any) -> Process:
        number, group = self.number, self.group
        usages = (self.usage(),) if self.promised or self.unevictable or self.context else ()
        attach = ev.Attach(
            number, 1000 + number, group, f"{group}.ipynb", self.backend, usages=usages, **more
        )
        self.machine.processes[number] = self
        self.machine.do(attach)
        return self

    def grow(self, gib: float = 0, most: float = 0, unevictable: float = 0) -> ev.Grown | None:
        """Ask for more GiB, and take what is answered."""
        promised = self.promised + int(gib * GIB)
        least = ev.Usage(
            GPU, promised, self.resident, self.unevictable + int(unevictable * GIB), self.context
        )
        grow = ev.Grow(self.number, 7, least, max(promised, self.promised + int(most * GIB)))
        answers = [
            d for d in self.machine.do(grow) if isinstance(d, ev.Grown) and d.client == self.number
        ]
        return self.take(answers[0], unevictable) if answers else None

    def take(self, answer: ev.Grown, unevictable: float = 0) -> ev.Grown:
        if answer.status in ("resident", "swapped"):
            self.promised = answer.promised
            self.unevictable += int(unevictable * GIB)
            if answer.status == "resident" and self.lease:
                self.resident = self.promised
            self.machine.do(ev.UsageChanged(self.number, self.usage()))
        return answer

    def request(self) -> list[ev.Decision]:
        return self.machine.do(ev.Request(self.number, 1))

    def end(self, cause: Any = "cell") -> list[ev.Decision]:
        return self.machine.do(ev.Burst(self.number, "end", cause, self.machine.now))

    def begin(self) -> list[ev.Decision]:
        return self.machine.do(ev.Burst(self.number, "begin", "none", self.machine.now))

    def release(self, cause: Any = "revoke") -> list[ev.Decision]:
        lease, self.lease = self.lease, 0
        return self.machine.do(ev.Released(self.number, lease, cause))

    @property
    def room(self) -> int:
        """What the core allotted to it while it fills."""
        return self.machine.core.clients[self.number].holdings[GPU].room

    def moves(self, order: ev.Evict, gib: int) -> list[ev.Decision]:
        """So much has left by now, of an eviction that goes on."""
        size = gib * GIB
        before = self.moved.get(order.serial, 0)
        self.moved[order.serial] = size
        self.resident -= size - before
        return self.machine.do(
            ev.Moving(self.number, order.serial, self.usage(), size, size, size / SPEED, "done")
        )

    def restore(self, status: Any = "done", error: int = 0) -> list[ev.Decision]:
        size = self.promised - self.resident if status == "done" else 0
        self.resident += size
        lease = self.lease
        if status == "failed":
            self.lease = 0
        return self.machine.do(
            ev.Restored(self.number, lease, self.usage(), size, size, size / SPEED, status, error)
        )

    def evict(self, order: ev.Evict, status: Any = "done") -> list[ev.Decision]:
        size = order.bytes if status == "done" else 0
        self.resident -= size - self.moved.pop(order.serial, 0)
        return self.machine.do(
            ev.Evicted(self.number, order.serial, self.usage(), size, size, size / SPEED, status)
        )

    @property
    def state(self) -> Any:
        return self.machine.group(self.group)["state"]

    @property
    def reason(self) -> Any:
        return self.machine.group(self.group)["reason"]


class Machine:
    """A GPU of 100 GiB, and a clock."""

    def __init__(self, foreign: int = 0, **settings: Any) -> None:
        # What runs for long is interactive all the same, unless a test says otherwise.
        chosen = {
            "reserve": 0,
            "bandwidth": SPEED,
            "margin": 0,
            "interactive_burst": 1e9,
            **settings,
        }
        # The others are of a core that keeps what it takes in.
        rules = {item.name: chosen.pop(item.name) for item in fields(Rules) if item.name in chosen}
        self.core = Core(REGISTRY, Rules(**rules), **chosen)
        self.now = 100.0
        self.foreign = foreign
        self.pending_reclaim = 0
        self.processes: dict[int, Process] = {}
        self.history: list[ev.Log] = []
        self.readings = 0
        #: Whether readings take time: then nothing comes but what a test sends.
        self.slow = False
        #: Host memory that is to be ready: of the pool, and page-locked by each process; how often they were reported.
        self.pool = 0
        self.prepared: dict[int, int] = {}
        self.told = 0
        self.do(self.reading())
        self.do(ev.HostMemory(1000 * GIB))

    def reading(self) -> ev.Device:
        held = sum(p.resident + p.unevictable + p.context for p in self.processes.values())
        return ev.Device(GPU, TOTAL, held + self.foreign + self.pending_reclaim, "Test GPU", 0)

    def do(self, event: ev.Event) -> list[ev.Decision]:
        """Handle an event and the readings that the core asks for; return the other decisions."""
        found: list[ev.Decision] = []
        for decision in self.core.handle(event, self.now):
            if isinstance(decision, ev.ReadDevice):
                self.readings += 1
                if not self.slow:
                    found += self.do(self.reading())
            elif isinstance(decision, ev.Log):
                self.history.append(decision)
            elif isinstance(decision, ev.PreparePool):
                self.pool = decision.bytes
            elif isinstance(decision, ev.Prepare):
                self.prepared[decision.client] = decision.bytes
                self.told += 1
            else:
                found.append(decision)
                if isinstance(decision, ev.Grant):
                    self.processes[decision.client].lease = decision.lease
        return found

    def sleep(self, seconds: float) -> list[ev.Decision]:
        """Let time pass; return what the core decides by itself meanwhile."""
        until, found = self.now + seconds, []
        while (deadline := self.core.deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            found += self.do(ev.Tick())
        self.now = until
        return found

    def process(self, group: str, gib: float = 0, **more: Any) -> Process:
        process = Process(self, len(self.processes) + 1, group, more.pop("backend", "swap"))
        process.attach(**more)
        if gib:
            answer = process.grow(gib)
            assert answer is not None
            assert answer.status == "swapped"
        return process

    def runs(self, group: str, gib: float, **more: Any) -> Process:
        """One more process, in a burst, its memory in."""
        process = self.process(group, gib, **more)
        decisions = process.request()
        assert ev.Grant(process.number, process.lease) in decisions
        process.restore()
        return process

    def group(self, name: str) -> Any:
        return next(g for g in snapshot.status(self.core, self.now)["groups"] if g["id"] == name)

    @property
    def gpu(self) -> Any:
        return snapshot.status(self.core, self.now)["gpus"][0]

    def kinds(self, group: str) -> list[str]:
        return [log.kind for log in self.history if log.group == group]


def of(kind: type, decisions: list[ev.Decision]) -> list[Any]:
    return [d for d in decisions if isinstance(d, kind)]


STEP = 0.025
FREE = ev.Pace(0)


class Lab(Machine):
    """A GPU with obedient processes: they do at once what they are told, and have work as they please."""

    def __init__(self, **settings: Any) -> None:
        self.paced: dict[int, ev.Pace] = {}
        self.busy: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.submissions: dict[int, int] = {}
        self.ran_at: dict[int, float] = {}
        self.credit: dict[int, float] = {}
        super().__init__(**{"interactive_burst": 2.0, **settings})

    def do(self, event: ev.Event) -> list[ev.Decision]:
        found = super().do(event)
        for decision in found:
            if isinstance(decision, ev.Pace):
                self.paced[decision.client] = decision
        assert all(n.code != "policy_failed" for _, n in self.core.model.notices)
        return found

    def pace(self, process: Process) -> ev.Pace:
        """Return the messages to a process."""
        told = self.paced.get(process.number, FREE)
        return ev.Pace(0, told.inflight, told.stall, told.share, told.meter)

    def begin(self, group: str) -> None:
        self.do(ev.Cell(group, "begin", f"{group}-{self.now}", self.now, from_kernel=True))

    def end(self, process: Process) -> None:
        """The cell ends, and its burst."""
        for msg_id in list(self.core.groups[process.group].cells):
            self.do(ev.Cell(process.group, "end", msg_id, self.now, from_kernel=True))
        process.end()

    def asks(self, group: str, **preferences: Any) -> None:
        self.do(ev.Adjust(group, **preferences, later=True))

    def entitle(self, whose: str, *members: str, **entitlement: Any) -> None:
        self.do(ev.Entitle(whose, ev.Entitlement(**entitlement), members))

    def works(self, processes: Iterable[Process], seconds: float, rates: Any = None) -> None:
        """All have kernels of 25 ms to run all the time, side by side, as fast as they are told."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            running = [p for p in processes if p.lease and self._may_run(p)]
            for process in running:
                number = process.number
                self.ran_at[number] = self.now
                self.busy[number] = self.busy.get(number, 0.0) + STEP
                self.done[number] = self.done.get(number, 0.0) + STEP / len(running)
                self.submissions[number] = self.submissions.get(number, 0) + (
                    1 if rates is None else rates(process)
                )
            self.sleep(STEP)
            for process in processes:
                self.meter(process)

    def meter(self, process: Process) -> None:
        number = process.number
        if self.pace(process).meter and number in self.busy:
            self.do(ev.Meter(number, GPU, self.busy[number], self.submissions[number], self.now))

    def _may_run(self, process: Process) -> bool:
        pace, number = self.pace(process), process.number
        # It spreads its share evenly.
        self.credit[number] = min(self.credit.get(number, 0.0) + pace.share * STEP, 2 * STEP)
        if pace.inflight == 0:
            return self.now - self.ran_at.get(number, 0.0) >= pace.stall
        if self.credit[number] < STEP - 1e-9:
            return False
        self.credit[number] -= STEP
        return True

    def had(self, *processes: Process) -> float:
        """For how many seconds the GPU worked for them: it takes turns, and clocks go on."""
        return sum(self.done.get(p.number, 0.0) for p in processes)

    @property
    def order(self) -> list[str]:
        return [w.group.id for w in self.core.queue]
