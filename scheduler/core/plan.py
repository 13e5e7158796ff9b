# SPDX-License-Identifier: BSD-3-Clause
"""What stands between a wait and its grant."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Gpu, Group, Share, Wait


@dataclass(slots=True)
class Plan:
    """What stands between a wait and its grant."""

    wait: Wait
    #: GPUs with too little room, and the missing bytes.
    lacks: list[tuple[Gpu, int]] = field(default_factory=list)
    #: GPUs that lack room even if all holders yield, and the missing bytes.
    short: list[tuple[Gpu, int]] = field(default_factory=list)
    serialised: list[Group] = field(default_factory=list)
    evict: list[tuple[Share, int]] = field(default_factory=list)
    revoke: list[Group] = field(default_factory=list)
    #: Groups that were revoked already; and groups with evictions that were not answered yet.
    draining: list[Group] = field(default_factory=list)
    leaving: list[Group] = field(default_factory=list)
    #: Chosen groups that are protected until then.
    later: list[tuple[float, Group]] = field(default_factory=list)
    #: Chosen groups whose memory their users keep.
    kept: list[Group] = field(default_factory=list)
