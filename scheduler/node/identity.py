# SPDX-License-Identifier: BSD-3-Clause
"""Identities of users, and the owners of groups, while the scheduler runs."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..views.redaction import STRANGER, Pseudonyms, View
from . import principals
from .permissions import Denied
from .principals import Identity, Known, Principal
from .tickets import Ticket, Tickets

if TYPE_CHECKING:
    from ..core.model import Group

#: Seconds for which the system's answer about a uid is remembered, and the number of uids.
REMEMBER, MOST_UIDS = 60.0, 4096
#: Seconds between two checks for tickets that have expired.
SWEEP = 600.0
#: Threads in which the system looks users up. A directory service may be slow, so the GPUs are read in others.
LOOKING = 4
#: The longest id of a group in bytes, as in HELLO.
LONGEST_ID = 63


class Identities:
    """Finds the identities of peers, and the owners of groups.

    Parameters
    ----------
    identity
        The rules of identities.
    groups
        The groups of the core, by id.
    """

    def __init__(self, identity: Identity, groups: Mapping[str, Group]) -> None:
        self.rules = identity
        self.tickets = Tickets(identity.state_dir if identity.node else None)
        self._groups = groups
        self._known: OrderedDict[int, tuple[float, Known]] = OrderedDict()
        self._executor: ThreadPoolExecutor | None = None
        self._swept = time.monotonic()
        self._pseudonyms = Pseudonyms()

    def close(self) -> None:
        """Stop without waiting for lookups."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- Users --------------------------------------------------------------------------------

    def recall(self, uid: int) -> Known | None:
        """Return the identity that follows from a uid, or None if it must be looked up."""
        # The names of users are looked up in a file or a service, so this comes first.
        at, known = self._known.get(uid, (0.0, None))
        if known is not None and time.monotonic() < at + REMEMBER:
            return known
        known = principals.at_once(self.rules, uid)
        if known is not None:
            self._remember(uid, known)
        return known

    async def look_up(self, uid: int) -> Known:
        """Look up the identity that follows from a uid."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(LOOKING, "gpushare-users")
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self._executor, principals.identify, self.rules, uid)
        self._remember(uid, known)
        return known

    def _remember(self, uid: int, known: Known) -> None:
        self._known.pop(uid, None)
        self._known[uid] = time.monotonic(), known
        if len(self._known) > MOST_UIDS:
            self._known.popitem(last=False)

    def holder(self, text: str, uid: int) -> Principal | None:
        """Return the user and group of a ticket that a process with a uid shows; None if it is not valid.

        Raises
        ------
        Denied
            The ticket was issued to another uid. This is not checked between uids that several people share.
        """
        ticket = self.tickets.find(text)
        if ticket is None:
            return None
        if uid != ticket.uid and not self.rules.shared_uids.issuperset((uid, ticket.uid)):
            raise Denied(
                "not_allowed",
                f"this ticket was issued to uid {ticket.uid} and presented by uid {uid}; "
                "start the kernel as the user whose Jupyter server received the ticket",
            )
        return Principal(ticket.user, uid, kernel=ticket.kernel, teams=ticket.teams)

    def issue(self, principal: Principal, group: str, server: str) -> str:
        """Make a ticket for a user's group, which must be claimed first (`claim`)."""
        ticket = Ticket(
            principal.user, principal.teams, group, principal.uid, server, round(time.time(), 3)
        )
        return self.tickets.issue(ticket, self._groups)

    # --- Owners -------------------------------------------------------------------------------

    def owner(self, group: str) -> str | None:
        """Return the owner of a group, or None if it has none yet."""
        found = self._groups.get(group)
        if found is not None:
            return found.user
        return self.tickets.owner(group) or self.tickets.claimant(group)

    def owns(self, principal: Principal, group: str) -> bool:
        """Whether a user owns a group, and the ticket of the connection is for it."""
        if principal.kernel is not None and group != principal.kernel:
            return False
        return self.owner(group) == principal.user

    def check(self, principal: Principal, group: str) -> None:
        """Check whether a user may act for a group.

        Raises
        ------
        Denied
            The user may not.
        """
        if principal.admin:
            return
        if principal.kernel is not None and group != principal.kernel:
            raise Denied("not_yours", f"this ticket is for another kernel, not for {group!r}")
        if self.owner(group) not in (None, principal.user):
            raise Denied("not_yours", f"{group!r} belongs to another user")

    def claim(self, principal: Principal, group: str) -> None:
        """Check whether a user may act for a group, and make it the user's if it has no owner.

        Raises
        ------
        Denied
            The user may not.
        """
        self.check(principal, group)
        if principal.admin or len(group.encode("utf-8", "replace")) > LONGEST_ID:
            return
        self.tickets.claim(principal.user, group)
        self.tickets.save_soon()

    def sweep(self) -> list[str]:
        """Forget tickets that were not used for a long time, and return their groups; rarely does anything."""
        lifetime, now = self.rules.ticket_lifetime, time.monotonic()
        if now - self._swept < min(SWEEP, lifetime / 8):
            return []
        self._swept = now
        expired = self.tickets.expire(time.time(), lifetime, self._groups)
        self.tickets.save_soon()
        return expired

    # --- Visibility ---------------------------------------------------------------------------

    def view(self, principal: Principal, teams: frozenset[str] = frozenset()) -> View | None:
        """Return the view of a user; None: the user sees everything.

        Parameters
        ----------
        principal
            The user.
        teams
            Teams of the user that the scheduler has, in addition to the teams of the system and the Hub.
        """
        if principal.sees_all:
            return None
        teams = teams.union(f"team:{name}" for name in principal.teams)
        return View(principal.user, teams, self.owner, self._pseudonyms)

    def stranger(self) -> View:
        """Return the view of a user without a group and a team."""
        return View(STRANGER, frozenset(), self.owner, self._pseudonyms)
