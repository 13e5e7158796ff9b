# SPDX-License-Identifier: BSD-3-Clause
"""No thread is in the driver while its process is parked, whatever it calls, and none is kept out otherwise."""

from __future__ import annotations

import csv
import mmap
import platform
import queue
import re
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.machine import PATIENCE, Machine, Script
from tests.support.workshop import Workshop

HERE = Path(__file__).parent
#: What may be called while the process is parked: the driver answers it when the process is locked, or before cuInit.
ENTER = re.compile(
    r"cuDriverGetVersion|cuGetError(Name|String)|cuGetProcAddress(_v2)?|cuCheckpoint\w+"
)
CYCLES = 25


def test_every_function_waits_except_those_that_the_driver_always_answers(root: Path) -> None:
    with (root / "csrc/driver_api.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["function"]: row["parked"] for row in csv.DictReader(file)}
    assert {name for name, parked in rows.items() if parked == "enters"} == {
        name for name in rows if ENTER.fullmatch(name)
    }
    assert set(rows.values()) == {"waits", "enters"}


@pytest.fixture
def waiting(root: Path) -> list[str]:
    """Return the functions that the table says wait."""
    with (root / "csrc/driver_api.csv").open(newline="", encoding="utf-8") as file:
        return [row["function"] for row in csv.DictReader(file) if row["parked"] == "waits"]


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """Compile the program, and the driver that watches; return their folder."""
    if platform.machine() != "x86_64":
        pytest.skip("the driver that watches is made for x86-64")
    folder = tmp_path_factory.mktemp("second_gate")
    real = (LIBRARIES / "sim/libcuda.so.1").read_bytes()
    # Under its own name it would be taken for the interposer, which has it too.
    (folder / "libreal.so.1").write_bytes(real.replace(b"\0libcuda.so.1\0", b"\0libreal.so.1\0"))
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Werror"]
    command = ["cc", *flags, "-shared", "-fPIC", f"-I{root / 'csrc/sim'}", f"-Wl,-rpath,{folder}"]
    command += ["-o", str(folder / "watched.so"), str(HERE / "watched.c"), "-Wl,--no-as-needed"]
    subprocess.run([*command, str(folder / "libreal.so.1")], check=True)
    command = ["cc", *flags, "-pthread", "-o", str(folder / "callers"), str(HERE / "callers.c")]
    subprocess.run([*command, "-ldl"], check=True)
    return folder


class Callers:
    """The program, under a scripted scheduler and over the driver that watches."""

    def __init__(self, machine: Machine, tools: Path, *words: str) -> None:
        file = machine.folder / "watched"
        file.write_bytes(bytes(4096))
        self.script = Script(machine)
        with file.open("r+b") as shared:
            self.shared = mmap.mmap(shared.fileno(), 4096)
        environ = machine.environment("a")
        environ |= {"WATCHED": str(file), "GPUSHARE_DRIVER": str(tools / "watched.so")}
        self.process = subprocess.Popen(
            [tools / "callers", *words],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.serial = 0
        #: Threads that are about to call ask to be awake before the process is parked.
        self.asked: ev.Wake | None = None
        #: A thread asked for the GPU while the process was parked, and was not answered.
        self.requested = False
        assert self.line() == "ready"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def forbid_calls(self, forbidden: bool) -> None:
        struct.pack_into("=I", self.shared, 0, forbidden)

    @property
    def violations(self) -> int:
        return int(struct.unpack_from("=I", self.shared, 4)[0])

    def park(self) -> None:
        """Ask until it is parked: on a busy machine it may have something to do at first."""
        deadline = time.monotonic() + PATIENCE
        while not self.ask_to_park():
            assert time.monotonic() < deadline

    def ask_to_park(self) -> bool:
        """Ask once; grant the GPU to programs that request it meanwhile, and revoke it."""
        self.serial += 1
        self.asked = None
        self.script.send(protocol.park(self.serial))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            event = self.script.events.get(timeout=PATIENCE)
            if isinstance(event, ev.Request):
                self.requested = False
                frames = self.script.grant(filling=False)
                self.script.send(*frames, protocol.revoke(self.script.lease))
            elif isinstance(event, ev.Wake):
                self.asked = event
            elif isinstance(event, ev.Parked) and event.serial == self.serial:
                return event.status == "done"
        raise TimeoutError

    def wake(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while (asked := self.asked) is None:
            assert self.violations == 0
            try:
                event = self.script.events.get(timeout=0.1)
            except queue.Empty:
                assert time.monotonic() < deadline
                continue
            if isinstance(event, ev.Wake):
                self.asked = event
            elif isinstance(event, ev.Request):
                self.requested = True
        # It may have asked before it was parked: threads that do not wait have some time to show.
        time.sleep(0.01)
        assert self.violations == 0
        self.forbid_calls(False)
        self.script.send(protocol.awake(ev.Awake(1, asked.serial)))

    def go(self) -> None:
        """Send the line that it waits for."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Return what it says before it ends; threads that ask for the GPU meanwhile are given it."""
        said: list[str] = []
        reading = threading.Thread(target=lambda: said.append(self.line()))
        reading.start()
        deadline = time.monotonic() + PATIENCE
        if self.requested:
            self.script.send(*self.script.grant(filling=False))
        while reading.is_alive():
            if time.monotonic() > deadline:
                self.process.kill()
            try:
                event = self.script.events.get(timeout=0.01)
            except queue.Empty:
                continue
            if isinstance(event, ev.Request):
                self.script.send(*self.script.grant(filling=False))
        reading.join()
        assert self.process.wait(PATIENCE) == 0
        return said[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.script.close()


@pytest.fixture
def make_callers(
    make_machine: Callable[..., Machine], tools: Path
) -> Iterator[Callable[..., Callers]]:
    """Return a function that starts the program."""
    made: list[Callers] = []

    def make(*words: str, libraries: Path | None = None) -> Callers:
        machine = make_machine()
        machine.kill_scheduler()
        machine.libraries = libraries
        made.append(Callers(machine, tools, *words))
        return made[-1]

    yield make
    for callers in made:
        callers.close()


def cycle(callers: Callers, cycles: int) -> None:
    """Park and wake at the first request, so often; no thread calls the driver meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while cycles > 0:
        assert time.monotonic() < deadline
        if not callers.ask_to_park():
            continue
        callers.forbid_calls(True)
        callers.wake()
        cycles -= 1


def test_no_thread_is_in_the_driver_while_the_process_is_parked(
    make_callers: Callable[..., Callers],
) -> None:
    callers = make_callers("stress", "3")
    cycle(callers, CYCLES)
    callers.go()
    calls, cancelled = map(int, callers.end().split())
    # Each cycle ended because a thread was about to call.
    assert calls >= CYCLES
    assert cancelled == 0


def test_every_function_waits_when_called(
    make_callers: Callable[..., Callers], waiting: list[str], tmp_path: Path
) -> None:
    """Each is called while the process is parked, and ends when the wait is cancelled."""
    names = tmp_path / "names"
    names.write_text("\n".join(waiting))
    callers = make_callers("sweep", str(names))
    callers.park()
    callers.forbid_calls(True)
    callers.go()
    said: list[str] = []

    def read() -> None:
        while (line := callers.line()) and line != "done":
            said.append(line)

    reading = threading.Thread(target=read)
    reading.start()
    deadline = time.monotonic() + PATIENCE
    while reading.is_alive():
        assert time.monotonic() < deadline
        callers.script.send(protocol.cancel())
        reading.join(0.001)
    assert said == []
    assert callers.violations == 0
    callers.go()
    assert callers.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_missing_check_of_the_gate_is_found(
    make_callers: Callable[..., Callers], workshop: Workshop
) -> None:
    libraries = workshop.build(
        (
            (
                "interposer/gate/awake.h",
                "__builtin_expect(__atomic_load_n(&gs_awake_shut, __ATOMIC_RELAXED) == 0, 1)",
                "1",
            ),
        )
    )
    callers = make_callers("stress", "3", libraries=libraries)
    with pytest.raises(AssertionError):
        cycle(callers, CYCLES)


@pytest.mark.parametrize(("woken", "result"), [(True, "0"), (False, "4")])
def test_a_process_that_exits_is_woken_first(
    make_callers: Callable[..., Callers], woken: bool, result: str
) -> None:
    """If it cannot be, what it calls at its end fails, and does not wait for ever."""
    callers = make_callers("exit")
    callers.park()
    callers.forbid_calls(True)
    callers.script.send(protocol.hibernated(callers.serial, done=True))
    callers.go()
    asked = callers.script.next(ev.Wake)
    assert asked.cause == "exit"
    if woken:
        callers.forbid_calls(False)
        callers.script.send(protocol.awake(ev.Awake(1, asked.serial)))
    assert callers.end() == result
    assert callers.violations == 0
