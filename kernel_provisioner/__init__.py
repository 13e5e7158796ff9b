# SPDX-License-Identifier: BSD-3-Clause
"""Starts kernels and other programs under the interposer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .provisioner import GpuShareProvisioner

__all__ = ["GpuShareProvisioner"]


def __getattr__(name: str) -> object:
    # The in-kernel part lies in this package too: `%load_ext` must not cost a kernel the import of jupyter_client.
    if name == "GpuShareProvisioner":
        from .provisioner import GpuShareProvisioner

        return GpuShareProvisioner
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
