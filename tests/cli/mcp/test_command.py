# SPDX-License-Identifier: BSD-3-Clause
"""What ``gpushare mcp`` says if it cannot serve. The tools are tested in ``tests/server_extension/test_mcp.py``."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.cli.main import main
from jupyter_gpushare.cli.mcp import command


def test_without_the_extra_the_error_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "available", lambda: False)
    assert main(["mcp"]) == 2
    assert "pip install 'jupyter-gpushare[mcp]'" in capsys.readouterr().err


def test_an_older_mcp_counts_as_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Up to version 1, the package mcp.server had no module mcpserver.
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not command.available()

    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr("importlib.util.find_spec", missing)
    assert not command.available()


@pytest.mark.parametrize("options", [[], ["--http"]])
def test_without_a_jupyter_server_the_error_says_what_to_do(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("GPUSHARE_URL", raising=False)
    assert main(["mcp", *options]) == 2
    assert "No Jupyter server is running" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["http", "70000", "-1"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["mcp", "--http", f"--port={port}"])
    assert "use a number from 0 to 65535" in capsys.readouterr().err
