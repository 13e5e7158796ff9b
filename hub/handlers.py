# SPDX-License-Identifier: BSD-3-Clause
"""The service's HTTP handlers: the page, its data, the actions and the metrics (docs/reference/rest.md)."""

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
from .nodes import ActionRefused, Feed, LocalNode, Node, Nodes, NodeUnreachable
from .viewer import Viewer, may_read_metrics, viewer

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"

#: Seconds between two signs of life of a stream without news, and between two checks of its viewer's permissions.
BEAT = 15.0
#: Maximum number of streams of one viewer. Browsers open one for each window.
MAX_STREAMS = 20
#: Maximum length of a maintenance message, in characters.
MAX_TEXT = 500

#: Forbids what the page does not need: scripts of other origins, frames around the page, other addresses.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Refusal(web.HTTPError):
    """A request that is refused; the sentence is shown to the viewer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status)
        self.sentence = sentence


@dataclass
class Service:
    """The objects that all handlers use."""

    settings: GpuShareHub
    nodes: Nodes
    feed: Feed
    auth: HubOAuth
    #: Open streams by the names of their viewers.
    streams: Counter[str]


#: The actions, by the scheduler's operation, with the type of each parameter.
ACTIONS: dict[str, dict[str, type]] = {
    "release": {"group": str},
    "evict": {"group": str},
    "hold": {"group": str, "on": bool},
    "drain": {"gpu": str, "on": bool},
    "maintenance": {"text": str},
}


class Handler(HubOAuthenticated, web.RequestHandler):  # type: ignore[misc]
    """Base class: answers only requests of users and services that the Hub has identified."""

    #: Whether a browser without a token is redirected to the Hub's login.
    log_in = False

    def initialize(self, service: Service) -> None:
        """Store the objects that all handlers use."""
        self.service = service
        self.hub_auth = service.auth

    def set_default_headers(self) -> None:
        """Forbid browsers to frame the answer, to guess its type and to store it."""
        self.set_header("Content-Security-Policy", CSP)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "same-origin")
        self.set_header("Cache-Control", "no-store")

    async def prepare(self) -> None:
        """Identify the viewer."""
        model = await self.hub_auth.get_user(self, sync=False)
        if model is None:
            self._refuse_unknown()
            return
        self.current_user = self.admit(model)

    async def current_model(self, use_cache: bool = True) -> dict[str, Any] | None:
        """Return the Hub's current model of the viewer, or None if the token is no longer valid."""
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
        """Return the viewer.

        Raises
        ------
        Refusal
            403 if the viewer has no access to the service.
        """
        access = self.hub_auth.check_scopes(self.hub_auth.access_scopes, model)
        found = viewer(model, bool(access))
        if found is None:
            raise Refusal(
                403,
                "you do not have access to this service; ask your JupyterHub administrator",
            )
        return found

    def get_current_user(self) -> None:
        """Return None: `prepare` identifies the viewer without blocking."""

    @property
    def viewer(self) -> Viewer:
        """The user or service that sent the request."""
        return cast(Viewer, self.current_user)

    def check_reader(self) -> None:
        """Refuse viewers without permission to see all users' data."""
        if not self.viewer.sees_all:
            raise Refusal(
                403, "missing permission; use a token with the scope custom:gpushare:read"
            )

    def local(self) -> LocalNode:
        """Return the node of this machine.

        Raises
        ------
        Refusal
            404 if the service shows other nodes only.
        """
        if self.service.nodes.local is None:
            raise Refusal(
                404,
                "this service shows other nodes only (GpuShareHub.local = False); send the request to a node's service",
            )
        return self.service.nodes.local

    def _refuse_unknown(self) -> None:
        """Redirect the browser to the login, or refuse the request."""
        mode = self.request.headers.get("Sec-Fetch-Mode", "navigate")
        if self.log_in and self.request.method == "GET" and mode == "navigate":
            self.redirect(self.get_login_url())
            return
        # Requests of a logged-in browser that another page may have caused are refused here, too.
        raise Refusal(
            403, "you are not logged in; reload the page, or send a Hub token with the request"
        )

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send the error as one sentence."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        message = self._reason
        if isinstance(error, Refusal):
            message = error.sentence
        elif isinstance(error, web.HTTPError) and error.log_message:
            # JupyterHub's message about a failed request to the Hub.
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
        """Address of the Hub's home page."""
        return str(self.hub_auth.hub_host + self.hub_auth.hub_prefix)


class PageHandler(Handler):
    """The page."""

    log_in = True

    async def get(self) -> None:
        """Send the page without data."""
        self.render(
            "page.html",
            viewer=self.viewer,
            home=self.home,
            prefix=self.service.settings.prefix,
            xsrf=self.xsrf_token.decode("ascii"),
        )


class StateHandler(Handler):
    """All nodes as this viewer may see them."""

    async def get(self) -> None:
        """Send the current state of all nodes."""
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
    """The report of this machine's node, for the services of other nodes."""

    async def get(self) -> None:
        """Send the complete report."""
        self.check_reader()
        node = self.local()
        await node.update()
        if node.error or node.report is None:
            raise Refusal(503, node.error)
        self.finish(node.report)


class StreamHandler(Handler):
    """All nodes and their changes, as server-sent events."""

    async def get(self) -> None:
        """Send events until the viewer disconnects."""
        service, name = self.service, self.viewer.name
        if service.streams[name] >= MAX_STREAMS:
            raise Refusal(
                429, f"you have {MAX_STREAMS} open pages, which is the limit; close some of them"
            )
        self.set_header("Content-Type", "text/event-stream")
        # An nginx in front of the Hub's proxy would buffer the events.
        self.set_header("X-Accel-Buffering", "no")
        updated = asyncio.Event()
        self._updated = updated
        self._is_closed = False
        service.streams[name] += 1
        service.feed.watch(updated.set)
        try:
            await service.feed.refresh()
            await self._send_changes(updated)
        except StreamClosedError:
            pass
        finally:
            service.feed.unwatch(updated.set)
            service.streams[name] -= 1
            if not service.streams[name]:
                del service.streams[name]

    def on_connection_close(self) -> None:
        """Note that the viewer has disconnected."""
        self._is_closed = True
        self._updated.set()

    async def _send_changes(self, updated: asyncio.Event) -> None:
        sent: dict[str, tuple[Node, int]] = {}
        checked = time.monotonic()
        await self._send("viewer", self.viewer.shown())
        while not self._is_closed:
            updated.clear()
            nodes = self.service.nodes.all()
            changed = [
                name for name, node in nodes.items() if sent.get(name) != (node, node.version)
            ]
            for name in changed:
                sent[name] = nodes[name], nodes[name].version
                await self._send("node", view.node(name, nodes[name], self.viewer))
            if sent.keys() - nodes.keys() or len(sent) == len(changed):
                sent = {name: seen for name, seen in sent.items() if name in nodes}
                await self._send("names", list(nodes))
            try:
                await asyncio.wait_for(updated.wait(), BEAT)
            except asyncio.TimeoutError:
                self.write(":\n\n")
                await self.flush()
            if time.monotonic() - checked > BEAT:
                checked = time.monotonic()
                if not await self._has_same_permissions():
                    await self._send("over", {})
                    return

    async def _send(self, kind: str, data: Any) -> None:
        text = json.dumps(data, separators=(",", ":"))
        self.write(f"event: {kind}\ndata: {text}\n\n")
        await self.flush()

    async def _has_same_permissions(self) -> bool:
        """Whether the Hub still gives the viewer the permissions that the stream began with."""
        try:
            model = await self.current_model()
            return model is not None and self.admit(model) == self.viewer
        except web.HTTPError as error:
            # Viewers keep their permissions while the Hub is unavailable.
            return error.status_code >= 500


class ActionHandler(Handler):
    """The actions of administrators."""

    async def prepare(self) -> None:
        """Identify the viewer, and check that the request comes from the viewer's own page."""
        await super().prepare()
        if self._finished:
            return
        self.check_xsrf_cookie()
        if self.viewer.admin:
            # Without the cache, because a revoked permission must not stay valid until the cached answer expires.
            model = await self.current_model(use_cache=False)
            if model is None:
                self._refuse_unknown()
            else:
                self.current_user = self.admit(model)

    async def post(self, name: str, op: str) -> None:
        """Let the node carry out the action, and send its scheduler's answer."""
        if not self.viewer.admin:
            raise Refusal(
                403,
                "you are not a GPU administrator; ask your JupyterHub administrator for the scope "
                "custom:gpushare:admin",
            )
        node = self.service.nodes.all().get(name)
        if node is None:
            raise Refusal(404, f"unknown node {name!r}; GET api/state lists the nodes")
        given = self._body(ACTIONS[op])
        by = given.pop("on_behalf", None) or (
            f"service {self.viewer.name}" if self.viewer.service else self.viewer.name
        )
        try:
            answer = await node.act(op, given, by)
        except ActionRefused as error:
            raise Refusal(error.status, str(error)) from None
        except NodeUnreachable as error:
            raise Refusal(503, str(error)) from None
        self.service.feed.update_soon()
        self.finish({key: value for key, value in answer.items() if key != "ok"})

    def _body(self, wanted: dict[str, type]) -> dict[str, Any]:
        """Return the parameters of the request after checking their types."""
        try:
            body = json.loads(self.request.body or b"{}")
        except ValueError:
            body = None
        names = ", ".join(f"{name} ({kind.__name__})" for name, kind in wanted.items())
        if not isinstance(body, dict):
            raise Refusal(400, f"invalid request body; send a JSON object with {names}")
        allowed = dict(wanted)
        if self.viewer.service:
            # Another node's service, which has identified its viewer through the Hub.
            allowed["on_behalf"] = str
        wrong = [
            name
            for name, kind in allowed.items()
            if not isinstance(body.get(name, None if name in wanted else ""), kind)
        ]
        if wrong or body.keys() - allowed.keys():
            raise Refusal(400, f"invalid request body; send a JSON object with {names}")
        if len(body.get("text", "")) > MAX_TEXT:
            raise Refusal(400, f"the message is too long; use at most {MAX_TEXT} characters")
        return body


class MetricsHandler(Handler):
    """Metrics of the node of this machine, in the text format of Prometheus."""

    async def prepare(self) -> None:
        """Identify the viewer, unless the metrics are open to all."""
        if not self.service.settings.open_metrics:
            await super().prepare()

    def admit(self, model: dict[str, Any]) -> Viewer:
        """Admit viewers who may read metrics, which contain all users' names."""
        if not may_read_metrics(model):
            raise Refusal(
                403,
                "missing permission; use a token with the scope read:metrics or custom:gpushare:read",
            )
        return Viewer(str(model["name"]), reader=True)

    async def get(self) -> None:
        """Send the metrics; without a scheduler, only that it is down."""
        node = self.local()
        try:
            samples = (await node.request("metrics"))["metrics"]
        except ControlError as error:
            log.warning("gpushare: no metrics from the scheduler: %s", error)
            samples = None
        self.set_header("Content-Type", metrics.CONTENT_TYPE)
        self.finish(metrics.text(samples, {"node": node.name}))


class ReportHandler(Handler):
    """The usage report of this machine's GPUs."""

    async def get(self) -> None:
        """Send the report of a period: to viewers who may not see all users, the use of their own notebooks."""
        asked = self._asked()
        try:
            report = (await self.local().request("report", **asked))["report"]
        except SchedulerUnreachable as error:
            raise Refusal(503, str(error)) from None
        except ControlError as error:
            raise Refusal(400, str(error)) from None
        self.finish({"report": self._shown(report)})

    def _asked(self) -> dict[str, Any]:
        """Return the parameters for the scheduler.

        Raises
        ------
        Refusal
            The viewer may not see this, or a parameter is not valid.
        """
        asked: dict[str, Any] = {}
        try:
            for name in ("since", "until"):
                if (text := self.get_query_argument(name, None)) is not None:
                    asked[name] = float(text)
        except ValueError:
            raise Refusal(
                400, "invalid period; give since and until in seconds since 1970"
            ) from None
        if by := self.get_query_arguments("by"):
            asked["by"] = by
        if (user := self.get_query_argument("user", None)) is not None:
            asked["user"] = user
        if not self.viewer.sees_all:
            if not by:
                self.check_reader()
            asked["user"] = self.viewer.name
        return asked

    def _shown(self, report: dict[str, Any]) -> dict[str, Any]:
        """Return the part of a report that the viewer may see."""
        if self.viewer.sees_all:
            return report
        return {name: report[name] for name in ("since", "until", "prices", "rows")}


class UsageHandler(ReportHandler):
    """The usage reports of all nodes, for the page."""

    async def get(self) -> None:
        """Send the report of each node; null for a node that does not respond or refuses the request.

        Raises
        ------
        Refusal
            No node gave a report, and a node refused the request.
        """
        asked = self._asked()
        nodes = self.service.nodes.all()
        found = await asyncio.gather(*(self._report(node, asked) for node in nodes.values()))
        refused = [each["refused"] for each in found if "refused" in each]
        if refused and all(each["report"] is None for each in found):
            raise Refusal(400, refused[0])
        self.finish({"nodes": dict(zip(nodes, found, strict=True))})

    async def _report(self, node: Node, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"report": self._shown(await node.usage(asked))}
        except ActionRefused as error:
            return {"report": None, "refused": str(error)}
        except (NodeUnreachable, KeyError, TypeError) as error:
            log.warning("gpushare: no usage report of node %s: %s", node.name, error)
            return {"report": None}


class HealthHandler(web.RequestHandler):
    """Health check for probes. It needs no token, because it contains nothing but the version."""

    async def get(self) -> None:
        """Send the status and the version."""
        self.finish({"status": "ok", "version": __version__})


class CallbackHandler(HubOAuthCallbackHandler):  # type: ignore[misc]
    """The address to which the Hub redirects a browser after the login."""

    def initialize(self, service: Service) -> None:
        """Store the objects that all handlers use."""
        self.hub_auth = service.auth


def application(service: Service, cookie_secret: bytes) -> web.Application:
    """Create the web application."""
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
            (prefix + "api/usage", UsageHandler, shared),
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
    """Log failed requests and actions. Other requests are logged at the debug level."""
    status, request = handler.get_status(), handler.request
    if status >= 500:
        access_log.error("%d %s %s", status, request.method, request.path)
    elif status >= 400 or request.method != "GET":
        access_log.info("%d %s %s", status, request.method, request.path)
    else:
        access_log.debug("%d %s %s", status, request.method, request.path)
