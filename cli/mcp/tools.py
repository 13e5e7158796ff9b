# SPDX-License-Identifier: BSD-3-Clause
"""The tools of the MCP server. Each does one request of the REST API with the token of the agent's user."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from ..._version import __version__
from ...client import AsyncClient, GpuShareError, Reservation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INSTRUCTIONS = """\
Jupyter notebooks and programs on this machine share NVIDIA GPUs. Only some of them can use a GPU at a time; the others
wait in a queue. Before you start GPU work, call when_could_i_run. Set the class of a notebook that you drive to
agent, so that people do not wait longer because of it. Release or hibernate the notebook when you are done. Refer to a
notebook by its ID or its name, as status shows them. Sizes are bytes, times are seconds."""

#: An empty name would mean the kernel in which this server runs.
Notebook = Annotated[
    str,
    Field(description="The ID or the name of the notebook, as status shows it.", min_length=1),
]
SetClass = Literal["auto", "interactive", "agent", "background"]
NewClass = Literal["interactive", "agent", "background"]

#: Members of a status that help an agent to decide.
GPU = ("uuid", "index", "name", "total", "used", "available", "utilization", "draining")
GROUP = ("id", "name", "user", "class", "state", "position", "estimate")


class Tools:
    """The tools.

    Parameters
    ----------
    url
        The base URL of the Jupyter server; None: as the client finds it.
    authorized
        Whether each request must have a token of its own. Otherwise, the client finds one.
    """

    def __init__(self, url: str | None, *, authorized: bool = False) -> None:
        self._url = url
        self._authorized = authorized

    @asynccontextmanager
    async def _client(self, context: Context[Any, Any]) -> AsyncIterator[AsyncClient]:
        token = bearer((context.headers or {}).get("authorization")) if self._authorized else None
        try:
            async with AsyncClient(self._url, token) as client:
                yield client
        except GpuShareError as error:
            raise ToolError(str(error)) from None

    async def status(self, context: Context[Any, Any]) -> dict[str, Any]:
        """Show the GPUs, and which notebooks and programs are running, waiting, idle or hibernated.

        `available` is the memory of a GPU that a notebook could get now. `position` is the place of a waiting notebook
        in the queue, and `estimate` the seconds until it runs, with an interval.
        """
        async with self._client(context) as client:
            found = await client.status()
        return {
            "availability": found["availability"],
            "gpus": [{key: gpu[key] for key in GPU} for gpu in found["gpus"]],
            "notebooks": [_notebook(group) for group in found["groups"]],
        }

    async def when_could_i_run(
        self,
        context: Context[Any, Any],
        notebook: Annotated[
            str | None,
            Field(
                description="The ID or name of one of your notebooks. Leave it out for a new one.",
                min_length=1,
            ),
        ] = None,
        memory: Annotated[
            int | None,
            Field(description="For a new notebook: the bytes that it will use on the GPU.", ge=0),
        ] = None,
        priority: Annotated[
            NewClass | None, Field(description="For a new notebook: its class.")
        ] = None,
        gpu: Annotated[
            str | None,
            Field(description="For a new notebook: the UUID or the index of a GPU."),
        ] = None,
    ) -> dict[str, Any]:
        """Forecast when a notebook would get a GPU if it asked now. It reserves nothing and changes nothing.

        State either `notebook` or `memory`. The answer has the `earliest`, `likely` and `latest` seconds (nine of ten
        waits end in between; null: it cannot run until something else happens), and a sentence with the reason.
        """
        if (notebook is None) == (memory is None):
            raise ToolError("State either notebook or memory.")
        async with self._client(context) as client:
            found = await client.when_could_i_run(
                notebook, memory=memory, priority=priority, gpu=gpu
            )
        return {
            "notebook": found.group,
            "gpu": found.gpu,
            "earliest": found.earliest,
            "likely": found.likely,
            "latest": found.latest,
            "restore": found.restore,
            "reason": found.reason.code,
            "text": found.text,
        }

    async def explain(
        self,
        context: Context[Any, Any],
        notebook: Annotated[
            str | None,
            Field(
                description="The ID or name of a notebook. Leave it out for all that wait.",
                min_length=1,
            ),
        ] = None,
    ) -> str:
        """Explain which rules of the scheduler put other notebooks ahead, and what would change that."""
        async with self._client(context) as client:
            found = await client.explain(notebook)
        return "\n".join(found["lines"]) or "No notebook is waiting."

    async def release(self, context: Context[Any, Any], notebook: Notebook) -> str:
        """Release the GPU so that the next notebook can run. The memory of the notebook stays intact."""
        async with self._client(context) as client:
            return f"Released the GPU of {await client.release(notebook)}."

    async def hibernate(self, context: Context[Any, Any], notebook: Notebook) -> str:
        """Free all GPU memory of a notebook as soon as it is idle. Its variables stay intact, in host memory.

        Use this when you will not use the notebook for minutes. Its next cell wakes it.
        """
        async with self._client(context) as client:
            return f"{await client.hibernate(notebook)} hibernates as soon as it is idle."

    async def wake(self, context: Context[Any, Any], notebook: Notebook) -> str:
        """Wake a hibernated notebook before its next cell does, so that the cell does not wait for it."""
        async with self._client(context) as client:
            return f"Waking {await client.wake(notebook)}."

    async def reserve(self, context: Context[Any, Any], notebook: Notebook) -> dict[str, Any]:
        """Reserve the GPU for a notebook, and return at once: the notebook waits in the queue at its rank.

        When its turn comes, its memory is restored, and the GPU is kept for a minute by default. Run its cell once
        `reservations` shows the state ready. A reservation that is not used lapses, and counts as GPU time.
        """
        async with self._client(context) as client:
            found = await client.run_when(notebook)
        return _reservation(found)

    async def cancel_reservation(self, context: Context[Any, Any], notebook: Notebook) -> str:
        """Cancel the reservation of a notebook, for example because its cell is not ready in time."""
        async with self._client(context) as client:
            return f"Cancelled the reservation of {(await client.cancel(notebook)).group}."

    async def reservations(self, context: Context[Any, Any]) -> list[dict[str, Any]]:
        """List the notebooks with a reservation. `until_in`: seconds until a ready one lapses, otherwise null."""
        async with self._client(context) as client:
            groups = (await client.status())["groups"]
        return [
            {
                "notebook": group["id"],
                "name": group["name"],
                "state": group["reservation"]["state"],
                "until_in": group["reservation"]["until_in"],
            }
            for group in groups
            if group.get("reservation") is not None
        ]

    async def set_class(
        self,
        context: Context[Any, Any],
        notebook: Notebook,
        priority: Annotated[
            SetClass,
            Field(
                description="The class. Interactive notebooks run first, then notebooks of agents, then background "
                "ones. With auto, the behaviour of the notebook decides."
            ),
        ],
    ) -> str:
        """Set the class of a notebook, which decides its place in the queue."""
        async with self._client(context) as client:
            return f"The class of {await client.set_class(priority, notebook)} is {priority}."


def make_server(tools: Tools) -> MCPServer[Any]:
    """Return the MCP server with all tools."""
    server: MCPServer[Any] = MCPServer(
        "gpushare", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING"
    )
    looks = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    acts = ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    found: list[tuple[Callable[..., Any], ToolAnnotations]] = [
        (tools.status, looks),
        (tools.when_could_i_run, looks),
        (tools.explain, looks),
        (tools.release, acts),
        (tools.hibernate, acts),
        (tools.wake, acts),
        (tools.reserve, acts),
        (tools.cancel_reservation, acts),
        (tools.reservations, looks),
        (tools.set_class, acts),
    ]
    for tool, hints in found:
        server.add_tool(tool, annotations=hints)
    return server


def serve_stdio(url: str | None) -> int:
    """Serve standard input and output until they end."""
    make_server(Tools(url)).run("stdio")
    return 0


def serve_http(url: str, host: str, port: int) -> int:
    """Serve streamable HTTP until an interrupt."""
    server = make_server(Tools(url, authorized=True))
    # Each request stands alone, so there are no sessions that another user could take over.
    app = server.streamable_http_app(stateless_http=True, json_response=True, host=host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        shown = f"[{host}]" if ":" in host else host
        print(f"Serving MCP at http://{shown}:{listening.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(RequireToken(app), log_level="warning")
        anyio.run(uvicorn.Server(config).serve, [listening])
    return 0


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class RequireToken:
    """Refuses HTTP requests without a token. The Jupyter server checks the token of each request.

    Parameters
    ----------
    app
        Answers the other requests.
    """

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or any(
            name == b"authorization" and bearer(value.decode("latin-1"))
            for name, value in scope["headers"]
        ):
            await self._app(scope, receive, send)
            return
        message = "send a token of the Jupyter server: 'Authorization: Bearer TOKEN'"
        headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": message}).encode()})


def bearer(header: str | None) -> str:
    """Return the token in the value of an Authorization header; empty: there is none."""
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() in ("bearer", "token") else ""


def _reservation(found: Reservation) -> dict[str, Any]:
    return {
        "notebook": found.group,
        "state": found.state,
        "until_in": found.until_in,
        "notebook_state": found.group_state,
    }


def _notebook(group: dict[str, Any]) -> dict[str, Any]:
    reason = group["reason"]
    memory = {
        key: sum(gpu.get(key, 0) for gpu in group["gpus"])
        for key in ("footprint", "resident", "clean", "swapped", "shared", "disk")
    }
    return {
        **{key: group[key] for key in GROUP},
        "reason": None if reason is None else reason["code"],
        **memory,
    }
