# SPDX-License-Identifier: BSD-3-Clause
"""A helper process that does for a program of ``gpushare run`` what a Jupyter server does for its kernels.

It keeps a scheduler running, or returns the program's ticket to the scheduler of a node. The program holds the other
end of its standard input, so it ends when the program does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from ...scheduler.gpu.drivers import Driver
from ...scheduler.protocol.address import socket_path
from ...scheduler.protocol.client import ControlClient, ControlError

#: Seconds between two attempts to find or start a scheduler.
PAUSE = 0.5
#: Seconds that a scheduler has to respond after it was started.
PATIENCE = 5.0


def is_there(socket: Path) -> bool:
    """Return whether a scheduler responds."""
    try:
        with ControlClient(socket, 1.0) as client:
            client.request("status")
    except ControlError:
        return False
    return True


def start(socket: Path, driver: Driver, group: str = "", ticket: Path | None = None) -> None:
    """Start a standby that runs until this process and its children have ended, whatever they execute.

    Parameters
    ----------
    socket
        The scheduler's socket.
    driver
        The driver for schedulers that the standby starts.
    group
        The program's lease group.
    ticket
        The path of the group's ticket, which is returned at the end; None: keep a scheduler running.
    """
    reader, writer = os.pipe()
    environment = {
        **os.environ,
        **driver.environment(),
        "GPUSHARE_SOCKET": str(socket),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    # A shell that exits at once starts it, because the program must not find a child that it did not start. Background
    # commands of a shell read from /dev/null unless their input is redirected.
    subprocess.run(
        [
            "/bin/sh",
            "-c",
            'exec 3<&0; "$@" <&3 3<&- >/dev/null 2>&1 &',
            "sh",
            sys.executable,
            "-m",
            "jupyter_gpushare.cli.programs.standby",
            *([group, str(ticket)] if ticket is not None else []),
        ],
        stdin=reader,
        env=environment,
        # With -m, Python imports from the working folder first, and the user's may contain a select.py.
        cwd="/",
        start_new_session=True,
        check=True,
    )
    os.close(reader)
    os.set_inheritable(writer, True)


def attend(socket: Path, driver: Driver) -> bool:
    """Let a standby keep a scheduler running until this process and its children have ended, whatever they execute.

    Returns
    -------
    bool
        Whether a scheduler responds now.
    """
    start(socket, driver)
    deadline = time.monotonic() + PATIENCE
    while not is_there(socket):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def main(arguments: list[str]) -> None:
    """Run until standard input ends."""
    if arguments:
        # Imported late, because it would delay the start of a scheduler that a program is waiting for.
        from ...kernel_provisioner.ticket import give_back_here

        _await_end()
        group, ticket = arguments
        give_back_here(socket_path(), group, Path(ticket))
        return
    threading.Thread(target=_end_with_program, daemon=True).start()
    while True:
        try:
            with ControlClient() as client:
                while True:
                    client.next_event(3600.0)
        except ControlError:
            # It inherits this standard input, and therefore also ends with the program.
            subprocess.run(
                [sys.executable, "-m", "jupyter_gpushare.scheduler", "--parent-pipe"], check=False
            )
        time.sleep(PAUSE)


def _await_end() -> None:
    while os.read(0, 4096):
        pass


def _end_with_program() -> None:
    _await_end()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
