# SPDX-License-Identifier: BSD-3-Clause
"""Messages between the scheduler and the helper process that reads and writes its disk (``helper.py``).

They go over a socket pair that keeps their bounds (``SOCK_SEQPACKET``). ``Open`` comes with three descriptors: the
pool, the file and the table (``files.SealTable``).
"""

from __future__ import annotations

import msgspec

#: Bytes of a message at most.
MOST = 4096


class Open(msgspec.Struct, frozen=True, tag=True):
    """Use a pool, with a number by which later messages name it. ``key`` is empty if data is not encrypted."""

    pool: int
    data_offset: int
    chunk_count: int
    direct: bool
    key: bytes = b""


class Close(msgspec.Struct, frozen=True, tag=True):
    """Stop using a pool. Requests under way finish first, and requests that still wait are cancelled."""

    pool: int


class Write(msgspec.Struct, frozen=True, tag=True):
    """Copy a chunk of a pool to its file."""

    pool: int
    index: int


class Read(msgspec.Struct, frozen=True, tag=True):
    """Copy a chunk of a file to its pool."""

    pool: int
    index: int


class Free(msgspec.Struct, frozen=True, tag=True):
    """Free a chunk of a file."""

    pool: int
    index: int


class Begun(msgspec.Struct, frozen=True, tag=True):
    """A ``Write``, ``Read`` or ``Free`` is carried out now."""

    request: Write | Read | Free


class Done(msgspec.Struct, frozen=True, tag=True):
    """A ``Write``, ``Read`` or ``Free`` has ended. ``error``: an errno, or 0; ``text``: the reason."""

    request: Write | Read | Free
    error: int = 0
    text: str = ""


Request = Open | Close | Write | Read | Free
Answer = Begun | Done
encode = msgspec.msgpack.encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
