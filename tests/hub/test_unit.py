# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service's unit for systemd."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_gpushare.cli.main import build_parser
from jupyter_gpushare.scheduler.node import config as node

UNIT = "gpushare-hub.service"


@pytest.fixture
def unit(root: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(root / "deploy" / "systemd" / UNIT)
    return parser


def test_the_unit_starts_the_service_for_the_node_scheduler(
    unit: configparser.ConfigParser,
) -> None:
    service = unit["Service"]
    _, *arguments = service["ExecStart"].split()
    assert build_parser("hub").parse_args(arguments).config == "/etc/gpushare/hub.py"
    assert service["Environment"] == f"GPUSHARE_SOCKET={node.SOCKET}"
    # The token is in a separate file.
    assert service["EnvironmentFile"] == "/etc/gpushare/hub.env"


def test_the_service_has_no_rights_other_than_the_uid_of_root(
    unit: configparser.ConfigParser,
) -> None:
    for name, value in {
        "CapabilityBoundingSet": "",
        "NoNewPrivileges": "yes",
        "PrivateDevices": "yes",
        "ProtectSystem": "strict",
        "User": "root",
    }.items():
        assert unit["Service"][name] == value


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_the_unit(root: Path, tmp_path: Path) -> None:
    text = (root / "deploy" / "systemd" / UNIT).read_text()
    copy = tmp_path / UNIT
    copy.write_text(text.replace("/opt/gpushare/bin/gpushare", sys.executable))
    for command in (["verify"], ["security", "--offline=true", "--threshold=40"]):
        done = subprocess.run(
            ["systemd-analyze", *command, str(copy)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
