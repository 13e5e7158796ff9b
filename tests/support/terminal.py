# SPDX-License-Identifier: BSD-3-Clause
"""Runs the command in a terminal."""

from __future__ import annotations

import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from typing import NamedTuple

from tests.support.client import PATIENCE


class Shown(NamedTuple):
    """What a command has written: to the terminal, and to a pipe."""

    terminal: str
    pipe: str


def in_terminal(
    environ: dict[str, str], *arguments: str, columns: int = 120, stream: str = "stdout"
) -> Shown:
    """Run ``gpushare`` with one of its output streams on a terminal, and the other one on a pipe."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: theirs}
    with subprocess.Popen(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", *arguments],
        env={"NO_COLOR": "", **kept, "TERM": "xterm-256color"},
        stdin=subprocess.DEVNULL,
        text=True,
        **streams,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError:
            # Linux reports an error once no process has the terminal open.
            pass
        finally:
            os.close(ours)
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, shown
    return Shown(shown.decode().replace("\r\n", "\n"), (out or "") + (err or ""))
