# SPDX-License-Identifier: BSD-3-Clause
"""Does for as long as a program lives what a Jupyter server does for its kernels: ``gpushare run``'s.

It keeps a scheduler there; of a node's, it gives the program's ticket back. It ends when its standard input does, whose
other end is the program's.
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
#: Seconds that a scheduler is given to answer after it was started.
PATIENCE = 5.0


def is_there(socket: Path) -> bool:
    """Whether a scheduler answers."""
    try:
        with ControlClient(socket, 1.0) as client:
            client.request("status")
    except ControlError:
        return False
    return True


def start(socket: Path, driver: Driver, group: str = "", ticket: Path | None = None) -> None:
    """Start a standby that lives until this process, whatever it executes, and its children have ended.

    Parameters
    ----------
    socket
        The scheduler's.
    driver
        What a scheduler that it starts looks at.
    group
        The program's lease group.
    ticket
        Where the group's ticket lies, to be given back in the end; None: keep a scheduler there.
    """
    reader, writer = os.pipe()
    environment = {
        **os.environ,
        **driver.environment(),
        "GPUSHARE_SOCKET": str(socket),
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }
    # Through a shell that ends at once: the program must not find a child that it never started. What a shell runs in
    # the background reads from /dev/null unless told otherwise.
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
        # With -m, Python looks for modules here first; the user's folder may hold a select.py.
        cwd="/",
        start_new_session=True,
        check=True,
    )
    os.close(reader)
    os.set_inheritable(writer, True)


def attend(socket: Path, driver: Driver) -> bool:
    """Let a standby keep a scheduler there until this process, whatever it executes, and its children have ended.

    Returns
    -------
    bool
        Whether a scheduler answers now.
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
        # Here and not above: a scheduler that somebody waits for should not have to wait for it.
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
            # It shares our standard input and so ends with the program as well.
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
