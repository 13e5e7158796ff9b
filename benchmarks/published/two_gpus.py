# SPDX-License-Identifier: BSD-3-Clause
"""Two GPUs that four notebooks of two users and a job of two ranks share, all of which do not fit.

No GPU has room for two of the notebooks; the ranks meet in a collective operation at each
step, one on each GPU. Checked: where each was placed, that no GPU ever has more than it holds, that memory had to move,
and each word of what all of them computed. With PyTorch and NCCL on real GPUs::

    python -m jupyter_gpushare.benchmarks.published.two_gpus --json two_gpus.json

On the simulated driver in a small form, with programs that call the driver. As root, each user is one of the system,
and the scheduler that of a node; otherwise all belong to the same user. Ends within 8 minutes; the exit status is 1 if
anything was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...kernel_provisioner.launch import Settings, client_environment, plain_environment
from ...scheduler.gpu.drivers import Driver, find_driver
from ...scheduler.protocol.client import ControlClient, ControlError
from ..harness.figures import Figure, percentile
from ..programs.holder import end
from ..programs.known_words import expected_words

GIB = 1 << 30
MIB = 1 << 20
#: What a notebook and a rank hold of a real GPU: 90 and 10 GiB of an NVIDIA H200's 139.8.
NOTEBOOK, RANK = 90 / 139.8, 10 / 139.8
#: On the simulated driver: bytes of each GPU, and what a notebook and a rank hold of it.
SMALL_GPU, SMALL_NOTEBOOK, SMALL_RANK = 256 * MIB, 160 * MIB, 24 * MIB
#: Seconds for all programs to start, and to check what they have.
STARTING, ENDING = 200.0, 100.0
#: Steps of the job on the simulated driver, where the ranks do not agree on when to end.
SMALL_STEPS = 96
#: The module of the programs.
KNOWN_WORDS = "jupyter_gpushare.benchmarks.programs.known_words"
#: IDs of two users. They need not exist on the system.
UIDS = (61001, 61002)


@dataclass
class Part:
    """A program, what it has said, and what it was to be."""

    name: str
    user: str
    process: subprocess.Popen[str]
    device: str = ""
    cells: list[float] = field(default_factory=list)
    passes: int = 0
    right: bool | None = None
    problem: str = ""
    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    #: Reads what the process writes.
    listener: threading.Thread | None = None

    def listen(self, small: tuple[int, int, int] | None = None) -> None:
        """Read its output in a thread; ``small``: number, ranks and steps of a process that answers like ``rank``."""
        self.listener = threading.Thread(target=self._hear, args=(small,), daemon=True)
        self.listener.start()

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        if self.listener is not None:
            self.listener.join()
        end(self.process)

    def _hear(self, small: tuple[int, int, int] | None) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if small is not None and line == "ready\n":
                self.ready.set()
                continue
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if small is not None:
                number, ranks, self.passes = small
                self.right = (
                    said["alike"]
                    and said["ballast"]
                    and said["word"] == expected_words(ranks, self.passes)[number]
                )
                self.ended.set()
            elif said["event"] == "ready":
                self.device = said["device"].removeprefix("GPU-")
                self.ready.set()
            elif said["event"] == "cell":
                self.cells.append(said["seconds"])
            elif said["event"] == "end":
                self.right, self.passes = said["right"], said["passes"]
                self.ended.set()
        self.process.wait()
        self.ready.set()
        self.ended.set()

    def go(self) -> None:
        """Let it begin."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()


class Place:
    """Two GPUs, a scheduler, and users."""

    def __init__(
        self, environ: Mapping[str, str], host_memory: int | None, one_user: bool = False
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gs-"))
        self.socket = self.folder / "s" / "scheduler.sock"
        self.environ = {
            **plain_environment(environ),
            "GPUSHARE_SOCKET": str(self.socket),
            "GPUSHARE_SIM_NAME": f"bench-{uuid.uuid4().hex[:12]}",
            "GPUSHARE_SIM_MEMORY": str(SMALL_GPU),
            "GPUSHARE_SIM_DEVICES": "2",
            "GPUSHARE_SIM_CONTEXT": "1MiB",
        }
        driver = find_driver(self.environ)
        if driver is None:
            self.environ["GPUSHARE_SIM"] = "1"
            driver = find_driver(self.environ)
        assert driver is not None
        self.driver: Driver = driver
        # NVLink multicast binds GPUs of a whole host together; what is measured does not need it.
        for variable, value in (
            ("NCCL_NVLS_ENABLE", "0"),
            ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
            ("NVSHMEM_DISABLE_NVLS", "1"),
        ):
            self.environ.setdefault(variable, value)
        if not driver.simulated:
            self.environ |= {"GPUSHARE_BACKEND": "swap", "GPUSHARE_FORBID_MANAGED": "1"}
        self.uids = () if one_user else self._users()
        if self.uids and driver.simulated:
            # A simulated machine belongs to its creator, but can be opened to others.
            machine = Path("/dev/shm", f"gpushare-sim-{self.environ['GPUSHARE_SIM_NAME']}")
            machine.touch()
            machine.chmod(0o666)
        self.parts: list[Part] = []
        self.scheduler = self._start_scheduler(host_memory)

    def _users(self) -> tuple[int, ...]:
        """Return two uids whose programs can run this code, where we may use them."""
        if os.getuid() != 0:
            return ()
        self.folder.chmod(0o755)
        for uid in UIDS:
            (self.folder / str(uid)).mkdir(mode=0o700, exist_ok=True)
            os.chown(self.folder / str(uid), uid, uid)
        probe = [sys.executable, "-c", f"import {KNOWN_WORDS}"]
        try:
            done = subprocess.run(
                probe,
                env=self._of_user(self.environ, UIDS[0]),
                capture_output=True,
                check=False,
                **_as_user(UIDS[0]),
            )
        except OSError:
            return ()  # they have no access to this Python
        return UIDS if done.returncode == 0 else ()

    def _of_user(self, environ: Mapping[str, str], uid: int) -> dict[str, str]:
        home, name = str(self.folder / str(uid)), f"user-{uid}"
        own = {"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": home}
        return {**environ, **own, "USER": name, "LOGNAME": name}

    def _start_scheduler(self, host_memory: int | None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "jupyter_gpushare.scheduler"]
        if self.uids:
            settings: dict[str, Any] = {
                "socket": str(self.socket),
                "socket_mode": "0666",
                "state_dir": str(self.folder / "state"),
            }
            if host_memory is not None:
                settings["host_memory"] = host_memory
            config = self.folder / "gpushare.json"
            config.write_text(json.dumps({"NodeScheduler": settings}))
            config.chmod(0o600)
            command += ["--config", str(config)]
        else:
            command += ["--socket", str(self.socket)]
            if host_memory is not None:
                command += ["--host-memory", str(host_memory)]
        process = subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if "ready" not in process.stdout.readline():
            raise RuntimeError("the scheduler did not start")
        return process

    def start(self, name: str, user: int, group: str, arguments: list[str]) -> Part:
        """Start a program of one of the users."""
        environ = client_environment(
            self.environ, group=group, name=name, driver=self.driver, socket=self.socket,
            settings=Settings(),
        )  # fmt: skip
        who: dict[str, Any] = {}
        whose = pwd.getpwuid(os.getuid()).pw_name
        if self.uids:
            uid = self.uids[user]
            environ, whose, who = self._of_user(environ, uid), str(uid), _as_user(uid)
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], env=environ, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, **who,
        )  # fmt: skip
        part = Part(name, whose, process)
        self.parts.append(part)
        return part

    def control(self, op: str, **parameters: Any) -> dict[str, Any]:
        """Ask the scheduler."""
        with ControlClient(self.socket) as client:
            return client.request(op, **parameters)

    def close(self) -> None:
        """End all that was started."""
        for part in self.parts:
            part.close()
        self.scheduler.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.scheduler.wait(10)
        end(self.scheduler)
        for segment in Path("/dev/shm").glob(f"*{self.environ['GPUSHARE_SIM_NAME']}*"):
            segment.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _as_user(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []}


class Watch:
    """Looks at the scheduler again and again while the programs run."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.events: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self.over: list[str] = []
        self.last: dict[str, Any] = {}
        self._since = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.25):
            self.look()

    def look(self) -> None:
        """Take in what has happened."""
        try:
            self.last = self.place.control("status")["status"]
            history = self.place.control("history", since=self._since)
        except (OSError, ControlError) as error:
            self.over.append(f"the scheduler does not answer: {error}")
            return
        self._since = history["sequence"]
        for event in history["events"]:
            self.events[event["kind"]] += 1
        for gpu in self.last["gpus"]:
            held = gpu["resident"] + gpu["unevictable"] + gpu["contexts"]
            if held > gpu["total"]:
                self.over.append(f"{gpu['uuid']} has {held} bytes of {gpu['total']}")
        for group in self.last["groups"]:
            self.states[f"{group['name']} {group['state']}"] += 1

    def stop(self) -> None:
        """Look for the last time."""
        self._stop.set()
        self._thread.join()
        self.look()


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def measure(
    *,
    gib: float | None = None,
    rank_gib: float | None = None,
    seconds: float | None = None,
    host_gib: float | None = None,
    job: bool = True,
    one_user: bool = False,
) -> dict[str, Any]:
    """Run it, and return what happened.

    Parameters
    ----------
    gib, rank_gib
        What a notebook and a rank hold of a real GPU, GiB; by default the same parts of each GPU.
    seconds
        For which they compute; by default 150 on real GPUs, 6 on the simulated driver.
    host_gib
        Host memory that evicted data may take, GiB; by default, what the scheduler finds. Where a machine is given
        its memory only as it uses it, the scheduler finds too little.
    job
        Whether there is a job of two ranks in addition to the notebooks.
    one_user
        Whether all are the same user's, also as root.
    """
    place = Place(os.environ, None if host_gib is None else int(host_gib * GIB), one_user)
    try:
        return _measure(place, gib, rank_gib, seconds, job)
    finally:
        place.close()


def _measure(
    place: Place, gib: float | None, rank_gib: float | None, seconds: float | None, job: bool
) -> dict[str, Any]:
    small = place.driver.simulated
    if seconds is None:
        seconds = 6.0 if small else 150.0
    kind = "small" if small else "torch"
    found = place.control("status")["status"]["gpus"]
    if len(found) < 2:
        raise RuntimeError(f"this needs two GPUs, and the scheduler sees {len(found)}")
    total = min(gpu["total"] for gpu in found)
    size = SMALL_NOTEBOOK if small else _bytes(gib, NOTEBOOK * total)
    began = time.monotonic()
    notebooks, latest = [], began + STARTING
    for number, (user, name) in enumerate(((0, "a1"), (1, "b1"), (0, "a2"), (1, "b2"))):
        arguments = [KNOWN_WORDS, "notebook", kind, str(size), str(number + 1), str(seconds)]
        part = place.start(name, user, f"notebook-{name}", arguments)
        part.listen()
        notebooks.append(part)
        _await_ready(part, latest)
    ranks = _start_job(place, small, _bytes(rank_gib, RANK * total), seconds) if job else []
    for part in ranks:
        _await_ready(part, latest)
    started = time.monotonic()
    watch = Watch(place)
    for part in place.parts:
        part.go()
    deadline = started + seconds + ENDING
    for part in place.parts:
        if not part.ended.wait(max(0.0, deadline - time.monotonic())):
            part.problem = f"did not end within {ENDING:.0f} s"
    watch.stop()
    wrong = _faults(notebooks, ranks, watch, found)
    return {
        "simulated": small,
        "users": len(place.uids) or 1,
        "seconds": seconds,
        "starting": started - began,
        "took": time.monotonic() - began,
        "gpus": [
            {key: gpu[key] for key in ("uuid", "name", "total", "resident", "foreign")}
            for gpu in watch.last.get("gpus", found)
        ],
        "programs": [_of_part(part) for part in (*notebooks, *ranks)],
        "groups": watch.last.get("groups", []),
        "events": dict(watch.events),
        "states": dict(watch.states),
        "wrong": wrong,
    }


def _await_ready(part: Part, latest: float) -> None:
    if not part.ready.wait(max(0.0, latest - time.monotonic())):
        part.problem = "did not start in time"
    elif part.ended.is_set():
        part.problem = f"ended with status {part.process.returncode}"


def _bytes(gib: float | None, default: float) -> int:
    return int(default if gib is None else gib * GIB) // MIB * MIB


def _start_job(place: Place, small: bool, size: int, seconds: float) -> list[Part]:
    parts = []
    if not small:
        port = free_port()
        for number in range(2):
            arguments = [
                KNOWN_WORDS,
                "rank",
                *map(str, (number, 2, port, size, seconds)),
            ]
            part = place.start(f"rank {number}", 0, "job", arguments)
            part.listen()
            parts.append(part)
        return parts
    shared = place.folder / "job"
    shared.write_bytes(bytes(512 + 4 * 4 * 256 * 2))
    shared.chmod(0o666)
    for number in range(2):
        arguments = ["jupyter_gpushare.benchmarks.programs.rank"]
        arguments += map(str, (number, number, 2, SMALL_STEPS, shared, SMALL_RANK))
        part = place.start(f"rank {number}", 0, "job", arguments)
        part.listen((number, 2, SMALL_STEPS))
        parts.append(part)
    return parts


def _faults(
    notebooks: list[Part], ranks: list[Part], watch: Watch, gpus: list[dict[str, Any]]
) -> list[str]:
    wrong = [f"{part.name} {part.problem}" for part in (*notebooks, *ranks) if part.problem]
    wrong += [
        f"{part.name}: wrong results" if part.right is False else f"{part.name}: no results"
        for part in (*notebooks, *ranks)
        if not part.right
    ]
    placed = Counter(part.device for part in notebooks)
    if len(gpus) == 2 and sorted(placed.values()) != [2, 2]:
        wrong.append(f"the notebooks are not two on each GPU: {dict(placed)}")
    for user in {part.user for part in notebooks}:
        own = [part.device for part in notebooks if part.user == user]
        if len(own) == 2 and len(set(own)) < 2:
            wrong.append(f"both notebooks of {user} are on {own[0]}")
    wrong += sorted(set(watch.over))
    if not watch.events["evict"]:
        wrong.append("nothing was ever moved out: all of it fitted")
    return wrong


def _of_part(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "user": part.user,
        "device": part.device,
        "cells": len(part.cells),
        "median": percentile(part.cells, 50) if part.cells else None,
        "longest": max(part.cells, default=None),
        "passes": part.passes,
        "right": part.right,
        "problem": part.problem,
    }


def table(report: Mapping[str, Any]) -> list[str]:
    """Return a report as lines of text."""
    lines = [f"{'':8}{'user':10}{'device 0':14}{'cells':>7}{'median':>10}{'longest':>10}  result"]
    for part in report["programs"]:
        median, longest = (
            "" if part[key] is None else f"{part[key]:.2f} s" for key in ("median", "longest")
        )
        result = "every word right" if part["right"] else part["problem"] or "WRONG"
        lines.append(
            f"{part['name']:8}{part['user']:10}{part['device'][:12]:14}{part['cells']:>7}"
            f"{median:>10}{longest:>10}  {result}"
        )
    moved = {kind: report["events"].get(kind, 0) for kind in ("grant", "revoke", "evict", "stuck")}
    lines.append(", ".join(f"{number} {kind}s" for kind, number in moved.items()))
    lines += [f"WRONG: {fault}" for fault in report["wrong"]]
    return lines


def run(seconds: float | None = None, gib: float | None = None) -> Iterator[Figure]:
    """Yield what was measured, for ``gpushare bench``."""
    report = measure(seconds=seconds, gib=gib)
    for fault in report["wrong"]:
        print(f"gpushare: two-gpus: {fault}", file=sys.stderr)
    count = len(report["programs"])
    yield Figure("two-gpus", "faults", float(len(report["wrong"])), "", None, count, 0.0, 0.0)
    for part in report["programs"]:
        if part["median"] is not None:
            yield Figure(
                "two-gpus", f"cell of {part['name']}, median", part["median"], "s", None,
                part["cells"], 0.0,
            )  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m jupyter_gpushare.benchmarks.published.two_gpus",
        description=__doc__.partition("\n")[0],
    )
    parser.add_argument(
        "--gib", type=float, help=f"of a notebook, GiB ({NOTEBOOK:.0%} of a GPU)".replace("%", "%%")
    )
    parser.add_argument(
        "--rank-gib", type=float, help=f"of a rank, GiB ({RANK:.0%} of a GPU)".replace("%", "%%")
    )
    parser.add_argument(
        "--seconds", type=float, help="for which they compute, seconds (150; simulated: 6)"
    )
    parser.add_argument(
        "--host-gib", type=float, help="host memory for evicted data, GiB (default: what is found)"
    )
    parser.add_argument("--without-job", action="store_true", help="only the notebooks")
    parser.add_argument("--one-user", action="store_true", help="all are the same user's")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    args = parser.parse_args(arguments)
    report = measure(
        gib=args.gib,
        rank_gib=args.rank_gib,
        seconds=args.seconds,
        host_gib=args.host_gib,
        job=not args.without_job,
        one_user=args.one_user,
    )
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in report if key not in ("groups", "states")}))
    print("\n".join(table(report)))
    return 1 if report["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
