# SPDX-License-Identifier: BSD-3-Clause
"""The helper of the disk tier with a fault: ``faulty_disk_helper.py FAULT [PIPE] SOCKET``."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jupyter_gpushare.scheduler.memory.disk import helper as disk_helper

PIPE = sys.argv[2]
_real_write, _real_read = os.pwritev, os.preadv
_failed = False


def _fail_once(*_: Any) -> int:
    global _failed
    _failed = True
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _write(*arguments: Any) -> int:
    return _real_write(*arguments) if _failed else _fail_once()


def _read(*arguments: Any) -> int:
    return _real_read(*arguments) if _failed else _fail_once()


def _report() -> None:
    # Several threads come here, and the test reads once and may have removed the pipe.
    with contextlib.suppress(BrokenPipeError, FileNotFoundError):
        pipe = os.open(PIPE, os.O_WRONLY)
        os.write(pipe, b"x")
        os.close(pipe)


def _stop(*_: Any) -> int:
    """Report that the call has been reached, and never end it. The next helper works."""
    _report()
    time.sleep(3600)
    return 0


def _hang(call: Callable[..., int], *arguments: Any) -> int:
    """Report that the call has been reached, and go on once the test has removed the pipe."""
    # Opening the pipe may wait for the test, which reads once.
    threading.Thread(target=_report, daemon=True).start()
    while os.path.exists(PIPE):
        time.sleep(0.01)
    return call(*arguments)


match sys.argv[1]:
    case "write":
        os.pwritev = _write
    case "read":
        os.preadv = _read
    case "stop-in-write" if os.path.exists(PIPE):
        os.pwritev = _stop
    case "stop-in-read" if os.path.exists(PIPE):
        os.preadv = _stop
    case "hang-in-write":
        os.pwritev = functools.partial(_hang, _real_write)
    case "hang-in-read":
        os.preadv = functools.partial(_hang, _real_read)
    case "no-room":
        disk_helper.host_budget = lambda *_: 0

sys.argv[1:] = sys.argv[-1:]
raise SystemExit(disk_helper.main())
