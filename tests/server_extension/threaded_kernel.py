# SPDX-License-Identifier: BSD-3-Clause
"""A Jupyter kernel that runs each cell in a thread of its own, so cells overlap in one shell.

A cell is ``wait NAME`` or ``set NAME``.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.session import Session


class Kernel:
    """The kernel of one connection file."""

    def __init__(self, connection: dict[str, Any]) -> None:
        self.session = Session(key=connection["key"].encode())
        context = zmq.Context()
        self.sockets: dict[str, zmq.Socket[bytes]] = {}
        kinds = {"shell": zmq.ROUTER, "control": zmq.ROUTER, "iopub": zmq.PUB, "hb": zmq.REP}
        for name, kind in kinds.items():
            socket = self.sockets[name] = context.socket(kind)
            port = connection[f"{name}_port"]
            socket.bind(f"{connection['transport']}://{connection['ip']}:{port}")
        self.lock = threading.Lock()
        self.events: dict[str, threading.Event] = defaultdict(threading.Event)

    def serve(self) -> None:
        """Answer requests until the kernel is shut down."""
        poller = zmq.Poller()
        for name in ("shell", "control", "hb"):
            poller.register(self.sockets[name], zmq.POLLIN)
        while True:
            for socket, _ in poller.poll(20):
                if socket is self.sockets["hb"]:
                    socket.send(socket.recv())
                    continue
                with self.lock:
                    parts = socket.recv_multipart()
                identities, frames = self.session.feed_identities(parts)
                request = self.session.deserialize(frames)
                if request["msg_type"] == "shutdown_request":
                    self.reply(socket, identities, request, {"restart": False})
                    return
                if request["msg_type"] == "execute_request":
                    work = threading.Thread(target=self.run, args=(socket, identities, request))
                    work.daemon = True
                    self.status(request, "busy")
                    work.start()
                else:
                    self.status(request, "busy")
                    self.reply(socket, identities, request, {"protocol_version": "5.3"})
                    self.status(request, "idle")

    def run(self, socket: zmq.Socket[bytes], identities: Any, request: dict[str, Any]) -> None:
        """Run a cell."""
        act, name = request["content"]["code"].split()
        if act == "wait":
            self.events[name].wait()
        else:
            self.events[name].set()
        # In this order, so that a test that has the reply knows that the cell's end has been reported.
        self.status(request, "idle")
        self.reply(socket, identities, request, {"execution_count": 1})

    def reply(
        self,
        socket: zmq.Socket[bytes],
        identities: Any,
        request: dict[str, Any],
        content: dict[str, Any],
    ) -> None:
        """Answer a request."""
        kind = request["msg_type"].replace("request", "reply")
        with self.lock:
            self.session.send(
                socket, kind, {"status": "ok", **content}, parent=request, ident=identities
            )

    def status(self, request: dict[str, Any], state: str) -> None:
        """Report that a request has begun or ended."""
        with self.lock:
            self.session.send(
                self.sockets["iopub"], "status", {"execution_state": state}, parent=request
            )


if __name__ == "__main__":
    Kernel(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))).serve()
