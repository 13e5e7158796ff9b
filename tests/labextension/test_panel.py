# SPDX-License-Identifier: BSD-3-Clause
"""The panel in JupyterLab, with notebooks that only the scheduler knows."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Request, Route, expect

from jupyter_gpushare.scheduler.core import messages as ev
from tests.labextension.crowd import Crowd, size
from tests.support.lab import Lab
from tests.support.lab_page import THEMES, LabPage, overflowing

pytestmark = pytest.mark.browser

STATUS = "**/gpushare/api/status*"

HEBREW = "ניסוי 12 חדש.ipynb"

CHINESE = "深度学习训练实验.ipynb"

#: JupyterLab asks for the Jupyter kernels, as it does every ten seconds.
REFRESH = "() => window.jupyterapp.serviceManager.kernels.refreshRunning().catch(() => null)"

LONG = "a/" * 20 + "the-notebook-whose-name-says-everything-about-what-it-does-" * 3 + ".ipynb"


@pytest.fixture
def crowd(runtime: Path, gpu: dict[str, Any], page: LabPage) -> Iterator[Crowd]:
    """Return an empty crowd. Afterwards the panel is empty again."""
    with Crowd(runtime / "s.sock", gpu) as crowd:
        yield crowd
    expect(page.panel.get_by_role("listitem")).to_have_count(0)


def contend(crowd: Crowd, page: LabPage) -> None:
    """Add a running, an idle and two waiting notebooks, the first of which is the active one."""
    crowd.running("deep/train.ipynb", 0.6)
    crowd.idle("explore.ipynb", 0.12)
    crowd.waiting("plots.ipynb", 0.45, group=page.kernel_of("plots.ipynb"))
    crowd.waiting("evaluate.ipynb", 0.4)
    expect(page.row("Waiting", "evaluate.ipynb")).to_be_visible()


def test_the_empty_panel_shows_that_no_notebook_uses_the_gpu(page: LabPage) -> None:
    expect(
        page.panel.get_by_role("heading", name="No notebook is using the GPU yet")
    ).to_be_visible()
    expect(page.panel).to_contain_text(f"of {size(1)}")


def test_running_and_waiting_notebooks_appear_by_push_with_the_reason(
    crowd: Crowd, page: LabPage, lab: Lab
) -> None:
    holder = crowd.running("deep/train.ipynb", 0.75)
    running = page.row("Running", "train.ipynb")
    expect(running).to_contain_text(size(0.75))

    waiter = crowd.waiting("plots.ipynb", 0.75, group=page.kernel_of("plots.ipynb"))
    waiting = page.row("Waiting", "plots.ipynb")
    expect(waiting).to_contain_text("This notebook")
    expect(page.card).to_contain_text("Waiting, 1st")
    expect(page.card).to_contain_text("more; train has the GPU")
    expect(waiting.get_by_role("img", name="position 1")).to_be_visible()
    expect(page.panel.get_by_role("status")).to_contain_text("plots")
    expect(page.status_item).to_contain_text("1st")

    running.hover()
    running.get_by_role("button", name="Release").click()
    holder.expect(ev.Revoke)
    holder.release()
    holder.evict()
    waiter.take()
    expect(page.row("Running", "plots.ipynb")).to_be_visible()
    expect(page.row("Idle", "train.ipynb")).to_contain_text("in host memory")
    expect(page.section("Waiting")).to_have_count(0)
    expect(page.status_item).to_contain_text("running")


def test_every_action_is_possible_with_the_keyboard(crowd: Crowd, page: LabPage, lab: Lab) -> None:
    crowd.idle("explore.ipynb", 0.1)
    row = page.row("Idle", "explore.ipynb")
    expect(row).to_be_visible()
    page.panel.get_by_role("button").first.focus()
    reached = []
    for _ in range(30):
        label = page.page.evaluate(
            "() => [document.activeElement.title, document.activeElement.textContent].join(' ')"
        )
        reached.append(label)
        if "Let others go first" in label:
            break
        page.page.keyboard.press("Tab")
    assert "Let others go first" in reached[-1], reached
    # What has the focus can be seen.
    expect(page.page.locator("*:focus")).to_be_in_viewport()
    page.page.keyboard.press("Enter")
    expect(row.get_by_role("button", name="Make interactive")).to_be_visible()
    (group,) = lab.status()["groups"]
    assert group["preferences"]["priority"] == "background"

    page.page.keyboard.press("Escape")
    row.get_by_role("button", name="More actions").focus()
    page.page.keyboard.press("Enter")
    menu = page.page.get_by_role("menu")
    expect(menu.get_by_role("menuitem", name="Keep")).to_be_visible()
    page.page.keyboard.press("Escape")
    expect(row.get_by_role("button", name="More actions")).to_be_focused()


def test_the_tooltip_of_a_reason_explains_the_order_of_the_queue(
    crowd: Crowd, page: LabPage
) -> None:
    page.resize_panel(320)
    crowd.running("train.ipynb", 0.6)
    crowd.waiting("first.ipynb", 0.5)
    expect(page.row("Waiting", "first.ipynb")).to_be_visible()
    crowd.waiting("second.ipynb", 0.5)
    rule = re.compile(r"^first is ahead: it has been waiting .* longer$", re.MULTILINE)
    reason = page.row("Waiting", "second.ipynb").locator(".jp-GpuShare-reason")
    reason.hover()
    expect(reason).to_have_attribute("title", rule)
    page.panel.get_by_role("heading", name="GPU sharing").hover()
    expect(reason).not_to_have_attribute("title", rule)
    # Keyboard users see it as text.
    reason.focus()
    page.page.keyboard.press("Shift+Tab")
    page.page.keyboard.press("Tab")
    expect(reason).to_be_focused()
    expect(reason).to_have_attribute("title", rule)
    shown = "element => getComputedStyle(element, '::after').content"
    assert "first is ahead" in reason.evaluate(shown)
    assert overflowing(page.panel) == []
    page.picture("panel-why", page.panel)


def test_dangerous_actions_ask_first(crowd: Crowd, page: LabPage, lab: Lab) -> None:
    crowd.idle("explore.ipynb", 0.1)
    row = page.row("Idle", "explore.ipynb")
    row.hover()
    row.get_by_role("button", name="More actions").click()
    page.page.get_by_role("menuitem", name="Freeze").click()
    dialog = page.page.get_by_role("dialog")
    expect(dialog).to_contain_text("explore.ipynb")
    dialog.get_by_role("button", name="Cancel").click()
    assert lab.status()["groups"][0]["preferences"]["frozen"] is False
    row.get_by_role("button", name="More actions").click()
    page.page.get_by_role("menuitem", name="Freeze").click()
    dialog.get_by_role("button").last.click()
    expect(row).to_contain_text("frozen")
    assert lab.status()["groups"][0]["preferences"]["frozen"] is True


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_can_be_read(theme: str, crowd: Crowd, page: LabPage) -> None:
    contend(crowd, page)
    page.set_theme(theme)
    assert page.violations("#jupyter-gpushare-panel", "#jp-main-statusbar") == []
    assert overflowing(page.panel) == []
    page.set_theme("JupyterLab Light")


def name_everything(crowd: Crowd, page: LabPage) -> None:
    """Let notebooks with long names, and with names of several scripts, share the GPU."""
    crowd.idle(CHINESE, 0.1)
    crowd.running(HEBREW, 0.6)
    crowd.waiting("plots.ipynb", 0.5, group=page.kernel_of("plots.ipynb"))
    crowd.waiting(LONG, 0.5)
    expect(page.section("Waiting").get_by_role("listitem")).to_have_count(2)


@pytest.mark.parametrize(("width", "picture"), [(250, "panel-narrow"), (400, "panel-wide")])
def test_names_of_any_length_and_script_fit(
    width: int, picture: str, crowd: Crowd, page: LabPage
) -> None:
    name_everything(crowd, page)
    page.resize_panel(width)
    assert overflowing(page.panel) == []
    assert overflowing(page.status_item) == []
    page.picture(picture, page.panel)
    page.panel.get_by_role("group", name="GPU 0, ").get_by_role("button").click()
    assert overflowing(page.panel) == []
    page.panel.get_by_role("group", name="GPU 0, ").get_by_role("button").click()


def test_the_panel_can_be_read_at_200_percent(crowd: Crowd, page: LabPage) -> None:
    name_everything(crowd, page)
    # At twice the size, a window has half as many pixels of the style sheet in each direction.
    page.page.set_viewport_size({"width": 640, "height": 400})
    try:
        assert overflowing(page.panel) == []
        expect(page.card).to_be_in_viewport()
        page.picture("panel-zoom")
    finally:
        page.page.set_viewport_size({"width": 1280, "height": 800})


def test_forty_notebooks_fit_into_the_panel(crowd: Crowd, page: LabPage) -> None:
    crowd.running("holder.ipynb", 0.6)
    crowd.waiting("next.ipynb", 0.5)
    for index in range(38):
        crowd.idle(f"idle-{index}.ipynb", 0.005)
    every = page.panel.get_by_role("button", name="Show all 38")
    expect(every).to_be_visible()
    page.picture("panel-40")
    # The ones that matter are seen without scrolling.
    expect(page.row("Waiting", "next.ipynb")).to_be_in_viewport()
    every.click()
    expect(page.panel.get_by_role("listitem")).to_have_count(40)
    assert overflowing(page.panel) == []
    page.panel.get_by_role("button", name="Show fewer").click()


def test_notebooks_with_the_same_name_show_their_folders(crowd: Crowd, page: LabPage) -> None:
    crowd.idle("deep/train.ipynb", 0.1)
    expect(page.row("Idle", "train.ipynb")).to_be_visible()
    crowd.idle("wide/train.ipynb", 0.1)
    expect(page.row("Idle", "wide/train.ipynb")).to_be_visible()
    expect(page.row("Idle", "deep/train.ipynb")).to_be_visible()


def test_names_follow_renames_and_mark_consoles(crowd: Crowd, page: LabPage, lab: Lab) -> None:
    crowd.idle("plots.ipynb", 0.1, group=page.kernel_of("plots.ipynb"))
    expect(page.card).to_contain_text("plots.ipynb")
    rename = "names => window.jupyterapp.serviceManager.contents.rename(...names)"
    page.page.evaluate(rename, ["plots.ipynb", "curves.ipynb"])
    expect(page.card).to_contain_text("curves.ipynb")
    page.page.evaluate(rename, ["curves.ipynb", "plots.ipynb"])
    expect(page.card).to_contain_text("plots.ipynb")

    page.execute("console:create", {"kernelPreference": {"name": "python3"}})
    page.page.locator(".jp-ConsolePanel").wait_for()
    crowd.idle("console-1", 0.1, group=page.kernel_of("console"))
    expect(page.card).to_contain_text("Console 1 (python)")

    other = {"path": "deep/train.ipynb", "name": "train.ipynb", "type": "notebook"}
    lab.post("api/sessions", {**other, "kernel": {"id": page.kernel_of("plots.ipynb")}})
    page.page.evaluate("() => window.jupyterapp.serviceManager.sessions.refreshRunning()")
    expect(page.row("Idle", "plots.ipynb and train.ipynb")).to_be_visible()


def test_a_hidden_page_sends_no_requests(runtime: Path, gpu: dict[str, Any], page: LabPage) -> None:
    asked: list[str] = []

    def note(request: Any) -> None:
        # The report of the active notebook may be late.
        if "gpushare/api/" in request.url and "gpushare/api/focus" not in request.url:
            asked.append(f"{request.method} {request.url}")

    page.page.on("request", note)
    with page.page.expect_request("**/gpushare/api/watchers/*"):
        page.hide(True)
    asked.clear()
    try:
        with Crowd(runtime / "s.sock", gpu) as crowd:
            crowd.idle("unseen.ipynb", 0.1)
            # Long enough for a delta to have come if anybody had asked for it.
            page.page.wait_for_timeout(500)
            assert asked == []
            expect(page.panel.get_by_role("listitem")).to_have_count(0)
            page.hide(False)
            expect(page.row("Idle", "unseen.ipynb")).to_be_visible()
            # All that is shown is one watcher.
            watchers = [url.partition("watch=")[2].partition("&")[0] for url in asked]
            assert len({watcher for watcher in watchers if watcher}) == 1
    finally:
        # The tests that come next look at the page.
        page.hide(False)
        page.page.remove_listener("request", note)


def test_a_lost_connection_recovers(crowd: Crowd, page: LabPage) -> None:
    crowd.idle("before.ipynb", 0.1)
    expect(page.row("Idle", "before.ipynb")).to_be_visible()
    page.context.set_offline(True)
    try:
        # JupyterLab also reports the lost connection if it sends a request now. While its dialog is open, no notebook
        # can be activated.
        page.page.evaluate(REFRESH)
        dialog = page.page.get_by_role("dialog").filter(has_text="Server Connection Error")
        dialog.get_by_role("checkbox", name="Do not show this message again").check()
        dialog.get_by_role("button", name="Close").click()
        dialog.wait_for(state="detached")
        page.close_sockets()
        page.ask()
        expect(
            page.panel.get_by_role("heading", name="The Jupyter server is not responding")
        ).to_be_visible()
        # What was known stays.
        expect(page.row("Idle", "before.ipynb")).to_be_visible()
        crowd.idle("meanwhile.ipynb", 0.1)
    finally:
        # The tests that come next look at the page.
        page.context.set_offline(False)
    expect(page.row("Idle", "meanwhile.ipynb")).to_be_visible()
    # And by push again.
    crowd.idle("later.ipynb", 0.1)
    expect(page.row("Idle", "later.ipynb")).to_be_visible()


def test_the_panel_recovers_from_a_killed_scheduler(
    runtime: Path, gpu: dict[str, Any], page: LabPage, lab: Lab
) -> None:
    with Crowd(runtime / "s.sock", gpu) as crowd:
        crowd.idle("dying.ipynb", 0.1)
        expect(page.row("Idle", "dying.ipynb")).to_be_visible()
        os.kill(lab.status()["scheduler"]["pid"], signal.SIGKILL)
        expect(page.panel.get_by_role("listitem")).to_have_count(0)
    lab.shared_status()
    with Crowd(runtime / "s.sock", gpu) as crowd:
        crowd.idle("afterwards.ipynb", 0.1)
        expect(page.row("Idle", "afterwards.ipynb")).to_be_visible()


EMPTY = {
    "stream": "x",
    "sequence": 0,
    "may": {"adjust": True, "settings": True},
    "settings": None,
    "time": 0,
    "gpus": [],
    "host": None,
    "groups": [],
    "notices": [],
    "unshared": [],
    "timeline": None,
}


@pytest.mark.parametrize(
    ("answer", "heading", "remedy"),
    [
        ({"status": 404}, "The server extension is not running", "jupyter server extension enable"),
        ({"status": 403}, "You do not have permission to see the GPU", "administrator"),
        ({"status": 503}, "The Jupyter server is not responding", "Reconnecting"),
        ({"status": 500, "json": {"message": "Oh."}}, "The GPU is not shared", "Oh."),
        ({"code": "starting"}, "Starting", "is starting"),
        ({"code": "not_started", "error": "E"}, "GPU sharing did not start", "gpushare doctor"),
        ({"code": "no_driver"}, "No NVIDIA driver was found", "GPUSHARE_SIM=1"),
        ({"code": "not_installed", "error": "E"}, "The NVIDIA driver cannot be used", "E"),
        ({"code": "disabled"}, "GPU sharing is turned off", "c.GpuShare.enabled"),
        ({"code": "bad_configuration", "error": "E"}, "Invalid configuration", "E"),
        ({"code": "remote_kernels", "url": "U"}, "Kernels run on another machine", "U"),
        (
            {"code": "scheduler_unreachable", "socket": "S", "error": "E"},
            "The scheduler is not responding",
            "gpushare doctor",
        ),
        (
            {"code": "provisioner_not_default", "provisioner": "P"},
            "Kernels of this server do not share the GPU",
            "default_provisioner_name",
        ),
        ({"code": "ok"}, "No GPU was found", "gpushare doctor"),
    ],
)
def test_an_empty_panel_explains_the_reason(
    answer: dict[str, Any], heading: str, remedy: str, page: LabPage
) -> None:
    if code := answer.get("code"):
        params = {key: value for key, value in answer.items() if key != "code"}
        answer = {"json": {**EMPTY, "availability": {"code": code, "params": params}}}

    def fulfil(route: Route) -> None:
        route.fulfill(**answer)

    page.page.route(STATUS, fulfil)
    page.ask()
    expect(page.panel.get_by_role("heading", name=heading)).to_be_visible()
    expect(page.panel).to_contain_text(remedy)
    assert overflowing(page.panel) == []
    page.page.unroute(STATUS)
    page.ask()
    expect(
        page.panel.get_by_role("heading", name="No notebook is using the GPU yet")
    ).to_be_visible()


def test_the_page_reports_the_active_notebook(page: LabPage) -> None:
    plots = page.kernel_of("plots.ipynb")

    def reports(*, plots_in_front: bool) -> Callable[[Request], bool]:
        def matches(request: Request) -> bool:
            if "gpushare/api/focus" not in request.url:
                return False
            kernel = request.post_data_json["kernel_id"]
            return kernel is not None and (kernel == plots) == plots_in_front

        return matches

    with page.page.expect_request(reports(plots_in_front=False)):
        page.execute("docmanager:open", {"path": "train.ipynb"})
    # The first report may be about another notebook, so wait until this one is in front.
    page.page.wait_for_function(
        "window.jupyterapp.shell.currentWidget?.title.label === 'train.ipynb'"
    )
    with page.page.expect_request(reports(plots_in_front=True)):
        page.execute("docmanager:open", {"path": "plots.ipynb"})


def test_the_settings_take_effect(page: LabPage) -> None:
    page.execute("settingeditor:open", {"query": "GPU sharing"})
    units = page.page.locator("select[id='jp-SettingsEditor-jupyter-gpushare:plugin_units']")
    units.select_option(label="Decimal: 1 GB is 1000 MB")
    expect(page.panel).to_contain_text(re.compile("[GM]B"))
    units.select_option(label="Binary: 1 GiB is 1024 MiB")
    expect(page.panel).to_contain_text(re.compile("[GM]iB"))
