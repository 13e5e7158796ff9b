# SPDX-License-Identifier: BSD-3-Clause
"""Knows which kernel belongs to which notebook of this server."""

from __future__ import annotations

from jupyter_server.services.sessions.sessionmanager import SessionManager

from .cells import Send


class Notebooks:
    """The names of the notebooks, which people change while their kernels run.

    Parameters
    ----------
    sessions
        The server's session manager.
    send
        Sends a control request, if there is a scheduler to send it to.
    """

    def __init__(self, sessions: SessionManager, send: Send) -> None:
        self._sessions = sessions
        self._send = send
        #: Path by kernel id, as it was when last looked at.
        self._paths: dict[str, str] = {}

    async def by_kernel(self) -> dict[str, dict[str, str]]:
        """Return path, name, type and kernel id of the sessions by kernel id, and pass renames on."""
        found = {}
        for session in await self._sessions.list_sessions():  # type: ignore[no-untyped-call]
            kernel_id = session["kernel"]["id"]
            found[kernel_id] = {
                "path": session["path"],
                "name": session["name"] or session["path"],
                "type": session["type"],
                "kernel_id": kernel_id,
            }
        for kernel_id, session in found.items():
            before = self._paths.get(kernel_id)
            if before is not None and before != session["path"]:
                self._send("name", {"group": kernel_id, "name": session["path"]})
        self._paths = {kernel_id: session["path"] for kernel_id, session in found.items()}
        return found
