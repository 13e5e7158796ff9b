# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler without privileges and a privileged hibernator: programs in PID namespaces of their own hibernate."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.client import ControlClient, ControlError
from tests.support.client import PATIENCE, FakeClient
from tests.support.environment import inherited
from tests.support.hub.node import private_folder
from tests.support.notebook import SETUP, until

pytestmark = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can drop privileges, and have others in containers"
)

#: Root without any privileges, as the scheduler's pod is.
POWERLESS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
#: What the manifests give to the hibernator.
PRIVILEGED = (
    *("setpriv", "--bounding-set=-all,+sys_ptrace,+dac_override", "--inh-caps=-all"),
    "--no-new-privs",
)
#: A container as far as processes are concerned.
CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
GPUSHARE = (sys.executable, "-m", "jupyter_gpushare.cli.main")

#: Prints for each line of its input whether its data is unchanged, in a cell like those of Jupyter kernels.
PROGRAM = f"""
import sys
{SETUP}
gpushare = ctypes.CDLL(None)
print(os.getpid(), flush=True)
for line in sys.stdin:
    gpushare.gpushare_cell_begin(b"cell")
    same = data.read() == known
    gpushare.gpushare_cell_end(b"cell")
    print(same, flush=True)
"""


class Program:
    """A program that uses the GPU on request."""

    def __init__(self, machine: Machine, name: str, under: tuple[str, ...]) -> None:
        self.name = name
        command = [*GPUSHARE, "run", "--name", name, "--", sys.executable, "-c", PROGRAM]
        self.process = subprocess.Popen(
            [*under, *command],
            env=machine.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        #: Its number in its own PID namespace.
        self.inside = int(self.process.stdout.readline())

    def use(self) -> bool:
        """Have it use the GPU, and return whether it found its data."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline() == "True\n"

    def close(self) -> None:
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(PATIENCE)


class Machine:
    """A machine with a simulated GPU, a node's scheduler, and perhaps a privileged hibernator."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.socket = folder / "run" / "scheduler.sock"
        self.hibernator_socket = folder / "hibernator" / "hibernator.sock"
        self.environ = {
            **inherited(),
            "GPUSHARE_SIM": "1",
            "GPUSHARE_SIM_NAME": folder.name,
            "GPUSHARE_SIM_MEMORY": "1GiB",
            "GPUSHARE_SIM_CONTEXT": "16MiB",
            "GPUSHARE_SOCKET": str(self.socket),
        }

    def start_scheduler(self, *, service: bool = True, **settings: Any) -> subprocess.Popen[bytes]:
        settings = {
            "socket": str(self.socket),
            "state_dir": str(self.folder / "state"),
            "hibernate_after": 3600.0,
            **({"hibernator_socket": str(self.hibernator_socket)} if service else {}),
            **settings,
        }
        config = self.folder / "config.json"
        config.write_text(json.dumps({"NodeScheduler": settings}))
        process = self._begin(
            "scheduler", *POWERLESS, *GPUSHARE, "scheduler", "--config", str(config)
        )
        until(lambda: self.answers(), f"the scheduler answers: {self.log('scheduler')}")
        return process

    def start_hibernator(self) -> subprocess.Popen[bytes]:
        self.hibernator_socket.unlink(missing_ok=True)
        path = str(self.hibernator_socket)
        process = self._begin("hibernator", *PRIVILEGED, *GPUSHARE, "hibernator", "--socket", path)
        until(self.hibernator_socket.exists, "the hibernator listens")
        return process

    def _begin(self, log: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{log}.log").open("ab") as file:
            process = subprocess.Popen(
                command, env=self.environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        self._stack.callback(end, process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def program(self, name: str, under: tuple[str, ...] = CONTAINER) -> Program:
        program = Program(self, name, under)
        self._stack.callback(program.close)
        assert program.use()
        return program

    def answers(self) -> bool:
        try:
            with ControlClient(self.socket):
                return True
        except ControlError:
            return False

    def command(
        self, *arguments: str, under: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*under, *GPUSHARE, *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def status(self) -> dict[str, Any]:
        with ControlClient(self.socket, timeout=PATIENCE) as control:
            return control.request("status")["status"]  # type: ignore[no-any-return]

    def group(self, name: str) -> dict[str, Any]:
        return next(group for group in self.status()["groups"] if group["name"] == name)

    def states(self) -> dict[str, str]:
        return {group["name"]: group["state"] for group in self.status()["groups"]}

    def can_hibernate(self) -> bool:
        return self.status()["hibernation"]["able"] is True


def end(process: subprocess.Popen[bytes]) -> None:
    with process:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture
def machine() -> Iterator[Machine]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    with private_folder() as folder, ExitStack() as stack:
        yield Machine(folder, stack)


def field(pid: int, name: str) -> str:
    """A field of /proc/PID/status."""
    found = re.search(rf"^{name}:\s*(\S+)", Path(f"/proc/{pid}/status").read_text(), re.M)
    assert found is not None
    return found[1]


def test_programs_in_containers_hibernate_and_lose_no_data(machine: Machine) -> None:
    hibernator, scheduler = machine.start_hibernator(), machine.start_scheduler()
    until(machine.can_hibernate, "processes can hibernate")
    programs = [machine.program(name) for name in ("one", "two")]
    assert programs[0].inside == programs[1].inside, "two PID namespaces"
    before = machine.status()["gpus"][0]["used"]
    for program in programs:
        done = machine.command("hibernate", program.name)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.match(rf"Hibernated {program.name}, which freed ", done.stdout)
    until(lambda: machine.status()["gpus"][0]["used"] < before - (16 << 20), "the GPU is free")
    assert machine.command("wake", "one").stdout == "Waking one.\n"
    for _ in range(2):
        for program in programs:
            assert program.use()
            assert machine.command("hibernate", program.name).returncode == 0
    # Only the hibernator has privileges, and only those in the manifests.
    assert int(field(scheduler.pid, "CapEff"), 16) == 0
    assert int(field(hibernator.pid, "CapEff"), 16) == 1 << 19 | 1 << 1
    assert (field(hibernator.pid, "Seccomp"), field(hibernator.pid, "NoNewPrivs")) == ("2", "1")


def test_a_program_outside_of_containers_hibernates_too(machine: Machine) -> None:
    machine.start_hibernator()
    machine.start_scheduler()
    until(machine.can_hibernate, "processes can hibernate")
    program = machine.program("plain", under=())
    assert machine.command("hibernate", "plain").returncode == 0
    assert program.use()


@pytest.mark.parametrize("wait", [False, True], ids=["at once", "after its end is known"])
def test_a_hibernator_that_is_killed_is_replaced(machine: Machine, wait: bool) -> None:
    hibernator = machine.start_hibernator()
    machine.start_scheduler(log_level="info")
    until(machine.can_hibernate, "processes can hibernate")
    program = machine.program("one")
    assert machine.command("hibernate", "one").returncode == 0
    hibernator.kill()
    hibernator.wait(PATIENCE)
    if wait:
        until(lambda: "hibernator.sock ended" in machine.log("scheduler"), "its end is known")
    machine.start_hibernator()
    assert program.use()
    assert machine.command("hibernate", "one").returncode == 0
    assert program.use()


def test_a_hibernator_may_start_later(machine: Machine) -> None:
    machine.start_scheduler()
    until(lambda: machine.status()["hibernation"]["able"] is False, "there is none")
    found = machine.status()["hibernation"]
    assert found["code"] == "helper"
    assert f"no hibernator answers on {machine.hibernator_socket}" in found["text"]
    machine.program("one")
    done = machine.command("hibernate", "one")
    assert done.returncode == 2
    assert "no hibernator answers" in done.stderr
    machine.start_hibernator()
    until(machine.can_hibernate, "processes can hibernate")
    assert machine.command("hibernate", "one").returncode == 0


def test_a_new_scheduler_takes_over_hibernated_programs(machine: Machine) -> None:
    machine.start_hibernator()
    scheduler = machine.start_scheduler()
    until(machine.can_hibernate, "processes can hibernate")
    program = machine.program("one")
    assert machine.command("hibernate", "one").returncode == 0
    scheduler.kill()
    scheduler.wait(PATIENCE)
    machine.start_scheduler()
    until(lambda: machine.states().get("one") == "hibernated", "it is still hibernated")
    assert program.use()


def doctor(machine: Machine, under: tuple[str, ...]) -> dict[str, Any]:
    found = json.loads(machine.command("doctor", "--json", under=under).stdout)
    return next(each for each in found if each["topic"] == "hibernation")


def test_each_reason_is_the_true_one(machine: Machine) -> None:
    """Without a privileged hibernator, the scheduler may not look into any of these processes."""
    machine.start_scheduler(service=False)
    until(machine.can_hibernate, "the driver can hibernate processes")
    machine.program("contained")
    machine.program("plain", under=())
    for name, code, why in (
        ("contained", "container", "runs in a container that the scheduler cannot reach"),
        ("plain", "permission", "lacks permission to checkpoint the process"),
    ):
        done = machine.command("hibernate", name)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert why in done.stderr
        assert machine.group(name)["hibernation"]["code"] == code
    for under, why in (
        (CONTAINER, "cannot reach processes in this container"),
        ((), "lacks permission to checkpoint this user's processes"),
    ):
        found = doctor(machine, under)
        assert (found["state"], why in found["found"]) == ("warn", True), found
        # The user of a container can do nothing about it.
        assert found["remedy"].startswith("an administrator can install the privileged hibernator")
    assert machine.command("set", "--hibernate-after", "off").returncode == 0
    done = machine.command("hibernate", "contained")
    assert (done.returncode, done.stdout) == (2, "")
    assert "hibernation is switched off" in done.stderr


def test_a_user_who_may_not_change_it_is_not_told_to(machine: Machine) -> None:
    # Only tokens of the Hub identify administrators, as on Kubernetes.
    machine.start_scheduler(
        service=False, hibernate_after=0.0, shared_uids=[0], hub_api_url="http://127.0.0.1:9/hub"
    )
    found = doctor(machine, CONTAINER)
    assert "gpushare set" not in (found["remedy"] or ""), found


class Forger(FakeClient):
    """A client that attaches another process's pidfd to each message."""

    descriptor = -1

    def send_raw(self, data: bytes) -> None:
        socket.send_fds(self.socket, [data], [self.descriptor])


def test_a_client_cannot_name_another_process(machine: Machine) -> None:
    """The process that connected is meant, whatever it states and attaches."""
    machine.start_hibernator()
    machine.start_scheduler()
    until(machine.can_hibernate, "processes can hibernate")
    victim = machine.program("victim")
    (number,) = (client["pid"] for client in machine.group("victim")["clients"])
    gpu = machine.status()["gpus"][0]["uuid"]
    usage = ev.Usage(gpu, 0, 0, 0, 16 << 20)
    attach = ev.Attach(0, number, "attacker", "attacker", "swap", 0, (usage,))
    with Forger(machine.socket, "attacker", gpu) as attacker:
        attacker.descriptor = pidfd = os.pidfd_open(number)
        attacker.send(attach)
        attacker.expect_welcome()
        with ControlClient(machine.socket, timeout=PATIENCE) as control:
            control.request("hibernate", group="attacker")
        order = attacker.expect(ev.Park)
        attacker.send(ev.Parked(attacker.number, order.serial, "done", usage))
        until(
            lambda: (machine.group("attacker")["hibernation"] or {}).get("state") == "refused",
            "it is not hibernated",
        )
        text = machine.group("attacker")["hibernation"]["text"]
    os.close(pidfd)
    # The simulated driver does not know the test's own process.
    assert f"lock of process {os.getpid()} failed" in text
    assert str(number) not in text
    assert machine.group("victim")["hibernation"] is None
    assert victim.use()


def test_only_schedulers_of_the_machine_are_served(machine: Machine) -> None:
    hibernator = machine.start_hibernator()
    program = machine.folder / "program.py"
    program.write_text(
        "import socket\n"
        "peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        f"peer.connect({str(machine.hibernator_socket)!r})\n"
        "print(peer.recv(256))\n"
    )
    done = subprocess.run(
        [*CONTAINER, sys.executable, str(program)], capture_output=True, text=True
    )
    assert done.stdout == "b''\n", done.stderr
    hibernator.send_signal(signal.SIGTERM)
    assert hibernator.wait(PATIENCE) == 0
