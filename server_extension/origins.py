# SPDX-License-Identifier: BSD-3-Clause
"""Distinguishes the cells of agents from those of people, by how they reached the Jupyter server.

``docs/how-to/agents.md`` has the table of clients with the evidence for each. A cell that is not recognised counts as
a person's, so that no person waits longer by mistake.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from logging import Logger
from typing import Any

from jupyter_server.serverapp import ServerApp
from jupyter_server.services.kernels.connection.base import (
    BaseKernelWebsocketConnection,
    deserialize_msg_from_ws_v1,
)

#: The header of an HTTP request, and the field of a message's metadata or header, by which a client names the class.
HEADER = "GpuShare-Class"
FIELD = "gpushare"
#: The classes that it may name: an agent, or a program that a person waits for.
CLASSES = {"agent": True, "interactive": False}

#: How the ``User-Agent`` of known clients begins: jupyter-kernel-client, jupyter-nbmodel-client.
USER_AGENTS = (
    "Jupyter Kernel Client",
    "Jupyter NbModel Client",
    "Jupyter Nbmodel Client",
    "Datalayer-NbModelClient/",
)
#: The ids of sessions that the Python package jupyter_client makes. Pages in browsers have UUIDs.
PYTHON_SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{24}")
#: MCP servers that run as extensions of the Jupyter server, and send their cells to the kernels themselves.
EXTENSIONS = frozenset({"jupyter_mcp_server", "jupyter_mcp_live"})
#: Where jupyter-server-nbmodel takes cells that it sends to the kernel itself.
EXECUTE = re.compile(r"/api/kernels/([\w-]+)/execute")

#: Connections and messages that are remembered, at most.
MOST = 10_000


class Origins:
    """What is known of the connections, requests and messages that lead to cells.

    Parameters
    ----------
    server
        The Jupyter server.
    user_agents
        How the ``User-Agent`` of further clients begins that are agents.
    log
        For invalid messages.
    """

    def __init__(self, server: ServerApp, user_agents: Sequence[str], log: Logger) -> None:
        self._server = server
        self._user_agents = (*USER_AGENTS, *user_agents)
        self._log = log
        #: Whether an agent is at the other end: by kernel and session of each connection, and by message.
        self._sessions: OrderedDict[tuple[str, str], bool] = OrderedDict()
        self._messages: OrderedDict[str, bool] = OrderedDict()
        #: By kernel: the same of the cells that jupyter-server-nbmodel was asked to run, and that have not begun.
        self._requests: dict[str, deque[bool]] = {}
        self._restore: Callable[[], None] | None = None

    def start(self) -> None:
        """Follow the connections to kernels, and the requests to run cells."""
        settings = self._server.web_app.settings
        made, logged = settings["kernel_websocket_connection_class"], settings.get("log_function")
        settings["kernel_websocket_connection_class"] = _followed(made, self)

        def log_request(handler: Any) -> None:
            self.on_request(handler.request, handler.get_status())
            if logged is not None:
                logged(handler)

        settings["log_function"] = log_request

        def restore() -> None:
            settings["kernel_websocket_connection_class"] = made
            settings["log_function"] = logged

        self._restore = restore

    def stop(self) -> None:
        """Stop following connections and requests."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def is_agent(self, kernel_id: str, header: Mapping[str, Any]) -> bool:
        """Return whether an agent began a cell; called once for each, when it begins. Unless started, none did.

        Parameters
        ----------
        kernel_id
            The kernel's id.
        header
            The header of the request to run it, as the kernel repeats it.
        """
        if self._restore is None:
            return False
        stated = self._messages.pop(str(header.get("msg_id")), None)
        if stated is None:
            stated = _stated(header)
        known = self._sessions.get((kernel_id, str(header.get("session"))))
        if known is None:
            # It did not come through a connection to this server, so a part of the server has sent it.
            requests = self._requests.get(kernel_id)
            known = requests.popleft() if requests else self._has_agents()
        return known if stated is None else stated

    def forget(self, kernel_id: str) -> None:
        """Forget the requests to a kernel, which was interrupted, has restarted or has ended."""
        self._requests.pop(kernel_id, None)

    def _has_agents(self) -> bool:
        return not EXTENSIONS.isdisjoint(self._server.extension_manager.extension_apps)

    # --- What happens ---------------------------------------------------------------------------

    def on_connect(self, kernel_id: str, session: str, headers: Mapping[str, str]) -> None:
        """Note a connection to a kernel."""
        agent = self._is_agent(headers)
        if agent is None:
            # jupyter-kernel-client sends no User-Agent with its WebSockets; browsers always do.
            agent = bool(PYTHON_SESSION.fullmatch(session))
        _remember(self._sessions, (kernel_id, session), agent)

    def on_request(self, request: Any, status: int) -> None:
        """Note a request to run a cell without a connection."""
        found = EXECUTE.search(request.path or "")
        if found is None or request.method != "POST" or status >= 400:
            return
        agent = bool(self._is_agent(request.headers))
        self._requests.setdefault(found[1], deque(maxlen=MOST)).append(agent)

    def on_message(self, message: str | bytes) -> None:
        """Note the class that a client's message to a kernel states."""
        text = message if isinstance(message, bytes) else message.encode()
        if f'"{FIELD}"'.encode() not in text:
            return
        try:
            header, metadata = _parts(message)
            if header.get("msg_type") == "execute_request":
                agent = _stated(metadata)
                if agent is not None:
                    _remember(self._messages, str(header["msg_id"]), agent)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            self._log.debug("gpushare: received a message that is not a Jupyter message: %s", error)

    def _is_agent(self, headers: Mapping[str, str]) -> bool | None:
        """Return whether the headers of a request are an agent's; None: they state neither class nor ``User-Agent``."""
        stated = CLASSES.get(headers.get(HEADER, "").lower())
        name = headers.get("User-Agent")
        if stated is not None or name is None:
            return stated
        return name.startswith(self._user_agents)


def _remember(table: OrderedDict[Any, bool], key: Any, agent: bool) -> None:
    table[key] = agent
    table.move_to_end(key)
    while len(table) > MOST:
        table.popitem(last=False)


def _stated(fields: Mapping[str, Any]) -> bool | None:
    """Return what metadata or a header says about who began a cell; None: nothing."""
    said = fields.get(FIELD)
    name = said.get("class") if isinstance(said, Mapping) else None
    return CLASSES.get(name) if isinstance(name, str) else None


def _parts(message: str | bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the metadata of a message, in one of the two formats of WebSockets."""
    if isinstance(message, bytes):
        # The number of offsets; jupyter_server would read as many as it says, whatever the length.
        if int.from_bytes(message[:8], "little") > len(message) // 8:
            raise ValueError("the message is shorter than it says")
        _, parts = deserialize_msg_from_ws_v1(message)  # type: ignore[no-untyped-call]
        return json.loads(parts[0]), json.loads(parts[2])
    found = json.loads(message)
    return found["header"], found["metadata"]


def _followed(
    made: type[BaseKernelWebsocketConnection], origins: Origins
) -> type[BaseKernelWebsocketConnection]:
    """Return a class of connections that passes on what they are and what comes in."""

    class Followed(made):  # type: ignore[valid-type,misc]
        def connect(self) -> Any:
            headers = self.websocket_handler.request.headers
            origins.on_connect(str(self.kernel_id), self.session.session, headers)
            return super().connect()

        def handle_incoming_message(self, incoming_msg: str | bytes) -> None:
            origins.on_message(incoming_msg)
            super().handle_incoming_message(incoming_msg)

    # Traits are configured by the name of their class.
    Followed.__name__ = made.__name__
    return Followed
