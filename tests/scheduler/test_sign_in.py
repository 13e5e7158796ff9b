# SPDX-License-Identifier: BSD-3-Clause
"""How control programs log in, and verify the scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol import client as control_module
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import (
    ControlClient,
    ControlError,
    NotAdmitted,
    SchedulerUnreachable,
    read_ticket,
    trusted_uids,
    user_name,
)
from tests.support.client import PATIENCE
from tests.support.fake_hub import FakeHub, start_node
from tests.support.fake_hub import hub as hub_running
from tests.support.scheduler import Scheduler, Start


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with hub_running() as running:
        yield running


@pytest.fixture
def node(start: Start, tmp_path: Path, hub: FakeHub) -> Scheduler:
    """A scheduler for which this process's uid says nothing."""
    return start_node(start, tmp_path, hub)


async def who(path: Path) -> list[Any]:
    """Return the user and kernel that the scheduler takes this process for; both clients agree."""
    with ControlClient(path, timeout=PATIENCE) as control:
        blocking = control.request("whoami")
    async with AsyncControlClient(path, timeout=PATIENCE) as client:
        assert await client.request("whoami") == blocking
    return [blocking["user"], blocking["kernel"]]


async def test_clients_log_in_where_required(
    node: Scheduler, scheduler_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await who(node.path) == [None, None]
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    assert await who(node.path) == ["ada", None]
    assert set(hub.asked) == {"ada-token"}
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "no-token")
    with pytest.raises(NotAdmitted):
        ControlClient(node.path, timeout=PATIENCE)
    with pytest.raises(NotAdmitted):
        await AsyncControlClient(node.path, timeout=PATIENCE).connect()
    # A scheduler of one's own never sees a token.
    hub.asked.clear()
    assert (await who(scheduler_path))[0] == user_name(os.getuid())
    assert not hub.asked


@pytest.fixture
def scheduler_path(environ: dict[str, str], tmp_path: Path, start: Start) -> Path:
    """The socket of a scheduler of one's own."""
    return start(GPUSHARE_SOCKET=str(tmp_path / "own" / "s.sock")).path


async def test_clients_send_the_ticket_named_in_the_environment(
    node: Scheduler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    with ControlClient(node.path, timeout=PATIENCE) as control:
        text = control.request("ticket", group="k")["ticket"]
    file = tmp_path / "ticket"
    monkeypatch.setenv("GPUSHARE_TICKET_FILE", str(file))
    # As long as there is none, the rest has to do.
    assert await who(node.path) == ["ada", None]
    file.write_text(text + "\n")
    file.chmod(0o600)
    assert await who(node.path) == ["ada", "k"]
    monkeypatch.delenv("JUPYTERHUB_API_TOKEN")
    assert await who(node.path) == ["ada", "k"]
    file.write_text("0" * 64)
    with (
        pytest.raises(ControlError, match="does not know this kernel's ticket"),
        ControlClient(node.path, timeout=PATIENCE) as control,
    ):
        control.request("status")


def no_ticket(file: Path) -> None:
    file.write_text("")


def open_to_others(file: Path) -> None:
    file.write_text("0" * 64)
    file.chmod(0o640)


def too_long(file: Path) -> None:
    file.write_text("0" * 128)


def a_pipe(file: Path) -> None:
    os.mkfifo(file, 0o600)


def a_link(file: Path) -> None:
    file.with_suffix(".real").write_text("0" * 64)
    file.symlink_to(file.with_suffix(".real"))


@pytest.mark.parametrize("make", [no_ticket, open_to_others, too_long, a_pipe, a_link])
def test_a_file_that_is_not_a_ticket_is_not_sent(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    file = tmp_path / "ticket"
    before = os.umask(0o077)
    try:
        make(file)
    finally:
        os.umask(before)
    with pytest.raises(NotAdmitted, match=r"ticket .* cannot be used"):
        read_ticket({"GPUSHARE_TICKET_FILE": str(file)})


def test_only_schedulers_of_trusted_users_are_used(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trusted_uids({}) == ()
    assert trusted_uids({"GPUSHARE_SCHEDULER_UID": "65534,1000"}) == (65534, 1000)
    for wrong in ("nobody", "-1", "1 2", "1,,2"):
        with pytest.raises(SchedulerUnreachable, match="not a comma-separated list of uids"):
            trusted_uids({"GPUSHARE_SCHEDULER_UID": wrong})
    # As seen from a user namespace, in which root is another user.
    monkeypatch.setattr(control_module, "peer_uid", lambda connection: 65534)
    with pytest.raises(SchedulerUnreachable, match="GPUSHARE_SCHEDULER_UID=65534"):
        ControlClient(scheduler.path)
    monkeypatch.setenv("GPUSHARE_SCHEDULER_UID", "65534")
    with ControlClient(scheduler.path) as client:
        assert client.request("whoami")["user"]


def test_a_refusal_states_the_reason(node: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "ada-token")
    with ControlClient(node.path, timeout=PATIENCE) as control:
        with pytest.raises(ControlError) as caught:
            control.request("set", quantum=1)
        assert caught.value.code == "not_allowed"
        with pytest.raises(ControlError) as caught:
            control.request("dance")
        assert caught.value.code == ""
