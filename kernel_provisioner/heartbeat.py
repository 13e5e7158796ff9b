# SPDX-License-Identifier: BSD-3-Clause
"""Sees whether a kernel ever came to life."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import zmq

#: Pause between two looks, in milliseconds.
INTERVAL = 100
#: A kernel that was silent for so long is not dead, only of a kind that has no heartbeat. In seconds.
PATIENCE = 120


class FirstBeat:
    """Pings a kernel until it first answers.

    This runs in a thread, since the manager may be a blocking one whose event loop stands still between two calls.

    Parameters
    ----------
    connection
        The kernel's connection info.
    """

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self._seen = threading.Event()
        self._stopped = threading.Event()
        self._connection = dict(connection)
        self._thread = threading.Thread(target=self._run, name="gpushare-first-beat", daemon=True)
        self._thread.start()

    @property
    def seen(self) -> bool:
        """Whether the kernel answered."""
        return self._seen.is_set()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        # A context of its own: the manager's may be closed while this thread looks.
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            for option in ("curve_publickey", "curve_secretkey"):
                if key := self._connection.get(option):
                    setattr(socket, option, key)
            if key := self._connection.get("curve_publickey"):
                socket.curve_serverkey = key
            socket.connect(self._url())
            socket.send(b"ping")
            for _ in range(PATIENCE * 1000 // INTERVAL):
                if socket.poll(INTERVAL):
                    self._seen.set()
                    return
                if self._stopped.is_set():
                    return

    def _url(self) -> str:
        transport, ip, port = (self._connection[key] for key in ("transport", "ip", "hb_port"))
        return f"{transport}://{ip}{'-' if transport == 'ipc' else ':'}{port}"
