# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service with a real node scheduler, and the tokens of its viewers, for each test module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub.service import HubService, machine
from tests.support.hub.hub_api import ACCESS, ADMIN, READ, HubApi
from tests.support.hub.node import Node, private_folder
from tests.support.hub.recipe import containers, seats

__all__ = ["containers", "seats"]


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Create no event loop, because there is no server in this process."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Clean up nothing, because there is no server in this process."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    with private_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    with private_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def hub_api() -> Iterator[HubApi]:
    """Return the stand-in for the Hub."""
    with HubApi() as hub:
        yield hub


@pytest.fixture(scope="module")
def node(folder: Path, hub_api: HubApi) -> Iterator[Node]:
    with machine(folder, "gpu1", hub_api) as node:
        yield node


@pytest.fixture(scope="module")
def token(hub_api: HubApi) -> str:
    """Return the service's own token, with a role that allows actions on other nodes."""
    return hub_api.token("gpushare", ADMIN, READ, kind="service")


@pytest.fixture(scope="module")
def service(folder: Path, hub_api: HubApi, node: Node, token: str) -> Iterator[HubService]:
    arguments = ("--socket", str(node.socket), "--name", "gpu1")
    with HubService(hub_api.environ(token), folder / "hub.log", *arguments) as service:
        hub_api.service = service.url
        yield service


@pytest.fixture(scope="module")
def admin(hub_api: HubApi) -> str:
    return hub_api.token("hedy", ADMIN, READ, ACCESS)


@pytest.fixture(scope="module")
def reader(hub_api: HubApi) -> str:
    return hub_api.token("mary", READ, ACCESS)


@pytest.fixture(scope="module")
def ada(hub_api: HubApi) -> str:
    return hub_api.token("ada", ACCESS)


@pytest.fixture(scope="module")
def ben(hub_api: HubApi) -> str:
    return hub_api.token("ben", ACCESS)
