# SPDX-License-Identifier: BSD-3-Clause
"""Notebooks with more than one kernel are named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp

from jupyter_gpushare.cli.doctor.notebooks import notebooks
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.second_kernels import (
    SecondKernel,
    SecondKernelNotices,
    file_of,
    second_kernels,
)

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]


@pytest.mark.parametrize(
    "path",
    [
        "deep/a.ipynb",
        "/deep/a.ipynb",
        "./deep/../deep/a.ipynb",
        "RTC:deep/a.ipynb",
        "deep/a-jvsc-0b8e9b0e-5e37-4f3a-9d59-0c40b7a3f5a1.ipynb",
    ],
)
def test_paths_of_one_file(path: str) -> None:
    assert file_of(path) == "deep/a.ipynb"


def document(path: str, kernel_id: str, kind: str = "notebook") -> dict[str, Any]:
    return {"path": path, "name": path, "type": kind, "kernel_id": kernel_id}


@pytest.mark.parametrize(
    ("documents", "found"),
    [
        ([document("a", "1"), document("RTC:a", "2")], [SecondKernel("2", "1", "a")]),
        # A third one is named, too.
        (
            [document("a", "1"), document("/a", "2"), document("RTC:a", "3")],
            [SecondKernel("2", "1", "a"), SecondKernel("3", "1", "a")],
        ),
        # One kernel for two notebooks; two notebooks; a console.
        ([document("a", "1"), document("b", "1"), document("RTC:a", "1")], []),
        ([document("a", "1"), document("b", "2")], []),
        ([document("a", "1"), document("a", "2", "console")], []),
    ],
)
def test_second_kernels(documents: list[dict[str, Any]], found: list[SecondKernel]) -> None:
    assert second_kernels(documents) == found


def test_a_notice_lasts_as_long_as_both_kernels() -> None:
    notices = SecondKernelNotices()
    both = {"1": [document("a", "1")], "2": [document("RTC:a", "2")]}
    (first,) = notices.notices(both)
    # The same time, so that pages are sent it once.
    assert notices.notices(both) == [first]
    assert notices.notices({"2": both["2"]}) == []
    assert notices.notices(both)[0]["time"] > first["time"]


async def test_a_second_kernel_is_a_notice_and_a_finding(
    http_server: Any,
    jp_serverapp: ServerApp,
    jp_http_port: int,
    extension: GpuShareExtension,
    jp_fetch: Fetch,
    get_status: GetStatus,
    eventually: Any,
) -> None:
    async def open_(path: str) -> str:
        model = {
            "path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"},
        }  # fmt: skip
        made = await jp_fetch("api", "sessions", method="POST", body=json.dumps(model))
        return str(json.loads(made.body)["kernel"]["id"])

    jp_serverapp.port = jp_http_port
    jp_serverapp.write_server_info_file()
    try:
        first = await open_("train.ipynb")
        (healthy,) = await asyncio.to_thread(lambda: list(notebooks()))
        assert (healthy.state, healthy.found) == ("ok", "each has one kernel")
        second = await open_("RTC:train.ipynb")

        async def noticed() -> Any:
            return (await get_status())["notices"]

        (notice,) = await eventually(noticed)
        assert (notice["group"], notice["code"]) == (second, "second_kernel")
        assert notice["params"] == {"path": "train.ipynb", "first": first, "second": second}
        (finding,) = await asyncio.to_thread(lambda: list(notebooks()))
    finally:
        jp_serverapp.remove_server_info_file()
        await jp_serverapp.kernel_manager.shutdown_all(now=True)
    assert finding.state == "warn"
    assert f"/train.ipynb has two kernels, {first[:8]} and {second[:8]}" in finding.found
    assert "shut down" in finding.remedy
