# SPDX-License-Identifier: BSD-3-Clause
"""A scheduler for all users of a machine: its configuration, its socket, and what systemd and it say to each other."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from jupyter_gpushare.scheduler import __main__ as process
from jupyter_gpushare.scheduler.node import config as node
from jupyter_gpushare.scheduler.protocol.client import peer_uid
from jupyter_gpushare.scheduler.server import systemd as notifying
from tests.support.client import PATIENCE, FakeClient
from tests.support.node import Activator, Place
from tests.support.scheduler import GIB, Scheduler

root_only = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return found


@pytest.fixture
def place(tmp_path: Path, environ: dict[str, str]) -> Place:
    found = Place(tmp_path, environ)
    found.write()
    return found


@pytest.fixture
def running(place: Place) -> Iterator[Callable[..., Scheduler]]:
    """Start node schedulers that end with the test."""
    started = []

    def start(*options: str, **settings: Any) -> Scheduler:
        place.write(**settings)
        started.append(Scheduler(place.environ, place.log, "--config", str(place.config), *options))
        return started[-1]

    yield start
    for one in started:
        one.close()


# --- Its configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "c.NodeScheduler.sokcet = '/x'",
            "unknown setting NodeScheduler.sokcet; did you mean socket?",
        ),
        (
            "c.NodeSheduler.socket = '/x'",
            "unknown section NodeSheduler; did you mean NodeScheduler?",
        ),
        ("c.NodeScheduler.socket = 'x.sock'", "socket must be an absolute path, not 'x.sock'"),
        ("c.NodeScheduler.socket = '/' + 'x' * 200", "but the maximum is 107"),
        ("c.NodeScheduler.socket_mode = '0777'", "socket_mode"),
        ("c.NodeScheduler.socket_group = 'no-such-group'", "unknown group 'no-such-group'"),
        ("c.NodeScheduler.shared_uids = [-1]", "shared_uids"),
        ("c.NodeScheduler.allowed_groups = ['']", "the name of a group is empty"),
        ("c.NodeScheduler.hub_api_url = 'hub:8081'", "hub_api_url must be an address"),
        ("c.NodeScheduler.shares = {'ada': {'limit': 1}}", "'user:NAME' or 'team:NAME'"),
        ("c.NodeScheduler.shares = {'user:ada': {'limit': 7}}", "fraction of a GPU's time"),
        ("c.NodeScheduler.quantum = 'soon'", "invalid quantum 'soon'"),
        ("c.NodeScheduler.reserve = 'much'", "invalid size 'much'"),
        ("c.NodeScheduler.record = '/nowhere/at/all'", "does not exist"),
        ("c.NodeScheduler.policy = 'chaos'", "chaos"),
        ("c.NodeScheduler.", "line 1"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_mistake_in_the_configuration_is_named_in_one_sentence(
    place: Place,
    line: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in place.environ.items():
        monkeypatch.setenv(name, value)
    place.config.write_text(f"c.NodeScheduler.state_dir = {str(place.state)!r}; {line}\n")
    options = [] if "socket =" in line else ["--socket", str(place.socket)]
    assert process.main(["--config", str(place.config), *options]) == 2
    text = capsys.readouterr().err
    assert said in text
    assert text.startswith("gpushare: ")
    assert text.count("\n") == 1
    assert not place.socket.exists()


def test_a_configuration_may_be_json(place: Place) -> None:
    place.config = place.config.with_suffix(".json")
    place.config.write_text('{"NodeScheduler": {"shares": {"user:ada": {"memory": "1GiB"}}}}')
    read = node.load(place.config)
    assert read.entitlements()["user:ada"].entitlement.memory == GIB
    place.config.write_text("{")
    assert place.fail()[0] == 2


def test_no_setting_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty.py"
    empty.touch()
    read = node.load(empty)
    assert (read.socket, read.state_dir) == (node.SOCKET, node.STATE_DIR)
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/private/gpushare:/elsewhere")
    assert node.load(empty).state_dir == "/var/lib/private/gpushare"


def test_a_configuration_that_its_users_may_write_is_refused(place: Place) -> None:
    place.config.chmod(0o666)
    status, text = place.fail()
    assert status == 2
    assert "chmod go-w" in text
    place.config.unlink()
    assert "No such file" in place.fail()[1]
    place.config.mkdir()
    assert "is not a file" in place.fail()[1]


def test_every_setting_states_its_default() -> None:
    for name, trait in node.NodeScheduler.class_own_traits(config=True).items():
        assert "(default: " in trait.help, name


def test_settings_apply_and_options_override_them(running: Callable[..., Scheduler]) -> None:
    one = running("--policy", "fcfs", quantum=2.5, policy="tgs", reserve="1GiB", record="")
    with one.control() as control:
        status = control.request("status")["status"]
    assert status["settings"]["quantum"] == 2.5
    assert status["settings"]["policy"] == "fcfs"
    assert status["gpus"][0]["reserve"] == GIB


# --- Entitlements, reloaded -------------------------------------------------------------------------


def shares(place: Place) -> dict[str, Any]:
    found = place.ask("shares")["shares"]
    return {
        whose: (held["limit"], held["memory"], held["members"]) for whose, held in found.items()
    }


def test_entitlements_apply_from_the_start_and_are_reloaded(
    place: Place, running: Callable[..., Scheduler]
) -> None:
    one = running(
        shares={
            "user:ada": {"limit": 0.5},
            "team:course": {"memory": "4GiB"},
            "team:named": {"members": ["ben"], "limit": 0.25},
        }
    )
    before = {
        "user:ada": (0.5, 0, []),
        "team:course": (0, 4 * GIB, []),
        "team:named": (0.25, 0, ["ben"]),
    }
    assert shares(place) == before
    place.ask("entitle", whose="user:cy", limit=0.125)
    # A mistake changes nothing.
    place.write(shares={"user:ada": {"limit": 7}})
    one.process.send_signal(signal.SIGHUP)
    until(lambda: "the configuration was not changed" in one.log)
    assert shares(place) == {**before, "user:cy": (0.125, 0, [])}
    # What was taken away does not hold any more; what an administrator said at run time does.
    place.write(shares={"user:ada": {"limit": 0.75}}, quantum=3)
    one.process.send_signal(signal.SIGHUP)
    until(lambda: "will be applied at the next start" in one.log)
    assert shares(place) == {"user:ada": (0.75, 0, []), "user:cy": (0.125, 0, [])}
    assert "quantum will be applied at the next start" in one.log


def test_prices_are_read_again(place: Place, running: Callable[..., Scheduler]) -> None:
    one = running(prices={"gpu_hour": 1})

    def prices() -> Any:
        return place.ask("report")["report"]["prices"]

    assert (prices()["gpu_hour"], prices()["currency"]) == (1, "")
    place.write(prices={"gpu_hour": -1})
    one.process.send_signal(signal.SIGHUP)
    until(lambda: "'gpu_hour' must be a number, 0 or more, not -1" in one.log)
    assert prices()["gpu_hour"] == 1
    place.write(prices={"kwh": 0.5, "currency": "EUR"})
    one.process.send_signal(signal.SIGHUP)
    until(lambda: prices()["kwh"] == 0.5)
    assert (prices()["gpu_hour"], prices()["currency"]) == (0, "EUR")
    place.write()
    one.process.send_signal(signal.SIGHUP)
    until(lambda: prices() is None)


# --- Its socket -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "bits"), [("0660", 0o660), ("0666", 0o666)])
def test_the_socket_is_open_to_its_users(
    place: Place, running: Callable[..., Scheduler], mode: str, bits: int
) -> None:
    one = running(socket_mode=mode, socket_group=str(os.getgid()))
    found = place.socket.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (bits, os.getgid())
    assert stat.S_IMODE(place.socket.parent.stat().st_mode) == 0o755
    assert stat.S_IMODE(place.state.stat().st_mode) == 0o700
    assert one.close() == 0
    assert not place.socket.exists()


def test_only_one_scheduler_uses_a_socket_or_a_state_folder(
    place: Place, running: Callable[..., Scheduler]
) -> None:
    running()
    status, text = place.fail("--socket", str(place.folder / "run" / "other.sock"))
    assert (status, "another scheduler" in text) == (75, True)
    place.write(state_dir=str(place.folder / "other"))
    assert place.fail()[0] == 75


def test_another_program_that_serves_the_socket_is_left_alone(place: Place) -> None:
    place.socket.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(place.socket))
        other.listen()
        status, text = place.fail()
        assert status == 75
        assert "systemctl stop gpushare.socket" in text
        other.setblocking(False)
        assert other.accept()[0].close() is None, "it is still the one at the path"


def test_users_do_not_start_a_scheduler_in_place_of_the_nodes(
    place: Place, running: Callable[..., Scheduler]
) -> None:
    one = running()
    one.kill()
    assert place.socket.is_socket(), "left over"
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.scheduler"],
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "the socket of the node's scheduler" in done.stderr
    assert stat.S_IMODE(place.socket.parent.stat().st_mode) == 0o755
    # The service itself begins again.
    running()
    assert place.ask("whoami")["node"]


def test_a_state_folder_that_others_may_write_is_refused(place: Place) -> None:
    place.state.mkdir()
    place.state.chmod(0o777)
    status, text = place.fail()
    assert status == 2
    assert "NodeScheduler.state_dir" in text


def test_without_a_driver_the_exit_code_asks_for_a_retry(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "find_driver", lambda: None)
    assert process.main(["--config", str(place.config)]) == 69
    assert "nvidia-smi" in capsys.readouterr().err


def test_a_service_waits_for_the_driver_and_reports_it_once(
    place: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = iter([None] * 8)
    monkeypatch.setattr(process, "find_driver", lambda: next(looks, mock.sentinel.driver))
    monkeypatch.setattr(process, "FIRST_LOOK", 0.001)
    told: list[str] = []
    monkeypatch.setattr(notifying, "notify", lambda *states: told.append("\n".join(states)))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    before = signal.getsignal(signal.SIGHUP)
    try:
        # Its status makes systemd start it again, now with the driver.
        assert process.main(["--config", str(place.config)]) == 69
    finally:
        signal.signal(signal.SIGHUP, before)
    assert told[0].startswith("READY=1\nSTATUS=No NVIDIA driver found")
    # The pauses grow: 1, 2, 4, ... 64 ms, and in each it is told that the process lives, every 10 ms at least.
    assert {*told[1:]} == {"WATCHDOG=1"}
    assert len(told) >= 14
    assert len(caplog.records) == 1


# --- systemd ----------------------------------------------------------------------------------------


@pytest.fixture
def activator(place: Place) -> Iterator[Callable[..., Activator]]:
    made: list[Activator] = []

    def make(**options: Any) -> Activator:
        made.append(Activator(place, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_systemd_is_notified_of_each_state(
    place: Place, activator: Callable[..., Activator]
) -> None:
    one = activator()
    one.start()
    one.told("WATCHDOG=1")
    assert one.process is not None
    one.process.send_signal(signal.SIGHUP)
    assert re.search(r"^MONOTONIC_USEC=\d+$", one.told("RELOADING=1"), re.M)
    one.told("READY=1")
    assert one.stop() == 0
    one.told("STOPPING=1")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_refuses_no_client(
    place: Place, activator: Callable[..., Activator], end: signal.Signals
) -> None:
    one = activator()
    one.start()
    gpu = place.ask("status")["status"]["gpus"][0]["uuid"]
    with FakeClient(place.socket, "a", gpu) as a:
        a.attach()
        a.grow(6 * GIB)
        a.run()
        one.stop(end)
        a.expect_closed()
        # A client that connects now waits for the next scheduler.
        with (
            FakeClient(place.socket, "a", gpu) as again,
            FakeClient(place.socket, "b", gpu) as newcomer,
        ):
            again.usage, again.lease = a.usage, a.lease
            one.start()
            again.attach(reattach=True, leased=True, busy=True)
            newcomer.attach()
            groups = {group["id"]: group for group in place.ask("status")["status"]["groups"]}
    assert groups.keys() == {"a", "b"}
    assert groups["a"]["state"] == "running"
    assert groups["a"]["gpus"][0]["resident"] == 6 * GIB


def test_a_socket_passed_to_another_process_is_not_used(
    place: Place, activator: Callable[..., Activator]
) -> None:
    one = activator()
    one.start(pid="1", ready=False)
    assert one.process is not None
    # It would create the socket itself, but a scheduler answers there.
    assert one.process.wait(PATIENCE) == 75


def test_a_descriptor_that_is_not_one_listening_socket_is_refused(
    place: Place, activator: Callable[..., Activator]
) -> None:
    one = activator()
    one.start(count="2", ready=False)
    assert one.process is not None
    assert one.process.wait(PATIENCE) == 2
    one.listener.close()
    one.listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.start(ready=False)
    assert one.process.wait(PATIENCE) == 2
    said = place.log.read_text()
    assert "2 sockets were passed" in said
    assert "Accept=no" in said


def test_a_socket_that_is_not_the_configured_one_is_refused(
    place: Place, activator: Callable[..., Activator]
) -> None:
    one = activator()
    place.write(socket=str(place.folder / "other.sock"))
    one.start(ready=False)
    assert one.process is not None
    assert one.process.wait(PATIENCE) == 2
    assert "remove one of them" in place.log.read_text()


@root_only
@pytest.mark.parametrize(("kind", "seen"), [(notifying.Passed, 0), (socket.socket, 65534)])
async def test_clients_see_the_user_that_created_the_socket(
    tmp_path: Path, kind: type[socket.socket], seen: int
) -> None:
    path = str(tmp_path / "s")
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen()
    listener = kind(fileno=made.detach())
    os.seteuid(65534)
    try:
        server = await asyncio.get_running_loop().create_unix_server(
            asyncio.Protocol, sock=listener
        )
    finally:
        os.seteuid(0)
    async with server:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            assert peer_uid(client) == seen


def test_without_systemd_no_notification_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    notifying.notify("READY=1")
    assert notifying.watchdog_period() is None
    assert notifying.activated({}) is None
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/at/all")
    notifying.notify("READY=1")
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    assert notifying.watchdog_period() == 1.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert notifying.watchdog_period() is None


def test_an_abstract_address_of_systemd_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as news:
        name = f"gpushare-test-{os.getpid()}"
        news.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notifying.notify("READY=1", "STATUS=well")
        assert news.recv(100) == b"READY=1\nSTATUS=well"


def units(root: Path) -> dict[str, configparser.ConfigParser]:
    found = {}
    for path in sorted((root / "deploy" / "systemd").glob("gpushare.s*")):
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path)
        found[path.name] = parser
    return found


def test_the_units_match_each_other_and_the_scheduler(root: Path) -> None:
    found = units(root)
    service, listener = found["gpushare.service"], found["gpushare.socket"]
    assert listener["Socket"]["ListenStream"] == node.SOCKET
    assert listener["Socket"]["SocketMode"] in ("0660", "0666")
    assert listener["Socket"]["DirectoryMode"] == "0755"
    # A restart of the service must leave the socket.
    assert "PartOf" not in listener["Unit"]
    assert service["Unit"]["Requires"] == "gpushare.socket"
    assert service["Service"]["Type"] == "notify"
    assert service["Service"]["StateDirectory"] == Path(node.STATE_DIR).name
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "DynamicUser": "yes",
        "CapabilityBoundingSet": "",
    }.items():
        assert service["Service"][name] == value
    command = service["Service"]["ExecStart"].split()
    assert command[1:] == ["scheduler", "--config", "/etc/gpushare/gpushare.py"]


def test_the_sample_configuration_is_valid_and_sets_nothing(root: Path, tmp_path: Path) -> None:
    sample = root / "deploy" / "systemd" / "gpushare.py"
    copy = tmp_path / "gpushare.py"
    copy.write_text(sample.read_text())
    assert node.load(copy).shares == {}
    # With what it proposes, too.
    text = re.sub(r"^# (c\.|    |\})", r"\1", sample.read_text(), flags=re.M)
    assert text != sample.read_text()
    copy.write_text(text)
    read = node.load(copy)
    assert read.shared_uids == [1000]
    assert "team:course" in read.shares


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_units(root: Path, tmp_path: Path) -> None:
    for path in (root / "deploy" / "systemd").glob("gpushare.s*"):
        text = path.read_text().replace("/opt/gpushare/bin/gpushare", sys.executable)
        (tmp_path / path.name).write_text(text)
    for command in (["verify"], ["security", "--offline=true", "--threshold=25"]):
        files = [str(tmp_path / "gpushare.service")]
        if command == ["verify"]:
            files.append(str(tmp_path / "gpushare.socket"))
        done = subprocess.run(
            ["systemd-analyze", *command, *files], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not (command == ["verify"] and done.stderr), done.stderr
