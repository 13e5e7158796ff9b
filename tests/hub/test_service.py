# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service with real node schedulers: visibility, permissions and unreachable nodes."""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpushare.cli.main import main
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from tests.hub.service import PREFIX, UNIT, HubService, machine, notebook
from tests.support.client import PATIENCE, FakeClient
from tests.support.hub.hub import until
from tests.support.hub.hub_api import ACCESS, ADMIN, READ, HubApi
from tests.support.hub.node import Node

OTHER = "another user"


@pytest.fixture
def kernels(node: Node, ada: str, ben: str) -> Iterator[tuple[FakeClient, FakeClient]]:
    """Ada's notebook is running, and Ben's notebook is waiting for it."""
    with (
        notebook(node, ada, "ada-kernel", "deep/train.ipynb", 6 * UNIT) as first,
        notebook(node, ben, "ben-kernel", "secret-plan.ipynb", 5 * UNIT) as second,
    ):
        first.run()
        second.request()
        until(lambda: [g for g in node.status()["groups"] if g["state"] == "waiting"])
        yield first, second


def seen(service: HubService, token: str, name: str = "gpu1") -> dict[str, Any]:
    """Return a node as the owner of the token sees it."""
    answer = service.ask("api/state", token)
    assert answer.status == 200, answer.text
    (found,) = (node for node in answer.json["nodes"] if node["name"] == name)
    return found  # type: ignore[no-any-return]


def seen_with(service: HubService, token: str, count: int, name: str = "gpu1") -> dict[str, Any]:
    """Return a node once it has this number of notebooks: reports are up to half a second old."""

    def probe() -> Any:
        found = seen(service, token, name)
        return len(found["notebooks"]) == count and found

    return until(probe)  # type: ignore[no-any-return]


# --- Visibility --------------------------------------------------------------------------------------


def test_requests_without_a_token_are_redirected_or_refused(
    service: HubService, hub_api: HubApi
) -> None:
    page = service.ask("")
    assert page.status == 302
    assert page.headers["Location"].startswith(f"{hub_api.host}/hub/api/oauth2/authorize?")
    for path in ("api/state", "api/stream", "api/node", "api/report", "metrics"):
        answer = service.ask(path)
        assert answer.status == 403, path
        assert "send a Hub token" in answer.json["message"]
    assert service.ask("api/nodes/gpu1/release", body={"group": "x"}).status == 403
    assert service.ask("api/state", "no-such-token").status == 403


def test_viewers_without_access_see_nothing(service: HubService, hub_api: HubApi) -> None:
    for name, kind in (("eve", "user"), ("culler", "service")):
        stranger = hub_api.token(name, "self", "access:services!service=other", kind=kind)
        for path in ("api/state", "api/stream"):
            answer = service.ask(path, stranger)
            assert answer.status == 403
            assert "ask your JupyterHub administrator" in answer.json["message"]
        page = service.ask("", stranger)
        assert page.status == 403
        assert "ask your JupyterHub administrator" in page.text
    # Access alone shows a service nothing, because it has no notebooks.
    assert service.ask("api/state", hub_api.token("culler", ACCESS, kind="service")).status == 403


def test_hub_administrators_are_not_gpu_administrators(
    service: HubService, hub_api: HubApi
) -> None:
    root = hub_api.token("root", "admin:users", "admin:servers", "access:services")
    hub_api.models[root]["admin"] = True
    answer = service.ask("api/state", root).json
    assert answer["viewer"] == {"name": "root", "sees_all": False, "may_act": False}
    assert service.ask("api/nodes/gpu1/release", root, {"group": "x"}).status == 403


def test_readers_see_all_notebooks_and_users_only_their_own(
    service: HubService,
    kernels: tuple[FakeClient, FakeClient],
    admin: str,
    reader: str,
    ada: str,
    ben: str,
) -> None:
    for token in (admin, reader):
        found = seen_with(service, token, 2)
        assert [
            (one["name"], one["user"], one["state"], one["position"]) for one in found["notebooks"]
        ] == [
            ("deep/train.ipynb", "ada", "running", None),
            ("secret-plan.ipynb", "ben", "waiting", 1),
        ]
        assert "deep/train.ipynb's turn ends" in found["notebooks"][1]["why"]
        assert {user["name"] for user in found["users"]} == {"ada", "ben"}
        assert {event["name"] for event in found["events"]} >= {"deep/train.ipynb"}
    hers = seen(service, ada)
    assert [(one["name"], one["user"], one["mine"]) for one in hers["notebooks"]] == [
        ("deep/train.ipynb", "ada", True),
        (OTHER, OTHER, False),
    ]
    assert hers["notebooks"][1]["memory"] == found["notebooks"][1]["memory"]
    assert {event["name"] for event in hers["events"]} <= {"deep/train.ipynb", ""}
    his = seen(service, ben)
    assert f"{OTHER}'s turn ends" in his["notebooks"][1]["why"]
    # Names of other users are in no part of the answers. A GPU's UUID may contain the letters of a name.
    text = service.ask("api/state", ada).text + "".join(stream(service, ada, 1))
    assert not re.findall(r"\b(?:ben|secret-plan|hedy)\b", text)
    text = service.ask("api/state", ben).text
    assert not re.findall(r"\b(?:ada|train\.ipynb)\b", text)


def test_only_readers_get_the_report_of_a_node(service: HubService, reader: str, ada: str) -> None:
    assert service.ask("api/node", ada).status == 403
    report = service.ask("api/node", reader).json
    assert report["name"] == "gpu1"
    assert report["status"]["gpus"][0]["total"] == 8 * UNIT


def stream(service: HubService, token: str, count: int) -> list[str]:
    """Return the first messages about nodes from the stream."""
    request = urllib.request.Request(
        f"{service.url}api/stream", headers={"Authorization": f"token {token}"}
    )
    found: list[str] = []
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        kind = ""
        while len(found) < count:
            name, _, data = answer.readline().decode().rstrip("\n").partition(": ")
            if name == "event":
                kind = data
            elif name == "data" and kind == "node":
                found.append(data)
    return found


def test_the_stream_sends_changes(service: HubService, node: Node, ada: str) -> None:
    request = urllib.request.Request(
        f"{service.url}api/stream", headers={"Authorization": f"token {ada}"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:

        def notebooks() -> list[str]:
            """Return the names of the notebooks in the next message about the node."""
            while True:
                name, _, data = answer.readline().decode().rstrip("\n").partition(": ")
                if name == "data" and data.startswith('{"name":"gpu1"'):
                    return [one["name"] for one in json.loads(data)["notebooks"]]

        until(lambda: not notebooks())
        with notebook(node, ada, "ada-new", "new.ipynb", UNIT):
            until(lambda: "new.ipynb" in notebooks())
        until(lambda: not notebooks())


def test_a_stream_ends_when_its_viewer_loses_access(
    folder: Path, node: Node, hub_api: HubApi, token: str
) -> None:
    # The service checks permissions every 15 s; in this test at once.
    hasty = "from jupyter_gpushare.hub import handlers; handlers.BEAT = 0.1"
    config = folder / "hasty.py"
    config.write_text(f"{hasty}\nc.HubOAuth.cache_max_age = 1\nc.GpuShareHub.interval = 0.2\n")
    arguments = ("--socket", str(node.socket), "--config", str(config))
    leaver = hub_api.token("leaver", READ)
    with (
        HubService(hub_api.environ(token), folder / "hasty.log", *arguments) as service,
        urllib.request.urlopen(
            urllib.request.Request(
                f"{service.url}api/stream", headers={"Authorization": f"token {leaver}"}
            ),
            timeout=PATIENCE,
        ) as answer,
    ):
        assert answer.readline() == b"event: viewer\n"
        hub_api.models[leaver]["scopes"] = []
        until(lambda: answer.readline() == b"event: over\n")


# --- Actions -------------------------------------------------------------------------------------------


def test_actions_need_the_scope(
    service: HubService,
    kernels: tuple[FakeClient, FakeClient],
    reader: str,
    ada: str,
) -> None:
    for token in (reader, ada):
        for op, body in (
            ("release", {"group": "ada-kernel"}),
            ("evict", {"group": "ada-kernel"}),
            ("hold", {"group": "ada-kernel", "on": True}),
            ("drain", {"gpu": "GPU-0", "on": True}),
            ("maintenance", {"text": "no"}),
        ):
            answer = service.ask(f"api/nodes/gpu1/{op}", token, body)
            assert answer.status == 403
            assert "custom:gpushare:admin" in answer.json["message"]
    assert seen_with(service, reader, 2)["notebooks"][0]["state"] == "running"


def test_actions_reach_the_scheduler(
    service: HubService, kernels: tuple[FakeClient, FakeClient], admin: str
) -> None:
    first, second = kernels
    answer = service.ask("api/nodes/gpu1/release", admin, {"group": "ada-kernel"})
    assert answer.status == 200, answer.text
    assert answer.json == {"group": "ada-kernel"}
    first.expect(ev.Revoke)
    first.release()
    first.evict()
    second.take()
    until(lambda: seen_with(service, admin, 2)["notebooks"][0]["user"] == "ben")


def test_actions_are_in_the_audit_log(
    service: HubService,
    node: Node,
    kernels: tuple[FakeClient, FakeClient],
    admin: str,
    ada: str,
) -> None:
    first, second = kernels
    gpu = seen(service, admin)["gpus"][0]["uuid"]

    def done(op: str, body: Any) -> Any:
        answer = service.ask(f"api/nodes/gpu1/{op}", admin, body)
        assert answer.status == 200, answer.text
        return answer.json

    done("hold", {"group": "ben-kernel", "on": True})
    done("evict", {"group": "ada-kernel"})
    first.expect(ev.Revoke)
    first.release()
    done("drain", {"gpu": gpu, "on": True})
    done("maintenance", {"text": "down at noon"})
    found = until(lambda: (one := seen(service, ada))["maintenance"] and one)
    assert found["maintenance"] == "down at noon"
    assert found["gpus"][0]["draining"]
    assert [one["on_hold"] for one in found["notebooks"] if not one["mine"]] == [True]
    done("hold", {"group": "ben-kernel", "on": False})
    done("drain", {"gpu": gpu, "on": False})
    done("maintenance", {"text": ""})
    second.take()
    found = until(lambda: not (one := seen(service, admin))["maintenance"] and one)
    logged = [(entry["user"], entry["text"]) for entry in found["actions"]][-7:]
    assert logged == [
        ("hedy", "put secret-plan.ipynb on hold"),
        ("hedy", "evicted the memory of deep/train.ipynb"),
        ("hedy", "drained GPU 0"),
        ("hedy", "set the maintenance message: down at noon"),
        ("hedy", "resumed secret-plan.ipynb"),
        ("hedy", "stopped draining GPU 0"),
        ("hedy", "cleared the maintenance message"),
    ]
    # The scheduler's own log has the service's uid and the administrator's name.
    with ControlClient(node.socket, timeout=PATIENCE) as control:
        last = control.request("audit")["audit"][-1]
    assert (last["op"], last["on_behalf"], last["uid"]) == ("maintenance", "hedy", os.getuid())
    assert seen(service, ada)["actions"] == []


def test_a_revoked_permission_is_lost_at_once(service: HubService, hub_api: HubApi) -> None:
    former = hub_api.token("former", ADMIN)
    bad = {"group": "no-such-group"}
    assert service.ask("api/nodes/gpu1/release", former, bad).status == 404
    hub_api.models[former]["scopes"] = [ACCESS]
    assert service.ask("api/nodes/gpu1/release", former, bad).status == 403


def test_invalid_actions_are_refused_with_a_reason(service: HubService, admin: str) -> None:
    def refusal(op: str, body: Any, node: str = "gpu1", status: int = 400) -> str:
        answer = service.ask(f"api/nodes/{node}/{op}", admin, body)
        assert answer.status == status, answer.text
        return str(answer.json["message"])

    assert "no group" in refusal("release", {"group": "100% nonsense"}, status=404)
    for op, body in (
        ("release", {}),
        ("release", []),
        ("release", {"group": 7}),
        ("release", {"group": "a", "more": 1}),
        ("hold", {"group": "a"}),
        ("hold", {"group": "a", "on": 1}),
        ("drain", {"gpu": None, "on": True}),
    ):
        assert "send a JSON object with" in refusal(op, body), (op, body)
    # Only services, which have identified their viewer, may act on behalf of a user.
    assert "send a JSON object with" in refusal("release", {"group": "a", "on_behalf": "ada"})
    assert "characters" in refusal("maintenance", {"text": "x" * 501})
    assert "'gpu9'" in refusal("release", {"group": "a"}, node="gpu9", status=404)
    assert service.ask("api/nodes/gpu1/set", admin, {"policy": "fcfs"}).status == 404


class Browser:
    """The parts of a browser that these tests need: cookies, redirects, and headers that pages cannot set."""

    def __init__(self) -> None:
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )

    def fetch(self, url: str, body: Any = None, **headers: str) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(url, data, named)
        try:
            with self._opener.open(request, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def test_another_page_cannot_act_for_a_logged_in_user(
    service: HubService, hub_api: HubApi, admin: str
) -> None:
    browser = Browser()
    hub_api.browser, hub_api.service = admin, service.url
    status, page = browser.fetch(service.url, Sec_Fetch_Mode="navigate")
    assert status == 200
    (xsrf,) = re.findall(r'data-xsrf="([^"]+)"', page)
    act, body = f"{service.url}api/nodes/gpu1/release", {"group": "no-such-group"}
    for site in ("same-origin", "cross-site"):
        sent = {"Sec_Fetch_Mode": "cors", "Sec_Fetch_Site": site}
        assert browser.fetch(act, body, **sent)[0] == 403
        assert browser.fetch(act, body, X_XSRFToken="wrong", **sent)[0] == 403
        # It cannot read the answers either, not even the page, which contains the token.
        for path in ("api/state", "api/stream", ""):
            status, text = browser.fetch(service.url + path, **sent)
            assert (status, xsrf in text) == (403, False)
    # The service's own page can, and gets the scheduler's answer.
    status, text = browser.fetch(act, body, Sec_Fetch_Mode="cors", X_XSRFToken=xsrf)
    assert (status, "no group" in text) == (404, True)


def test_the_page_cannot_be_framed_and_runs_only_its_own_scripts(
    service: HubService, ada: str
) -> None:
    page = service.ask("", ada)
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'self'" in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Cache-Control"] == "no-store"
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    own = [link.removeprefix(PREFIX) for link in loaded if link.startswith(PREFIX)]
    kinds = {PurePosixPath(urlsplit(link).path).suffix for link in own}
    assert kinds == {".css", ".js", ".svg"}
    for link in own:
        assert service.ask(link).status == 200


# --- Metrics -------------------------------------------------------------------------------------------


def test_metrics_need_a_scope(
    service: HubService,
    hub_api: HubApi,
    kernels: tuple[FakeClient, FakeClient],
    reader: str,
    ada: str,
) -> None:
    assert service.ask("metrics", ada).status == 403
    prometheus = hub_api.token("prometheus", "read:metrics", kind="service")
    for token in (reader, prometheus):
        answer = service.ask("metrics", token)
        assert answer.status == 200
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert 'gpushare_up{node="gpu1"} 1.0' in answer.text
    found = {
        (sample.name, sample.labels.get("user"), sample.labels.get("kind")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["gpushare_user_memory_bytes", "ada", "resident"] == 6 * UNIT
    # The scope for metrics shows nothing else.
    assert service.ask("api/state", prometheus).status == 403


def test_metrics_can_be_open_and_report_a_missing_scheduler(
    folder: Path, hub_api: HubApi, token: str
) -> None:
    config = folder / "open.json"
    config.write_text(json.dumps({"GpuShareHub": {"open_metrics": True}}))
    arguments = ("--socket", str(folder / "none"), "--name", "gpu4", "--config", str(config))
    with HubService(hub_api.environ(token), folder / "open.log", *arguments) as service:
        answer = service.ask("metrics")
        assert (answer.status, 'gpushare_up{node="gpu4"} 0.0' in answer.text) == (200, True)
        assert service.ask("api/state").status == 403
        assert service.ask("health").json["status"] == "ok"


def test_only_readers_get_usage_reports(service: HubService, reader: str, ada: str) -> None:
    assert service.ask("api/report", ada).status == 403
    assert service.ask("api/usage", ada).status == 403
    assert service.ask("api/report?since=never", reader).status == 400
    assert (refused := service.ask("api/report?by=weather", reader)).status == 400
    assert "'since' must be before" in service.ask("api/report?since=9&until=5", reader).text
    assert service.ask("api/report", reader).json["report"]["used"] >= 0
    # The page shows what the scheduler says, and not that it does not respond.
    assert service.ask("api/usage?by=weather", reader).text == refused.text


def test_users_get_the_use_of_their_own_notebooks(
    service: HubService, kernels: tuple[FakeClient, FakeClient], reader: str, ada: str, ben: str
) -> None:
    def users(path: str, token: str) -> set[str]:
        found = service.ask(path, token).json
        report = found["report"] if "report" in found else found["nodes"]["gpu1"]["report"]
        return {row["user"] for row in report["rows"]}

    # The scheduler adds up once a second.
    until(lambda: users("api/report?by=user", reader) >= {"ada", "ben"})
    for path in ("api/report", "api/usage"):
        assert users(f"{path}?by=notebook&by=day", reader) >= {"ada", "ben"}
        assert users(f"{path}?by=user&user=ben", reader) == {"ben"}
        assert users(f"{path}?by=user", ada) == users(f"{path}?by=user&user=ben", ada) == {"ada"}
    report = service.ask("api/report?by=user", ben).json["report"]
    assert report.keys() == {"since", "until", "prices", "rows"}
    assert service.ask("api/report?by=user", ada).json["report"]["rows"][0]["gpu_byte_seconds"] > 0


# --- Several nodes -------------------------------------------------------------------------------------


def test_pages_of_several_nodes(
    folder: Path, service: HubService, node: Node, hub_api: HubApi, token: str, admin: str, ada: str
) -> None:
    """One service shows the node of another one, acts on it, and notices when it stops and starts again."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(machine(folder, "gpu2", hub_api))
        environ = hub_api.environ(token)
        config = folder / "all.py"
        config.write_text(f"c.GpuShareHub.nodes = {{'near': {service.url!r}}}\n")
        with HubService(
            environ, folder / "gpu2.log", "--socket", str(other.socket), "--name", "gpu2"
        ) as remote:
            port = int(remote.url.split(":")[2].split("/")[0])
            arguments = ("--no-local", "--config", str(config), "--discover", f"127.0.0.1:{port}")
            page = stack.enter_context(HubService(environ, folder / "all.log", *arguments))
            # A discovered node is shown with the name that it reports.
            names = until(
                lambda: (
                    {n["name"] for n in page.ask("api/state", admin).json["nodes"] if n["known"]}
                    == {"near", "gpu2"}
                ),
                lambda: page.log,
            )
            assert names
            with notebook(other, ada, "ada-far", "far.ipynb", UNIT) as client:
                client.run()
                assert seen_with(page, admin, 1, "gpu2")["notebooks"][0]["name"] == "far.ipynb"
                assert seen_with(page, ada, 1, "gpu2")["notebooks"][0]["mine"]
                answer = page.ask("api/nodes/gpu2/release", admin, {"group": "ada-far"})
                assert answer.status == 200, answer.text
                client.expect(ev.Revoke)
            refused = page.ask("api/nodes/near/release", admin, {"group": "no-such-group"})
            assert (refused.status, "no group" in refused.json["message"]) == (404, True)
        away = until(lambda: (found := seen(page, admin, "gpu2"))["away"] and found)
        assert "cannot connect" in away["error"]
        # Its last state stays on the page.
        assert away["gpus"][0]["total"] == 8 * UNIT
        assert seen(page, ada, "gpu2")["error"] == ""
        assert not seen(page, admin, "near")["away"]
        assert page.ask("api/nodes/gpu2/release", admin, {"group": "x"}).status == 503
        again = (
            *("--socket", str(other.socket), "--name", "gpu2"),
            *("--discover", f"127.0.0.1:{port}"),
        )
        with HubService(environ, folder / "gpu2.log", *again, port=port) as found:
            until(lambda: not seen(page, admin, "gpu2")["away"])
            # A service that discovers its own address shows its node once.
            nodes = found.ask("api/state", admin).json["nodes"]
            assert [(node["name"], node["away"]) for node in nodes] == [("gpu2", False)]


def test_an_unreachable_node_is_described_in_words(
    folder: Path, hub_api: HubApi, token: str, admin: str, ada: str
) -> None:
    # No program listens on the discard port.
    arguments = ("--no-local", "--node", "gpu8=http://127.0.0.1:9/")
    log = folder / "unreachable.log"
    with HubService(hub_api.environ(token), log, *arguments) as page:
        found = seen(page, admin, "gpu8")
        assert found["away"]
        assert "[Errno" not in str(found)
        assert found["error"] == (
            "cannot connect to its Hub service; check that the machine is on and the service (gpushare hub) is "
            "running"
        )
        cause = "http://127.0.0.1:9/services/gpushare/: connection refused"
        assert found["detail"] == cause
        assert f"node gpu8 is unreachable: {found['error']} ({cause})" in page.log
        hidden = seen(page, ada, "gpu8")
        assert (hidden["error"], hidden["detail"]) == ("", "")
        answer = page.ask("api/nodes/gpu8/release", admin, {"group": "x"})
        assert (answer.status, answer.json["message"]) == (503, found["error"])


def test_a_scheduler_that_stops_and_starts_again(
    folder: Path, hub_api: HubApi, token: str, admin: str
) -> None:
    with machine(folder, "gpu3", hub_api) as node:
        arguments = ("--socket", str(node.socket), "--name", "gpu3")
        with HubService(hub_api.environ(token), folder / "gpu3.log", *arguments) as service:
            assert not seen(service, admin, "gpu3")["away"]
            node.kill()
            away = until(lambda: (found := seen(service, admin, "gpu3"))["away"] and found)
            assert str(node.socket) in away["error"]
            answer = service.ask("api/node", admin)
            assert (answer.status, "scheduler" in answer.json["message"]) == (503, True)
            node.start()
            until(lambda: not seen(service, admin, "gpu3")["away"])


def test_a_token_without_the_scopes_is_explained(
    folder: Path, service: HubService, hub_api: HubApi, admin: str
) -> None:
    weak = hub_api.token("gpushare", ACCESS, kind="service")
    arguments = ("--no-local", "--node", f"gpu1={service.url}")
    with HubService(hub_api.environ(weak), folder / "weak.log", *arguments) as page:
        found = until(lambda: seen(page, admin))
        assert found["away"]
        assert "custom:gpushare:read" in found["error"]


# --- Starting ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--node", "gpu2=gpu2:8990"], "use for example http://"),
        (["--node", "a/b=http://gpu2/"], "invalid node name"),
        (["--discover", "somewhere"], "use HOST:PORT"),
        (["--url", "ftp://127.0.0.1/"], "use for example http://"),
        (["--url", "https://127.0.0.1:1/"], "https needs a certificate"),
        (["--config", "/no/such/file.py"], "configuration file /no/such/file.py not found"),
        (["--name", "."], "invalid node name"),
        ([], "set JUPYTERHUB_API_TOKEN"),
    ],
)
def test_mistakes_in_the_settings_are_reported(
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("JUPYTERHUB_")]:
        monkeypatch.delenv(name)
    if arguments:
        monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "a-token")
    assert main(["hub", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_a_port_in_use_is_reported(service: HubService, hub_api: HubApi, token: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpushare.cli.main", "hub", "--url", service.url],
        env={**os.environ, **hub_api.environ(token)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert "cannot listen at" in done.stderr
