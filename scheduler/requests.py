# SPDX-License-Identifier: BSD-3-Clause
"""What control programs may ask of the scheduler (``docs/control.md``)."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from . import events as ev
from . import explain, protocol, snapshot
from .recording import RecordedCore, RecordingError
from .state import Wishes
from .writer import Writer

if TYPE_CHECKING:
    from .server import Connection, Server

#: Longest parameters of a notice: the history keeps them.
MAX_NOTICE = 4096
#: So many recordings are remembered.
MOST_RECORDINGS = 16
#: Seconds on CLOCK_MONOTONIC that no machine reaches.
LATEST = 1e12

_WISHES = tuple(wish.name for wish in fields(Wishes))
_SHARES = tuple(share.name for share in fields(ev.Entitlement))


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
        #: What users and teams are entitled to.
        self._entitlements: dict[str, ev.Entitle] = {}
        #: Recordings that were asked for.
        self._writers: list[Writer] = []
        self._operations: dict[str, Callable[[Connection, dict[str, Any]], dict[str, Any]]] = {
            "status": self._op_status,
            "history": self._op_history,
            "subscribe": self._op_subscribe,
            "set": self._op_set,
            "release": self._op_release,
            "offload": self._op_offload,
            "adjust": self._op_adjust,
            "entitle": self._op_entitle,
            "shares": self._op_shares,
            "focus": self._op_focus,
            "explain": self._op_explain,
            "record": self._op_record,
            "recordings": self._op_recordings,
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
        version = request.get("timeline")
        if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
            raise RequestError(f"'timeline' must be the version that you have, not {version!r}")
        self._server.publish()
        core, now = self._server.core, time.monotonic()
        estimates = self._server.forecast.estimates(core, now)
        status = snapshot.status(core, now, self._server.ledger, estimates)
        for gpu in status["gpus"]:
            gpu["utilization"] = self._server.devices.utilization.get(gpu["uuid"])
        status["host"]["pool"] = self._server.pool_status()
        if version is not None:
            status["timeline"] = self._server.timeline.since(version, now)
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
        policy = None if request.get("policy") is None else _string(request, "policy")
        try:
            self._server.handle(ev.Configure(quantum, anti_thrash, policy))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"settings": snapshot.settings(self._server.core)}

    def _op_release(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(request)
        self._server.handle(ev.Release(group))
        return {"group": group}

    def _op_offload(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(request)
        self._server.handle(ev.Release(group, offload=True))
        return {"group": group}

    def _op_adjust(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        asked = {name: request[name] for name in _WISHES if request.get(name) is not None}
        if not asked:
            raise RequestError(f"there is nothing to adjust: give one of {', '.join(_WISHES)}")
        later = request.get("later", False)
        if not isinstance(later, bool):
            raise RequestError(f"'later' must be true or false, not {later!r}")
        # An id that nobody has yet may well be the beginning of another's.
        group = _string(request, "group") if later else self._find(request)
        try:
            self._server.handle(ev.Adjust(group, **asked, later=later))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"group": group, "wishes": asdict(self._server.core.wishes_of(group))}

    def _op_entitle(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        whose = _string(request, "whose")
        given: dict[str, Any] = {
            key: request[key] for key in _SHARES if request.get(key) is not None
        }
        members = request.get("members") or []
        if not (isinstance(members, list) and all(isinstance(m, str) and m for m in members)):
            raise RequestError(f"'members' must be a list of users, not {members!r}")
        event = ev.Entitle(whose, ev.Entitlement(**given), tuple(members))
        try:
            self._server.handle(event)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if event.entitlement == ev.Entitlement() and not event.members:
            self._entitlements.pop(whose, None)
        else:
            self._entitlements[whose] = event
        return {"shares": self._shares()}

    def _op_shares(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        return {"shares": self._shares()}

    def _shares(self) -> dict[str, Any]:
        core, now = self._server.core, time.monotonic()
        return {
            whose: {
                **asdict(event.entitlement),
                "members": list(event.members),
                "used": {gpu: core.times.share(whose, gpu, now) for gpu in core.gpus},
            }
            for whose, event in self._entitlements.items()
        }

    def _op_focus(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = request.get("group", "")
        if not isinstance(group, str):
            raise RequestError(f"'group' must be the id in front, or empty, not {group!r}")
        self._server.handle(ev.Focus(_string(request, "user"), group))
        return {}

    def _op_explain(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = None if request.get("group") is None else self._find(request)
        return {"explanation": explain.explain(self._server.core, time.monotonic(), group)}

    def _op_record(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        core, path, seconds = self._server.core, Path(_string(request, "file")), None
        if not path.is_absolute():
            raise RequestError(f"'file' must be an absolute path, not {str(path)!r}")
        if request.get("seconds") is not None:
            seconds = _number(request, "seconds")
        if not isinstance(core, RecordedCore):
            raise RequestError("this scheduler keeps no events")
        if seconds != 0 and core.sink is not None:
            raise RequestError(
                f"a recording to {core.sink.path} goes on; end it with: gpushare record --stop"
            )
        try:
            tell = functools.partial(recording_ended, self._server)
            writer = Writer(core, path, seconds=seconds, on_end=tell)
        except RecordingError as error:
            raise RequestError(str(error)) from None
        # Of those that have ended, somebody may still want to know how.
        self._writers = [*self._writers[-MOST_RECORDINGS:], writer]
        return {"recording": writer.status()}

    def _op_recordings(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        core, writers = self._server.core, list(self._writers)
        if isinstance(core, RecordedCore) and core.sink is not None and core.sink not in writers:
            writers.append(core.sink)
        if request.get("stop"):
            going = [writer for writer in writers if writer.ended is None]
            if not going:
                raise RequestError("nothing is recorded")
            for writer in going:
                writer.stop()
        return {"recordings": [writer.status() for writer in writers]}

    def _op_cancel(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._server.handle(ev.Cancel(_string(request, "group")))
        return {}

    def _op_cell(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        phase = request.get("phase")
        if phase not in ("begin", "end"):
            raise RequestError(f"'phase' must be 'begin' or 'end', not {phase!r}")
        at: Any = request.get("at")
        number = isinstance(at, (int, float)) and not isinstance(at, bool)
        # No number compares with NaN, and infinity is no time.
        if not (number and 0 <= at <= LATEST):
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
        try:
            length = len(json.dumps(params, allow_nan=False))
        except ValueError:
            raise RequestError("'params' must be JSON, which has no NaN and no infinity") from None
        if length > MAX_NOTICE:
            raise RequestError(f"'params' may have {MAX_NOTICE} bytes as JSON")
        self._server.handle(ev.Notice(_string(request, "group"), _string(request, "code"), params))
        return {}

    def _find(self, request: dict[str, Any]) -> str:
        """The group that a request means: by its id, a unique beginning of it, or its name."""
        try:
            return self._server.core.find_group(_string(request, "group"))
        except LookupError as error:
            raise RequestError(str(error)) from None


def recording_ended(server: Server, writer: Writer) -> None:
    """Say that a recording ended before its time."""
    params = {"file": str(writer.path), "why": writer.ended, "error": writer.error}
    server.handle(ev.Notice("", "recording_ended", params))


def _number(request: dict[str, Any], key: str) -> float:
    value: Any = request.get(key)
    # No number compares with NaN, and infinity is more than any.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LATEST:
        raise RequestError(f"{key!r} must be a number of seconds from 0 on, not {value!r}")
    return float(value)


def _string(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key!r} must be a string that is not empty, not {value!r}")
    return value
