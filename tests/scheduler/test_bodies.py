# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of control requests."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import asdict, fields

from jupyter_gpushare.scheduler.protocol import bodies
from jupyter_gpushare.scheduler.protocol.bodies import BODIES, RequestError, read


def test_the_page_lists_all_parameters(root: Path) -> None:
    page = (root / "docs" / "reference" / "control.md").read_text(encoding="utf-8")
    page = page.split("## Requests\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \| .*\|$", page, re.MULTILINE))
    missing = {
        (operation, field.name)
        for operation, kind in BODIES.items()
        for field in fields(kind)
        if f"`{field.name}`" not in rows[operation] and f"`{field.name}:" not in page
    }
    assert missing == set()


@pytest.mark.parametrize("operation", sorted(BODIES))
def test_each_invalid_parameter_is_refused_with_a_sentence(operation: str) -> None:
    kind = BODIES[operation]
    required = {field.name: "begin" for field in fields(kind) if field.required}
    samples = {"groups": [], "file": "/a", "at": 1.0, "count": 1, "kind": "focus"}
    good = {name: samples.get(name, word) for name, word in required.items()}
    read(operation, good)
    for field in fields(kind):
        # No parameter is a tuple of nothing.
        with pytest.raises(RequestError, match=rf"^'{field.name}' must be .+, not {{1, 2}}$"):
            read(operation, {**good, field.name: {1, 2}})


@pytest.mark.parametrize(
    ("operation", "request_", "sentence"),
    [
        ("release", {}, "'group' must be a non-empty string, not None"),
        ("release", {"group": ""}, "'group' must be a non-empty string, not ''"),
        ("hold", {"group": "a", "on": 1}, "'on' must be true or false, not 1"),
        ("history", {"since": None}, "'since' must be a sequence number, not None"),
        ("history", {"since": 1.0}, "'since' must be a sequence number, not 1.0"),
        ("status", {"timeline": True}, "'timeline' must be a version number, not True"),
        (
            "set",
            {"quantum": "long"},
            "'quantum' must be 'auto' or a number of seconds above 0, not 'long'",
        ),
        ("set", {"anti_thrash": "maybe"}, "'anti_thrash' must be auto, on or off, not 'maybe'"),
        ("report", {"since": math.nan}, "'since' must be seconds since 1970, not nan"),
        ("report", {"until": math.inf}, "'until' must be seconds since 1970, not inf"),
        ("audit", {"since": -1}, "'since' must be seconds since 1970, not -1"),
        ("record", {"file": "here"}, "'file' must be an absolute path, not 'here'"),
        (
            "entitle",
            {"whose": "team:t", "members": [1]},
            "'members' must be a list of users, not [1]",
        ),
        (
            "ticket",
            {"group": "a", "server": "s" * 256},
            f"'server' must be a name of at most 255 characters, not {'s' * 256!r}",
        ),
    ],
)
def test_a_sentence_names_the_parameter_and_what_it_must_be(
    operation: str, request_: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RequestError) as refused:
        read(operation, request_)
    assert str(refused.value) == sentence


def test_parameters_of_a_later_release_are_ignored() -> None:
    found = read("release", {"op": "release", "protocol": 7, "group": "a", "gently": True})
    assert asdict(found) == {"group": "a"}
    assert read("whoami", {"op": "whoami"}) == bodies.Body()


def test_null_switches_hibernation_off_and_leaves_other_settings() -> None:
    found = read("set", {"quantum": None, "hibernate_after": None})
    assert (found.quantum, found.policy, found.hibernate_after) == (None, None, None)
    assert read("set", {"quantum": 3}).hibernate_after is UNSET
