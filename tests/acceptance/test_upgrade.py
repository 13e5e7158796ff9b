# SPDX-License-Identifier: BSD-3-Clause
"""Schedulers and libraries of different versions: what an upgrade and a downgrade preserve."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.acceptance.conftest import FOREIGN
from tests.acceptance.releases import Release
from tests.support.client import FakeClient
from tests.support.fake_hub import Peer, hub
from tests.support.machine import UNIT, Machine, Program, Script

MakeMachine = Callable[..., Machine]

PAIRS = [("old", "old"), ("old", "new"), ("new", "old"), ("new", "new")]


@pytest.fixture
def releases(old: Release, new: Release) -> dict[str, Release]:
    return {"old": old, "new": new}


def other_than(name: str) -> str:
    return "new" if name == "old" else "old"


def serve_with(machine: Machine, release: Release, *flags: str) -> None:
    """Replace the machine's scheduler by one of another version."""
    if machine.scheduler is not None:
        machine.kill_scheduler()
    machine.scheduler_folder = release.folder
    machine.start_scheduler(*flags)


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "library"), PAIRS)
def test_each_pair_of_versions_takes_turns(
    make_machine: MakeMachine, releases: dict[str, Release], scheduler: str, library: str
) -> None:
    machine = make_machine()
    serve_with(machine, releases[scheduler])
    machine.libraries = releases[library].libraries
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    at_b = b.filled(192 * UNIT, 2)
    assert a.holds(at_a, 192 * UNIT, 1)
    assert b.holds(at_b, 192 * UNIT, 2)
    assert a.errors == b.errors == []


@pytest.mark.slow
@pytest.mark.parametrize("library", ["old", "new"])
@pytest.mark.parametrize("first", ["old", "new"])
def test_kernels_in_every_state_survive_an_upgrade_and_a_downgrade(
    make_machine: MakeMachine, releases: dict[str, Release], first: str, library: str
) -> None:
    """There and back, under load; programs of both libraries share the GPU all the time."""
    machine = make_machine()
    serve_with(machine, releases[first])

    def start(name: str, library: str) -> Program:
        machine.libraries = releases[library].libraries
        return machine.program(name)

    mine, others = library, other_than(library)
    load = [start("load-1", mine), start("load-2", others)]
    resident, swapped, hibernated = start("r", mine), start("s", mine), start("h", mine)
    holder, waiting = start("b", others), start("w", mine)
    everybody = [*load, resident, swapped, hibernated, holder, waiting]
    at_load = [program.filled(8 * UNIT, 9) for program in load]
    at_r, at_s = resident.filled(16 * UNIT, 1), swapped.filled(128 * UNIT, 2)
    at_h, at_b = hibernated.filled(16 * UNIT, 3), holder.filled(144 * UNIT, 4)
    at_w = waiting.call("alloc", bytes=128 * UNIT)["pointer"]
    values = {1: 5, 2: 6}
    for trip, release in ((1, other_than(first)), (2, first)):
        loops = [
            program.start("repeat", pointer=at, bytes=4, seconds=4.0, gap=0.002)
            for program, at in zip(load, at_load, strict=True)
        ]
        assert resident.holds(at_r, 16 * UNIT, 1)
        resident.call("cell", phase="end")
        hibernated.call("cell", phase="end")
        machine.hibernate("h")
        assert holder.holds(at_b, 144 * UNIT, 4)
        machine.until(lambda: is_swapped(machine, "s"))
        assert holder.call("hold")["result"] == 0
        waits = waiting.start("fill", pointer=at_w, bytes=128 * UNIT, value=values[trip])
        machine.until(lambda: machine.group("w")["state"] == "waiting")

        serve_with(machine, releases[release])
        machine.until(lambda: names(machine) == {"load-1", "load-2", *"rshbw"})
        machine.until(lambda: machine.group("w")["state"] == "waiting")
        machine.until(lambda: machine.group("h")["state"] == "hibernated")
        assert waiting.waits(waits)
        assert holder.call("let_go")["result"] == 0
        assert waiting.result(waits)["result"] == 0
        for loop, program in zip(loops, load, strict=True):
            assert program.result(loop)["result"] == 0
        assert waiting.holds(at_w, 128 * UNIT, values[trip])
        assert swapped.holds(at_s, 128 * UNIT, 2)
        assert hibernated.holds(at_h, 16 * UNIT, 3)
        assert resident.holds(at_r, 16 * UNIT, 1)
        assert holder.holds(at_b, 144 * UNIT, 4)
    # On a busy machine, a scheduler may take longer to start than a waiting program keeps quiet.
    said_more = {line for program in everybody for line in program.errors}
    assert not {line for line in said_more if "no scheduler answers" not in line}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["old", "new"])
@pytest.mark.parametrize("scheduler", ["old", "new"])
def test_commands_of_one_version_work_with_a_scheduler_of_another(
    make_machine: MakeMachine, releases: dict[str, Release], scheduler: str, library: str
) -> None:
    machine = make_machine()
    serve_with(machine, releases[scheduler])
    release = releases[library]
    machine.libraries = release.libraries
    a = machine.program("notebook-a")
    at_a = a.filled(16 * UNIT, 1)

    def gpushare(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "jupyter_gpushare.cli.main", *words],
            cwd=release.folder,
            env=machine.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    for words in (["status"], ["status", "--json"], ["history"], ["explain"], ["shares"]):
        assert "Traceback" not in gpushare(*words)
    assert "notebook-a" in gpushare("status")
    a.call("cell", phase="end")
    gpushare("evict", "notebook-a")
    machine.until(lambda: is_swapped(machine, "notebook-a"))
    assert a.holds(at_a, 16 * UNIT, 1)
    # The in-kernel part, with the library of its own version.
    magic = subprocess.run(
        [sys.executable, "-c", MAGIC],
        cwd=release.folder,
        env=machine.environment("notebook-b"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "notebook-a" in magic.stdout, magic


@pytest.mark.slow
@pytest.mark.parametrize("first", ["old", "new"])
def test_a_node_keeps_tickets_and_what_administrators_set(
    make_machine: MakeMachine, releases: dict[str, Release], first: str
) -> None:
    machine = make_machine()
    machine.folder.chmod(0o755)
    machine.socket.parent.chmod(0o755)
    with hub() as fake_hub:
        settings = {
            "hub_api_url": fake_hub.url,
            "shared_uids": [os.getuid()],
            "socket": str(machine.socket),
            "state_dir": str(machine.folder / "state"),
        }
        config = machine.folder / "config.json"
        config.write_text(json.dumps({"NodeScheduler": settings}))
        serve_with(machine, releases[first], "--config", str(config))
        with Peer(machine.socket, token="ada-token") as ada:
            ticket = ada.ok("ticket", group="group-a", server="")["ticket"]
        file = machine.folder / "ticket"
        file.touch(mode=0o600)
        file.write_text(ticket)
        a = machine.program("a", GPUSHARE_TICKET_FILE=str(file))
        at_a = a.filled(16 * UNIT, 1)
        with Peer(machine.socket, token="admin-token") as admin:
            admin.ok("maintenance", text="Please restart")
        for release in (other_than(first), first):
            serve_with(machine, releases[release], "--config", str(config))
            with Peer(machine.socket, token="admin-token") as admin:
                machine.until(lambda: users(admin) == ["ada"])
                assert admin.ok("status")["status"]["maintenance"] == "Please restart"
            assert a.holds(at_a, 16 * UNIT, 1)
    assert a.errors == []


def users(peer: Peer) -> list[str]:
    return [group["user"] for group in peer.ok("status")["status"]["groups"]]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["old", "new"])
def test_a_program_is_woken_by_the_hibernator_of_another_version(
    make_machine: MakeMachine, releases: dict[str, Release], library: str, tmp_path: Path
) -> None:
    """`pip install --upgrade` replaces the program that wakes a process whose scheduler is gone."""
    for source in releases[library].libraries.iterdir():
        (tmp_path / source.name).symlink_to(source)
    hibernator = tmp_path / "gpushare-hibernator"
    hibernator.unlink()
    hibernator.symlink_to(releases[other_than(library)].libraries / hibernator.name)
    machine = make_machine()
    machine.libraries = tmp_path
    a = machine.program("a")
    at_a = a.filled(16 * UNIT, 1)
    a.call("cell", phase="end")
    machine.hibernate("a")
    machine.kill_scheduler()
    assert a.holds(at_a, 16 * UNIT, 1)


MAGIC = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "jupyter_gpushare.kernel_provisioner.in_kernel")
print(shell.run_line_magic("gpushare", "status --json"))
"""


@pytest.mark.parametrize("scheduler", ["old", "new"])
def test_a_scheduler_ignores_what_later_clients_may_announce(
    make_machine: MakeMachine, releases: dict[str, Release], scheduler: str
) -> None:
    machine = make_machine()
    serve_with(machine, releases[scheduler])
    body = bytearray(protocol.hello(ev.Attach(0, os.getpid(), "a", "a", "swap"))[8:])
    body[20:24] = b"\xff" * 4  # `pad`
    with FakeClient(machine.socket, "a") as client:
        client.send_raw(announcing(protocol.HELLO, bytes(body)))
        client.expect_welcome()


@pytest.mark.parametrize("library", ["old", "new"])
def test_a_client_ignores_what_later_schedulers_may_announce(
    make_machine: MakeMachine, releases: dict[str, Release], library: str
) -> None:
    machine = make_machine()
    machine.kill_scheduler()
    script = Script(
        machine, welcome=announcing(protocol.WELCOME, protocol.welcome(1, 0, 0.02, 0)[8:])
    )
    try:
        machine.libraries = releases[library].libraries
        a = machine.program("a")
        at_a = a.call("alloc", bytes=UNIT)["pointer"]
        filling = a.start("fill", pointer=at_a, bytes=UNIT, value=1)
        script.next(ev.Request)
        script.send(*script.grant(filling=False))
        assert a.result(filling)["result"] == 0
        assert a.errors == []
    finally:
        script.close()


def announcing(kind: int, body: bytes) -> bytes:
    """Return a frame whose header has all flags."""
    return struct.pack("=IHH", 8 + len(body), kind, 0xFFFF) + body


def names(machine: Machine) -> set[str]:
    """Return the groups that the scheduler knows."""
    return {group["name"] for group in machine.control("status")["status"]["groups"]}


def is_swapped(machine: Machine, name: str) -> bool:
    return any(gpu["resident"] < gpu["footprint"] for gpu in machine.group(name)["gpus"])


def said(program: Program, text: str) -> int:
    """Count the lines on a program's standard error that contain a text."""
    return sum(text in line for line in program.errors)


def test_swapped_out_memory_survives_a_scheduler_of_a_foreign_protocol(
    make_machine: MakeMachine, new: Release, foreign: Release
) -> None:
    machine = make_machine()
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    at_b = b.filled(192 * UNIT, 2)
    serve_with(machine, foreign)
    for program in (a, b):
        machine.until_said(program, "refused")
        assert said(program, f"protocol {FOREIGN}") == 1, program.errors
    # b keeps the GPU: a's cells wait, say why, and end when the user interrupts them.
    for cell in (1, 2):
        waiting = a.start("fill", pointer=at_a, bytes=4, value=3)
        machine.until(lambda count=cell: said(a, "waits") == count)
        assert a.waits(waiting)
        os.kill(a.pid, signal.SIGINT)
        assert a.result(waiting).get("interrupted")
    assert said(a, "no scheduler answers") == 0, a.errors
    # The downgrade: everything goes on as before.
    serve_with(machine, new)
    assert a.holds(at_a, 192 * UNIT, 1)
    assert b.holds(at_b, 192 * UNIT, 2)


def test_a_refused_program_uses_memory_that_becomes_free(
    make_machine: MakeMachine, new: Release, foreign: Release
) -> None:
    machine = make_machine()
    a, b = machine.program("a"), machine.program("b")
    at_a = a.filled(192 * UNIT, 1)
    b.filled(192 * UNIT, 2)
    serve_with(machine, foreign)
    waiting = a.start("check", pointer=at_a, bytes=192 * UNIT, value=1)
    machine.until(lambda: said(a, "waits") == 1)
    os.kill(b.pid, signal.SIGKILL)
    assert a.result(waiting)["equal"]
    # A scheduler of its own protocol takes it in again, and shares the GPU between it and others.
    serve_with(machine, new)
    machine.until(lambda: "a" in names(machine))
    c = machine.program("c")
    at_c = c.filled(192 * UNIT, 3)
    assert a.holds(at_a, 192 * UNIT, 1)
    assert c.holds(at_c, 192 * UNIT, 3)


def test_refused_programs_do_not_block_each_other(
    make_machine: MakeMachine, foreign: Release
) -> None:
    """A process that waits keeps no part of the room that another one could use."""
    machine = make_machine()
    a, b, c = (machine.program(name) for name in "abc")
    at_a, at_b = a.filled(160 * UNIT, 1), b.filled(160 * UNIT, 2)
    c.filled(224 * UNIT, 3)
    serve_with(machine, foreign)
    waiting_a = a.start("check", pointer=at_a, bytes=160 * UNIT, value=1)
    waiting_b = b.start("check", pointer=at_b, bytes=160 * UNIT, value=2)
    machine.until(lambda: said(a, "waits") == said(b, "waits") == 1)
    c.close()
    machine.until(lambda: a.has(waiting_a) or b.has(waiting_b))
    first, second = (a, b) if a.has(waiting_a) else (b, a)
    first.close()
    assert second.result(waiting_b if second is b else waiting_a)["equal"]


def test_a_hibernated_program_survives_a_scheduler_of_a_foreign_protocol(
    make_machine: MakeMachine, new: Release, foreign: Release
) -> None:
    machine = make_machine()
    a = machine.program("a")
    at_a = a.filled(16 * UNIT, 1)
    a.call("cell", phase="end")
    machine.hibernate("a")
    serve_with(machine, foreign)
    machine.until_said(a, "refused")
    # The downgrade finds it as it was.
    serve_with(machine, new)
    machine.until(lambda: "a" in names(machine))
    machine.until(lambda: machine.group("a")["state"] == "hibernated")
    assert a.holds(at_a, 16 * UNIT, 1)
    machine.hibernate("a")
    # Without a scheduler that serves it, the program wakes up by itself.
    serve_with(machine, foreign)
    assert a.holds(at_a, 16 * UNIT, 1)
    assert not any("no scheduler" in line for line in a.errors), a.errors


@pytest.mark.slow
def test_a_library_of_a_foreign_protocol_meets_the_present_scheduler(
    make_machine: MakeMachine, new: Release, foreign_library: Release
) -> None:
    machine = make_machine()
    serve_with(machine, foreign_library)
    machine.libraries = foreign_library.libraries
    a, b = machine.program("a"), machine.program("b")
    at_a, at_b = a.filled(192 * UNIT, 1), b.filled(192 * UNIT, 2)
    # The downgrade.
    serve_with(machine, new)
    machine.until_said(a, f"protocol {FOREIGN}")
    waits = a.start("check", pointer=at_a, bytes=192 * UNIT, value=1)
    machine.until(lambda: said(a, "waits") == 1)
    # A program that starts now is refused at once: it goes on without sharing, and says why.
    late = machine.program("late")
    assert late.call("attached")["attached"] == -1
    assert said(late, f"protocol {FOREIGN}") == 1
    at_late = late.filled(16 * UNIT, 3)
    # The upgrade again: all of them share.
    serve_with(machine, foreign_library)
    machine.until(lambda: names(machine) == {"a", "b", "late"})
    assert late.call("attached")["attached"] == 1
    assert late.holds(at_late, 16 * UNIT, 3)
    assert a.result(waits)["equal"]
    assert b.holds(at_b, 192 * UNIT, 2)
