# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare status`` in terminals of any width, and for administrators."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path

import pytest

from jupyter_gpushare.cli.show.status import render
from jupyter_gpushare.cli.terminal import table
from tests.cli.conftest import Command
from tests.support.client import FakeClient
from tests.support.fake_hub import connect, start_node
from tests.support.scheduler import GIB, Scheduler, Start
from tests.support.terminal import in_terminal


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_longer_than_the_terminal(
    scheduler: Scheduler, environ: dict[str, str], gpushare: Command, columns: int
) -> None:
    name = f"a/{'long/' * 12}notebook.ipynb"
    with (
        scheduler.client("aaaa", name=name) as a,
        scheduler.client("bbbb", name="plot.ipynb") as b,
    ):
        a.grow(6 * GIB)
        a.run()
        b.grow(6 * GIB)
        b.request()
        with scheduler.control() as control:
            control.request("adjust", group="bbbb", priority="background", limit=0.5)
            control.request("maintenance", text="the GPU is exchanged " * 10)
        shown = in_terminal({**environ, "NO_COLOR": "1"}, "status", columns=columns)
        lines = shown.terminal.splitlines()
        text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= columns
    for told in ("plot.ipynb", "bbbb", "background", "6 GiB", "notebook.ipynb", "exchanged"):
        assert told in text
    # A file or a pipe gets one line for each row.
    assert max(map(len, gpushare("status").stdout.splitlines())) > 120


def test_a_terminal_shows_colour_unless_no_color_is_set(
    scheduler: Scheduler, environ: dict[str, str], gpushare: Command
) -> None:
    with scheduler.client("aaaa", name="train.ipynb") as a:
        a.run()
        coloured = in_terminal(environ, "status", columns=160).terminal
        assert re.search(r"\x1b\[32mrunning", coloured)
        plain = in_terminal({**environ, "NO_COLOR": "1"}, "status", columns=160).terminal
        assert re.search(r"^running ", plain, re.M)
        for text in (plain, gpushare("status").stdout):
            assert "\x1b" not in text


def test_columns_that_do_not_fit_are_below_their_row() -> None:
    head, rows = ("A", "NUMBER", ""), [("one", "12", "because of this"), ("two", "3", "")]
    assert table(head, rows, {1}).plain == "\n".join(
        ["A    NUMBER", "one      12  because of this", "two       3"]
    )
    assert table(head, rows, {1}, 14).plain == "\n".join(
        ["A    NUMBER", "one      12", "    because of", "    this", "two       3"]
    )


def test_wide_characters_count_as_two_columns() -> None:
    """Characters of Chinese, Japanese and Korean, and emojis."""
    rows = [("训练", "aaaa", "等待" * 29), ("plot", "bbbb", "")]
    assert table(("NAME", "ID", ""), rows, set()).plain == "\n".join(
        ["NAME  ID", f"训练  aaaa  {'等待' * 29}", "plot  bbbb"]
    )
    for width in (40, 41):
        long = ("训练" * 30, *rows[0][1:])
        lines = table(("NAME", "ID", ""), [long, *rows], set(), width).plain.splitlines()
        assert max(map(columns_of, lines)) <= width
    before = [
        columns_of(found[1]) for line in lines if (found := re.match("(.*) (aaaa|bbbb)", line))
    ]
    assert len(before) == 3
    assert len({*before}) == 1
    assert any("…" in line for line in lines)


def test_an_older_scheduler_sends_codes_only() -> None:
    group = {
        **{"id": "kernel-1", "name": "a.ipynb", "state": "waiting", "since": 1.0, "gpus": []},
        "reason": {"code": "behind", "params": {}},
    }
    status = {
        **{"time": 3.0, "gpus": [], "groups": [group], "notices": []},
        **{"host": {"swapped": 0, "budget": 0}, "driver": {"simulated": False}},
    }
    assert re.search(r"^waiting  a\.ipynb .* behind$", render(status).plain, re.M)


def columns_of(line: str) -> int:
    """Return how many columns of a terminal a line takes."""
    return sum(2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in line)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_administrators_see_the_users(
    start: Start, tmp_path: Path, gpushare: Command, environ: dict[str, str]
) -> None:
    node = start_node(start, tmp_path, shared_uids=[])
    with (
        FakeClient(node.path, "aaaa", node.gpu, connection=connect(node.path, 12345)) as ada,
        FakeClient(node.path, "bbbb", node.gpu) as root,
    ):
        root.attach()
        assert "USER" not in gpushare("status").stdout
        ada.attach()
        shown = gpushare("status").stdout
        assert re.search(r"^STATE +NAME +USER +ID ", shown, re.M)
        assert re.search(r"^idle +aaaa +12345 +aaaa ", shown, re.M)
        assert re.search(r"^idle +bbbb +root +bbbb ", shown, re.M)
