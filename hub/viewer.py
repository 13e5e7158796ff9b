# SPDX-License-Identifier: BSD-3-Clause
"""Who looks, and what that one may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..scheduler.node.hub_login import ADMIN, READ

#: The Hub's own scope for figures of services.
METRICS = "read:metrics"


@dataclass(frozen=True, slots=True)
class Viewer:
    """Somebody whom the Hub knows."""

    name: str
    #: Another program: no user of that name has notebooks.
    service: bool = False
    #: May act on what is everybody's.
    admin: bool = False
    #: May see whose everything is.
    reader: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether nothing of others is hidden."""
        return self.admin or self.reader

    @property
    def user(self) -> str | None:
        """Whose notebooks are this one's own; None: nobody's."""
        return None if self.service else self.name

    def shown(self) -> dict[str, Any]:
        """Return what the page is told of whom it is for."""
        return {"name": self.name, "sees_all": self.sees_all, "may_act": self.admin}


def viewer(model: dict[str, Any], has_access: bool) -> Viewer | None:
    """Return who somebody is by the Hub's model, or None if that one may not see anything here.

    Parameters
    ----------
    model
        What the Hub answers about a token.
    has_access
        Whether it has one of the scopes that the service needs.
    """
    scopes = set(model.get("scopes") or ())
    found = Viewer(
        name=str(model["name"]),
        service=model.get("kind") == "service",
        admin=ADMIN in scopes,
        reader=READ in scopes,
    )
    if found.sees_all:
        return found
    # A program has no notebooks of its own to see.
    return found if has_access and not found.service else None


def may_read_metrics(model: dict[str, Any]) -> bool:
    """Whether the Hub's model is of somebody who may read all figures."""
    return bool({METRICS, READ, ADMIN}.intersection(model.get("scopes") or ()))
