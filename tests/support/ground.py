# SPDX-License-Identifier: BSD-3-Clause
"""A simulated GPU with a scheduler, and processes that run a fuzzer's programs there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from jupyter_gpushare._version import LIBRARIES
from jupyter_gpushare.benchmarks.harness.machine import kill_scheduler
from jupyter_gpushare.kernel_provisioner.launch import (
    Settings,
    client_environment,
    plain_environment,
)
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support import fork_server
from tests.support.schedulers import start_scheduler

MIB = 1 << 20
_RUN = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).gpushare_fuzz(sys.argv[2].encode()))"


@dataclass
class Figures:
    """What was done, summed up.

    Attributes
    ----------
    zero, shared, clean
        Bytes of evictions that were not copied: zeros, data that another place in host memory had already, and data
        that had not changed since an earlier eviction.
    touched
        Changes of a few bytes.
    hashed
        Evictions that programs asked for, and that hashed something.
    """

    operations: int = 0
    refused: int = 0
    bytes: int = 0
    compared: int = 0
    injected: int = 0
    programs: int = 0
    evictions: int = 0
    evicted: int = 0
    restored: int = 0
    zero: int = 0
    shared: int = 0
    clean: int = 0
    touched: int = 0
    hashed: int = 0
    disturbances: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """Say it in one line of JSON."""
        return json.dumps({**vars(self), "disturbances": dict(self.disturbances)})


@dataclass(frozen=True)
class Mismatch:
    """A program that went wrong, and how."""

    program: list[str]
    seed: str
    line: int
    text: str
    errors: str


class RefusedStart(Exception):
    """A process could not start; the message says what it wrote."""


class Runner:
    """A process that runs programs."""

    def __init__(self, ground: Ground, number: int) -> None:
        self.number = number
        #: What the program that is under way was made from.
        self.seed = ""
        self.program: list[str] = []
        self.since = 0.0
        self.injected = 0
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _RUN,
                str(ground.fuzz / "runner.so"),
                str(ground.fuzz / "kernels.so"),
            ],
            env=ground.client_environ(f"fuzz-{number}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        if self.out.readline() != "ready\n":
            said = self.said()
            self.close()
            raise RefusedStart(f"the runner did not start: {said}")

    @property
    def out(self) -> IO[str]:
        """Its standard output."""
        assert self.process.stdout is not None
        return self.process.stdout

    def start(self, seed: str, program: list[str]) -> None:
        """Start a program; the answer is a line of ``out``."""
        self.seed, self.program, self.since = seed, program, time.monotonic()
        assert self.process.stdin is not None
        self.process.stdin.write("\n".join([*program, "end", ""]))
        self.process.stdin.flush()

    def answer(self, figures: Figures) -> Mismatch | None:
        """Take the answer that is there."""
        word, *rest = (self.out.readline() or "ended").split()
        if word == "ok":
            done, refused, moved, compared, injected, touched, hashed = map(int, rest)
            figures.programs += 1
            figures.operations += done
            figures.refused += refused
            figures.bytes += moved
            figures.compared += compared
            figures.touched += touched
            figures.hashed += hashed
            figures.injected += injected - self.injected
            self.injected = injected
            return None
        if word == "failed":
            return self.mismatch(int(rest[0]), " ".join(rest[1:]))
        return self.mismatch(0, f"the process ended with status {self.process.wait()}")

    def mismatch(self, line: int, text: str) -> Mismatch:
        """Describe a failure of the program that is under way."""
        return Mismatch(self.program, self.seed, line, text, self.said())

    def said(self) -> str:
        """Return what it wrote on standard error."""
        self.errors.seek(0)
        return self.errors.read()

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


class Ground:
    """A simulated GPU of its own, and its scheduler.

    Parameters
    ----------
    memory
        Bytes of the GPU.
    folder
        The libraries; by default the installed ones.
    preload
        What is preloaded before them.
    environ
        More environment of its processes.
    """

    def __init__(
        self,
        memory: int = 64 * MIB,
        folder: Path = LIBRARIES,
        preload: Sequence[str] = (),
        **environ: str,
    ) -> None:
        self.libraries = folder
        self.memory = memory
        # The runner itself is as built for us: sanitizers watch what they were compiled into.
        self.fuzz = LIBRARIES / "fuzz"
        self.preload = preload
        self.folder = Path(tempfile.mkdtemp(prefix="gs-"))
        self.socket = self.folder / "s" / "scheduler.sock"
        self.driver = Driver(
            folder / "sim" / "libcuda.so.1", folder / "sim" / "libnvidia-ml.so.1", True
        )
        self.environ = {
            **plain_environment(os.environ),
            "GPUSHARE_SIM": "1",
            "GPUSHARE_SIM_NAME": f"fuzz-{uuid.uuid4().hex[:12]}",
            "GPUSHARE_SIM_MEMORY": str(memory),
            "GPUSHARE_SIM_BANDWIDTH": "20000000000",
            "GPUSHARE_SIM_CONTEXT": "1MiB",
            "GPUSHARE_SOCKET": str(self.socket),
            **environ,
        }
        self.scheduler: fork_server.Process | None = None

    def client_environ(self, name: str) -> dict[str, str]:
        """Return the environment of a client."""
        shims = Libraries(
            *(
                self.libraries / library
                for library in ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")
            )
        )
        environ = client_environment(
            self.environ,
            group=name,
            name=name,
            driver=self.driver,
            socket=self.socket,
            # Contexts that come later must leave room for what was promised before.
            settings=Settings(memory=self.memory * 85 // 100),
            shims=shims,
        )
        environ["LD_PRELOAD"] = ":".join([*self.preload, environ["LD_PRELOAD"]])
        return environ

    def start_scheduler(self) -> None:
        """Start a scheduler."""
        self.scheduler = start_scheduler(self.socket, self.environ, "--quantum", "0.05")

    def kill_scheduler(self) -> None:
        """End the scheduler as kill -9 does."""
        if self.scheduler is not None:
            kill_scheduler(self.scheduler)
            self.scheduler = None

    def control(self, op: str, **parameters: object) -> dict[str, object]:
        """Ask the scheduler."""
        with ControlClient(self.socket) as client:
            return client.request(op, **parameters)

    def close(self) -> None:
        """End all that was started."""
        self.kill_scheduler()
        for segment in Path("/dev/shm").glob(f"*{self.environ['GPUSHARE_SIM_NAME']}*"):
            segment.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)
