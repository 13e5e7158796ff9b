# SPDX-License-Identifier: BSD-3-Clause
"""The identity of a connection's peer, and the rules from which it follows."""

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
    """The identity of a user to the scheduler."""

    #: The name for shares and quotas.
    user: str
    uid: int
    #: Whether the user may do everything.
    admin: bool = False
    #: Whether the user may see all names and numbers, without changing anything of others.
    reader: bool = False
    #: The only lease group for which the connection may act; None: any of the user's groups.
    kernel: str | None = None
    #: Groups of the system, or of the Hub: the meaning of `team:NAME` for this user.
    teams: tuple[str, ...] = ()
    #: Whether a token of JupyterHub stated the user.
    logged_in: bool = False
    #: The uid of the Kubernetes resource claim that the connection presented; empty: none.
    claim: str = ""

    @property
    def sees_all(self) -> bool:
        """Whether nothing of other users is hidden."""
        return self.admin or self.reader


@dataclass(frozen=True, slots=True)
class Identity:
    """The rules of identities. The default is a personal scheduler, which serves its own user and root."""

    #: Whether it serves several users.
    node: bool = False
    #: Uids that several people share, as in containers. They must present a ticket or log in.
    shared_uids: frozenset[int] = frozenset()
    #: Groups of the system of which a user must be in one; empty: all users may connect.
    allowed_groups: tuple[str, ...] = ()
    #: The Hub's API, which returns the user of a token; empty: no login.
    hub_api_url: str = ""
    #: The folder of records that outlive the scheduler; None: no records.
    state_dir: Path | None = None
    #: Seconds for which an unused ticket is valid.
    ticket_lifetime: float = 7 * 86400.0


class Known(NamedTuple):
    """The identity that follows from the uid of a process."""

    #: None: no identity. The process must present a ticket, or log in.
    principal: Principal | None
    #: The message for it until it has.
    why: str = ""


def at_once(identity: Identity, uid: int) -> Known | None:
    """Return the identity that follows from a uid if no group must be looked up; otherwise None.

    Parameters
    ----------
    identity
        The rules of identities.
    uid
        The uid of the peer from the Linux kernel.
    """
    if uid in identity.shared_uids:
        return Known(None, _why_shared(identity, uid))
    if uid in (0, os.getuid()):
        return Known(Principal(user_name(uid), uid, admin=True))
    if not identity.node:
        return Known(
            None,
            f"this scheduler serves {named(os.getuid())}, not {named(uid)}; "
            "set GPUSHARE_SOCKET to the path of your own scheduler's socket",
        )
    return None


def identify(identity: Identity, uid: int) -> Known:
    """Return the identity that follows from a uid. It may take as long as the system's lookup of groups.

    Parameters
    ----------
    identity
        The rules of identities.
    uid
        The uid of the peer from the Linux kernel.
    """
    known = at_once(identity, uid)
    if known is not None:
        return known
    teams = groups_of(uid)
    if identity.allowed_groups and not set(identity.allowed_groups).intersection(teams):
        return Known(
            None,
            f"this scheduler serves members of {', '.join(identity.allowed_groups)}, and "
            f"{named(uid)} does not belong to any of them; ask your administrator to add you",
        )
    return Known(Principal(user_name(uid), uid, teams=teams))


def _why_shared(identity: Identity, uid: int) -> str:
    login = " or to log in with a token of the Hub" if identity.hub_api_url else ""
    return (
        f"several users share uid {uid} here, so the process must present a ticket{login}; "
        "start kernels from JupyterLab, and install this release of jupyter-gpushare in the user's image"
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
