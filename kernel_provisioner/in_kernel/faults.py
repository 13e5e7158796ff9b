# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of faults: a sentence for the user, or a line in the debug log."""

import functools
import logging
from typing import Any, Callable

log = logging.getLogger("gpushare")


class Failure(Exception):
    """Something cannot be done; the message is one sentence for the user."""


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep a hook's faults away from the user's cell."""

    @functools.wraps(hook)
    def guard(*args: Any) -> None:
        try:
            hook(*args)
        except Exception:
            log.debug("%s", hook.__name__, exc_info=True)

    return guard
