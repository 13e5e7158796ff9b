# SPDX-License-Identifier: BSD-3-Clause
"""The figures of many benchmarks, measured one after the other and kept in a file.

The file is written after each benchmark, so nothing is lost if the run is interrupted: the next run skips what was
measured on the same machine and commit. Benchmarks that failed, or reached their time limit, are run again.

A machine with a GPU may be free for half an hour only, which is too short for all benchmarks. So the results of earlier
commits stay until they have been measured again, each with its date and commit: first the benchmarks without a result
are run, then those with the oldest ones. Results from machines with other GPUs stay, too.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import msgspec
import pynvml

from ..._version import __version__
from ...scheduler.gpu.drivers import find_driver
from ..harness.figures import Figure
from .plan import Part

VERSION = 1
#: Seconds in which an interrupted benchmark has to end what it started.
GRACE = 30.0
#: The number of lines that are kept of the messages of a benchmark that failed: the last ones.
LINES = 5


class PublicationError(Exception):
    """The file cannot be used. The message is one sentence for the user."""


@dataclass(frozen=True)
class Host:
    """What figures depend on besides the code.

    Attributes
    ----------
    gpus
        The names of the GPUs; empty: only the simulated driver is there.
    driver
        The version of the driver, empty without a GPU.
    processors, memory
        Of the host; memory in GiB. A virtual machine may get more of it while programs run, so it is not compared.
    system
        The operating system's kernel, and Python's version.
    """

    gpus: tuple[str, ...]
    driver: str
    processors: int
    memory: int = field(compare=False)
    system: str

    def __str__(self) -> str:
        """In words, for the head of a table."""
        names = [
            name if count == 1 else f"{count} of {name}"
            for name in dict.fromkeys(self.gpus)
            if (count := self.gpus.count(name))
        ]
        what = f"{', '.join(names)}, driver {self.driver}" if names else "simulated driver"
        return f"{what}; {self.processors} processors, {self.memory} GiB of memory, {self.system}"


def this_host() -> Host:
    """Return what is here."""
    names: list[str] = []
    version = ""
    driver = find_driver()
    if driver is not None and not driver.simulated:
        pynvml.nvmlInit()
        try:
            version = str(pynvml.nvmlSystemGetDriverVersion())
            for index in range(pynvml.nvmlDeviceGetCount()):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                names.append(str(pynvml.nvmlDeviceGetName(handle)))
        finally:
            pynvml.nvmlShutdown()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    # What follows the first dash is the distribution's name of its build.
    release = platform.release().partition("-")[0]
    system = f"{platform.system()} {release}, Python {platform.python_version()}"
    return Host(tuple(names), version, os.cpu_count() or 1, memory, system)


def this_commit() -> str:
    """Return the commit of the source tree that runs, with ``+`` if it was changed; the release if it is not known.

    The documentation does not count: the figures may be written there.
    """
    here = Path(__file__).resolve().parent
    root = here.parents[1]
    if (root / ".git").exists():
        git = ["git", "-C", str(root)]
        with suppress(OSError, subprocess.CalledProcessError):
            commit = subprocess.run(
                [*git, "rev-parse", "--short", "HEAD"], capture_output=True, check=True, text=True
            ).stdout.strip()
            changed = subprocess.run(
                [*git, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs"], check=False
            )
            return f"{commit}+" if changed.returncode else commit
    # `git archive` writes it there (.gitattributes).
    archived = (here / "commit.txt").read_text().strip()
    return __version__ if archived.startswith("$") else archived


@dataclass
class Result:
    """The result of a part.

    Attributes
    ----------
    command
        The command that runs it alone. No other result from a machine with these GPUs has the same.
    host, commit
        The machine, and the commit or release of gpushare.
    date, seconds
        When it began (UTC), and how long it took.
    end
        ``done``, ``failed`` or ``stopped`` (at its time limit).
    error
        The last lines of its messages unless it is done.
    """

    command: str
    host: Host
    commit: str
    date: str
    end: str = "stopped"
    error: str = ""
    seconds: float = 0.0
    figures: list[Figure] = field(default_factory=list)


@dataclass
class Contents:
    """The contents of the file."""

    version: int = VERSION
    results: list[Result] = field(default_factory=list)


class Publication:
    """The results in a file.

    Parameters
    ----------
    path
        The file. It and its folder are created if they do not exist.

    Raises
    ------
    PublicationError
        The folder cannot be created, or the file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.host, self.commit = this_host(), this_commit()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            found = msgspec.json.decode(path.read_bytes(), type=Contents)
        except FileNotFoundError:
            found = Contents()
        except OSError as error:
            raise PublicationError(f"{path} cannot be used: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise PublicationError(
                f"{path} cannot be read ({error}): move it away, or choose another folder"
            ) from None
        if found.version != VERSION:
            raise PublicationError(f"{path} is of another release: choose another folder")
        self._results = {_key(result): result for result in found.results}

    @property
    def results(self) -> list[Result]:
        """The results, in the order in which the benchmarks were first run."""
        return list(self._results.values())

    def is_done(self, part: Part) -> bool:
        """Whether the result of a part is there, from this machine and commit."""
        found = self._found(part)
        return found is not None and (found.end, found.host, found.commit) == (
            "done",
            self.host,
            self.commit,
        )

    def missing(self, parts: Iterable[Part]) -> list[Part]:
        """Return the parts that are not done: first those without a result, then those with the oldest one."""

        def age(part: Part) -> str:
            found = self._found(part)
            return "" if found is None or found.end != "done" else found.date

        return sorted((part for part in parts if not self.is_done(part)), key=age)

    def _found(self, part: Part) -> Result | None:
        return self._results.get((self.host.gpus, part.command))

    def add(self, result: Result) -> None:
        """Add a result, and write the file. An older result is replaced unless only the older one is done."""
        before = self._results.get(_key(result))
        if result.end != "done" and before is not None and before.end == "done":
            return
        self._results[_key(result)] = result
        contents = msgspec.json.format(
            msgspec.json.encode(Contents(results=self.results)), indent=1
        )
        write(self._path, contents + b"\n")

    def run(self, part: Part) -> Result:
        """Run a part in a process of its own, and add its result."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        result = Result(part.command, self.host, self.commit, now)
        with tempfile.TemporaryFile("w+") as messages:
            begun = time.monotonic()
            status = _figures(part, result.figures.append, messages)
            result.seconds = round(time.monotonic() - begun, 1)
            messages.seek(0)
            lines = messages.read().splitlines()
        result.end = "stopped" if status is None else "failed" if status else "done"
        result.error = "" if result.end == "done" else "\n".join(lines[-LINES:])
        self.add(result)
        return result


def _key(result: Result) -> tuple[tuple[str, ...], str]:
    """Return what no two results in the file have in common."""
    return result.host.gpus, result.command


def write(path: Path, contents: bytes) -> None:
    """Replace a file at once: if this is interrupted, the old one is still there."""
    part = path.with_suffix(".part")
    part.write_bytes(contents)
    part.replace(path)


def _figures(part: Part, take: Callable[[Figure], None], messages: IO[str]) -> int | None:
    """Run a benchmark; return its exit status, or None if it was interrupted at its time limit."""
    command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "bench", "--json"]
    command += part.arguments.split()
    # In a session of its own, an interrupt reaches everything that it has started, and nothing else.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=messages, text=True, start_new_session=True
    ) as process:
        late = threading.Event()

        def end(number: signal.Signals) -> None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

        def interrupt() -> None:
            late.set()
            end(signal.SIGINT)

        timers = [
            threading.Timer(part.seconds, interrupt),
            threading.Timer(part.seconds + GRACE, end, [signal.SIGKILL]),
        ]
        for timer in timers:
            timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                take(msgspec.json.decode(line, type=Figure))
            status = process.wait()
        except BaseException:
            end(signal.SIGKILL)
            raise
        finally:
            for timer in timers:
                timer.cancel()
    return None if late.is_set() else status
