# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare demo --run``: a real Jupyter server that runs real notebooks, alone and together.

The demo runs notebooks as a front end does: through sessions and the Jupyter kernels' websocket channels.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from ...scheduler.node.arguments import complain
from ...scheduler.protocol.async_client import AsyncControlClient
from ...scheduler.protocol.client import ControlError
from .plan import Cell, DemoError, Plan
from .report import Report, Timeline

#: Seconds within which the server must respond, a Jupyter kernel be ready, and a cell end.
SERVER_START = 60.0
KERNEL_START = 60.0
LONGEST_CELL = 300.0
#: Seconds that the server has to end its Jupyter kernels and itself.
SERVER_STOP = 20.0
#: Seconds within which the server must report the GPU.
PATIENCE = 20.0
#: Lines of the server's log that are shown when the demo fails.
LOG_LINES = 15


class Failure(Exception):
    """The demo failed; the message is one sentence."""


def run_demo(
    plan: Plan, examples: Path, names: Sequence[str], *, port: int, report: Path | None
) -> int:
    """Run the notebooks, first one after the other, then at the same time.

    Parameters
    ----------
    plan
        What the demo runs on.
    examples
        Folder of the notebooks.
    names
        The notebooks.
    port
        Of the server; 0: any.
    report
        File for the results, as JSON.

    Returns
    -------
    int
        0 if all checks passed, else 1; 2 if the demo could not start.
    """
    try:
        found = asyncio.run(_interruptible(_run(plan, examples, names, port)))
    except DemoError as error:
        return complain(str(error))
    except asyncio.CancelledError:
        # SIGTERM; the shell shows the same for a program that does not handle it.
        return 128 + signal.SIGTERM
    print(found.text(), flush=True)
    if report is not None:
        try:
            report.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            return complain(f"cannot write {report}: {error.strerror}")
    return 1 if found.problems else 0


async def _interruptible(work: Any) -> Report:
    """End the work on SIGTERM as on Ctrl-C, with everything that it started."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task  # type: ignore[no-any-return]


async def _run(plan: Plan, examples: Path, names: Sequence[str], port: int) -> Report:
    report = Report(plan, [Path(name).stem for name in names])
    with tempfile.TemporaryDirectory(prefix="gpushare-demo-") as folder:
        root = _copy(examples, names, Path(folder, "notebooks"))
        try:
            async with _server(plan, Path(folder), port) as server:
                await _both_ways(server, report, root, names)
        except Failure as failure:
            report.problems.append(str(failure))
            report.log = _tail(Path(folder, "server.log"))
    return report


def _copy(examples: Path, names: Sequence[str], folder: Path) -> Path:
    folder.mkdir()
    for name in names:
        shutil.copyfile(examples / name, folder / name)
    return folder


async def _both_ways(server: Server, report: Report, root: Path, names: Sequence[str]) -> None:
    report.gpu = await server.gpu()
    print(report.head(), flush=True)
    for name in names:
        notebook = Notebook(server, root / name)
        print(report.label(notebook.name), end="", flush=True)
        async with notebook:
            report.alone[notebook.name] = await notebook.run(None)
        report.check(notebook.name, notebook.cells, "alone")
        print(report.ran_alone(notebook.name), flush=True)
    notebooks = [Notebook(server, root / name) for name in names]
    async with AsyncControlClient(server.socket) as control, contextlib.AsyncExitStack() as stack:
        for notebook in notebooks:
            await stack.enter_async_context(notebook)
        timeline = Timeline({n.kernel: n.name for n in notebooks})
        following = asyncio.create_task(timeline.follow(control))
        try:
            began = time.monotonic()
            timeline.begin(began)
            seconds = await _all(notebook.run(timeline) for notebook in notebooks)
            report.together = time.monotonic() - began
            report.seconds = {n.name: s for n, s in zip(notebooks, seconds, strict=True)}
            groups = (await control.request("status"))["status"]["groups"]
        except ControlError as error:
            raise Failure(str(error)) from None
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await following
            timeline.end()
        report.timeline = timeline
        for notebook in notebooks:
            group = next((g for g in groups if g["id"] == notebook.kernel), None)
            report.totals[notebook.name] = group["totals"] if group else {}
            report.backends[notebook.name] = group["clients"][0]["backend"] if group else ""
            report.check(notebook.name, notebook.cells, "together")
    report.judge()


async def _all(work: Any) -> list[float]:
    """Gather; if one task fails, end the others before raising its error."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- The server ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Server:
    """A running Jupyter server."""

    url: str
    token: str
    #: The scheduler's socket.
    socket: Path

    @property
    def headers(self) -> dict[str, str]:
        """The headers that authorise a request."""
        return {"Authorization": f"token {self.token}"}

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the REST API and return the answer."""
        request = HTTPRequest(
            self.url + path,
            method,
            headers=self.headers,
            body=None if body is None else json.dumps(body),
            request_timeout=KERNEL_START,
            allow_nonstandard_methods=True,
        )
        try:
            response = await AsyncHTTPClient().fetch(request)
        except (HTTPClientError, OSError) as error:
            raise Failure(f"{method} {path}: {error}") from None
        return json.loads(response.body) if response.body else None

    async def gpu(self) -> dict[str, Any]:
        """Return the GPU that is shared; the extension may still be starting."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status = await self.request("GET", "gpushare/api/status")
            if status["availability"]["code"] == "ok" and status["gpus"]:
                gpu: dict[str, Any] = status["gpus"][0]
                return gpu
            if time.monotonic() > deadline:
                raise Failure(
                    f"the server does not share a GPU: {json.dumps(status['availability'])}"
                )
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def _server(plan: Plan, folder: Path, port: int) -> AsyncIterator[Server]:
    """Run a Jupyter server that is independent of the user's own."""
    chosen = _free_port(port)
    token = secrets.token_hex(24)
    scheduler = folder / "scheduler.sock"
    environ = {k: v for k, v in plan.environ.items() if not k.startswith("JUPYTER_")}
    environ |= {
        "GPUSHARE_SOCKET": str(scheduler),
        "JUPYTER_NO_CONFIG": "1",
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_TOKEN": token,
        "IPYTHONDIR": str(folder / "ipython"),
        # The folder's end removes what the server, its Jupyter kernels and compilers leave behind.
        "TMPDIR": str(folder),
    }
    command = [
        *(sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root"),
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={chosen}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder / 'notebooks'}",
        "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
    ]
    # Ctrl-C must not reach the server, which would ask for confirmation.
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", 'exec "$@" >server.log 2>&1', "sh", *command),
        cwd=folder,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        server = Server(f"http://127.0.0.1:{chosen}/", token, scheduler)
        await _until_it_answers(server, process)
        yield server
    finally:
        await _end(process)


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise DemoError(
                f"port {port} cannot be used: {error.strerror}; choose another one"
            ) from None
        return int(probe.getsockname()[1])


async def _until_it_answers(server: Server, process: asyncio.subprocess.Process) -> None:
    deadline = time.monotonic() + SERVER_START
    while True:
        try:
            await server.request("GET", "api/status")
            return
        except Failure:
            if process.returncode is not None:
                raise Failure(
                    f"the Jupyter server exited with status {process.returncode}"
                ) from None
            if time.monotonic() > deadline:
                raise Failure(
                    f"the Jupyter server did not respond within {SERVER_START:g} s"
                ) from None
        await asyncio.sleep(0.05)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the server, which ends its Jupyter kernels and its scheduler."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), SERVER_STOP)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path) -> list[str]:
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []


# --- Notebooks ----------------------------------------------------------------------------------------------------


class Notebook:
    """One notebook with its Jupyter kernel; an async context manager.

    Parameters
    ----------
    server
        The server that runs the notebook.
    path
        The notebook's file.
    """

    def __init__(self, server: Server, path: Path) -> None:
        self.name = path.stem
        self.kernel = ""
        self.cells: list[Cell] = []
        self._server = server
        self._file = path.name
        self._content = json.loads(path.read_text(encoding="utf-8"))
        stated = self._content["metadata"]["gpushare_demo"]
        self._run_all = stated["run"] == "all"
        #: Seconds after the others at which the notebook starts.
        self._later = stated.get("pause", 0.0)
        self._session = ""
        self._user_session = uuid.uuid4().hex
        self._channels: WebSocketClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._cells: dict[str, Cell] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timeline: Timeline | None = None

    async def __aenter__(self) -> Notebook:
        body = {
            "path": self._file,
            "name": self._file,
            "type": "notebook",
            "kernel": {"name": "python3"},
        }
        session = await self._server.request("POST", "api/sessions", body)
        self._session, self.kernel = session["id"], session["kernel"]["id"]
        url = self._server.url.replace("http", "ws", 1) + f"api/kernels/{self.kernel}/channels"
        try:
            self._channels = await websocket_connect(
                HTTPRequest(f"{url}?session_id={self._user_session}", headers=self._server.headers)
            )
        except (HTTPClientError, OSError) as error:
            raise Failure(f"{self._file}: cannot connect to its Jupyter kernel: {error}") from None
        self._reader = asyncio.create_task(self._read(self._channels))
        await self._until_ready()
        return self

    async def __aexit__(self, *reason: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._channels is not None:
            self._channels.close()
        # If the server failed, its Jupyter kernels end with it.
        with contextlib.suppress(Failure):
            await self._server.request("DELETE", f"api/sessions/{self._session}")

    async def run(self, timeline: Timeline | None) -> float:
        """Run the cells, all in a row or one by one with pauses; return the seconds that took.

        Raises
        ------
        Failure
            If a cell fails or does not end, or the Jupyter kernel dies.
        """
        self._timeline = timeline
        loop = asyncio.get_running_loop()
        if timeline is not None:
            await asyncio.sleep(self._later)
        began = time.monotonic()
        for content in self._content["cells"]:
            if content["cell_type"] != "code":
                continue
            stated = content["metadata"]["gpushare_demo"]
            cell = Cell(
                "".join(content["source"]),
                stated["title"],
                stated.get("pause", 0.0),
                stated.get("checks", False),
                loop.create_future(),
            )
            self.cells.append(cell)
            if not self._run_all:
                await self._pause(cell.pause)
                await self._execute(cell)
                await self._until_done(cell)
            else:
                await self._execute(cell)
        if self._run_all:
            for cell in self.cells:
                await self._until_done(cell)
        return time.monotonic() - began

    async def _pause(self, seconds: float) -> None:
        if not seconds:
            return
        began = time.monotonic()
        await asyncio.sleep(seconds)
        if self._timeline is not None:
            self._timeline.pause(self.kernel, began, time.monotonic())

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + KERNEL_START
        while not self._ready.done():
            await self._send("kernel_info_request", {})
            await asyncio.wait([self._ready], timeout=0.5)
            if time.monotonic() > deadline:
                raise Failure(
                    f"{self._file}: its Jupyter kernel did not respond within {KERNEL_START:g} s"
                )
        self._ready.result()

    async def _execute(self, cell: Cell) -> None:
        content = {
            "code": cell.source,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        self._cells[await self._send("execute_request", content)] = cell

    async def _until_done(self, cell: Cell) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(cell.done), LONGEST_CELL)
        except asyncio.TimeoutError:
            raise Failure(
                f"{self._file}: {cell.title!r} did not finish within {LONGEST_CELL:g} s"
            ) from None
        if cell.error:
            raise Failure(f"{self._file}: {cell.title!r} failed: {cell.error}")

    async def _send(self, kind: str, content: dict[str, Any]) -> str:
        identity = uuid.uuid4().hex
        header = {
            "msg_id": identity,
            "msg_type": kind,
            "session": self._user_session,
            "username": "demo",
            "version": "5.4",
            "date": datetime.now(timezone.utc).isoformat(),
        }
        message = {
            "channel": "shell",
            "header": header,
            "parent_header": {},
            "metadata": {},
            "content": content,
            "buffers": [],
        }
        assert self._channels is not None
        await self._channels.write_message(json.dumps(message))
        return identity

    async def _read(self, channels: WebSocketClientConnection) -> None:
        try:
            while (data := await channels.read_message()) is not None:
                self._handle(json.loads(data))
            raise Failure(f"{self._file}: the connection to its Jupyter kernel was closed")
        except Failure as failure:
            self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        for future in (self._ready, *(cell.done for cell in self.cells)):
            if not future.done():
                future.set_exception(failure)
                # Not every future is awaited.
                future.exception()

    def _handle(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "status" and content["execution_state"] in ("restarting", "dead"):
            raise Failure(f"{self._file}: its Jupyter kernel died")
        if kind == "kernel_info_reply" and not self._ready.done():
            self._ready.set_result(None)
        cell = self._cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        if kind == "execute_input" and self._timeline is not None:
            number, of = self.cells.index(cell) + 1, self._code_cells()
            at = _monotonic(message["header"]["date"])
            self._timeline.cell(self.kernel, at, f"cell {number}/{of}: {cell.title}")
        elif kind == "stream" and content["name"] == "stdout":
            cell.printed += content["text"]
            if self._timeline is not None:
                for line in content["text"].splitlines():
                    if line.startswith("✓ "):
                        self._timeline.right(self.kernel, line)
        elif kind == "error":
            cell.error = f"{content['ename']}: {content['evalue']}"
        elif kind == "execute_reply":
            cell.state.add("replied")
            if content["status"] != "ok" and not cell.error:
                cell.error = content.get("ename") or "not run, because an earlier cell failed"
        elif kind == "status" and content["execution_state"] == "idle":
            cell.state.add("idle")
        if cell.state == {"replied", "idle"} and not cell.done.done():
            cell.done.set_result(None)
            if self._timeline is None:
                print(".", end="", flush=True)

    def _code_cells(self) -> int:
        return sum(cell["cell_type"] == "code" for cell in self._content["cells"])


def _monotonic(date: str) -> float:
    """Return when a message was created, on the scheduler's clock: delivery may have taken a while."""
    made = datetime.fromisoformat(date.replace("Z", "+00:00"))
    return time.monotonic() - max(0.0, time.time() - made.timestamp())
