# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare doctor``: check the installation and explain how to fix problems."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from ..._version import __version__, docs_url
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
from ..terminal import console
from . import installation
from .disk import check_disk
from .finding import Finding
from .notebooks import notebooks

if TYPE_CHECKING:
    from ...scheduler.gpu.checkpoint_support import Ability

PROBE = Path(__file__).with_name("probe.py").resolve()
#: Seconds that a driver has to respond.
PATIENCE = 60
#: Seconds that a whole check of hibernation may take; on an H200 it takes about 15.
CHECK_PATIENCE = 600

#: Why processes like this one are not hibernated, by the scheduler's code.
OBSTACLES = {
    "container": "the scheduler cannot reach processes in this container, so they are not hibernated",
    "permission": "the scheduler lacks permission to checkpoint this user's processes, so they are not hibernated",
}
#: The page of the documentation about the privileged hibernator.
HIBERNATOR = "how-to/admin/hibernation"

#: How a line of the report begins, and in which colour.
MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


def add_parser(subparsers: Any) -> None:
    """Add ``gpushare doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        description="Check everything from the driver to JupyterLab, and explain how to fix each problem. The exit "
        "status is 1 if GPU sharing cannot work.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    checks = parser.add_mutually_exclusive_group()
    checks.add_argument(
        "--hibernate-check",
        action="store_true",
        help="test only whether this driver can hibernate notebooks, with test processes on the first GPU, and allow "
        "hibernation if it can; an untested driver may hang the machine, so save your work first",
    )
    checks.add_argument(
        "--managed-check",
        action="store_true",
        help="test only whether managed memory keeps its data when it is moved, with 64 MiB on the first GPU; few "
        "drivers have been tested, so save your work first",
    )


def run(args: argparse.Namespace) -> int:
    """Check the installation, print the report, and return the exit status."""
    if args.managed_check and os.environ.get("GPUSHARE_FORBID_MANAGED", "") not in ("", "0"):
        return complain(
            "GPUSHARE_FORBID_MANAGED is set, so managed memory cannot be checked; unset it to run the check"
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
        out = console()
        for finding in findings:
            mark, style = MARKS[finding.state]
            rest = f"  {finding.topic:<{width}}  {finding.found}"
            out.print(Text.assemble((mark, style), rest))
            if finding.remedy:
                out.print(Text(f"{'':<{width + 6}}  -> {finding.remedy}"))
    return 1 if any(finding.state == "fail" for finding in findings) else 0


def examine(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check everything, from the driver to JupyterLab."""
    # As a program that is not a client yet would find it.
    environ = plain_environment(environ)
    shims: Libraries | None = None
    driver: Driver | None = None
    try:
        shims = libraries()
        yield Finding("interposer", "ok", str(shims.cuda))
    except DriverError as error:
        yield Finding("interposer", "fail", str(error), "reinstall jupyter-gpushare")
    try:
        driver = find_driver(environ)
        if driver is None:
            yield Finding(
                "driver",
                "fail",
                "no CUDA driver found; kernels will start without GPU sharing",
                "install NVIDIA's driver, set GPUSHARE_DRIVER to its libcuda.so.1, or set GPUSHARE_SIM=1 to use the "
                "simulated driver",
            )
    except DriverError as error:
        yield Finding("driver", "fail", str(error), "correct or unset the variable")
    facts = (yield from _driver(driver, environ)) if driver is not None else None
    socket = socket_path(environ)
    yield from _guarded("scheduler", lambda: _scheduler(socket))
    if driver is not None and facts is not None:
        yield from _guarded("hibernation", lambda: _hibernation(driver, facts, socket))
    if driver is not None and shims is not None:
        yield from _guarded("LD_PRELOAD", lambda: _preload(driver, shims, socket, environ))
    yield from _guarded("packages", installation.packages)
    yield from _guarded("provisioner", lambda: installation.provisioner(environ))
    yield from _guarded("server extension", installation.server_extension)
    yield from _guarded("labextension", installation.labextension)
    yield from _guarded("kernelspecs", installation.kernelspecs)
    yield from _guarded("notebooks", notebooks)
    if environ.get("GPUSHARE_DISABLE", "") not in ("", "0"):
        yield Finding(
            "GPUSHARE_DISABLE", "warn", "set, so programs do not share the GPU", "unset it"
        )


def managed_check(environ: Mapping[str, str]) -> Finding:
    """Test whether managed memory keeps its data when it is moved."""
    topic = "managed memory"
    try:
        driver = find_driver(environ)
    except DriverError as error:
        return Finding(topic, "fail", str(error))
    if driver is None:
        return Finding(topic, "fail", "no CUDA driver found")
    found = _probe(plain_environment(environ), "managed", str(driver.cuda))
    if "error" in found:
        return Finding(topic, "fail", found["error"], "use GPUSHARE_BACKEND=swap or plain")
    kind = "the simulated driver" if driver.simulated else "this GPU"
    return Finding(
        topic,
        "ok",
        f"{size(found['bytes'])} moved to the host and back {found['rounds']} times on {kind} without losing data",
    )


def hibernate_check(environ: Mapping[str, str]) -> Finding:
    """Test whether the driver can hibernate processes, and allow hibernation if it can."""
    from ...scheduler.gpu import checked_drivers
    from ...scheduler.gpu.checkpoint_support import REPORTED, branch_of

    topic, environ = "hibernation", plain_environment(environ)
    try:
        driver = find_driver(environ)
    except DriverError as error:
        return Finding(topic, "fail", str(error))
    if driver is None:
        return Finding(topic, "fail", "no CUDA driver found")
    facts = _probe(environ, "driver", str(driver.cuda), str(driver.nvml or ""))
    if "error" in facts:
        return Finding(topic, "fail", facts["error"], "check the driver with nvidia-smi")
    version = facts.get("nvml", {}).get("driver")
    if driver.nvml is None or version is None:
        return Finding(
            topic, "fail", "NVML does not report the driver's version", "install libnvidia-ml.so.1"
        )
    ability = asyncio.run(_ability(driver, facts, {version}))
    if not ability.able:
        return Finding(topic, "fail", f"unavailable: {ability.text}")
    if report := REPORTED.get(branch_of(0, version)):
        print(f"gpushare: driver {version}: {report}", file=sys.stderr)
    found = _run_hibernate_check(driver, environ)
    if "error" in found:
        return Finding(
            topic, "fail", f"driver {version}: {found['error']}", "notebooks will not be hibernated"
        )
    summary = (
        f"driver {version}: hibernated and woke processes {found['cycles']} times without losing data, and killed "
        f"{found['killed']} of them"
    )
    try:
        file = checked_drivers.allow(version, environ)
    except OSError as error:
        return Finding(
            topic,
            "fail",
            f"{summary}; cannot write {error.filename}: {error.strerror}",
            f"set {checked_drivers.VARIABLE} to another file, here and for the scheduler",
        )
    return Finding(
        topic, "ok", f"{summary}; recorded in {file}", "restart the scheduler if it is running"
    )


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
        # It may never end if the driver hangs, so this process does not wait for it.
        child.kill()
        return {"error": f"the check did not finish within {CHECK_PATIENCE} s"}
    try:
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        last = (err.strip().splitlines() or ["no message"])[-1]
        return {"error": f"the check failed with status {child.returncode}: {last}"}
    return found


def _guarded(topic: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Turn an exception into a finding, because this command runs when something is broken."""
    try:
        yield from look()
    except Exception as error:
        yield Finding(topic, "fail", f"the check failed: {error!r}")


def _driver(
    driver: Driver, environ: Mapping[str, str]
) -> Generator[Finding, None, dict[str, Any] | None]:
    """Check the driver, and return what it reports about itself and its GPUs."""
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
            "libnvidia-ml.so.1 not found; programs not managed by gpushare cannot be detected",
            "install libnvidia-ml.so.1",
        )
    elif "error" in found["nvml"]:
        yield Finding("NVML", "warn", found["nvml"]["error"], "check the driver with nvidia-smi")
    else:
        yield Finding("NVML", "ok", f"{driver.nvml} (driver {found['nvml']['driver']})")
    if not found["gpus"]:
        yield Finding(
            "GPUs",
            "fail",
            "the driver reports no GPUs",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES",
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
            else "not supported here"
        )
        return Finding(
            "backend",
            "fail",
            f"invalid GPUSHARE_BACKEND={asked}: {why}",
            f"use auto, {' or '.join(possible)}",
        )
    active = possible[0] if asked == "auto" else asked
    chooser = "chosen automatically" if asked == "auto" else "set by GPUSHARE_BACKEND"
    summary = f"{active} ({chooser}; possible: {', '.join(possible)})"
    if active == "plain":
        return Finding(
            "backend",
            "warn",
            summary,
            "memory cannot be evicted, so all notebooks must fit on the GPU together",
        )
    if active == "managed" and not driver.simulated:
        return Finding(
            "backend",
            "warn",
            summary,
            "experimental on real GPUs: run gpushare doctor --managed-check",
        )
    return Finding("backend", "ok", summary)


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
        yield Finding(
            "host memory", "ok", f"up to {size(host_budget(None, 0))} available for evicted data"
        )
        return
    summary = f"{socket} (version {status['version']}, pid {status['scheduler']['pid']})"
    if status["version"] == __version__:
        yield Finding("scheduler", "ok", summary)
    else:
        yield Finding(
            "scheduler",
            "warn",
            summary,
            f"this command has version {__version__}; restart the Jupyter server that runs the scheduler",
        )
    host = status["host"]
    yield Finding(
        "host memory",
        "ok",
        f"up to {size(host['budget'])} available for evicted data; {size(host['swapped'])} in use",
    )
    yield from check_disk(host.get("disk_tier"))


def _hibernation(driver: Driver, facts: dict[str, Any], socket: Path) -> Iterator[Finding]:
    from ...scheduler.gpu.checkpoint_support import Ability
    from ...scheduler.protocol.client import ControlClient, ControlError

    topic = "hibernation"
    status: dict[str, Any] = {}
    me: dict[str, Any] = {}
    with contextlib.suppress(AddressError, ControlError), ControlClient(socket) as client:
        # Problems with the scheduler were already reported.
        status = client.request("status")["status"]
        me = client.request("whoami")
    may_change = me.get("admin", True)
    after = status["settings"].get("hibernate_after") if status else None
    if status and not after:
        command = "to turn it on, run: gpushare set --hibernate-after 600"
        yield Finding(
            topic, "ok", "off", command if may_change else "an administrator can turn it on"
        )
        return
    reported = status.get("hibernation", {"able": None})
    if reported["able"] is None:
        found = asyncio.run(_ability(driver, facts))
    else:
        found = Ability(
            reported["able"], reported["code"] or "", reported["text"], reported["moves"]
        )
    if not found.able:
        remedy = "" if may_change else "only an administrator of this machine can change this"
        yield Finding(topic, "warn", f"unavailable: {found.text}", remedy)
        return
    if obstacle := OBSTACLES.get(me.get("hibernation") or ""):
        remedy = f"an administrator can install the privileged hibernator: {docs_url(HIBERNATOR)}"
        yield Finding(topic, "warn", obstacle, remedy)
        return
    when = f"enabled: idle notebooks leave the GPU after {after:g} s" if after else "available"
    moves = " and may wake on another GPU of the same model" if found.moves and after else ""
    yield Finding(topic, "ok", f"{when}{moves}")


async def _ability(driver: Driver, facts: dict[str, Any], checked: Collection[str] = ()) -> Ability:
    from ...scheduler.gpu.checkpoint_helper import Hibernator

    hibernator = Hibernator(driver)
    try:
        version = facts.get("nvml", {}).get("driver")
        return await hibernator.probe((version, [gpu["name"] for gpu in facts["gpus"]]), checked)
    finally:
        await hibernator.close()


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
            "report this bug, with the output of gpushare doctor --json",
        )
    elif found["version"] != __version__:
        yield Finding(
            "LD_PRELOAD",
            "fail",
            f"the library has version {found['version']}",
            "reinstall jupyter-gpushare",
        )
    elif found["attached"] == 1:
        yield Finding("LD_PRELOAD", "ok", "a test CUDA program connected to the scheduler")
    else:
        why = found["why"] or "the program did not use the GPU"
        yield Finding(
            "LD_PRELOAD",
            "warn",
            f"works, but the test program could not connect to the scheduler: {why}",
        )


def _ticket(socket: Path, group: str) -> Path | None:
    from ...scheduler.protocol.client import ControlError

    try:
        return ticket.obtain_here(socket, group)
    except (ControlError, OSError):
        # Problems with the scheduler were already reported, and the test program reports its own.
        return None


def _probe(environ: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Run a check in a child process, because a driver may crash or hang."""
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
        return {"error": f"no response within {PATIENCE} s"}
    try:
        found = json.loads(child.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": f"the check failed with status {child.returncode}: {last}"}
    return found if isinstance(found, dict) else {"error": f"unexpected output: {found!r}"}
