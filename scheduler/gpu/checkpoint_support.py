# SPDX-License-Identifier: BSD-3-Clause
"""Whether processes can hibernate on this machine, and which of them must not, with a sentence for each reason."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

#: The first driver branch with the checkpoint calls (github.com/NVIDIA/cuda-checkpoint, README).
CHECKPOINTS = 570
#: The driver branch of each CUDA version, if NVML is not available (CUDA's release notes, table 3).
BRANCHES = ((13010, 590), (13000, 580), (12080, 570))

#: Driver branches on which all of our tests passed (benchmarks.md), including waking on another GPU. Another branch is
#: used if `checked_drivers` has its version, but not to wake on another GPU, which that check does not try.
TESTED = frozenset({580})
#: Problems with a branch that others reported; shown before the check runs there.
REPORTED = {
    595: "killing a process that was hibernated before was reported to hang the machine "
    "(NVIDIA/cuda-checkpoint issue 53)",
    610: "it was reported to end processes with many threads when they are locked (NVIDIA/cuda-checkpoint issue 58)",
}


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether processes can hibernate on this machine.

    Attributes
    ----------
    able
        Whether they can.
    code
        If not, the reason: ``driver``, ``helper`` or ``permission``; otherwise empty.
    text
        If not, the reason as a sentence, with what to do; otherwise empty.
    moves
        Whether they can wake on another GPU of the same name.
    """

    able: bool
    code: str = ""
    text: str = ""
    moves: bool = False


def branch_of(cuda: int, driver: str | None) -> int:
    """Return a driver's branch; 0: it is too old for checkpoints.

    Parameters
    ----------
    cuda
        The result of ``cuDriverGetVersion``.
    driver
        The driver's version from NVML; None if NVML has none.
    """
    found = re.match(r"\d+", driver or "")
    return int(found[0]) if found else next((b for least, b in BRANCHES if cuda >= least), 0)


def judge(
    cuda: int,
    functions: bool,
    driver: str | None,
    gpus: Sequence[str],
    checked: Collection[str] = (),
) -> Ability:
    """Return what a driver supports.

    Parameters
    ----------
    cuda
        The result of ``cuDriverGetVersion``.
    functions
        Whether it has all checkpoint calls.
    driver
        The driver's version from NVML; None if NVML has none.
    gpus
        The GPUs' names.
    checked
        Versions that passed ``gpushare doctor --hibernate-check`` here.
    """
    branch = branch_of(cuda, driver)
    named = f"{driver}, " if driver else ""
    shown = f"the driver ({named}CUDA {cuda // 1000}.{cuda % 1000 // 10})"
    if branch < CHECKPOINTS:
        return Ability(
            False,
            "driver",
            f"{shown} is older than {CHECKPOINTS}, which hibernation takes: update it",
        )
    if not functions:
        return Ability(
            False,
            "driver",
            f"{shown} lacks the checkpoint calls: an older libcuda.so.1 stands in its place; remove that",
        )
    if branch not in TESTED and driver not in checked:
        return Ability(
            False,
            "driver",
            f"{shown} has not been tested: run gpushare doctor --hibernate-check once, and restart the scheduler",
        )
    several = max(Counter(gpus).values(), default=0) > 1
    return Ability(True, moves=branch in TESTED and several)


def refuses(pid: int, namespace: int = 0) -> str | None:
    """Return why this process must not checkpoint another one: a code of `refusals.WHY`, or None.

    The driver reaches its target through ``/proc/PID`` (its developer in NVIDIA/cuda-checkpoint issue 41). There, the
    Linux kernel admits processes that may read the target as a debugger would: root, CAP_SYS_PTRACE, or the same user
    unless the process has dropped that. So this queries the Linux kernel rather than comparing uids. It is not
    documented whether the driver also attaches as a debugger, which ``kernel.yama.ptrace_scope`` would forbid. Without
    root, it worked in the only known report (checkpoint-restore/criu issue 3089), so that setting refuses nothing here;
    see `hint`.

    Parameters
    ----------
    pid
        The process, by its number here; 0: it is not visible from here.
    namespace
        The inode of its PID namespace, as the process states it; 0: it does not. This only decides between
        ``container`` and ``permission`` where ``/proc`` hides the process.
    """
    if pid <= 0:
        return "container"
    try:
        # All processes may read this. A process in another container has numbers in more PID namespaces.
        status = _status(pid)
        elsewhere = _depth(status) != _depth(_status("self"))
    except OSError:
        if not namespace:
            # It has ended, which is noticed elsewhere.
            return "failed"
        status, elsewhere = "", namespace != os.stat("/proc/self/ns/pid").st_ino
    try:
        os.stat(f"/proc/{pid}/ns/pid")
    except OSError as error:
        if status and not isinstance(error, PermissionError):
            return "failed"
        return "container" if elsewhere else "permission"
    tracer = re.search(r"^TracerPid:\s*(\d+)", status, re.M)
    return "debugger" if tracer and int(tracer[1]) else None


def _status(pid: int | str) -> str:
    return Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")


def _depth(status: str) -> int:
    """Return the number of PID namespaces of a process, as far as they are visible from here."""
    found = re.search(r"^NSpid:(.*)", status, re.M)
    return len(found[1].split()) if found else 1


def ptrace_scope() -> int:
    """Return ``kernel.yama.ptrace_scope``: 0 if all users may debug their own processes, or without Yama.

    1: only their descendants and processes that allow it, 2: only root, 3: none (Linux's admin-guide/LSM/Yama).
    """
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def may_debug(pid: int | str = "self") -> bool:
    """Whether a process may debug all processes (CAP_SYS_PTRACE, bit 19)."""
    try:
        status = _status(pid)
    except OSError:
        return False
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M)
    return found is not None and bool(int(found[1], 16) >> 19 & 1)


def hint() -> str:
    """Return what to do if the driver was not permitted to checkpoint a process that this one may read."""
    if may_debug():
        return "a security module or a container's seccomp profile may forbid it"
    scope = ptrace_scope()
    if scope:
        return (
            f"kernel.yama.ptrace_scope is {scope}: an administrator can set it to 0, or give the scheduler "
            "CAP_SYS_PTRACE"
        )
    return (
        "an administrator can give the scheduler CAP_SYS_PTRACE, or enable the GPU's persistence mode "
        "(nvidia-smi -pm 1)"
    )
