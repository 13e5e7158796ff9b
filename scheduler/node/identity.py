# SPDX-License-Identifier: BSD-3-Clause
"""Who is who, and whose is what, as long as the scheduler lives."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ..views.redaction import STRANGER, Disguise, View
from . import principals
from .permissions import Denied
from .principals import Identity, Known, Principal
from .tickets import Ticket, Tickets

if TYPE_CHECKING:
    from ..core.model import Group

#: Seconds for which what the system said of a uid is remembered, and how many uids are.
REMEMBER, MOST_UIDS = 60.0, 4096
#: Seconds between two looks for tickets that have expired.
SWEEP = 600.0
#: Threads in which the system looks users up: a directory service may be slow, and the GPUs are read in others.
LOOKING = 4
#: Longest id of a group in bytes: as HELLO has it.
LONGEST_ID = 63


class Identities:
    """Knows who is who.

    Parameters
    ----------
    identity
        The rules.
    groups
        Those of the core, by id.
    """

    def __init__(self, identity: Identity, groups: Mapping[str, Group]) -> None:
        self.rules = identity
        self.tickets = Tickets(identity.state_dir if identity.node else None)
        self._groups = groups
        self._known: OrderedDict[int, tuple[float, Known]] = OrderedDict()
        self._executor: ThreadPoolExecutor | None = None
        self._swept = time.monotonic()
        self._disguise = Disguise()

    def close(self) -> None:
        """Wait for nobody any more."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    # --- Who is who ---------------------------------------------------------------------------

    def recall(self, uid: int) -> Known | None:
        """Return what a uid says, or None if it has to be looked up."""
        known = principals.at_once(self.rules, uid)
        if known is not None:
            return known
        at, known = self._known.get(uid, (0.0, None))
        return known if known is not None and time.monotonic() < at + REMEMBER else None

    async def look_up(self, uid: int) -> Known:
        """Find out what a uid says."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(LOOKING, "gpushare-users")
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self._executor, principals.identify, self.rules, uid)
        self._known.pop(uid, None)
        self._known[uid] = time.monotonic(), known
        if len(self._known) > MOST_UIDS:
            self._known.popitem(last=False)
        return known

    def holder(self, text: str, uid: int) -> Principal | None:
        """Return whom a ticket speaks for, shown by a process of some uid; None if it does not hold.

        Raises
        ------
        Denied
            The ticket was issued to another uid. Only between uids that several people have does that say nothing.
        """
        ticket = self.tickets.find(text)
        if ticket is None:
            return None
        if uid != ticket.uid and not self.rules.shared_uids.issuperset((uid, ticket.uid)):
            raise Denied(
                "not_allowed",
                f"this ticket was issued to uid {ticket.uid} and shown by uid {uid}; "
                "start the kernel as the user whose Jupyter server got the ticket",
            )
        return Principal(ticket.user, uid, kernel=ticket.kernel, teams=ticket.teams)

    def issue(self, principal: Principal, group: str, server: str) -> str:
        """Make a ticket for a group of somebody's; `claim` it first."""
        ticket = Ticket(
            principal.user, principal.teams, group, principal.uid, server, round(time.time(), 3)
        )
        return self.tickets.issue(ticket, self._groups)

    # --- Whose is what ------------------------------------------------------------------------

    def owner(self, group: str) -> str | None:
        """Return whose a group is, or None for one that is nobody's yet."""
        found = self._groups.get(group)
        if found is not None:
            return found.user
        return self.tickets.owner(group) or self.tickets.claimant(group)

    def owns(self, principal: Principal, group: str) -> bool:
        """Whether a group is somebody's, for whatever they may do; what a ticket is not for is not."""
        if principal.kernel is not None and group != principal.kernel:
            return False
        return self.owner(group) == principal.user

    def check(self, principal: Principal, group: str) -> None:
        """Check whether somebody may speak for a group.

        Raises
        ------
        Denied
            They may not.
        """
        if principal.admin:
            return
        if principal.kernel is not None and group != principal.kernel:
            raise Denied("not_yours", f"this ticket is not for {group!r}, but for another kernel")
        if self.owner(group) not in (None, principal.user):
            raise Denied("not_yours", f"{group!r} is not yours, but another user's")

    def claim(self, principal: Principal, group: str) -> None:
        """Check whether somebody may speak for a group, which is theirs from now on if it was nobody's.

        Raises
        ------
        Denied
            They may not.
        """
        self.check(principal, group)
        if principal.admin or len(group.encode("utf-8", "replace")) > LONGEST_ID:
            return
        self.tickets.claim(principal.user, group)
        self.tickets.save_soon()

    def sweep(self) -> list[str]:
        """Forget tickets that nobody has used for a long time, and return their groups; seldom does anything."""
        lifetime, now = self.rules.ticket_lifetime, time.monotonic()
        if now - self._swept < min(SWEEP, lifetime / 8):
            return []
        self._swept = now
        expired = self.tickets.expire(time.time(), lifetime, self._groups)
        self.tickets.save_soon()
        return expired

    # --- What they see ------------------------------------------------------------------------

    def view(self, principal: Principal, teams: frozenset[str] = frozenset()) -> View | None:
        """Return what somebody sees of others; None: all.

        Parameters
        ----------
        principal
            Who looks.
        teams
            Teams that the scheduler counts the user in, beside those that the system or the Hub knows.
        """
        if principal.sees_all:
            return None
        teams = teams.union(f"team:{name}" for name in principal.teams)
        return View(principal.user, teams, self.owner, self._disguise)

    def stranger(self) -> View:
        """Return what somebody sees who has nothing and is in no team."""
        return View(STRANGER, frozenset(), self.owner, self._disguise)
