# SPDX-License-Identifier: BSD-3-Clause
"""Share one NVIDIA GPU among many Jupyter notebooks, as if each had it to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._version import LIBRARIES, __version__, docs_url

if TYPE_CHECKING:
    from .client import AsyncClient, Client

__all__ = ["LIBRARIES", "AsyncClient", "Client", "__version__", "docs_url"]


def __getattr__(name: str) -> Any:
    """Import the clients when a program uses them: kernels and commands import this package without them."""
    if name in ("AsyncClient", "Client"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell jupyter_server what to load; kernels and commands import this package without it."""
    from .server_extension.app import GpuShareExtension

    return [{"module": "jupyter_gpushare", "app": GpuShareExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell `jupyter labextension develop` where the panel lies."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]


def offer_magic(shell: Any) -> None:
    """Offer ``%gpushare`` in an IPython that starts, whatever started it (``etc/ipython/startup``)."""
    from .kernel_provisioner import in_kernel

    in_kernel.offer(shell)


def load_ipython_extension(shell: Any) -> None:
    """Do what ``%load_ext jupyter_gpushare`` asks for."""
    from .kernel_provisioner import in_kernel

    in_kernel.load_ipython_extension(shell)


def unload_ipython_extension(shell: Any) -> None:
    """Do what ``%unload_ext jupyter_gpushare`` asks for."""
    from .kernel_provisioner import in_kernel

    in_kernel.unload_ipython_extension(shell)
