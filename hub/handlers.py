# SPDX-License-Identifier: BSD-3-Clause
"""The service's addresses: the page, its data, the actions, and figures for Prometheus (hub-page.md)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jupyterhub.services.auth import HubOAuth, HubOAuthCallbackHandler, HubOAuthenticated
from tornado import web
from tornado.iostream import StreamClosedError
from tornado.log import access_log

from .._version import __version__
from ..scheduler.observability import metrics
from ..scheduler.protocol.client import ControlError, SchedulerUnreachable
from . import view
from .config import NODE, GpuShareHub
from .nodes import ActionRefused, Feed, LocalNode, Node, NodeAway, Nodes
from .viewer import Viewer, may_read_metrics, viewer

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"

#: Seconds of silence after which a stream says that it is still there, and looks whether its viewer may still see it.
BEAT = 15.0
#: Most streams of one viewer: browsers share no connection between windows.
MAX_STREAMS = 20
#: Longest message to all, in characters.
MAX_TEXT = 500

#: What no page of ours needs is not allowed: scripts of others, frames around it, addresses elsewhere.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Refusal(web.HTTPError):
    """A request is not answered; the sentence is for the one who asked."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status)
        self.sentence = sentence


@dataclass
class Service:
    """What all handlers share."""

    settings: GpuShareHub
    nodes: Nodes
    feed: Feed
    auth: HubOAuth
    #: Open streams by the names of their viewers.
    streams: Counter[str]


#: The actions: the scheduler's operation, and the type of each parameter.
ACTIONS: dict[str, dict[str, type]] = {
    "release": {"group": str},
    "evict": {"group": str},
    "hold": {"group": str, "on": bool},
    "drain": {"gpu": str, "on": bool},
    "maintenance": {"text": str},
}


class Handler(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]
    """What all of them are: somebody is known to the Hub, or is sent away."""

    #: Whether a browser without a token is sent to the Hub to log in.
    log_in = False

    def initialize(self, service: Service) -> None:
        """Take what all handlers share."""
        self.service = service
        self.hub_auth = service.auth

    def set_default_headers(self) -> None:
        """Keep others from framing, sniffing and storing it."""
        self.set_header("Content-Security-Policy", CSP)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Find out who asks."""
        model = await self.hub_auth.get_user(self, sync=False)
        if model is None:
            self._send_away()
            return
        self.current_user = self.admit(model)

    async def ask_anew(self, use_cache: bool = True) -> dict[str, Any] | None:
        """Return the Hub's model of who asks, as it is now, or None."""
        return cast(
            "dict[str, Any] | None",
            await self.hub_auth.user_for_token(
                self.hub_auth.get_token(self),
                use_cache=use_cache,
                session_id=self.hub_auth.get_session_id(self),
                sync=False,
            ),
        )

    def admit(self, model: dict[str, Any]) -> Viewer:
        """Return who asks.

        Raises
        ------
        Refusal
            403 for one who may see nothing.
        """
        access = self.hub_auth.check_scopes(self.hub_auth.access_scopes, model)
        found = viewer(model, bool(access))
        if found is None:
            raise Refusal(
                403,
                "you may not see the GPUs; ask the Hub's administrator for access to this service",
            )
        return found

    def get_current_user(self) -> None:
        """Know nobody but by `prepare`, which does not block."""

    @property
    def viewer(self) -> Viewer:
        """Who asks."""
        return cast(Viewer, self.current_user)

    def check_reader(self) -> None:
        """Refuse who may not see everything."""
        if not self.viewer.sees_all:
            raise Refusal(403, "this takes a token with the scope custom:gpushare:read")

    def local(self) -> LocalNode:
        """Return the node of this machine, or refuse where there is none."""
        if self.service.nodes.local is None:
            raise Refusal(404, "this service has no node of its own (local = False)")
        return self.service.nodes.local

    def _send_away(self) -> None:
        mode = self.request.headers.get("Sec-Fetch-Mode", "navigate")
        if self.log_in and self.request.method == "GET" and mode == "navigate":
            self.redirect(self.get_login_url())
            return
        # A browser that is logged in, but whose request could be another page's, ends here, too.
        raise Refusal(403, "say who you are: send a token of the Hub's, or load the page again")

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with one sentence."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        message = self._reason
        if isinstance(error, Refusal):
            message = error.sentence
        elif isinstance(error, web.HTTPError) and error.log_message:
            # jupyterhub's own, about the Hub.
            message = error.log_message
        self.set_default_headers()
        if not self.log_in:
            self.finish({"message": message})
            return
        self.render(
            "error.html",
            status=status_code,
            message=message,
            home=self.home,
        )

    @property
    def home(self) -> str:
        """The Hub's own page."""
        return str(self.hub_auth.hub_host + self.hub_auth.hub_prefix)


class PageHandler(Handler):
    """The page."""

    log_in = True

    async def get(self) -> None:
        """Answer with it, less all data."""
        self.render(
            "page.html",
            viewer=self.viewer,
            home=self.home,
            prefix=self.service.settings.prefix,
            xsrf=self.xsrf_token.decode("ascii"),
        )


class StateHandler(Handler):
    """All nodes as the viewer may see them."""

    async def get(self) -> None:
        """Answer with them."""
        await self.service.feed.refresh()
        nodes = self.service.nodes.all()
        self.finish(
            {
                "viewer": self.viewer.shown(),
                "time": time.time(),
                "nodes": [view.node(name, found, self.viewer) for name, found in nodes.items()],
            }
        )


class NodeHandler(Handler):
    """The node of this machine, as the services of others show it."""

    async def get(self) -> None:
        """Answer with what it says, nothing hidden."""
        self.check_reader()
        node = self.local()
        await node.look()
        if node.error or node.report is None:
            raise Refusal(503, node.error)
        self.finish(node.report)


class StreamHandler(Handler):
    """All nodes, and what changes, for as long as somebody looks: server-sent events."""

    async def get(self) -> None:
        """Tell, until the other end has gone."""
        service, name = self.service, self.viewer.name
        if service.streams[name] >= MAX_STREAMS:
            raise Refusal(429, f"{MAX_STREAMS} pages of yours are open already; close some")
        self.set_header("Content-Type", "text/event-stream")
        # nginx, where it is before the Hub's proxy, would keep it all back.
        self.set_header("X-Accel-Buffering", "no")
        stirred = asyncio.Event()
        self._stirred = stirred
        self._gone = False
        service.streams[name] += 1
        service.feed.watch(stirred.set)
        try:
            await service.feed.refresh()
            await self._tell(stirred)
        except StreamClosedError:
            pass
        finally:
            service.feed.forget(stirred.set)
            service.streams[name] -= 1
            if not service.streams[name]:
                del service.streams[name]

    def on_connection_close(self) -> None:
        """Note that nobody listens."""
        self._gone = True
        self._stirred.set()

    async def _tell(self, stirred: asyncio.Event) -> None:
        told: dict[str, tuple[Node, int]] = {}
        checked = time.monotonic()
        await self._say("viewer", self.viewer.shown())
        while not self._gone:
            stirred.clear()
            nodes = self.service.nodes.all()
            changed = [
                name for name, node in nodes.items() if told.get(name) != (node, node.version)
            ]
            for name in changed:
                told[name] = nodes[name], nodes[name].version
                await self._say("node", view.node(name, nodes[name], self.viewer))
            if told.keys() - nodes.keys() or len(told) == len(changed):
                told = {name: seen for name, seen in told.items() if name in nodes}
                await self._say("names", list(nodes))
            try:
                await asyncio.wait_for(stirred.wait(), BEAT)
            except asyncio.TimeoutError:
                self.write(":\n\n")
                await self.flush()
            if time.monotonic() - checked > BEAT:
                checked = time.monotonic()
                if not await self._may_still():
                    await self._say("over", {})
                    return

    async def _say(self, kind: str, data: Any) -> None:
        text = json.dumps(data, separators=(",", ":"))
        self.write(f"event: {kind}\ndata: {text}\n\n")
        await self.flush()

    async def _may_still(self) -> bool:
        """Whether the Hub still says of the viewer what it said at the beginning."""
        try:
            model = await self.ask_anew()
            return model is not None and self.admit(model) == self.viewer
        except web.HTTPError as error:
            # A Hub that is away for a moment takes nobody's rights away.
            return error.status_code >= 500


class ActionHandler(Handler):
    """What administrators do."""

    async def prepare(self) -> None:
        """Find out who asks, and whether the one's own page did."""
        await super().prepare()
        if self._finished:
            return
        self.check_xsrf_cookie()
        if self.viewer.admin:
            # Asked anew: a right that was taken away must not last as long as the Hub is believed.
            model = await self.ask_anew(use_cache=False)
            if model is None:
                self._send_away()
            else:
                self.current_user = self.admit(model)

    async def post(self, name: str, op: str) -> None:
        """Have it done by the node, and answer as its scheduler does."""
        if not self.viewer.admin:
            raise Refusal(403, "this takes the scope custom:gpushare:admin")
        node = self.service.nodes.all().get(name)
        if node is None:
            raise Refusal(404, f"there is no node {name!r}; GET api/state names them")
        given = self._body(ACTIONS[op])
        by = given.pop("on_behalf", None) or (
            f"service {self.viewer.name}" if self.viewer.service else self.viewer.name
        )
        try:
            answer = await node.act(op, given, by)
        except ActionRefused as error:
            raise Refusal(error.status, str(error)) from None
        except NodeAway as error:
            raise Refusal(503, str(error)) from None
        self.service.feed.stir()
        self.finish({key: value for key, value in answer.items() if key != "ok"})

    def _body(self, wanted: dict[str, type]) -> dict[str, Any]:
        """Return the parameters, each of its type."""
        try:
            body = json.loads(self.request.body or b"{}")
        except ValueError:
            body = None
        names = ", ".join(f"{name} ({kind.__name__})" for name, kind in wanted.items())
        if not isinstance(body, dict):
            raise Refusal(400, f"the body must be a JSON object with {names}")
        allowed = dict(wanted)
        if self.viewer.service:
            # Another node's page, which has asked the Hub who its viewer is.
            allowed["on_behalf"] = str
        wrong = [
            name
            for name, kind in allowed.items()
            if not isinstance(body.get(name, None if name in wanted else ""), kind)
        ]
        if wrong or body.keys() - allowed.keys():
            raise Refusal(400, f"the body must be a JSON object with {names}")
        if len(body.get("text", "")) > MAX_TEXT:
            raise Refusal(400, f"the message may have {MAX_TEXT} characters")
        return body


class MetricsHandler(Handler):
    """Figures of the node of this machine, as Prometheus reads them."""

    async def prepare(self) -> None:
        """Let whoever asks have them, if that is the setting."""
        if not self.service.settings.open_metrics:
            await super().prepare()

    def admit(self, model: dict[str, Any]) -> Viewer:
        """Let in who may read figures: all of them, with names."""
        if not may_read_metrics(model):
            raise Refusal(
                403,
                "this takes a token with the scope read:metrics or custom:gpushare:read",
            )
        return Viewer(str(model["name"]), reader=True)

    async def get(self) -> None:
        """Answer with them: that it does not answer is a figure, too."""
        node = self.local()
        try:
            samples = (await node.request("metrics"))["metrics"]
        except ControlError as error:
            log.warning("gpushare: no figures: %s", error)
            samples = None
        self.set_header("Content-Type", metrics.CONTENT_TYPE)
        self.finish(metrics.text(samples, {"node": node.name}))


class ReportHandler(Handler):
    """What the GPUs of this machine did over some time."""

    async def get(self) -> None:
        """Answer with it."""
        self.check_reader()
        given = {name: self.get_query_argument(name, None) for name in ("since", "until")}
        try:
            asked = {name: float(text) for name, text in given.items() if text is not None}
        except ValueError:
            raise Refusal(400, "since and until are seconds since 1970") from None
        try:
            self.finish(await self.local().request("report", **asked))
        except SchedulerUnreachable as error:
            raise Refusal(503, str(error)) from None
        except ControlError as error:
            raise Refusal(400, str(error)) from None


class HealthHandler(web.RequestHandler):
    """Whether the service runs, for probes; open to all, for it says nothing else."""

    async def get(self) -> None:
        """Answer."""
        self.finish({"status": "ok", "version": __version__})


class CallbackHandler(HubOAuthCallbackHandler):  # type: ignore[misc]
    """Where the Hub sends a browser that has logged in."""

    def initialize(self, service: Service) -> None:
        """Take what all handlers share."""
        self.hub_auth = service.auth


def application(service: Service, cookie_secret: bytes) -> web.Application:
    """Make the application."""
    prefix = service.settings.prefix
    shared = {"service": service}
    actions = "|".join(ACTIONS)
    return web.Application(
        [
            (prefix, PageHandler, shared),
            (prefix.rstrip("/"), web.RedirectHandler, {"url": prefix, "permanent": False}),
            (prefix + "oauth_callback", CallbackHandler, shared),
            (prefix + "api/state", StateHandler, shared),
            (prefix + "api/stream", StreamHandler, shared),
            (prefix + "api/node", NodeHandler, shared),
            (prefix + f"api/nodes/({NODE.pattern})/({actions})", ActionHandler, shared),
            (prefix + "api/report", ReportHandler, shared),
            (prefix + "metrics", MetricsHandler, shared),
            (prefix + "health", HealthHandler),
        ],
        cookie_secret=cookie_secret,
        template_path=str(STATIC),
        static_path=str(STATIC),
        static_url_prefix=prefix + "static/",
        log_function=_log_request,
    )


def _log_request(handler: web.RequestHandler) -> None:
    """Log what failed, and what was done; not each look."""
    status, request = handler.get_status(), handler.request
    if status >= 500:
        access_log.error("%d %s %s", status, request.method, request.path)
    elif status >= 400 or request.method != "GET":
        access_log.info("%d %s %s", status, request.method, request.path)
    else:
        access_log.debug("%d %s %s", status, request.method, request.path)
