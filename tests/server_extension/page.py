# SPDX-License-Identifier: BSD-3-Clause
"""What a page does with the state and its deltas (docs/contributing/lab-protocol.md, "Live by push")."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from jupyter_gpushare.server_extension.feed import SCHEMA_ID

Fetch = Callable[..., Awaitable[Any]]

#: Bound of every wait: long, because it is only reached where something is wrong.
PATIENCE = 60.0


def apply(state: dict[str, Any], delta: dict[str, Any]) -> None:
    """Apply a delta to a state."""
    state.update(delta["set"])
    gpus = {gpu["uuid"]: gpu for gpu in [*state["gpus"], *delta["gpus"]]}
    groups = {group["id"]: group for group in [*state["groups"], *delta["groups"]]}
    for group in delta["removed"]:
        groups.pop(group, None)
    state["gpus"], state["groups"] = list(gpus.values()), list(groups.values())
    if state.get("timeline") is not None:
        spans = {span["id"]: span for span in [*state["timeline"]["spans"], *delta["spans"]]}
        state["timeline"]["spans"] = list(spans.values())
        state["timeline"]["samples"] = [*state["timeline"]["samples"], *delta["samples"]]


def settled(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state without what counts with time, what no delta brings, and the order of things."""
    names = ("availability", "host", "settings", "hibernation")
    found = copy.deepcopy({name: state[name] for name in names})
    found["notices"], found["unshared"] = state["notices"], state["unshared"]
    if found["host"] is not None:
        # What the machine has to spare.
        found["host"]["budget"] = (found["host"]["pool"] or {})["limit"] = 0
    found["gpus"] = {gpu["uuid"]: gpu for gpu in state["gpus"]}
    found["groups"] = {group["id"]: copy.deepcopy(group) for group in state["groups"]}
    for group in found["groups"].values():
        group["yields_in"] = group["yields_in"] is not None
        group["estimate"] = group["estimate"] is not None
        for counting, names in (
            ((group["reason"] or {}).get("params"), ("yields_in", "until_in", "for")),
            (group["cell"], ("waited", "ran")),
            (group["totals"], ("waited", "ran")),
        ):
            for name in names:
                if counting and counting.get(name) is not None:
                    counting[name] = 0.0
    return found


class Page:
    """A page that looks: it asks once, and then listens and fetches what changed."""

    def __init__(self, fetch: Fetch, name: str, timeline: bool = False) -> None:
        self.name = name
        self._fetch = fetch
        self._timeline = timeline
        self._socket: Any = None
        self.state: dict[str, Any] = {}
        #: Numbers that were announced, and those up to which it could not get all deltas.
        self.heard: list[int] = []
        self.missed: list[int] = []

    async def open(self, connect: Fetch) -> Page:
        """Listen, and ask."""
        self._socket = await connect("api", "events", "subscribe")
        await self.ask()
        return self

    async def close(self) -> None:
        """Go away without a word."""
        self._socket.close()
        while await asyncio.wait_for(self._socket.read_message(), PATIENCE) is not None:
            pass

    async def ask(self) -> None:
        """Get the whole state, and be registered."""
        params = {"watch": self.name, **({"timeline": "1"} if self._timeline else {})}
        response = await self._fetch("gpushare", "api", "status", params=params)
        self.state = json.loads(response.body)

    async def hear(self) -> dict[str, Any]:
        """Wait for the next announcement, and fetch and apply the deltas that the page lacks."""
        while True:
            event = json.loads(await asyncio.wait_for(self._socket.read_message(), PATIENCE))
            if event["schema_id"] == SCHEMA_ID:
                break
        number = event["sequence"]
        if event["stream"] == self.state["stream"] and number > self.state["sequence"]:
            since = {"since": str(self.state["sequence"])}
            response = await self._fetch("gpushare", "api", "changes", params=since)
            answer = json.loads(response.body)
            for delta in answer["deltas"]:
                if delta["sequence"] == self.state["sequence"] + 1:
                    apply(self.state, delta)
                    self.state["sequence"] = delta["sequence"]
            if answer["sequence"] > self.state["sequence"]:
                self.missed.append(number)
        self.heard.append(number)
        return event  # type: ignore[no-any-return]

    async def hear_until(self, probe: Callable[[dict[str, Any]], Any]) -> Any:
        """Follow the announcements until something is true of the state, and return it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := probe(self.state)):
            assert time.monotonic() < deadline, self.state
            await self.hear()
        return found

    def group(self, name: str) -> dict[str, Any] | None:
        """Return a group."""
        return next((group for group in self.state["groups"] if group["id"] == name), None)
