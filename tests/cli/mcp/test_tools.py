# SPDX-License-Identifier: BSD-3-Clause
"""The tools of the MCP server, without a server."""

from __future__ import annotations

from typing import get_args

import pytest

from jupyter_gpushare.cli.mcp.tools import NewClass, SetClass, bearer
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
