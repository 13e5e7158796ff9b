# SPDX-License-Identifier: BSD-3-Clause
"""Clients that request from a server what open pages request, and the processor time that the server uses for them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from ...server_extension.feed import SCHEMA_ID

#: Plays a page of the server at a URL, with these headers, until it is cancelled.
Play = Callable[[str, dict[str, str]], Coroutine[Any, Any, None]]

#: Seconds until a server must have responded.
TIMEOUT = 60.0
_TICKS = os.sysconf("SC_CLK_TCK")


def _busy(pid: int) -> float:
    """Return the processor time of a process in seconds."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class Pages:
    """Clients that play pages, in a thread with a loop of its own.

    Parameters
    ----------
    url, token
        Of the server.
    play
        Plays one page.
    count
        The number of pages.
    """

    def __init__(self, url: str, token: str, play: Play, count: int) -> None:
        self._url, self._play, self._count = url, play, count
        self._headers = {"Authorization": f"token {token}"}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)
        self._failed: list[BaseException] = []

    def __enter__(self) -> Pages:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join()
        self._loop.close()
        if self._failed:
            raise self._failed[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)

        async def play_all() -> None:
            await asyncio.gather(
                *(self._play(self._url, self._headers) for _ in range(self._count))
            )

        self._all = self._loop.create_task(play_all())
        try:
            self._loop.run_until_complete(self._all)
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self._failed.append(error)


#: The shortest time between two requests of our page for deltas, in seconds (PACE in labextension/src/state/model.ts).
_PACE = 0.25


async def _get(url: str, headers: dict[str, str]) -> bytes:
    request = HTTPRequest(url, headers=headers, request_timeout=TIMEOUT)
    return (await AsyncHTTPClient().fetch(request)).body


async def our_page(url: str, headers: dict[str, str]) -> None:
    """Ask for the whole state, then fetch announced deltas; report now and then that the page is open."""
    mine, again, followed = uuid.uuid4().hex, 0.0, 0.0
    subscribe = url.replace("http", "ws", 1) + "api/events/subscribe"
    events = await websocket_connect(HTTPRequest(subscribe, headers=headers))
    try:
        stream, sequence = "", -1
        while True:
            if time.monotonic() > again:
                state = json.loads(
                    await _get(f"{url}gpushare/api/status?watch={mine}&timeline=1", headers)
                )
                stream, sequence = state["stream"], state["sequence"]
                again = time.monotonic() + 30
            message = await events.read_message()
            if message is None:
                raise RuntimeError("the server ended the events")
            announced = json.loads(message)
            if announced.get("schema_id") != SCHEMA_ID or announced["sequence"] <= sequence:
                continue
            await asyncio.sleep(followed + _PACE - time.monotonic())
            followed = time.monotonic()
            news = json.loads(await _get(f"{url}gpushare/api/changes?since={sequence}", headers))
            if news["stream"] != stream or len(news["deltas"]) < news["sequence"] - sequence:
                again = 0.0
            sequence = news["sequence"]
    finally:
        events.close()


def charts(*names: str) -> Play:
    """Return a function that plays a page of jupyterlab-nvdashboard with these charts."""

    async def chart(url: str, headers: dict[str, str]) -> None:
        connection = await websocket_connect(HTTPRequest(url, headers=headers))
        try:
            await connection.write_message(json.dumps({"updateFrequency": 100, "isPaused": False}))
            while await connection.read_message() is not None:
                pass
            raise RuntimeError(f"the server ended {url}")
        finally:
            connection.close()

    async def play(url: str, headers: dict[str, str]) -> None:
        base = url.replace("http", "ws", 1) + "nvdashboard/"
        await asyncio.gather(*(chart(base + name, headers) for name in names))

    return play


async def usage_page(url: str, headers: dict[str, str]) -> None:
    """Play a page of jupyter-resource-usage."""
    await asyncio.sleep(random.uniform(0, 5))
    while True:
        await _get(f"{url}api/metrics/v1", headers)
        await asyncio.sleep(5)


def processor_use(pids: Mapping[str, int], seconds: float) -> dict[str, float]:
    """Return the percentage of a core that each process spends."""
    time.sleep(2)
    before, began = {name: _busy(pid) for name, pid in pids.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {name: 100 * (_busy(pid) - before[name]) / took for name, pid in pids.items()}
