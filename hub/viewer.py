# SPDX-License-Identifier: BSD-3-Clause
"""The viewers of the page and their permissions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..scheduler.node.hub_login import ADMIN, READ

#: JupyterHub's own scope for the metrics of services.
METRICS = "read:metrics"


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user or service that the Hub has identified."""

    name: str
    #: Whether this is a service. Services have no notebooks.
    service: bool = False
    #: Whether the viewer may act on all users' notebooks and on GPUs.
    admin: bool = False
    #: Whether the viewer may see all users' names and notebooks.
    reader: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether the viewer sees all users' data."""
        return self.admin or self.reader

    @property
    def user(self) -> str | None:
        """The user whose notebooks are the viewer's own; None for a service."""
        return None if self.service else self.name

    def shown(self) -> dict[str, Any]:
        """Return the viewer as JSON for the page."""
        return {"name": self.name, "sees_all": self.sees_all, "may_act": self.admin}


def viewer(model: dict[str, Any], has_access: bool) -> Viewer | None:
    """Return the viewer for the Hub's model of a token; None if the viewer may not see the page.

    Parameters
    ----------
    model
        The Hub's answer about the token.
    has_access
        Whether the token has one of the scopes that give access to the service.
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
    # A service has no notebooks of its own, so access alone gives it nothing to see.
    return found if has_access and not found.service else None


def may_read_metrics(model: dict[str, Any]) -> bool:
    """Whether the Hub's model of a token permits reading all metrics."""
    return bool({METRICS, READ, ADMIN}.intersection(model.get("scopes") or ()))
