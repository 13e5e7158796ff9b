# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service's process."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import signal
import ssl
from collections import Counter
from urllib.parse import urlsplit

from jupyterhub.services.auth import HubOAuth
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from traitlets.config import Config

from ..scheduler.server import systemd
from .config import ConfigurationError, GpuShareHub
from .handlers import Service, application
from .nodes import Feed, LocalNode, Nodes

log = logging.getLogger(__name__)

#: Seconds for which the Hub's answer about a user is cached. Actions ignore the cache.
CACHE_SECONDS = 30


def authenticator(settings: GpuShareHub, config: Config) -> HubOAuth:
    """Create the client that identifies users through the Hub.

    Raises
    ------
    ConfigurationError
        If there is no token for the Hub.
    """
    if not (os.environ.get("JUPYTERHUB_API_TOKEN") or config.HubOAuth.get("api_token")):
        raise ConfigurationError(
            "the service has no token for JupyterHub; set JUPYTERHUB_API_TOKEN to this service's token from "
            "c.JupyterHub.services (see docs/how-to/admin/hub-page.md)"
        )
    name = settings.service_name
    config = Config(config)
    given = config.HubOAuth
    given.setdefault("base_url", settings.prefix)
    given.setdefault("cache_max_age", CACHE_SECONDS)
    if not os.environ.get("JUPYTERHUB_CLIENT_ID"):
        given.setdefault("oauth_client_id", f"service-{name}")
    if not os.environ.get("JUPYTERHUB_OAUTH_ACCESS_SCOPES"):
        given.setdefault("access_scopes", {f"access:services!service={name}"})
    return HubOAuth(config=config)


async def serve(settings: GpuShareHub, config: Config) -> None:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    settings
        Settings of the service.
    config
        Configuration of JupyterHub's `HubOAuth`.

    Raises
    ------
    ConfigurationError
        If the service cannot start with these settings.
    """
    auth = authenticator(settings, config)
    token = settings.token() or str(auth.api_token)
    local = None
    if settings.local:
        local = LocalNode(
            settings.node_name, settings.path(), settings.history, str(auth.api_token)
        )
    nodes = Nodes(local, settings.nodes, settings.discover, settings.prefix, token)
    feed = Feed(nodes, settings.interval)
    service = Service(settings, nodes, feed, auth, Counter())
    server = HTTPServer(
        application(service, _cookie_secret(str(auth.api_token))),
        ssl_options=_tls(settings),
        # The Hub's proxy is in front of the service.
        xheaders=True,
        max_body_size=1 << 16,
    )
    parts = urlsplit(settings.url)
    try:
        port = (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port
        sockets = bind_sockets(port, parts.hostname)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {settings.url}: {error.strerror or error}; choose another with --url"
        ) from None
    server.add_sockets(sockets)
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    # With port 0, the operating system chooses a free port.
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    url = parts._replace(netloc=f"{host}:{sockets[0].getsockname()[1]}").geturl()
    log.info("gpushare: the page is at %s", url)
    print(json.dumps({"url": url}), flush=True)
    systemd.notify("READY=1")
    systemd.keep_alive(loop)
    try:
        await over.wait()
    finally:
        server.stop()
        await feed.stop()
        await server.close_all_connections()
        await nodes.close()


def _cookie_secret(token: str) -> bytes:
    """Return the key for signing cookies. It is the same after a restart, so users stay logged in."""
    return hashlib.sha256(b"gpushare hub cookies " + token.encode()).digest()


def _tls(settings: GpuShareHub) -> ssl.SSLContext | None:
    if urlsplit(settings.url).scheme == "http":
        return None
    if not settings.certfile:
        raise ConfigurationError(
            "https needs a certificate; set GpuShareHub.certfile and GpuShareHub.keyfile"
        )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.certfile, settings.keyfile or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"cannot use the certificate {settings.certfile}: {error}; correct GpuShareHub.certfile and "
            "GpuShareHub.keyfile"
        ) from None
    return context
