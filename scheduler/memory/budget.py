# SPDX-License-Identifier: BSD-3-Clause
"""The host memory that swapped data may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

MIB = 1 << 20
#: What swapped data never gets: this fraction of the machine's memory, and at least this many bytes.
RESERVE_SHARE = 0.10
RESERVE_LEAST = 512 * MIB
#: Bytes that are read at once.
_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Survey:
    """The host memory at one moment."""

    #: Bytes, as ``/proc/meminfo`` names them.
    machine: dict[str, int]
    #: The limit, and what is left of it, of each limited control group of this process or above it.
    groups: list[tuple[int, int]] = field(default_factory=list)


def survey(root: Path = Path("/")) -> Survey:
    """Read the host memory. ``root`` is the file system's root."""
    return Survey(_meminfo(root), list(_cgroups(root)))


def host_budget(setting: int | None, held: int, seen: Survey | None = None) -> int:
    """Return the bytes of host memory that all swapped data may take.

    This is the least of the setting, what the control groups leave, and what the machine has available less a reserve.
    The latter two shrink as data is swapped out, so what is held already is added.

    Parameters
    ----------
    setting
        Bytes that the administrator allows, or None.
    held
        Bytes that swapped data takes now.
    seen
        The host memory; default: it is read.
    """
    seen = survey() if seen is None else seen
    limits = [held + headroom for _, headroom in seen.groups]
    machine = seen.machine
    if "MemAvailable" in machine:
        reserve = max(int(machine.get("MemTotal", 0) * RESERVE_SHARE), RESERVE_LEAST)
        limits.append(held + machine["MemAvailable"] - reserve)
    if setting is not None:
        limits.append(setting)
    return max(0, min(limits, default=0))


def host_limit(setting: int | None, seen: Survey | None = None) -> int:
    """Return the bytes of host memory that swapped data could take if no other program needed any.

    Parameters
    ----------
    setting, seen
        As for ``host_budget``.
    """
    seen = survey() if seen is None else seen
    limits = [limit for limit, _ in seen.groups]
    if total := seen.machine.get("MemTotal", 0):
        limits.append(total - max(int(total * RESERVE_SHARE), RESERVE_LEAST))
    if setting is not None:
        limits.append(setting)
    return max(0, min(limits, default=0))


def machine_available(root: Path = Path("/")) -> int:
    """Return the bytes of host memory that programs could still get on the machine."""
    machine = _meminfo(root)
    return machine.get("MemAvailable", machine.get("MemTotal", 0))


def machine_memory(root: Path = Path("/")) -> int:
    """Return the machine's bytes of host memory."""
    return _meminfo(root).get("MemTotal", 0)


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def _cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """Return, for each limited control group of this process or above it, its limit and what is left."""
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            for mount in (mounts, mounts / "unified"):
                names = ("memory.max", "memory.current", "inactive_file")
                yield from _headrooms(mount, path, *names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _headrooms(mounts / "memory", path, *names)


def _headrooms(
    mount: Path, path: str, limit_name: str, usage_name: str, cache_name: str
) -> Iterator[tuple[int, int]]:
    inside = Path(path.lstrip("/"))
    # In a container, the path may be the host's while the mount shows the container's own group.
    for relative in dict.fromkeys([inside, *inside.parents, Path()]):
        folder = mount / relative
        limit, usage = _read(folder / limit_name).strip(), _read(folder / usage_name).strip()
        if not limit.isdigit() or not usage.isdigit():
            continue
        cache = 0
        for line in _read(folder / "memory.stat").splitlines():
            name, _, value = line.partition(" ")
            if name == cache_name and value.isdigit():
                cache = int(value)
        # Version 1 writes "no limit" as a number near 2**63: harmless in a minimum.
        yield int(limit), int(limit) - max(0, int(usage) - cache)


def _read(path: Path) -> str:
    # Clients wait for this when a scheduler takes over, and a file object would take three times as long.
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(file, _AT_ONCE), b"")).decode("ascii", "replace")
        finally:
            os.close(file)
    except OSError:
        return ""
