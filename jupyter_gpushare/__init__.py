# SPDX-License-Identifier: BSD-3-Clause
"""Many Jupyter notebooks share one GPU, each as if it had all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from typing import Any

__version__ = "0.1.0"

#: Where the built libraries lie (see docs/design.md, "Environment of a client").
LIBRARIES = Path(__file__).parent / "lib"


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Tell jupyter_server what to load; kernels and commands import this package without it."""
    from .server_extension.app import GpuShareExtension

    return [{"module": "jupyter_gpushare", "app": GpuShareExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell `jupyter labextension develop` where the panel lies."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Where jupyter_server finds the extension. Imported only then: kernels import this package, too."""
    from .server_extension.app import GpuShareExtension

    return [{"module": "jupyter_gpushare.server_extension.app", "app": GpuShareExtension}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where `jupyter-builder develop` finds the built JupyterLab extension."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]
