# SPDX-License-Identifier: BSD-3-Clause
"""How the client finds its server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.client import GpuShareError, NoServer
from jupyter_gpushare.client.calls import own
from jupyter_gpushare.client.find import Server, find_server


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def runs(runtime: Path, port: int, pid: int, **more: Any) -> None:
    info = {"url": f"http://localhost:{port}/", "token": f"token-{port}", "pid": pid, **more}
    (runtime / f"jpserver-{port}.json").write_text(json.dumps(info))


@pytest.mark.parametrize(
    ("url", "token", "environ", "found"),
    [
        ("http://h:1", "t", {}, ("http://h:1/", "t")),
        ("http://h:1/user/ada", "t", {}, ("http://h:1/user/ada/", "t")),
        # What Jupyter prints.
        ("http://h:1/lab?token=secret", None, {}, ("http://h:1/", "secret")),
        ("http://h:1/user/ada/tree/", "t", {}, ("http://h:1/user/ada/", "t")),
        (None, None, {"GPUSHARE_URL": "http://h/", "GPUSHARE_TOKEN": "e"}, ("http://h/", "e")),
        (None, "t", {"GPUSHARE_URL": "http://h/", "GPUSHARE_TOKEN": "e"}, ("http://h/", "t")),
        ("http://h/", None, {"JUPYTERHUB_API_TOKEN": "hub"}, ("http://h/", "hub")),
        # From a file.
        ("http://h/", None, {"GPUSHARE_TOKEN": "t\n"}, ("http://h/", "t")),
    ],
)
def test_a_stated_server_is_used(
    url: str | None, token: str | None, environ: dict[str, str], found: tuple[str, str]
) -> None:
    assert find_server(url, token, environ) == Server(*found)


@pytest.mark.parametrize("url", ["localhost:8888", "ftp://h/", "http://", "http://[::1"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(NoServer, match="is not the address of a Jupyter server"):
        find_server(url, None, {})


def test_the_only_running_server_is_found(runtime: Path) -> None:
    runs(runtime, 8888, os.getpid())
    (runtime / "jpserver-1.json").write_text("{")
    assert find_server(None, None, {}) == Server("http://localhost:8888/", "token-8888")
    assert find_server(None, "mine", {}).token == "mine"


def test_the_server_that_started_the_kernel_comes_first(runtime: Path) -> None:
    runs(runtime, 8888, os.getpid())
    runs(runtime, 8889, os.getppid())
    found = find_server(None, None, {"JPY_PARENT_PID": str(os.getppid())})
    assert found == Server("http://localhost:8889/", "token-8889")


def test_the_hub_token_is_used_if_there_is_no_other(runtime: Path) -> None:
    runs(runtime, 8888, os.getpid(), token="")
    assert find_server(None, None, {"JUPYTERHUB_API_TOKEN": "hub"}).token == "hub"


def test_without_a_running_server_the_error_says_what_to_do(runtime: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    runs(runtime, 8888, gone.pid)
    with pytest.raises(NoServer, match=r"No Jupyter server is running.*jupyter server list"):
        find_server(None, None, {})


def test_several_running_servers_are_an_error(runtime: Path) -> None:
    runs(runtime, 8888, os.getpid())
    runs(runtime, 8889, os.getppid())
    with pytest.raises(NoServer, match=r"http://localhost:8888/, http://localhost:8889/"):
        find_server(None, None, {})


def test_a_unix_socket_is_named(runtime: Path) -> None:
    runs(runtime, 0, os.getpid(), sock="/run/s")
    with pytest.raises(NoServer, match="Unix socket"):
        find_server(None, None, {})


def test_outside_of_a_kernel_the_group_must_be_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUSHARE_GROUP", raising=False)
    with pytest.raises(GpuShareError, match="No notebook is stated"):
        own(None)
    monkeypatch.setenv("GPUSHARE_GROUP", "kernel")
    assert (own(None), own("other")) == ("kernel", "other")


def test_importing_the_package_does_not_import_the_clients() -> None:
    code = (
        "import sys, jupyter_gpushare\n"
        "assert 'jupyter_gpushare.client' not in sys.modules\n"
        "assert jupyter_gpushare.Client is sys.modules['jupyter_gpushare.client'].Client\n"
        "assert not any('scheduler' in name for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
