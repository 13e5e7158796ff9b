# SPDX-License-Identifier: BSD-3-Clause
"""A kernel of a user's server, spoken to as a notebook does: over the server's websocket, through the proxy."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import websocket

from tests.support.hub.hub import Seat
from tests.support.lab import PATIENCE

#: Seconds without a message after which a wait does something else.
QUIET = 1.0


class Kernel:
    """A notebook's kernel; it ends with the ``with`` block.

    Parameters
    ----------
    seat
        The user's server.
    name
        The notebook's.
    """

    def __init__(self, seat: Seat, name: str) -> None:
        self._seat = seat
        session = seat.post(
            "api/sessions",
            {"path": name, "name": name, "type": "notebook", "kernel": {"name": "python3"}},
        )
        self.id: str = session["kernel"]["id"]
        self._session: str = session["id"]
        self.connect()

    def connect(self) -> None:
        """Connect, as a browser that opens the notebook."""
        self._socket = websocket.create_connection(
            f"{self._seat.url}api/kernels/{self.id}/channels".replace("http", "ws", 1),
            header=[f"Authorization: token {self._seat.hub.token}"],
            timeout=PATIENCE,
        )
        self._socket.settimeout(QUIET)

    def disconnect(self) -> None:
        """Disconnect, as a browser that is closed. The kernel goes on."""
        self._socket.close()

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()
        self._seat.delete(f"api/sessions/{self._session}")

    def begin(self, code: str) -> str:
        """Begin to run code, and return its message's id."""
        message = uuid.uuid4().hex
        header = {"msg_id": message, "msg_type": "execute_request", "username": "", "session": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        self._socket.send(
            json.dumps(
                {
                    "header": {**header, "version": "5.3", "date": ""},
                    "parent_header": {},
                    "metadata": {},
                    "content": content,
                    "channel": "shell",
                }
            )
        )
        return message

    def end(self, message: str, quiet: Callable[[], object] = lambda: None) -> str:
        """Wait until what was begun has ended, and return what it printed; call ``quiet`` whenever nothing comes."""
        printed: list[str] = []
        for got in self._messages(printed, quiet):
            if got["parent_header"].get("msg_id") != message:
                continue
            content = got["content"]
            match got["msg_type"]:
                case "stream":
                    printed.append(content["text"])
                case "error":
                    raise AssertionError("\n".join(content["traceback"]))
                case "status" if content["execution_state"] == "idle":
                    break
        return "".join(printed)

    def await_restart(self) -> None:
        """Wait until the server has restarted the kernel, and its output arrives.

        Until then, a message may go to the old process. And when the new one runs a message, the server may not receive
        its output yet.
        """
        for got in self._messages():
            if got["msg_type"] == "status" and got["content"]["execution_state"] == "restarting":
                break
        sent = {self.begin("")}
        for got in self._messages(quiet=lambda: sent.add(self.begin(""))):
            if got["msg_type"] == "status" and got["parent_header"].get("msg_id") in sent:
                break

    def _messages(
        self, printed: Sequence[str] = (), quiet: Callable[[], object] = lambda: None
    ) -> Iterator[dict[str, Any]]:
        """Yield what the kernel sends; if the wait becomes too long, fail with what was printed."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                # What keeps the connection alive comes, too, where nothing else does.
                kind, frame = self._socket.recv_data_frame(control_frame=True)
            except websocket.WebSocketTimeoutException:
                quiet()
                continue
            if kind == websocket.ABNF.OPCODE_TEXT:
                yield json.loads(frame.data)
        pytest.fail(f"{''.join(printed)}\n{self._seat.status()}\n{self._seat.log}")

    def run(self, code: str) -> str:
        """Run code, and return what it printed."""
        return self.end(self.begin(code))
