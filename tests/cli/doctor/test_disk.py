# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare doctor`` reports about the disk tier."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.doctor import disk
from jupyter_gpushare.cli.doctor.disk import check_disk, file_system
from jupyter_gpushare.cli.doctor.finding import Finding

GIB = 1 << 30


def findings(folder: Path, **changes: Any) -> list[Finding]:
    state = {
        "folder": str(folder), "size": GIB, "used": GIB // 2, "direct": True, "encrypted": False,
        "fault": "", **changes,
    }  # fmt: skip
    return list(check_disk(state))


def report(folder: Path, **changes: Any) -> list[tuple[str, str]]:
    return [(found.state, found.found) for found in findings(folder, **changes)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(disk, "file_system", lambda path: "ext4")
    tmp_path.chmod(0o700)
    return tmp_path


def test_without_a_disk_there_is_nothing_to_report() -> None:
    assert list(check_disk(None)) == []


def test_a_good_disk(folder: Path) -> None:
    assert report(folder) == [("ok", f"{folder}: 512 MiB of 1 GiB in use")]
    assert report(folder, encrypted=True)[0][1].endswith("in use, encrypted")


def test_a_failed_disk(folder: Path) -> None:
    found = report(folder, fault="the disk of /d is full")
    assert found == [
        ("fail", "no more data goes to the disk: the disk of /d is full. No data is lost")
    ]


def test_a_folder_that_is_missing(folder: Path) -> None:
    missing = folder / "missing"
    (since,) = findings(missing)
    assert (since.state, "does not exist any more" in since.found) == ("warn", True)
    assert since.remedy == "create it, then restart the scheduler"
    fault = f"{missing} cannot be used: No such file or directory"
    (at_start,) = findings(missing, fault=fault)
    assert at_start.state == "fail"
    assert at_start.remedy == since.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [(errno.EACCES, "run gpushare doctor as root"), (errno.EIO, "check the disk")],
)
def test_a_folder_that_cannot_be_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: int, remedy: str
) -> None:
    def refuse(path: Path) -> Any:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "statvfs", refuse)
    (found,) = findings(folder)
    assert (found.state, found.remedy) == ("warn", remedy)


@pytest.mark.parametrize(
    ("changes", "concern"),
    [
        ({"direct": False}, "no direct I/O"),
        ({"size": 1 << 60}, "free"),
    ],
)
def test_concerns(folder: Path, changes: dict[str, Any], concern: str) -> None:
    ((state, found),) = report(folder, **changes)
    assert (state, concern in found) == ("warn", True)


def test_a_folder_to_which_every_user_can_write(folder: Path) -> None:
    folder.chmod(0o777)
    ((state, found),) = report(folder)
    assert (state, "every user can write" in found) == ("warn", True)
    folder.chmod(0o1777)
    assert report(folder)[0][0] == "ok"


@pytest.mark.parametrize(("kind", "concern"), [("tmpfs", "in memory"), ("nfs4", "on the network")])
def test_what_is_no_local_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, concern: str
) -> None:
    monkeypatch.setattr(disk, "file_system", lambda path: kind)
    ((state, found),) = report(folder)
    assert (state, concern in found) == ("warn", True)


def test_the_type_of_a_file_system(tmp_path: Path) -> None:
    device = os.stat(tmp_path).st_dev
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "21 1 0:999999 / /other rw shared:1 - proc proc rw\n"
        f"36 35 {os.major(device)}:{os.minor(device)} / / rw,noatime master:1 - ext3 /dev/root rw\n"
    )
    assert file_system(tmp_path, mounts) == "ext3"
