# SPDX-License-Identifier: BSD-3-Clause
"""Two users and an administrator of a real JupyterHub, each with a browser, share one GPU of one node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.hub.page import SeatPage, sign_in
from tests.support.hub.hub import ADMIN, ROLES, USERS, Hub, until
from tests.support.hub.node import Node, node_beside, small_machine
from tests.support.hub.programs import ALLOCATE, CHECK, PLOT, TRAIN
from tests.support.lab_page import launch, notebook

pytestmark = pytest.mark.browser

#: The name of each user's notebook, which other users must not see.
NOTEBOOKS = {"ada": "analytical-engine.ipynb", "grace": "compiler.ipynb"}

STATUS = "%gpushare"
HISTORY = "%gpushare history --json"


def stem(user: str) -> str:
    """Return the part of a notebook's name that all its forms contain."""
    return NOTEBOOKS[user].removesuffix(".ipynb")


@pytest.fixture(scope="module")
def hub(runtime: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Hub:
    """Return the Hub before its start."""
    environ = {
        **small_machine(runtime),
        "GPUSHARE_SOCKET": str(runtime / "run" / "scheduler.sock"),
    }
    return Hub(tmp_path_factory.mktemp("hub"), root, environ, roles=ROLES, page=["--name", "gpu1"])


@pytest.fixture(scope="module")
def node(runtime: Path, hub: Hub) -> Iterator[Node]:
    """Run the scheduler of the machine and the Hub."""
    with node_beside(hub, runtime) as node:
        yield node


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Return the browser, which connects only to loopback."""
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(node: Node, hub: Hub, browser: Browser) -> Iterator[dict[str, SeatPage]]:
    """Return the JupyterLab page of each user, with a notebook in front and the panel open."""
    work = {"ada": TRAIN, "grace": PLOT}
    with ExitStack() as stack:
        pages = {}
        for user in USERS:
            seat = hub.seat(user)
            cells = (ALLOCATE, work[user], CHECK, STATUS, HISTORY)
            (seat.notebooks / NOTEBOOKS[user]).write_text(json.dumps(notebook(*cells)))
            pages[user] = page = SeatPage(browser, seat)
            stack.callback(page.close)
            page.sign_in()
        for user, page in pages.items():
            page.open(f"lab/tree/{NOTEBOOKS[user]}")
            page.seat.shared_status()
            page.show_panel()
        yield pages
        for user in USERS:
            (hub.home(user) / "stop").touch()


@pytest.fixture(scope="module")
def contention(pages: dict[str, SeatPage]) -> dict[str, SeatPage]:
    """Ada's notebook is running, and grace's notebook is waiting for the GPU."""
    ada, grace = pages["ada"], pages["grace"]
    ada.run(2)
    expect(ada.row("Running", NOTEBOOKS["ada"])).to_be_visible()
    # Otherwise it would become background after some seconds and be preempted.
    group = ada.kernel_of(NOTEBOOKS["ada"])
    ada.seat.post("gpushare/api/adjust", {"group": group, "priority": "interactive"})
    grace.run(1)
    expect(grace.row("Waiting", NOTEBOOKS["grace"])).to_be_visible()
    return pages


def test_users_see_that_others_run_or_wait_but_no_names(
    contention: dict[str, SeatPage],
) -> None:
    ada, grace = contention["ada"], contention["grace"]
    expect(grace.card).to_contain_text("another user")
    expect(grace.section("Running")).to_contain_text("another user")
    expect(ada.section("Waiting")).to_contain_text("another user")
    for page, other in ((ada, "grace"), (grace, "ada")):
        visible = page.visible()
        assert NOTEBOOKS[page.seat.user] in visible
        assert stem(other) not in visible
        assert contention[other].kernel_of(NOTEBOOKS[other]) not in visible


def test_users_cannot_control_notebooks_of_others(
    contention: dict[str, SeatPage], node: Node
) -> None:
    ada, grace = contention["ada"], contention["grace"]
    group = ada.kernel_of(NOTEBOOKS["ada"])
    (hidden,) = (each["id"] for each in grace.seat.status()["groups"] if each["state"] == "running")
    for name in (group, hidden, NOTEBOOKS["ada"]):
        for path, more in (("release", {}), ("evict", {}), ("adjust", {"frozen": True})):
            status, text = grace.post(f"gpushare/api/{path}", {"group": name, **more})
            assert 400 <= status < 500, (path, name, text)
    status, text = grace.post("gpushare/api/settings", {"quantum": 1})
    assert 400 <= status < 500, text
    (running,) = (each for each in node.status()["groups"] if each["state"] == "running")
    assert running["id"] == group
    assert not running["preferences"]["frozen"]
    assert node.status()["settings"]["quantum"] == 3600
    expect(ada.row("Running", NOTEBOOKS["ada"])).to_be_visible()


def test_notebooks_survive_a_killed_scheduler(contention: dict[str, SeatPage], node: Node) -> None:
    ada, grace = contention["ada"], contention["grace"]
    assert node.process is not None
    old = node.process.pid
    node.kill()
    node.start()
    for page in (ada, grace):
        until(lambda page=page: page.seat.status().get("scheduler", {}).get("pid", old) != old)
    expect(ada.row("Running", NOTEBOOKS["ada"])).to_be_visible()
    expect(grace.row("Waiting", NOTEBOOKS["grace"])).to_be_visible()
    expect(grace.section("Running")).to_contain_text("another user")


def test_the_administrator_sees_both_and_evicts_one(
    contention: dict[str, SeatPage], hub: Hub, browser: Browser
) -> None:
    context = browser.new_context()
    page = context.new_page()
    sign_in(page, hub, ADMIN, "/services/gpushare/")
    node = page.get_by_role("region", name="gpu1")
    row = node.get_by_role("row", name=f"{NOTEBOOKS['ada']} ada")
    expect(row).to_contain_text("running")
    expect(node.get_by_role("row", name=f"{NOTEBOOKS['grace']} grace")).to_contain_text("waiting")
    page.get_by_role("button", name=f"Actions for {NOTEBOOKS['ada']}").click()
    page.get_by_role("dialog").get_by_role("button", name="Evict its memory").click()
    # The evicted notebook continues afterwards.
    contention["grace"].expect_ended(0)
    expect(row).to_contain_text("running")
    context.close()


def test_users_see_the_same_page_without_names(
    contention: dict[str, SeatPage], hub: Hub, browser: Browser
) -> None:
    page = contention["grace"].context.new_page()
    page.goto(f"{hub.url}/services/gpushare/")
    node = page.get_by_role("region", name="gpu1")
    expect(node.get_by_role("row", name=f"{NOTEBOOKS['grace']} grace (you)")).to_be_visible()
    expect(node.get_by_role("row").filter(has_text="running")).to_contain_text("another user")
    assert stem("ada") not in page.content()
    page.close()


def test_the_results_are_correct(contention: dict[str, SeatPage], hub: Hub) -> None:
    ada, grace = contention["ada"], contention["grace"]
    (hub.home("ada") / "stop").touch()
    grace.run(4)
    ada.run(3)
    for page in (grace, ada):
        expect(page.output(2)).to_contain_text("as if alone")
        page.expect_ended(4)
        for cell in (3, 4):
            expect(page.output(cell)).to_contain_text(stem(page.seat.user))
            for other in {*USERS} - {page.seat.user}:
                expect(page.output(cell)).not_to_contain_text(stem(other))
