# SPDX-License-Identifier: BSD-3-Clause
"""Requests to the scheduler."""

import ctypes
import errno
import json
import os
from typing import Any, Dict

from .faults import Failure

#: The version of control requests (GPUSHARE_CONTROL_VERSION).
PROTOCOL = 7


#: Room for a reply at first and at most (GPUSHARE_MAX_REPLY).
REPLY_BYTES = (1 << 18, 1 << 24)


def ask(library: Any, op: str, params: Dict[str, Any]) -> Dict[str, Any]:
    """Ask the scheduler through the preloaded library (docs/reference/control.md)."""
    request = json.dumps(dict(params, op=op, protocol=PROTOCOL)).encode()
    for size in REPLY_BYTES:
        reply = ctypes.create_string_buffer(size)
        length = library.gpushare_control(request, reply, size)
        if length != -errno.EMSGSIZE:
            break
    if length == -errno.ENOENT or length == -errno.ECONNREFUSED:
        raise Failure(
            "no scheduler is running at {}. Check that the Jupyter server with jupyter-gpushare is running.".format(
                os.environ.get("GPUSHARE_SOCKET", "its socket")
            )
        )
    if length == -errno.ENAMETOOLONG:
        path = os.environ.get("GPUSHARE_SOCKET", "")
        raise Failure(
            f"the path of the scheduler's socket has {len(os.fsencode(path))} bytes, "
            f"but the maximum is 107: {path}. Set GPUSHARE_SOCKET to a shorter path."
        )
    if length == -errno.EACCES:
        raise Failure(
            "the scheduler at {} belongs to another user, or does not know this kernel. Restart the kernel.".format(
                os.environ.get("GPUSHARE_SOCKET", "its socket")
            )
        )
    if length < 0:
        raise Failure(
            f"cannot reach the scheduler: {os.strerror(-length)}. Run `gpushare doctor` in a terminal."
        )
    answer = json.loads(reply.raw[:length].decode("utf-8"))
    if not isinstance(answer, dict) or not answer.get("ok"):
        raise Failure(str(answer.get("error", answer) if isinstance(answer, dict) else answer))
    del answer["ok"]
    return answer
