# SPDX-License-Identifier: BSD-3-Clause
"""GPU memory that libraries keep for later."""

import sys

from .faults import log


def empty_caches() -> None:
    """Give back what libraries keep for later, so that less has to move."""
    for empty in (_empty_torch, _empty_cupy):
        try:
            empty()
        except Exception:
            log.debug("%s", empty.__name__, exc_info=True)


def _empty_torch() -> None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    # To free memory would break a capture.
    if not torch.cuda.is_current_stream_capturing():
        torch.cuda.empty_cache()


def _empty_cupy() -> None:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return
    pool = cupy.get_default_memory_pool()
    if pool.free_bytes() > 0:
        pool.free_all_blocks()
