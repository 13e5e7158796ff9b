# SPDX-License-Identifier: BSD-3-Clause
"""How long the scheduler takes from a lease given back to the next one's grant, with nothing to move.

Two clients in processes of their own take turns (``anti_thrash = on``, both fit). Measured from just
before the holder writes RELEASED to just after the waiter has read GRANT, so with two hops over unix
sockets and two wake-ups; ``bare`` is the same two hops through a process that only forwards bytes.

Run from the repository's top folder; ``GPUSHARE_SIM=1`` for the simulated driver. Prints one JSON
object a line.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from jupyter_gpushare.scheduler.core import messages as ev  # noqa: E402
from jupyter_gpushare.scheduler.protocol.client import ControlClient  # noqa: E402
from tests.support.client import FakeClient  # noqa: E402

SIZE = 64 << 20


def play(path: Path, group: str, gpu: str, turns: int, out: Connection) -> None:
    """Take turns; send back when each lease was received and given back."""
    with FakeClient(path, group, gpu) as client:
        client.attach()
        client.grow(SIZE)
        granted, released = [], []
        for _ in range(turns):
            client.request()
            grant = client.expect(ev.Grant)
            granted.append(client.received_at)
            client.take(grant)
            try:
                client.expect(ev.Revoke, timeout=1.0)
            except TimeoutError:
                # The other has had all its turns.
                break
            released.append(time.monotonic())
            client.release()
        out.send((granted, released))


def handoffs(path: Path, gpu: str, turns: int) -> list[float]:
    """Seconds from each release to the other's grant."""
    context = multiprocessing.get_context("fork")
    granted: list[tuple[float, int]] = []
    released: list[tuple[float, int]] = []
    pipes = []
    for number in range(2):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=play, args=(path, f"bench-{number}", gpu, turns, there))
        process.start()
        pipes.append((here, process))
    for number, (here, process) in enumerate(pipes):
        mine, gone = here.recv()
        process.join()
        granted += [(at, number) for at in mine]
        released += [(at, number) for at in gone]
    order = sorted(
        [(at, who, "g") for at, who in granted] + [(at, who, "r") for at, who in released]
    )
    return [
        after[0] - before[0]
        for before, after in itertools.pairwise(order)
        if before[2] == "r" and after[2] == "g" and before[1] != after[1]
    ]


def forward(a: socket.socket, b: socket.socket) -> None:
    """Forward what comes from one to the other, until it ends."""
    while data := a.recv(64):
        b.sendall(data)


def receive(end: socket.socket, turns: int, out: Connection) -> None:
    """Send back when each message came."""
    times = []
    for _ in range(turns):
        end.recv(64)
        times.append(time.monotonic())
        end.sendall(b"x")
    out.send(times)


def bare_hops(turns: int) -> list[float]:
    """Seconds for two hops through a process that decides nothing."""
    context = multiprocessing.get_context("fork")
    mine, entry = socket.socketpair()
    exit_, theirs = socket.socketpair()
    here, there = context.Pipe(duplex=False)
    middle = context.Process(target=forward, args=(entry, exit_))
    last = context.Process(target=receive, args=(theirs, turns, there))
    middle.start()
    last.start()
    begun = []
    for _ in range(turns):
        # As idle as the clients are between two hand-offs.
        time.sleep(0.001)
        begun.append(time.monotonic())
        mine.sendall(b"x" * 32)
        exit_.recv(64)
    times = here.recv()
    last.join()
    mine.close()
    # The forwarder's socket is ours too after the fork; its end is told by shutting it down.
    entry.shutdown(socket.SHUT_RDWR)
    middle.join()
    for end in (entry, exit_, theirs):
        end.close()
    return [after - before for before, after in zip(begun, times, strict=True)]


@contextlib.contextmanager
def scheduler(*arguments: str) -> Iterator[tuple[Path, float]]:
    """Run a scheduler; yield its socket and the milliseconds that it took to start."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scheduler.sock")
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_gpushare.scheduler", "--socket", str(path), *arguments],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ,
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the scheduler did not start")
        try:
            yield path, (time.monotonic() - begun) * 1e3
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def report(metric: str, values: list[float], unit: str, bare: float | None) -> None:
    """Print one line of results."""
    values = sorted(values)
    for name, share in (("median", 0.5), ("p99", 0.99)):
        line = {
            "bench": "scheduler_handoff",
            "metric": f"{metric}, {name}",
            "value": round(values[min(len(values) - 1, int(len(values) * share))], 1),
            "unit": unit,
            "bare": None if bare is None else round(bare, 1),
            "n": len(values),
            "spread": [round(values[int(len(values) * q)], 1) for q in (0.05, 0.95)],
        }
        print(json.dumps(line), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=500, help="hand-offs by each client")
    parser.add_argument("--starts", type=int, default=5, help="starts of the scheduler")
    args = parser.parse_args()
    starts = []
    for _ in range(args.starts - 1):
        with scheduler() as (_, took):
            starts.append(took)
    with scheduler("--anti-thrash", "on", "--quantum", "0.001") as (path, took):
        starts.append(took)
        with ControlClient(path) as control:
            gpus = control.request("status")["status"]["gpus"]
        if not gpus:
            raise SystemExit("no GPU; set GPUSHARE_SIM=1")
        taken = [seconds * 1e6 for seconds in handoffs(path, gpus[0]["uuid"], args.turns)]
    bare = [seconds * 1e6 for seconds in bare_hops(args.turns)]
    report("released to grant received", taken, "us", statistics.median(bare))
    report("start of the scheduler", starts, "ms", None)


if __name__ == "__main__":
    main()
