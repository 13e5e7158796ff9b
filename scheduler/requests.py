# SPDX-License-Identifier: BSD-3-Clause
"""What control programs may ask of the scheduler (``docs/control.md``)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import events as ev
from . import protocol

if TYPE_CHECKING:
    from .server import Connection, Server

#: Longest parameters of a notice: the history keeps them.
MAX_NOTICE = 4096


class RequestError(Exception):
    """A control request cannot be done; the message is the sentence for its sender."""


class Requests:
    """Answers control requests.

    Parameters
    ----------
    server
        Knows the rest.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._operations: dict[str, Callable[[Connection, dict[str, Any]], dict[str, Any]]] = {
            "status": self._op_status,
            "history": self._op_history,
            "subscribe": self._op_subscribe,
            "set": self._op_set,
            "release": self._op_release,
            "offload": self._op_offload,
            "cancel": self._op_cancel,
            "cell": self._op_cell,
            "name": self._op_name,
            "notice": self._op_notice,
        }

    def answer(self, connection: Connection, body: bytes) -> bytes:
        """Do what a request asks, and return the REPLY."""
        try:
            request = protocol.decode_json(body)
            version = request.get("protocol")
            if version != protocol.VERSION:
                raise RequestError(
                    f"the request is of protocol {version!r} and the scheduler of protocol "
                    f"{protocol.VERSION}: install one release of jupyter-gpushare for both"
                )
            name = request.get("op")
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None:
                raise RequestError(f"there is no request {name!r}; see docs/control.md")
            reply = {"ok": True, **operation(connection, request)}
        except (RequestError, protocol.ProtocolError) as error:
            reply = {"ok": False, "error": str(error)}
        return protocol.encode_json(protocol.REPLY, reply)

    def _op_status(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._server.publish()
        now = time.monotonic()
        status = self._server.core.status(now)
        for gpu in status["gpus"]:
            gpu["utilization"] = self._server.devices.utilization.get(gpu["uuid"])
        status["host"]["pool"] = self._server.pool_status()
        return {
            "status": {
                "version": __version__,
                "protocol": protocol.VERSION,
                "sequence": self._server.sequence,
                "time": now,
                "scheduler": {
                    "pid": os.getpid(),
                    "uptime": now - self._server.started,
                    "socket": str(self._server.options.path),
                },
                "driver": {
                    "simulated": self._server.options.simulated,
                    "version": self._server.devices.driver_version,
                },
                **status,
            }
        }

    def _op_history(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        since = request.get("since", 0)
        if isinstance(since, bool) or not isinstance(since, int):
            raise RequestError(f"'since' must be a sequence number, not {since!r}")
        self._server.publish()
        events = [event for event in self._server.history if event["sequence"] > since]
        return {"events": events, "sequence": self._server.sequence}

    def _op_subscribe(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        # What has happened but is not published yet belongs before the subscription.
        self._server.publish()
        self._server.subscribers.add(connection)
        return {"sequence": self._server.sequence}

    def _op_set(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        quantum, anti_thrash = request.get("quantum"), request.get("anti_thrash")
        try:
            self._server.handle(ev.Configure(quantum, anti_thrash))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"settings": self._server.core.status(time.monotonic())["settings"]}

    def _op_release(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(request)
        self._server.handle(ev.Release(group))
        return {"group": group}

    def _op_offload(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(request)
        self._server.handle(ev.Release(group, offload=True))
        return {"group": group}

    def _op_cancel(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._server.handle(ev.Cancel(_string(request, "group")))
        return {}

    def _op_cell(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        phase = request.get("phase")
        if phase not in ("begin", "end"):
            raise RequestError(f"'phase' must be 'begin' or 'end', not {phase!r}")
        at = request.get("at")
        if isinstance(at, bool) or not isinstance(at, (int, float)):
            raise RequestError(f"'at' must be seconds on CLOCK_MONOTONIC, not {at!r}")
        group, msg_id = _string(request, "group"), _string(request, "msg_id")
        self._server.handle(ev.Cell(group, phase, msg_id, float(at), from_kernel=False))
        return {}

    def _op_name(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._server.handle(ev.Rename(_string(request, "group"), _string(request, "name")))
        return {}

    def _op_notice(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        params = request.get("params", {})
        if not isinstance(params, dict):
            raise RequestError(f"'params' must be an object, not {params!r}")
        if len(json.dumps(params)) > MAX_NOTICE:
            raise RequestError(f"'params' may have {MAX_NOTICE} bytes as JSON")
        self._server.handle(ev.Notice(_string(request, "group"), _string(request, "code"), params))
        return {}

    def _find(self, request: dict[str, Any]) -> str:
        """The group that a request means: by its id, a unique beginning of it, or its name."""
        try:
            return self._server.core.find_group(_string(request, "group"))
        except LookupError as error:
            raise RequestError(str(error)) from None


def _string(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key!r} must be a string that is not empty, not {value!r}")
    return value
