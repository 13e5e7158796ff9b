# SPDX-License-Identifier: BSD-3-Clause
"""Knows which documents of this server use which kernel."""

from __future__ import annotations

import time
from logging import Logger
from typing import Any

from jupyter_server.services.sessions.sessionmanager import SessionManager

from .cells import Send

#: Seconds for which a list of the sessions is good: nothing says when it changes, and it is asked for often.
FRESH = 1.0


class Documents:
    """The notebooks and consoles by kernel, whose names people change while the kernels run.

    Parameters
    ----------
    sessions
        The server's session manager.
    send
        Sends a control request, if there is a scheduler to send it to.
    log
        For what goes wrong.
    """

    def __init__(self, sessions: SessionManager, send: Send, log: Logger) -> None:
        self._log = log
        self._sessions = sessions
        self._send = send
        self._found: dict[str, list[dict[str, Any]]] = {}
        self._good_until = float("-inf")
        #: The name of each kernel as last seen; and the kernels that had another name before.
        self._names: dict[str, str] = {}
        self._renamed: set[str] = set()

    async def by_kernel(self) -> dict[str, list[dict[str, Any]]]:
        """Return path, name, type and kernel id of each document by kernel id, and pass renames on."""
        now = time.monotonic()
        if now < self._good_until:
            return self._found
        self._good_until = now + FRESH
        try:
            found = _documents(await self._sessions.list_sessions())  # type: ignore[no-untyped-call]
        except Exception as error:
            # A server may have its own session manager. We need it only for names.
            self._log.debug("gpushare: cannot list the sessions: %r", error)
            return self._found
        self._pass_on({kernel_id: _name(documents) for kernel_id, documents in found.items()})
        self._found = found
        return found

    async def kernel_of(self, path: str) -> str | None:
        """Return the id of a kernel that the document at a path uses, also one that was opened just now."""
        for _ in range(2):
            for kernel_id, documents in (await self.by_kernel()).items():
                if any(document["path"] == path for document in documents):
                    return kernel_id
            self._good_until = float("-inf")
        return None

    async def joined(self, group: str) -> None:
        """Note that the scheduler has a group: under the name that its process was started with."""
        await self.by_kernel()
        if group in self._renamed:
            self._call(group)

    def _pass_on(self, names: dict[str, str]) -> None:
        before, self._names = self._names, names
        self._renamed &= names.keys()
        for kernel_id, name in names.items():
            if before.get(kernel_id, name) != name:
                self._renamed.add(kernel_id)
                self._call(kernel_id)

    def _call(self, kernel_id: str) -> None:
        self._send("name", {"group": kernel_id, "name": self._names[kernel_id]})


def _documents(sessions: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for session in sessions:
        kernel_id = session["kernel"]["id"]
        document = {
            "path": session["path"],
            "name": session["name"] or session["path"],
            "type": session["type"],
            "kernel_id": kernel_id,
        }
        found.setdefault(kernel_id, []).append(document)
    return found


def _name(documents: list[dict[str, Any]]) -> str:
    """Return what people call the kernel: its first notebook, for consoles come and go."""
    first = next((d for d in documents if d["type"] == "notebook"), documents[0])
    return str(first["path"])
