# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.memory.budget import host_budget, host_limit, survey

GIB = 1 << 30
KIB = 1 << 10


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 32 GiB, of which 20 are available, and no control groups."""
    write(tmp_path / "proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 20971520 kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


#: What the machine gives: 20 GiB less a tenth of 32.
PLAIN = 20 * GIB - int(3.2 * GIB)


def close(value: int, expected: int) -> bool:
    return abs(value - expected) < 2 * KIB


def test_a_tenth_of_the_machine_is_reserved(machine: Path) -> None:
    assert close(host_budget(None, 0, survey(machine)), PLAIN)


def test_a_small_machine_keeps_half_a_gib(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
    assert host_budget(None, 0, survey(tmp_path)) == GIB // 2
    write(tmp_path / "proc/meminfo", "MemTotal: 2097152 kB\nMemAvailable: 1024 kB\n")
    assert host_budget(None, 0, survey(tmp_path)) == 0


def test_memory_in_use_already_counts_as_budget(machine: Path) -> None:
    assert close(host_budget(None, 5 * GIB, survey(machine)), PLAIN + 5 * GIB)


def test_the_setting_lowers_the_budget_but_does_not_raise_it(machine: Path) -> None:
    assert host_budget(GIB, 0, survey(machine)) == GIB
    assert host_budget(GIB, 5 * GIB, survey(machine)) == GIB
    assert close(host_budget(1000 * GIB, 0, survey(machine)), PLAIN)


def test_cgroup_v2_parents_count_and_page_cache_does_not(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "0::/user/notebook\n")
    group = machine / "sys/fs/cgroup/user"
    write(group / "memory.max", f"{8 * GIB}\n")
    write(group / "memory.current", f"{6 * GIB}\n")
    write(group / "memory.stat", f"anon 1\ninactive_file {3 * GIB}\n")
    write(group / "notebook/memory.max", "max\n")
    write(group / "notebook/memory.current", f"{6 * GIB}\n")
    assert host_budget(None, 0, survey(machine)) == 5 * GIB
    assert host_budget(None, GIB, survey(machine)) == 6 * GIB


def test_cgroup_v1_limits_count(machine: Path) -> None:
    write(machine / "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n")
    # Inside a container the mount shows the container's group, not the path that the file names.
    group = machine / "sys/fs/cgroup/memory"
    write(group / "memory.limit_in_bytes", f"{4 * GIB}\n")
    write(group / "memory.usage_in_bytes", f"{3 * GIB}\n")
    write(group / "memory.stat", f"total_inactive_file {GIB}\n")
    assert host_budget(None, 0, survey(machine)) == 2 * GIB
    write(group / "memory.limit_in_bytes", "9223372036854771712\n")
    assert close(host_budget(None, 0, survey(machine)), PLAIN)


def test_without_other_programs_reserve_cgroups_and_setting_bound_the_budget(
    machine: Path,
) -> None:
    assert close(host_limit(None, survey(machine)), 32 * GIB - int(3.2 * GIB))
    assert host_limit(GIB, survey(machine)) == GIB
    write(machine / "proc/self/cgroup", "0::/user\n")
    write(machine / "sys/fs/cgroup/user/memory.max", f"{8 * GIB}\n")
    write(machine / "sys/fs/cgroup/user/memory.current", f"{7 * GIB}\n")
    assert host_limit(None, survey(machine)) == 8 * GIB


def test_this_machine_has_a_budget() -> None:
    assert 0 < host_budget(None, 0) < 1 << 50
