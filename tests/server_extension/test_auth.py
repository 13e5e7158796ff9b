# SPDX-License-Identifier: BSD-3-Clause
"""No endpoint answers users without permission."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.feed import SCHEMA_ID
from tests.server_extension.documented import endpoints
from tests.server_extension.page import PATIENCE
from tests.support.client import FakeClient

Fetch = Callable[..., Awaitable[Any]]


class Deny(Authorizer):
    """Lets people do all but what concerns us."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 - read by the test

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        if resource.startswith("gpushare"):
            self.asked.append((action, resource))
        return not resource.startswith("gpushare")


async def status_of(
    fetch: Fetch, method: str, path: str, body: str = '{"group": "x"}', **options: Any
) -> tuple[int, Any]:
    content = None if method in ("GET", "DELETE") else body
    response = await fetch(
        *path.split("/"), method=method, body=content, raise_error=False, **options
    )
    return response.code, response.body


@pytest.fixture
def served(jp_serverapp: ServerApp) -> list[tuple[str, str]]:
    found = endpoints(jp_serverapp)
    gets = ("changes", "explain", "openapi.json", "reservations/group", "shares", "status", "when")
    posts = (
        "release",
        "evict",
        "hibernate",
        "wake",
        "ready",
        "reservations",
        "adjust",
        "settings",
        "focus",
    )
    assert sorted(found) == [
        ("DELETE", "gpushare/api/reservations/group"),
        ("DELETE", "gpushare/api/watchers/page"),
        *(("GET", f"gpushare/api/{name}") for name in gets),
        ("PATCH", "gpushare/api/shares"),
        *(("POST", f"gpushare/api/{name}") for name in sorted(posts)),
        ("PUT", "gpushare/api/shares"),
    ]
    return found


async def test_anonymous_requests_are_refused(
    served: list[tuple[str, str]], jp_fetch: Fetch
) -> None:
    for method, path in served:
        code, body = await status_of(jp_fetch, method, path, headers={"Authorization": "token no"})
        assert code == 403, path
        assert "message" in json.loads(body), path


class TestDenied:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.ServerApp.authorizer_class = Deny
        Deny.asked.clear()
        return jp_server_config

    async def test_users_without_permission_are_refused(
        self, served: list[tuple[str, str]], jp_fetch: Fetch
    ) -> None:
        for method, path in served:
            code, body = await status_of(jp_fetch, method, path)
            assert code == 403, path
            assert "gpushare" in json.loads(body)["message"], path
        assert sorted(set(Deny.asked)) == [
            ("read", "gpushare"),
            ("read", "gpushare-settings"),
            ("write", "gpushare"),
            ("write", "gpushare-settings"),
        ]


class Look(Authorizer):
    """Lets people do all but steer."""

    refused: tuple[str, ...] = ("gpushare", "gpushare-settings")

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return action == "read" or resource not in self.refused


class TestLooking:
    @pytest.fixture(params=[("gpushare", "gpushare-settings"), ("gpushare-settings",), ()])
    def refused(self, request: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
        monkeypatch.setattr(Look, "refused", request.param)
        return request.param  # type: ignore[no-any-return]

    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.ServerApp.authorizer_class = Look
        return jp_server_config

    async def test_the_page_is_sent_the_permissions_of_its_user(
        self, scheduler: Any, jp_fetch: Fetch, refused: tuple[str, ...]
    ) -> None:
        status = json.loads((await jp_fetch("gpushare/api/status", params={"watch": "a"})).body)
        may = {
            "adjust": "gpushare" not in refused,
            "settings": "gpushare-settings" not in refused,
        }
        assert status["may"] == may
        # Without these permissions, a page may still watch, and stop watching.
        ended = await jp_fetch("gpushare/api/watchers/a", method="DELETE")
        assert ended.code == 204
        shares = await jp_fetch("gpushare/api/shares")
        assert json.loads(shares.body) == {"shares": {}, "used": {}}
        for path, body, allowed in (
            ("focus", '{"page": "a", "kernel_id": null}', may["adjust"]),
            ("adjust", '{"group": "nobody", "keep": true}', may["adjust"]),
            ("release", '{"group": "nobody"}', may["adjust"]),
            ("hibernate", '{"group": "nobody"}', may["adjust"]),
            ("wake", '{"group": "nobody"}', may["adjust"]),
            ("ready", '{"group": "nobody"}', may["adjust"]),
            ("settings", '{"anti_thrash": "off"}', may["settings"]),
        ):
            code, _ = await status_of(jp_fetch, "POST", f"gpushare/api/{path}", body)
            assert (code != 403) == allowed, path


class EventsOnly(Authorizer):
    """Lets people read the event bus, and nothing of ours."""

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        return resource == "events"


class TestEventsOnly:
    """A reader of the event bus without the permission for `gpushare` learns nothing about users and notebooks."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.ServerApp.authorizer_class = EventsOnly
        return jp_server_config

    async def test_a_reader_of_events_learns_no_names(
        self,
        scheduler: Any,
        runtime: Path,
        gpu: dict[str, Any],
        extension: GpuShareExtension,
        jp_fetch: Fetch,
        jp_ws_fetch: Fetch,
    ) -> None:
        socket = await jp_ws_fetch("api", "events", "subscribe")
        # Another user, with permission, has the panel open.
        await extension.feed.state("panel", timeline=True)
        heard = []
        with FakeClient(runtime / "s.sock", "secret-group", gpu["uuid"]) as client:
            client.attach()
            client.run()
            while "secret-group" not in extension.feed.since(0):
                heard.append(await asyncio.wait_for(socket.read_message(), PATIENCE))
            heard.append(await asyncio.wait_for(socket.read_message(), PATIENCE))
        ours = [event for event in map(json.loads, heard) if event["schema_id"] == SCHEMA_ID]
        assert ours
        for event in ours:
            assert {name for name in event if not name.startswith("__")} <= {
                *("schema_id", "stream", "sequence")
            }
        for path in ("status", "changes", "explain"):
            answer = await jp_fetch(f"gpushare/api/{path}", raise_error=False)
            assert answer.code == 403, path
        socket.close()
