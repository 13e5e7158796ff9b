# SPDX-License-Identifier: BSD-3-Clause
"""The hook for jupyterhub-idle-culler, with a real scheduler and service. tests/acceptance has the real culler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jupyter_gpushare.hub import culling
from jupyter_gpushare.hub.culling import CullArbiter, user_of
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.hub.service import UNIT, HubService, notebook
from tests.support.hub.hub import until
from tests.support.hub.hub_api import READ, HubApi
from tests.support.hub.node import Node

Make = Callable[..., CullArbiter]


def server(user: str, name: str = "") -> dict[str, Any]:
    """Return the Hub's model of a server, as far as the hook uses it."""
    place = f"servers/{name}" if name else "server"
    return {
        "name": name,
        "url": f"/user/{user}/{name}/" if name else f"/user/{user}/",
        "progress_url": f"/hub/api/users/{user}/{place}/progress",
    }


def culls(arbiter: CullArbiter, user: str, idle: float | None = 100.0) -> bool:
    """Return whether a server of a user that was idle for so many seconds is culled after 60 s."""
    inactive = None if idle is None else timedelta(seconds=idle)
    answer = arbiter(inactive=inactive, inactive_limit=60, server=server(user), more=1)
    return asyncio.run(answer)


@pytest.fixture(params=["scheduler", "service"])
def make(
    request: pytest.FixtureRequest,
    node: Node,
    service: HubService,
    hub_api: HubApi,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """Return what makes a hook that asks the scheduler or the service each time."""
    monkeypatch.setattr(culling, "FRESH", 0.0)
    token = hub_api.token("culler", READ, kind="service")

    def make_one(**options: Any) -> CullArbiter:
        if request.param == "scheduler":
            return CullArbiter(socket=node.socket, token=token, **options)
        return CullArbiter(service.url, token=token, **options)

    return make_one


def state_of(node: Node, group: str) -> str:
    return next((g["state"] for g in node.status()["groups"] if g["id"] == group), "")


def test_users_with_a_waiting_notebook_are_spared(
    make: Make, node: Node, ada: str, ben: str
) -> None:
    arbiter = make()
    with (
        notebook(node, ada, "culling-a", "a.ipynb", 6 * UNIT) as running,
        notebook(node, ben, "culling-b", "b.ipynb", 6 * UNIT) as waiting,
    ):
        running.run()
        waiting.request()
        until(lambda: state_of(node, "culling-b") == "waiting")
        # The service's answers are half a second old at most.
        until(lambda: not culls(arbiter, "ben"))
        assert culls(arbiter, "ada"), "the Hub's record of activity counts for a running notebook"
        assert culls(arbiter, "eve")
        assert not culls(arbiter, "ada", 59.0)
        assert not culls(arbiter, "ada", None)
        assert culls(make(user="jupyter-{user}"), "ben")
        with ControlClient(node.socket) as control:
            control.request("release", group="culling-a")
        running.release()
        running.evict()
        waiting.take()
        until(lambda: culls(arbiter, "ben"))


def test_without_the_state_of_the_gpus_the_hubs_record_counts(
    node: Node,
    service: HubService,
    ada: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(culling, "FRESH", 0.0)
    caplog.set_level(logging.WARNING)
    arbiter = CullArbiter(service.url, token=ada)
    assert culls(arbiter, "ada")
    assert culls(arbiter, "ada")
    (record,) = caplog.records
    assert "give the culler the scope custom:gpushare:read" in record.getMessage()
    caplog.clear()
    nowhere = CullArbiter(socket=node.folder / "none", token="")
    assert culls(nowhere, "ada")
    assert not culls(nowhere, "ada", 10.0)
    (record,) = caplog.records
    assert "Only the Hub's record of activity counts." in record.getMessage()


@pytest.mark.parametrize(
    ("model", "user"),
    [
        (server("ada"), "ada"),
        (server("ada", "user"), "ada"),
        (server("a%40b.org", "gpu"), "a@b.org"),
        ({"url": "/hub-prefix/user/ada/lab/"}, "ada"),
        ({"url": None}, None),
    ],
)
def test_the_user_of_a_server_is_in_its_addresses(model: dict[str, Any], user: str | None) -> None:
    assert user_of(model) == user
