# SPDX-License-Identifier: BSD-3-Clause
"""GPU memory that is charged to no client: used by other programs, by the driver, and by contexts."""

from __future__ import annotations

from .model import Gpu

#: Bytes of a GPU that the driver may use for itself. 3 MiB of an NVIDIA H200 (driver 580).
DRIVERS_PART = 1 / 2048

#: Until contexts are measured, what a process may take for them beyond the charge: bytes, and a fraction of a GPU.
CONTEXTS, CONTEXTS_PART = 512 << 20, 1 / 8


def outside(gpu: Gpu) -> int:
    """Return the bytes that programs without the interposer use, without the driver's own."""
    rest = gpu.foreign - unmeasured(gpu)
    return rest if rest > gpu.total * DRIVERS_PART else 0


def unstated(gpu: Gpu) -> int:
    """Return the bytes that contexts and the driver may take beyond what is charged."""
    return gpu.foreign - outside(gpu)


def unmeasured(gpu: Gpu) -> int:
    """Return the bytes that clients' contexts may take beyond their charge, until they are measured."""
    most = min(CONTEXTS, int(gpu.total * CONTEXTS_PART))
    holdings = [h for share in gpu.shares.values() for h in share.holdings.values()]
    there = [h for h in holdings if (h.stated or h.beyond) and not h.client.gone]
    return sum(h.beyond if h.measured else most for h in there)
