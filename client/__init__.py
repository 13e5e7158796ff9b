# SPDX-License-Identifier: BSD-3-Clause
"""The Python client of the REST API (docs/how-to/agents.md). It needs neither a GPU nor the scheduler's package."""

from __future__ import annotations

from .asynchronous import AsyncClient
from .blocking import Client
from .calls import Code, Forecast, Reservation
from .errors import GpuShareError, NoServer, Refused, Unavailable, Unreachable

__all__ = [
    "AsyncClient",
    "Client",
    "Code",
    "Forecast",
    "GpuShareError",
    "NoServer",
    "Refused",
    "Reservation",
    "Unavailable",
    "Unreachable",
]
