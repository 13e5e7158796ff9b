# SPDX-License-Identifier: BSD-3-Clause
"""What is used on a GPU and charged to no client: by other programs, by the driver, and by contexts."""

from __future__ import annotations

from .model import Gpu

#: Of a GPU: what the driver may use of it for itself, which is no program's. 3 MiB of an NVIDIA H200 (driver 580).
DRIVERS_PART = 1 / 2048

#: Until contexts were measured, what a process may take for them beyond what is charged: bytes, and part of a GPU.
CONTEXTS, CONTEXTS_PART = 512 << 20, 1 / 8


def outside(gpu: Gpu) -> int:
    """Bytes that programs outside the sharing hold, as far as they are not the driver's own."""
    rest = gpu.foreign - unmeasured(gpu)
    return rest if rest > gpu.total * DRIVERS_PART else 0


def unstated(gpu: Gpu) -> int:
    """Bytes that contexts may take beyond what is charged for them, and the driver."""
    return gpu.foreign - outside(gpu)


def unmeasured(gpu: Gpu) -> int:
    """Bytes that contexts of clients may take beyond what is charged for them, as long as they are not measured."""
    most = min(CONTEXTS, int(gpu.total * CONTEXTS_PART))
    holdings = [h for share in gpu.shares.values() for h in share.holdings.values()]
    there = [h for h in holdings if (h.stated or h.beyond) and not h.client.gone]
    return sum(h.beyond if h.measured else most for h in there)
