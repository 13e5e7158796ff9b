# SPDX-License-Identifier: BSD-3-Clause
"""The tools of the MCP server, without a server."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from mcp import Client

from jupyter_gpushare.cli.mcp.tools import NewClass, SetClass, Tools, bearer, make_server
from jupyter_gpushare.scheduler.core import messages as ev


def test_the_classes_are_those_of_the_scheduler() -> None:
    assert set(get_args(NewClass)) == set(get_args(ev.Class))
    assert set(get_args(SetClass)) == set(get_args(ev.Priority))


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
def test_only_tokens_are_taken_from_a_header(header: str | None, token: str) -> None:
    assert bearer(header) == token


@pytest.mark.parametrize("tool", ["release", "hibernate", "wake", "explain", "when_could_i_run"])
async def test_an_empty_name_is_not_the_kernel_that_runs_the_server(
    tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_GROUP", "another")
    async with Client(make_server(Tools("http://127.0.0.1:1/"))) as client:
        found: Any = await client.call_tool(tool, {"notebook": ""})
    assert found.is_error
    assert "at least 1 character" in found.content[0].text
