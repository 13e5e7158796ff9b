# SPDX-License-Identifier: BSD-3-Clause
"""Copies the interposer's libraries to a folder that containers mount."""

from __future__ import annotations

import filecmp
import os
import shutil
from pathlib import Path

from ..scheduler.gpu.drivers import libraries


class LibrariesError(Exception):
    """The libraries cannot be copied; the message is one sentence for the user."""


def install_libraries(folder: Path) -> None:
    """Copy the interposer's libraries into a folder that containers mount.

    Each file is replaced as a whole, so processes that have loaded the old file keep it.

    Raises
    ------
    LibrariesError
        If the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # A kernel that lost its scheduler while it was hibernated starts the hibernator itself.
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
            f"cannot copy the libraries to {folder}: {error.strerror}; choose another folder"
        ) from None
