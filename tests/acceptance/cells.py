# SPDX-License-Identifier: BSD-3-Clause
"""Front ends that run cells, each driven as its page drives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import nbformat
import websocket
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from tests.acceptance.place import Place
from tests.support.lab import PATIENCE, Lab

#: What a websocket may leave out of a cell's error.
INTERRUPTED = "KeyboardInterrupt"


class Outcome(NamedTuple):
    """What a cell printed, and the name of its error."""

    printed: str
    error: str


class FrontEnd(Protocol):
    """A notebook of a front end, whose kernel runs."""

    #: What the queue calls it.
    name: str

    @property
    def log(self) -> str:
        """What its server has written."""

    def begin(self, code: str) -> None:
        """Run a cell as the page does, and do not wait for it."""

    def end(self) -> Outcome:
        """Wait until the cell has ended."""

    def interrupt(self) -> None:
        """Interrupt the cell as the page does."""

    def close(self) -> None:
        """End the kernel as the page does."""


def until(probe: Callable[[], Any], what: Callable[[], object] = lambda: "") -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := probe()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)
    return found


class Site:
    """A server of a front end, on a port of its own.

    Parameters
    ----------
    place
        Whose programs it is one of.
    command
        Its command, where ``{port}`` stands for the port.
    ready
        An address that answers when it is ready.
    headers
        What to send with each request.
    programs
        The folder of the command, if it is not the place's.
    environ
        Further environment variables.
    """

    def __init__(
        self,
        place: Place,
        command: list[str],
        ready: str,
        headers: dict[str, str],
        programs: Path | None = None,
        environ: dict[str, str] | None = None,
    ) -> None:
        # Bound until the end: the server reuses addresses, but no other program gets this one by chance.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/"
        self.headers = headers
        self._log = place.folder / f"{Path(command[0]).name}-{uuid.uuid4().hex[:8]}.log"
        program = (programs or place.programs) / command[0]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(program), *(word.format(port=port) for word in command[1:])],
                env={**place.environ, **(environ or {})},
                cwd=place.notebooks,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

        def answers() -> bool:
            assert self._process.poll() is None, self.log
            try:
                self.ask(ready)
            except urllib.error.HTTPError:
                raise
            except OSError:
                return False
            return True

        try:
            until(answers, lambda: self.log)
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")

    def ask(
        self, path: str, body: Any = None, method: str | None = None, headers: Any = None
    ) -> bytes:
        """Send a request and return the answer's body."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **self.headers, **(headers or {})}
        request = urllib.request.Request(self.url + path, data, sent, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                answer: bytes = response.read()
        except urllib.error.HTTPError as error:
            error.add_note(f"{path}: {error.read()!r}\n{self.log}")
            raise
        return answer

    def connect(self, path: str) -> websocket.WebSocket:
        """Open a websocket."""
        return websocket.create_connection(
            f"{self.url}{path}".replace("http", "ws", 1),
            header=[f"{name}: {value}" for name, value in self.headers.items()],
            timeout=PATIENCE,
        )

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reserved.close()


def received(connection: websocket.WebSocket, log: Callable[[], str]) -> Any:
    """Return the next message of a websocket, past what keeps the connection alive."""
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline, log()
        kind, frame = connection.recv_data_frame(control_frame=True)
        if kind == websocket.ABNF.OPCODE_CLOSE:
            raise AssertionError(f"the server closed the connection: {frame.data!r}\n{log()}")
        if kind == websocket.ABNF.OPCODE_TEXT:
            return json.loads(frame.data)


def execute_request(code: str) -> tuple[str, str]:
    """Return the id and the text of a request to run a cell, as it goes over a websocket."""
    message = uuid.uuid4().hex
    header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": ""}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    whole = {
        "header": {**header, "version": "5.3", "date": ""},
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
    }
    return message, json.dumps(whole)


class Gateway:
    """A kernel of Jupyter Kernel Gateway or Enterprise Gateway, over its websocket."""

    #: The kernelspec's.
    name = "shared"

    def __init__(self, site: Site) -> None:
        self._site = site
        # Enterprise Gateway starts no kernel for root, but for whom the client says that it is.
        kernel = {"name": "shared", "env": {"KERNEL_USERNAME": "ada"}}
        self._id = json.loads(site.ask("api/kernels", kernel))["id"]
        self._socket = site.connect(f"api/kernels/{self._id}/channels")
        self._message = ""

    @property
    def log(self) -> str:
        return self._site.log

    def begin(self, code: str) -> None:
        self._message, text = execute_request(code)
        self._socket.send(text)

    def end(self) -> Outcome:
        printed, error = "", ""
        while True:
            got = received(self._socket, lambda: self._site.log)
            if got["parent_header"].get("msg_id") != self._message:
                continue
            content = got["content"]
            match got["msg_type"]:
                case "stream":
                    printed += content["text"]
                case "error":
                    error = content["ename"]
                case "status" if content["execution_state"] == "idle":
                    return Outcome(printed, error)

    def interrupt(self) -> None:
        self._site.ask(f"api/kernels/{self._id}/interrupt", {})

    def close(self) -> None:
        self._socket.close()
        self._site.ask(f"api/kernels/{self._id}", method="DELETE")


class Session:
    """A notebook of a Jupyter server with an extension that runs cells on the server."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name
        session = lab.post(
            "api/sessions",
            {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}},
        )
        self._session = session["id"]
        self.kernel: str = session["kernel"]["id"]

    @property
    def log(self) -> str:
        return self.lab.log

    def interrupt(self) -> None:
        self.lab.post(f"api/kernels/{self.kernel}/interrupt", {})

    def close(self) -> None:
        self.lab.delete(f"api/sessions/{self._session}")


class NbModel(Session):
    """A notebook whose cells jupyter-server-nbmodel runs."""

    _request = ""

    def begin(self, code: str) -> None:
        self._request = self.lab.post(f"api/kernels/{self.kernel}/execute", {"code": code})[
            "request_url"
        ].lstrip("/")

    def end(self) -> Outcome:
        def ended() -> Any:
            # The extension's own status for a cell that failed is 200, too.
            found = self.lab.get(self._request)
            return found if "outputs" in found and not found.get("pending") else None

        outputs = json.loads(until(ended, lambda: self.lab.log)["outputs"])
        return outcome(outputs)


def outcome(outputs: list[dict[str, Any]]) -> Outcome:
    """Return what a cell's outputs say."""
    printed = "".join("".join(each.get("text", "")) for each in outputs)
    errors = [each["ename"] for each in outputs if each["output_type"] == "error"]
    return Outcome(printed, "".join(errors))


class Documents(Session):
    """A notebook whose cells jupyter-server-documents runs, out of the shared document."""

    def __init__(self, lab: Lab, name: str, codes: list[str]) -> None:
        self._path = lab.notebooks / name
        cells = [nbformat.v4.new_code_cell(code) for code in codes]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), self._path)
        super().__init__(lab, name)
        self._file = lab.post(f"api/fileid/index?path={name}", {})["id"]
        self._cell: Any = None

    def begin(self, code: str) -> None:
        cells = nbformat.read(self._path, 4).cells
        self._cell = next(cell for cell in cells if cell.source == code)
        body = {
            "document_id": f"json:notebook:{self._file}",
            "cells": [{"cell_id": self._cell.id, "source_hash": murmur(code)}],
        }
        until(lambda: self._accepted(body), lambda: self.lab.log)

    def _accepted(self, body: Any) -> bool:
        try:
            self.lab.post(f"api/kernels/{self.kernel}/execute", body)
        except urllib.error.HTTPError as error:
            if error.code == 400:
                # The document is not connected to the kernel yet.
                return False
            raise
        return True

    def end(self) -> Outcome:
        """Wait for the document, which the server saves: it numbers a cell when that has ended."""

        def ended() -> Any:
            with contextlib.suppress(ValueError, nbformat.reader.NotJSONError):
                cells = nbformat.read(self._path, 4).cells
                found = next(cell for cell in cells if cell.id == self._cell.id)
                return None if found.execution_count is None else found
            return None

        return outcome(until(ended, lambda: self.lab.log).outputs)


def murmur(source: str) -> str:
    """Return the hash by which jupyter-server-documents compares the sources of a cell: MurmurHash2 with the seed 0."""
    data, prime, mask = source.encode(), 0x5BD1E995, 0xFFFFFFFF
    whole = len(data) // 4 * 4
    found = len(data)
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * prime & mask
        part = (part ^ part >> 24) * prime & mask
        found = found * prime & mask ^ part
    if rest := data[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * prime & mask
    found = (found ^ found >> 13) * prime & mask
    return str(found ^ found >> 15)


class Raw:
    """A kernel as VS Code's Jupyter extension starts it (``src/kernels/raw/launcher/kernelProcess.node.ts``).

    It writes a connection file, replaces ``{connection_file}`` in the kernelspec's command, and starts that. It
    interrupts the processes below the kernel and then the kernel, and ends the kernel by SIGTERM.
    """

    name = "analysis.ipynb"

    def __init__(self, place: Place) -> None:
        spec = place.folder / ".local/share/jupyter/kernels/shared/kernel.json"
        command = json.loads(spec.read_text())["argv"]
        # Otherwise, the extension would start the module with the Python that it thinks right, without our command.
        assert not re.fullmatch(r"python3?", Path(command[0]).name), command
        file = str(place.folder / f"kernel-v3{uuid.uuid4().hex}.json")
        write_connection_file(file, ip="127.0.0.1", key=uuid.uuid4().hex.encode())
        self._log = place.folder / "kernel.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [word.replace("{connection_file}", file) for word in command],
                env={**place.environ, "PYDEVD_IPYTHON_COMPATIBLE_DEBUGGING": "1"},
                cwd=place.notebooks,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._client = until(lambda: self._connected(file))
        notebook = str(place.notebooks / self.name)
        # How the extension tells its kernels which notebook they belong to.
        silent = f'__vsc_ipynb_file__ = "{notebook}"'
        self._client.execute(silent, silent=True, store_history=False, reply=True, timeout=PATIENCE)
        self._message = ""

    def _connected(self, file: str) -> BlockingKernelClient | None:
        """Return a client of the kernel; None where it does not answer yet."""
        client = BlockingKernelClient()
        client.load_connection_file(file)
        client.start_channels()
        try:
            client.wait_for_ready(timeout=PATIENCE)
        except RuntimeError:
            client.stop_channels()
            return None
        return client

    @property
    def log(self) -> str:
        return self._log.read_text()

    def begin(self, code: str) -> None:
        self._message = self._client.execute(code)

    def end(self) -> Outcome:
        printed, error = "", ""
        while True:
            got = self._client.get_iopub_msg(timeout=PATIENCE)
            if got["parent_header"].get("msg_id") != self._message:
                continue
            match got["msg_type"]:
                case "stream":
                    printed += got["content"]["text"]
                case "error":
                    error = got["content"]["ename"]
                case "status" if got["content"]["execution_state"] == "idle":
                    return Outcome(printed, error)

    def interrupt(self) -> None:
        for pid in (*self._below(), self._process.pid):
            os.kill(pid, signal.SIGINT)

    def close(self) -> None:
        self._client.stop_channels()
        for pid in self._below():
            os.kill(pid, signal.SIGTERM)
        self._process.terminate()
        self._process.wait(PATIENCE)

    def _below(self) -> list[int]:
        found, parents = [], [self._process.pid]
        for pid in parents:
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = [int(child) for child in (task / "children").read_text().split()]
                parents += children
                found += children
        return found


class Marimo:
    """A notebook of ``marimo edit``."""

    def __init__(self, site: Site, path: Path) -> None:
        path.write_text("import marimo\napp = marimo.App()\n")
        self.name = path.name
        self._site = site
        self._headers = {"Marimo-Session-Id": f"s_{uuid.uuid4().hex[:6]}"}
        query = f"session_id={self._headers['Marimo-Session-Id']}&file={path}"
        self._socket = site.connect(f"ws?{query}")
        while received(self._socket, lambda: site.log)["op"] != "kernel-ready":
            continue
        self._post("instantiate", {"objectIds": [], "values": [], "autoRun": True})
        self._cell = ""

    @property
    def log(self) -> str:
        return self._site.log

    def begin(self, code: str) -> None:
        self._cell = uuid.uuid4().hex[:4]
        self._post("run", {"cellIds": [self._cell], "codes": [code]})

    def end(self) -> Outcome:
        printed, error = "", ""
        while True:
            got = received(self._socket, lambda: self._site.log)
            operation = got.get("data", {})
            if got["op"] != "cell-op" or operation.get("cell_id") != self._cell:
                continue
            console = operation.get("console") or []
            for output in console if isinstance(console, list) else [console]:
                if output.get("channel") == "stdout":
                    printed += output["data"]
            output = operation.get("output") or {}
            if output.get("channel") == "marimo-error":
                (found,) = output["data"]
                error = (
                    INTERRUPTED
                    if found["type"] == "interruption"
                    else found.get("exception_type") or found["type"]
                )
            if operation.get("status") == "idle":
                return Outcome(printed, error)

    def interrupt(self) -> None:
        self._post("interrupt", {})

    def close(self) -> None:
        self._post("restart_session", {})
        self._socket.close()

    def _post(self, what: str, body: Any) -> None:
        self._site.ask(f"api/kernel/{what}", body, headers=self._headers)
