# SPDX-License-Identifier: BSD-3-Clause
"""Claims of Kubernetes' Dynamic Resource Allocation: a token for each, its user, and what the user is entitled to.

The DRA driver of the node owns the claims, and prepares them again at a new scheduler, so nothing is kept on disk here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..core import messages as ev
from ..node.hub_login import LoginError
from ..node.permissions import Denied
from ..node.principals import Principal
from ..protocol import bodies
from ..protocol.bodies import RequestError
from .connection import Connection


@dataclass(frozen=True, slots=True)
class ResourceClaim:
    """A claim that is prepared for pods of this node."""

    uid: str
    digest: str
    user: str
    teams: tuple[str, ...]
    #: The class of its groups; None: their behaviour decides.
    priority: ev.Priority | None
    entitlement: ev.Entitlement


class Core(Protocol):
    """The part of the core that is read."""

    def preferences_of(self, group: str) -> Any:
        """Return the preferences of a group."""
        ...


class Host(Protocol):
    """The parts of the server that claims use."""

    @property
    def core(self) -> Core:
        """The core."""
        ...

    def handle(self, event: ev.Event) -> None:
        """Let the core handle an event."""
        ...


class ResourceClaims:
    """All prepared claims.

    Parameters
    ----------
    server
        The server.
    entitlements
        The entitlements of users and teams, by ``user:NAME`` or ``team:NAME``.
    entitle
        Sets an entitlement, or raises `ValueError`.
    """

    def __init__(
        self,
        server: Host,
        entitlements: Mapping[str, ev.Entitle],
        entitle: Callable[[ev.Entitle], None],
    ) -> None:
        self._server = server
        self._set = entitle
        self._entitlements = entitlements
        self._claims: dict[str, ResourceClaim] = {}
        self._uids: dict[str, str] = {}
        #: The claim that set the entitlement of each user.
        self._entitled: dict[str, str] = {}
        self.operations: dict[str, Callable[[Connection, Any], dict[str, Any]]] = {
            "prepare_claim": self._op_prepare,
            "unprepare_claim": self._op_unprepare,
            "prepared_claims": self._op_prepared,
            "present_claim": self._op_present,
        }

    def set_class(self, principal: Principal, group: str) -> None:
        """Give a new group the class of the claim under which its user asks, unless the user has chosen one."""
        claim = self._claims.get(principal.claim)
        if claim is None or claim.priority is None:
            return
        if self._server.core.preferences_of(group).priority == "auto":
            self._server.handle(ev.Adjust(group, priority=claim.priority, later=True))

    def _op_prepare(self, connection: Connection, asked: bodies.PrepareClaim) -> dict[str, Any]:
        given = asked.given("uid", "token", "user", "teams", "priority")
        claim = ResourceClaim(
            asked.uid,
            _digest(asked.token),
            asked.user,
            tuple(asked.teams),
            asked.priority,
            ev.Entitlement(**given),
        )
        if self._uids.get(claim.digest, claim.uid) != claim.uid:
            raise RequestError("another claim has this token; use a new random one")
        if self._claims.get(claim.uid) != claim:
            self._forget(claim.uid)
            self._entitle(claim.user, claim)
            self._claims[claim.uid] = claim
            self._uids[claim.digest] = claim.uid
        return {}

    def _op_unprepare(self, connection: Connection, asked: bodies.ClaimUid) -> dict[str, Any]:
        return {"prepared": self._forget(asked.uid)}

    def _op_prepared(self, connection: Connection, asked: bodies.Body) -> dict[str, Any]:
        return {"claims": list(self._claims)}

    def _op_present(self, connection: Connection, asked: bodies.Login) -> dict[str, Any]:
        uid, who = self._uids.get(_digest(asked.token)), connection.principal
        if uid is None:
            raise LoginError(
                "unknown_claim",
                "the scheduler does not know the resource claim of this pod. If it does not within a minute, restart "
                "the pod",
            )
        if who is not None and who.kernel is not None:
            raise Denied("not_allowed", "a process with a kernel's ticket cannot present a claim")
        claim = self._claims[uid]
        if who is None or not who.logged_in:
            who = Principal(claim.user, connection.uid, teams=claim.teams)
        else:
            self._entitle(who.user, claim)
        connection.speaks_for(replace(who, claim=uid))
        return {"user": who.user, "teams": who.teams, "admin": who.admin, "reader": who.reader}

    def _entitle(self, user: str, claim: ResourceClaim) -> None:
        """Set a user's entitlement, unless an administrator has set it."""
        whose = f"user:{user}"
        if whose in self._entitlements and user not in self._entitled:
            return
        try:
            self._set(ev.Entitle(whose, claim.entitlement))
        except ValueError as error:
            raise RequestError(str(error)) from None
        self._entitled[user] = claim.uid

    def _forget(self, uid: str) -> bool:
        claim = self._claims.pop(uid, None)
        if claim is None:
            return False
        del self._uids[claim.digest]
        for user in [user for user, by in self._entitled.items() if by == uid]:
            del self._entitled[user]
            stated = self._entitlements.get(f"user:{user}")
            # An administrator may have changed it since.
            if stated is not None and stated.entitlement == claim.entitlement:
                self._set(ev.Entitle(f"user:{user}", ev.Entitlement()))
        return True


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
