# SPDX-License-Identifier: BSD-3-Clause
"""The interposer's libraries, where containers get them from."""

from __future__ import annotations

import filecmp
import os
import shutil
from pathlib import Path

from ..scheduler.gpu.drivers import libraries


class LibrariesError(Exception):
    """The libraries cannot be put there; the message is one sentence for who wants it."""


def install_libraries(folder: Path) -> None:
    """Copy the interposer into a folder, from where containers get it.

    A file is replaced as a whole: processes that have the one before loaded keep it.

    Raises
    ------
    LibrariesError
        If the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The hibernator beside them wakes a kernel that has lost its scheduler while it was hibernated.
        found = libraries()
        for library in (*found.preload(), found.hibernator):
            target = folder / library.name
            if target.is_file() and filecmp.cmp(library, target, shallow=False):
                continue
            new = folder / f".{library.name}.new"
            shutil.copyfile(library, new)
            new.chmod(0o755)
            os.replace(new, target)
    except OSError as error:
        raise LibrariesError(
            f"cannot put the libraries into {folder}: {error.strerror}; choose another folder"
        ) from None
