# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare doctor``: what was found, what is active, and why not."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..._version import __version__
from ...kernel_provisioner import ticket
from ...kernel_provisioner.launch import (
    LaunchError,
    client_environment,
    new_group,
    plain_environment,
)
from ...scheduler.gpu.drivers import Driver, DriverError, Libraries, find_driver, libraries
from ...scheduler.node.arguments import complain
from ...scheduler.protocol.address import AddressError, is_own_place, prepare, socket_path
from ...scheduler.views.words.amounts import size

if TYPE_CHECKING:
    from ...scheduler.gpu.checkpoint_support import Ability

PROBE = Path(__file__).with_name("probe.py").resolve()
#: Seconds that a driver is given.
PATIENCE = 60
#: Seconds that a whole check of hibernation is given; it takes some 15 on an H200.
CHECK_PATIENCE = 600
EXTENSION = "jupyter_gpushare"
LABEXTENSION = "jupyter-gpushare"
PROVISIONER = "gpushare"

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    topic
        What was looked at.
    state
        Whether it is as it should be.
    found
        What is there.
    remedy
        What the user may do about it.
    """

    topic: str
    state: Literal["ok", "warn", "fail"]
    found: str
    remedy: str = ""


def add_parser(subparsers: Any) -> None:
    """Add ``gpushare doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="say what was found, what is active, and why not",
        description="Say what was found, what is active, and why not. Exit status 1 if sharing cannot work.",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead")
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument(
        "--hibernate-check",
        action="store_true",
        help="only try, with processes of its own on the first GPU, whether this driver can hibernate notebooks, and "
        "write down that it may if so; an untested driver may hang the machine, so save your work first",
    )
    checks.add_argument(
        "--managed-check",
        action="store_true",
        help="only try, with 64 MiB on the first GPU, whether managed memory survives being moved; few drivers were "
        "ever tried, so save your work first",
    )


def run(args: argparse.Namespace) -> int:
    """Look, report, and say by the exit status whether all is well."""
    if args.managed_check and os.environ.get("GPUSHARE_FORBID_MANAGED", "") not in ("", "0"):
        return complain(
            "GPUSHARE_FORBID_MANAGED is set: managed memory is not to be used here, not even to check it"
        )
    if args.managed_check:
        findings = [managed_check(os.environ)]
    elif args.hibernate_check:
        findings = [hibernate_check(os.environ)]
    else:
        findings = list(examine(os.environ))
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            print(f"{MARKS[finding.state]}  {finding.topic:<{width}}  {finding.found}")
            if finding.remedy:
                print(f"{'':<{width + 6}}  -> {finding.remedy}")
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at everything, from the driver up to JupyterLab."""
    # What a program that is not yet a client would find.
    environ = plain_environment(environ)
    shims: Libraries | None = None
    driver: Driver | None = None
    try:
        shims = libraries()
        yield Finding("interposer", "ok", str(shims.cuda))
    except DriverError as error:
        yield Finding("interposer", "fail", str(error), "install jupyter-gpushare again")
    try:
        driver = find_driver(environ)
        if driver is None:
            yield Finding(
                "driver",
                "fail",
                "no CUDA driver was found; kernels start as without gpushare",
                "install NVIDIA's driver, or set GPUSHARE_DRIVER to its libcuda.so.1, or GPUSHARE_SIM=1 to try the "
                "simulated one",
            )
    except DriverError as error:
        yield Finding("driver", "fail", str(error), "mend or unset the variable")
    facts = (yield from _driver(driver, environ)) if driver is not None else None
    socket = socket_path(environ)
    yield from _guarded("scheduler", lambda: _scheduler(socket))
    if driver is not None and facts is not None:
        yield from _guarded("hibernation", lambda: _hibernation(driver, facts, socket))
    if driver is not None and shims is not None:
        yield from _guarded("LD_PRELOAD", lambda: _preload(driver, shims, socket, environ))
    yield from _guarded("packages", _packages)
    yield from _guarded("provisioner", lambda: _provisioner(environ))
    yield from _guarded("server extension", _server_extension)
    yield from _guarded("labextension", _labextension)
    yield from _guarded("kernelspecs", _kernelspecs)
    if environ.get("GPUSHARE_DISABLE", "") not in ("", "0"):
        yield Finding("GPUSHARE_DISABLE", "warn", "is set: programs do not share", "unset it")


def managed_check(environ: Mapping[str, str]) -> Finding:
    """Try whether managed memory survives being moved."""
    topic = "managed memory"
    try:
        driver = find_driver(environ)
    except DriverError as error:
        return Finding(topic, "fail", str(error))
    if driver is None:
        return Finding(topic, "fail", "no CUDA driver was found")
    found = _probe(plain_environment(environ), "managed", str(driver.cuda))
    if "error" in found:
        return Finding(topic, "fail", found["error"], "keep to GPUSHARE_BACKEND=swap or plain")
    kind = "the simulated driver" if driver.simulated else "this GPU"
    return Finding(
        topic,
        "ok",
        f"{size(found['bytes'])} went out and in {found['rounds']} times on {kind} and kept every byte",
    )


def hibernate_check(environ: Mapping[str, str]) -> Finding:
    """Try whether the driver can hibernate processes, and write down that it may."""
    from ...scheduler.gpu import checked_drivers
    from ...scheduler.gpu.checkpoint_support import REPORTED, branch_of

    topic, environ = "hibernation", plain_environment(environ)
    try:
        driver = find_driver(environ)
    except DriverError as error:
        return Finding(topic, "fail", str(error))
    if driver is None:
        return Finding(topic, "fail", "no CUDA driver was found")
    facts = _probe(environ, "driver", str(driver.cuda), str(driver.nvml or ""))
    if "error" in facts:
        return Finding(topic, "fail", facts["error"], "check the driver with nvidia-smi")
    version = facts.get("nvml", {}).get("driver")
    if driver.nvml is None or version is None:
        return Finding(
            topic, "fail", "NVML does not say the driver's version", "install libnvidia-ml.so.1"
        )
    ability = asyncio.run(_ability(driver, facts, {version}))
    if not ability.able:
        return Finding(topic, "fail", f"is not possible: {ability.text}")
    if report := REPORTED.get(branch_of(0, version)):
        print(f"gpushare: driver {version}: {report}", file=sys.stderr)
    found = _run_hibernate_check(driver, environ)
    if "error" in found:
        return Finding(
            topic, "fail", f"driver {version}: {found['error']}", "notebooks do not hibernate here"
        )
    said = (
        f"driver {version}: processes left the GPU and came back {found['cycles']} times with every byte, "
        f"and {found['killed']} were killed"
    )
    try:
        file = checked_drivers.allow(version, environ)
    except OSError as error:
        return Finding(
            topic,
            "fail",
            f"{said}; but {error.filename} cannot be written: {error.strerror}",
            f"name another file with {checked_drivers.VARIABLE}, here and for the scheduler",
        )
    return Finding(topic, "ok", f"{said}; noted in {file}", "restart the scheduler if one runs")


def _run_hibernate_check(driver: Driver, environ: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "jupyter_gpushare.cli.doctor.hibernate_check"]
    child = subprocess.Popen(
        [*command, str(driver.cuda), str(driver.nvml)],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, err = child.communicate(timeout=CHECK_PATIENCE)
    except subprocess.TimeoutExpired:
        # Nobody waits for its end: in a driver that hangs it may never come.
        child.kill()
        return {"error": f"the check did not end within {CHECK_PATIENCE} s"}
    try:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        last = (err.strip().splitlines() or ["no message"])[-1]
        return {"error": f"the check ended with status {child.returncode}: {last}"}
    return found


def _guarded(topic: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Go on after a fault: a doctor is called when something is broken."""
    try:
        yield from look()
    except Exception as error:
        yield Finding(topic, "fail", f"could not be examined: {error!r}")


def _driver(
    driver: Driver, environ: Mapping[str, str]
) -> Generator[Finding, None, dict[str, Any] | None]:
    """Look at the driver, and return what it says of itself and its GPUs."""
    paths = [str(driver.cuda), *([str(driver.nvml)] if driver.nvml else [])]
    found = _probe(environ, "driver", *paths)
    if "error" in found:
        yield Finding(
            "driver", "fail", f"{driver.cuda}: {found['error']}", "check the driver with nvidia-smi"
        )
        return None
    kind = "simulated, " if driver.simulated else ""
    yield Finding("driver", "ok", f"{driver.cuda} ({kind}CUDA {found['cuda']})")
    if "nvml" not in found:
        yield Finding(
            "NVML",
            "warn",
            "no libnvidia-ml.so.1 was found: programs outside gpushare cannot be seen",
            "install it",
        )
    elif "error" in found["nvml"]:
        yield Finding("NVML", "warn", found["nvml"]["error"], "check the driver with nvidia-smi")
    else:
        yield Finding("NVML", "ok", f"{driver.nvml} (driver {found['nvml']['driver']})")
    if not found["gpus"]:
        yield Finding(
            "GPUs", "fail", "the driver has no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
        return None
    for index, gpu in enumerate(found["gpus"]):
        yield Finding(f"GPU {index}", "ok", f"{gpu['name']}, {size(gpu['total'])}")
    yield _backend(driver, found["gpus"], environ)
    return found


def _backend(driver: Driver, gpus: list[dict[str, Any]], environ: Mapping[str, str]) -> Finding:
    asked = environ.get("GPUSHARE_BACKEND") or "auto"
    forbidden = environ.get("GPUSHARE_FORBID_MANAGED", "") not in ("", "0")
    vmm, paged = all(gpu["vmm"] for gpu in gpus), all(gpu["managed"] for gpu in gpus)
    possible = [
        *(["swap"] if vmm else []),
        *(["managed"] if paged and not forbidden else []),
        "plain",
    ]
    if asked not in ("auto", *possible):
        why = (
            "GPUSHARE_FORBID_MANAGED is set"
            if asked == "managed" and forbidden
            else "it is not possible here"
        )
        return Finding(
            "backend",
            "fail",
            f"GPUSHARE_BACKEND is {asked!r}: {why}",
            f"choose auto, {' or '.join(possible)}",
        )
    active = possible[0] if asked == "auto" else asked
    chooser = "chosen by auto" if asked == "auto" else "by GPUSHARE_BACKEND"
    said = f"{active} ({chooser}; possible: {', '.join(possible)})"
    if active == "plain":
        return Finding(
            "backend", "warn", said, "memory cannot move, so notebooks must fit together"
        )
    if active == "managed" and not driver.simulated:
        return Finding(
            "backend",
            "warn",
            said,
            "experimental on real GPUs: run gpushare doctor --managed-check",
        )
    return Finding("backend", "ok", said)


def _scheduler(socket: Path) -> Iterator[Finding]:
    from ...scheduler.memory.budget import host_budget
    from ...scheduler.protocol.client import ControlClient, ControlError

    try:
        if is_own_place(socket):
            prepare(socket)
        with ControlClient(socket) as client:
            status = client.request("status")["status"]
    except AddressError as error:
        yield Finding("scheduler", "fail", str(error))
        return
    except ControlError as error:
        yield Finding("scheduler", "warn", str(error))
        yield Finding("host memory", "ok", f"{size(host_budget(None, 0))} may hold swapped data")
        return
    said = f"{socket} (version {status['version']}, pid {status['scheduler']['pid']})"
    if status["version"] == __version__:
        yield Finding("scheduler", "ok", said)
    else:
        yield Finding(
            "scheduler",
            "warn",
            said,
            f"this is {__version__}: start the scheduler's Jupyter server again",
        )
    host = status["host"]
    yield Finding(
        "host memory",
        "ok",
        f"{size(host['budget'])} may hold swapped data; {size(host['swapped'])} do",
    )


def _hibernation(driver: Driver, facts: dict[str, Any], socket: Path) -> Iterator[Finding]:
    from ...scheduler.gpu.checkpoint_support import Ability
    from ...scheduler.protocol.client import ControlClient, ControlError

    topic = "hibernation"
    status: dict[str, Any] = {}
    with contextlib.suppress(AddressError, ControlError), ControlClient(socket) as client:
        # What is wrong with the scheduler was said.
        status = client.request("status")["status"]
    after = status["settings"].get("hibernate_after") if status else None
    if status and not after:
        yield Finding(
            topic, "ok", "is switched off", "to switch it on: gpushare set --hibernate-after 600"
        )
        return
    told = status.get("hibernation", {"able": None})
    if told["able"] is None:
        found = asyncio.run(_ability(driver, facts))
    else:
        found = Ability(told["able"], told["code"] or "", told["text"], told["moves"])
    if not found.able:
        yield Finding(topic, "warn", f"is not possible: {found.text}")
        return
    if status and (obstacle := _obstacle(status["scheduler"]["pid"])) is not None:
        yield Finding(topic, "warn", *obstacle)
        return
    when = f"after {after:g} s of idleness a notebook leaves the GPU" if after else "is possible"
    moves = ", and may come back on another one of the same name" if found.moves and after else ""
    yield Finding(topic, "ok", f"{when}{moves}")


async def _ability(driver: Driver, facts: dict[str, Any], checked: Collection[str] = ()) -> Ability:
    from ...scheduler.gpu.checkpoint_helper import Hibernator

    hibernator = Hibernator(driver)
    try:
        version = facts.get("nvml", {}).get("driver")
        return await hibernator.probe((version, [gpu["name"] for gpu in facts["gpus"]]), checked)
    finally:
        await hibernator.close()


def _obstacle(pid: int) -> tuple[str, str] | None:
    """Return why a scheduler cannot reach into this user's processes, and what to do; None: it can."""
    from ...scheduler.gpu.checkpoint_support import may_debug

    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        words, owner = b"", 0
    if b"gpushare" not in words:
        return (
            "the scheduler is in another container than this process, and leaves such kernels alone",
            "let both have one PID namespace, if idle notebooks are to leave the GPU",
        )
    if owner != os.getuid() and not may_debug(pid):
        return (
            "the scheduler may not reach into this user's processes, and leaves them alone",
            "its administrator can give it CAP_SYS_PTRACE: gpushare.service says how",
        )
    return None


def _preload(
    driver: Driver, shims: Libraries, socket: Path, environ: Mapping[str, str]
) -> Iterator[Finding]:
    group, shown = ticket.of_kernel(environ) or (new_group(), None)
    given = shown is None and not is_own_place(socket)
    try:
        if given:
            shown = _ticket(socket, group)
        environment = client_environment(
            environ,
            group=group,
            name="gpushare doctor",
            driver=driver,
            socket=socket,
            shims=shims,
            ticket=shown,
        )
    except LaunchError as error:
        yield Finding("LD_PRELOAD", "fail", str(error))
        return
    found = _probe(environment, "preload")
    if given and shown is not None:
        ticket.give_back_here(socket, group, shown)
    if "error" in found:
        yield Finding(
            "LD_PRELOAD",
            "fail",
            found["error"],
            "please report it, with what gpushare doctor --json says",
        )
    elif found["version"] != __version__:
        yield Finding(
            "LD_PRELOAD",
            "fail",
            f"the library is of version {found['version']}",
            "install jupyter-gpushare again",
        )
    elif found["attached"] == 1:
        yield Finding(
            "LD_PRELOAD", "ok", "a program that uses CUDA became a client of the scheduler"
        )
    else:
        why = found["why"] or "it did not need the GPU"
        yield Finding(
            "LD_PRELOAD", "warn", f"works, but the program did not become a client: {why}"
        )


def _ticket(socket: Path, group: str) -> Path | None:
    from ...scheduler.protocol.client import ControlError

    try:
        return ticket.obtain_here(socket, group)
    except (ControlError, OSError):
        # What is wrong with the scheduler was said, and what this process is told will be.
        return None


def _provisioner(environ: Mapping[str, str]) -> Iterator[Finding]:
    topic = "provisioner"
    known = [
        entry.name
        for entry in importlib.metadata.entry_points(group="jupyter_client.kernel_provisioners")
    ]
    if PROVISIONER not in known:
        yield Finding(
            topic,
            "fail",
            "it is not installed in this environment",
            "pip install jupyter-gpushare here",
        )
        return
    from jupyter_core.application import JupyterApp

    # Reads what ServerApp would read; importing that takes a second.
    app = JupyterApp(config_file_name="jupyter_server_config")
    app.load_config_file()
    chosen = app.config.get("KernelProvisionerFactory", {}).get("default_provisioner_name")
    where = "your Jupyter configuration"
    if not chosen:
        chosen, where = (
            environ.get("JUPYTER_DEFAULT_PROVISIONER_NAME"),
            "JUPYTER_DEFAULT_PROVISIONER_NAME",
        )
    if chosen and chosen != PROVISIONER:
        yield Finding(
            topic,
            "warn",
            f"{where} chooses {chosen!r}: kernels start without sharing",
            f"choose {PROVISIONER!r} there",
        )
    elif chosen:
        yield Finding(topic, "ok", f"{where} chooses it")
    else:
        yield Finding(topic, "ok", "the server extension makes it the default")


def _packages() -> Iterator[Finding]:
    from ...server_extension.dependencies import mismatches

    found = list(mismatches())
    for mismatch in found:
        yield Finding(
            "packages",
            "warn" if mismatch.extra else "fail",
            str(mismatch),
            f"run: pip install '{mismatch.package}{mismatch.required}'",
        )
    if not found:
        yield Finding("packages", "ok", "all have a supported version")


def _server_extension() -> Iterator[Finding]:
    from jupyter_core.paths import jupyter_config_path
    from jupyter_server.extension.config import ExtensionConfigManager

    manager = ExtensionConfigManager(read_config_path=jupyter_config_path())
    stated = manager.get_jpserver_extensions()  # type: ignore[no-untyped-call]
    if stated.get(EXTENSION):
        yield Finding("server extension", "ok", "is enabled")
    elif EXTENSION in stated:
        yield Finding(
            "server extension",
            "fail",
            "is disabled",
            f"run: jupyter server extension enable {EXTENSION}",
        )
    else:
        yield Finding(
            "server extension",
            "fail",
            "no configuration of this Jupyter knows it",
            f"install jupyter-gpushare where Jupyter is, or run: jupyter server extension enable {EXTENSION}",
        )


def _labextension() -> Iterator[Finding]:
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        if Path(folder, LABEXTENSION, "package.json").is_file():
            yield Finding("labextension", "ok", str(Path(folder, LABEXTENSION)))
            return
    yield Finding(
        "labextension",
        "warn",
        "JupyterLab has no panel",
        "install jupyter-gpushare where JupyterLab is",
    )


def _kernelspecs() -> Iterator[Finding]:
    from ..programs.kernelspec import find

    if made := find():
        names = ", ".join(sorted(made))
        yield Finding("kernelspecs", "ok", f"{names}: shared in every front end")
    else:
        yield Finding(
            "kernelspecs",
            "ok",
            "kernels that papermill, nbconvert, VS Code or jupyter console start do not share the GPU",
            "run: gpushare kernelspec add shared, and choose that kernelspec there",
        )


def _probe(environ: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Try something in a child process that may crash or hang."""
    try:
        child = subprocess.run(
            [sys.executable, "-S", str(PROBE), *arguments],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {PATIENCE} s"}
    try:
        found = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"a child process ended with status {child.returncode}: {last}"}
    return found if isinstance(found, dict) else {"error": f"unexpected answer: {found!r}"}
