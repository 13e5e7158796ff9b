# SPDX-License-Identifier: BSD-3-Clause
"""Administration: what administrators request, and the records kept for them (docs/how-to/admin/drain.md)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from ..core import messages as ev
from ..core.core import Core
from ..core.foreign_use import CONTEXTS, CONTEXTS_PART
from ..core.model import Group
from ..gpu.devices import Devices
from ..memory.pool_manager import PoolManager
from ..node.prices import Prices
from ..observability import usage_audit
from ..observability.audit import Audit
from ..observability.counters import Counters
from ..observability.metrics import Sample
from ..observability.usage_report import History
from ..protocol import bodies
from ..protocol.bodies import LONGEST_TEXT, RequestError
from ..protocol.client import user_name
from ..views import status as snapshot
from .connection import Connection
from .history import Answer, EventHistory

log = logging.getLogger(__name__)

#: Seconds between two comparisons of what processes hold and state; and before a suspicious process is checked again.
COMPARE, AGAIN = 5.0, 1.0
#: Seconds over which the longest delay of the event loop is known.
LAG = 60.0
#: Lines of the audit log in an answer without a start time.
LAST = 100

#: The kinds of a GPU's memory in the metrics.
_MEMORY = (
    "total",
    "reserve",
    "resident",
    "unevictable",
    "contexts",
    "foreign",
    "pending_reclaim",
    "free",
)

#: The kinds of a group's memory on a GPU that are added up for its user.
_HELD = tuple(kind for kind in snapshot.KINDS if kind != "context")


class Host(Protocol):
    """The parts of the server that administration uses."""

    core: Core
    devices: Devices
    history: EventHistory
    pools: PoolManager
    #: When the server was started, seconds on CLOCK_MONOTONIC.
    started: float

    def handle(self, event: ev.Event) -> None:
        """Pass an event to the core and carry out its decisions."""
        ...

    def publish(self) -> None:
        """Number what has happened, and send it to the subscribers."""
        ...

    def pids(self) -> dict[int, int]:
        """Return the process of each client."""
        ...

    def connected(self) -> tuple[int, int]:
        """Return the numbers of clients and of all connections."""
        ...


class Administration:
    """Carries out administrators' requests, and keeps their records.

    Parameters
    ----------
    server
        The server.
    folder
        The folder of the records that outlive the scheduler; None: no records.
    prices
        What use costs.
    """

    def __init__(self, server: Host, folder: Path | None, prices: Prices) -> None:
        self._server = server
        #: What use costs, from now on for all use that a report lists.
        self.prices = prices
        self._reporting = asyncio.Lock()
        self._steering = None if folder is None else folder / "steering.json"
        self.audit = _open_audit(folder)
        self._history = History(None if folder is None else folder / "usage.sqlite3", time.time())
        self.counters = Counters()
        self._counted = (0, 0, 0)
        self._usage_audit = usage_audit.UsageAudit()
        #: The uid and the user's name of each process that was found.
        self._owners: dict[int, tuple[int | None, str]] = {}
        self._compared = 0.0
        self._comparing: asyncio.Task[None] | None = None
        self._lags: deque[tuple[float, float]] = deque()
        self._due: float | None = None
        self._on_hold: set[str] = set()
        self.operations: dict[str, Callable[[Connection, Any], Answer]] = {
            "drain": self._op_drain,
            "maintenance": self._op_maintenance,
            "hold": self._op_hold,
            "users": self._op_users,
            "audit": self._op_audit,
            "report": self._op_report,
            "metrics": self._op_metrics,
        }

    # --- Start and end ------------------------------------------------------------------------

    def start(self) -> None:
        """Apply an earlier scheduler's records. The GPUs are known by now."""
        if self._steering is None:
            return
        try:
            known = json.loads(self._steering.read_text(encoding="utf-8"))
            drained, held, text = known["drained"], known["on_hold"], known["maintenance"]
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.error(
                "cannot read the administrators' earlier settings from %s: %s",
                self._steering,
                error,
            )
            return
        self._on_hold = {group for group in held if isinstance(group, str)}
        events: list[ev.Event] = [ev.Hold(group, True) for group in self._on_hold]
        events += [ev.Drain(gpu, True) for gpu in drained]
        events.append(ev.Maintain(str(text)[:LONGEST_TEXT]))
        for event in events:
            # A GPU that is no longer there need not be drained.
            with contextlib.suppress(ValueError):
                self._server.handle(event)

    def leave_records(self) -> None:
        """Write the records for the last time. The next scheduler may open them now."""
        if self._comparing is not None:
            self._comparing.cancel()
        now = time.time()
        self._count(now)
        self._history.leave(now)
        self.audit.close()

    def close(self) -> None:
        """Close the records. This may wait for the disk."""
        self._history.close()

    def _save_settings(self) -> None:
        """Save the settings of administrators, so that the next scheduler can apply them."""
        if self._steering is None:
            return
        core = self._server.core
        known = {
            "drained": [gpu.uuid for gpu in core.gpus.values() if gpu.drained],
            "on_hold": sorted(self._on_hold),
            "maintenance": core.model.maintenance,
        }
        fresh = self._steering.with_name(self._steering.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(known, file)
            fresh.replace(self._steering)
        except OSError as error:
            log.error(
                "cannot save the administrators' settings to %s: %s",
                self._steering,
                error.strerror,
            )

    # --- History ------------------------------------------------------------------------------

    def observe(self, entry: ev.Log) -> None:
        """Count a line of the core's history."""
        core, now = self._server.core, time.time()
        self.counters.observe(entry, core)
        if entry.kind == "grant":
            self._history.usage.granted(entry.fields["waited"], now)
        elif entry.kind in ("evict", "restore"):
            self._history.usage.moved(core, entry.group, entry.fields["bytes"], now)

    def leave(self, group: Group) -> None:
        """Count the use of a group whose last process is about to leave."""
        self._history.usage.leave(self._server.core, group, time.monotonic())

    def _count(self, now: float) -> None:
        """Add the counts since the last time to the usage history."""
        counters = self.counters
        counted = counters.avoided, counters.given.total(), counters.moved.total()
        if counted != self._counted:
            avoided, given, moved = (
                new - old for new, old in zip(counted, self._counted, strict=True)
            )
            self._counted = counted
            self._history.usage.count(now, avoided=avoided, given=given, moved=moved)

    def poll(self, again: float) -> None:
        """Check what changes by itself; ``again``: seconds until the next call."""
        now, core = time.monotonic(), self._server.core
        if self._due is not None:
            self._lags.append((now, max(0.0, now - self._due)))
        while self._lags and self._lags[0][0] < now - LAG:
            self._lags.popleft()
        self._due = now + again
        self.counters.update(core)
        wall = time.time()
        self._history.usage.update(core, wall, now, self._server.devices.energy)
        self._count(wall)
        self._history.write(wall)
        pause = AGAIN if self._usage_audit.unsure else COMPARE
        if core.gpus and self._comparing is None and now >= self._compared + pause:
            self._compared = now
            self._comparing = asyncio.get_running_loop().create_task(self._compare())

    def record_request(
        self, connection: Connection, request: Mapping[str, Any], outcome: str
    ) -> None:
        """Write a request that changes something, its user and its result into the audit log."""
        who = connection.principal
        asker = {
            "user": None if who is None else who.user,
            "uid": connection.uid,
            "admin": who is not None and who.admin,
        }
        self.audit.record(time.time(), asker, request, outcome)

    # --- Audit of memory ----------------------------------------------------------------------

    async def _compare(self) -> None:
        """Compare the driver's figures of each process with its client's statements, and measure its contexts."""
        core, self._usage_audit.unsettled = self._server.core, False
        try:
            for gpu in list(core.gpus):
                before = self._claims(gpu)
                held = await asyncio.to_thread(self._server.devices.processes, gpu)
                if held is None:
                    continue
                stated = {
                    # Figures that have changed since may not be in the reading.
                    pid: now if now == before.get(pid) else [replace(c, exact=False) for c in now]
                    for pid, now in self._claims(gpu).items()
                }
                # These clients have not stated their memory yet.
                awaited = {client.pid for client in core.model.awaited.values()}
                held = {pid: size for pid, size in held.items() if pid not in awaited}
                # In a container, the driver may list processes by numbers that mean other processes here.
                held = {pid: size for pid, size in held.items() if pid in stated or _exists(pid)}
                room = min(CONTEXTS, int(core.gpus[gpu].total * CONTEXTS_PART))
                for found in self._usage_audit.observe(gpu, held, stated, room):
                    params = {
                        "user": found.user,
                        "pid": found.pid,
                        "gpu": gpu,
                        "bytes": found.excess,
                    }
                    self._server.handle(ev.Notice(found.group, "underreported", params))
                for client, size in self._usage_audit.measured.items():
                    self._report_measured(client, gpu, size)
            pids = {found.pid for found in self._usage_audit.findings}
            self._owners = {pid: self._owners.get(pid) or _owner(pid) for pid in pids}
        finally:
            self._comparing = None

    def _claims(self, gpu: str) -> dict[int, list[usage_audit.Claim]]:
        return usage_audit.claims(self._server.core, self._server.pids()).get(gpu, {})

    def _report_measured(self, client: int, gpu: str, size: int) -> None:
        known = self._server.core.clients.get(client)
        holding = None if known is None else known.holdings.get(gpu)
        if holding is None:
            return
        charged = holding.context if holding.stated else holding.beyond
        if not holding.measured or max(size, holding.stated > 0) != charged:
            self._server.handle(ev.Measured(client, gpu, size))

    def processes(self) -> list[dict[str, Any]]:
        """Return the processes with memory that no client stated."""
        return self._usage_audit.status(self._owners)

    # --- Operations ---------------------------------------------------------------------------

    def find_gpu(self, gpu: str) -> str:
        """Return the UUID of the GPU that a request names: by its UUID, the beginning of it, or its index.

        Raises
        ------
        RequestError
            There is none, or more than one.
        """
        known = self._server.core.gpus
        found = [u for u, one in known.items() if gpu in (u, str(one.index))]
        found = found or [u for u in known if gpu and u.startswith(gpu)]
        if len(found) != 1:
            raise RequestError(
                f"{gpu!r} matches {'none' if not found else 'more than one'} of this machine's GPUs: "
                + ", ".join(f"{one.index} ({u})" for u, one in known.items())
            )
        return found[0]

    def _op_drain(self, connection: Connection, asked: bodies.Drain) -> Answer:
        gpu = self.find_gpu(asked.gpu)
        self._server.handle(ev.Drain(gpu, asked.on))
        self._save_settings()
        return {"gpu": gpu, "on": asked.on}

    def _op_maintenance(self, connection: Connection, asked: bodies.Maintenance) -> Answer:
        self._server.handle(ev.Maintain(" ".join(asked.text.split())))
        self._save_settings()
        return {"maintenance": self._server.core.model.maintenance or None}

    def _op_hold(self, connection: Connection, asked: bodies.Hold) -> Answer:
        on, group = asked.on, self._find(asked.group)
        self._server.handle(ev.Hold(group, on))
        (self._on_hold.add if on else self._on_hold.discard)(group)
        self._save_settings()
        return {"group": group, "on": on}

    def _op_users(self, connection: Connection, asked: bodies.Body) -> Answer:
        core, now = self._server.core, time.monotonic()
        users: dict[str, dict[str, Any]] = {}
        for said in snapshot.status(core, now)["groups"]:
            group = core.groups[said["id"]]
            claims = core.times.of(group)
            user = users.setdefault(
                group.user,
                {
                    "name": group.user,
                    "team": claims[0].whose if len(claims) > 2 else None,
                    "groups": 0, "leases": 0, "waiting": 0,
                    **dict.fromkeys(_HELD, 0),
                    "waits": 0, "waited": 0.0, "ran": 0.0,
                    "used": {u: core.times.share(f"user:{group.user}", u, now) for u in core.gpus},
                },
            )  # fmt: skip
            totals = self._server.history.ledger.totals(group.id, now)
            more: dict[str, float] = {
                "groups": 1,
                "leases": group.lease is not None,
                "waiting": group.wait is not None,
                "waits": said["totals"]["waits"],
                **{kind: sum(gpu[kind] for gpu in said["gpus"]) for kind in _HELD},
                **totals,
            }
            for name, value in more.items():
                user[name] += value
        return {"users": [users[name] for name in sorted(users)]}

    def _op_audit(self, connection: Connection, asked: bodies.Audit) -> Answer:
        if asked.since is None:
            return {"audit": self.audit.last(LAST)}
        return self._audit_since(asked.since)

    async def _audit_since(self, since: float) -> dict[str, Any]:
        return {"audit": await asyncio.to_thread(self.audit.since, since)}

    def _op_report(self, connection: Connection, asked: bodies.Report) -> Answer:
        until = time.time() if asked.until is None else asked.until
        since = until - 7 * 86400 if asked.since is None else asked.since
        if since >= until:
            raise RequestError("'since' must be before 'until'")
        now = time.time()
        self._count(now)
        with _readable_history():
            report = self._history.report(since, until)
            if not asked.by:
                return {"report": self._priced(report)}
            find = self._history.uses(since, until, asked.by, asked.user, now)
        return self._report_by(report, find)

    async def _report_by(
        self, report: dict[str, Any], find: Callable[[], list[dict[str, Any]]]
    ) -> dict[str, Any]:
        # One at a time, because each may keep a processor busy for a second.
        async with self._reporting:
            with _readable_history():
                rows = await asyncio.to_thread(find)
        return {"report": self._priced({**report, "rows": rows})}

    def _priced(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return a report with what the use costs, if it costs anything."""
        prices = self.prices
        if not prices:
            return {**report, "prices": None}
        priced = {
            **report,
            "prices": asdict(prices),
            "idle_cost": round(prices.energy_cost(report["idle_energy"]), 4),
        }
        if "rows" in report:
            priced["rows"] = [{**row, "cost": prices.cost(row)} for row in report["rows"]]
        return priced

    def _op_metrics(self, connection: Connection, asked: bodies.Body) -> Answer:
        return {"metrics": [*self._samples(), *self.counters.samples()]}

    def _samples(self) -> Iterator[Sample]:
        """Return the present figures for metrics. Events are counted in ``counters.py``."""
        self._server.publish()
        core, now = self._server.core, time.monotonic()
        status = snapshot.status(core, now)
        clients, connections = self._server.connected()
        yield Sample("gpushare_up", (), 1)
        yield Sample("gpushare_uptime_seconds", (), now - self._server.started)
        outside = Counter(f.gpu for f in self._usage_audit.findings if not f.client)
        for gpu in status["gpus"]:
            uuid = gpu["uuid"]
            yield Sample("gpushare_gpu_info", (uuid, str(gpu["index"]), gpu["name"]), 1)
            for kind in _MEMORY:
                yield Sample("gpushare_gpu_memory_bytes", (uuid, kind), gpu[kind])
            utilization = self._server.devices.utilization.get(uuid)
            if utilization is not None:
                yield Sample("gpushare_gpu_utilization_ratio", (uuid,), utilization / 100)
            energy = self._server.devices.energy.get(uuid)
            if energy is not None and energy.watts is not None:
                yield Sample("gpushare_gpu_power_watts", (uuid,), energy.watts)
            yield Sample("gpushare_gpu_draining", (uuid,), gpu["draining"])
            yield Sample("gpushare_gpu_leases", (uuid,), len(core.gpus[uuid].holders))
            yield Sample("gpushare_gpu_waiting", (uuid,), core.gpus[uuid].waiting)
            yield Sample("gpushare_outside_processes", (uuid,), outside[uuid])
        groups = Counter((group["class"], group["state"]) for group in status["groups"])
        for states, count in sorted(groups.items()):
            yield Sample("gpushare_groups", states, count)
        memory: Counter[tuple[str, str]] = Counter()
        for group in status["groups"]:
            for share in group["gpus"]:
                for kind in _HELD:
                    memory[group["user"], kind] += share[kind]
        yield Sample("gpushare_users", (), len({user for user, _ in memory}))
        for (user, kind), size in sorted(memory.items()):
            if kind in ("clean", "shared"):
                # They are parts of other kinds, so they are not among the kinds that can be added up.
                yield Sample(f"gpushare_user_memory_{kind}_bytes", (user,), size)
            else:
                yield Sample("gpushare_user_memory_bytes", (user, kind), size)
        for user, seconds in self._history.usage.had.items():
            yield Sample("gpushare_user_gpu_seconds_total", (user,), seconds)
        yield from self._use_samples()
        for kind, size in status["host"].items():
            yield Sample("gpushare_host_memory_bytes", (kind,), size)
        if (disk := self._server.pools.disk_status()) is not None:
            for kind in ("size", "used", "written", "read"):
                yield Sample("gpushare_disk_bytes", (kind,), disk[kind])
            yield Sample("gpushare_disk_failed", (), int(bool(disk["fault"])))
        yield Sample("gpushare_connections", ("client",), clients)
        yield Sample("gpushare_connections", ("control",), connections - clients)
        lag = max((lag for _, lag in self._lags), default=0.0)
        yield Sample("gpushare_event_loop_lag_seconds", (), lag)

    def _use_samples(self) -> Iterator[Sample]:
        """Return what users and teams have used since the scheduler started, and the energy of the GPUs."""
        usage = self._history.usage
        for whose, use in sorted(usage.uses.items()):
            for kind, size in (
                ("gpu", use.gpu_bytes),
                ("host", use.host_bytes),
                ("disk", use.disk_bytes),
            ):
                yield Sample("gpushare_use_byte_seconds_total", (*whose, kind), size)
            yield Sample("gpushare_use_seconds_total", whose, use.seconds)
            yield Sample("gpushare_use_moved_bytes_total", whose, use.moved)
            if use.measured:
                yield Sample("gpushare_use_energy_joules_total", whose, use.energy)
        for uuid, one in sorted(usage.energy.items()):
            yield Sample("gpushare_gpu_energy_joules_total", (uuid,), one.energy)
            yield Sample("gpushare_gpu_idle_energy_joules_total", (uuid,), one.idle)

    def _find(self, text: str) -> str:
        if text in self._on_hold:
            # This includes a group that has no process now.
            return text
        try:
            return self._server.core.find_group(text)
        except LookupError as error:
            raise RequestError(str(error), getattr(error, "code", "")) from None


@contextlib.contextmanager
def _readable_history() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise RequestError(f"Cannot read the usage history: {error}. Try again later.") from None


def _open_audit(folder: Path | None) -> Audit:
    if folder is None:
        return Audit(None)
    try:
        return Audit(folder / "audit.jsonl")
    except OSError as error:
        log.error(
            "no audit log is kept, because %s cannot be written: %s", error.filename, error.strerror
        )
        return Audit(None)


def _exists(pid: int) -> bool:
    """Whether this process can see a process with this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _owner(pid: int) -> tuple[int | None, str]:
    """Return the uid and the name of a process's user. In another namespace, the name may be unknown here."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None, ""
    return uid, user_name(uid)
