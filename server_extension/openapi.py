# SPDX-License-Identifier: BSD-3-Clause
"""The OpenAPI document of the REST API."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jupyter_events.yaml import load

from .._version import __version__

DOCUMENT = Path(__file__).parent / "openapi.yaml"


def document(base_url: str) -> dict[str, Any]:
    """Return the document for a server.

    Parameters
    ----------
    base_url
        The path of the Jupyter server, such as ``/`` or ``/user/ada/``.
    """
    found = _read()
    return {
        **found,
        "info": {**found["info"], "version": __version__},
        # Paths begin with a slash.
        "servers": [{"url": base_url.rstrip("/") or "/"}],
    }


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = load(DOCUMENT)
    return found
