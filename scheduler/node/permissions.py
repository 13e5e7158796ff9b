# SPDX-License-Identifier: BSD-3-Clause
"""The permissions of requests, in one table."""

from __future__ import annotations

from enum import Enum

from .principals import Principal


class Who(Enum):
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
    "whoami": Who.ANYBODY,
    "login": Who.ANYBODY,
    "status": Who.USERS,
    "history": Who.USERS,
    "subscribe": Who.USERS,
    "explain": Who.USERS,
    "shares": Who.USERS,
    "release": Who.OWNER,
    "evict": Who.OWNER,
    "hibernate": Who.OWNER,
    "wake": Who.OWNER,
    "adjust": Who.OWNER,
    "cancel": Who.OWNER,
    "cell": Who.OWNER,
    "name": Who.OWNER,
    "notice": Who.OWNER,
    "focus": Who.OWNER,
    "claim": Who.SERVERS,
    "ticket": Who.SERVERS,
    "tickets": Who.SERVERS,
    "revoke": Who.SERVERS,
    "set": Who.ADMINS,
    "entitle": Who.ADMINS,
    "record": Who.ADMINS,
    "recordings": Who.ADMINS,
    "drain": Who.ADMINS,
    "maintenance": Who.ADMINS,
    "hold": Who.ADMINS,
    "users": Who.ADMINS,
    "audit": Who.ADMINS,
    "report": Who.ADMINS,
    "metrics": Who.ADMINS,
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
        The name of the request. One that is not in the table is for administrators.
    why
        The text for a peer that has not identified itself.

    Raises
    ------
    Denied
        The user may not.
    """
    who = OPERATIONS.get(operation, Who.ADMINS)
    if who is Who.ANYBODY:
        return
    if principal is None:
        raise Denied("login_required", why)
    if principal.admin:
        return
    if who is Who.ADMINS:
        raise Denied(
            "not_allowed",
            f"{operation!r} is for the scheduler's administrators only, and {principal.user} is not one",
        )
    if who is Who.SERVERS and principal.kernel is not None:
        raise Denied(
            "not_allowed",
            f"{operation!r} is for Jupyter servers: a kernel's ticket is valid for that kernel only",
        )
