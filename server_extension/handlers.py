# SPDX-License-Identifier: BSD-3-Clause
"""The REST API: the state of the GPU, and asking a notebook to give it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from ..scheduler.control import ControlError, SchedulerUnreachable

if TYPE_CHECKING:
    from .app import GpuShareExtension

AUTH_RESOURCE = "gpushare"


class GpuShareHandler(ExtensionHandlerMixin, APIHandler):
    """What all of them are."""

    auth_resource = AUTH_RESOURCE

    # A panel that is open must not keep the server from being culled.
    _track_activity = False

    @property
    def extension(self) -> GpuShareExtension:
        """The extension."""
        return self.settings[self.name]  # type: ignore[no-any-return]

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error that says what to do."""
        self.set_status(status)
        self.finish({"message": message})


class StatusHandler(GpuShareHandler):
    """Who runs, who waits and why, where the memory is, and if nothing is shared, why."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with docs/control.md's status, and the server's additions."""
        self.set_header("Cache-Control", "no-store")
        self.finish(await self.extension.status())


class GroupHandler(GpuShareHandler):
    """Passes a request about one lease group on to the scheduler."""

    def initialize(self, name: str, op: str) -> None:
        """Note which request."""
        super().initialize(name)
        self.op = op

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it, and answer with the group's id."""
        body = self.get_json_body()
        group = body.get("group") if isinstance(body, dict) else None
        if not isinstance(group, str) or not group:
            self.refuse(400, 'the body must be an object such as {"group": "ID"}')
            return
        try:
            reply = await self.extension.request(self.op, group=group)
        except SchedulerUnreachable as error:
            self.refuse(503, str(error))
        except ControlError as error:
            self.refuse(400, str(error))
        else:
            self.finish({"group": reply.get("group", group)})


def handlers() -> list[tuple[Any, ...]]:
    """Return the handlers and their addresses."""
    return [
        (r"/gpushare/api/status", StatusHandler),
        (r"/gpushare/api/release", GroupHandler, {"op": "release"}),
        (r"/gpushare/api/offload", GroupHandler, {"op": "offload"}),
    ]
