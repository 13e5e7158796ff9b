# SPDX-License-Identifier: BSD-3-Clause
"""gRPC servers on Unix sockets that the kubelet finds in its folders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from .node import NodeError


def identity(socket: Path) -> object:
    """Return what identifies this socket among all that are ever created at its path; None: there is none."""
    try:
        found = os.stat(socket)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def unary(method: Any, request: Any, answer: Any) -> grpc.RpcMethodHandler[Any, Any]:
    """Make the handler of a method with one request and one answer."""
    return grpc.unary_unary_rpc_method_handler(method, request.FromString, answer.SerializeToString)


class Listener:
    """A server that is there as long as it is kept.

    Parameters
    ----------
    path
        The socket.
    handlers
        The services.
    hint
        What to do if nothing can listen there.
    """

    def __init__(self, path: Path, handlers: Sequence[grpc.GenericRpcHandler], hint: str) -> None:
        self.path = path
        self._handlers = handlers
        self._hint = hint
        self._server: grpc.aio.Server | None = None
        self._identity: object = None

    async def keep(self) -> bool:
        """Listen, also if another program has removed the socket; return whether the socket is new.

        Raises
        ------
        NodeError
            The socket cannot be created.
        """
        if self._server is not None and identity(self.path) == self._identity:
            return False
        await self.close()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers(self._handlers)
        try:
            server.add_insecure_port(f"unix:{self.path}")
            await server.start()
        except (RuntimeError, OSError):
            raise NodeError(f"cannot listen at {self.path}; {self._hint}") from None
        self._server = server
        self._identity = identity(self.path)
        return True

    async def close(self) -> None:
        """Stop, and remove the socket."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
