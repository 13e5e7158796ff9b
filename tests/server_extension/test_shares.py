# SPDX-License-Identifier: BSD-3-Clause
"""What users, teams and kernels are entitled to reaches each scheduler, and can be changed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from traitlets.config import Config

from jupyter_gpushare.scheduler.node.entitlements import NONE, entitlement, parsed
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.shares import merged

Fetch = Callable[..., Awaitable[Any]]
Sent = list[tuple[str, dict[str, Any]]]

ADA = {"request": 0.5}
COURSE = {"members": ["ben", "cy"], "limit": 0.5, "memory": "40GiB"}


async def ask(fetch: Fetch, method: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    content = None if method == "GET" else json.dumps(body)
    response = await fetch("gpushare/api/shares", method=method, body=content, raise_error=False)
    return response.code, json.loads(response.body)


def of_another(extension: GpuShareExtension, op: str, **params: Any) -> dict[str, Any]:
    """Ask the present scheduler, as another program does."""
    assert extension.host is not None
    with ControlClient(extension.host.path) as client:
        return client.request(op, **params)


def entitled(sent: Sent) -> dict[str, dict[str, Any]]:
    """Return what was stated, by whose it is; and forget it."""
    found = {}
    for op, params in sent:
        if op == "entitle":
            found[params["whose"]] = {k: v for k, v in params.items() if k != "whose"}
    sent.clear()
    return found


class TestConfigured:
    @pytest.fixture
    def jp_server_config(self, sent: Sent, jp_server_config: Config) -> Config:
        jp_server_config.GpuShare = Config({"shares": {"user:ada": ADA, "team:course": COURSE}})
        return jp_server_config

    async def test_each_scheduler_is_sent_the_entitlements(
        self,
        scheduler: AsyncControlClient,
        replace: Callable[[], Awaitable[None]],
        jp_fetch: Fetch,
        sent: Sent,
        eventually: Any,
    ) -> None:
        expected = {
            "user:ada": {**NONE, "request": 0.5},
            "team:course": {
                **{**NONE, "limit": 0.5, "memory": 40 << 30},
                "members": ["ben", "cy"],
            },
        }

        async def told() -> bool:
            return {params.get("whose") for op, params in sent if op == "entitle"} == {*expected}

        await eventually(told)
        assert entitled(sent) == expected
        await replace()
        await eventually(told)
        assert entitled(sent) == expected
        code, answer = await ask(jp_fetch, "GET")
        assert code == 200
        assert answer["shares"] == {"user:ada": ADA, "team:course": {**COURSE, "memory": 40 << 30}}


async def test_entitlements_change_at_run_time(
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    replace: Callable[[], Awaitable[None]],
    jp_fetch: Fetch,
    sent: Sent,
    eventually: Any,
) -> None:
    assert await ask(jp_fetch, "GET") == (200, {"shares": {}, "used": {}})
    code, answer = await ask(jp_fetch, "PUT", {"user:ada": ADA, "team:course": COURSE})
    assert code == 200
    course = {**COURSE, "memory": 40 << 30}
    assert answer["shares"] == {"user:ada": ADA, "team:course": course}
    (gpu,) = answer["used"]["user:ada"].items()
    assert gpu[1] == 0
    assert set(entitled(sent)) == {"user:ada", "team:course"}
    # A PATCH keeps what it leaves out.
    patch = {"team:course": {"limit": 0.25, "memory": None}, "user:ada": None}
    code, answer = await ask(jp_fetch, "PATCH", patch)
    assert answer["shares"] == {"team:course": {"members": ["ben", "cy"], "limit": 0.25}}
    assert entitled(sent) == {
        "user:ada": entitlement(None),
        "team:course": entitlement({"members": ["ben", "cy"], "limit": 0.25}),
    }
    assert await ask(jp_fetch, "GET") == (200, answer)
    # The next scheduler is also sent what another user has stated.
    of_another(extension, "entitle", whose="user:dee", limit=0.5)

    async def heard() -> bool:
        return "user:dee" in extension.shares

    await eventually(heard)
    await replace()

    async def told() -> bool:
        return {params.get("whose") for op, params in sent if op == "entitle"} == {
            *answer["shares"]
        }

    answer["shares"]["user:dee"] = {"limit": 0.5}
    await eventually(told)
    assert (await ask(jp_fetch, "GET"))[1]["shares"] == answer["shares"]
    sent.clear()
    code, answer = await ask(jp_fetch, "PATCH", {"user:dee": {"weight": 2}})
    assert answer["shares"]["user:dee"] == {"limit": 0.5, "weight": 2}
    assert entitled(sent).keys() == {"user:dee"}
    code, answer = await ask(jp_fetch, "PUT", {"user:dee": {"limit": 0.5, "weight": 2}})
    assert answer["shares"] == {"user:dee": {"limit": 0.5, "weight": 2}}
    assert entitled(sent) == {"team:course": entitlement(None)}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "an object such as"),
        ({"ada": ADA}, "'user:NAME' or 'team:NAME'"),
        ({"user:": ADA}, "'user:NAME' or 'team:NAME'"),
        ({"user:ada": 0.5}, "an object such as"),
        ({"user:ada": {"limit": 2}}, "limit"),
        ({"user:ada": {"limit": True}}, "limit"),
        ({"user:ada": {"request": "half"}}, "request"),
        ({"user:ada": {"weight": 0}}, "weight"),
        ({"user:ada": {"memory": "much"}}, "20GiB"),
        (
            {"user:ada": {"priority": "background"}},
            "use request, limit, weight, memory, gpus, host",
        ),
        ({"user:ada": {"members": ["ben"]}}, "members"),
        ({"user:ada": {"host": "much"}}, "20GiB"),
        ({"user:ada": {"gpus": 0.5}}, "gpus must be a whole number"),
        ({"team:course": {"limit": 0.5}}, "must list its members"),
        ({"team:course": {"members": "ben"}}, "names of users"),
        ({"team:course": {"members": [""]}}, "names of users"),
    ],
)
async def test_impossible_entitlements_are_refused_with_a_reason(
    scheduler: AsyncControlClient, jp_fetch: Fetch, sent: Sent, body: Any, words: str
) -> None:
    for method in ("PUT", "PATCH"):
        code, answer = await ask(jp_fetch, method, body)
        assert code == 400
        assert words in answer["message"]
        assert "\n" not in answer["message"]
    assert await ask(jp_fetch, "GET") == (200, {"shares": {}, "used": {}})
    assert entitled(sent) == {}


def test_quotas_are_read_as_written_by_users() -> None:
    stated = {"user:*": {"gpus": 1, "host": "64GiB"}, "team:lab": {"gpus": 4}}
    assert parsed(stated, members_needed=False) == {
        "user:*": {"gpus": 1, "host": 64 << 30},
        "team:lab": {"gpus": 4},
    }


def test_an_empty_change_keeps_the_entitlements() -> None:
    shares = parsed({"user:ada": ADA, "team:course": COURSE})
    assert merged(shares, {}) == shares
    assert merged(shares, {"user:ada": {}}) == shares
    assert merged({}, {"user:ada": {"limit": None}}) == {"user:ada": {}}


async def test_a_kernel_older_than_the_scheduler_states_its_entitlement(
    extension: GpuShareExtension,
    kernel: Any,
    scheduler: AsyncControlClient,
    replace: Callable[[], Awaitable[None]],
    eventually: Any,
) -> None:
    provisioner = kernel.manager.get_kernel(kernel.id).provisioner
    # As where no scheduler answered when it started.
    provisioner._untold = {"request": 0.25}
    await replace()

    async def stated() -> bool:
        later = {"group": kernel.id, "later": True, "keep": False}
        preferences = of_another(extension, "adjust", **later)["preferences"]
        return bool(preferences["request"] == 0.25)

    await eventually(stated)
    assert provisioner._untold == {}
