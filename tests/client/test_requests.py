# SPDX-License-Identifier: BSD-3-Clause
"""What both clients send, and what they make of answers, with a server that answers anything."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from jupyter_gpushare.client import (
    AsyncClient,
    Client,
    GpuShareError,
    Refused,
    Unavailable,
    Unreachable,
)

FORECAST = {
    "group": None, "name": None, "user": None, "gpu": "GPU-0", "earliest": 0.0, "likely": 0.0,
    "latest": 0.0, "restore": 0.0, "reason": {"code": "room", "params": {}}, "text": "now",
    "of_a_later_release": 1,
}  # fmt: skip


class Answering(BaseHTTPRequestHandler):
    server: Any

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        self.server.asked.append(
            (self.command, self.path, self.headers.get("Authorization"), body and json.loads(body))
        )
        status, content = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - as the base class calls them

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Any]:
    found: Any = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    found.asked, found.answer = [], (200, b"{}")
    found.url = f"http://127.0.0.1:{found.server_port}/base/"
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def ask(kind: str, url: str, name: str, *arguments: Any, wait: float = 60.0, **options: Any) -> Any:
    """Call a method of one of the clients, which waits for so many seconds for an answer."""
    if kind == "blocking":
        return getattr(Client(url, "t", timeout=wait), name)(*arguments, **options)

    async def run() -> Any:
        async with AsyncClient(url, "t", timeout=wait) as client:
            return await getattr(client, name)(*arguments, **options)

    return asyncio.run(run())


both = pytest.mark.parametrize("kind", ["blocking", "async"])

GROUP = {"group": "a"}
SENT: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str, Any, Any]] = [
    ("status", (), {}, "GET", "status", None, {"gpus": []}),
    ("explain", ("a",), {}, "GET", "explain?group=a&text=1", None, {"explanation": {}}),
    ("explain", (), {}, "GET", "explain?text=1", None, {"explanation": {}}),
    ("when_could_i_run", ("a b",), {}, "GET", "when?group=a+b", None, {"when": FORECAST}),
    (
        "when_could_i_run", (), {"memory": 7, "priority": "background", "gpu": "0"},
        "GET", "when?bytes=7&priority=background&gpu=0", None, {"when": FORECAST},
    ),
    *(
        (name, ("a",), {}, "POST", name, GROUP, GROUP)
        for name in ("release", "evict", "hibernate", "wake", "ready")
    ),
    (
        "set_class", ("background", "a"), {},
        "POST", "adjust", {"group": "a", "priority": "background"}, GROUP,
    ),
]  # fmt: skip


RESERVED = {
    "group": "a", "state": "idle", "reservation": {"state": "ready", "since": 1.0, "until_in": 2.0},
}  # fmt: skip
SENT += [
    ("run_when", ("a",), {}, "POST", "reservations", GROUP, RESERVED),
    ("wait_ready", ("a/b",), {"timeout": 0}, "GET", "reservations/a%2Fb?wait=0", None, RESERVED),
    ("cancel", ("a",), {}, "DELETE", "reservations/a", None, RESERVED),
]


@both
@pytest.mark.parametrize(("name", "given", "options", "method", "path", "body", "answer"), SENT)
def test_each_method_sends_one_request(
    server: Any,
    kind: str,
    name: str,
    given: tuple[Any, ...],
    options: dict[str, Any],
    method: str,
    path: str,
    body: Any,
    answer: Any,
) -> None:
    server.answer = 200, json.dumps(answer).encode()
    found = ask(kind, server.url, name, *given, **options)
    assert server.asked == [(method, f"/base/gpushare/api/{path}", "token t", body or b"")]
    if name == "when_could_i_run":
        assert (found.now, found.reason.code, found.gpu) == (True, "room", "GPU-0")
    elif "reservation" in answer:
        assert (found.group, found.ready, found.until_in) == ("a", True, 2.0)
    else:
        assert found == {"status": answer, "explain": {}}.get(name, "a")


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, Any]:
        return {
            name: value.__doc__
            for name, value in vars(kind).items()
            if not name.startswith("_") and name != "close" and callable(value)
        }

    assert methods(Client) == methods(AsyncClient)
    assert all(methods(Client).values())


@both
@pytest.mark.parametrize(
    ("status", "content", "error", "text"),
    [
        (400, b'{"message": "no"}', Refused, "^no$"),
        (403, b'{"message": "Forbidden"}', Refused, "Forbidden"),
        (403, b"<html>", Refused, "refused the token"),
        (403, b'{"message": "\'_xsrf\' argument missing from POST"}', Refused, "refused the token"),
        (404, b'{"message": "no group"}', Refused, "no group"),
        (404, b"<html>", Unreachable, "has no gpushare API"),
        (503, b'{"message": "no scheduler is running"}', Unavailable, "no scheduler"),
        (503, b"<html>", Unreachable, "status 503"),
        (500, b"", Unreachable, "status 500"),
        (200, b"<html>", Unreachable, "status 200"),
    ],
)
def test_refusals_are_errors_with_a_sentence(
    server: Any, kind: str, status: int, content: bytes, error: type[GpuShareError], text: str
) -> None:
    server.answer = status, content
    with pytest.raises(error, match=text) as caught:
        ask(kind, server.url, "release", "a")
    if isinstance(caught.value, Refused):
        assert caught.value.status == status


@both
@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("release", {}),
        ("explain", {"explanation": 1}),
        ("when_could_i_run", {"when": {"reason": None}}),
        ("run_when", {"group": "a", "reservation": "ready"}),
    ],
)
def test_answers_of_other_programs_are_errors(
    server: Any, kind: str, name: str, answer: dict[str, Any]
) -> None:
    server.answer = 200, json.dumps(answer).encode()
    with pytest.raises(Unreachable, match="did not answer as a Jupyter server with"):
        ask(kind, server.url, name, "a")


@both
def test_a_wait_is_no_longer_than_servers_allow(server: Any, kind: str) -> None:
    server.answer = 200, json.dumps(RESERVED).encode()
    ask(kind, server.url, "wait_ready", "a", wait=1000.0, timeout=900.0)
    (asked,) = server.asked
    assert asked[1].endswith("reservations/a?wait=300")


@both
@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example"])
def test_a_host_name_that_cannot_be_sent_is_named(kind: str, host: str) -> None:
    with pytest.raises(Unreachable, match="does not respond"):
        ask(kind, f"http://{host}/", "status")


@both
def test_the_error_names_an_unreachable_server(server: Any, kind: str) -> None:
    closed = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    url = f"http://127.0.0.1:{closed.server_port}/"
    closed.server_close()
    with pytest.raises(Unreachable, match="does not respond"):
        ask(kind, url, "status")


def test_addresses_of_this_machine_bypass_the_proxy(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
    assert Client(server.url, "t").status() == {}
