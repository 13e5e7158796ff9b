# SPDX-License-Identifier: BSD-3-Clause
"""``python -m jupyter_gpushare.scheduler.server.alive``: a liveness probe that checks whether the scheduler answers.

It runs every few seconds on every node, so it imports next to nothing. Any answer suffices, even a refusal, because it
shows that the scheduler's event loop runs.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

#: Environment variable: the socket on which one scheduler answers probes. One that stands by does not serve the node's.
ALIVE_SOCKET = "GPUSHARE_ALIVE_SOCKET"
#: Seconds for which each step of the exchange may last.
PATIENCE = 3
#: The header of a frame, and the type of a request (csrc/protocol.h).
_HEADER, _CONTROL = struct.Struct("=IHH"), 64
_REQUEST = b'{"op": "whoami"}'


def answers(path: bytes) -> str:
    """Check that the scheduler answers; return the problem, or an empty text."""
    patience = struct.pack("ll", PATIENCE, 0)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Not Python's timeout, with which connect() fails at once while other connections wait to be accepted.
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, patience)
            connection.connect(path)
            length = _HEADER.size + len(_REQUEST)
            connection.sendall(_HEADER.pack(length, _CONTROL, 0) + _REQUEST)
            return "" if connection.recv(1) else "the scheduler closed the connection"
    except BlockingIOError:
        return f"the scheduler has not responded for {PATIENCE} s"
    except OSError as error:
        return str(error.strerror or error)


def main() -> int:
    """Return the exit status: 0 if the scheduler answers."""
    path = os.environ.get(ALIVE_SOCKET) or os.environ.get("GPUSHARE_SOCKET", "")
    wrong = answers(os.fsencode(path))
    if wrong:
        print(f"gpushare: no response at {path}: {wrong}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
