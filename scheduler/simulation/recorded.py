# SPDX-License-Identifier: BSD-3-Clause
"""Turns a recording of a scheduler into a trace: the work of users and programs, without their waits.

GPU time is that of the bursts or, where the scheduler had it measured, of the meters. So it includes the time that
other groups took. A group of several processes or GPUs becomes one kernel on one GPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..core import messages as ev
from ..observability.recording import Recording
from .calibration import H200
from .trace import Header, Kernel, Step, Trace, TraceError

#: Seconds that are too short to be steps of their own.
_SHORTEST = 1e-5


@dataclass(slots=True)
class _Group:
    """The steps of one group so far."""

    name: str
    user: str
    at: float
    #: The time up to which its steps reach.
    mark: float
    priority: ev.Priority = "auto"
    steps: list[Step] = field(default_factory=list)
    cell: str = ""
    had_cells: bool = False
    busy: set[int] = field(default_factory=set)
    waiting: bool = False
    clients: int = 0
    #: GPU time by the meters, and this time when the burst began; negative: nothing was measured.
    metered: dict[int, float] = field(default_factory=dict)
    metered_before: float = -1.0
    allocated: int = 0

    def pass_time(self, now: float) -> None:
        """Add the time since the last step as work without the GPU, unless the group waited."""
        gap, self.mark = now - self.mark, now
        if self.busy or gap < _SHORTEST or self.waiting:
            return
        self.steps.append(("think" if self.had_cells and not self.cell else "cpu", gap))

    def begin(self, client: int, now: float) -> None:
        """Begin a burst."""
        if not self.busy:
            self.pass_time(now)
            self.metered_before = sum(self.metered.values()) if self.metered else -1.0
        self.waiting = False
        self.busy.add(client)

    def end(self, client: int, now: float) -> None:
        """End a burst."""
        if client not in self.busy:
            return
        self.busy.discard(client)
        if self.busy:
            return
        seconds, self.mark = now - self.mark, now
        if self.metered_before >= 0:
            had = sum(self.metered.values()) - self.metered_before
            seconds = min(seconds, had) if had > 0 else seconds
        if seconds >= _SHORTEST:
            self.steps.append(("gpu", seconds, 1.0))

    def hold(self, promised: int, now: float) -> None:
        """Set the bytes that the group holds now."""
        more = promised - self.allocated
        if not more:
            return
        if not self.busy:
            self.pass_time(now)
        self.allocated = promised
        self.steps.append(("allocate", more) if more > 0 else ("free", -more))


class _Reader:
    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self.left: list[tuple[str, _Group]] = []
        self.clients: dict[int, _Group] = {}
        self.ids: dict[int, str] = {}
        self.promised: dict[tuple[int, str], int] = {}
        self.memory: dict[str, int] = {}
        self.host = H200.host_memory

    def attach(self, client: int, id_: str, name: str, user: str, now: float) -> None:
        group = self.groups.get(id_)
        if group is None:
            group = self.groups[id_] = _Group(name or id_, user or id_, now, now)
        group.clients += 1
        self.clients[client], self.ids[client] = group, id_

    def detach(self, client: int, now: float) -> None:
        group = self.clients.pop(client, None)
        if group is None:
            return
        group.end(client, now)
        group.metered.pop(client, None)
        for key in [key for key in self.promised if key[0] == client]:
            del self.promised[key]
        id_ = self.ids.pop(client)
        group.clients -= 1
        if not group.clients:
            group.pass_time(now)
            self.left.append((id_, self.groups.pop(id_)))

    def use(self, client: int, usage: ev.Usage, now: float) -> None:
        self.promised[client, usage.gpu] = usage.promised
        group = self.clients.get(client)
        if group is None:
            return
        held: dict[str, int] = {}
        for (number, gpu), size in self.promised.items():
            if self.clients.get(number) is group:
                held[gpu] = held.get(gpu, 0) + size
        group.hold(max(held.values()), now)

    def take(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Attach():
                self.attach(event.client, event.group, event.name, event.user, now)
                for usage in event.usages:
                    self.use(event.client, usage, now)
            case ev.Detach():
                self.detach(event.client, now)
            case ev.UsageChanged() | ev.Evicted():
                self.use(event.client, event.usage, now)
            case ev.Device():
                self.memory[event.gpu] = event.total
            case ev.HostMemory():
                self.host = event.budget
            case ev.Cell():
                self._cell(event, now)
            case ev.Adjust() if event.group in self.groups and event.priority is not None:
                self.groups[event.group].priority = event.priority
            case ev.Request() | ev.Burst() | ev.Restored() | ev.Released() | ev.Meter():
                group = self.clients.get(event.client)
                if group is not None:
                    self._burst(group, event, now)
            case _:
                pass

    def _burst(
        self,
        group: _Group,
        event: ev.Request | ev.Burst | ev.Restored | ev.Released | ev.Meter,
        now: float,
    ) -> None:
        match event:
            case ev.Meter():
                group.metered[event.client] = event.busy
            case ev.Request():
                group.pass_time(now)
                group.waiting = not group.busy
            case ev.Restored():
                self.use(event.client, event.usage, now)
                if event.status == "done":
                    group.begin(event.client, now)
            case ev.Burst() if event.phase == "begin":
                group.begin(event.client, now)
            case _:
                group.end(event.client, now)

    def _cell(self, event: ev.Cell, now: float) -> None:
        group = self.groups.get(event.group)
        if group is None:
            return
        if event.phase == "begin" and not group.cell:
            self._end_bursts(group, now)
            group.pass_time(now)
            group.cell, group.had_cells = event.msg_id, True
            group.steps.append(("cell",))
        elif event.phase == "end" and group.cell == event.msg_id:
            self._end_bursts(group, now)
            group.pass_time(now)
            group.cell = ""
            group.steps.append(("end",))

    def _end_bursts(self, group: _Group, now: float) -> None:
        for client in list(group.busy):
            group.end(client, now)
        group.waiting = False


def convert(path: Path) -> Trace:
    """Make a trace of a recording.

    Raises
    ------
    RecordingError
        It cannot be read.
    TraceError
        It contains no work.
    OSError
        There is no such file.
    """
    with path.open("rb") as file:
        return convert_lines(file, path.stem)


def convert_lines(lines: Iterable[bytes], name: str) -> Trace:
    """Make a trace of a recording's lines, as ``convert``."""
    recording = Recording(lines)
    core = recording.core()
    reader = _Reader()
    first = now = 0.0
    for number, line in enumerate(recording.lines()):
        now = line.time
        if not number:
            first = now
            for client in core.clients.values():
                group = client.group
                reader.attach(client.number, group.id, group.name, group.user, now)
                for uuid, holding in client.holdings.items():
                    reader.use(client.number, ev.Usage(uuid, promised=holding.promised), now)
            for gpu in core.gpus.values():
                reader.memory[gpu.uuid] = gpu.total
        reader.take(line.event, now)
    for left in list(reader.clients):
        reader.detach(left, now)
    kernels = [
        _kernel(f"{id_}#{number}", group, first)
        for number, (id_, group) in enumerate(reader.left, 1)
        if any(step[0] == "gpu" for step in group.steps)
    ]
    if not kernels:
        raise TraceError(
            "nobody used a GPU while this was recorded, so there is nothing to simulate"
        )
    kernels.sort(key=lambda k: (k.at, k.name))
    header = Header(
        name,
        gpus=max(1, len(reader.memory)),
        gpu_memory=max(reader.memory.values(), default=H200.gpu_memory),
        host_memory=reader.host,
    )
    return Trace(header, tuple(kernels))


def _kernel(name: str, group: _Group, first: float) -> Kernel:
    steps = list(group.steps)
    if group.cell:
        steps.append(("end",))
    return Kernel(
        name,
        group.user,
        "interactive" if group.had_cells else "background",
        max(0.0, group.at - first),
        tuple(steps),
        group.priority,
    )
