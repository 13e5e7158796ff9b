# SPDX-License-Identifier: BSD-3-Clause
"""The requests of control programs (``docs/reference/control.md``)."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, structs

from ..._version import __version__
from ..core import messages as ev
from ..gpu.checkpoint_runner import Hibernations
from ..memory.pool_manager import PoolManager
from ..node import permissions
from ..node.hub_login import Hub, LoginError
from ..node.identity import LONGEST_ID, Identities
from ..node.permissions import Denied
from ..node.principals import Principal
from ..observability.recording import RecordedCore, RecordingError, Sink
from ..observability.writer import Writer
from ..protocol import bodies
from ..protocol import wire as protocol
from ..protocol.bodies import RequestError
from ..views import explain, when
from ..views import status as snapshot
from ..views.redaction import View
from ..views.words import answers
from ..views.words.codes import code_text
from ..views.words.explanations import PREFETCHES
from . import administration
from .administration import Administration
from .connection import Connection
from .history import Answer
from .options import Options
from .resource_claims import ResourceClaims
from .succession import Succession
from .throttle import Throttle

#: The longest parameters of a notice, since the history keeps them.
MAX_NOTICE = 4096
#: The number of recordings that are remembered.
MOST_RECORDINGS = 16

#: Errors that end in an answer with their text.
REFUSALS = (RequestError, protocol.ProtocolError, Denied, LoginError)


class Host(administration.Host, Protocol):
    """The parts of the server that requests use."""

    administration: Administration
    succession: Succession
    options: Options
    identities: Identities
    #: Returns the user of a token; None: there is no Hub.
    hub: Hub | None
    throttle: Throttle
    pools: PoolManager
    hibernations: Hibernations

    def close_ticket(self, user: str, groups: Collection[str]) -> None:
        """End the connections of control programs with tickets that were revoked."""
        ...

    def view_of(self, connection: Connection) -> View | None:
        """Return the view of a connection's user; None: the user sees everything."""
        ...


class Requests:
    """Answers control requests.

    Parameters
    ----------
    server
        The server.
    """

    def __init__(self, server: Host) -> None:
        self._server = server
        #: The entitlements of users and teams.
        self._entitlements: dict[str, ev.Entitle] = {}
        self._claims = ResourceClaims(server, self._entitlements, self.entitle)
        #: By group: the number of the connection that reported its queued cells last, if there are any.
        self._queued: dict[str, int] = {}
        #: The recordings that were requested.
        self._writers: list[Writer] = []
        self._operations: dict[str, Callable[[Connection, Any], Answer]] = {
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
            "evict": self._op_evict,
            "hibernate": self._op_hibernate,
            "wake": self._op_wake,
            "reserve": self._op_reserve,
            "reservation": self._op_reservation,
            "adjust": self._op_adjust,
            "entitle": self._op_entitle,
            "shares": self._op_shares,
            "focus": self._op_focus,
            "hint": self._op_hint,
            "explain": self._op_explain,
            "when": self._op_when,
            "record": self._op_record,
            "recordings": self._op_recordings,
            "cancel": self._op_cancel,
            "cell": self._op_cell,
            "queued": self._op_queued,
            "name": self._op_name,
            "notice": self._op_notice,
            **server.succession.operations,
            **server.administration.operations,
            **self._claims.operations,
        }

    def answer(self, connection: Connection, body: bytes) -> bytes | Coroutine[Any, Any, None]:
        """Carry out a request, and return the REPLY; or return what does so later and sends the REPLY."""
        request: dict[str, Any] = {}
        try:
            request = protocol.decode_json(body)
            version = request.get("protocol")
            if version != protocol.CONTROL_VERSION:
                raise RequestError(
                    f"the program sends control requests of version {version!r}, but the scheduler expects "
                    f"version {protocol.CONTROL_VERSION}; install the same version of jupyter-gpushare for both"
                )
            name = request.get("op")
            operation = self._operations.get(name) if isinstance(name, str) else None
            if operation is None or not isinstance(name, str):
                raise RequestError(f"unknown request {name!r}; see docs/reference/control.md")
            permissions.check(connection.principal, name, connection.why)
            answer = operation(connection, bodies.read(name, request))
            if not isinstance(answer, dict):
                return self._answer_later(connection, request, answer)
            self._server.administration.record_request(connection, request, "ok")
            return _reply({"ok": True, **answer})
        except REFUSALS as error:
            self._server.administration.record_request(connection, request, str(error))
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
        self._server.administration.record_request(connection, request, outcome)
        connection.write(reply)

    # --- Identity -----------------------------------------------------------------------------

    def _op_whoami(self, connection: Connection, asked: bodies.Body) -> dict[str, Any]:
        identity, who = self._server.options.identity, connection.principal
        return {
            "user": None if who is None else who.user,
            "admin": who is not None and who.admin,
            "reader": who is not None and who.reader,
            "kernel": None if who is None else who.kernel,
            "needs": "" if who is not None else "login" if identity.hub_api_url else "ticket",
            "hibernation": self._server.hibernations.refusal(connection.peer),
            "node": identity.node,
            # A uid that states the user of a server also states the user of its kernels.
            "tickets": connection.uid in identity.shared_uids or bool(who and who.claim),
            # The ids of its kernels must then be claimed before any other user can read them (`claim`).
            "claims": identity.node,
        }

    async def _op_login(self, connection: Connection, asked: bodies.Login) -> dict[str, Any]:
        hub = self._server.hub
        if hub is None:
            raise RequestError(
                "this scheduler cannot verify tokens of JupyterHub; set hub_api_url in its configuration"
            )
        who = replace(await hub.login(asked.token, connection.uid), logged_in=True)
        connection.speaks_for(who)
        return {"user": who.user, "teams": who.teams, "admin": who.admin, "reader": who.reader}

    async def _op_claim(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        self._own(connection, asked.group)
        await self._identities().tickets.save()
        return {}

    def _own(self, connection: Connection, group: str) -> None:
        """Give a group without an owner to the user."""
        who, identities = self._who(connection), self._identities()
        if len(group.encode("utf-8", "replace")) > LONGEST_ID:
            raise RequestError(f"'group' must have at most {LONGEST_ID} bytes")
        identities.check(who, group)
        if identities.owner(group) not in (None, who.user):
            # An administrator may act for every group, but does not become its owner.
            raise Denied("not_yours", f"{group!r} belongs to another user")
        identities.tickets.claim(who.user, group)

    async def _op_ticket(self, connection: Connection, asked: bodies.Ticket) -> dict[str, Any]:
        who, identities = self._who(connection), self._identities()
        self._own(connection, asked.group)
        text = identities.issue(who, asked.group, asked.server)
        self._claims.set_class(who, asked.group)
        await identities.tickets.save()
        return {"ticket": text}

    async def _op_tickets(self, connection: Connection, asked: bodies.Tickets) -> dict[str, Any]:
        who, identities = self._who(connection), self._identities()
        revoked = identities.tickets.keep(who.user, asked.server, frozenset(asked.groups))
        self._server.close_ticket(who.user, revoked)
        await identities.tickets.save()
        # Groups of an earlier scheduler that could not remember its claims.
        missing = [group for group in asked.groups if identities.tickets.owner(group) != who.user]
        return {"revoked": revoked, "missing": missing}

    async def _op_revoke(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        who, identities, group = self._who(connection), self._identities(), asked.group
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
            raise RequestError("this scheduler serves only one user, whose programs need no ticket")
        return identities

    def _who(self, connection: Connection) -> Principal:
        """Return the user of a connection, for requests that need an identity."""
        who = connection.principal
        assert who is not None, "permissions.check admitted it"
        return who

    # --- Status -------------------------------------------------------------------------------

    def _op_status(self, connection: Connection, asked: bodies.Status) -> Answer:
        answer = functools.partial(self._status, connection, asked)
        return answer() if asked.timeline is None else self._server.history.with_spans(answer)

    def _status(self, connection: Connection, asked: bodies.Status) -> dict[str, Any]:
        self._server.publish()
        core, now = self._server.core, time.monotonic()
        estimates = self._server.history.forecast.estimates(core, now)
        status = snapshot.status(core, now, self._server.history.ledger, estimates)
        for gpu in status["gpus"]:
            gpu["utilization"] = self._server.devices.utilization.get(gpu["uuid"])
            gpu["power"] = self._server.devices.watts(gpu["uuid"])
        view, who = self._server.view_of(connection), self._who(connection)
        status["host"]["pool"] = self._server.pools.status(None if view is None else who.user)
        status["host"]["disk_tier"] = self._server.pools.disk_status()
        if view is not None:
            status = view.status(status)
        else:
            status["processes"] = self._server.administration.processes()
        if asked.timeline is not None:
            status["timeline"] = self._server.history.spans(asked.timeline, now, view)
        if asked.text:
            status = answers.status(status)
        return {
            "status": {
                "version": __version__,
                "protocol": protocol.VERSION,
                "sequence": self._server.history.sequence,
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

    def _op_history(self, connection: Connection, asked: bodies.History) -> Answer:
        answer = functools.partial(self._history, connection, asked)
        return self._server.history.with_events(asked.since, answer)

    def _history(self, connection: Connection, asked: bodies.History) -> dict[str, Any]:
        self._server.publish()
        events = self._server.history.after(asked.since)
        view = self._server.view_of(connection)
        if view is not None:
            events = [view.event(event) for event in events if not view.hides(event)]
        return {"events": events, "sequence": self._server.history.sequence}

    def _op_subscribe(self, connection: Connection, asked: bodies.Body) -> dict[str, Any]:
        # What has happened but was not published yet belongs before the subscription.
        self._server.publish()
        self._server.history.subscribers.add(connection)
        return {"sequence": self._server.history.sequence}

    def _op_set(self, connection: Connection, asked: bodies.Set) -> dict[str, Any]:
        idle = None if asked.hibernate_after is UNSET else asked.hibernate_after or 0.0
        try:
            self._server.handle(
                ev.Configure(asked.quantum, asked.anti_thrash, asked.policy, idle, asked.prefetch)
            )
        except ValueError as error:
            raise RequestError(str(error)) from None
        if self._server.core.rules.hibernate_after is not None:
            self._server.hibernations.probe()
        return {"settings": snapshot.settings(self._server.core)}

    def _op_release(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        group = self._find(connection, asked.group)
        self._server.handle(ev.Release(group))
        return {"group": group}

    def _op_evict(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        group = self._find(connection, asked.group)
        self._server.handle(ev.Release(group, evict=True))
        return {"group": group}

    def _op_hibernate(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        group = self._find(connection, asked.group)
        try:
            self._server.handle(ev.HibernateNow(group))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"group": group}

    def _op_wake(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        group = self._find(connection, asked.group)
        self._server.handle(ev.WakeNow(group))
        return {"group": group}

    def _op_reserve(self, connection: Connection, asked: bodies.Reserve) -> dict[str, Any]:
        group = self._find(connection, asked.group)
        try:
            self._server.handle(ev.Reserve(group, asked.on))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return self._reservation(group)

    def _op_reservation(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        return self._reservation(self._find(connection, asked.group))

    def _reservation(self, group: str) -> dict[str, Any]:
        core, now = self._server.core, time.monotonic()
        found = core.groups[group]
        return {
            "group": group,
            "state": found.state,
            "reservation": snapshot.reservation(found, now),
        }

    def _op_adjust(self, connection: Connection, asked: bodies.Adjust) -> dict[str, Any]:
        preferences = asked.given("group", "later")
        if not preferences:
            names = [name for name in asked.__struct_fields__ if name not in ("group", "later")]
            raise RequestError(f"nothing to adjust; specify at least one of {', '.join(names)}")
        # An unknown id may be a prefix of another user's group.
        find = self._claim if asked.later else self._find
        group = find(connection, asked.group)
        try:
            self._server.handle(ev.Adjust(group, **preferences, later=asked.later))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"group": group, "preferences": asdict(self._server.core.preferences_of(group))}

    def _op_entitle(self, connection: Connection, asked: bodies.Entitle) -> dict[str, Any]:
        entitlement = ev.Entitlement(**asked.given("whose", "members"))
        try:
            self.entitle(ev.Entitle(asked.whose, entitlement, tuple(asked.members or ())))
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"shares": self._shares()}

    def entitle(self, event: ev.Entitle) -> None:
        """Set an entitlement.

        Raises
        ------
        ValueError
            It is not valid. The message is one sentence for the user.
        """
        self._server.handle(event)
        if event.entitlement == ev.Entitlement() and not event.members:
            self._entitlements.pop(event.whose, None)
        else:
            self._entitlements[event.whose] = event

    def _op_shares(self, connection: Connection, asked: bodies.Body) -> dict[str, Any]:
        view, shares = self._server.view_of(connection), self._shares()
        return {"shares": shares if view is None else view.shares(shares)}

    def _shares(self) -> dict[str, Any]:
        core, now = self._server.core, time.monotonic()
        return {
            whose: {
                **structs.asdict(event.entitlement),
                "members": list(event.members),
                "used": {gpu: core.times.share(whose, gpu, now) for gpu in core.gpus},
            }
            for whose, event in self._entitlements.items()
        }

    def _op_focus(self, connection: Connection, asked: bodies.Focus) -> dict[str, Any]:
        who, group = self._who(connection), asked.group
        user = who.user if asked.user is None else asked.user
        if not who.admin and user != who.user:
            raise Denied(
                "not_yours",
                f"only {user!r} or an administrator can change which notebook {user!r} has in focus",
            )
        if group or who.kernel is not None:
            self._server.identities.claim(who, group)
        self._server.handle(ev.Focus(user, group))
        return {}

    def _op_hint(self, connection: Connection, asked: bodies.Hint) -> dict[str, Any]:
        # Programs report hints for any notebook, also before its first use of the GPU. A user's command needs a group.
        find = self._find if asked.kind == "ready" else self._claim
        group = find(connection, asked.group)
        self._server.handle(ev.Hint(group, asked.kind))
        found = self._server.core.groups.get(group)
        if found is None:
            return {"group": group, "prefetch": None, "code": None, "text": ""}
        why = explain.hint(self._server.core, found, time.monotonic())
        return {
            "group": group,
            "prefetch": snapshot.prefetch(found),
            "code": None if why is None else why["code"],
            "text": code_text(PREFETCHES, why),
        }

    def _op_explain(self, connection: Connection, asked: bodies.Explain) -> dict[str, Any]:
        view, group = self._server.view_of(connection), None
        if asked.group is not None:
            group = self._find(connection, asked.group, hidden=True)
        explanation = explain.explain(self._server.core, time.monotonic(), group)
        if view is not None:
            explanation = view.explanation(explanation)
        return {"explanation": answers.explanation(explanation) if asked.text else explanation}

    def _op_when(self, connection: Connection, asked: bodies.When) -> dict[str, Any]:
        core, forecast, now = self._server.core, self._server.history.forecast, time.monotonic()
        view, who = self._server.view_of(connection), self._who(connection)
        if (asked.group is None) == (asked.bytes is None):
            raise RequestError(
                "state either which notebook ('group') or how much memory a new one will use ('bytes')"
            )
        if asked.bytes is None:
            if asked.priority is not None or asked.gpu is not None:
                raise RequestError("'priority' and 'gpu' apply only to a new notebook ('bytes')")
            group = self._find(connection, str(asked.group))
            found = when.of_group(core, forecast, now, group)
        else:
            found = when.of_new(
                core, forecast, now,
                user=who.user, teams=who.teams, size=asked.bytes,
                activity_class=asked.priority or "interactive",
                gpu=None if asked.gpu is None else self._server.administration.find_gpu(asked.gpu),
            )  # fmt: skip
        return {"when": answers.when(found if view is None else view.when(found))}

    def _op_record(self, connection: Connection, asked: bodies.Record) -> dict[str, Any]:
        core, path, seconds = self._server.core, Path(asked.file), asked.seconds
        if not isinstance(core, RecordedCore):
            raise RequestError("this scheduler keeps no recent events to replay")
        if seconds != 0 and core.sink is not None:
            raise RequestError(
                f"a recording to {core.sink.path} is already running; stop it with: gpushare record --stop"
            )
        try:
            tell = functools.partial(recording_ended, self._server)
            writer = Writer(core, path, seconds=seconds, on_end=tell)
        except RecordingError as error:
            raise RequestError(str(error)) from None
        # A user may still read the result of a recording that has ended.
        self._writers = [*self._writers[-MOST_RECORDINGS:], writer]
        return {"recording": writer.status()}

    def _op_recordings(self, connection: Connection, asked: bodies.Recordings) -> dict[str, Any]:
        core = self._server.core
        writers: list[Sink] = list(self._writers)
        if isinstance(core, RecordedCore) and core.sink is not None and core.sink not in writers:
            writers.append(core.sink)
        if asked.stop:
            going = [writer for writer in writers if writer.ended is None]
            if not going:
                raise RequestError("no recording is running")
            for writer in going:
                writer.stop()
        return {"recordings": [writer.status() for writer in writers]}

    def _op_cancel(self, connection: Connection, asked: bodies.Group) -> dict[str, Any]:
        self._server.handle(ev.Cancel(self._claim(connection, asked.group)))
        return {}

    def _op_cell(self, connection: Connection, asked: bodies.Cell) -> dict[str, Any]:
        group = self._claim(connection, asked.group)
        event = ev.Cell(group, asked.phase, asked.msg_id, asked.at, False, asked.agent)
        self._server.handle(event)
        return {}

    def _op_queued(self, connection: Connection, asked: bodies.Queued) -> dict[str, Any]:
        group = self._claim(connection, asked.group)
        self._queued.pop(group, None)
        if asked.count:
            self._queued[group] = connection.number
        self._server.handle(ev.Queued(group, asked.count))
        return {}

    def forget(self, connection: Connection) -> None:
        """Forget the queued cells that a program reported whose connection has ended: they may have begun since."""
        for group in [g for g, number in self._queued.items() if number == connection.number]:
            del self._queued[group]
            self._server.handle(ev.Queued(group, 0))

    def _op_name(self, connection: Connection, asked: bodies.Name) -> dict[str, Any]:
        self._server.handle(ev.Rename(self._claim(connection, asked.group), asked.name))
        return {}

    def _op_notice(self, connection: Connection, asked: bodies.Notice) -> dict[str, Any]:
        try:
            length = len(json.dumps(asked.params, allow_nan=False))
        except ValueError:
            raise RequestError("'params' must be JSON, which has no NaN and no infinity") from None
        if length > MAX_NOTICE:
            raise RequestError(f"'params' must have at most {MAX_NOTICE} bytes as JSON")
        group = self._claim(connection, asked.group)
        if not self._server.throttle.may_notify(connection):
            raise RequestError("too many notices for one user; wait a minute")
        self._server.handle(ev.Notice(group, asked.code, asked.params))
        return {}

    def _claim(self, connection: Connection, group: str) -> str:
        """Return the group with the id in a request, which may be unknown yet."""
        self._server.identities.claim(self._who(connection), group)
        return group

    def _find(self, connection: Connection, text: str, *, hidden: bool = False) -> str:
        """Return the group that a request names: by its id, a unique prefix of it, or its name.

        With ``hidden``, it may be another user's, by the id with which it is shown.
        """
        core, identities, who = self._server.core, self._server.identities, self._who(connection)
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
    """Note that a recording ended before its time."""
    params = {"file": str(writer.path), "why": writer.ended, "error": writer.error}
    server.handle(ev.Notice("", "recording_ended", params))
