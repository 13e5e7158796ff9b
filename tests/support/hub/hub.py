# SPDX-License-Identifier: BSD-3-Clause
"""A real JupyterHub with its real proxy, and the servers that it starts for its users."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.lab import PATIENCE, WITH_LAB, WITHOUT_LAB
from tests.support.lab_page import EDITORS, LEAN, NEWS, NO_NEWS, STEADY_CURSOR

PROXY = Path(__file__).parents[2] / "hub" / "node_modules" / ".bin" / "configurable-http-proxy"

#: What everybody signs in with.
PASSWORD = "a-word-to-pass"

USERS = ("ada", "grace")
ADMIN = "hedy"

CONFIG = """
import json
from pathlib import Path

for place, settings in json.loads(Path({settings!r}).read_text()).items():
    c[place].update(settings)
"""


def until(probe: Callable[[], Any], says: Callable[[], str] = str, pause: float = 0.05) -> Any:
    """Return what the probe finds, as soon as it is something; ``says`` tells why it is not."""
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, f"it did not happen in time: {says()}"
        time.sleep(pause)
    return found


class Hub:
    """A JupyterHub on loopback; it ends, with all servers, with the ``with`` block.

    Its users are `USERS`, and `ADMIN` who may administer the GPUs. All servers run as the user that runs the tests.

    Parameters
    ----------
    folder
        A private folder: configuration, log, and the users' homes.
    root
        The repository.
    environ
        The environment of the users' servers, beside this process's own.
    roles
        Further roles.
    page
        Options of the page of all GPUs, which the Hub starts as its service; None: there is none.
    services
        Further services.
    before
        What stands before the command that starts a user's server.
    uids
        The owners of the users' homes, where that is not the user that runs the tests.
    settings
        Configuration that replaces what is set here, by class.
    browsed
        Whether users open JupyterLab. Otherwise, their servers do not load it, which takes half of the time of a start.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        environ: Mapping[str, str],
        *,
        roles: Sequence[Mapping[str, Any]] = (),
        page: Sequence[str] | None = None,
        services: Sequence[Mapping[str, Any]] = (),
        before: Sequence[str] = (),
        uids: Mapping[str, int] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        browsed: bool = True,
    ) -> None:
        if not PROXY.exists():
            pytest.fail("JupyterHub's proxy is not installed: run `make .venv/.stamps/proxy`")
        self.folder = folder
        self._root = root
        self._ports: list[socket.socket] = []
        public, api, hub = (self.reserve() for _ in range(3))
        self.url = f"http://127.0.0.1:{public}"
        self.api = f"http://127.0.0.1:{hub}/hub/api"
        self.token = secrets.token_hex(32)
        self._environ = environ
        tests = {"name": "tests", "api_token": self.token}
        self._services: list[Mapping[str, Any]] = [tests, *services]
        if page is not None:
            self._services.append(self._page(page))
        self._roles = [*roles, TESTS]
        self._before = before
        self._uids = uids or {}
        self._settings = settings or {}
        self._browsed = browsed
        self._proxy_api = f"http://127.0.0.1:{api}"
        self._log = (folder / "log").open("wb")
        self.process: subprocess.Popen[bytes] | None = None

    def reserve(self) -> int:
        """Return a port that no other program is given by chance until this ends."""
        # Bound: a server may bind it too, because it reuses addresses.
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        self._ports.append(reserved)
        return int(reserved.getsockname()[1])

    def _page(self, options: Sequence[str]) -> dict[str, Any]:
        command = [sys.executable, "-m", "jupyter_gpushare.cli.main", "hub", *options]
        return {
            "name": "gpushare",
            "url": f"http://127.0.0.1:{self.reserve()}",
            "command": command,
            "environment": {**self._environ, "PYTHONPATH": str(self._root)},
            "oauth_client_allowed_scopes": ["custom:gpushare:read", "custom:gpushare:admin"],
            "oauth_no_confirm": True,
        }

    def home(self, user: str) -> Path:
        """Return a user's home."""
        return self.folder / "homes" / user

    def _configure(self) -> Path:
        config: dict[str, dict[str, Any]] = {
            "JupyterHub": {
                "admin_access": True,
                "authenticator_class": "dummy",
                "bind_url": self.url,
                "cookie_secret_file": str(self.folder / "cookie_secret"),
                "custom_scopes": SCOPES,
                "db_url": "sqlite://",
                "hub_bind_url": self.api.removesuffix("/hub/api"),
                "load_roles": self._roles,
                "services": self._services,
                "spawner_class": "simple",
            },
            "ConfigurableHTTPProxy": {
                "api_url": self._proxy_api,
                "auth_token": secrets.token_hex(32),
                "command": [str(PROXY)],
                "pid_file": str(self.folder / "proxy.pid"),
            },
            "DummyAuthenticator": {
                "admin_users": [ADMIN],
                "allowed_users": [*USERS, ADMIN],
                "password": PASSWORD,
            },
            "SimpleLocalProcessSpawner": {"home_dir_template": str(self.home("{username}"))},
            "Spawner": {
                "args": ["--allow-root"],
                "cmd": [*self._before, sys.executable, "-m", "jupyterhub.singleuser"],
                "default_url": "/lab",
                "environment": {
                    "JUPYTER_PATH": str(self.folder / "path"),
                    "PYTHONPATH": str(self._root),
                    **self._environ,
                },
                "server_token_scopes": [
                    "users:activity!user",
                    "access:servers!server",
                    "read:users:groups!user",
                    "custom:gpushare:admin",
                    "custom:gpushare:read",
                ],
                "start_timeout": int(PATIENCE),
                "http_timeout": int(PATIENCE),
            },
        }
        for place, settings in self._settings.items():
            config.setdefault(place, {}).update(settings)
        # The panel as it was built here, whatever is installed.
        (self.folder / "path" / "labextensions").mkdir(parents=True)
        built = self._root / "jupyter_gpushare" / "labextension"
        (self.folder / "path" / "labextensions" / "jupyter-gpushare").symlink_to(built)
        for user in (*USERS, ADMIN):
            server: dict[str, Any] = {
                "LabApp": {"expose_app_in_browser": True},
                "ServerApp": {"jpserver_extensions": WITH_LAB if self._browsed else WITHOUT_LAB},
            }
            for name, content in (
                ("jupyter_server_config.json", server),
                ("labconfig/page_config.json", LEAN),
                (f"lab/user-settings/{NEWS}.jupyterlab-settings", NO_NEWS),
                (f"lab/user-settings/{EDITORS}.jupyterlab-settings", STEADY_CURSOR),
            ):
                file = self.home(user) / ".jupyter" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(content))
            if uid := self._uids.get(user):
                for path in (self.home(user), *self.home(user).rglob("*")):
                    os.chown(path, uid, uid)
        file = self.folder / "settings.json"
        file.write_text(json.dumps(config))
        python = self.folder / "jupyterhub_config.py"
        python.write_text(CONFIG.format(settings=str(file)))
        return python

    def _start(self, config: Path) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSHARE_", "JUPYTER"))}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub", "--config", str(config)],
            cwd=self.folder,
            # Node.js may be there in the tests' environment alone.
            env={
                **kept,
                "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(self._root),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def _stop(self) -> None:
        if self.process is None or not self._runs():
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(PATIENCE)

    def __enter__(self) -> Hub:
        self._start(self._configure())
        try:
            until(self._answers, lambda: self.log)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        assert self._runs(), self.log
        # Both the Hub and, through the proxy, its way to the users.
        for url in (self.api, f"{self.url}/hub/api"):
            try:
                with urllib.request.urlopen(f"{url}/", timeout=PATIENCE):
                    pass
            except OSError:
                return False
        return True

    def __exit__(self, *_: object) -> None:
        self._stop()
        for reserved in self._ports:
            reserved.close()
        self._log.close()

    @property
    def log(self) -> str:
        """What it and the users' servers have written so far."""
        return (self.folder / "log").read_text(errors="replace")

    def ask(self, path: str, body: Any = None, *, method: str | None = None) -> Any:
        """Ask the Hub's API, with all rights."""
        return self.fetch(f"{self.api}/{path}", body, self.token, method=method)

    def fetch(self, url: str, body: Any, token: str, *, method: str | None = None) -> Any:
        """Ask an address that takes the Hub's tokens, and return the JSON that it answers."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url, data, {"Authorization": f"token {token}"}, method=method
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            text = response.read()
        return json.loads(text) if text else None

    def seat(self, user: str) -> Seat:
        """Return a user's server, which may not run yet."""
        return Seat(self, user)


SCOPES = {
    "custom:gpushare:admin": {"description": "Administer the GPUs"},
    "custom:gpushare:read": {"description": "See who uses the GPUs"},
}

#: What the tests do by the Hub's API.
TESTS = {
    "name": "tests",
    "scopes": ["admin:users", "admin:servers", "access:servers", "custom:gpushare:admin"],
    "services": ["tests"],
}

#: The users that may see the page of all GPUs, and the user that administers them.
ROLES = (
    {"name": "user", "scopes": ["self", "access:services!service=gpushare"]},
    {
        "name": "gpushare-admin",
        "description": "Administer the GPUs",
        "scopes": ["custom:gpushare:admin", "access:services!service=gpushare"],
        "users": [ADMIN],
    },
    {"name": "gpushare-service", "scopes": ["custom:gpushare:admin"], "services": ["gpushare"]},
)


class Seat:
    """One user's server, as `tests.support.lab.Lab` is the server of the user that runs the tests.

    Parameters
    ----------
    hub
        The Hub.
    user
        Its user.
    """

    def __init__(self, hub: Hub, user: str) -> None:
        self.hub = hub
        self.user = user
        self.notebooks = hub.home(user)
        self.url = f"{hub.url}/user/{user}/"

    @property
    def log(self) -> str:
        """What all have written so far."""
        return self.hub.log

    def get(self, path: str) -> Any:
        """GET an address of its API."""
        return self.hub.fetch(self.url + path, None, self.hub.token)

    def post(self, path: str, body: Any) -> Any:
        """POST to an address of its API."""
        return self.hub.fetch(self.url + path, body, self.hub.token)

    def delete(self, path: str) -> None:
        """DELETE an address of its API."""
        self.hub.fetch(self.url + path, None, self.hub.token, method="DELETE")

    def start(self) -> None:
        """Start it, without waiting."""
        self.hub.ask(f"users/{self.user}/server", {}, method="POST")

    def status(self) -> dict[str, Any]:
        """Return the GPU's state as this server tells it."""
        return self.get("gpushare/api/status")  # type: ignore[no-any-return]

    def shared_status(self) -> dict[str, Any]:
        """Return the GPU's state as soon as the server runs and the GPU is shared."""

        last: list[Any] = [None]

        def probe() -> Any:
            try:
                status = self.status()
            except urllib.error.HTTPError as error:
                last[0] = error
                return None
            last[0] = status["availability"]
            return last[0]["code"] == "ok" and status

        # While the server starts, the Hub renders a page for each of these requests.
        return until(probe, lambda: f"{last[0]}\n{self.log}", 0.25)  # type: ignore[no-any-return]
