# SPDX-License-Identifier: BSD-3-Clause
"""No address of ours answers those who may not ask."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jupyter_server.auth import Authorizer
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.server_extension.handlers import GpuShareHandler

Fetch = Callable[..., Awaitable[Any]]


class Deny(Authorizer):
    """Lets people do all but what concerns us."""

    asked: list[tuple[str, str]] = []  # noqa: RUF012 - read by the test

    def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
        if resource == "gpushare":
            self.asked.append((action, resource))
        return resource != "gpushare"


def endpoints(app: ServerApp) -> list[tuple[str, str]]:
    """Return method and path of all that the extension serves, as the server knows it."""
    found = []
    for rule in app.web_app.default_router.rules[0].target.rules:
        target = rule.target
        if isinstance(target, type) and target.__module__.startswith("jupyter_gpushare"):
            path = rule.matcher.regex.pattern.rstrip("$").removeprefix(app.base_url)
            for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
                if getattr(target, method.lower()) is not getattr(GpuShareHandler, method.lower()):
                    found.append((method, path))
    return found


async def status_of(fetch: Fetch, method: str, path: str, **options: Any) -> tuple[int, Any]:
    body = '{"group": "x"}' if method != "GET" else None
    response = await fetch(*path.split("/"), method=method, body=body, raise_error=False, **options)
    return response.code, response.body


@pytest.fixture
def served(jp_serverapp: ServerApp) -> list[tuple[str, str]]:
    found = endpoints(jp_serverapp)
    assert ("GET", "gpushare/api/status") in found
    assert ("POST", "gpushare/api/release") in found
    assert ("POST", "gpushare/api/offload") in found
    return found


async def test_the_anonymous_are_refused(served: list[tuple[str, str]], jp_fetch: Fetch) -> None:
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

    async def test_those_without_permission_are_refused(
        self, served: list[tuple[str, str]], jp_fetch: Fetch
    ) -> None:
        for method, path in served:
            code, body = await status_of(jp_fetch, method, path)
            assert code == 403, path
            assert "gpushare" in json.loads(body)["message"], path
        assert sorted(set(Deny.asked)) == [("read", "gpushare"), ("write", "gpushare")]
