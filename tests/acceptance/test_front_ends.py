# SPDX-License-Identifier: BSD-3-Clause
"""Front ends that run cells in other ways than JupyterLab does: their notebooks share the GPU with all signals.

The scheduler knows each notebook as a group of its own and by its name, and when its cells begin and end. An interrupt
ends a wait. When the notebook is closed, nothing of it is left. No test measures a time.

The front ends are real. They are installed in environments of their own (``requirements/front-ends.txt`` and
``requirements/enterprise-gateway.txt``), and each is driven as its page drives it. VS Code's Jupyter extension needs VS
Code: its way of starting kernels is imitated.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.scheduler.protocol.address import socket_path
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.acceptance.cells import (
    INTERRUPTED,
    Documents,
    FrontEnd,
    Gateway,
    Marimo,
    NbModel,
    Raw,
    Site,
    until,
)
from tests.acceptance.place import Place
from tests.support.folders import socket_folder
from tests.support.lab import PATIENCE, Lab

pytestmark = pytest.mark.slow

#: Uses CUDA without any library, so that it runs in every environment. ``work()`` is what a cell does with the GPU.
SETUP = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(status):
    if status:
        raise RuntimeError(f"CUDA error {status}")
check(cuda.cuInit(0))
context, buffer = ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(buffer), ctypes.c_size_t(1 << 20)))
def work():
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuMemsetD32_v2(buffer, ctypes.c_uint(7), ctypes.c_size_t(1 << 18)))
work()
print("ready")
"""

WORK = "work()\nprint('worked')"
WAIT = "print('waits', flush=True)\nwork()"
FAIL = "1 / len('')"

#: Works until there is the file in the environment.
BUSY = """
while not os.path.exists(os.environ["STOP"]):
    work()
"""


def wait_for(path: str) -> str:
    """Return a cell that lasts until there is a file."""
    return f"while not os.path.exists({path!r}):\n    time.sleep(0.01)\nprint({path!r})"


#: Cells that are run all at once.
QUEUED = [wait_for("first"), wait_for("second"), "print('third')", "print('last')"]


class Bench:
    """A place with a scheduler, and what it knows."""

    def __init__(self, place: Place, root: Path) -> None:
        self.place = place
        self.root = root
        self.socket = socket_path(place.environ)

    def __enter__(self) -> Bench:
        # It outlives the notebooks, to say that they are gone.
        command = ("python", "-m", "jupyter_gpushare.scheduler", "--parent-pipe")
        self._scheduler = self.place.start(*command, stdin=subprocess.PIPE)
        assert self._scheduler.stdout is not None
        assert self._scheduler.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.communicate(timeout=PATIENCE)

    def ask(self, op: str, **params: Any) -> dict[str, Any]:
        """Ask the scheduler."""
        with ControlClient(self.socket, PATIENCE) as client:
            return client.request(op, **params)

    def group(self, name: str) -> dict[str, Any]:
        """Return a group by its name; empty where there is none."""
        groups = self.ask("status")["status"]["groups"]
        named = [group for group in groups if group["name"] == name]
        assert len(named) <= 1, named
        return named[0] if named else {}

    def phases(self, group: str) -> list[str]:
        """Return the begins and ends of a group's cells, each once: the kernel and the server tell of the same ones."""
        told: dict[tuple[str, str], None] = {}
        for event in self.ask("history")["events"]:
            if event["kind"] == "cell" and event["group"] == group:
                told[event["phase"], event["msg_id"]] = None
        return [phase for phase, _ in told]

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the GPU busy with another program, which lets no one else have a turn."""
        stop = self.place.folder / "stop"
        command = ("gpushare", "run", "--name", "busy", "--", "python", "-c", SETUP + BUSY)
        self.place.environ["STOP"] = str(stop)
        with self.place.start(*command) as process:
            try:
                until(lambda: self.group("busy").get("state") == "running")
                yield
            finally:
                stop.touch()
                printed, _ = process.communicate(timeout=PATIENCE)
                stop.unlink()
        assert (process.returncode, printed) == (0, "ready\n")

    def set_up(self, front: FrontEnd) -> str:
        """Let a notebook use the GPU for the first time, and return its group."""
        front.begin(SETUP)
        assert front.end() == ("ready\n", ""), front.log
        until(lambda: self.group(front.name), lambda: self.ask("status")["status"]["groups"])
        return str(self.group(front.name)["id"])

    def follow(self, front: FrontEnd) -> None:
        """Check that the scheduler follows a notebook, and that the notebook can be interrupted and closed."""
        known = self.group(front.name)["id"] if self.group(front.name) else self.set_up(front)

        # A cell begins, ends, and takes the burst with it.
        until(lambda: self.group(front.name)["cell"] is None)
        before = len(self.phases(known))
        front.begin(WORK)
        assert front.end() == ("worked\n", "")
        until(lambda: self.phases(known)[before:] == ["begin", "end"], lambda: self.phases(known))
        until(lambda: self.group(front.name)["state"] in ("idle", "idle_lease"))
        # So does one that fails.
        front.begin(FAIL)
        assert front.end().error == "ZeroDivisionError"
        until(lambda: self.phases(known)[before:] == ["begin", "end"] * 2)

        # A wait is this notebook's, and an interrupt ends it, not the kernel.
        self.ask("set", anti_thrash="on", quantum=600)
        with self.busy():
            front.begin(WAIT)
            until(
                lambda: self.group(front.name)["state"] == "waiting",
                lambda: self.ask("status")["status"]["groups"],
            )
            assert self.group(front.name)["cell"] is not None
            front.interrupt()
            assert front.end().error == INTERRUPTED
            until(lambda: self.group(front.name)["state"] == "idle")
            assert self.group("busy")["state"] == "running"
        front.begin(WORK + "\n")
        assert front.end() == ("worked\n", "")
        until(lambda: self.group(front.name)["cell"] is None)
        assert self.group(front.name)["id"] == known

        front.close()
        until(lambda: not self.group(front.name))

    def count_queued(self, front: FrontEnd, folder: Path) -> None:
        """Check that the scheduler knows how many cells wait in the queue of a server that runs them one by one."""
        first, second, *others = QUEUED
        for code in (first, second, *others):
            front.begin(code)
        (folder / "first").touch()
        # The second one runs.
        until(
            lambda: self.group(front.name)["queued"] == len(others), lambda: self.group(front.name)
        )
        (folder / "second").touch()
        assert front.end() == ("last\n", "")
        until(lambda: self.group(front.name)["queued"] == 0)


@pytest.fixture
def bench(root: Path, tmp_path: Path) -> Iterator[Bench]:
    """Return a place whose kernelspec ``shared`` shares the GPU; in the end, no process is left."""
    programs = root / "build" / "front-ends" / "bin"
    if not (programs / "gpushare").exists():
        pytest.skip("build/front-ends is missing: run `make build/front-ends/stamp`")
    with socket_folder() as runtime:
        place = Place(tmp_path, Path(runtime), programs)
        place.run("gpushare", "kernelspec", "add", "shared")
        try:
            with Bench(place, root) as bench:
                yield bench
            place.until_only({})
        finally:
            place.clean()


@contextlib.contextmanager
def server(bench: Bench, root: Path, *extensions: str) -> Iterator[Lab]:
    """Run a Jupyter server with these extensions and no others of the environment's."""
    others = (
        "jupyter_server_documents",
        "jupyter_server_fileid",
        "jupyter_server_nbmodel",
        "jupyter_server_ydoc",
    )
    environ = {**bench.place.environ, "GPUSHARE_SOCKET": str(bench.socket)}
    bench.socket.parent.mkdir(mode=0o700, exist_ok=True)
    with Lab(
        bench.place.folder / "lab",
        environ,
        root,
        python=str(bench.place.programs / "python"),
        extensions={name: name in extensions for name in others},
    ) as lab:
        lab.shared_status()
        yield lab


def test_jupyter_server_nbmodel(bench: Bench, root: Path) -> None:
    with server(bench, root, "jupyter_server_nbmodel") as lab:
        notebook = NbModel(lab, "plots.ipynb")
        bench.set_up(notebook)
        bench.count_queued(notebook, lab.notebooks)
        bench.follow(notebook)


def test_jupyter_server_documents(bench: Bench, root: Path) -> None:
    extensions = ("jupyter_server_documents", "jupyter_server_fileid")
    cells = [SETUP, WORK, FAIL, WAIT, WORK + "\n", *QUEUED]
    with server(bench, root, *extensions) as lab:
        notebook = Documents(lab, "plots.ipynb", cells)
        bench.set_up(notebook)
        bench.count_queued(notebook, lab.notebooks)
        bench.follow(notebook)


@contextlib.contextmanager
def site(*arguments: Any, **options: Any) -> Iterator[Site]:
    found = Site(*arguments, **options)
    try:
        yield found
    finally:
        found.stop()


GATEWAY = ["--ip=127.0.0.1", "--port={port}"]
AUTHORIZED = {"Authorization": "token a-token"}


def inherited(bench: Bench) -> str:
    """Return the variables that a gateway has to pass on: documented ones, and those of the simulated GPU."""
    page = bench.root / "docs" / "how-to" / "other-front-ends.md"
    (documented,) = set(re.findall(r"^(?:KG|EG)_\w+=(\S+) jupyter", page.read_text(), re.M))
    ours = [name for name in bench.place.environ if name.startswith("GPUSHARE_")]
    return ",".join([documented, *ours])


def test_kernel_gateway(bench: Bench) -> None:
    command = ["jupyter-kernelgateway", *GATEWAY, "--KernelGatewayApp.auth_token=a-token"]
    environ = {"KG_ENV_PROCESS_WHITELIST": inherited(bench)}
    with site(bench.place, command, "api", AUTHORIZED, environ=environ) as gateway:
        bench.follow(Gateway(gateway))


def test_enterprise_gateway(bench: Bench) -> None:
    programs = bench.root / "build" / "enterprise-gateway" / "bin"
    if not (programs / "jupyter-enterprisegateway").exists():
        pytest.skip("build/enterprise-gateway is missing: run `make build/enterprise-gateway/venv`")
    command = ["jupyter-enterprisegateway", *GATEWAY, "--EnterpriseGatewayApp.auth_token=a-token"]
    options = {"programs": programs, "environ": {"EG_INHERITED_ENVS": inherited(bench)}}
    with site(bench.place, command, "api", AUTHORIZED, **options) as gateway:
        bench.follow(Gateway(gateway))


def test_vs_code(bench: Bench) -> None:
    bench.follow(Raw(bench.place))


MARIMO = ["--headless", "--no-token", "--host=127.0.0.1", "--port={port}"]


def marimo(bench: Bench) -> contextlib.AbstractContextManager[Site]:
    options = ("--no-skew-protection", "--skip-update-check")
    command = ["gpushare", "run", "--", "marimo", "edit", *MARIMO, *options]
    return site(bench.place, command, "health", {})


def test_marimo(bench: Bench) -> None:
    with marimo(bench) as edit:
        bench.follow(Marimo(edit, bench.place.notebooks / "analysis.py"))


def test_each_kernel_of_marimo_is_a_group(bench: Bench) -> None:
    folder = bench.place.notebooks
    with marimo(bench) as edit:
        notebooks = [Marimo(edit, folder / f"{name}.py") for name in ("one", "two")]
        for notebook in notebooks:
            notebook.begin(SETUP)
            assert notebook.end() == ("ready\n", "")
        groups = [bench.group(notebook.name) for notebook in notebooks]
        assert len({group["id"] for group in groups}) == 2
        assert [len(group["clients"]) for group in groups] == [1, 1]
        notebooks[0].close()
        until(lambda: not bench.group("one.py"))
        assert bench.group("two.py")["id"] == groups[1]["id"]
        notebooks[1].close()


def program(*codes: str) -> str:
    """Return a marimo notebook."""
    cells = [textwrap.indent(code.strip(), "    ") for code in codes]
    parts = ["import marimo", "app = marimo.App()", *(f"@app.cell\ndef _():\n{c}" for c in cells)]
    return "\n".join([*parts, "if __name__ == '__main__':\n    app.run()", ""])


def test_an_app_and_a_script_of_marimo_are_groups_with_cells(bench: Bench) -> None:
    path = bench.place.notebooks / "app.py"
    path.write_text(program(SETUP, "import threading"))
    command = ["gpushare", "run", "--", "marimo", "run", str(path), *MARIMO]
    with site(bench.place, command, "health", {}) as app:
        # Each person has a kernel, which is a thread of the server.
        pages = [app.connect(f"ws?session_id=s_000001&file={path}")]
        group = until(lambda: bench.group("marimo"))["id"]
        until(lambda: bench.phases(group) == ["begin", "end"] * 2)
        pages.append(app.connect(f"ws?session_id=s_000002&file={path}"))
        until(lambda: bench.phases(group) == ["begin", "end"] * 4)
        assert bench.group("marimo")["cell"] is None
        assert len(bench.group("marimo")["clients"]) == 1
        for page in pages:
            page.close()
    assert bench.place.run("gpushare", "run", "--", "python", str(path)) == "ready\n"
    events = [e for e in bench.ask("history")["events"] if e["kind"] == "cell"]
    (script,) = {event["group"] for event in events} - {group}
    assert bench.phases(script) == ["begin", "end"] * 2
