# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare demo``: two notebooks that need more memory than the GPU has, in JupyterLab or unattended."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from ...kernel_provisioner.launch import Backend, parse_backend
from ...scheduler.core.rules import default_reserve
from ...scheduler.gpu.drivers import Driver, find_driver
from ...scheduler.memory.budget import host_budget
from ...scheduler.node.arguments import complain, number
from ...scheduler.node.entitlements import parse_size
from .plan import DemoError, Plan
from .sizing import choose_fraction, measure_speed

DESCRIPTION = """\
Share a GPU between two notebooks that do not fit into its memory together. Without --run, the notebooks open in
JupyterLab. With --run, they run unattended: first one after the other, then at the same time. Every result is compared
with the CPU's, and the exit status is 0 only if all checks pass. Without a GPU, a simulated one is used.
"""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = ("heat.ipynb", "cat.ipynb")
FOLDER = "gpushare-demo"
#: In that folder; the user's own workspaces stay as they are.
WORKSPACES = ".workspaces"
INSTALL = 'pip install "jupyter-gpushare[demo]"'

#: Size of the simulated GPU: two cores of a laptop compute on all of its memory well within a second.
SIMULATED_MEMORY = "128MiB"
#: A context takes one part in this many of a simulated GPU.
SIMULATED_CONTEXT = 64
#: Bytes that a context takes of a real GPU, at most: the driver, the CUDA kernels, local memory.
CONTEXT = 800 << 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gpushare demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="share a GPU between two notebooks, in JupyterLab or unattended",
        description=DESCRIPTION,
    )
    parser.add_argument(
        "--run", action="store_true", help="run the notebooks unattended and check the results"
    )
    parser.add_argument(
        "--backend",
        type=_backend,
        metavar="B",
        help="memory backend: auto, swap or managed (default: auto)",
    )
    parser.add_argument(
        "--fraction",
        type=number("share", 0.05, 0.95),
        metavar="F",
        help="share of the GPU's memory for each notebook (default: 0.75, or less, so that evicting memory takes less "
        "time than the pauses between cells)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="port of the Jupyter server (default: a free one)",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="with --run: write the results and all events to FILE",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the notebooks or open them, and return the exit status."""
    if arguments.json is not None:
        if not arguments.run:
            return complain("--json requires --run")
        if not arguments.json.absolute().parent.is_dir():
            return complain(f"--json: the folder {arguments.json.absolute().parent} does not exist")
    try:
        _require("cuda.core", "cuda.bindings", "numpy", *(() if arguments.run else ("jupyterlab",)))
        # An unattended run has a simulated GPU of its own. Notebooks in JupyterLab share the user's scheduler.
        machine = f"demo-{os.getpid() if arguments.run else f'of-{os.getuid()}'}"
        print("Measuring the GPU and starting Jupyter ...", flush=True)
        plan = make_plan(os.environ, arguments.backend, arguments.fraction, machine)
        if not arguments.run:
            _open(plan, arguments.port)
    except DemoError as error:
        return complain(str(error))
    # Not at the top: this needs the compiled part of the protocol, which a checkout lacks until it is built.
    from .run import run_demo

    try:
        return run_demo(plan, EXAMPLES, NOTEBOOKS, port=arguments.port, report=arguments.json)
    finally:
        # The shared memory of the simulated machine, which outlives its processes.
        Path(f"/dev/shm/gpushare-sim-{machine}").unlink(missing_ok=True)


# --- The GPU, and the notebooks' size -----------------------------------------------------------------------------


def make_plan(
    environ: Mapping[str, str], backend: Backend | None, fraction: float | None, machine: str
) -> Plan:
    """Choose the driver, and how much memory each notebook takes.

    Parameters
    ----------
    environ
        The user's environment.
    backend
        Memory backend; None: the best that the driver supports.
    fraction
        Share of the GPU's memory for each notebook; None: chosen by how fast memory moves.
    machine
        Name of the simulated machine, if there is no GPU.

    Raises
    ------
    DemoError
        If the demo cannot run here; the message says what to do.
    """
    variables = dict(environ)
    driver = find_driver(variables)
    total, used = (0, 0) if driver is None or driver.simulated else _real_gpu(driver)
    if total == 0:
        variables["GPUSHARE_SIM"] = "1"
        driver = find_driver(variables)
        total, context = _simulate(variables, machine)
    else:
        if backend == "managed":
            raise DemoError("the backend managed works only on the simulated driver; use swap")
        _require_compiler()
        variables["GPUSHARE_FORBID_MANAGED"] = "1"
        backend, context = "swap", CONTEXT
    assert driver is not None
    remark = ""
    if fraction is None:
        room = total - used - default_reserve(total) - 2 * context
        speed = measure_speed(driver, variables, total)
        fraction, remark = choose_fraction(total, room, host_budget(None, 0), speed)
    if backend is not None:
        variables["GPUSHARE_BACKEND"] = backend
    variables["GPUSHARE_DEMO_FRACTION"] = f"{fraction:.4f}"
    return Plan(driver, fraction, remark, variables)


def _real_gpu(driver: Driver) -> tuple[int, int]:
    """Return the bytes of the first GPU and how many are in use; zeros without a GPU."""
    from ...scheduler.gpu.devices import Devices

    devices = Devices(driver.nvml)
    try:
        found = devices.start()
    finally:
        devices.stop()
    return (found[0].total, found[0].used) if found else (0, 0)


def _simulate(variables: dict[str, str], machine: str) -> tuple[int, int]:
    """Describe the simulated GPU, unless the user did; return its bytes, and those of a context."""
    compiler = variables.get("GPUSHARE_SIM_CXX") or "g++"
    if shutil.which(compiler, path=variables.get("PATH")) is None:
        raise DemoError(
            f"the simulated driver compiles CUDA kernels with {compiler}, which is not installed; install it (Debian: "
            "apt-get install g++)"
        )
    variables.setdefault("GPUSHARE_SIM_MEMORY", SIMULATED_MEMORY)
    memory = parse_size(variables["GPUSHARE_SIM_MEMORY"])
    variables.setdefault("GPUSHARE_SIM_CONTEXT", str(memory // SIMULATED_CONTEXT))
    variables.setdefault("GPUSHARE_SIM_NAME", machine)
    return memory, parse_size(variables["GPUSHARE_SIM_CONTEXT"])


def _require(*modules: str) -> None:
    missing = []
    for module in modules:
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            missing.append(module)
    if missing:
        raise DemoError(f"the demo needs {', '.join(missing)}; install: {INSTALL}")


def _require_compiler() -> None:
    from cuda import pathfinder

    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError:
        raise DemoError(
            f"cuda.core needs NVIDIA's compiler library, NVRTC; install: {INSTALL}"
        ) from None


# --- In JupyterLab ------------------------------------------------------------------------------------------------


def _open(plan: Plan, port: int) -> NoReturn:
    """Become JupyterLab, with both notebooks side by side."""
    folder = _copy(Path.cwd())
    gpu = "the simulated GPU" if plan.driver.simulated else "your GPU"
    print(
        f"Opening JupyterLab with {' and '.join(NOTEBOOKS)} from {folder}. Each takes {plan.fraction:.0%} of "
        f"{gpu}. Run both, and watch the GPU panel.",
        flush=True,
    )
    command = [
        *(sys.executable, "-m", "jupyterlab", str(folder)),
        "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
        f"--LabApp.workspaces_dir={folder / WORKSPACES}",
        *([f"--ServerApp.port={port}", "--ServerApp.port_retries=0"] if port else []),
        # By default, Jupyter refuses to run as root.
        *(["--allow-root"] if os.getuid() == 0 else []),
    ]
    os.execve(command[0], command, plan.environ)


def _copy(where: Path) -> Path:
    """Copy the notebooks into a folder of the user's, without replacing existing files."""
    folder = where / FOLDER
    try:
        _fill(folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}-"))
        _fill(folder)
    return folder


def _fill(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in NOTEBOOKS:
        if not (folder / name).exists():
            shutil.copyfile(EXAMPLES / name, folder / name)
    _write_workspace(folder / WORKSPACES)


def _write_workspace(folder: Path) -> None:
    """Place both notebooks side by side, as a workspace that JupyterLab restores."""
    # The name that JupyterLab gives to the workspace "default".
    path = folder / "default-37a8.jupyterlab-workspace"
    if path.exists():
        return
    names = [f"notebook:{notebook}" for notebook in NOTEBOOKS]
    areas = [{"type": "tab-area", "currentIndex": 0, "widgets": [name]} for name in names]
    dock = {
        "type": "split-area",
        "orientation": "horizontal",
        "sizes": [0.5, 0.5],
        "children": areas,
    }
    layout = {"main": {"dock": dock, "current": names[0]}}
    opened = {
        name: {"data": {"path": notebook, "factory": "Notebook"}}
        for name, notebook in zip(names, NOTEBOOKS, strict=True)
    }
    workspace = {"data": {"layout-restorer:data": layout, **opened}, "metadata": {"id": "default"}}
    folder.mkdir(exist_ok=True)
    path.write_text(json.dumps(workspace), encoding="utf-8")


# --- Arguments ----------------------------------------------------------------------------------------------------


def _backend(text: str) -> Backend:
    try:
        backend = parse_backend(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if backend == "plain":
        raise argparse.ArgumentTypeError(
            "the backend plain cannot evict memory, so the notebooks could not share the GPU; use auto, swap or managed"
        )
    return backend


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"invalid port {text!r}; use a number from 1 to 65535")
    return int(text)
