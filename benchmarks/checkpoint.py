# SPDX-License-Identifier: BSD-3-Clause
"""The driver's own checkpoint of a process, beside which our moves are shown."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator

from .figures import Figure
from .holder import Holder, torch_can
from .machine import machine

GIB = 1 << 30
SIZE = 8 * GIB


class _Arguments(ctypes.Structure):
    """CUcheckpointLockArgs and the like: 64 bytes, of which none has to be set."""

    _fields_ = (("reserved", ctypes.c_uint64 * 16),)


def checkpoint_rates() -> Iterator[Figure]:
    """Time ``cuCheckpointProcessCheckpoint`` and ``...Restore`` (driver 570 and newer); nothing where there is none."""
    with machine(scheduler=False, whole=True) as here:
        if here.driver.simulated:
            return
        cuda = ctypes.CDLL(str(here.driver.cuda))
        if not hasattr(cuda, "cuCheckpointProcessCheckpoint") or cuda.cuInit(0) != 0:
            return
        environ = {**os.environ, **here.bare_environ()}
        holder = Holder(environ, torch=torch_can(simulated=False))
        try:
            holder.call("hold", SIZE, GIB, 1)

            def call(step: str) -> float:
                arguments = _Arguments()
                start = time.monotonic()
                result = getattr(cuda, f"cuCheckpointProcess{step}")(
                    holder.process.pid, ctypes.byref(arguments)
                )
                if result != 0:
                    raise RuntimeError(f"cuCheckpointProcess{step}: CUDA error {result}")
                return time.monotonic() - start

            call("Lock")
            out = call("Checkpoint")
            back = call("Restore")
            call("Unlock")
        finally:
            holder.close()
    for way, seconds in (("out", out), ("back", back)):
        yield Figure(
            "swap",
            f"the driver's checkpoint, {way}, 8 GiB",
            SIZE / seconds / 1e9,
            "GB/s",
            None,
            1,
            0.0,
        )
