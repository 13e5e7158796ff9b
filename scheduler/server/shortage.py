# SPDX-License-Identifier: BSD-3-Clause
"""How many files a scheduler may have open, and what it reports when there are too many."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

#: Seconds without an error after which a shortage is over. The next one is logged again.
CALM = 60.0


def raise_limit() -> int:
    """Allow as many open files as the system lets this process have, and return how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return soft
    return hard


class Shortage:
    """Logs that there are no file descriptors left, once for as long as it lasts.

    Parameters
    ----------
    most
        How many files may be open.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last = float("-inf")

    def report(self, now: float) -> None:
        """Take in that one more connection could not be accepted: asyncio tries again each second."""
        if now - self._last > CALM:
            log.error(
                "all %d file descriptors are in use, so new connections wait until others end; raise the limit "
                "(LimitNOFILE= of a service of systemd, `ulimit -Hn` in a shell)",
                self._most,
            )
        self._last = now
