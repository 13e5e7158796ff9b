# SPDX-License-Identifier: BSD-3-Clause
"""Kernels of users who share a uid: each gets a ticket, and returns it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager

from jupyter_gpushare.kernel_provisioner import GpuShareProvisioner, provisioner, ticket
from tests.support.client import FakeClient, Refused
from tests.support.fake_hub import FakeHub, Peer, connect
from tests.support.fake_hub import hub as hub_running
from tests.support.node import Node

from .conftest import Launched, eventually, launched, started

CUDA = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
print(cuda.cuInit(0), ctypes.CDLL(None).gpushare_attached(None))
"""


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with hub_running() as running:
        yield running


@pytest.fixture(autouse=True)
def _in_a_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    # However busy the machine is: the ticket is there, or known not to be needed, before the kernel is.
    monkeypatch.setattr(provisioner, "TICKET_TIMEOUT", 60.0)
    yield
    ticket.held.clear()


@pytest.fixture
def node(tmp_path: Path, hub: FakeHub) -> Iterator[Node]:
    found = Node(tmp_path, hub)
    found.start()
    yield found
    found.stop()


def path_of(kernel: Launched) -> Path:
    assert kernel.manager.kernel_id is not None
    path = ticket.ticket_path(kernel.manager.kernel_id)
    assert kernel.environment()["GPUSHARE_TICKET_FILE"] == str(path)
    return path


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_belongs_to_its_user(node: Node, tmp_path: Path) -> None:
    async with started() as kernel:
        path = path_of(kernel)
        assert path.parent == tmp_path / "runtime"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (await kernel.execute(CUDA)).stream("stdout") == "0 1\n"
        group = kernel.manager.kernel_id
        assert node.user_of(group) == "ada"
        # What it asks for itself it asks for with its ticket.
        done = await kernel.execute("%gpushare background")
        assert (done.errors(), done.stream("stderr")) == ([], "")
        found = node.group(group)
        assert found is not None
        assert found["preferences"]["priority"] == "background"
        assert node.tickets() == {group}
        # It keeps it when it is restarted.
        before = path.read_text()
        await kernel.manager.restart_kernel(now=True)
        await kernel.client.wait_for_ready(timeout=60)
        assert path.read_text() == before
        assert (await kernel.execute(CUDA)).stream("stdout") == "0 1\n"
    assert not path.exists()
    await eventually(lambda: node.tickets() == set(), "the ticket is revoked")


async def test_an_interrupt_still_reaches_a_wait(node: Node) -> None:
    async with started() as kernel:
        assert isinstance(kernel.manager.provisioner, GpuShareProvisioner)
        with Peer(node.path, token="admin-token") as peer:
            sequence = peer.ok("history")["sequence"]
            await kernel.execute(CUDA)
            await kernel.manager.interrupt_kernel()
            await eventually(
                lambda: any(
                    event["kind"] == "cancel" and event["group"] == kernel.manager.kernel_id
                    for event in peer.ok("history", since=sequence)["events"]
                ),
                "the wait is cancelled",
            )


@pytest.mark.usefixtures("real_kernels")
async def test_without_need_no_tickets_are_issued(tmp_path: Path, hub: FakeHub) -> None:
    node = Node(tmp_path, hub, shared_uids=[])
    node.start()
    try:
        async with started() as kernel:
            assert "GPUSHARE_TICKET_FILE" not in kernel.environment()
            assert (await kernel.execute(CUDA)).stream("stdout") == "0 1\n"
        assert not (tmp_path / "runtime").exists() or not list(
            (tmp_path / "runtime").glob("gpushare-*")
        )
        assert not hub.asked
    finally:
        node.stop()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
async def test_a_kernel_id_is_claimed_before_others_can_read_it(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    node = Node(tmp_path, hub, shared_uids=[])
    node.start()
    try:
        async with started() as kernel:
            group = kernel.manager.kernel_id
            assert group is not None
            # It has not used CUDA yet, so no client of it is attached.
            assert node.group(group) is None
            refuses(node, group)
            assert (await kernel.execute(CUDA)).stream("stdout") == "0 1\n"
            await kernel.manager.restart_kernel(now=True)
            await kernel.client.wait_for_ready(timeout=60)
            refuses(node, group)
        # After its end, the id belongs to no user.
        with FakeClient(node.path, group, connection=connect(node.path, 12345)) as other:
            other.attach()
    finally:
        node.stop()


def refuses(node: Node, group: str) -> None:
    """Another user's process cannot attach under a group."""
    with (
        FakeClient(node.path, group, connection=connect(node.path, 12345)) as other,
        pytest.raises(Refused, match="belongs to another user"),
    ):
        other.attach()


@pytest.mark.usefixtures("real_kernels")
async def test_outside_of_a_hub_no_ticket_is_requested(
    monkeypatch: pytest.MonkeyPatch, scheduler: Callable[..., dict[str, Any]]
) -> None:
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    monkeypatch.setattr(ticket, "obtain", None)
    async with launched() as kernel:
        assert "GPUSHARE_TICKET_FILE" not in kernel.environment()


@pytest.mark.usefixtures("real_kernels")
async def test_a_kernel_started_without_a_scheduler_gets_its_ticket_later(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provisioner, "TICKET_TIMEOUT", 0.5)
    node = Node(tmp_path, hub)
    async with started() as kernel:
        path = path_of(kernel)
        assert not path.exists()
        node.start()
        try:
            await eventually(path.exists, "the ticket is there")
            assert (await kernel.execute(CUDA)).stream("stdout") == "0 1\n"
            assert node.user_of(kernel.manager.kernel_id) == "ada"
        finally:
            node.stop()


async def test_a_ticket_that_cannot_be_written_is_reported_and_the_kernel_starts(
    node: Node,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(ticket, "jupyter_runtime_dir", lambda: str(tmp_path / "file"))
    monkeypatch.setattr(provisioner, "TICKET_TIMEOUT", 0.5)
    async with started() as kernel:
        assert (await kernel.execute("print(6 * 7)")).stream("stdout") == "42\n"
        await eventually(lambda: "cannot write the ticket" in caplog.text, "it is said")


@pytest.mark.usefixtures("real_kernels")
async def test_another_server_continues_with_the_ticket(node: Node) -> None:
    async with launched() as kernel:
        path = path_of(kernel)
        assert isinstance(kernel.manager.provisioner, GpuShareProvisioner)
        info = await kernel.manager.provisioner.get_provisioner_info()
        assert info["gpushare"]["ticket"] == str(path)
        other = AsyncKernelManager(kernel_name="python3")
        other.kernel_id = kernel.manager.kernel_id
        successor = GpuShareProvisioner(
            kernel_id=kernel.manager.kernel_id, kernel_spec=kernel.manager.kernel_spec, parent=other
        )
        ticket.held.clear()
        await successor.load_provisioner_info(info)
        assert ticket.held == {kernel.manager.kernel_id}
        # The scheduler lost it.
        path.unlink()
        await successor.renew_ticket()
        assert path.exists()


def test_a_ticket_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "ticket"
    before = os.umask(0)
    try:
        ticket.write(path, "first")
        ticket.write(path, "second")
    finally:
        os.umask(before)
    assert path.read_text() == "second\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    (tmp_path / "folder" / "ticket").mkdir(parents=True)
    with pytest.raises(OSError, match="ticket"):
        ticket.write(tmp_path / "folder" / "ticket", "third")
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["ticket"]
    assert ticket.remove("group", path)
    assert not ticket.remove("group", path)


def test_servers_and_programs_have_separate_ticket_names() -> None:
    holder = ticket.Holder()
    assert str(os.getpid()) in holder.name
    assert holder.name.startswith("/user/ada/")
    holder.is_server()
    assert holder.name == "/user/ada/"


# --- gpushare run -----------------------------------------------------------------------------------

RUN = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
print(cuda.cuInit(0), ctypes.CDLL(None).gpushare_attached(None))
print(os.environ["GPUSHARE_GROUP"], os.environ["GPUSHARE_TICKET_FILE"], flush=True)
sys.stdin.readline()
"""


def run(**environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "jupyter_gpushare.cli.main", "run", "--"),
            *(sys.executable, "-c", RUN),
        ],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_program_in_a_terminal_gets_a_ticket_and_returns_it(node: Node) -> None:
    with run() as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "0 1\n"
        group, path = program.stdout.readline().split()
        assert node.user_of(group) == "ada"
        assert node.tickets() == {group}
        program.stdin.close()
    assert program.returncode == 0
    deadline = time.monotonic() + 60
    while node.tickets() or Path(path).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("real_kernels")
async def test_a_program_in_a_kernel_uses_the_kernels_ticket(node: Node) -> None:
    async with started() as kernel:
        path, group = path_of(kernel), kernel.manager.kernel_id
        with run(GPUSHARE_GROUP=str(group), GPUSHARE_TICKET_FILE=str(path)) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == "0 1\n"
            assert program.stdout.readline().split() == [group, str(path)]
            assert node.user_of(group) == "ada"
            program.communicate()
        # It is the kernel's to give back.
        assert path.exists()
        assert node.tickets() == {group}


def test_the_doctor_gets_a_ticket_and_returns_it(node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", "doctor", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = {finding["topic"]: finding for finding in json.loads(done.stdout)}
    assert found["scheduler"]["state"] == "ok", found["scheduler"]
    assert found["LD_PRELOAD"]["state"] == "ok", found["LD_PRELOAD"]
    assert not node.tickets()
    assert stat.S_IMODE(node.path.parent.stat().st_mode) == 0o755, "it is not made private"
