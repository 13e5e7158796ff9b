# SPDX-License-Identifier: BSD-3-Clause
"""Runs a Jupyter server, whose kernels are forks from the second or third on, as those of the tests themselves are."""

from __future__ import annotations

import jupyter_client.launcher
from jupyter_server.serverapp import main

from tests.support.kernels import start

if __name__ == "__main__":
    jupyter_client.launcher.Popen = start  # type: ignore[assignment]
    main()
