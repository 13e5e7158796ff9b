# SPDX-License-Identifier: BSD-3-Clause
"""What the modules of this package ask the package itself, which imports some of them."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

#: Where the built libraries lie (see docs/contributing/design.md, "Environment of a client").
LIBRARIES = Path(__file__).parent / "lib"

#: Where users read the documentation: "Documentation" of project.urls in pyproject.toml.
_DOCUMENTATION = "https://jupyter-gpushare.readthedocs.io/en/latest/"


def docs_url(page: str = "") -> str:
    """Return the address of a page of the documentation, such as ``reference/commands``; by default of its start."""
    return f"{_DOCUMENTATION}{page}.html" if page else _DOCUMENTATION
