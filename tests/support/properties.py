# SPDX-License-Identifier: BSD-3-Clause
"""What property tests share."""

from __future__ import annotations

#: Seconds for a property test: when it fails, hypothesis looks for a smaller example for up to five minutes.
PROPERTY_TIMEOUT = 900
