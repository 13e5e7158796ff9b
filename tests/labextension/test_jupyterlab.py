# SPDX-License-Identifier: BSD-3-Clause
"""Where the extension uses JupyterLab's own places: menus, toolbar, sidebar of running kernels, main area."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Response, Route, expect

from tests.labextension.crowd import Crowd, size
from tests.support.lab import Lab
from tests.support.lab_page import THEMES, LabPage, overflowing, write_settings

pytestmark = pytest.mark.browser

STATUS = "**/gpushare/api/status*"

#: What two notebooks did in the last half hour: the notebook, the kind of event, its first and last minute before now.
HISTORY = [
    ("plots.ipynb", "burst", 28, 23),
    ("evaluate.ipynb", "wait", 26, 23),
    ("plots.ipynb", "out", 23, 22.5),
    ("evaluate.ipynb", "in", 23, 22.5),
    ("evaluate.ipynb", "burst", 22.5, 16),
    ("plots.ipynb", "wait", 19, 16),
    ("evaluate.ipynb", "out", 16, 15.5),
    ("plots.ipynb", "in", 16, 15.5),
    ("plots.ipynb", "burst", 15.5, 9),
    ("evaluate.ipynb", "wait", 13, 9),
    ("plots.ipynb", "out", 9, 8.5),
    ("evaluate.ipynb", "in", 9, 8.5),
    ("evaluate.ipynb", "burst", 8.5, 3),
    ("plots.ipynb", "burst", 2, 0.5),
]

#: Where JupyterLab keeps what users set for the toolbar of notebooks.
NOTEBOOK_TOOLBAR = "@jupyterlab/notebook-extension/panel"


@pytest.fixture
def crowd(runtime: Path, gpu: dict[str, Any], page: LabPage) -> Iterator[Crowd]:
    """Return a crowd in which the notebook in front is running on the GPU."""
    with Crowd(runtime / "s.sock", gpu) as crowd:
        crowd.running("plots.ipynb", 0.5, group=page.kernel_of("plots.ipynb"))
        expect(page.row("Running", "plots.ipynb")).to_be_visible()
        yield crowd
    expect(page.panel.get_by_role("listitem")).to_have_count(0)


def toolbar(page: LabPage) -> list[str]:
    """Return the names of the items in the toolbar of the notebook in front, in their order."""
    items = page.front.get_by_role("toolbar").first.locator("> [data-jp-item-name]")
    expect(items.first).to_be_visible()
    names: list[str] = items.evaluate_all("nodes => nodes.map(node => node.dataset.jpItemName)")
    return names


def entries(page: LabPage, target: Locator) -> list[str]:
    """Return the entries about the GPU in a context menu, and close it."""
    target.click(button="right")
    items = page.page.get_by_role("menu").get_by_role("menuitem")
    expect(items.first).to_be_visible()
    texts = items.locator(".lm-Menu-itemLabel").all_inner_texts()
    labels = [text for text in texts if "GPU" in text]
    page.page.keyboard.press("Escape")
    expect(items).to_have_count(0)
    return labels


def reload(page: LabPage) -> None:
    """Load the page again, with the notebook in front and the panel open."""
    page.open("lab/tree/plots.ipynb?reset")
    page.show_panel()


def add_history(route: Route) -> None:
    """Answer a request for the status with a timeline of half an hour, of which a test has only seconds."""
    response = route.fetch()
    status = response.json()
    groups = {group["name"]: group["id"] for group in status["groups"]}
    now, timeline = status["time"], status["timeline"]
    timeline["start"] = now - 30 * 60
    timeline["spans"] += [
        {
            "id": -number,
            "group": groups[name],
            "name": name,
            "kind": kind,
            "start": now - 60 * start,
            "end": now - 60 * end,
            "gpu": None,
            "bytes": 0,
        }
        for number, (name, kind, start, end) in enumerate(HISTORY, 1)
    ]
    route.fulfill(response=response, json=status)


def is_saved(response: Response) -> bool:
    """Whether JupyterLab has saved a layout with a timeline of ten minutes."""
    request = response.request
    saves = request.method == "PUT" and "api/workspaces" in request.url
    return saves and '"minutes":10' in (request.post_data or "").replace("\\", "")


def test_menus_of_tab_file_and_kernel_act_on_a_notebook_that_uses_the_gpu(
    crowd: Crowd, page: LabPage
) -> None:
    wanted = ["Release the GPU", "GPU: Hibernate When Idle", "GPU: Get Ready"]
    tabs = page.page.locator("#jp-main-dock-panel .lm-TabBar-tab")
    assert entries(page, tabs.filter(has_text="plots.ipynb")) == wanted
    page.execute("filebrowser:activate")
    files = page.page.locator(".jp-DirListing-item")
    assert entries(page, files.filter(has_text="plots.ipynb")) == wanted
    # This notebook has no kernel.
    assert entries(page, files.filter(has_text="train.ipynb")) == []
    page.execute("running:show-panel")
    kernel = page.page.locator(".jp-RunningSessions-item.jp-mod-kernel").first
    assert entries(page, kernel) == wanted
    page.execute("filebrowser:activate")


def test_the_sidebar_of_running_kernels_shows_state_and_memory(crowd: Crowd, page: LabPage) -> None:
    page.execute("running:show-panel")
    sidebar = page.page.locator("#jp-running-sessions")
    section = sidebar.get_by_role("region", name="GPU sharing")
    item = section.locator(".jp-RunningSessions-item")
    expect(item).to_have_count(1)
    expect(item).to_contain_text("plots")
    detail = item.locator(".jp-RunningSessions-itemDetail")
    expect(detail).to_have_text(f"running · {size(0.5)}")
    # Nothing of it is cut off, even in a sidebar of the usual width.
    assert detail.evaluate("node => node.scrollWidth <= node.clientWidth")
    for theme in THEMES:
        page.set_theme(theme)
        assert page.violations("#jp-running-sessions .jp-GpuShare-running") == []
    page.set_theme(THEMES[0])
    page.picture("running", sidebar)
    page.execute("filebrowser:activate")


def test_the_view_menu_opens_the_timeline_in_the_main_area(crowd: Crowd, page: LabPage) -> None:
    crowd.waiting("evaluate.ipynb", 0.75)
    page.page.get_by_role("menuitem", name="View").click()
    menu = page.page.get_by_role("menu")
    expect(menu.get_by_role("menuitem", name="Show GPU Sharing")).to_be_visible()
    menu.get_by_role("menuitem", name="Show GPU Timeline").click()
    timeline = page.page.locator("#jupyter-gpushare-timeline")
    expect(timeline.get_by_role("heading", name="Last 30 minutes")).to_be_visible()
    picture = timeline.get_by_role("slider")
    expect(picture).to_contain_text("plots")
    expect(picture).to_contain_text("evaluate")
    for theme in THEMES:
        page.set_theme(theme)
        # The panel shows the same notebooks, so the two must not share labels.
        assert page.violations("#jupyter-gpushare-timeline", "#jupyter-gpushare-panel") == []
        assert overflowing(timeline.locator(".jp-GpuSharePanel")) == []
    page.set_theme(THEMES[0])
    page.hide_panel()
    page.execute("application:toggle-left-area")
    page.page.set_viewport_size({"width": 800, "height": 360})
    page.page.route(STATUS, add_history)
    page.ask()
    expect(picture).to_have_attribute("aria-valuemax", re.compile(r"^\d{2}$"))
    page.picture("timeline")
    page.page.unroute(STATUS)
    page.page.set_viewport_size({"width": 1280, "height": 800})
    page.execute("application:toggle-left-area")
    page.show_panel()
    page.execute("application:close")
    expect(timeline).to_have_count(0)


def test_the_timeline_is_restored_with_its_length(crowd: Crowd, page: LabPage) -> None:
    page.execute("gpushare:open-timeline")
    timeline = page.page.locator("#jupyter-gpushare-timeline")
    with page.page.expect_response(is_saved):
        timeline.get_by_role("combobox", name="Length of the timeline").select_option("10")
    expect(timeline.get_by_role("heading", name="Last 10 minutes")).to_be_visible()
    page.page.reload()
    expect(timeline.get_by_role("heading", name="Last 10 minutes")).to_be_visible()
    page.hide_panel()
    timeline.get_by_role("toolbar").get_by_role("button").click()
    expect(page.panel).to_be_visible()
    page.execute("application:close")
    expect(timeline).to_have_count(0)


def test_users_can_move_and_hide_the_chip_in_the_settings(
    crowd: Crowd, page: LabPage, lab: Lab
) -> None:
    expect(page.chip).to_contain_text("GPU: running")
    names = toolbar(page)
    assert names.index("cellType") < names.index("gpushare") < names.index("spacer")
    try:
        write_settings(lab, NOTEBOOK_TOOLBAR, {"toolbar": [{"name": "gpushare", "rank": 0}]})
        reload(page)
        expect(page.chip).to_contain_text("GPU: running")
        assert toolbar(page)[0] == "gpushare"
        write_settings(lab, NOTEBOOK_TOOLBAR, {"toolbar": [{"name": "gpushare", "disabled": True}]})
        reload(page)
        expect(page.front.get_by_role("toolbar").first).to_be_visible()
        # The status bar shows it, so the extension has loaded and knows the notebook.
        expect(page.status_item).to_contain_text("GPU: running")
        assert "gpushare" not in toolbar(page)
        expect(page.chip).to_have_count(0)
    finally:
        # The page stays as it is: no other test of this file uses the toolbar.
        write_settings(lab, NOTEBOOK_TOOLBAR, {})
