# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare mcp`` with the client of the package mcp, over standard input and output and over HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.client import PATIENCE, FakeClient

# Functions import what they need of it. Otherwise, each worker of pytest would, which takes 1 s.
if TYPE_CHECKING:
    from mcp import Client

COMMAND = ["-m", "jupyter_gpushare.cli.main", "mcp"]


@asynccontextmanager
async def over_stdio(url: str, token: str) -> AsyncIterator[Client]:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    environ = {**os.environ, "GPUSHARE_URL": url, "GPUSHARE_TOKEN": token}
    server = StdioServerParameters(command=sys.executable, args=COMMAND, env=environ)
    assert sys.__stderr__ is not None
    # Where the module is imported in a test, its default is a stream of pytest's, which has no descriptor.
    streams = stdio_client(server, errlog=sys.__stderr__)
    async with Client(streams, read_timeout_seconds=PATIENCE) as client:
        yield client


@asynccontextmanager
async def serving(url: str, *options: str) -> AsyncIterator[str]:
    """Serve HTTP, and yield the address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *COMMAND, "--http", "--port", "0", "--url", url, *options,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
        yield line.decode().rpartition(" ")[2].strip()
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), PATIENCE)


@asynccontextmanager
async def over_http(address: str, token: str) -> AsyncIterator[Client]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Call a tool, and return its answer."""
    found: Any = await client.call_tool(tool, arguments)
    assert not found.is_error, found.content
    content = found.structured_content
    return content["result"] if set(content) == {"result"} else content


async def fails(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool that reports an error, and return its sentence."""
    found: Any = await client.call_tool(tool, arguments)
    assert found.is_error
    return str(found.content[0].text)


async def use_all_tools(client: Client, gpu: dict[str, Any]) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert tools.keys() == {
        "status", "when_could_i_run", "explain", "release", "hibernate", "wake", "set_class",
        "reserve", "cancel_reservation", "reservations",
    }  # fmt: skip
    for tool in tools.values():
        assert tool.description
        assert tool.annotations is not None
        # The context is no argument.
        assert "context" not in tool.input_schema["properties"]
        assert all("description" in one for one in tool.input_schema["properties"].values())
    assert tools["when_could_i_run"].annotations.read_only_hint  # type: ignore[union-attr]
    status = await call(client, "status")
    assert status["availability"]["code"] == "ok"
    assert [one["uuid"] for one in status["gpus"]] == [gpu["uuid"]]
    (notebook,) = status["notebooks"]
    assert (notebook["name"], notebook["state"]) == ("train.ipynb", "running")
    found = await call(client, "when_could_i_run", notebook="train.ipynb")
    assert (found["latest"], found["reason"]) == (0, "has_lease")
    found = await call(client, "when_could_i_run", memory=gpu["total"] // 2)
    assert found["reason"] == "needs_memory"
    assert 0 <= found["earliest"] <= found["likely"] <= found["latest"]
    assert "train.ipynb" in found["text"]
    assert "either" in await fails(client, "when_could_i_run")
    assert "train.ipynb" in await call(client, "explain", notebook="train.ipynb")
    await call(client, "set_class", notebook="first", priority="background")
    await fails(client, "set_class", notebook="first", priority="royal")
    status = await call(client, "status")
    assert status["notebooks"][0]["class"] == "background"
    assert "no CUDA context" in await fails(client, "hibernate", notebook="first")
    assert "first" in await call(client, "wake", notebook="first")
    assert "first" in await call(client, "release", notebook="first")
    assert "no group" in await fails(client, "release", notebook="nobody")


@pytest.mark.usefixtures("holder")
async def test_over_stdio(server: tuple[str, str], gpu: dict[str, Any]) -> None:
    async with over_stdio(*server) as client:
        await use_all_tools(client, gpu)


@pytest.mark.usefixtures("holder")
async def test_over_http_each_agent_has_the_permissions_of_its_own_token(
    server: tuple[str, str], gpu: dict[str, Any]
) -> None:
    import httpx2

    url, token = server
    async with serving(url) as address:
        async with over_http(address, token) as client:
            await use_all_tools(client, gpu)
        # Even a program on this machine has no permission without a token of its own.
        async with over_http(address, "wrong") as client:
            assert "refused the token" in await fails(client, "release", notebook="first")
        async with httpx2.AsyncClient() as http:
            refused = await http.post(address, json={})
        assert refused.status_code == 401
        assert "Bearer" in refused.json()["error"]


@pytest.mark.usefixtures("holder")
async def test_it_also_serves_ipv6(server: tuple[str, str]) -> None:
    url, token = server
    async with serving(url, "--host", "::1") as address:
        assert address.startswith("http://[::1]:")
        async with over_http(address, token) as client:
            assert await call(client, "status")


async def test_an_agent_reserves_the_gpu_for_a_notebook(
    server: tuple[str, str], holder: FakeClient, runtime: Any, gpu: dict[str, Any]
) -> None:
    # What is running has nothing to reserve.
    async with over_stdio(*server) as client:
        reserved = await call(client, "reserve", notebook="train.ipynb")
        assert (reserved["notebook"], reserved["state"]) == ("first", None)
        with FakeClient(runtime / "s.sock", "second", gpu["uuid"], name="eval.ipynb") as second:
            second.attach()
            second.grow(gpu["total"] // 2)
            assert await call(client, "reservations") == []
            reserved = await call(client, "reserve", notebook="eval.ipynb")
            assert (reserved["notebook"], reserved["state"]) == ("second", "waiting")
            (listed,) = await call(client, "reservations")
            assert (listed["name"], listed["state"]) == ("eval.ipynb", "waiting")
            done = await call(client, "cancel_reservation", notebook="second")
            assert done == "Cancelled the reservation of second."
            assert await call(client, "reservations") == []
        assert "no group" in await fails(client, "reserve", notebook="nobody")
