# SPDX-License-Identifier: BSD-3-Clause
"""Sees whether a kernel ever came to life."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import zmq

log = logging.getLogger("gpushare")

#: Pause between two checks, in milliseconds.
INTERVAL = 100
#: A kernel that runs for this time without a response has no heartbeat at all. In seconds.
PATIENCE = 120


class FirstBeat:
    """Pings a kernel until it answers for the first time.

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
        """Whether the kernel answered, or has been running for `PATIENCE` or could not be watched."""
        return self._seen.is_set()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._wait()
        except Exception:
            log.warning("gpushare: cannot watch a kernel's heartbeat", exc_info=True)
        # A kernel without an observable heartbeat must not count as one that failed to start when it ends later.
        if not self._stopped.is_set():
            self._seen.set()

    def _wait(self) -> None:
        # A context of its own: the manager's may be closed while this thread looks.
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.linger = 0
            # The manager has the keys as text, and files that it writes do, too; pyzmq takes bytes only.
            keys = {
                option: key.encode() if isinstance(key, str) else key
                for option in ("curve_publickey", "curve_secretkey")
                if (key := self._connection.get(option))
            }
            for option, key in keys.items():
                setattr(socket, option, key)
            if "curve_publickey" in keys:
                socket.curve_serverkey = keys["curve_publickey"]
            socket.connect(self._url())
            socket.send(b"ping")
            for _ in range(int(PATIENCE * 1000 / INTERVAL)):
                if socket.poll(INTERVAL) or self._stopped.is_set():
                    return

    def _url(self) -> str:
        transport, ip, port = (self._connection[key] for key in ("transport", "ip", "hb_port"))
        return f"{transport}://{ip}{'-' if transport == 'ipc' else ':'}{port}"
