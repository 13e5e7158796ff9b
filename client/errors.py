# SPDX-License-Identifier: BSD-3-Clause
"""The errors of the client. Each message states what happened, and what to do."""

from __future__ import annotations


class GpuShareError(Exception):
    """A request failed; the base of all errors of the client."""


class NoServer(GpuShareError):
    """No Jupyter server, or more than one, could be found."""


class Unreachable(GpuShareError):
    """The Jupyter server does not respond, or sends an unexpected answer."""


class Refused(GpuShareError):
    """The server refused a request.

    Parameters
    ----------
    status
        The HTTP status: 400 (the request is not valid, or cannot be carried out), 403 (the user lacks the permission),
        404 (no group has this ID or name).
    message
        The server's sentence.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unavailable(GpuShareError):
    """The server shares no GPU, or its scheduler does not respond."""
