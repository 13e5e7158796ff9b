# SPDX-License-Identifier: BSD-3-Clause
"""Tracks which notebook this server's user has in front: it comes first among that user's own."""

from __future__ import annotations

import asyncio

from .cells import Send
from .feed import REGISTRATION


class Focus:
    """The group in front, as the page said that had the browser's focus last.

    Parameters
    ----------
    user
        Whose kernels this server starts, as the scheduler calls them.
    send
        Sends a control request, if there is a scheduler to send it to.
    """

    def __init__(self, user: str, send: Send) -> None:
        #: Whose kernels this server starts, as the scheduler calls them.
        self.user = user
        self._send = send
        self._page = ""
        #: The group that the page named; None where nothing of ours is in front.
        self.group: str | None = None
        self._end: asyncio.TimerHandle | None = None

    def take(self, page: str, group: str | None) -> None:
        """Note what is in front on a page that has the focus, or that it has nothing there any more."""
        if group is None:
            # What another page says comes in any order: it may have the focus already.
            self.forget(page)
            return
        self._page = page
        self.seen(page)
        if group != self.group:
            self.group = group
            self._tell()

    def seen(self, page: str) -> None:
        """Note that a page is there."""
        if page == self._page:
            self.stop()
            loop = asyncio.get_running_loop()
            self._end = loop.call_later(REGISTRATION, self.forget, page)

    def forget(self, page: str) -> None:
        """Note that a page went away, or is not in front any more."""
        if page == self._page:
            self.stop()
            self._page, self.group = "", None
            self._tell()

    def repeat(self) -> None:
        """Tell a scheduler that was not there. If nothing is in front here, something of another server's may be."""
        if self.group is not None:
            self._tell()

    def stop(self) -> None:
        """Wait for no page to go away."""
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _tell(self) -> None:
        self._send("focus", {"user": self.user, "group": self.group or ""})
