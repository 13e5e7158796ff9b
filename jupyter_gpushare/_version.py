# SPDX-License-Identifier: BSD-3-Clause
"""What the modules of this package ask the package itself, which imports some of them."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

#: Where the built libraries lie (see docs/contributing/design.md, "Environment of a client").
LIBRARIES = Path(__file__).parent / "lib"
