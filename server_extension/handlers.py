# SPDX-License-Identifier: BSD-3-Clause
"""The REST API: the state of the GPUs, and what people may do about it (docs/contributing/lab-protocol.md)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from jupyter_server.serverapp import ServerApp
from tornado import web

from ..scheduler.node.entitlements import Shares
from ..scheduler.protocol.client import UNKNOWN_GROUP, ControlError, SchedulerUnreachable
from .feed import Feed, TooManyPages
from .focus import Focus
from .openapi import document
from .preferences import NONE
from .reservations import ReservationWaiters
from .sessions import Documents
from .shares import merged

#: Resources of Jupyter's authorizer: viewing and steering groups, and the settings that affect all users.
AUTH_RESOURCE = "gpushare"
SETTINGS_RESOURCE = "gpushare-settings"

#: Why a scheduler refuses what is wrong for this user alone.
DENIED = ("login_required", "not_allowed", "not_yours")

PAGE = re.compile(r"[\w-]{1,64}", re.ASCII)
NUMBER = re.compile(r"\d{1,18}", re.ASCII)
#: Most seconds that an answer waits for a reservation: less than proxies wait for an answer, at their common settings.
LONGEST_POLL = 300.0
NOT_A_PAGE = "the name of a page must be 1 to 64 letters, digits, '_' or '-'"

#: Signs that a user will soon use the GPU in a notebook, as a page sees them.
HINTS = ("focus", "typing")
NO_PREFETCH = "prefetch is off on this server: its configuration has c.GpuShare.prefetch = False"


class Extension(Protocol):
    """What the handlers need of the extension."""

    feed: Feed
    documents: Documents
    focus: Focus
    reservations: ReservationWaiters
    serverapp: ServerApp

    @property
    def administers(self) -> bool:
        """Whether this server may change settings that affect all users, as far as is known."""
        ...

    @property
    def prefetches(self) -> bool:
        """Whether this server sends hints to the scheduler."""
        ...

    async def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send a control request and return the answer."""
        ...

    def send(self, op: str, params: dict[str, Any]) -> None:
        """Send a control request without waiting for the reply, if there is a scheduler."""
        ...

    async def entitled(self) -> dict[str, Any]:
        """Return what users and teams are entitled to, and have had of each GPU."""
        ...

    async def entitle(self, change: Callable[[Shares], Any]) -> dict[str, Any]:
        """Change what users and teams are entitled to, and return all of it."""
        ...


class GpuShareHandler(ExtensionHandlerMixin, APIHandler):
    """What all of them are."""

    auth_resource = AUTH_RESOURCE

    # A panel that is open must not keep the server from being culled.
    _track_activity = False

    @property
    def extension(self) -> Extension:
        """The extension."""
        return self.settings[self.name]  # type: ignore[no-any-return]

    def refuse(self, status: int, message: str) -> None:
        """Answer with an error that says what to do."""
        self.set_status(status)
        self.finish({"message": message})

    async def may(self, action: str, resource: str) -> bool:
        """Return whether the user may do another action."""
        answer = self.authorizer.is_authorized(self, self.current_user, action, resource)
        return bool(await ensure_async(answer))

    async def forward(
        self, op: str, optional: tuple[str, ...], group: bool = True, **fixed: Any
    ) -> None:
        """Pass a request on to the scheduler, which judges its values, and answer as it does.

        Parameters
        ----------
        op
            The operation.
        optional
            The parameters that the body may have; one at least, if there are any.
        group
            Whether it must name a group as well.
        **fixed
            Parameters that do not depend on the body.
        """
        body = self.get_json_body()
        body = body if isinstance(body, dict) else {}
        name = body.get("group")
        if group and not (isinstance(name, str) and name):
            self.refuse(400, 'the body must be an object such as {"group": "ID"}')
            return
        unknown = sorted(body.keys() - {*optional, *(["group"] if group else [])})
        if unknown:
            self.refuse(400, f"{op} has no parameter {', '.join(unknown)}")
            return
        if optional and not body.keys() & set(optional):
            self.refuse(400, f"the body must contain at least one of {', '.join(optional)}")
            return
        if None in body.values():
            self.refuse(400, "a parameter is null; omit it instead")
            return
        await self.answer(self.extension.request(op, **body, **fixed))

    async def answer(self, reply: Awaitable[dict[str, Any]]) -> None:
        """Answer as the scheduler does."""
        try:
            found = await reply
        except SchedulerUnreachable as error:
            self.refuse(503, str(error))
        except ControlError as error:
            status = 404 if error.code == UNKNOWN_GROUP else 403 if error.code in DENIED else 400
            self.refuse(status, str(error))
        else:
            self.finish({name: value for name, value in found.items() if name != "ok"})


class StatusHandler(GpuShareHandler):
    """Reports which notebooks are running or waiting and why, where memory is, and why sharing is off, if it is."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the whole state, and register the page that asks."""
        page = self.get_query_argument("watch", None)
        if page is not None and not PAGE.fullmatch(page):
            self.refuse(400, NOT_A_PAGE)
            return
        timeline = self.get_query_argument("timeline", "0") not in ("", "0")
        try:
            state = await self.extension.feed.state(page, timeline)
        except TooManyPages as error:
            self.refuse(429, str(error))
            return
        if page is not None:
            self.extension.focus.seen(page)
        may = {
            "adjust": await self.may("write", AUTH_RESOURCE),
            "settings": self.extension.administers and await self.may("write", SETTINGS_RESOURCE),
        }
        self.set_header("Cache-Control", "no-store")
        self.finish({**state, "may": may})


class ChangesHandler(GpuShareHandler):
    """What has changed since the state that a page has."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the deltas after the one that the page has received last."""
        since = self.get_query_argument("since", "")
        if not NUMBER.fullmatch(since):
            self.refuse(
                400,
                "'since' must be the number of the last change that the page received, such as since=41",
            )
            return
        self.set_header("Cache-Control", "no-store")
        self.finish(self.extension.feed.since(int(since)))


class WatcherHandler(GpuShareHandler):
    """One page that looks."""

    # Who may look may cease to.
    @web.authenticated
    @authorized(action="read")  # type: ignore[untyped-decorator]
    async def delete(self, page: str) -> None:
        """End its registration."""
        if not PAGE.fullmatch(page):
            self.refuse(400, NOT_A_PAGE)
            return
        self.extension.feed.forget(page)
        self.extension.focus.forget(page)
        self.set_status(204)
        self.finish()


class ReleaseHandler(GpuShareHandler):
    """Ends a burst."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it, and answer with the group's id."""
        await self.forward("release", ())


class EvictHandler(GpuShareHandler):
    """Releases the lease of a group, and evicts its memory."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it, and answer with the group's id."""
        await self.forward("evict", ())


class HibernateHandler(GpuShareHandler):
    """Takes a group off the GPU altogether."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Begin, and answer with the group's id."""
        await self.forward("hibernate", ())


class WakeHandler(GpuShareHandler):
    """Wakes a group that is hibernated."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Begin, and answer with the group's id."""
        await self.forward("wake", ())


class ReadyHandler(GpuShareHandler):
    """Restores the memory of a group before it uses the GPU."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Begin a prefetch, and answer with the group's ID and the prefetch."""
        if not self.extension.prefetches:
            self.refuse(403, NO_PREFETCH)
            return
        await self.forward("hint", (), kind="ready")


class ReservationsHandler(GpuShareHandler):
    """Reserves the GPU for groups that do not wait for it."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Begin, and answer with the reservation."""
        await self.forward("reserve", ())


class ReservationHandler(GpuShareHandler):
    """The reservation of one group."""

    @web.authenticated
    @authorized
    async def get(self, group: str) -> None:
        """Answer with the reservation, if requested as soon as it is ready."""
        text = self.get_query_argument("wait", "0")
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= LONGEST_POLL:
            self.refuse(400, f"'wait' must be a number of seconds from 0 to {LONGEST_POLL:g}")
            return
        self.set_header("Cache-Control", "no-store")
        await self.answer(self.extension.reservations.wait(group, seconds))

    @web.authenticated
    @authorized
    async def delete(self, group: str) -> None:
        """Cancel it, and answer with the group's state."""
        await self.answer(self.extension.request("reserve", group=group, on=False))


class AdjustHandler(GpuShareHandler):
    """Takes preferences for a group."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it, and answer with the group's id and its preferences."""
        await self.forward("adjust", tuple(NONE))


class SettingsHandler(GpuShareHandler):
    """Takes settings, which concern everybody."""

    auth_resource = SETTINGS_RESOURCE

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Do it, and answer with the settings."""
        await self.forward(
            "set", ("quantum", "anti_thrash", "policy", "hibernate_after", "prefetch"), group=False
        )


class SharesHandler(GpuShareHandler):
    """What users and teams are entitled to, which concerns everybody."""

    auth_resource = SETTINGS_RESOURCE

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with all that are stated, and what of each GPU's time was had."""
        await self.answer(self.extension.entitled())

    @web.authenticated
    @authorized
    async def put(self) -> None:
        """Replace them all."""
        body = self.get_json_body()
        await self.answer(self.extension.entitle(lambda shares: body))

    @web.authenticated
    @authorized
    async def patch(self) -> None:
        """Change some, as a JSON merge patch (RFC 7396) does."""
        body = self.get_json_body()
        await self.answer(self.extension.entitle(lambda shares: merged(shares, body)))


class ExplainHandler(GpuShareHandler):
    """Says which rule put whom before whom."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer for one group, or for all that wait."""
        params: dict[str, Any] = {}
        if group := self.get_query_argument("group", ""):
            params["group"] = group
        if self.get_query_argument("text", "0") not in ("", "0"):
            params["text"] = True
        await self.answer(self.extension.request("explain", **params))


class WhenHandler(GpuShareHandler):
    """Forecasts when a notebook would run."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer for a group, or for a notebook that is not there yet."""
        params: dict[str, Any] = {}
        for name in ("group", "bytes", "priority", "gpu"):
            if value := self.get_query_argument(name, ""):
                params[name] = value
        if "bytes" in params:
            if not NUMBER.fullmatch(params["bytes"]):
                self.refuse(
                    400, "'bytes' must be a whole number of bytes, such as bytes=1073741824"
                )
                return
            params["bytes"] = int(params["bytes"])
        await self.answer(self.extension.request("when", **params))


class OpenApiHandler(GpuShareHandler):
    """Serves the OpenAPI document."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the document."""
        self.finish(document(self.base_url))


class FocusHandler(GpuShareHandler):
    """Receives which document a user has in front on a page, and whether the user has just returned to it."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Take it, and answer with the group that comes first now, or null."""
        body = self.get_json_body()
        body = body if isinstance(body, dict) else {}
        page = body.pop("page", None)
        if not (isinstance(page, str) and PAGE.fullmatch(page)):
            self.refuse(400, NOT_A_PAGE)
            return
        hint = body.pop("hint", None)
        if hint is not None and hint not in HINTS:
            self.refuse(400, f"the hint must be one of {', '.join(HINTS)}")
            return
        ((kind, name),) = body.items() if len(body) == 1 else ((None, None),)
        if kind not in ("path", "kernel_id") or not isinstance(name, str | None):
            self.refuse(
                400,
                'in addition to "page", the body must contain "path" or "kernel_id"; its value can be null',
            )
            return
        kernel_id = name if kind == "kernel_id" else None
        if kind == "path" and name:
            kernel_id = await self.extension.documents.kernel_of(name)
        if kernel_id is not None and kernel_id not in self.extension.serverapp.kernel_manager:
            kernel_id = None
        self.extension.focus.take(page, kernel_id)
        if hint is not None and kernel_id is not None and self.extension.prefetches:
            self.extension.send("hint", {"group": kernel_id, "kind": hint})
        self.finish({"group": self.extension.focus.group})


def handlers() -> list[tuple[Any, ...]]:
    """Return the handlers and their addresses."""
    return [
        (r"/gpushare/api/status", StatusHandler),
        (r"/gpushare/api/changes", ChangesHandler),
        (r"/gpushare/api/watchers/([^/]+)", WatcherHandler),
        (r"/gpushare/api/release", ReleaseHandler),
        (r"/gpushare/api/evict", EvictHandler),
        (r"/gpushare/api/hibernate", HibernateHandler),
        (r"/gpushare/api/wake", WakeHandler),
        (r"/gpushare/api/ready", ReadyHandler),
        (r"/gpushare/api/reservations", ReservationsHandler),
        (r"/gpushare/api/reservations/([^/]+)", ReservationHandler),
        (r"/gpushare/api/adjust", AdjustHandler),
        (r"/gpushare/api/settings", SettingsHandler),
        (r"/gpushare/api/shares", SharesHandler),
        (r"/gpushare/api/explain", ExplainHandler),
        (r"/gpushare/api/when", WhenHandler),
        (r"/gpushare/api/openapi.json", OpenApiHandler),
        (r"/gpushare/api/focus", FocusHandler),
    ]
