# SPDX-License-Identifier: BSD-3-Clause
"""What a notebook's state means to programs that stop idle kernels and servers (docs/how-to/admin/culling.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_waiting(group: Mapping[str, Any]) -> bool:
    """Whether a notebook in a status waits for the GPU. To a culler, it would look idle.

    A hibernated one is idle. If it waits for the room that it needs to wake, its state is "waking".
    """
    return group["state"] in ("waiting", "waking") or group.get("position") is not None
