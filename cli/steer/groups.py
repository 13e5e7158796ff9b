# SPDX-License-Identifier: BSD-3-Clause
"""The argument GROUP, and requests about the notebook or program that it names."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ...scheduler.node.arguments import nearest
from ...scheduler.protocol.client import UNKNOWN_GROUP, ControlClient, ControlError
from ...scheduler.views.redaction import OTHER

#: Seconds between two requests for the state of a notebook or program that a command follows.
PAUSE = 0.05
ENDED = "the notebook or program has ended"

HELP = "name, ID or ID prefix of the notebook or program"


def add_group(parser: argparse.ArgumentParser, *, optional: bool = True) -> None:
    """Add the argument that names a notebook or program."""
    argument = parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="?" if optional else None,
        help=f"{HELP}; optional if there is only one" if optional else HELP,
    )
    # argcomplete reads it.
    argument.completer = names  # type: ignore[attr-defined]


def names(**_: Any) -> list[str]:
    """Return the names that a shell offers."""
    try:
        with ControlClient(timeout=1.0) as client:
            return [str(group["name"]) for group in groups(client)]
    except ControlError:
        return []


def groups(client: ControlClient) -> list[dict[str, Any]]:
    """Return the notebooks and programs that the user can control."""
    known = client.request("status")["status"]["groups"]
    return [group for group in known if group.get("user") != OTHER]


def ask(
    client: ControlClient, operation: str, asked: str | None, **params: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Send a request about a notebook or program.

    Parameters
    ----------
    asked
        Its name, ID or ID prefix; None: the only one that there is.

    Returns
    -------
    tuple[dict[str, Any], dict[str, Any]]
        The reply, and the notebook or program as it was before: at least its ``id``, ``name`` and ``state``.

    Raises
    ------
    ControlError
        If the scheduler refuses the request, or it is not clear which notebook or program is meant.
    """
    known = groups(client)
    try:
        reply = client.request(operation, group=asked or _only(known), **params)
    except ControlError as error:
        if asked is None or error.code != UNKNOWN_GROUP:
            raise
        raise ControlError(f"{error}{nearest(asked, [group['name'] for group in known])}") from None
    found = [group for group in known if group["id"] == reply["group"]]
    started_since = {"id": reply["group"], "name": asked, "state": "idle"}
    return reply, found[0] if found else started_since


def follow(client: ControlClient, group: str) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield a notebook or program again and again until it ends, with the seconds since the first time."""
    begun = time.monotonic()
    while found := next((each for each in groups(client) if each["id"] == group), None):
        yield found, time.monotonic() - begun
        time.sleep(PAUSE)


def _only(known: Sequence[dict[str, Any]]) -> str:
    if not known:
        raise ControlError("no notebooks or programs are using the GPU through gpushare")
    if len(known) > 1:
        listed = ", ".join(f"{group['name']} ({group['id'][:8]})" for group in known)
        raise ControlError(
            f"several notebooks or programs are using the GPU; specify one: {listed}"
        )
    return str(known[0]["id"])
