# SPDX-License-Identifier: BSD-3-Clause
"""Finds notebooks that have more than one kernel: each has variables and GPU memory of its own.

Jupyter gives a notebook one kernel. But programs that drive notebooks may name a file in another way than JupyterLab,
so that a person and an agent work in different kernels without noticing.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

#: How jupyter-collaboration marks paths.
DRIVE = "RTC:"
#: What VS Code adds to the names of its sessions.
SUFFIX = re.compile(r"-jvsc-[0-9a-f-]{36}(?=\.ipynb$|$)")
#: The code of the notice.
CODE = "second_kernel"


class SecondKernel(NamedTuple):
    """A kernel of a notebook that had another one before: the IDs of both, and the notebook's path."""

    kernel_id: str
    first: str
    path: str

    @property
    def params(self) -> dict[str, str]:
        """The parameters of the notice."""
        return {"path": self.path, "first": self.first, "second": self.kernel_id}


def file_of(path: str) -> str:
    """Return the file that the path of a session means, relative to the server's root."""
    path = SUFFIX.sub("", path.removeprefix(DRIVE))
    return posixpath.normpath("/" + path).lstrip("/")


def second_kernels(documents: Iterable[Mapping[str, Any]]) -> list[SecondKernel]:
    """Return the kernels of notebooks that had another one before.

    Parameters
    ----------
    documents
        ``path``, ``type`` and ``kernel_id`` of each document, oldest first.
    """
    first: dict[str, str] = {}
    found: dict[str, SecondKernel] = {}
    for document in documents:
        if document["type"] != "notebook":
            continue
        path, kernel_id = file_of(document["path"]), document["kernel_id"]
        before = first.setdefault(path, kernel_id)
        if before != kernel_id:
            found.setdefault(kernel_id, SecondKernel(kernel_id, before, path))
    return list(found.values())


class SecondKernelNotices:
    """Makes the notices about second kernels. A notice lasts as long as both kernels do."""

    def __init__(self) -> None:
        self._since: dict[SecondKernel, float] = {}

    def notices(self, documents: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Return the notices for these documents, which are by kernel ID."""
        now = time.monotonic()
        found = second_kernels(one for its in documents.values() for one in its)
        self._since = {second: self._since.get(second, now) for second in found}
        return [
            {
                "group": second.kernel_id,
                "code": CODE,
                "params": second.params,
                "time": since,
            }
            for second, since in self._since.items()
        ]
