# SPDX-License-Identifier: BSD-3-Clause
"""Makes text of users and programs safe to show: in a terminal, a log or a page."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import msgspec

#: Unsafe characters: control characters (with ESC, BEL and line ends); separators of lines; characters that change the
#: direction of writing; and halves of surrogate pairs, which no encoding can write.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
#: What JSON contains if one of them is in it: an escape, or the character in UTF-8.
_MAY_BE_UNSAFE = re.compile(
    rb'\\[^"\\/]|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]'
)


def printable(text: str) -> str:
    r"""Replace each character that could change what is shown around it by its escape, such as ``\x1b``."""
    if _UNSAFE.search(text) is None:
        return text
    return _UNSAFE.sub(_escape, text)


def parse_json(source: bytes) -> Any:
    """Return the JSON value of a UTF-8 text, with all strings made printable.

    ``json.loads`` would guess the encoding of bytes. The search for unsafe characters does not find them in UTF-16 and
    UTF-32, nor half of a surrogate pair that is encoded as if it were a character.

    Raises
    ------
    ValueError
        The text is not UTF-8, or not JSON.
    """
    value = json.loads(source.decode("utf-8"))
    # In most texts a single search shows that there is nothing to escape.
    return value if _MAY_BE_UNSAFE.search(source) is None else printable_json(value)


def to_json(value: Any) -> bytes:
    """Return a value as JSON; parts that are JSON already are ``msgspec.Raw``."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        # The name of a file need not be UTF-8. JSON can nevertheless contain it, as an escape.
        return json.dumps(
            value, separators=(",", ":"), default=lambda part: json.loads(bytes(part))
        ).encode()


def printable_json(value: Any) -> Any:
    """Make all strings of a JSON value printable, keys included."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_json(each) for each in value]
    if isinstance(value, dict):
        return {printable(key): printable_json(each) for key, each in value.items()}
    return value


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PrintableFormatter(logging.Formatter):
    """Writes each message in one line, whatever is in it; a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as its base has it
        """Make the line."""
        record.message = printable(record.message)
        return super().formatMessage(record)


def log_to_stderr(level: int | str, layout: str) -> None:
    """Have a service's log go to standard error, which is a terminal or systemd's."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(layout))
    logging.basicConfig(level=level, handlers=[handler])
