# SPDX-License-Identifier: BSD-3-Clause
"""Runs a program bare and under the interposer, and compares all that the calls returned."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import importlib.util
import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.benchmarks.harness.antagonist import Antagonist
from jupyter_gpushare.kernel_provisioner.launch import Settings, client_environment
from jupyter_gpushare.scheduler.core.messages import Cause
from jupyter_gpushare.scheduler.gpu.drivers import Driver, Libraries
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support.ground import MIB, Ground

HERE = Path(__file__).resolve().parent
#: Seconds after which a program counts as hung.
PATIENCE = 120.0
#: Bytes of each GPU.
MEMORY = 512 * MIB
#: Pairs of programs that share a GPU and a scheduler: more would not find room for their contexts.
PAIRS = 2
#: Seconds between requests to release or evict, and until the client that wants the whole GPU wants it again.
PAUSES = (0.02, 0.1, 0.4)
GREEDY_PAUSE = 0.3
#: What that client leaves for contexts that programs make meanwhile; they cannot be moved out.
LEFT = 32 * MIB


def headers() -> Path:
    """Find the folder of cuda.h: the package's that we build with, a CUDA toolkit's, or the one that Triton brings."""
    candidates = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include/cuda.h"]
    for package, pattern in (
        ("triton", "backends/nvidia/include/cuda.h"),
        ("nvidia", "*/include/cuda.h"),
    ):
        if (spec := importlib.util.find_spec(package)) is not None:
            for path in spec.submodule_search_locations or ():
                candidates += sorted(Path(path).glob(pattern))
    found = [header.parent for header in reversed(candidates) if header.is_file()]
    if not found:
        raise FileNotFoundError("there is no cuda.h here; pip install nvidia-cuda-runtime")
    return found[0]


def build_player(folder: Path, *flags: str) -> Path:
    """Compile the player and its kernels; return the player."""
    folder.mkdir(parents=True, exist_ok=True)
    include = headers()
    shutil.copy2(HERE / "player/kernels.ptx", folder)
    common = ["cc", "-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    sources = [path for path in sorted((HERE / "player").glob("*.c")) if path.name != "kernels.c"]
    program = [
        *common,
        *flags,
        "-pthread",
        "-rdynamic",
        "-isystem",
        str(include),
        f"-I{HERE.parents[1] / 'csrc'}",
        "-o",
        str(folder / "player"),
    ]
    subprocess.run([*program, *map(str, sources), "-ldl"], check=True)
    library = [*common, "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(folder / "kernels.so")]
    library += [f"-I{HERE.parents[1] / 'csrc/sim'}", str(HERE / "player/kernels.c")]
    subprocess.run(library, check=True)
    return folder / "player"


# --- One run ---


@dataclass(frozen=True)
class Run:
    """What a run left.

    Attributes
    ----------
    status
        The exit status, or minus the signal; None: it hung.
    calls
        Driver calls that were made.
    traces
        One for each thread.
    stacks
        Where a hung program was.
    """

    status: int | None
    calls: int
    traces: tuple[str, ...]
    stacks: str = ""


class PlayerEnded(Exception):
    """The player itself ended; the message says what it wrote."""


class Player:
    """A process that runs programs, each in a child of its own."""

    def __init__(self, path: Path, environ: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._said = 0
        self.process = subprocess.Popen(
            [str(path)],
            env={"DIFFERENTIAL_KERNELS": str(path.with_name("kernels.so")), **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        assert self.process.stdout is not None
        self._out = self.process.stdout.fileno()
        self._read = b""
        self._child = 0
        self._until = 0.0
        if self._line(time.monotonic() + PATIENCE) != "ready":
            raise PlayerEnded(self.said())

    def said(self) -> str:
        """Return what was written on standard error since the last time."""
        # The processes write where the file's own position is, so it must stay.
        data = os.pread(self.errors.fileno(), 1 << 20, self._said)
        self._said += len(data)
        return data.decode(errors="replace")

    def _more(self, until: float) -> bool:
        """Read on; False: nothing has come."""
        ready, _, _ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            return False
        data = os.read(self._out, 1 << 20)
        if not data:
            raise PlayerEnded(self.said())
        self._read += data
        return True

    def _line(self, until: float) -> str | None:
        while b"\n" not in self._read:
            if not self._more(until):
                return None
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def start(self, program: Sequence[str], patience: float = PATIENCE) -> None:
        """Start a program."""
        assert self.process.stdin is not None
        self.process.stdin.write(("\n".join([*program, "end"]) + "\n").encode())
        self.process.stdin.flush()
        self._until = time.monotonic() + patience
        line = self._line(self._until)
        if line is None:
            raise PlayerEnded("it did not start a program")
        assert line.startswith("pid "), line
        self._child = int(line.split()[1])

    def finish(self) -> Run:
        """Wait until the program has ended; end it if it hangs."""
        stacks = ""
        line = self._line(self._until)
        if line is None:
            stacks = stacks_of(self._child)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
            line = self._line(time.monotonic() + PATIENCE)
        if line is None:
            raise PlayerEnded("a program that hung could not be ended")
        assert line.startswith("done "), line
        status, calls, *sizes = map(int, line.split()[1:])
        while len(self._read) < sum(sizes):
            if not self._more(time.monotonic() + PATIENCE):
                raise PlayerEnded("the traces did not come")
        traces = []
        for size in sizes:
            traces.append(self._read[:size].decode(errors="replace"))
            self._read = self._read[size:]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child, signal.SIGKILL)
        return Run(None if stacks else status, calls, tuple(traces), stacks)

    def close(self) -> None:
        """End it."""
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def stacks_of(pid: int) -> str:
    """Say where all threads of a process are, and of the other processes of its group."""
    members = [pid]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == pid and int(folder.name) != pid:
                members.append(int(folder.name))
    text = []
    for member in members:
        text.append(f"process {member}")
        for task in sorted(Path(f"/proc/{member}/task").glob("*")):
            with contextlib.suppress(OSError):
                # It says on standard error where it is, if it is a thread of the program.
                if member == pid:
                    ctypes.CDLL(None).tgkill(member, int(task.name), signal.SIGUSR2)
                name = (task / "comm").read_text().strip()
                place = (task / "wchan").read_text().strip()
                text.append(f"  {task.name} {name}: {place}")
        if (gdb := shutil.which("gdb")) is not None:
            command = [gdb, "-batch", "-nx", "-p", str(member), "-ex", "thread apply all bt 14"]
            with contextlib.suppress(subprocess.TimeoutExpired):
                done = subprocess.run(command, capture_output=True, text=True, timeout=20)
                text.append(done.stdout)
    time.sleep(0.2)
    return "\n".join(text) or "no stacks"


# --- Comparing ---


@dataclass(frozen=True)
class Difference:
    """A row of the table of documented differences; ``*`` and ``?`` stand for what may be anything."""

    call: str
    what: str
    bare: str
    interposed: str
    why: str

    def covers(self, operation: str, name: str, bare: str, interposed: str) -> bool:
        """Tell whether this is such a difference."""
        return all(
            fnmatchcase(text, pattern)
            for text, pattern in (
                (operation, self.call),
                (name, self.what),
                (bare, self.bare),
                (interposed, self.interposed),
            )
        )


def documented() -> list[Difference]:
    """Read the table."""
    with (HERE / "differences.csv").open(newline="", encoding="utf-8") as file:
        return [Difference(**row) for row in csv.DictReader(file)]


def _is_documented(bare: str, interposed: str, table: Sequence[Difference]) -> bool:
    ours, theirs = interposed.split(), bare.split()
    if ours[:2] != theirs[:2] or len(ours) != len(theirs):
        return False
    for left, right in zip(theirs[2:], ours[2:], strict=True):
        if left == right:
            continue
        name, _, value = left.partition("=")
        other_name, _, other = right.partition("=")
        if name != other_name or not any(row.covers(ours[1], name, value, other) for row in table):
            return False
    return True


def compare(bare: Run, interposed: Run, table: Sequence[Difference]) -> str | None:
    """Return the first difference that is not documented."""
    if bare.status is None:
        return f"hung without the interposer\n{bare.stacks}"
    if interposed.status is None:
        return f"hung under the interposer, after {last(interposed)}\n{interposed.stacks}"
    if bare.status != interposed.status:
        return f"ended with {bare.status} bare and {interposed.status} under the interposer, after {last(interposed)}"
    first: tuple[int, str] | None = None
    for number, (left, right) in enumerate(zip(bare.traces, interposed.traces, strict=True)):
        if left == right:
            continue
        ours, theirs = right.splitlines(), left.splitlines()
        for index in range(max(len(ours), len(theirs))):
            a = theirs[index] if index < len(theirs) else "(nothing)"
            b = ours[index] if index < len(ours) else "(nothing)"
            if a == b or _is_documented(a, b, table):
                continue
            # Threads that share what they have differ in more than one place: the first is the cause.
            line = min((int(text.split()[0]) for text in (a, b) if text[0].isdigit()), default=0)
            if first is None or line < first[0]:
                first = line, f"thread {number}\n  bare:       {a}\n  interposed: {b}"
            break
    return first[1] if first is not None else None


def last(run: Run) -> str:
    """Say what each thread did last."""
    return "; ".join(
        f"{number}: {lines[-1]}"
        for number, trace in enumerate(run.traces)
        if (lines := trace.splitlines())
    )


# --- The place ---


class Greedy(Antagonist):
    """Wants nearly all of the GPU for a moment, and nothing in between, when programs may make contexts."""

    def _room(self) -> int:
        return max(0, super()._room() - LEFT)

    def _release(self, cause: Cause) -> None:
        super()._release(cause)
        self._shrink(0)


class Disturber:
    """Takes the GPU away at random moments: a client that wants all of it, and requests to release and to evict.

    Parameters
    ----------
    socket
        The scheduler's.
    groups
        Whose memory is moved out.
    rng
        Draws the moments.
    antagonist
        The client that wants all.
    pauses
        Seconds between requests.
    """

    def __init__(
        self,
        socket: Path,
        groups: Sequence[str],
        rng: random.Random,
        antagonist: Antagonist,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self.socket = socket
        self.groups = groups
        self.rng = rng
        self.antagonist = antagonist
        self.pauses = pauses
        self.asked = 0
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="disturber", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.antagonist.__enter__()
        self.thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError), ControlClient(self.socket) as client:
            while not self.stopped.wait(self.rng.choice(self.pauses)):
                what = "evict" if self.rng.random() < 0.7 else "release"
                with contextlib.suppress(ControlError):
                    client.request(what, group=self.rng.choice(self.groups))
                    self.asked += 1

    def stop(self) -> None:
        """End."""
        self.stopped.set()
        self.antagonist.stop()
        self.thread.join()
        self.antagonist.__exit__(None, None, None)

    @property
    def times(self) -> int:
        """How often the GPU was asked for."""
        return self.asked + self.antagonist.turns


class Place:
    """Two simulated machines, a scheduler on one of them, and pairs of players.

    Parameters
    ----------
    player
        The compiled player.
    pairs
        How many programs run at once.
    libraries
        The interposer's folder; by default the one that is installed.
    seed
        What the disturbances are drawn from.
    calm
        The GPU is taken away only by lines of the programs themselves.
    environ
        More environment of all processes.
    preload_first
        What the programs load before our libraries.
    """

    def __init__(
        self,
        player: Path,
        pairs: int = 1,
        libraries: Path = LIBRARIES,
        seed: str = "",
        calm: bool = False,
        environ: Mapping[str, str] | None = None,
        preload_first: Sequence[str] = (),
    ) -> None:
        self.player = player
        self.libraries = libraries
        self.preload_first = preload_first
        settings = {
            "GPUSHARE_SIM_DEVICES": "3",
            "GPUSHARE_SIM_BANDWIDTH": "20000000000",
            "GPUSHARE_PLACE": "0",
            # A slow machine is no reason to break captures off.
            "GPUSHARE_CAPTURE_PATIENCE_MS": "600000",
            **(environ or {}),
        }
        self.ground = Ground(MEMORY, libraries, **settings)
        self.ground.start_scheduler()
        self.groups = [f"differential-{number}" for number in range(pairs)]
        self.players = [(self._bare(number), self._interposed(number)) for number in range(pairs)]
        self.disturber: Disturber | None = None
        if not calm:
            antagonist = Greedy(self.ground.socket, pause=GREEDY_PAUSE)
            self.disturber = Disturber(
                self.ground.socket, self.groups, random.Random(seed), antagonist
            )
            self.disturber.start()

    def _bare(self, number: int) -> Player:
        environ = {
            name: value
            for name, value in self.ground.environ.items()
            if name not in ("GPUSHARE_SIM", "GPUSHARE_SOCKET")
        }
        environ["GPUSHARE_SIM_NAME"] += f"-bare-{number}"
        environ["LD_PRELOAD"] = ":".join(
            (*self.preload_first, str(self.libraries / "sim/libcuda.so.1"))
        )
        return Player(self.player, environ)

    def _interposed(self, number: int) -> Player:
        shims = Libraries(
            *(
                self.libraries / name
                for name in ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")
            )
        )
        sim = self.libraries / "sim"
        environ = client_environment(
            self.ground.environ,
            group=self.groups[number],
            name=self.groups[number],
            driver=Driver(sim / "libcuda.so.1", sim / "libnvidia-ml.so.1", True),
            socket=self.ground.socket,
            settings=Settings(),
            shims=shims,
        )
        environ["LD_PRELOAD"] = ":".join((*self.preload_first, environ["LD_PRELOAD"]))
        return Player(self.player, environ)

    def run(self, pair: int, program: Sequence[str], patience: float = PATIENCE) -> tuple[Run, Run]:
        """Run a program bare and under the interposer, both at once."""
        bare, interposed = self.players[pair]
        bare.start(program, patience)
        interposed.start(program, patience)
        try:
            return bare.finish(), interposed.finish()
        finally:
            # A program that was ended may have left it stopped.
            assert self.ground.scheduler is not None
            self.ground.scheduler.send_signal(signal.SIGCONT)

    @property
    def disturbances(self) -> int:
        """How often the GPU was asked for."""
        return self.disturber.times if self.disturber is not None else 0

    def close(self) -> None:
        """End all that was started."""
        if self.disturber is not None:
            self.disturber.stop()
        for pair in self.players:
            for player in pair:
                player.close()
        name = self.ground.environ["GPUSHARE_SIM_NAME"]
        self.ground.close()
        for segment in Path("/dev/shm").glob(f"*{name}*"):
            segment.unlink(missing_ok=True)


class Places:
    """As many places as are needed for so many pairs of players, as if they were one."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        self._where = [(one, pair) for one in places for pair in range(len(one.players))]
        self.players = [pair for one in places for pair in one.players]

    def run(self, pair: int, program: Sequence[str], patience: float = PATIENCE) -> tuple[Run, Run]:
        """Run a program bare and under the interposer, both at once."""
        where, number = self._where[pair]
        return where.run(number, program, patience)

    @property
    def disturbances(self) -> int:
        """How often the GPUs were asked for."""
        return sum(one.disturbances for one in self._places)


@contextlib.contextmanager
def place(
    player: Path,
    pairs: int = 1,
    libraries: Path = LIBRARIES,
    seed: str = "",
    calm: bool = False,
    environ: Mapping[str, str] | None = None,
    preload_first: Sequence[str] = (),
) -> Iterator[Places]:
    """Set places up for so many pairs of players, and clear them away."""
    with contextlib.ExitStack() as stack:
        made = []
        for first in range(0, pairs, PAIRS):
            count = min(PAIRS, pairs - first)
            one = Place(player, count, libraries, f"{seed}/{first}", calm, environ, preload_first)
            stack.callback(one.close)
            made.append(one)
        yield Places(made)
