# SPDX-License-Identifier: BSD-3-Clause
"""The tools of the MCP server, without a server."""

from __future__ import annotations

from types import ModuleType
from typing import Any, get_args

import pytest

from jupyter_gpushare.scheduler.core import messages as ev


@pytest.fixture(scope="module")
def tools() -> ModuleType:
    """Return the module. At the top, each worker of pytest would import mcp, which takes 1 s."""
    from jupyter_gpushare.cli.mcp import tools

    return tools


def test_the_classes_are_those_of_the_scheduler(tools: ModuleType) -> None:
    assert set(get_args(tools.NewClass)) == set(get_args(ev.Class))
    assert set(get_args(tools.SetClass)) == set(get_args(ev.Priority))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("token abc", "abc"),
        ("Basic abc", ""),
        ("Bearer", ""),
        ("Bearer ", ""),
        (None, ""),
    ],
)
def test_only_tokens_are_taken_from_a_header(
    header: str | None, token: str, tools: ModuleType
) -> None:
    assert tools.bearer(header) == token


@pytest.mark.parametrize("tool", ["release", "hibernate", "wake", "explain", "when_could_i_run"])
async def test_an_empty_name_is_not_the_kernel_that_runs_the_server(
    tool: str, tools: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mcp import Client

    monkeypatch.setenv("GPUSHARE_GROUP", "another")
    async with Client(tools.make_server(tools.Tools("http://127.0.0.1:1/"))) as client:
        found: Any = await client.call_tool(tool, {"notebook": ""})
    assert found.is_error
    assert "at least 1 character" in found.content[0].text
