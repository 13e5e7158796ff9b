# SPDX-License-Identifier: BSD-3-Clause
"""What of a JupyterHub a service sees: tokens, and the way that a browser logs in; over real HTTP."""

from __future__ import annotations

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

ADMIN = "custom:gpushare:admin"
READ = "custom:gpushare:read"
ACCESS = "access:services!service=gpushare"


class HubApi:
    """A stand-in for JupyterHub's API; tests/hub/test_hub.py has the real one."""

    def __init__(self) -> None:
        #: What each token stands for.
        self.models: dict[str, dict[str, Any]] = {}
        #: The user whose browser logs in.
        self.browser = ""
        #: Where the service is: there is no proxy that makes one host of both.
        self.service = ""
        #: How often it was asked whose a token is.
        self.asked = 0
        self._codes: dict[str, str] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.host = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def token(self, name: str, *scopes: str, kind: str = "user") -> str:
        """Return a new token of a user or service with these scopes."""
        token = secrets.token_hex(16)
        self.models[token] = {
            "kind": kind,
            "name": name,
            "admin": False,
            "groups": [],
            "scopes": [*scopes, f"read:users:name!user={name}"],
        }
        return token

    def environ(self, token: str) -> dict[str, str]:
        """Return what the Hub tells a service of the name gpushare, whose token this is."""
        return {
            "JUPYTERHUB_API_TOKEN": token,
            "JUPYTERHUB_API_URL": f"{self.host}/hub/api",
            "JUPYTERHUB_HOST": self.host,
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_CLIENT_ID": "service-gpushare",
            "JUPYTERHUB_SERVICE_NAME": "gpushare",
            "JUPYTERHUB_SERVICE_PREFIX": "/services/gpushare/",
        }

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/hub/api/user":
                    hub.asked += 1
                    _, _, token = self.headers.get("Authorization", "").partition(" ")
                    model = hub.models.get(token)
                    self._answer(403 if model is None else 200, model or {"message": "no"})
                elif parts.path == "/hub/api/oauth2/authorize":
                    asked = {name: value[0] for name, value in parse_qs(parts.query).items()}
                    code = secrets.token_hex(8)
                    hub._codes[code] = hub.browser
                    back = urlencode({"code": code, "state": asked["state"]})
                    self.send_response(302)
                    self.send_header(
                        "Location", urljoin(hub.service, asked["redirect_uri"]) + f"?{back}"
                    )
                    self.end_headers()
                else:
                    self._answer(200, {"page": parts.path})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                asked = {name: value[0] for name, value in parse_qs(body).items()}
                if (
                    urlsplit(self.path).path != "/hub/api/oauth2/token"
                    or asked.get("client_secret") not in hub.models
                ):
                    self._answer(403, {"message": "no"})
                    return
                self._answer(200, {"access_token": hub._codes.pop(asked["code"])})

            def _answer(self, status: int, found: Any) -> None:
                data = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler
