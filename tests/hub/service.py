# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service as a process: ``gpushare hub``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.support import fork_server
from tests.support.client import PATIENCE, FakeClient
from tests.support.hub.hub_api import HubApi
from tests.support.hub.node import Node
from tests.support.lab_page import SCREENSHOTS

PREFIX = "/services/gpushare/"

#: An eighth of a GPU's memory, in bytes. GPUs are small because the scheduler prepares host memory for the data of
#: notebooks, at the cost of about 0.7 s of CPU time for each GiB. Pictures show GPUs of 8 GiB.
UNIT = 64 << 20 if SCREENSHOTS is None else 1 << 30

#: What a service imports, except its own modules, one of which gives each process an identity.
MODULES = (
    "jupyter_gpushare.cli.main",
    "jupyter_gpushare.scheduler.protocol.async_client",
    "jupyterhub.services.auth",
    "tornado.httpserver",
    "tornado.simple_httpclient",
)


class Answer:
    """An answer of the service.

    Parameters
    ----------
    status
        The HTTP status.
    headers
        The headers.
    body
        The body.
    """

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.text = body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class HubService:
    """The process of a service, which ends with the ``with`` block.

    Parameters
    ----------
    environ
        Environment variables in addition to those of this process.
    log
        File for the log.
    port
        Port to listen on; 0: any free port.
    arguments
        Further arguments of ``gpushare hub``.
    """

    def __init__(
        self, environ: Mapping[str, str], log: Path, *arguments: str, port: int = 0
    ) -> None:
        self._log = log
        self._command = [
            *("-m", "jupyter_gpushare.cli.main", "hub"),
            *("--url", f"http://127.0.0.1:{port}{PREFIX}", *arguments),
        ]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSHARE_", "JUPYTER"))}
        self._environ = {**kept, **environ}
        self.process: fork_server.Process | None = None
        self.url = ""

    def __enter__(self) -> HubService:
        with self._log.open("ab") as stderr:
            self.process = fork_server.popen(
                self._command,
                environ=self._environ,
                modules=MODULES,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.__exit__(None, None, None)
            pytest.fail(f"the service did not start: {self.log}")
        self.url = json.loads(line)["url"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log.read_text()

    def ask(self, path: str, token: str = "", body: Any = None, **headers: str) -> Answer:
        """Send a request, and return the answer, including refusals."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        if token:
            request.add_header("Authorization", f"token {token}")
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=PATIENCE) as response:
                return Answer(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())


def simulated(folder: Path, name: str) -> dict[str, str]:
    """Return the environment of a simulated machine with this name."""
    return {
        "GPUSHARE_SIM": "1",
        "GPUSHARE_SIM_NAME": f"{folder.name}-{name}",
        "GPUSHARE_SIM_DEVICES": "2",
        "GPUSHARE_SIM_MEMORY": str(8 * UNIT),
    }


@contextlib.contextmanager
def machine(folder: Path, name: str, hub: HubApi) -> Iterator[Node]:
    """Run a node scheduler with two simulated GPUs, which identifies users through the Hub."""
    (folder / name).mkdir()
    settings = {
        "hub_api_url": f"{hub.host}/hub/api",
        "host_memory": "16GiB",
        # No notebook loses the GPU during a test. Pictures show waits of a usual length.
        "quantum": 3600 if SCREENSHOTS is None else 120,
    }
    with Node(folder / name, simulated(folder, name), **settings) as node:
        yield node


@contextlib.contextmanager
def notebook(node: Node, token: str, group: str, name: str, size: int) -> Iterator[FakeClient]:
    """Run the stand-in for a Jupyter kernel of the token's owner, with memory on the node's first GPU."""
    with ControlClient(node.socket, timeout=PATIENCE) as control:
        gpu = control.request("status")["status"]["gpus"][0]["uuid"]
        control.request("login", token=token)
        ticket = control.request("ticket", group=group)["ticket"]
    with FakeClient(node.socket, group, gpu, name=name) as client:
        client.send_raw(protocol.ticket(ticket))
        client.attach()
        client.grow(size, context=UNIT // 7)
        yield client


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirects."""
