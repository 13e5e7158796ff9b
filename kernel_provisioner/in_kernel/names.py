# SPDX-License-Identifier: BSD-3-Clause
"""The name of a notebook whose front end starts kernels itself: the command line knows only the kernelspec's."""

import os
from typing import Any

from .faults import guarded
from .interposer import Interposer

#: The variable in which VS Code's Jupyter extension passes its kernels the path of their notebook.
VARIABLE = "__vsc_ipynb_file__"


class NotebookName:
    """Passes the name on to the scheduler, also after the notebook was renamed."""

    def __init__(self, shell: Any, interposer: Interposer) -> None:
        self._shell = shell
        self._interposer = interposer
        self._path: Any = None

    @guarded
    def follow(self, info: Any) -> None:
        """Look for a name, except in kernels that a Jupyter server has named."""
        path = self._shell.user_ns.get(VARIABLE)
        if path == self._path or not isinstance(path, str):
            return
        self._path = path
        group, name = self._interposer.group(), os.path.basename(path)
        if not group.startswith("run-") or not name:
            return
        # The interposer reports it at the first use of CUDA.
        os.environ["GPUSHARE_NAME"] = name
        if self._interposer.attached():
            self._interposer.control("name", group=group, name=name)
