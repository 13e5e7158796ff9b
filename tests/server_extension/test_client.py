# SPDX-License-Identifier: BSD-3-Clause
"""The Python client with a real Jupyter server, and in a real kernel."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp

import jupyter_gpushare
from jupyter_gpushare.client import Refused, Unavailable


def check_status(status: dict[str, Any]) -> None:
    (group,) = status["groups"]
    assert (group["name"], group["preferences"]["priority"]) == ("train.ipynb", "background")


@pytest.mark.usefixtures("holder")
async def test_the_blocking_client(server: tuple[str, str], gpu: dict[str, Any]) -> None:
    def use() -> None:
        client = jupyter_gpushare.Client(*server)
        assert client.when_could_i_run("train.ipynb").now
        found = client.when_could_i_run(memory=gpu["total"] // 2)
        assert (found.gpu, found.reason.code) == (gpu["uuid"], "needs_memory")
        assert client.set_class("background", "train.ipynb") == "first"
        check_status(client.status())
        assert client.explain("first")["lines"]
        assert client.release("first") == "first"
        with pytest.raises(Refused, match="no group") as caught:
            client.wake("nobody")
        assert caught.value.status == 404
        with pytest.raises(Refused) as caught:
            jupyter_gpushare.Client(server[0], "wrong").status()
        assert caught.value.status == 403

    await asyncio.to_thread(use)


@pytest.mark.usefixtures("holder")
async def test_the_client_for_asyncio(server: tuple[str, str], gpu: dict[str, Any]) -> None:
    async with jupyter_gpushare.AsyncClient(*server) as client:
        assert await client.set_class("background", "first") == "first"
        check_status(await client.status())
        found = await asyncio.gather(*[client.when_could_i_run(memory=1) for _ in range(20)])
        assert {one.reason.code for one in found} == {"room"}
        assert await client.evict("first") == "first"
        with pytest.raises(Refused):
            await client.hibernate("nobody")


async def test_without_a_scheduler_the_error_says_so(server: tuple[str, str]) -> None:
    async with jupyter_gpushare.AsyncClient(*server) as client:
        with pytest.raises(Unavailable, match="this server does not share a GPU"):
            await client.release("first")


async def test_a_kernel_needs_no_arguments(
    jp_serverapp: ServerApp, jp_http_port: int, server: tuple[str, str], kernel: Any
) -> None:
    # pytest-jupyter does not start the server as people do.
    jp_serverapp.port = jp_http_port
    jp_serverapp.write_server_info_file()
    try:
        message = kernel.execute(
            "import jupyter_gpushare as g\n"
            "client = g.Client()\n"
            f"assert client.url == {server[0]!r}.replace('127.0.0.1', 'localhost'), client.url\n"
            "try:\n"
            "    client.when_could_i_run()\n"
            "except Exception as error:\n"
            f"    assert {kernel.id!r} in str(error), error\n"
            "else:\n"
            "    raise AssertionError\n"
            "assert await g.AsyncClient().status()\n"
        )
        reply = await kernel.reply(message)
        assert reply["status"] == "ok", reply
    finally:
        jp_serverapp.remove_server_info_file()
