# SPDX-License-Identifier: BSD-3-Clause
"""Who may ask what of the scheduler: one table."""

from __future__ import annotations

from enum import Enum

from .principals import Principal


class Who(Enum):
    """Who may do something."""

    #: Those too that have not said who they are.
    ANYBODY = "anybody"
    #: Whoever the scheduler serves; what they are shown is cut to them.
    USERS = "users"
    #: The user whose group it is; with a ticket, for the ticket's group only.
    OWNER = "owner"
    #: A user's server or program, which no ticket binds to one group.
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
    "offload": Who.OWNER,
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
    "evict": Who.ADMINS,
    "users": Who.ADMINS,
    "audit": Who.ADMINS,
    "report": Who.ADMINS,
    "metrics": Who.ADMINS,
}


class Denied(Exception):
    """Somebody may not do something; the message is the sentence for them.

    Parameters
    ----------
    code
        For programs: ``login_required``, ``not_allowed`` or ``not_yours``.
    text
        For people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def check(principal: Principal | None, operation: str, why: str = "") -> None:
    """Check whether somebody may ask for an operation at all; on whose groups is checked where they are known.

    Parameters
    ----------
    principal
        Who asks; None: has not said.
    operation
        Its name. One that is not in the table is for administrators.
    why
        What to tell somebody who has not said who they are.

    Raises
    ------
    Denied
        They may not.
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
            f"{operation!r} is for the scheduler's administrators, and {principal.user} is none of them",
        )
    if who is Who.SERVERS and principal.kernel is not None:
        raise Denied(
            "not_allowed",
            f"{operation!r} is for servers: a kernel's ticket speaks for that kernel alone",
        )
