# SPDX-License-Identifier: BSD-3-Clause
"""Who is at the other end of a connection, and which rules say so."""

from __future__ import annotations

import grp
import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..protocol.client import named, user_name


@dataclass(frozen=True, slots=True)
class Principal:
    """Who somebody is to the scheduler."""

    #: The name for shares, quotas and pictures.
    user: str
    uid: int
    #: May do everything.
    admin: bool = False
    #: May see everybody's names and numbers, and change nothing of others.
    reader: bool = False
    #: The only lease group that it may speak for; None: any of the user's.
    kernel: str | None = None
    #: Groups of the system, or of the Hub: what `team:NAME` means for this user.
    teams: tuple[str, ...] = ()

    @property
    def sees_all(self) -> bool:
        """Whether nothing of others is hidden."""
        return self.admin or self.reader


@dataclass(frozen=True, slots=True)
class Identity:
    """How a scheduler finds out who is who. The default is a personal scheduler: it serves its own user and root."""

    #: Serves several users.
    node: bool = False
    #: Uids that several people have, as in containers: they have to present a ticket or to log in.
    shared_uids: frozenset[int] = frozenset()
    #: Groups of the system, of which a user has to be in one; empty: everybody may come.
    allowed_groups: tuple[str, ...] = ()
    #: The Hub's API, which says whose a token is; empty: nobody logs in.
    hub_api_url: str = ""
    #: Folder for what outlives the scheduler; None: nothing does.
    state_dir: Path | None = None
    #: Seconds that a ticket holds which no process shows.
    ticket_lifetime: float = 7 * 86400.0


class Known(NamedTuple):
    """What a uid says of its process."""

    #: None: nothing. It has to present a ticket, or to log in.
    principal: Principal | None
    #: Then, what to tell it as long as it has not.
    why: str = ""


def at_once(identity: Identity, uid: int) -> Known | None:
    """Return what a uid says where no group has to be looked up; else None.

    Parameters
    ----------
    identity
        The rules.
    uid
        Of the peer, as the kernel sees it.
    """
    if uid in identity.shared_uids:
        return Known(None, _why_shared(identity, uid))
    if uid in (0, os.getuid()):
        return Known(Principal(user_name(uid), uid, admin=True))
    if not identity.node:
        return Known(
            None,
            f"this scheduler serves {named(os.getuid())}, not {named(uid)}; "
            "set GPUSHARE_SOCKET to the path of your own",
        )
    return None


def identify(identity: Identity, uid: int) -> Known:
    """Return what a uid says. It may take as long as the system takes to look a user's groups up.

    Parameters
    ----------
    identity
        The rules.
    uid
        Of the peer, as the kernel sees it.
    """
    known = at_once(identity, uid)
    if known is not None:
        return known
    teams = groups_of(uid)
    if identity.allowed_groups and not set(identity.allowed_groups).intersection(teams):
        return Known(
            None,
            f"this scheduler serves members of {', '.join(identity.allowed_groups)}, and "
            f"{named(uid)} is in none of them; ask your administrator to be added",
        )
    return Known(Principal(user_name(uid), uid, teams=teams))


def _why_shared(identity: Identity, uid: int) -> str:
    login = " or to log in with a token of the Hub" if identity.hub_api_url else ""
    return (
        f"several people have uid {uid} here, so the scheduler has to be shown a ticket{login}; "
        "start kernels from JupyterLab, with jupyter-gpushare of this release in the user's image"
    )


def groups_of(uid: int) -> tuple[str, ...]:
    """Return the names of a user's groups in the system."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return ()
    names = []
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            names.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return tuple(dict.fromkeys(names))
