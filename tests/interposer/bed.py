# SPDX-License-Identifier: BSD-3-Clause
"""A client that a scripted scheduler hibernates."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.interposer.scripted import evicted
from tests.support.machine import PATIENCE, Machine, Program, Script

#: Of enum cudaError_enum.
OUT_OF_MEMORY, INVALID_DEVICE, OPERATING_SYSTEM, NOT_READY = 2, 101, 304, 600


class Hibernator:
    """The program that a scheduler has the driver checkpoint processes with."""

    def __init__(self, machine: Machine) -> None:
        self.process = subprocess.Popen(
            [LIBRARIES / "gpushare-hibernator", "--driver", LIBRARIES / "sim/libcuda.so.1"],
            env=machine.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.serial = 0

    def __call__(self, step: str, pid: int, *words: object) -> list[str]:
        self.serial += 1
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, (self.serial, step, pid, *words))) + "\n")
        serial, *answer = self.process.stdout.readline().split()
        assert int(serial) == self.serial
        return answer

    def ok(self, step: str, pid: int, *words: object) -> None:
        answer = self(step, pid, *words)
        assert answer[0] == "0", (step, answer)

    def checkpoint(self, pid: int) -> None:
        self.ok("lock", pid, 5000)
        self.ok("checkpoint", pid)

    def restore(self, pid: int, *pair: str) -> None:
        """Restore it; what was on the first GPU of a pair is on the second then."""
        uuids = "=".join(protocol.gpu_bytes(gpu).hex() for gpu in pair)
        self.ok("restore", pid, *([uuids] if pair else []))
        self.ok("unlock", pid)

    def state(self, pid: int) -> str:
        return self("state", pid)[-1].lower()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


class Bed:
    """A scripted scheduler, its client, and the driver's checkpoint of it."""

    def __init__(self, machine: Machine, **environ: str) -> None:
        self.machine = machine
        self.script = Script(machine)
        self.a = Program(machine.environment("a", None, **environ))
        assert self.a.call("init")["result"] == 0, self.a.errors
        self.hibernator = Hibernator(machine)
        self.serial = 0

    def lend(self) -> None:
        """Grant the GPU to the requesting program, and revoke it."""
        self.script.next(ev.Request)
        self.script.send(*self.script.grant(filling=False))

    def take_back(self) -> None:
        """Take the lease back, and the memory off the GPU."""
        self.script.send(protocol.revoke(self.script.lease))
        self.script.next(ev.Released)
        assert evicted(self.script, 1 << 40).usage.resident == 0

    def run(self, op: str, **parameters: Any) -> dict[str, Any]:
        """Carry out what needs the GPU."""
        started = self.a.start(op, **parameters)
        self.lend()
        result = self.a.result(started)
        self.take_back()
        return result

    def park(self) -> ev.Parked:
        self.serial += 1
        self.script.send(protocol.park(self.serial))
        parked = self.script.next(ev.Parked)
        assert parked.serial == self.serial
        return parked

    def parked(self) -> ev.Usage:
        deadline = time.monotonic() + PATIENCE
        # A thread of the client's own may be in the driver.
        while (parked := self.park()).status == "busy":
            assert time.monotonic() < deadline
        assert parked.status == "done"
        return parked.needs

    def hibernate(self) -> ev.Usage:
        """Have it parked and checkpointed."""
        needs = self.parked()
        self.hibernator.checkpoint(self.a.pid)
        self.script.send(protocol.hibernated(self.serial, done=True))
        return needs

    def wake(self, *pair: str) -> ev.Wake:
        """Answer WAKE; what was on the first GPU of a pair is on the second then."""
        asked = self.script.next(ev.Wake)
        self.hibernator.restore(self.a.pid, *pair)
        self.script.send(protocol.awake(ev.Awake(1, asked.serial, 0, *pair)))
        return asked

    def fail(self, text: str = "") -> None:
        """Answer WAKE: it cannot be woken."""
        asked = self.script.next(ev.Wake)
        self.script.send(protocol.awake(ev.Awake(1, asked.serial, OUT_OF_MEMORY, text=text)))

    def close(self) -> None:
        self.a.close()
        self.hibernator.close()
        self.script.close()


@pytest.fixture
def make_bed() -> Iterator[Callable[..., Bed]]:
    """Return a function that sets it up; keywords are environment variables."""
    beds: list[Bed] = []

    def make(
        libraries: Path | None = None,
        *preload_first: str,
        program: dict[str, str] | None = None,
        **environ: str,
    ) -> Bed:
        # Not pytest's own folder: a socket's path can have at most 107 bytes.
        machine = Machine(Path(tempfile.mkdtemp(prefix="gs-")), **environ)
        machine.libraries, machine.preload_first = libraries, preload_first
        machine.socket.parent.mkdir(mode=0o700)
        beds.append(Bed(machine, **(program or {})))
        return beds[-1]

    yield make
    for bed in beds:
        bed.close()
        bed.machine.close()
        shutil.rmtree(bed.machine.folder)


def attached_again(bed: Bed) -> ev.Attach:
    while not (attach := bed.script.next(ev.Attach)).reattach:
        pass
    return attach


@pytest.fixture
def bed(make_bed: Callable[..., Bed]) -> Bed:
    return make_bed()
