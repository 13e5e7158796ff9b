# SPDX-License-Identifier: BSD-3-Clause
"""Programs whose uid says nothing: they show a ticket; and the schedulers that they trust."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.kernel_provisioner import ticket
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.fake_hub import FakeHub, Peer
from tests.support.fake_hub import hub as hub_running
from tests.support.machine import PATIENCE, UNIT, Machine, Program
from tests.support.node import Activator, Place


class Node(Machine):
    """A machine whose scheduler identifies no user by uid."""

    def __init__(self, folder: Path, hub: FakeHub) -> None:
        # Of several GPUs, so that programs also ask where to begin.
        super().__init__(folder, GPUSHARE_SIM_DEVICES="2")
        self.config = folder / "config.json"
        settings = {
            "hub_api_url": hub.url,
            "shared_uids": [os.getuid()],
            "socket": str(self.socket),
            "state_dir": str(folder / "state"),
        }
        self.config.write_text(json.dumps({"NodeScheduler": settings}))

    def begin(self) -> None:
        self.start_scheduler("--config", str(self.config))

    def ticket(self, group: str, token: str = "ada-token") -> Path:
        """Get a ticket for a group, and write it where its program finds it."""
        with Peer(self.socket, token=token) as peer:
            text = peer.ok("ticket", group=group)["ticket"]
        path = self.path_of(group)
        ticket.write(path, text)
        return path

    def path_of(self, group: str) -> Path:
        return self.folder / f"{group}.ticket"

    def with_ticket(self, name: str, **environ: str) -> Program:
        """Start a program that is told of a ticket, and of nothing else of it."""
        path = str(self.path_of(f"group-{name}"))
        return self.program(name, init=False, GPUSHARE_TICKET_FILE=path, **environ)

    def user_of(self, group: str) -> str | None:
        with Peer(self.socket, token="admin-token") as peer:
            groups = peer.ok("status")["status"]["groups"]
        return next((found["user"] for found in groups if found["id"] == group), None)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with hub_running() as running:
        yield running


@pytest.fixture
def node(hub: FakeHub) -> Iterator[Node]:
    found = Node(Path(tempfile.mkdtemp(prefix="gs-")), hub)
    found.begin()
    yield found
    found.close()
    shutil.rmtree(found.folder)


def attached(program: Program) -> bool:
    assert program.call("init")["result"] == 0, program.errors
    return bool(program.call("attached")["attached"] == 1)


def test_a_ticket_identifies_the_user_of_a_program(node: Node) -> None:
    node.ticket("group-a", "ada-token")
    node.ticket("group-b", "ben-token")
    for name, user in {"a": "ada", "b": "ben"}.items():
        assert attached(node.with_ticket(name))
        assert node.user_of(f"group-{name}") == user


def test_a_ticket_may_be_written_after_the_program_started(node: Node) -> None:
    a = node.with_ticket("a")
    waiting = a.start("init")
    assert a.waits(waiting)
    node.ticket("group-a")
    assert a.result(waiting)["result"] == 0
    assert node.user_of("group-a") == "ada"
    # On a busy machine, the ticket may come so late that the program reports what it waits for.
    assert all("must present a ticket" in line for line in a.errors), a.errors


def test_tickets_and_memory_survive_a_restart_of_the_scheduler(node: Node) -> None:
    node.ticket("group-a")
    a = node.with_ticket("a")
    assert attached(a)
    pointer = a.filled(64 * UNIT, 7)
    node.kill_scheduler()
    node.begin()
    node.until(lambda: node.user_of("group-a") == "ada")
    assert a.holds(pointer, 64 * UNIT, 7)
    assert not a.errors


def test_a_ticket_that_was_lost_is_waited_for(node: Node) -> None:
    node.ticket("group-a")
    a = node.with_ticket("a")
    assert attached(a)
    pointer = a.filled(64 * UNIT, 7)
    node.kill_scheduler()
    (node.folder / "state" / "tickets.json").unlink()
    node.begin()
    # It goes on meanwhile.
    assert a.holds(pointer, 64 * UNIT, 7)
    assert node.user_of("group-a") is None
    node.ticket("group-a")
    node.until(lambda: node.user_of("group-a") == "ada")
    assert a.holds(pointer, 64 * UNIT, 7)


def open_to_others(path: Path) -> None:
    path.chmod(0o640)


def another_users(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    os.chown(path, 65534, 65534)


def a_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def empty(path: Path) -> None:
    path.write_text("")


def too_long(path: Path) -> None:
    path.write_text("0" * 128)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (open_to_others, "its mode has to be 0600"),
        (another_users, "it belongs to another user"),
        (a_link, "it is a symbolic link"),
        (a_pipe, "it is not a file"),
        (empty, "it contains no ticket"),
        (too_long, "it contains no ticket"),
    ],
)
def test_a_file_that_is_not_a_ticket_is_reported_and_cuda_is_unshared(
    node: Node, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(node.ticket("group-a"))
    a = node.with_ticket("a")
    assert not attached(a)
    node.until_said(a, said)
    # Plain CUDA, as with other failures.
    pointer = a.filled(16 * UNIT, 1)
    assert a.holds(pointer, 16 * UNIT, 1)
    # To placement requests, and to attaching clients.
    assert sum(said in line for line in a.errors) <= 2


def test_an_unknown_ticket_is_reported_and_cuda_is_unshared(node: Node) -> None:
    ticket.write(node.path_of("group-a"), "0" * 64)
    a = node.with_ticket("a")
    assert not attached(a)
    node.until_said(a, "the scheduler refused this process")
    pointer = a.filled(16 * UNIT, 1)
    assert a.holds(pointer, 16 * UNIT, 1)


def test_a_scheduler_without_tickets_ignores_them(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine()
    path = machine.folder / "ticket"
    for name in ("missing", "unknown"):
        a = machine.program(name, init=False, GPUSHARE_TICKET_FILE=str(path))
        assert attached(a)
        assert not a.errors
        ticket.write(path, "0" * 64)


# --- Control requests of a program's own ------------------------------------------------------------

CONTROL = """
import ctypes, json, sys
reply = ctypes.create_string_buffer(1 << 20)
control = ctypes.CDLL(None).gpushare_control
control.restype = ctypes.c_int64
length = control(sys.argv[1].encode(), reply, len(reply))
print(json.dumps(reply.value.decode() if length >= 0 else length))
"""


def ask(node: Node, group: str, op: str) -> object:
    """What a program of a group is answered, or minus the error's number."""
    environ = node.environment(
        group.removeprefix("group-"), GPUSHARE_TICKET_FILE=str(node.path_of(group))
    )
    request = json.dumps({"op": op, "protocol": protocol.CONTROL_VERSION})
    done = subprocess.run(
        [sys.executable, "-c", CONTROL, request],
        env=environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    found = json.loads(done.stdout)
    return json.loads(found) if isinstance(found, str) else found


def test_requests_of_a_program_carry_its_ticket(node: Node) -> None:
    node.ticket("group-a")
    found = ask(node, "group-a", "whoami")
    assert isinstance(found, dict)
    assert (found["user"], found["kernel"]) == ("ada", "group-a")
    node.path_of("group-a").chmod(0o644)
    assert ask(node, "group-a", "whoami") == -13


# --- Whose scheduler is trusted ---------------------------------------------------------------------

#: Lets a program see another user at the socket's other end, as in a user namespace.
STRANGER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>
int getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
    int (*real)(int, int, int, void *, socklen_t *) = dlsym(RTLD_NEXT, "getsockopt");
    int result = real(fd, level, name, value, size);
    if (result == 0 && level == SOL_SOCKET && name == SO_PEERCRED)
        ((struct ucred *)value)->uid = 4242;
    return result;
}
"""


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "stranger.c").write_text(STRANGER)
    library = folder / "stranger.so"
    command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", library, "stranger.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return str(library)


@pytest.mark.parametrize(
    ("trusted", "trusts", "said"),
    [
        ("", False, "belongs to another user"),
        ("4242", True, ""),
        ("1,4242", True, ""),
        ("4241", False, "belongs to another user"),
        ("root", False, "not a list of at most 16 uids"),
        ("-1", False, "not a list of at most 16 uids"),
        ("4242;1", False, "not a list of at most 16 uids"),
    ],
)
def test_a_program_uses_only_schedulers_of_trusted_users(
    machine: Machine, stranger: str, trusted: str, trusts: bool, said: str
) -> None:
    machine.preload_first = (stranger,)
    a = machine.program("a", init=False, GPUSHARE_SCHEDULER_UID=trusted)
    assert attached(a) is trusts
    if said:
        machine.until_said(a, said)


# --- Upgrades ---------------------------------------------------------------------------------------


def test_a_restart_of_the_service_loses_no_program_and_no_byte() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    machine = Machine(folder)
    place = Place(folder, machine.environ)
    place.socket = machine.socket
    place.write(quantum=0.05)
    service = Activator(place)
    try:
        service.start()
        a, b = machine.program("a"), machine.program("b")
        at_a, at_b = a.filled(192 * UNIT, 1), b.filled(192 * UNIT, 2)
        for _ in range(2):
            service.stop()
            # Without a scheduler, new programs and requests for the GPU wait for the next.
            newcomer = machine.program("c", init=False)
            initialised, wanted = (
                newcomer.start("init"),
                a.start("check", pointer=at_a, bytes=192 * UNIT, value=1),
            )
            time.sleep(0.2)
            service.start()
            assert newcomer.result(initialised)["result"] == 0
            assert newcomer.call("attached")["attached"] == 1, newcomer.errors
            assert a.result(wanted)["equal"]
            assert b.holds(at_b, 192 * UNIT, 2)
            newcomer.close()
            machine.until(
                lambda: (
                    {group["name"] for group in machine.control("status")["status"]["groups"]}
                    == {"a", "b"}
                )
            )
        # On a busy machine, a scheduler may take longer to start than a waiting program keeps quiet.
        assert all("no scheduler answers" in line for line in a.errors), a.errors
        assert not b.errors
    finally:
        machine.close()
        service.close()
        shutil.rmtree(folder)
