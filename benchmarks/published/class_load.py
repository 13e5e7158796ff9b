# SPDX-License-Identifier: BSD-3-Clause
"""A node's scheduler under a class: 50 users with two notebooks each, who think, run cells, and have more than fits.

The notebooks are clients of the protocol without CUDA, all in this process; the scheduler is a real one in a process
of its own, on the simulated driver. Users log in by the token of a Hub, as their Jupyter servers do, and their kernels
show tickets. All their memory is three times what the GPU has, and a tenth of them is at work at once, so nearly each
cell needs memory of an idle notebook. Evictions cost no time here, because this measures the scheduler. ::

    gpushare bench class --json
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from msgspec.structs import replace

from ...scheduler.core import messages as ev
from ...scheduler.protocol import wire as protocol
from ...scheduler.protocol.async_client import AsyncControlClient
from ..harness.figures import Figure, median_and_p99
from ..harness.machine import MIB, Machine, machine

USERS, EACH = 50, 2
#: Bytes of the GPU and of each notebook's data.
GPU, FOOTPRINT = 1024 * MIB, 30 * MIB
#: Seconds of thought before a cell and of its burst, on average; of the measurement.
THOUGHT, BURST, SECONDS = 4.0, 0.25, 60.0
#: Connections that come and go; and the number before them, which fills the scheduler's memory of the last events
#: (``recording.LATE``).
CONNECTIONS, BEFORE = 10_000, 40_000
#: Seconds after which the scheduler has forgotten clients that connected and sent nothing.
SETTLE = 12.0
#: Seconds between two attempts of a client to find a scheduler: the interposer's first.
RETRY = 0.02
#: Bound of every wait, seconds.
PATIENCE = 60.0
#: What is to be reached: seconds, part of a processor, bytes.
GRANT, CPU, MEMORY, BACK = 0.020, 0.15, 150e6, 2.0


class Notebook(asyncio.Protocol):
    """One kernel's client: obeys the scheduler at once, and comes back when that ends.

    Parameters
    ----------
    socket
        The scheduler's.
    group, ticket, gpu
        Who it is, and the GPU that it uses.
    """

    transport: asyncio.Transport

    def __init__(self, socket: Path, group: str, ticket: str, gpu: str) -> None:
        self._socket, self.group, self._ticket = socket, group, ticket
        self.usage = ev.Usage(gpu)
        self.lease = 0
        self._filling = False
        self.number = 0
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._serials = itertools.count(1)
        self.busy = False
        #: When it asked for the lease that it waits for.
        self.asked: float | None = None
        self._granted = asyncio.Event()
        self._grown: asyncio.Future[ev.Grown] | None = None
        self._attached = False
        #: Seconds of each wait, from the request to the lease with all its room; and when it was welcomed last.
        self.waits: list[float] = []
        self.welcomed = 0.0
        #: Errors: a lease without a request, or a refusal.
        self.faults: list[str] = []

    # --- Life -------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect and log in, repeatedly until there is a scheduler."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await loop.create_unix_connection(lambda: self, str(self._socket))
                break
            except OSError:
                await asyncio.sleep(RETRY)
        again = self._attached
        hello = ev.Attach(
            0, os.getpid(), self.group, f"{self.group}.ipynb", "swap", usages=(self.usage,),
            reattach=again, leased=bool(self.lease), busy=self.busy, lease=self.lease,
        )  # fmt: skip
        self._reader = protocol.FrameReader(from_scheduler=True)
        self.transport.write(protocol.ticket(self._ticket) + protocol.encode_event(hello))
        if again and self.asked is not None:
            # The wait is a new one: the scheduler before this one took the old to its grave.
            self.transport.write(protocol.encode_event(ev.Request(0, next(self._serials))))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to write."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Find the next scheduler."""
        if self._attached:
            self._task = asyncio.get_running_loop().create_task(self.connect())

    def close(self) -> None:
        """End as a process does."""
        self._attached = False
        self.transport.abort()

    # --- What it does -----------------------------------------------------------------------------

    async def hold(self, size: int) -> None:
        """Allocate this number of bytes."""
        self._grown = asyncio.get_running_loop().create_future()
        least = replace(self.usage, promised=size)
        self._send(ev.Grow(0, next(self._serials), least, size))
        grown = await asyncio.wait_for(self._grown, PATIENCE)
        if grown.status not in ("resident", "swapped"):
            raise RuntimeError(f"the scheduler refused {size} bytes: {grown.text}")
        self.usage = replace(least, promised=grown.promised)
        self._send(ev.UsageChanged(0, self.usage))

    async def cell(self, burst: float) -> None:
        """Run a cell that uses the GPU for this number of seconds."""
        name = str(next(self._serials))
        self._send(ev.Cell(self.group, "begin", name, time.monotonic(), from_kernel=True))
        if self.lease:
            self.busy = True
            self._send(ev.Burst(0, "begin", "none", time.monotonic()))
        else:
            self._granted.clear()
            self.asked = time.monotonic()
            self._send(ev.Request(0, next(self._serials)))
            await asyncio.wait_for(self._granted.wait(), PATIENCE)
            self.busy = True
        await asyncio.sleep(burst)
        self.busy = False
        self._send(ev.Burst(0, "end", "cell", time.monotonic()))
        self._send(ev.Cell(self.group, "end", name, time.monotonic(), from_kernel=True))

    def _send(self, event: ev.Event) -> None:
        # What is said while there is no scheduler is in the next HELLO.
        if not self.transport.is_closing():
            self.transport.write(protocol.encode_event(event))

    # --- What it is told --------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Obey."""
        for frame in self._reader.feed(data):
            if frame.type == protocol.REFUSED:
                self.faults.append(protocol.decode_refused(frame.body)[1])
                self._attached = False
            elif frame.type == protocol.WELCOME:
                self.number = protocol.decode_welcome(frame.body).client
                self._attached, self.welcomed = True, time.monotonic()
            else:
                self._obey(protocol.decode_decision(self.number, frame))

    def _obey(self, decision: ev.Decision) -> None:
        match decision:
            case ev.Grant(lease=lease, filling=filling):
                if self.asked is None:
                    self.faults.append(f"lease {lease} came without a request")
                self.lease, self._filling = lease, filling
                if not filling:
                    self._arrive()
            case ev.Room(lease=lease, resident=room) if lease == self.lease and self._filling:
                if room >= self.usage.promised:
                    self._filling = False
                    self._arrive()
            case ev.Revoke(lease=lease) if lease == self.lease:
                self.lease, self._filling = 0, False
                self._send(ev.Released(0, lease, "revoke"))
                if self.asked is None and self.busy:
                    self._granted.clear()
                    self.asked = time.monotonic()
                if self.asked is not None:
                    self._send(ev.Request(0, next(self._serials)))
            case ev.Evict(serial=serial, bytes=size):
                size = min(size, self.usage.resident)
                left, host = self.usage.resident - size, self.usage.host + size
                self.usage = replace(self.usage, resident=left, host=host)
                self._send(ev.Evicted(0, serial, self.usage, size, size, 1e-3, "done"))
            case ev.Grown() if self._grown is not None:
                self._grown.set_result(decision)
            case _:
                pass

    def _arrive(self) -> None:
        size = self.usage.promised - self.usage.resident
        self.usage = replace(self.usage, resident=self.usage.promised, host=0)
        self._send(ev.Restored(0, self.lease, self.usage, size, size, 1e-3, "done"))
        if self.asked is not None:
            self.waits.append(time.monotonic() - self.asked)
            self.asked = None
        self._granted.set()


class _Hub:
    """Says whose a token is: the token itself."""

    def __enter__(self) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.headers.get("Authorization", "").partition(" ")[2]
                model = {"kind": "user", "name": name, "admin": False, "groups": [], "scopes": []}
                body = json.dumps(model).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}/hub/api"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Process:
    """What the system says of a process."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc", str(pid))

    def cpu(self) -> float:
        """Seconds of a processor that it has had."""
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> int:
        """Bytes of its own, without evicted data."""
        lines = (self._folder / "status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines)
        own = int(status["VmRSS"].split()[0]) - int(status["RssShmem"].split()[0])
        return own * 1024

    def descriptors(self) -> int:
        """How many files it has open."""
        return len(list((self._folder / "fd").iterdir()))


def run() -> Iterator[Figure]:
    """Measure."""
    with (
        _Hub() as hub,
        machine(scheduler=False, GPUSHARE_SIM="1", GPUSHARE_SIM_MEMORY=str(GPU)) as here,
    ):
        config = here.folder / "gpushare.py"
        here.socket.parent.mkdir(mode=0o755)
        settings = {
            "socket": str(here.socket),
            "state_dir": str(here.folder / "state"),
            "shared_uids": [os.getuid()],
            "hub_api_url": hub,
        }
        config.write_text("".join(f"c.NodeScheduler.{k} = {v!r}\n" for k, v in settings.items()))
        here.start_scheduler("--config", str(config))
        yield from asyncio.run(_measure(here, config))


async def _measure(here: Machine, config: Path) -> list[Figure]:
    assert here.scheduler is not None
    process = _Process(here.scheduler.pid)
    before = process.memory()
    notebooks = await _class(here)
    # Before the class begins: its history fills memory for minutes.
    figures = await _come_and_go(here, notebooks[0], process)
    players = [asyncio.create_task(_play(n, random.Random(i))) for i, n in enumerate(notebooks)]
    try:
        # The first round, in which all come at once, is another matter.
        await asyncio.sleep(THOUGHT)
        for notebook in notebooks:
            notebook.waits.clear()
        used, began = process.cpu(), time.monotonic()
        await asyncio.sleep(SECONDS)
        cpu = (process.cpu() - used) / (time.monotonic() - began)
        waits = [seconds * 1e3 for notebook in notebooks for seconds in notebook.waits]
        memory = process.memory()
        figures += [
            *median_and_p99("class", "request to lease, 50 x 2 clients", "ms", waits, GRANT * 1e3, GRANT * 1e3),
            Figure("class", "scheduler's part of a processor", cpu * 100, "%", None, 1, 0.0, CPU * 100),
            Figure("class", "scheduler's memory", memory / 1e6, "MB", before / 1e6, 1, 0.0, MEMORY / 1e6),
        ]  # fmt: skip
        figures += await _restart(here, config, notebooks)
    finally:
        for player in players:
            player.cancel()
        await asyncio.gather(*players, return_exceptions=True)
        for notebook in notebooks:
            notebook.close()
    faults = [fault for notebook in notebooks for fault in notebook.faults]
    if faults:
        raise RuntimeError(f"{len(faults)} faults, such as: {faults[0]}")
    return figures


async def _class(here: Machine) -> list[Notebook]:
    """Log the users in, and start their notebooks."""
    notebooks = []
    for user in range(USERS):
        async with AsyncControlClient(here.socket) as server:
            await server.request("login", token=f"student-{user}")
            status = (await server.request("status"))["status"]
            for number in range(EACH):
                group = f"{user}-{number}"
                reply = await server.request("ticket", group=group, server="")
                gpu = status["gpus"][0]["uuid"]
                notebooks.append(Notebook(here.socket, group, reply["ticket"], gpu))
    for notebook in notebooks:
        await notebook.connect()
        await notebook.hold(FOOTPRINT)
    return notebooks


async def _play(notebook: Notebook, chance: random.Random) -> None:
    while True:
        await asyncio.sleep(chance.expovariate(1 / THOUGHT))
        await notebook.cell(chance.expovariate(1 / BURST))


async def _come_and_go(here: Machine, known: Notebook, process: _Process) -> list[Figure]:
    """Connect and disconnect while the others work; half of the connections send HELLO."""

    async def visit(count: int) -> None:
        for number in range(count):
            reader, writer = await asyncio.open_unix_connection(str(here.socket))
            if number % 2:
                hello = ev.Attach(0, os.getpid(), known.group, known.group, "plain")
                writer.write(protocol.ticket(known._ticket) + protocol.encode_event(hello))
                await reader.readexactly(protocol.HEADER_SIZE)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    await visit(BEFORE)
    await asyncio.sleep(SETTLE)
    memory, descriptors = process.memory(), process.descriptors()
    began = time.monotonic()
    await visit(CONNECTIONS)
    rate = CONNECTIONS / (time.monotonic() - began)
    await asyncio.sleep(SETTLE)
    more, left = process.memory() - memory, process.descriptors() - descriptors
    return [
        Figure("class", "connects and disconnects, 100 attached", rate, "/s", None, CONNECTIONS, 0.0),
        Figure("class", "memory that they leave behind", more / 1e6, "MB", None, CONNECTIONS, 0.0, 1.0),
        # One may be on its way, of a control program or a reading.
        Figure("class", "descriptors that they leave behind", left, "", None, CONNECTIONS, 0.0, 1),
    ]  # fmt: skip


async def _restart(here: Machine, config: Path, notebooks: list[Notebook]) -> list[Figure]:
    """Kill the scheduler under the class, and start the next."""
    here.kill_scheduler()
    killed = time.monotonic()
    held = {n.group: n.lease for n in notebooks if n.lease}
    for notebook in notebooks:
        notebook.welcomed = 0.0
    await asyncio.to_thread(here.start_scheduler, "--config", str(config))
    ready = time.monotonic()
    while not all(n.welcomed for n in notebooks):
        if time.monotonic() > ready + PATIENCE:
            raise RuntimeError("clients did not come back")
        await asyncio.sleep(RETRY)
    back = max(n.welcomed for n in notebooks)
    waiting = [n for n in notebooks if n.asked is not None]
    begun = {n.group: len(n.waits) for n in waiting}
    deadline = time.monotonic() + PATIENCE
    while lost := [n for n in waiting if n.asked is not None and len(n.waits) == begun[n.group]]:
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(RETRY)
    leases = [n.lease for n in notebooks if n.lease]
    return [
        Figure("class", "next scheduler ready to all of 100 back", back - ready, "s", None, len(notebooks), 0.0, BACK),
        Figure("class", "kill to all of 100 back", back - killed, "s", None, len(notebooks), 0.0),
        Figure("class", "grants lost over it", len(lost), "", None, len(held) + len(waiting), 0.0, 0),
        Figure("class", "leases given twice after it", len(leases) - len(set(leases)), "", None, len(leases), 0.0, 0),
    ]  # fmt: skip
