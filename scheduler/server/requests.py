# SPDX-License-Identifier: BSD-3-Clause
"""What control programs may ask of the scheduler (``docs/control.md``)."""

from __future__ import annotations

import functools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Protocol

from ..._version import __version__
from ..core import messages as ev
from ..gpu.checkpoint_runner import Hibernations
from ..memory.pool_manager import Lending
from ..node import permissions
from ..node.hub_login import Hub, LoginError
from ..node.identity import LONGEST_ID, Identities
from ..node.permissions import Denied
from ..node.principals import Principal
from ..node.tickets import LONGEST
from ..observability.recording import RecordedCore, RecordingError, Sink
from ..observability.writer import Writer
from ..protocol import wire as protocol
from ..views import explain
from ..views import status as snapshot
from ..views.estimates import Forecast
from ..views.redaction import View
from ..views.timeline import Timeline
from . import administration
from .administration import Administration, NotDone
from .connection import Connection
from .options import Options
from .throttle import Throttle

#: Longest parameters of a notice: the history keeps them.
MAX_NOTICE = 4096
#: So many recordings are remembered.
MOST_RECORDINGS = 16
#: Seconds on CLOCK_MONOTONIC that no machine reaches.
LATEST = 1e12

#: What may be asked with `adjust`.
_WISHES = tuple(f.name for f in fields(ev.Adjust) if f.name not in ("group", "later"))
_SHARES = tuple(share.name for share in fields(ev.Entitlement))


#: What an operation returns: at once, or later.
Answer = dict[str, Any] | Coroutine[Any, Any, dict[str, Any]]


class RequestError(Exception):
    """A control request cannot be done; the message is the sentence for its sender."""

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        #: For programs, where they can do something about it.
        self.code = code


#: What ends in an answer that says so.
REFUSALS = (RequestError, NotDone, protocol.ProtocolError, Denied, LoginError)


class Host(administration.Host, Protocol):
    """What the requests need of the server."""

    administration: Administration
    options: Options
    identities: Identities
    #: Says whose a token is; None: there is none to ask.
    hub: Hub | None
    throttle: Throttle
    lending: Lending
    hibernations: Hibernations
    timeline: Timeline
    forecast: Forecast
    history: deque[dict[str, Any]]
    #: The number of the last event of the history.
    sequence: int
    #: Connections that get every event.
    subscribers: set[Connection]

    def close_ticket(self, user: str, groups: Collection[str]) -> None:
        """End what control programs do with tickets that were revoked."""
        ...

    def view_of(self, connection: Connection) -> View | None:
        """Return what the user at the other end sees of others; None: all."""
        ...


class Requests:
    """Answers control requests.

    Parameters
    ----------
    server
        Knows the rest.
    """

    def __init__(self, server: Host) -> None:
        self._server = server
        #: What users and teams are entitled to.
        self._entitlements: dict[str, ev.Entitle] = {}
        #: Recordings that were asked for.
        self._writers: list[Writer] = []
        self._operations: dict[str, Callable[[Connection, dict[str, Any]], Answer]] = {
            "whoami": self._op_whoami,
            "login": self._op_login,
            "claim": self._op_claim,
            "ticket": self._op_ticket,
            "tickets": self._op_tickets,
            "revoke": self._op_revoke,
            "status": self._op_status,
            "history": self._op_history,
            "subscribe": self._op_subscribe,
            "set": self._op_set,
            "release": self._op_release,
            "offload": self._op_offload,
            "hibernate": self._op_hibernate,
            "wake": self._op_wake,
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
            **server.administration.operations,
        }

    def answer(self, connection: Connection, body: bytes) -> bytes | Coroutine[Any, Any, None]:
        """Do what a request asks, and return the REPLY; or what does it in time, and sends the REPLY."""
        request: dict[str, Any] = {}
        try:
            request = protocol.decode_json(body)
            version = request.get("protocol")
            if version != protocol.CONTROL_VERSION:
                raise RequestError(
                    f"the program sends control requests of version {version!r} and the scheduler answers those of "
                    f"version {protocol.CONTROL_VERSION}; install the same version of jupyter-gpushare for both"
                )
            name = request.get("op")
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None or not isinstance(name, str):
                raise RequestError(f"there is no request {name!r}; see docs/control.md")
            permissions.check(connection.principal, name, connection.why)
            answer = operation(connection, request)
            if not isinstance(answer, dict):
                return self._answer_later(connection, request, answer)
            self._server.administration.note(connection, request, "ok")
            return _reply({"ok": True, **answer})
        except REFUSALS as error:
            self._server.administration.note(connection, request, str(error))
            return _refusal(error)

    async def _answer_later(
        self,
        connection: Connection,
        request: dict[str, Any],
        work: Coroutine[Any, Any, dict[str, Any]],
    ) -> None:
        outcome = "ok"
        try:
            reply = _reply({"ok": True, **await work})
        except REFUSALS as error:
            outcome, reply = str(error), _refusal(error)
        self._server.administration.note(connection, request, outcome)
        connection.write(reply)

    # --- Who is who ---------------------------------------------------------------------------

    def _op_whoami(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        identity, who = self._server.options.identity, connection.principal
        needs = "login" if identity.hub_api_url else "ticket"
        return {
            "user": None if who is None else who.user,
            "admin": who is not None and who.admin,
            "reader": who is not None and who.reader,
            "kernel": None if who is None else who.kernel,
            "needs": needs if who is None else "",
            "node": identity.node,
            # A uid that says whose a server is says whose its kernels are, too.
            "tickets": connection.uid in identity.shared_uids,
            # Then its kernels' ids are to be claimed before anybody else can read them (`claim`).
            "claims": identity.node,
        }

    async def _op_login(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        hub, token = self._server.hub, _string(request, "token")
        if hub is None:
            raise RequestError(
                "this scheduler asks no Hub whose a token is; set hub_api_url in its configuration"
            )
        who = await hub.login(token, connection.uid)
        connection.speaks_for(who)
        return {"user": who.user, "teams": who.teams, "admin": who.admin, "reader": who.reader}

    async def _op_claim(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._own(connection, request)
        await self._identities().tickets.save()
        return {}

    def _own(self, connection: Connection, request: dict[str, Any]) -> str:
        """Make a group that nobody owns the user's, and return its id."""
        who, identities = self._who(connection), self._identities()
        group = _string(request, "group")
        if len(group.encode("utf-8", "replace")) > LONGEST_ID:
            raise RequestError(f"'group' may have {LONGEST_ID} bytes")
        identities.check(who, group)
        if identities.owner(group) not in (None, who.user):
            # An administrator may speak for every group, but does not come to own it.
            raise Denied("not_yours", f"{group!r} is not yours, but another user's")
        identities.tickets.claim(who.user, group)
        return group

    async def _op_ticket(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        who, identities = self._who(connection), self._identities()
        server, group = _server(request), self._own(connection, request)
        text = identities.issue(who, group, server)
        await identities.tickets.save()
        return {"ticket": text}

    async def _op_tickets(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        who, identities = self._who(connection), self._identities()
        server, groups = _server(request), request.get("groups")
        if not (isinstance(groups, list) and all(isinstance(group, str) for group in groups)):
            raise RequestError(f"'groups' must be the list of those that go on, not {groups!r}")
        revoked = identities.tickets.keep(who.user, server, frozenset(groups))
        self._server.close_ticket(who.user, revoked)
        await identities.tickets.save()
        # Those of an earlier scheduler that could not keep them.
        missing = [group for group in groups if identities.tickets.owner(group) != who.user]
        return {"revoked": revoked, "missing": missing}

    async def _op_revoke(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        who, identities = self._who(connection), self._identities()
        group = _string(request, "group")
        identities.check(who, group)
        user = identities.owner(group) or who.user
        revoked = identities.tickets.revoke(user, group)
        identities.tickets.renounce(user, group)
        self._server.close_ticket(user, [group])
        await identities.tickets.save()
        return {"revoked": revoked}

    def _identities(self) -> Identities:
        identities = self._server.identities
        if not identities.rules.node:
            raise RequestError("this scheduler serves one user, whose programs need no ticket")
        return identities

    def _who(self, connection: Connection) -> Principal:
        """Return who asks, for what only those may that have said so."""
        who = connection.principal
        assert who is not None, "permissions.check let it pass"
        return who

    # --- What there is ------------------------------------------------------------------------

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
        view, who = self._server.view_of(connection), self._who(connection)
        status["host"]["pool"] = self._server.lending.status(None if view is None else who.user)
        if view is not None:
            status = view.status(status)
        else:
            status["processes"] = self._server.administration.processes()
        if version is not None:
            status["timeline"] = self._server.timeline.since(
                version, now, view, as_json=protocol.Encoded
            )
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
                "viewer": {
                    "user": who.user,
                    "admin": who.admin,
                    "reader": who.reader,
                    "kernel": who.kernel,
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
        view = self._server.view_of(connection)
        if view is not None:
            events = [view.event(event) for event in events]
        return {"events": events, "sequence": self._server.sequence}

    def _op_subscribe(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        # What has happened but is not published yet belongs before the subscription.
        self._server.publish()
        self._server.subscribers.add(connection)
        return {"sequence": self._server.sequence}

    def _op_set(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        quantum, anti_thrash = request.get("quantum"), request.get("anti_thrash")
        policy = None if request.get("policy") is None else _string(request, "policy")
        hibernate_after = request.get("hibernate_after")
        if hibernate_after is None and "hibernate_after" in request:
            hibernate_after = 0.0
        try:
            self._server.handle(ev.Configure(quantum, anti_thrash, policy, hibernate_after))
        except ValueError as error:
            raise RequestError(str(error)) from None
        if self._server.core.hibernate_after is not None:
            self._server.hibernations.probe()
        return {"settings": snapshot.settings(self._server.core)}

    def _op_release(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(connection, request)
        self._server.handle(ev.Release(group))
        return {"group": group}

    def _op_offload(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(connection, request)
        self._server.handle(ev.Release(group, offload=True))
        return {"group": group}

    def _op_hibernate(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(connection, request)
        try:
            self._server.handle(ev.HibernateNow(group))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"group": group}

    def _op_wake(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        group = self._find(connection, request)
        self._server.handle(ev.WakeNow(group))
        return {"group": group}

    def _op_adjust(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        asked = {name: request[name] for name in _WISHES if request.get(name) is not None}
        if not asked:
            raise RequestError(f"there is nothing to adjust: give one of {', '.join(_WISHES)}")
        later = request.get("later", False)
        if not isinstance(later, bool):
            raise RequestError(f"'later' must be true or false, not {later!r}")
        # An id that nobody has yet may well be the beginning of another's.
        group = self._claim(connection, request) if later else self._find(connection, request)
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
        try:
            self.entitle(ev.Entitle(whose, ev.Entitlement(**given), tuple(members)))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"shares": self._shares()}

    def entitle(self, event: ev.Entitle) -> None:
        """Entitle somebody to something.

        Raises
        ------
        ValueError
            If that cannot be; the message is one sentence for who asked.
        """
        self._server.handle(event)
        if event.entitlement == ev.Entitlement() and not event.members:
            self._entitlements.pop(event.whose, None)
        else:
            self._entitlements[event.whose] = event

    def _op_shares(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        view, shares = self._server.view_of(connection), self._shares()
        return {"shares": shares if view is None else view.shares(shares)}

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
        who, user = self._who(connection), request.get("user")
        user = who.user if user is None else _string(request, "user")
        if not who.admin and user != who.user:
            raise Denied("not_yours", f"what is in front of {user!r} is not for you to say")
        if group or who.kernel is not None:
            self._server.identities.claim(who, group)
        self._server.handle(ev.Focus(user, group))
        return {}

    def _op_explain(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        view, group = self._server.view_of(connection), None
        if request.get("group") is not None:
            group = self._find(connection, request, hidden=True)
        explanation = explain.explain(self._server.core, time.monotonic(), group)
        return {"explanation": explanation if view is None else view.explanation(explanation)}

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
        core = self._server.core
        writers: list[Sink] = list(self._writers)
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
        self._server.handle(ev.Cancel(self._claim(connection, request)))
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
        group, msg_id = self._claim(connection, request), _string(request, "msg_id")
        self._server.handle(ev.Cell(group, phase, msg_id, float(at), from_kernel=False))
        return {}

    def _op_name(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._server.handle(ev.Rename(self._claim(connection, request), _string(request, "name")))
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
        code, group = _string(request, "code"), self._claim(connection, request)
        if not self._server.throttle.may_notify(connection):
            raise RequestError("too many notices for one user; wait a minute")
        self._server.handle(ev.Notice(group, code, params))
        return {}

    def _claim(self, connection: Connection, request: dict[str, Any]) -> str:
        """The group with the id that a request names, which may be one that nobody has yet."""
        group = _string(request, "group")
        self._server.identities.claim(self._who(connection), group)
        return group

    def _find(
        self, connection: Connection, request: dict[str, Any], *, hidden: bool = False
    ) -> str:
        """The group that a request means: by its id, a unique beginning of it, or its name.

        With ``hidden``, it may be another user's, by the id that it is shown with.
        """
        core, identities, who = self._server.core, self._server.identities, self._who(connection)
        text = _string(request, "group")
        view = self._server.view_of(connection)
        all_known = who.admin or (hidden and view is None)
        known = None if all_known else functools.partial(identities.owns, who)
        if hidden and view is not None and (found := view.find(text)) in core.groups:
            return str(found)
        try:
            return core.find_group(text, among=known)
        except LookupError as error:
            if text in core.groups:
                identities.check(who, text)
            raise RequestError(str(error), getattr(error, "code", "")) from None


def _reply(value: dict[str, Any]) -> bytes:
    return protocol.encode_json(protocol.REPLY, value)


def _refusal(error: Exception) -> bytes:
    reply: dict[str, Any] = {"ok": False, "error": str(error)}
    if code := getattr(error, "code", ""):
        reply["code"] = code
    return _reply(reply)


def recording_ended(server: Host, writer: Writer) -> None:
    """Say that a recording ended before its time."""
    params = {"file": str(writer.path), "why": writer.ended, "error": writer.error}
    server.handle(ev.Notice("", "recording_ended", params))


def _number(request: dict[str, Any], key: str) -> float:
    value: Any = request.get(key)
    # No number compares with NaN, and infinity is more than any.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LATEST:
        raise RequestError(f"{key!r} must be a number of seconds from 0 on, not {value!r}")
    return float(value)


def _server(request: dict[str, Any]) -> str:
    """Return which of a user's servers asks; empty: it does not say."""
    name = request.get("server", "")
    if not isinstance(name, str) or len(name) > LONGEST:
        raise RequestError(f"'server' must be a name of at most {LONGEST} characters")
    return name


def _string(request: dict[str, Any], key: str) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{key!r} must be a string that is not empty, not {value!r}")
    return value
