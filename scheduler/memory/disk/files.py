# SPDX-License-Identifier: BSD-3-Clause
"""The files on a disk to which chunks of pools go, and the table that describes their contents.

A file has no name, so it ends with the last process that has it open, however that ends. Only the scheduler and its
helper (``helper.py``) have it open.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import struct
from pathlib import Path
from typing import NamedTuple

from ...._protocol import lib

CHUNK: int = lib.GPUSHARE_POOL_CHUNK
SLOTS: int = lib.GPUSHARE_POOL_SLOTS
NONCE_BYTES, TAG_BYTES, KEY_BYTES = 12, 16, 32
#: Errors of file systems that make no files without a name.
_NAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)
_PROCESS = struct.Struct("=Q")
_SEAL = struct.Struct(f"={NONCE_BYTES}s{TAG_BYTES}s4x")


class DiskFile(NamedTuple):
    """A file for one pool.

    Attributes
    ----------
    descriptor
        The file, open for reading and writing.
    direct
        Whether the page cache is bypassed (``O_DIRECT``).
    """

    descriptor: int
    direct: bool


def default_size(folder: Path) -> int:
    """Return the bytes that data may take on a disk if the administrator sets no limit: half of what is free.

    Raises
    ------
    OSError
        The folder cannot be used.
    """
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize // 2


def open_file(folder: Path) -> DiskFile:
    """Make a file without a name that only this user may read.

    Parameters
    ----------
    folder
        The administrator's folder.

    Raises
    ------
    OSError
        The folder cannot be used.
    """
    for flags in (os.O_DIRECT, 0):
        try:
            return DiskFile(_open_unnamed(folder, flags), bool(flags))
        except OSError as error:
            if not flags or error.errno != errno.EINVAL:
                raise
    raise AssertionError("unreachable")


def _open_unnamed(folder: Path, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    except OSError as error:
        if error.errno not in _NAMED:
            raise
    name = folder / f".gpushare-{secrets.token_hex(8)}"
    descriptor = -1
    try:
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    finally:
        # It may also exist if the file system refuses only O_DIRECT.
        with contextlib.suppress(FileNotFoundError):
            name.unlink()
    return descriptor


class SealTable:
    """How each chunk of a file was encrypted, and the process of each slot; shared by the scheduler and its helper.

    Parameters
    ----------
    chunk_count
        The number of chunks of the pool.
    descriptor
        The table, if it exists already.

    Raises
    ------
    OSError
        The system provides none.
    """

    def __init__(self, chunk_count: int, descriptor: int | None = None) -> None:
        size = SLOTS * _PROCESS.size + chunk_count * _SEAL.size
        if descriptor is None:
            descriptor = os.memfd_create("gpushare-seals", os.MFD_CLOEXEC)
        self.descriptor = descriptor
        try:
            if os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Unmap and close it."""
        self._map.close()
        os.close(self.descriptor)

    def set_process(self, slot: int, pid: int) -> None:
        """Note the process of a slot; 0: none."""
        _PROCESS.pack_into(self._map, slot * _PROCESS.size, pid)

    def process(self, slot: int) -> int:
        """Return the process of a slot; 0: none."""
        return int(_PROCESS.unpack_from(self._map, slot * _PROCESS.size)[0])

    def set_seal(self, index: int, nonce: bytes, tag: bytes) -> None:
        """Note how a chunk was encrypted."""
        _SEAL.pack_into(self._map, SLOTS * _PROCESS.size + index * _SEAL.size, nonce, tag)

    def seal(self, index: int) -> tuple[bytes, bytes]:
        """Return the nonce and the tag of a chunk."""
        nonce, tag = _SEAL.unpack_from(self._map, SLOTS * _PROCESS.size + index * _SEAL.size)
        return nonce, tag
