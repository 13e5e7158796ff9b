# SPDX-License-Identifier: BSD-3-Clause
"""A machine with real systemd, installed as the documentation says, whose users sign in to a JupyterHub by PAM.

Two users share the GPU and a third one attacks, while the scheduler is restarted, killed and stopped.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import re
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.attack import Attack, attacking
from tests.acceptance.machine import INSTALLED, CannotBoot, Machine, documented
from tests.support.hub.hub import Hub, Seat, until
from tests.support.hub.kernel import Kernel
from tests.support.hub.programs import ALLOCATE, CHECK, PLOT
from tests.support.lab import PATIENCE

pytestmark = pytest.mark.slow

SOCKET = "/run/gpushare/scheduler.sock"
#: What the documentation has users set for its simulated GPU, and what these tests need in addition.
SIMULATED = "GPUSHARE_SIM=1 GPUSHARE_SIM_NAME=node GPUSHARE_SIM_MEMORY="
DOCUMENTED, USED = f"{SIMULATED}1GiB", f"{SIMULATED}128MiB GPUSHARE_SIM_CONTEXT=2MiB"

NOTEBOOKS = {"ada": "analytical-engine.ipynb", "grace": "compiler.ipynb"}
HOSTILE = "mallory"
PASSWORDS = {user: f"the word of {user}" for user in (*NOTEBOOKS, HOSTILE)}

HUB_TOKEN = "a-token-of-the-page"


class MachineHub(Hub):
    """A JupyterHub that is a service of the machine; its users are the machine's."""

    def __init__(self, machine: Machine, folder: Path, root: Path) -> None:
        self._machine = machine
        environment = dict(pair.split("=") for pair in USED.split())
        super().__init__(
            folder,
            root,
            {},
            settings={
                "JupyterHub": {"authenticator_class": "pam", "spawner_class": "localprocess"},
                "PAMAuthenticator": {"allowed_users": [*PASSWORDS]},
                "Spawner": {
                    "args": [],
                    # As docs/how-to/admin/jupyterhub-systemd.md says for users of the machine.
                    "environment": {"GPUSHARE_SOCKET": SOCKET, **environment},
                },
            },
        )
        self._page_url = f"http://127.0.0.1:{self.reserve()}"
        # It is started later. The Hub need not wait for it.
        page = {"name": "gpushare", "url": self._page_url, "api_token": HUB_TOKEN, "timeout": 1}
        self._services.append(page)
        self.page_url = f"{self._page_url}/services/gpushare/"

    def _start(self, config: Path) -> None:
        # The machine has a /tmp of its own.
        for file in (config, self.folder / "settings.json"):
            self._machine.write(str(file), file.read_text())
        self._machine.run(
            *("systemd-run", "--unit=jupyterhub", f"--working-directory={self.folder}"),
            f"--setenv=PATH={INSTALLED / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            *(sys.executable, "-m", "jupyterhub", "--config", str(config)),
        )

    def _runs(self) -> bool:
        return self._machine.property("jupyterhub", "ActiveState") == "active"

    def _stop(self) -> None:
        self._machine.attempt("systemctl", "stop", "jupyterhub")

    @property
    def log(self) -> str:
        """What the Hub and the users' servers have written so far."""
        return self._machine.journal("jupyterhub")

    def sign_in(self, user: str, password: str) -> str:
        """Sign in as a browser does, and return the address of the page that follows."""
        cookies = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))
        login = f"{self.url}/hub/login"
        browser.open(login, timeout=PATIENCE).close()
        (xsrf,) = {cookie.value for cookie in cookies if cookie.name == "_xsrf"}
        form = {"username": user, "password": password, "_xsrf": xsrf}
        body = urllib.parse.urlencode(form).encode()
        with browser.open(login, body, timeout=PATIENCE) as page:
            return str(page.url)


def shell(machine: Machine, commands: str) -> None:
    """Run commands of the documentation as an administrator does."""
    machine.run("bash", "-exc", commands)


def status(machine: Machine) -> dict[str, Any]:
    """Return what the administrator's command shows."""
    command = ("env", f"GPUSHARE_SOCKET={SOCKET}", str(INSTALLED / "bin" / "gpushare"))
    return json.loads(machine.run(*command, "status", "--json"))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def machine(root: Path) -> Iterator[Machine]:
    """Return a machine with three users, and the service as workstation.md installs it; it finds no GPU yet."""
    with tempfile.TemporaryDirectory(prefix="gs-root-") as folder, contextlib.ExitStack() as stack:
        machine = Machine(Path(folder) / "machine", root)
        try:
            stack.enter_context(machine)
        except CannotBoot as error:
            pytest.skip(str(error))
        machine.add_users(PASSWORDS)
        (install,) = documented(
            root / "docs" / "how-to" / "admin" / "workstation.md", "Install the service"
        )
        pip, _, rest = install.partition("\n")
        assert f"{INSTALLED}/bin/pip install" in pip
        shell(machine, rest)
        yield machine


@pytest.fixture(scope="module")
def service(root: Path, machine: Machine) -> Machine:
    """Return the machine with a simulated GPU, as docs/how-to/admin/workstation.md has it."""
    (simulate,) = documented(
        root / "docs" / "how-to" / "admin" / "workstation.md", "Try the service without a GPU"
    )
    assert DOCUMENTED in simulate
    shell(machine, simulate.replace(DOCUMENTED, USED))
    until(lambda: machine.property("gpushare", "ActiveState") == "active")
    return machine


@pytest.fixture(scope="module")
def hub(
    service: Machine, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MachineHub]:
    with MachineHub(service, tmp_path_factory.mktemp("hub"), root) as hub:
        yield hub


@pytest.fixture(scope="module")
def seats(hub: MachineHub) -> dict[str, Seat]:
    """Return the users' servers, which run because their users signed in."""
    seats = {user: hub.seat(user) for user in NOTEBOOKS}
    for user in seats:
        hub.sign_in(user, PASSWORDS[user])
    for seat in seats.values():
        seat.shared_status()
    return seats


@pytest.fixture
def kernels(seats: dict[str, Seat]) -> Iterator[dict[str, Kernel]]:
    with (
        Kernel(seats["ada"], NOTEBOOKS["ada"]) as ada,
        Kernel(seats["grace"], NOTEBOOKS["grace"]) as grace,
    ):
        yield {"ada": ada, "grace": grace}


def test_a_service_without_a_driver_waits_and_logs_one_line(machine: Machine) -> None:
    until(lambda: "no NVIDIA driver" in machine.journal("gpushare"))
    assert machine.property("gpushare", "ActiveState") == "active"
    assert "NVIDIA" in machine.property("gpushare", "StatusText")
    assert machine.property("gpushare", "NRestarts") == "0"
    assert len(re.findall("no NVIDIA driver", machine.journal("gpushare"))) == 1


def test_the_service_has_its_own_user_and_no_privileges(service: Machine) -> None:
    pid = service.property("gpushare", "MainPID")
    process = dict(
        line.split(":\t", 1)
        for line in service.run("cat", f"/proc/{pid}/status").splitlines()
        if ":\t" in line
    )
    (uid,) = {*process["Uid"].split()}
    assert int(uid) >= 61184
    assert {int(process[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert process["NoNewPrivs"] == "1"
    assert process["Seccomp"] == "2"
    assert service.run("stat", "-c", "%a %U", SOCKET) == "666 root\n"
    assert service.run("stat", "-Lc", "%a %u", "/var/lib/gpushare") == f"700 {uid}\n"


def test_a_mistake_in_the_configuration_is_logged_and_changes_nothing(service: Machine) -> None:
    config = "/etc/gpushare/gpushare.py"
    before, pid = service.run("cat", config), service.property("gpushare", "MainPID")
    service.write(config, f"{before}\nc.NodeScheduler.shares = {{'user:ada': {{'memori': 1}}}}\n")
    service.run("systemctl", "reload", "gpushare")
    until(lambda: "memori" in service.journal("gpushare"), lambda: service.journal("gpushare"))
    service.write(config, before)
    service.run("systemctl", "reload", "gpushare")
    assert service.property("gpushare", "MainPID") == pid


def test_only_the_right_password_signs_in(hub: MachineHub) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        hub.sign_in("ada", PASSWORDS["grace"])
    with pytest.raises(urllib.error.HTTPError, match="403"):
        hub.sign_in("nobody-here", PASSWORDS["ada"])


def attack(
    machine: Machine, root: Path, kernels: dict[str, Kernel]
) -> AbstractContextManager[Attack]:
    """Attack as the third user."""
    python = machine.command("env", f"PYTHONPATH={root}", sys.executable, user=HOSTILE)
    return attacking(python, SOCKET, kernels, [*NOTEBOOKS.values()])


def restart(machine: Machine) -> None:
    machine.run("systemctl", "restart", "gpushare")


def crash(machine: Machine) -> None:
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGKILL", "gpushare")


def hang(machine: Machine) -> None:
    machine.run("systemctl", "kill", "--kill-whom=main", "--signal=SIGSTOP", "gpushare")


def do_nothing(machine: Machine) -> None:
    pass


#: What happens to the scheduler in each round.
EVENTS = (do_nothing, restart, crash, do_nothing, hang, restart)


def is_replaced(machine: Machine, pid: str) -> bool:
    """Return whether the service has another process than this one, and that process is ready."""
    if machine.property("gpushare", "MainPID") in (pid, "0"):
        return False
    return machine.property("gpushare", "ActiveState") == "active"


def check_rounds(machine: Machine, kernels: dict[str, Kernel]) -> None:
    """Check each user's data while the scheduler is replaced in each way.

    Each notebook holds three quarters of the GPU, so each round moves the data of both.
    """
    for event in EVENTS:
        pid = machine.property("gpushare", "MainPID")
        cells = {user: kernel.begin(PLOT + CHECK) for user, kernel in kernels.items()}
        event(machine)
        for user, kernel in kernels.items():
            printed = kernel.end(cells[user]).splitlines()
            # On a busy machine, a scheduler may take longer to start than a waiting cell keeps quiet.
            shown = [line for line in printed if "gpushare: no scheduler answers" not in line]
            assert shown == ["as if alone"], event.__name__
            assert shown == printed or event is not do_nothing
        if event is not do_nothing:
            until(lambda pid=pid: is_replaced(machine, pid))


def test_two_users_of_pam_share_while_a_third_one_attacks(
    service: Machine, kernels: dict[str, Kernel], root: Path
) -> None:
    for kernel in kernels.values():
        kernel.run(ALLOCATE)
    with attack(service, root, kernels) as hostile:
        check_rounds(service, kernels)
        hostile.end()
    groups = {group["id"]: group for group in status(service)["groups"]}
    for user, kernel in kernels.items():
        assert groups[kernel.id]["user"] == user
        assert groups[kernel.id]["name"] == NOTEBOOKS[user]
        assert not groups[kernel.id]["preferences"]["frozen"]
    assert not [p for p in status(service)["processes"] if p["code"] == "outside"]


def test_users_learn_nothing_about_each_other(
    seats: dict[str, Seat], kernels: dict[str, Kernel]
) -> None:
    for kernel in kernels.values():
        kernel.run(ALLOCATE + PLOT + CHECK)
    for user, other in (("ada", "grace"), ("grace", "ada")):
        told = json.dumps(seats[user].status())
        assert NOTEBOOKS[user] in told
        assert not any(word in told for word in (NOTEBOOKS[other], other, kernels[other].id))


@pytest.fixture(scope="module")
def page(service: Machine, hub: MachineHub, root: Path) -> Machine:
    """Return the machine with the service of the Hub's page, as docs/how-to/admin/hub-page.md installs it."""
    install, _ = documented(
        root / "docs" / "how-to" / "admin" / "hub-page.md", "Run it with systemd"
    )
    for old, new in (
        ("JUPYTERHUB_API_TOKEN=…", f"JUPYTERHUB_API_TOKEN={HUB_TOKEN}"),
        ("http://hub:8081/hub/api", hub.api),
        ("http://0.0.0.0:8990/services/gpushare/", hub.page_url),
    ):
        assert install.count(old) == 1
        install = install.replace(old, new)
    shell(service, install.replace("journalctl -u", "journalctl --no-pager -u"))
    return service


def test_the_page_of_all_gpus_runs_as_a_service(
    page: Machine, hub: MachineHub, kernels: dict[str, Kernel]
) -> None:
    kernels["ada"].run(ALLOCATE)

    def names() -> Any:
        # Through the proxy, with the rights of the tests' own token.
        state = hub.fetch(f"{hub.url}/services/gpushare/api/state", None, hub.token)
        return NOTEBOOKS["ada"] in json.dumps(state)

    until(suppressing(names), lambda: page.journal("gpushare-hub"))
    assert page.property("gpushare-hub", "NRestarts") == "0"


def suppressing(probe: Callable[[], Any]) -> Callable[[], Any]:
    """Let a probe return None where a server does not answer yet."""

    def probe_or_none() -> Any:
        with contextlib.suppress(OSError):
            return probe()

    return probe_or_none


def test_uninstalling_removes_everything(page: Machine, root: Path) -> None:
    _, remove_page = documented(
        root / "docs" / "how-to" / "admin" / "hub-page.md", "Run it with systemd"
    )
    (remove,) = documented(
        root / "docs" / "how-to" / "admin" / "jupyterhub-systemd.md", "Remove it"
    )
    shell(page, remove_page)
    page.run("systemctl", "disable", "--now", "gpushare.socket", "gpushare.service")
    commands = remove.splitlines()
    assert commands.pop().startswith("pip uninstall jupyter-gpushare")
    shell(page, "\n".join(commands))
    found = page.run(
        *("find", "/etc", "/run", "/var", "/opt", "-name", "*gpushare*"),
        *("-not", "-path", "/etc/tmpfiles.d/*"),
    )
    assert found == ""
    # systemd may still remember the names of units that it does not have.
    loaded = ("systemctl", "list-units", "--all", "--no-legend", "--state=loaded,active,failed")
    assert page.run(*loaded, "gpushare*") == ""
