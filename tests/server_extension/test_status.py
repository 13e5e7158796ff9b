# SPDX-License-Identifier: BSD-3-Clause
"""GET gpushare/api/status, and the requests that change something."""

from __future__ import annotations

import json
import os
import pwd
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp

from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu import drivers
from jupyter_gpushare.scheduler.protocol import supervisor as host
from jupyter_gpushare.scheduler.protocol.async_client import AsyncControlClient
from jupyter_gpushare.server_extension import app, dependencies
from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.provisioning import PROVISIONER, default_provisioner
from tests.support.client import FakeClient
from tests.support.stopping import go_on, stop

Fetch = Callable[..., Awaitable[Any]]
GetStatus = Callable[[], Awaitable[dict[str, Any]]]


async def post(fetch: Fetch, op: str, body: str) -> tuple[int, dict[str, Any]]:
    response = await fetch("gpushare", "api", op, method="POST", body=body, raise_error=False)
    return response.code, json.loads(response.body)


@pytest.fixture
def waiter(runtime: Path, gpu: dict[str, Any], holder: FakeClient) -> Iterator[FakeClient]:
    """Return a client that waits for as much."""
    with FakeClient(runtime / "s.sock", "second", gpu["uuid"], name="plots.ipynb") as client:
        client.attach()
        client.grow(gpu["total"] * 3 // 4)
        client.request()
        yield client


class TestNoDriver:
    @pytest.fixture(autouse=True)
    def no_driver(self, environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GPUSHARE_SIM")
        monkeypatch.setattr(drivers, "_search", lambda *arguments: None)

    async def test_the_server_is_healthy_and_reports_why(
        self, extension: GpuShareExtension, get_status: GetStatus, jp_fetch: Fetch, runtime: Path
    ) -> None:
        status = await get_status()
        assert status["availability"] == {"code": "no_driver", "params": {}}
        assert status["gpus"] == status["groups"] == []
        assert extension.host is None
        assert list(runtime.iterdir()) == []
        code, answer = await post(jp_fetch, "release", '{"group": "x"}')
        assert code == 503
        assert "no_driver" in answer["message"]

    async def test_kernels_start(self, kernel: Any) -> None:
        assert (await kernel.reply(kernel.execute("1 + 1")))["status"] == "ok"


class TestNotStarted:
    """Servers that load the extension, and then do not start it as they should."""

    async def test_a_server_that_is_too_old_is_named(
        self, jp_configurable_serverapp: Any, environment: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(ExtensionApp, "_start_jupyter_server_extension")
        monkeypatch.setattr(dependencies.metadata, "version", lambda name: "1.9")
        app = jp_configurable_serverapp()
        (extension,) = app.extension_manager.extension_apps["jupyter_gpushare"]
        code, params = extension._availability()
        assert code == "not_started"
        assert "jupyter-gpushare requires jupyter-server>=2." in params["error"]
        assert "but 1.9 is installed" in params["error"]
        assert default_provisioner(app) != PROVISIONER

    async def test_a_failed_start_is_reported(
        self, jp_serverapp: ServerApp, get_status: GetStatus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*arguments: Any, **options: Any) -> None:
            raise RuntimeError("a fault of ours")

        (extension,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpushare"]
        monkeypatch.setattr(app, "SchedulerHost", fail)
        await extension._start_jupyter_server_extension(jp_serverapp)
        availability = (await get_status())["availability"]
        assert availability["code"] == "not_started"
        assert "a fault of ours" in availability["params"]["error"]

    async def test_a_server_that_never_starts_a_scheduler_reports_it(
        self, jp_serverapp: ServerApp, get_status: GetStatus
    ) -> None:
        assert (await get_status())["availability"]["code"] == "starting"
        (extension,) = jp_serverapp.extension_manager.extension_apps["jupyter_gpushare"]
        extension._start_by -= app.START_TIMEOUT
        availability = (await get_status())["availability"]
        assert availability["code"] == "not_started"
        assert "never started it" in availability["params"]["error"]


class TestAnotherScheduler:
    @pytest.fixture(autouse=True)
    def elsewhere(self, environment: None, runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (runtime / "s.sock").write_text("not a socket")

    async def test_a_path_that_is_not_a_socket_is_reported(
        self, extension: GpuShareExtension, get_status: GetStatus, eventually: Any
    ) -> None:
        async def reason() -> Any:
            availability = (await get_status())["availability"]
            return availability["code"] == "scheduler_unreachable" and availability["params"]

        params = await eventually(reason)
        assert params["socket"] in params["error"]
        assert "not a socket" in params["error"]


async def test_an_empty_status_has_no_groups(
    scheduler: AsyncControlClient, get_status: GetStatus
) -> None:
    status = await get_status()
    assert status["availability"] == {"code": "ok", "params": {}}
    assert status["groups"] == []
    assert status["gpus"][0]["total"] > 0
    assert status["driver"]["simulated"]


async def test_the_status_shows_running_and_waiting_groups_with_reasons(
    holder: FakeClient, waiter: FakeClient, get_status: GetStatus, eventually: Any
) -> None:
    async def waiting() -> Any:
        groups = {group["id"]: group for group in (await get_status())["groups"]}
        return groups.get("second", {}).get("state") == "waiting" and groups

    groups = await eventually(waiting)
    assert groups["first"]["state"] == "running"
    assert groups["second"]["position"] == 1
    assert groups["second"]["reason"]["code"] == "needs_memory"
    assert groups["second"]["reason"]["params"]["holder_name"] == "train.ipynb"
    assert groups["first"]["sessions"] == []


async def test_the_order_of_the_queue_is_explained(
    waiter: FakeClient, get_status: GetStatus, jp_fetch: Fetch, eventually: Any
) -> None:
    async def explained(**params: str) -> Any:
        response = await jp_fetch("gpushare/api/explain", params=params)
        return json.loads(response.body)["explanation"]["groups"]

    async def waiting() -> Any:
        return [group["group"] for group in await explained()] == ["second"]

    await eventually(waiting)
    (found,) = await explained(group="second")
    assert found["reason"]["code"] == "needs_memory"
    response = await jp_fetch("gpushare/api/explain", params={"group": "x"}, raise_error=False)
    assert response.code == 404
    assert "x" in json.loads(response.body)["message"]


async def test_a_release_gives_the_gpu_to_the_waiting_group(
    holder: FakeClient, waiter: FakeClient, jp_fetch: Fetch
) -> None:
    assert await post(jp_fetch, "release", '{"group": "first"}') == (200, {"group": "first"})
    holder.expect(ev.Revoke)
    holder.release()
    holder.evict()
    waiter.take()


async def test_evict_revokes_the_lease_and_evicts_the_memory(
    holder: FakeClient, jp_fetch: Fetch
) -> None:
    # By its name, as people write it.
    assert (await post(jp_fetch, "evict", '{"group": "train.ipynb"}'))[0] == 200
    holder.expect(ev.Revoke)
    holder.release()
    held = holder.usage.resident if holder.usage else 0
    assert holder.evict().bytes == held > 0


async def test_ready_requests_a_prefetch(
    holder: FakeClient, jp_fetch: Fetch, sent: list[tuple[str, dict[str, Any]]]
) -> None:
    code, answer = await post(jp_fetch, "ready", '{"group": "first"}')
    assert (code, answer["group"]) == (200, "first")
    assert ("hint", {"group": "first", "kind": "ready"}) in sent


async def test_preferences_are_accepted(
    holder: FakeClient, jp_fetch: Fetch, get_status: GetStatus
) -> None:
    preferences = {
        "priority": "background",
        "keep": True,
        "frozen": False,
        "memory": 1 << 40,
        "request": 0.25,
        "limit": 0.5,
        "weight": 2.0,
    }
    code, answer = await post(jp_fetch, "adjust", json.dumps({"group": "first", **preferences}))
    assert code == 200
    assert answer == {
        "group": "first",
        "preferences": {**preferences, "on_hold": False, "exclusive": False},
    }
    (group,) = (await get_status())["groups"]
    assert group["preferences"] == answer["preferences"]
    assert group["class"] == "background"
    assert group["user"] == pwd.getpwuid(os.getuid()).pw_name
    # What is left out stays.
    code, answer = await post(jp_fetch, "adjust", '{"group": "train.ipynb", "keep": false}')
    assert answer["preferences"] == {
        **preferences,
        "keep": False,
        "on_hold": False,
        "exclusive": False,
    }


async def test_settings_are_accepted(
    scheduler: AsyncControlClient, jp_fetch: Fetch, get_status: GetStatus
) -> None:
    code, answer = await post(jp_fetch, "settings", '{"quantum": 7, "anti_thrash": "on"}')
    assert code == 200
    assert answer["settings"] == (await get_status())["settings"]
    assert (answer["settings"]["quantum"], answer["settings"]["anti_thrash"]) == (7, "on")
    code, answer = await post(jp_fetch, "settings", '{"quantum": "auto"}')
    assert (answer["settings"]["quantum"], answer["settings"]["anti_thrash"]) == ("auto", "on")
    code, answer = await post(jp_fetch, "settings", '{"policy": "fcfs"}')
    assert (answer["settings"]["policy"], answer["settings"]["anti_thrash"]) == ("fcfs", "on")
    assert answer["settings"]["hibernate_after"] == 600
    for seconds, said in ((60, 60), (0, None)):
        code, answer = await post(jp_fetch, "settings", json.dumps({"hibernate_after": seconds}))
        assert (code, answer["settings"]["hibernate_after"]) == (200, said)


@pytest.mark.parametrize(
    ("op", "body", "words"),
    [
        ("adjust", "[]", "group"),
        ("adjust", '{"group": "first"}', "priority, keep, frozen, memory"),
        ("adjust", '{"keep": true}', "group"),
        ("adjust", '{"group": "first", "keep": 1}', "'keep' must be true or false"),
        ("adjust", '{"group": "first", "keep": null}', "null"),
        ("adjust", '{"group": "first", "priority": "high"}', "priority"),
        ("adjust", '{"group": "first", "memory": -1}', "memory"),
        ("adjust", '{"group": "first", "memory": 1.5}', "memory"),
        ("adjust", '{"group": "first", "limit": 1.5}', "limit"),
        ("adjust", '{"group": "first", "request": -0.1}', "request"),
        ("adjust", '{"group": "first", "weight": 0}', "weight"),
        ("adjust", '{"group": "first", "limit": NaN}', "JSON"),
        # A page asks for no cell's lease, nor for groups to come.
        ("adjust", '{"group": "first", "exclusive": true}', "exclusive"),
        ("adjust", '{"group": "nobody", "keep": true, "later": true}', "later"),
        ("settings", "{}", "quantum, anti_thrash, policy"),
        ("settings", "[1]", "quantum, anti_thrash, policy"),
        ("settings", '{"quantum": 0}', "quantum"),
        ("settings", '{"quantum": true}', "quantum"),
        ("settings", '{"quantum": NaN}', "JSON"),
        ("settings", '{"quantum": "soon"}', "quantum"),
        ("settings", '{"anti_thrash": "maybe"}', "anti_thrash"),
        ("settings", '{"policy": "chaos"}', "policy"),
        ("settings", '{"hibernate_after": -1}', "hibernate_after"),
        ("settings", '{"hibernate_after": "never"}', "hibernate_after"),
        ("settings", '{"reserve": 1}', "reserve"),
        ("release", '{"group": "first", "evict": true}', "evict"),
        ("ready", '{"group": "first", "kind": "focus"}', "kind"),
    ],
)
async def test_an_invalid_request_is_answered_with_a_sentence(
    holder: FakeClient, jp_fetch: Fetch, op: str, body: str, words: str
) -> None:
    code, answer = await post(jp_fetch, op, body)
    assert code == 400
    assert words in answer["message"]


@pytest.mark.parametrize("op", ["release", "evict", "hibernate", "wake", "ready"])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{}", "group"),
        ("[]", "group"),
        ('{"group": 7}', "group"),
        ('{"group": ""}', "group"),
        ("{", "JSON"),
    ],
)
async def test_a_request_without_a_valid_group_is_answered_with_a_sentence(
    scheduler: AsyncControlClient, jp_fetch: Fetch, op: str, body: str, words: str
) -> None:
    code, answer = await post(jp_fetch, op, body)
    assert code == 400
    assert words in answer["message"]


@pytest.mark.parametrize(
    "op", ["release", "evict", "hibernate", "wake", "ready", "adjust", "explain"]
)
@pytest.mark.parametrize("group", ["nobody", "100%"])
async def test_an_unknown_group_is_not_found(
    scheduler: AsyncControlClient, jp_fetch: Fetch, op: str, group: str
) -> None:
    if op == "explain":
        found = await jp_fetch("gpushare", "api", op, params={"group": group}, raise_error=False)
        code, answer = found.code, json.loads(found.body)
    else:
        body = {"group": group, **({"keep": True} if op == "adjust" else {})}
        code, answer = await post(jp_fetch, op, json.dumps(body))
    assert code == 404
    assert group in answer["message"]


async def test_a_scheduler_that_dies_is_replaced(
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    get_status: GetStatus,
    eventually: Any,
) -> None:
    before = (await get_status())["scheduler"]["pid"]
    os.kill(before, signal.SIGKILL)

    async def replaced() -> Any:
        status = await get_status()
        return status.get("scheduler", {}).get("pid", before) != before and status

    assert (await eventually(replaced))["availability"]["code"] == "ok"


async def test_a_scheduler_that_does_not_answer_is_not_asked_again_until_it_does(
    extension: GpuShareExtension,
    scheduler: AsyncControlClient,
    get_status: GetStatus,
    eventually: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = (await scheduler.request("status"))["status"]["scheduler"]["pid"]
    asked = []
    request = AsyncControlClient.request

    async def noted(client: AsyncControlClient, op: str, **params: Any) -> dict[str, Any]:
        asked.append(op)
        return await request(client, op, **params)

    monkeypatch.setattr(AsyncControlClient, "request", noted)
    # Its host would replace it.
    monkeypatch.setattr(host, "MOST_MISSING", sys.maxsize)
    stop(pid)
    try:
        found = [(await get_status())["availability"] for _ in range(3)]
        assert [one["code"] for one in found] == ["scheduler_unreachable"] * 3
        assert "is not responding" in found[2]["params"]["error"]
        assert [op for op in asked if op != "whoami"] == ["status"]
    finally:
        go_on(pid)

    async def answers() -> bool:
        status = await get_status()
        return bool(status["availability"]["code"] == "ok" and status["gpus"])

    await eventually(answers)


async def test_a_notebook_is_named_by_its_session(
    jp_serverapp: ServerApp,
    runtime: Path,
    gpu: dict[str, Any],
    get_status: GetStatus,
    jp_fetch: Fetch,
    eventually: Any,
    jp_create_notebook: Callable[[str], Any],
) -> None:
    jp_create_notebook("deep/before.ipynb")
    model = {
        "path": "deep/before.ipynb",
        "name": "before.ipynb",
        "type": "notebook",
        "kernel": {"name": "python3"},
    }
    made = await jp_fetch("api", "sessions", method="POST", body=json.dumps(model))
    session = json.loads(made.body)
    kernel_id = session["kernel"]["id"]

    async def group() -> dict[str, Any]:
        groups = (await get_status())["groups"]
        return next(group for group in groups if group["id"] == kernel_id)

    with FakeClient(runtime / "s.sock", kernel_id, gpu["uuid"], name="deep/before.ipynb") as client:
        client.attach()
        assert (await group())["sessions"] == [
            {
                "path": "deep/before.ipynb",
                "name": "before.ipynb",
                "type": "notebook",
                "kernel_id": kernel_id,
            }
        ]
        # JupyterLab renames the file, then tells the session.
        await jp_fetch(
            *("api", "contents", "deep", "before.ipynb"),
            method="PATCH",
            body=json.dumps({"path": "deep/after.ipynb"}),
        )
        await jp_fetch(
            *("api", "sessions", session["id"]),
            method="PATCH",
            body=json.dumps({"path": "deep/after.ipynb", "name": "after.ipynb"}),
        )

        async def renamed() -> bool:
            found = await group()
            path = found["sessions"][0]["path"]
            return bool(found["name"] == path == "deep/after.ipynb")

        await eventually(renamed)
    await jp_fetch("api", "sessions", session["id"], method="DELETE")
