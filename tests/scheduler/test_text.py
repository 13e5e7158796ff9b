# SPDX-License-Identifier: BSD-3-Clause
"""Names of users and programs do nothing to the terminals, logs and pages that show them."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol import wire as protocol
from jupyter_gpushare.scheduler.protocol.text import (
    PrintableFormatter,
    parse_json,
    printable,
    printable_json,
    to_json,
)
from tests.support.client import PATIENCE, FakeClient
from tests.support.scheduler import Scheduler

#: A title of the terminal's window, a bell, a new line, and text that runs backwards.
EVIL = "\x1b]0;owned\x07 \x1b[2J\r\nroot:\u202efdp.exe\u2066\x9b31m\u2028"
#: What none of it may leave behind.
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def test_control_characters_are_escaped_and_others_are_not() -> None:
    assert printable("a\x1b[31m\u202eb\n\x9b") == r"a\x1b[31m\u202eb\x0a\x9b"
    for harmless in ("", "Übung 3.ipynb", "דוח.ipynb", "👩\u200d🔬", "a\u200fb", r"C:\x1b"):
        assert printable(harmless) == harmless


@given(st.text())
def test_escaped_text_has_nothing_left_to_escape(text: str) -> None:
    shown = printable(text)
    assert not RAW.search(shown)
    assert "\n" not in shown
    assert printable(shown) == shown
    shown.encode()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(_JSON, st.booleans())
def test_parsing_escapes_all_text_in_json(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    try:
        source = text.encode()
    except UnicodeEncodeError:
        with pytest.raises(UnicodeDecodeError):
            parse_json(text.encode("utf-8", "surrogatepass"))
    else:
        assert parse_json(source) == printable_json(value)


@given(st.dictionaries(st.text(st.characters()), _JSON | st.text(st.characters())))
def test_text_written_as_json_is_read_back(value: dict[str, Any]) -> None:
    assert json.loads(to_json(value)) == value
    # Half of a surrogate pair, as in a file name that is not UTF-8, next to text that is JSON already.
    parts = {"whole": value, "parts": Raw(to_json(value)), "file": "\udc80"}
    assert json.loads(to_json(parts)) == {"whole": value, "parts": value, "file": "\udc80"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_an_encoding_other_than_utf_8_hides_no_characters(encoding: str) -> None:
    source = json.dumps({"op": "name", "name": EVIL}, ensure_ascii=False).encode(encoding)
    with pytest.raises(protocol.ProtocolError, match="no JSON"):
        protocol.decode_json(source)


def test_a_line_of_the_log_is_one_line() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrintableFormatter("%(levelname)s: %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("refused: %s", EVIL)
    assert not RAW.search(stream.getvalue())
    assert stream.getvalue().count("\n") == 1


@pytest.fixture
def evil(scheduler: Scheduler) -> Iterator[None]:
    """A client that names everything it can."""
    group = f"g{EVIL}"[:40]
    with FakeClient(scheduler.path, group, scheduler.gpu, name=EVIL) as client:
        client.attach()
        do_evil(scheduler, client)
        yield


def do_evil(scheduler: Scheduler, client: FakeClient) -> None:
    client.grow(1 << 20)
    client.run()
    now = time.monotonic()
    client.send(ev.Cell(client.group, "begin", EVIL, now, from_kernel=True))
    client.send(ev.Stuck(client.number, client.lease, EVIL, now))
    with scheduler.control() as control:
        control.request("name", group=client.group, name=f"renamed {EVIL}")
        control.request("notice", group=client.group, code=EVIL, params={EVIL: EVIL})
        control.request("entitle", whose=f"team:{EVIL}", weight=2.0, members=[EVIL])
        control.request("maintenance", text=EVIL)
    # Nonsense, which is logged with the group.
    with FakeClient(scheduler.path, f"x{EVIL}"[:40], scheduler.gpu) as other:
        other.attach()
        other.send_raw(b"\xff" * 64)
        other.expect_closed()


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(s for each in value.values() for s in strings(each))]
    if isinstance(value, list):
        return [s for each in value for s in strings(each)]
    return []


def test_answers_of_the_scheduler_can_be_shown(scheduler: Scheduler, evil: None) -> None:
    # As it comes over the socket: a client that escapes nothing is safe, too.
    with FakeClient(scheduler.path, "reader") as reader:
        for op in ("status", "history", "explain", "shares", "users", "metrics", "report"):
            request = {"op": op, "protocol": protocol.CONTROL_VERSION}
            reader.send_raw(protocol.encode_json(protocol.CONTROL, request))
            reply = json.loads(reader._next(PATIENCE).body)
            assert reply["ok"], reply
            found = strings(reply)
            assert not [text for text in found if RAW.search(text) or "\n" in text]
            if op in ("status", "history"):
                assert any("\\u202e" in text for text in found)


@pytest.mark.parametrize(
    "command",
    [["status"], ["explain"], ["history"], ["shares"], ["metrics"], ["audit"], ["report"]],
    ids=" ".join,
)
def test_a_terminal_shows_escaped_text(
    scheduler: Scheduler, evil: None, command: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", *command],
        env={**os.environ, "GPUSHARE_SOCKET": str(scheduler.path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = (done.stdout + done.stderr).decode()
    assert not RAW.search(shown)
    if command == ["status"]:
        assert r"renamed \x1b]0;owned\x07" in shown


def test_the_log_shows_escaped_text(scheduler: Scheduler, evil: None) -> None:
    assert r"\x1b]0;owned" in scheduler.log
    assert not RAW.search(scheduler.log)
