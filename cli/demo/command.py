# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare demo``: two notebooks that want more memory than the GPU has, in JupyterLab or by themselves."""

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
from ...scheduler.gpu.drivers import Driver, find_driver
from ...scheduler.memory.budget import host_budget
from ...scheduler.node.arguments import complain
from ...scheduler.node.entitlements import parse_size
from ...scheduler.views.words.amounts import size
from .plan import DemoError, Plan

DESCRIPTION = """\
Two notebooks take three quarters of the GPU's memory each and run at once. Without --run they are opened in JupyterLab,
for you to play with; with --run they run by themselves, every number is checked against the CPU, and the exit status
says whether all was right. Without a GPU, the simulated driver is used.
"""

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = ("heat.ipynb", "cat.ipynb")
FOLDER = "gpushare-demo"
#: In that folder; the user's own workspaces stay as they are.
WORKSPACES = ".workspaces"
FRACTION = 0.75
INSTALL = 'pip install "jupyter-gpushare[demo]"'

#: Of the simulated GPU: two cores of a laptop are to compute on all of it within a second.
SIMULATED_MEMORY = "384MiB"
#: What a context takes of a small simulated GPU, as a share.
SIMULATED_CONTEXT = 64
#: What a context takes of a real one, at most: the driver, the kernels, local memory.
CONTEXT = 800 << 20
#: Share of the host's memory budget that the demo lets swapped data take at the worst moment: in a switch, what is
#: moved out and what is yet to be moved in are there together.
HOST_SHARE = 0.8


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gpushare demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="two notebooks share a GPU, in JupyterLab or by themselves",
        description=DESCRIPTION,
    )
    parser.add_argument("--run", action="store_true", help="run them here and check all they find")
    parser.add_argument(
        "--backend",
        type=_backend,
        metavar="B",
        help="memory backend: auto, swap or managed (default: auto)",
    )
    parser.add_argument(
        "--fraction",
        type=_fraction,
        metavar="F",
        help="share of the GPU's memory that each notebook takes (default: 0.75, less where the host has too little "
        "memory)",
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="of the Jupyter server (default: any that is free)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="with --run: write what happened into FILE"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the notebooks, or open them; the exit status."""
    if arguments.json is not None:
        if not arguments.run:
            return complain("--json goes with --run")
        if not arguments.json.absolute().parent.is_dir():
            return complain(f"there is no folder {arguments.json.absolute().parent} for --json")
    try:
        _require("cuda.core", "cuda.bindings", "numpy", *(() if arguments.run else ("jupyterlab",)))
        # One that runs by itself has its own simulated GPU; those that are opened share the user's scheduler.
        machine = f"demo-{os.getpid() if arguments.run else f'of-{os.getuid()}'}"
        plan = make_plan(os.environ, arguments.backend, arguments.fraction, machine)
        if not arguments.run:
            _open(plan, arguments.port)
    except DemoError as error:
        return complain(str(error))
    # Here and not above: it needs the protocol's compiled part, which a checkout that was never built lacks.
    from .run import run_demo

    try:
        return run_demo(plan, EXAMPLES, NOTEBOOKS, port=arguments.port, report=arguments.json)
    finally:
        # What the simulated machine leaves of itself, which nobody will use again.
        Path(f"/dev/shm/gpushare-sim-{machine}").unlink(missing_ok=True)


# --- What it runs on ----------------------------------------------------------------------------------------------


def make_plan(
    environ: Mapping[str, str], backend: Backend | None, fraction: float | None, machine: str
) -> Plan:
    """Choose the driver, and how much memory each notebook takes.

    Parameters
    ----------
    environ
        The user's environment.
    backend
        Memory backend; None: the driver's best.
    fraction
        Of the GPU's memory for each notebook; None: what is worth seeing and possible.
    machine
        Name of the simulated machine, where there is no GPU.

    Raises
    ------
    DemoError
        If there is no way; the message says what to do.
    """
    variables = dict(environ)
    driver = find_driver(variables)
    total, used = (0, 0) if driver is None or driver.simulated else _real_gpu(driver)
    remark = ""
    if total == 0:
        variables["GPUSHARE_SIM"] = "1"
        driver = find_driver(variables)
        fraction = FRACTION if fraction is None else fraction
        _simulate(variables, machine)
    else:
        if backend == "managed":
            raise DemoError("backend managed is for the simulated driver only so far; choose swap")
        _require_compiler()
        variables["GPUSHARE_FORBID_MANAGED"] = "1"
        backend = "swap"
        if fraction is None:
            fraction, remark = _possible_fraction(total, used, host_budget(None, 0))
    assert driver is not None
    if backend is not None:
        variables["GPUSHARE_BACKEND"] = backend
    variables["GPUSHARE_DEMO_FRACTION"] = f"{fraction:.4f}"
    return Plan(driver, fraction, remark, variables)


def _real_gpu(driver: Driver) -> tuple[int, int]:
    """Bytes of the first GPU, and of them those in use; zeros where there is none."""
    from ...scheduler.gpu.devices import Devices

    devices = Devices(driver.nvml)
    try:
        found = devices.start()
    finally:
        devices.stop()
    return (found[0].total, found[0].used) if found else (0, 0)


def _simulate(variables: dict[str, str], machine: str) -> None:
    """Describe the simulated GPU, where the user has not."""
    compiler = variables.get("GPUSHARE_SIM_CXX") or "g++"
    if shutil.which(compiler, path=variables.get("PATH")) is None:
        raise DemoError(
            f"the simulated driver compiles kernels with {compiler}, which is not here; install it (Debian: apt-get "
            "install g++)"
        )
    variables.setdefault("GPUSHARE_SIM_MEMORY", SIMULATED_MEMORY)
    memory = parse_size(variables["GPUSHARE_SIM_MEMORY"])
    variables.setdefault("GPUSHARE_SIM_CONTEXT", str(memory // SIMULATED_CONTEXT))
    variables.setdefault("GPUSHARE_SIM_NAME", machine)


def _possible_fraction(total: int, used: int, budget: int) -> tuple[float, str]:
    """How much of a real GPU each notebook takes so that two do not fit together but the host can hold the rest."""
    room = total - used - max(total // 100, 64 << 20) - 2 * CONTEXT
    # Each moves out what does not fit beside the other, and for a moment both lie in the host's memory.
    by_host = (room + HOST_SHARE * budget / 2) / (2 * total)
    fraction = min(FRACTION, 0.95 * room / total, by_host)
    if 2 * fraction * total < 1.1 * room:
        raise DemoError(
            f"two notebooks that do not fit together on the GPU ({size(max(0, room))} free of {size(total)}) need more "
            f"host memory than there is to spare ({size(budget)}); choose with --fraction what to try"
        )
    if fraction == FRACTION:
        return fraction, ""
    why = (
        "are free on the GPU"
        if by_host > fraction
        else f"are free and the host can spare {size(budget)}"
    )
    return fraction, f"less than {FRACTION:.0%} because {size(room)} {why}"


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
    print(f"The notebooks are in {folder}; each takes {plan.fraction:.0%} of {gpu}.", flush=True)
    command = [
        *(sys.executable, "-m", "jupyterlab", str(folder)),
        "--ServerApp.jpserver_extensions={'jupyter_gpushare': True}",
        f"--LabApp.workspaces_dir={folder / WORKSPACES}",
        *([f"--ServerApp.port={port}", "--ServerApp.port_retries=0"] if port else []),
        # Jupyter does not run for root unless it is told to.
        *(["--allow-root"] if os.getuid() == 0 else []),
    ]
    os.execve(command[0], command, plan.environ)


def _copy(where: Path) -> Path:
    """Put the notebooks into a folder of the user's; what is there already stays."""
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
    """Lay both notebooks side by side: JupyterLab restores this as if it had been left so."""
    # JupyterLab's own name for the workspace "default".
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
            "memory of backend plain stays where it is, so the notebooks could not share; choose auto, swap or managed"
        )
    return backend


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 0.95:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no such share; write a number from 0.05 to 0.95"
        )
    return value


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; write a number from 1 to 65535")
    return int(text)
