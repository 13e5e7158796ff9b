# SPDX-License-Identifier: BSD-3-Clause
"""A node's scheduler for tests: the Hub that it asks, and the users that connect to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.client import PATIENCE
from tests.support.scheduler import Scheduler, Start

#: Whose tokens are what: as a Hub describes them.
TOKENS: dict[str, dict[str, Any]] = {
    "ada-token": {"name": "ada", "kind": "user", "groups": ["course"], "scopes": ["access:self"]},
    "ben-token": {"name": "ben", "kind": "user", "groups": [], "scopes": []},
    # An admin of the Hub is not an administrator of the GPUs.
    "hub-admin-token": {"name": "cy", "kind": "user", "admin": True, "scopes": ["admin:users"]},
    "admin-token": {"name": "dan", "kind": "user", "scopes": ["custom:gpushare:admin"]},
    "reader-token": {"name": "hub", "kind": "service", "scopes": ["custom:gpushare:read"]},
    "filtered-token": {
        "name": "eve",
        "kind": "user",
        "scopes": ["custom:gpushare:admin!user=eve"],
    },
    "nameless-token": {"kind": "user", "scopes": []},
}


class FakeHub:
    """Answers as a Hub's ``/hub/api/user`` does."""

    def __init__(self) -> None:
        hub = self
        #: Not set: the Hub lets wait for its answers. What was asked for: the tokens, in order.
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[str] = []
        self.broken = False

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.headers.get("Authorization", "").removeprefix("token ")
                hub.asked.append(token)
                hub.answers.wait(PATIENCE)
                model = TOKENS.get(token)
                status = 500 if hub.broken else 200 if model is not None else 403
                if self.path != "/hub/api/user":
                    status = 404
                body = json.dumps(model if status == 200 else {"status": status, "message": ""})
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hub/api"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.answers.set()
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@contextmanager
def hub() -> Iterator[FakeHub]:
    """A Hub for the time of a test."""
    running = FakeHub()
    try:
        yield running
    finally:
        running.close()


def start_node(
    start: Start, folder: Path, hub: FakeHub | None = None, **settings: Any
) -> Scheduler:
    """Start a node's scheduler for which this process's own uid is one that several people have."""
    settings.setdefault("shared_uids", [os.getuid()])
    settings.setdefault("socket", str(folder / "gpushare" / "s.sock"))
    settings.setdefault("socket_mode", "0666")
    settings.setdefault("state_dir", str(folder / "state"))
    if hub is not None:
        settings["hub_api_url"] = hub.url
    file = folder / "config.json"
    file.write_text(json.dumps({"NodeScheduler": settings}))
    file.chmod(0o600)
    return start("--config", str(file))


class Peer:
    """One connection of a control program, which does nothing by itself."""

    def __init__(
        self, path: Path, *, uid: int | None = None, ticket: str = "", token: str = ""
    ) -> None:
        self.socket = connect(path, uid)
        self._reader = protocol.FrameReader(from_scheduler=True)
        self._inbox: list[protocol.Frame] = []
        if ticket:
            self.socket.sendall(protocol.ticket(ticket))
        if token:
            self.ok("login", token=token)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, op: str, **params: Any) -> None:
        """Ask for something."""
        request = {"op": op, "protocol": protocol.CONTROL_VERSION, **params}
        self.socket.sendall(protocol.encode_json(protocol.CONTROL, request))

    def frame(self) -> protocol.Frame:
        """Wait for the next frame."""
        deadline = time.monotonic() + PATIENCE
        while not self._inbox:
            self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("the scheduler ended the connection")
            self._inbox.extend(self._reader.feed(data))
        return self._inbox.pop(0)

    def answer(self) -> dict[str, Any]:
        """Wait for the next answer."""
        frame = self.frame()
        assert frame.type in (protocol.REPLY, protocol.EVENT), frame
        return protocol.decode_json(frame.body)

    def ask(self, op: str, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self.send(op, **params)
        return self.answer()

    def ok(self, op: str, **params: Any) -> dict[str, Any]:
        """The same, for what is granted."""
        answer = self.ask(op, **params)
        assert answer.pop("ok"), answer
        return answer

    def denied(self, op: str, **params: Any) -> str:
        """The same, for what is not: return the code."""
        answer = self.ask(op, **params)
        assert not answer["ok"], answer
        assert answer["error"]
        return str(answer.get("code", ""))


def connect(path: Path, uid: int | None = None) -> socket.socket:
    """Connect, as another user if one is named: Linux reports the peer's uid as of the connect call."""
    end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if uid is None:
        end.connect(str(path))
        return end
    code = "import os, socket, sys; os.chdir(sys.argv[1]); os.setgroups([]); os.setgid(int(sys.argv[3]))"
    code += "; os.setuid(int(sys.argv[3])); socket.socket(fileno=0).connect(sys.argv[2])"
    # From within the folder: the ones above it are closed to others.
    command = [sys.executable, "-c", code, str(path.parent), path.name, str(uid)]
    subprocess.run(command, stdin=end, check=True, timeout=PATIENCE)
    return end
