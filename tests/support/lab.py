# SPDX-License-Identifier: BSD-3-Clause
"""A real Jupyter server in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.environment import inherited

TOKEN = "a-token"

#: Bound of every wait: long, because it is only reached where something is wrong.
PATIENCE = 60.0

#: Server extensions of JupyterLab and Notebook 7, and what comes with them.
WITHOUT_LAB = {
    "jupyter_lsp": False,
    "jupyter_server_terminals": False,
    "jupyterlab": False,
    "notebook": False,
    "notebook_shim": False,
}
#: Server extensions where JupyterLab's pages are opened. At each start, jupyter_lsp would run npm to look for language
#: servers, which takes 1 s of processor time.
WITH_LAB = {"jupyter_lsp": False, "jupyterlab": True}


class Lab:
    """A server with the extension; it ends with the ``with`` block.

    Parameters
    ----------
    folder
        A private folder for its configuration, data and notebooks.
    environ
        Its environment.
    root
        The repository.
    base_url
        Where it serves.
    settings
        Further configuration.
    python
        The interpreter that runs it (default: that of the tests).
    extensions
        Further server extensions of that environment, and whether each is loaded.
    forked_kernels
        Whether it forks its kernels, which pays off from the fourth on.
    browsed
        Whether its pages are opened. Otherwise it does not load JupyterLab, which takes half of the time of a start.
    """

    def __init__(
        self,
        folder: Path,
        environ: Mapping[str, str],
        root: Path,
        *,
        base_url: str = "/",
        settings: Mapping[str, Any] | None = None,
        python: str = sys.executable,
        extensions: Mapping[str, bool] | None = None,
        forked_kernels: bool = False,
        browsed: bool = True,
    ) -> None:
        self.folder = folder
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        # Bound until the end: the server reuses addresses and may bind it too, but no other program gets it by chance.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}{base_url}"
        config = {
            "ServerApp": {
                "allow_root": True,
                "base_url": base_url,
                "ip": "127.0.0.1",
                "jpserver_extensions": {
                    "jupyter_gpushare": True,
                    **(WITH_LAB if browsed else WITHOUT_LAB),
                    **(extensions or {}),
                },
                "open_browser": False,
                "port": port,
                "port_retries": 0,
                "root_dir": str(self.notebooks),
            },
            "IdentityProvider": {"token": TOKEN},
            # jupyter-collaboration's; otherwise in the working folder.
            "SQLiteYStore": {"db_path": str(folder / "ystore.db")},
            **(settings or {}),
        }
        (folder / "config").mkdir()
        (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(config))
        # The panel as it was built here, whatever is installed.
        (folder / "path" / "labextensions").mkdir(parents=True)
        built = root / "jupyter_gpushare" / "labextension"
        (folder / "path" / "labextensions" / "jupyter-gpushare").symlink_to(built)
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            [python, "-m", "tests.support.lab_server" if forked_kernels else "jupyter_server"],
            env={
                **environ,
                "JUPYTER_CONFIG_DIR": str(folder / "config"),
                "JUPYTER_DATA_DIR": str(folder / "data"),
                "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
                "JUPYTER_PATH": str(folder / "path"),
                "PYTHONPATH": str(root),
            },
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Lab:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            try:
                self.get("api")
            except OSError:
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        self._reserved.close()
        self._log.close()

    @property
    def log(self) -> str:
        """What it has written so far."""
        return (self.folder / "log").read_text(errors="replace")

    def kill(self) -> None:
        """End it as the kernel's OOM killer does."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def get(self, path: str) -> Any:
        """GET an address of its API."""
        return self._request(path, None)

    def post(self, path: str, body: Any) -> Any:
        """POST to an address of its API."""
        return self._request(path, json.dumps(body).encode())

    def delete(self, path: str) -> None:
        """DELETE an address of its API."""
        self._request(path, None, "DELETE")

    def _request(self, path: str, body: bytes | None, method: str | None = None) -> Any:
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            answer = response.read()
        return json.loads(answer) if answer else None

    def status(self) -> dict[str, Any]:
        """Return the GPU's state as this server tells it."""
        return self.get("gpushare/api/status")  # type: ignore[no-any-return]

    def shared_status(self) -> dict[str, Any]:
        """Return the GPU's state as soon as it is shared."""
        deadline = time.monotonic() + PATIENCE
        while (status := self.status())["availability"]["code"] != "ok":
            assert time.monotonic() < deadline, status["availability"]
            time.sleep(0.05)
        return status


def environment(runtime: Path) -> dict[str, str]:
    """Return the environment of servers that share one simulated GPU."""
    return {
        **inherited("JUPYTER_"),
        "GPUSHARE_SIM": "1",
        "GPUSHARE_SIM_MEMORY": "8GiB",
        "GPUSHARE_SIM_NAME": runtime.name,
        "GPUSHARE_SOCKET": str(runtime / "s.sock"),
    }


def scheduler_of(lab: Lab) -> int:
    return int(lab.shared_status()["scheduler"]["pid"])


def hibernator_of(lab: Lab) -> int:
    """Return the process of the scheduler's that hibernates others."""
    pid = scheduler_of(lab)
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        if "gpushare-hibernator" in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    raise AssertionError("the scheduler has no hibernator")
