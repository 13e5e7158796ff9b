# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for the Kubernetes API: Nodes, ResourceClaims, and ResourceSlices with versions and times of taints."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.client import PATIENCE

NODE = "gpu-node-1"
Objects = dict[str, dict[str, Any]]


class ApiServer:
    """Serves objects over HTTP, as the API does."""

    def __init__(self) -> None:
        self.slices: Objects = {}
        self.claims: dict[tuple[str, str], dict[str, Any]] = {}
        #: Not None: every answer, as status and body.
        self.fault: tuple[int, str] | None = None
        #: Set: another program changes each slice before it is replaced.
        self.interfering = False
        #: Fields of devices that it does not store, as an API without their feature gates.
        self.unknown: tuple[str, ...] = ()
        self.writes = 0
        #: How often the slices were read since the last write.
        self.lists = 0
        self._version = 0
        self._changed = threading.Condition()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.answer(self, {})

            def do_DELETE(self) -> None:
                server.answer(self, {})

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                server.answer(self, json.loads(self.rfile.read(length)))

            def do_PUT(self) -> None:
                self.do_POST()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def kubeconfig(self) -> str:
        """Return the file with which clients find it."""
        return json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [
                    {
                        "name": "c",
                        "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"},
                    }
                ],
                "users": [{"name": "u", "user": {}}],
            }
        )

    def until(self, condition: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until the specifications of the slices are so, and return them."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self._specs()), PATIENCE), self._specs()
            return self._specs()

    def until_settled(self) -> None:
        """Wait until the slices were read twice, and not written."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lists > 2, PATIENCE), self._specs()

    def remove_slices(self) -> None:
        """Delete all slices, as the kubelet does."""
        with self._changed:
            self.slices.clear()

    def _specs(self) -> list[dict[str, Any]]:
        return [self.slices[name]["spec"] for name in sorted(self.slices)]

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self._changed:
            status, found = self._handle(handler.command, handler.path, body)
            self._changed.notify_all()
        text = found if isinstance(found, str) else json.dumps(found)
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(text)))
        handler.end_headers()
        handler.wfile.write(text.encode())

    def _handle(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if self.fault is not None:
            return self.fault
        parts = urlsplit(path)
        resources = "/apis/resource.k8s.io/v1"
        if parts.path == f"/api/v1/nodes/{NODE}":
            return 200, {"kind": "Node", "metadata": {"name": NODE, "uid": "uid-of-node"}}
        if match := re.fullmatch(rf"{resources}/namespaces/(.+)/resourceclaims/(.+)", parts.path):
            claim = self.claims.get((match[1], match[2]))
            return (200, claim) if claim is not None else _refusal(404, f"{match[2]} not found")
        match = re.fullmatch(rf"{resources}/resourceslices(?:/(.+))?", parts.path)
        if match is None:
            return _refusal(404, "not found")
        if method == "GET":
            (selector,) = parse_qs(parts.query)["fieldSelector"]
            assert {*selector.split(",")} == {
                "spec.driver=jupyter-gpushare",
                f"spec.nodeName={NODE}",
            }
            self.lists += 1
            return 200, {"kind": "ResourceSliceList", "items": [*self.slices.values()]}
        self.writes += 1
        self.lists = 0
        if method == "DELETE":
            del self.slices[match[1]]
            return 200, {"kind": "Status"}
        return self._write(method, body)

    def _write(self, method: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if method == "POST" and name in self.slices:
            return _refusal(409, "already exists")
        before = self.slices.get(name)
        if before is not None and self.interfering:
            self.interfering = False
            self._version += 1
            before["metadata"]["resourceVersion"] = str(self._version)
        if (
            before is not None
            and body["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
        ):
            return _refusal(409, "the object has been modified")
        self._version += 1
        body["metadata"]["resourceVersion"] = str(self._version)
        for device in body["spec"]["devices"]:
            for field in self.unknown:
                device.pop(field, None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", f"2026-11-27T07:00:{self._version:02}Z")
        self.slices[name] = body
        return (201 if method == "POST" else 200), body


def _refusal(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
