# SPDX-License-Identifier: BSD-3-Clause
"""The permissions of requests, in one table."""

from __future__ import annotations

from enum import Enum

from .principals import Principal


class Role(Enum):
    """The roles that may make a request."""

    #: Also peers that have not identified themselves.
    ANYBODY = "anybody"
    #: All users that the scheduler serves; the answer is limited to what they may see.
    USERS = "users"
    #: The owner of the group; with a ticket, only for the ticket's group.
    OWNER = "owner"
    #: A user's server or program without a ticket for one group.
    SERVERS = "servers"
    ADMINS = "admins"


OPERATIONS = {
    "whoami": Role.ANYBODY,
    "login": Role.ANYBODY,
    "present_claim": Role.ANYBODY,
    "status": Role.USERS,
    "history": Role.USERS,
    "subscribe": Role.USERS,
    "explain": Role.USERS,
    "shares": Role.USERS,
    "when": Role.USERS,
    "release": Role.OWNER,
    "evict": Role.OWNER,
    "hibernate": Role.OWNER,
    "wake": Role.OWNER,
    "reserve": Role.OWNER,
    "reservation": Role.OWNER,
    "adjust": Role.OWNER,
    "cancel": Role.OWNER,
    "cell": Role.OWNER,
    "queued": Role.OWNER,
    "name": Role.OWNER,
    "notice": Role.OWNER,
    "focus": Role.OWNER,
    "hint": Role.OWNER,
    "claim": Role.SERVERS,
    "ticket": Role.SERVERS,
    "tickets": Role.SERVERS,
    "revoke": Role.SERVERS,
    "set": Role.ADMINS,
    "entitle": Role.ADMINS,
    "record": Role.ADMINS,
    "recordings": Role.ADMINS,
    "drain": Role.ADMINS,
    "maintenance": Role.ADMINS,
    "hold": Role.ADMINS,
    "users": Role.ADMINS,
    "audit": Role.ADMINS,
    "report": Role.ADMINS,
    "metrics": Role.ADMINS,
    "prepare_claim": Role.ADMINS,
    "unprepare_claim": Role.ADMINS,
    "prepared_claims": Role.ADMINS,
    "stand_by": Role.ADMINS,
    "host": Role.ADMINS,
}


class Denied(Exception):
    """A user may not do something. The message is the sentence for the user.

    Parameters
    ----------
    code
        The code for programs: ``login_required``, ``not_allowed`` or ``not_yours``.
    text
        The text for users.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def check(principal: Principal | None, operation: str, why: str = "") -> None:
    """Check whether a user may make a request at all. The groups are checked where they are known.

    Parameters
    ----------
    principal
        The user; None: not identified.
    operation
        The name of the request. A request that is not in the table is for administrators.
    why
        The text for a peer that has not identified itself.

    Raises
    ------
    Denied
        The user may not.
    """
    role = OPERATIONS.get(operation, Role.ADMINS)
    if role is Role.ANYBODY:
        return
    if principal is None:
        raise Denied("login_required", why)
    if principal.admin:
        return
    if role is Role.ADMINS:
        raise Denied(
            "not_allowed",
            f"{operation!r} is only for the scheduler's administrators, and {principal.user} is not an administrator",
        )
    if role is Role.SERVERS and principal.kernel is not None:
        raise Denied(
            "not_allowed",
            f"{operation!r} is for Jupyter servers: a kernel's ticket is valid for that kernel only",
        )
