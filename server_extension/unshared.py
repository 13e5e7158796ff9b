# SPDX-License-Identifier: BSD-3-Clause
"""Finds the kernels of this server that run without us, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jupyter_server.services.kernels.kernelmanager import MappingKernelManager

from ..kernel_provisioner import GpuShareProvisioner


def unshared(
    kernels: MappingKernelManager, before: Collection[str], default: str | None
) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return code and parameters (docs/contributing/lab-protocol.md, ``unshared``) by kernel id.

    Parameters
    ----------
    kernels
        The server's kernel manager.
    before
        Ids of the kernels that were there before the extension was.
    default
        The provisioner of kernels whose kernelspec names none.
    """
    found = {}
    for kernel_id in kernels.list_kernel_ids():
        kernel = kernels.get_kernel(kernel_id)
        provisioner = getattr(kernel, "provisioner", None)
        if provisioner is None:
            continue
        if isinstance(provisioner, GpuShareProvisioner):
            why = provisioner.unshared
        elif kernel_id in before:
            why = "started_before", {}
        else:
            name = _named(provisioner.kernel_spec) or default or type(provisioner).__name__
            why = "other_provisioner", {"provisioner": name}
        if why is not None:
            found[kernel_id] = why
    return found


def _named(kernelspec: Any) -> str | None:
    """Return the provisioner that a kernelspec names."""
    stanza = (getattr(kernelspec, "metadata", None) or {}).get("kernel_provisioner")
    return stanza.get("provisioner_name") if isinstance(stanza, dict) else None
