# SPDX-License-Identifier: BSD-3-Clause
"""What property tests share."""

from __future__ import annotations

from hypothesis import settings

#: Seconds for a property test: when it fails, hypothesis looks for a smaller example for up to five minutes.
PROPERTY_TIMEOUT = 900


def examples(most: int) -> int:
    """Return how many examples a test draws: ``most`` in `make test-slow`, and a third of them in `make test`.

    `make test` draws the same examples each time, to notice changes. Searching for new violations is left to
    `make test-slow`.
    """
    return -(-most // 3) if settings().derandomize else most
