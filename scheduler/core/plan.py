# SPDX-License-Identifier: BSD-3-Clause
"""What stands between a wait and its grant."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import Gpu, Group, Share, Wait


@dataclass(slots=True)
class Plan:
    """What stands between one that waits and its grant."""

    wait: Wait
    #: GPUs with too little room, and by how much.
    lacks: list[tuple[Gpu, int]] = field(default_factory=list)
    #: GPUs that lack room even if everybody yields, and by how much.
    short: list[tuple[Gpu, int]] = field(default_factory=list)
    serialised: list[Group] = field(default_factory=list)
    evict: list[tuple[Share, int]] = field(default_factory=list)
    revoke: list[Group] = field(default_factory=list)
    #: Revoked already; evicted already and not answered.
    draining: list[Group] = field(default_factory=list)
    leaving: list[Group] = field(default_factory=list)
    #: Chosen, but protected until then.
    later: list[tuple[float, Group]] = field(default_factory=list)
    #: Of those, the ones whose memory people keep from it.
    kept: list[Group] = field(default_factory=list)
