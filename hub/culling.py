# SPDX-License-Identifier: BSD-3-Clause
"""A hook by which jupyterhub-idle-culler keeps the servers of users who wait for a GPU (docs/how-to/admin/culling.md).

::

    from jupyter_gpushare.hub.culling import CullArbiter

    c.IdleCuller.cull_arbiter_hook = CullArbiter()
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..scheduler.protocol.async_client import AsyncControlClient
from ..scheduler.protocol.client import ControlError
from ..scheduler.views.culling import is_waiting
from .nodes import NodeUnreachable, RemoteNode

log = logging.getLogger(__name__)

#: Seconds for which the state of the GPUs is used. The culler calls the hook once for each server.
FRESH = 5.0


class CullArbiter:
    """Decides whether the culler stops a server that has been idle for too long.

    It keeps the servers of users with a notebook that is waiting for a GPU. Hibernated notebooks are
    idle. If the state of the GPUs is unknown, only the Hub's record of activity counts, as without this hook.

    Parameters
    ----------
    service
        Address of the Hub page's service, which knows all nodes; empty: the scheduler of this machine is asked.
    socket
        The scheduler's socket (default: ``GPUSHARE_SOCKET``).
    token
        A token with the scope ``custom:gpushare:read`` (default: the culler's own).
    user
        Pattern of the scheduler's user names, such as ``jupyter-{user}``. ``{user}`` is the Hub's name of the user.
    """

    def __init__(
        self,
        service: str = "",
        *,
        socket: Path | None = None,
        token: str | None = None,
        user: str = "{user}",
    ) -> None:
        self._service = service
        self._socket = socket
        self._token = os.environ.get("JUPYTERHUB_API_TOKEN", "") if token is None else token
        self._user = user
        self._waiting: frozenset[str] = frozenset()
        self._read_at = -FRESH
        self._reading = asyncio.Lock()
        self._trouble = ""

    async def __call__(
        self,
        *,
        inactive: timedelta | None,
        inactive_limit: float,
        server: Mapping[str, Any],
        **_: Any,
    ) -> bool:
        """Return whether to stop a server, given the time since its last activity and the limit in seconds."""
        if inactive is None or inactive.total_seconds() < inactive_limit:
            return False
        user = user_of(server)
        waiting = await self._users_waiting()
        if user is None or self._user.format(user=user) not in waiting:
            return True
        log.info("gpushare: not culling %s: a notebook is waiting for a GPU", server.get("url"))
        return False

    async def _users_waiting(self) -> frozenset[str]:
        async with self._reading:
            if time.monotonic() - self._read_at >= FRESH:
                trouble = ""
                try:
                    groups = await (self._ask_service() if self._service else self._ask_scheduler())
                    self._waiting = frozenset(g["user"] for g in groups if is_waiting(g))
                except (ControlError, NodeUnreachable, KeyError, TypeError) as error:
                    self._waiting, trouble = frozenset(), str(error) or repr(error)
                self._read_at = time.monotonic()
                if trouble and trouble != self._trouble:
                    log.warning(
                        "gpushare: cannot read which notebooks are waiting for a GPU: %s. "
                        "Only the Hub's record of activity counts.",
                        trouble,
                    )
                self._trouble = trouble
            return self._waiting

    async def _ask_scheduler(self) -> Iterable[Mapping[str, Any]]:
        client = AsyncControlClient(self._socket)
        await client.connect()
        try:
            identity = await client.request("whoami")
            if not (identity["admin"] or identity["reader"]) and self._token:
                identity = await client.request("login", token=self._token)
            if not (identity["admin"] or identity["reader"]):
                raise ControlError(
                    f"the scheduler hides other users' notebooks from {identity['user']}; give the culler the scope "
                    "custom:gpushare:read, or run it as root"
                )
            groups: list[Mapping[str, Any]] = (await client.request("status"))["status"]["groups"]
            return groups
        finally:
            await client.close()

    async def _ask_service(self) -> Iterable[Mapping[str, Any]]:
        service = RemoteNode("", self._service.rstrip("/") + "/", self._token)
        try:
            state = await service.state()
        finally:
            await service.close()
        if not state["viewer"]["sees_all"]:
            raise ControlError(
                f"the service at {self._service} hides other users' notebooks; give the culler the scope "
                "custom:gpushare:read"
            )
        return [
            notebook for node in state["nodes"] if node["known"] for notebook in node["notebooks"]
        ]


def user_of(server: Mapping[str, Any]) -> str | None:
    """Return the user of a server from the Hub's model of it, which has no such member."""
    for name, pattern in (
        ("progress_url", r"/api/users/([^/]+)/servers?/"),
        ("url", r"/user/([^/]+)/"),
    ):
        if found := re.search(pattern, server.get(name) or ""):
            return unquote(found[1])
    return None
