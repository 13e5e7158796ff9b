# SPDX-License-Identifier: BSD-3-Clause
"""The focused page reports the user's front notebook to the scheduler."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension import focus as module
from jupyter_gpushare.server_extension.app import GpuShareExtension

Fetch = Callable[..., Awaitable[Any]]
Sent = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def say(jp_fetch: Fetch) -> Callable[..., Awaitable[Any]]:
    """Return the function that says what is in front on a page, and returns what is in front then."""

    async def post(page: str, **front: str | None) -> Any:
        body = json.dumps({"page": page, **front})
        response = await jp_fetch("gpushare/api/focus", method="POST", body=body)
        return json.loads(response.body)["group"]

    return post


@pytest.fixture
def told(sent: Sent, eventually: Any) -> Callable[[str], Awaitable[None]]:
    """Return the function that waits until a scheduler was told of one group last, or of none."""

    async def wait(group: str) -> None:
        user = pwd.getpwuid(os.getuid()).pw_name

        async def found() -> bool:
            last = [params for op, params in sent if op == "focus"][-1:]
            return last == [{"user": user, "group": group}]

        await eventually(found)

    return wait


async def test_the_page_that_reported_last_has_the_focus(
    scheduler: AsyncControlClient,
    kernel: Any,
    say: Any,
    told: Any,
    replace: Callable[[], Awaitable[None]],
    sent: Sent,
) -> None:
    assert await say("a", kernel_id=kernel.id) == kernel.id
    await told(kernel.id)
    # What has no kernel of ours is none.
    assert await say("b", kernel_id="elsewhere") == kernel.id
    assert await say("a", kernel_id="elsewhere") is None
    await told("")
    assert await say("a", kernel_id=kernel.id) == kernel.id
    assert await say("b", kernel_id=kernel.id) == kernel.id
    # The page before says that it has lost the focus when another has it already.
    assert await say("a", kernel_id=None) == kernel.id
    await told(kernel.id)
    sent.clear()
    await replace()
    await told(kernel.id)
    assert await say("b", kernel_id=None) is None
    await told("")


async def test_a_return_to_a_document_is_a_hint(
    scheduler: AsyncControlClient, kernel: Any, say: Any, eventually: Any, sent: Sent
) -> None:
    assert await say("a", kernel_id=kernel.id, hint="focus") == kernel.id
    assert await say("a", kernel_id=kernel.id, hint="typing") == kernel.id
    # Reports without a hint, and about what is not ours.
    await say("a", kernel_id=kernel.id)
    await say("a", kernel_id="elsewhere", hint="typing")
    await say("a", kernel_id=None, hint="focus")

    mine = pwd.getpwuid(os.getuid()).pw_name
    expected = [
        ("focus", {"user": mine, "group": kernel.id}),
        ("hint", {"group": kernel.id, "kind": "focus"}),
        ("hint", {"group": kernel.id, "kind": "typing"}),
        ("focus", {"user": mine, "group": ""}),
    ]

    def told() -> Sent:
        return [one for one in sent if one[0] in ("focus", "hint")]

    async def all_told() -> bool:
        return len(told()) == len(expected)

    await eventually(all_told)
    assert told() == expected


class TestPrefetchOff:
    """An administrator has switched it off for all users of the server."""

    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.GpuShare = Config({"prefetch": False})
        return jp_server_config

    async def test_there_are_no_hints(
        self,
        scheduler: AsyncControlClient,
        kernel: Any,
        say: Any,
        told: Any,
        jp_fetch: Fetch,
        get_status: Callable[[], Awaitable[dict[str, Any]]],
        sent: Sent,
    ) -> None:
        assert (await get_status())["settings"]["prefetch"] is False
        assert await say("a", kernel_id=kernel.id, hint="typing") == kernel.id
        refused = await jp_fetch(
            "gpushare/api/ready",
            method="POST",
            body=json.dumps({"group": kernel.id}),
            raise_error=False,
        )
        assert refused.code == 403
        assert "c.GpuShare.prefetch = False" in json.loads(refused.body)["message"]
        await say("a", kernel_id=None)
        await told("")
        assert "hint" not in [op for op, _ in sent]


async def test_the_focus_ends_with_its_page(
    scheduler: AsyncControlClient,
    kernel: Any,
    say: Any,
    told: Any,
    jp_fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await say("a", kernel_id=kernel.id)
    await jp_fetch("gpushare/api/watchers/b", method="DELETE")
    await told(kernel.id)
    await jp_fetch("gpushare/api/watchers/a", method="DELETE")
    await told("")
    # A page that leaves without a message times out.
    await say("a", kernel_id=kernel.id)
    await told(kernel.id)
    monkeypatch.setattr(module, "REGISTRATION", 0.01)
    await jp_fetch("gpushare/api/status", params={"watch": "a"})
    await told("")


async def test_a_document_is_named_by_its_path(
    jp_serverapp: ServerApp,
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    say: Any,
    told: Any,
    jp_fetch: Fetch,
    jp_create_notebook: Callable[[str], Any],
) -> None:
    jp_create_notebook("deep/a.ipynb")
    assert await say("a", path="deep/a.ipynb") is None
    model = {
        **{"path": "deep/a.ipynb", "name": "a.ipynb", "type": "notebook"},
        "kernel": {"name": "python3"},
    }
    made = await jp_fetch("api", "sessions", method="POST", body=json.dumps(model))
    session = json.loads(made.body)
    assert await say("a", path="deep/a.ipynb") == session["kernel"]["id"]
    await told(session["kernel"]["id"])
    assert await say("a", path=None) is None
    await jp_fetch("api", "sessions", session["id"], method="DELETE")


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "{}",
        '{"kernel_id": null}',
        '{"page": "a"}',
        '{"page": "a b", "kernel_id": null}',
        '{"page": "a", "kernel_id": 7}',
        '{"page": "a", "kernel_id": null, "path": null}',
        '{"page": "a", "group": "x"}',
        '{"page": "a", "kernel_id": null, "hint": "ready"}',
        '{"page": "a", "kernel_id": null, "hint": 7}',
        '{"page": "a", "hint": "focus"}',
    ],
)
async def test_nonsense_is_refused(jp_fetch: Fetch, body: str) -> None:
    response = await jp_fetch("gpushare/api/focus", method="POST", body=body, raise_error=False)
    assert response.code == 400
    assert json.loads(response.body)["message"]


async def test_reporting_the_focus_does_not_count_as_activity(
    jp_serverapp: ServerApp, scheduler: AsyncControlClient, kernel: Any, say: Any
) -> None:
    before = jp_serverapp.web_app.last_activity()
    await say("a", kernel_id=kernel.id)
    assert jp_serverapp.web_app.last_activity() == before
