# SPDX-License-Identifier: BSD-3-Clause
"""The Hub service's page, in a real browser."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from jupyter_gpushare.hub.handlers import STATIC
from jupyter_gpushare.kernel_provisioner.launch import client_environment
from jupyter_gpushare.scheduler.core import messages as ev
from jupyter_gpushare.scheduler.gpu.drivers import find_driver
from jupyter_gpushare.scheduler.protocol.client import ControlClient
from jupyter_gpushare.scheduler.server.administration import LAST
from tests.hub.service import UNIT, HubService, machine, notebook, simulated
from tests.support.client import PATIENCE, FakeClient
from tests.support.environment import inherited
from tests.support.hub.hub import until
from tests.support.hub.hub_api import HubApi
from tests.support.hub.node import Node
from tests.support.lab_page import AXE, REACTION, SCREENSHOTS, launch

pytestmark = pytest.mark.browser

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
#: The rules among them that depend on colors.
COLOR_RULES = ["color-contrast", "link-in-text-block"]
VIEWS = ("GPUs", "Users", "Usage", "History")

#: Launches CUDA kernels in a loop, with short pauses.
PROGRAM = """\
import time
from cuda.core import Device, LaunchConfig, Program, launch

device = Device()
device.set_current()
stream = device.create_stream()
source = "__global__ void step(float *x) { x[blockIdx.x] += 1; }"
step = Program(source, "c++").compile("cubin", name_expressions=["step"]).get_kernel("step")
data = device.allocate(1 << 20, stream=stream)
while True:
    launch(stream, LaunchConfig(grid=1, block=1), step, data)
    stream.sync()
    time.sleep(0.005)
"""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Return the browser, which connects only to loopback."""
    if not (STATIC / "page.js").is_file():
        pytest.fail("the Hub's page is not built: run `make labextension`")
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def far(folder: Path, hub_api: HubApi, token: str) -> Iterator[tuple[Node, HubService]]:
    """Return the scheduler and the service of another machine."""
    with machine(folder, "gpu2", hub_api) as node:
        arguments = ("--socket", str(node.socket), "--name", "gpu2")
        with HubService(hub_api.environ(token), folder / "far.log", *arguments) as service:
            yield node, service


@pytest.fixture(scope="module")
def service(
    folder: Path, hub_api: HubApi, node: Node, token: str, far: tuple[Node, HubService]
) -> Iterator[HubService]:
    """Return a service that shows both machines, and one that cannot be reached."""
    others = ("--node", f"gpu2={far[1].url}", "--node", "gpu3=http://127.0.0.1:9/")
    arguments = ("--socket", str(node.socket), "--name", "gpu1", *others)
    with HubService(hub_api.environ(token), folder / "near.log", *arguments) as service:
        hub_api.service = service.url
        yield service


@pytest.fixture(scope="module")
def kernels(
    node: Node, far: tuple[Node, HubService], ada: str, ben: str
) -> Iterator[dict[str, FakeClient]]:
    """Ada's notebooks are running on two machines, and Ben's notebooks are waiting for one of them."""
    with contextlib.ExitStack() as stack:
        kernels = {}
        for machine_, token, group, name, size in (
            (node, ada, "ada-1", "deep/train.ipynb", 6 * UNIT),
            (node, ben, "ben-1", "plots.ipynb", 3 * UNIT),
            (node, ben, "ben-2", "notes/sweep.ipynb", 4 * UNIT),
            (far[0], ada, "run-5", "python eval.py", 2 * UNIT),
        ):
            client = stack.enter_context(notebook(machine_, token, group, name, size))
            kernels[group] = client
            if group in ("ada-1", "run-5"):
                client.run()
            else:
                client.request()
        yield kernels


def show(page: Page, view: str) -> None:
    """Change to a view, and wait until it is there with its data."""
    link = page.get_by_role("link", name=view, exact=True)
    link.click()
    expect(link).to_have_attribute("aria-current", "page")
    if view == "Usage":
        expect(
            page.get_by_role("table").or_(page.get_by_text("No notebook used a GPU"))
        ).to_be_visible()


@contextlib.contextmanager
def opened(
    browser: Browser, hub_api: HubApi, service: HubService, token: str, scheme: str = "light"
) -> Iterator[Page]:
    """Open the page as the owner of the token, logged in through the Hub."""
    hub_api.browser, hub_api.service = token, service.url
    context = browser.new_context(
        viewport={"width": 1280, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    try:
        page = context.new_page()
        page.set_default_timeout(REACTION)
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(service.url)
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        yield page
    finally:
        context.close()
    assert not wrong


@contextlib.contextmanager
def computing(node: Node, machine_name: str, token: str, group: str, name: str) -> Iterator[None]:
    """Run a program in a group of the token's owner that keeps the GPU busy while the group is running."""
    environ = {**inherited(), **simulated(node.folder.parent, machine_name)}
    environ |= {"CUDA_VISIBLE_DEVICES": "0", "GPUSHARE_SIM_KERNEL_NS": "20000000"}
    ticket = node.folder / f"{group}.ticket"
    ticket.touch(mode=0o600)
    with ControlClient(node.socket, timeout=PATIENCE) as control:
        control.request("login", token=token)
        ticket.write_text(control.request("ticket", group=group)["ticket"])
    driver = find_driver(environ)
    assert driver is not None
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=client_environment(
            environ, group=group, name=name, driver=driver, socket=node.socket, ticket=ticket
        ),
        stdin=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait(PATIENCE)


@pytest.mark.skipif(SCREENSHOTS is None, reason="only `make screenshots` makes the pictures")
def test_pictures(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    node: Node,
    far: tuple[Node, HubService],
    kernels: dict[str, FakeClient],
    ada: str,
    admin: str,
) -> None:
    assert SCREENSHOTS is not None
    with (
        computing(node, "gpu1", ada, "ada-1", "deep/train.ipynb"),
        computing(far[0], "gpu2", ada, "run-5", "python eval.py"),
        opened(browser, hub_api, service, admin) as page,
    ):
        # Otherwise it would become background after some seconds and be preempted.
        with ControlClient(node.socket, timeout=PATIENCE) as control:
            control.request("adjust", group="ada-1", priority="interactive")
        for name in ("gpu1", "gpu2"):
            gpu = page.get_by_role("region", name=name).locator(".busy").first
            expect(gpu).to_contain_text("% busy", timeout=PATIENCE * 1000)
        # The curves of utilisation need some samples.
        page.wait_for_timeout(40_000)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            page.screenshot(path=Path(SCREENSHOTS, f"hub-{scheme}.png"))


def test_users_see_no_names_of_others(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    kernels: dict[str, FakeClient],
    ben: str,
) -> None:
    with opened(browser, hub_api, service, ben) as page:
        node = page.get_by_role("region", name="gpu1")
        own = node.get_by_role("row", name="plots.ipynb ben (you)")
        expect(own).to_contain_text("waiting, 1st")
        expect(own).to_contain_text("another user's turn ends")
        other = node.get_by_role("row").filter(has_text="running")
        expect(other).to_contain_text("another user")
        expect(node.get_by_role("row").filter(has_text="waiting, 2nd")).to_contain_text("sweep")
        expect(page.get_by_role("button")).to_have_count(0)
        for view in VIEWS:
            show(page, view)
            expect(page.locator("main")).not_to_contain_text("train.ipynb")
            expect(page.locator("main")).not_to_contain_text("ada")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    kernels: dict[str, FakeClient],
    admin: str,
    scheme: str,
) -> None:
    # Both color schemes have the same elements.
    rules = RULES if scheme == "light" else COLOR_RULES
    with opened(browser, hub_api, service, admin, scheme) as page:
        expect(page.get_by_role("row").filter(has_text="python eval.py")).to_be_visible()
        page.evaluate(AXE.read_text())
        for view in VIEWS:
            show(page, view)
            assert _violations(page, rules) == []
        show(page, "GPUs")
        page.get_by_role("button", name="Actions for train.ipynb").click()
        assert _violations(page, rules) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("button", name="Actions for train.ipynb")).to_be_focused()
        if scheme == "dark":
            return
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        for view in VIEWS:
            show(page, view)
            assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
            assert _violations(page) == []


def test_usage_is_added_up_over_nodes(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    kernels: dict[str, FakeClient],
    admin: str,
    ada: str,
) -> None:
    def has_use() -> bool:
        found = service.ask("api/usage?by=user", admin).json["nodes"]
        return all(found[name]["report"]["rows"] for name in ("gpu1", "gpu2"))

    # The schedulers add up once a second.
    until(has_use)
    with opened(browser, hub_api, service, admin) as page:
        show(page, "Usage")
        expect(page.get_by_role("row").filter(has_text="ada")).to_have_count(1)
        expect(page.locator(".notice")).to_contain_text("did not respond: gpu3.")
        page.get_by_label("Rows").select_option("Usage by notebook")
        expect(page.get_by_role("row").filter(has_text="train.ipynb")).to_be_visible()
        expect(page.get_by_role("row").filter(has_text="python eval.py")).to_be_visible()
        page.evaluate(AXE.read_text())
        assert _violations(page) == []
    with opened(browser, hub_api, service, ada) as page:
        show(page, "Usage")
        expect(page.get_by_role("row").filter(has_text="train.ipynb")).to_be_visible()
        expect(page.locator("main")).not_to_contain_text("ben")


def _violations(page: Page, rules: Sequence[str] = RULES) -> list[str]:
    found = page.evaluate(
        "rules => axe.run({ runOnly: rules, resultTypes: ['violations'] })", rules
    )
    return [
        f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']]}"
        for one in found["violations"]
    ]


def test_the_filter_shows_matching_nodes_and_notebooks(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    kernels: dict[str, FakeClient],
    admin: str,
) -> None:
    with opened(browser, hub_api, service, admin) as page:
        expect(page.locator("main")).to_contain_text(
            "3 nodes (1 unreachable) · 4 GPUs · 4 notebooks"
        )
        page.get_by_role("searchbox").fill("PYTHON")
        expect(page.get_by_role("region", name="gpu2")).to_be_visible()
        expect(page.get_by_role("region", name="gpu1")).to_have_count(0)
        page.get_by_role("searchbox").fill("ben")
        expect(page.get_by_role("region", name="gpu1").locator("tbody tr")).to_have_count(2)


def test_an_administrator_acts_on_both_nodes(
    browser: Browser,
    hub_api: HubApi,
    service: HubService,
    kernels: dict[str, FakeClient],
    admin: str,
) -> None:
    with opened(browser, hub_api, service, admin) as page:
        away = page.get_by_role("region", name="gpu3").locator(".notice")
        expect(away).to_contain_text("Not reached so far: cannot connect to its Hub service")
        expect(away).not_to_contain_text("Errno")
        for name, group in (("train.ipynb", "ada-1"), ("python eval.py", "run-5")):
            page.get_by_role("button", name=f"Actions for {name}").click()
            dialog = page.get_by_role("dialog", name=name)
            expect(dialog).to_contain_text("until an administrator resumes it; its user cannot")
            dialog.get_by_role("button", name=re.compile("^Release the GPU")).click()
            kernels[group].expect(ev.Revoke)
            kernels[group].release()
            expect(page.get_by_role("status")).to_have_text(f"Released the GPU held by {name}.")
        row = page.get_by_role("row").filter(has_text="python eval.py")
        expect(row).to_contain_text("idle")


def test_a_former_administrator_gets_an_error(
    browser: Browser, hub_api: HubApi, service: HubService, kernels: dict[str, FakeClient]
) -> None:
    former = hub_api.token("former", "custom:gpushare:admin")
    with opened(browser, hub_api, service, former) as page:
        page.get_by_role("button", name="Actions for sweep.ipynb").click()
        hub_api.models[former]["scopes"] = ["custom:gpushare:read"]
        page.get_by_role("dialog").get_by_role("button", name="Evict its memory").click()
        expect(page.get_by_role("alert")).to_contain_text("Failed: you are not a GPU administrator")


def test_the_page_reconnects_to_a_restarted_service(
    browser: Browser, folder: Path, hub_api: HubApi, node: Node, token: str, ada: str
) -> None:
    environ, log = hub_api.environ(token), folder / "gone.log"
    arguments = ("--socket", str(node.socket), "--name", "gpu1")
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(HubService(environ, log, *arguments))
        port = int(service.url.split(":")[2].split("/")[0])
        page = stack.enter_context(opened(browser, hub_api, service, ada))
        service.__exit__(None, None, None)
        expect(page.get_by_role("alert")).to_contain_text("connection lost")
        expect(page.locator("#link")).to_contain_text("the data may be out of date")
        # The user stays logged in.
        stack.enter_context(HubService(environ, log, *arguments, port=port))
        expect(page.get_by_text("live", exact=True)).to_be_visible()


def test_a_full_history_drops_the_oldest_entries(
    browser: Browser, folder: Path, hub_api: HubApi, token: str, admin: str
) -> None:
    config = folder / "short.py"
    config.write_text("c.GpuShareHub.history = 1\n")
    with machine(folder, "gpu5", hub_api) as node:
        arguments = ("--socket", str(node.socket), "--name", "gpu5", "--config", str(config))
        with (
            HubService(hub_api.environ(token), folder / "short.log", *arguments) as service,
            opened(browser, hub_api, service, admin) as page,
        ):
            with ControlClient(node.socket, timeout=PATIENCE) as control:
                # As many as the scheduler reports.
                for _ in range(LAST):
                    control.request("maintenance", text="")
            show(page, "History")
            events = page.get_by_role("list", name="Events")
            actions = page.get_by_role("list", name="Audit log").get_by_role("listitem")
            expect(actions).to_have_count(LAST)
            for on, event, action in (
                (True, "GPU 1 is draining", "hedy drained GPU 1"),
                (False, "GPU 1 accepts leases again", "hedy stopped draining GPU 1"),
            ):
                answer = service.ask("api/nodes/gpu5/drain", admin, {"gpu": "1", "on": on})
                assert answer.status == 200, answer.text
                expect(events.get_by_role("listitem")).to_contain_text([event])
                expect(actions.first).to_contain_text(action)
