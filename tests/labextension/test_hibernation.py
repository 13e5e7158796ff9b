# SPDX-License-Identifier: BSD-3-Clause
"""Real notebooks that hibernate and wake: what one sees and does in JupyterLab."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, expect

from tests.support.lab import Lab, hibernator_of
from tests.support.lab_page import SCREENSHOTS, THEMES, LabPage, notebook, overflowing
from tests.support.notebook import SETUP
from tests.support.stopping import stopped

pytestmark = pytest.mark.browser

USE = "print('found' if data.read() == known else 'lost')"

#: Is busy until the file `stop` exists.
WORK = """\
import os
while not os.path.exists('stop'):
    data.read()
"""


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Lab:
    """Return the server, whose notebooks use the GPU."""
    for name in ("plots.ipynb", "train.ipynb"):
        (lab.notebooks / name).write_text(json.dumps(notebook(SETUP, USE, WORK)))
    return lab


@pytest.fixture(scope="module")
def notebooks(page: LabPage) -> LabPage:
    """Two notebooks that have used the GPU, the one in front last."""
    page.execute("application:toggle-left-area")
    page.resize_panel(340)
    for name in ("train.ipynb", "plots.ipynb"):
        page.execute("docmanager:open", {"path": name})
        page.run_cell(0)
        page.run_cell(1)
        expect(page.output_of(1)).to_have_text("found")
        expect(page.card).to_contain_text(name)
        expect(page.card).to_contain_text("Idle")
    return page


def choose(page: LabPage, row: Locator, action: str) -> None:
    """Choose what is in a row's menu."""
    row.hover()
    row.get_by_role("button", name="More actions").click()
    page.page.get_by_role("menuitem", name=action).click()


def test_a_notebook_hibernates_and_its_next_cell_wakes_it(notebooks: LabPage, lab: Lab) -> None:
    page = notebooks
    assert lab.status()["gpus"][0]["contexts"] > 0
    row = page.row("Idle", "train.ipynb")
    choose(page, row, "Hibernate Now")
    expect(row).to_contain_text(re.compile(r"hibernated for .* · wakes in about"))
    choose(page, page.card, "Hibernate Now")
    expect(page.card).to_contain_text("Hibernated")
    freed = re.compile(r"freed [\d.]+\sMiB of GPU memory · wakes in about")
    expect(page.card).to_contain_text(freed)
    # What the driver leaves of two contexts.
    assert lab.status()["gpus"][0]["contexts"] == 2 * 4 << 20
    expect(page.chip).to_have_text("GPU: hibernated")
    expect(page.status_item).to_have_text("GPU: hibernated")
    page.resize_panel(240)
    assert overflowing(page.panel) == []
    page.resize_panel(340)
    for theme in THEMES:
        page.set_theme(theme)
        assert page.violations("#jupyter-gpushare-panel", "#jp-main-statusbar") == []
        assert overflowing(page.panel) == []
        page.picture(f"hibernated {theme}")
    page.set_theme("JupyterLab Light")

    # Until all is seen, nothing is woken.
    with stopped(hibernator_of(lab)):
        page.run_cell(1)
        expect(page.row("Waiting", "plots.ipynb")).to_contain_text("This notebook")
        expect(page.card).to_contain_text("Waking up")
        expect(page.chip).to_have_text("GPU: waking")
        expect(page.status_item).to_contain_text("waking")
        expect(page.strip).to_contain_text("waking")
        assert overflowing(page.panel) == []
        for theme in THEMES if SCREENSHOTS else ():
            page.set_theme(theme)
            page.picture(f"waking {theme}")
        page.set_theme("JupyterLab Light")
    expect(page.card).not_to_contain_text("Hibernated")
    expect(page.output_of(1)).to_have_text("found")
    expect(page.strip).to_contain_text(re.compile(r"waited [\d.]+\ss, ran"))
    expect(page.section("Last 5 minutes")).to_contain_text("hibernated")
    # The other is not disturbed.
    expect(page.row("Idle", "train.ipynb")).to_contain_text("hibernated for")


def test_users_can_wake_a_notebook(notebooks: LabPage) -> None:
    page = notebooks
    row = page.row("Idle", "train.ipynb")
    choose(page, row, "Wake")
    expect(row).not_to_contain_text("hibernated for")
    page.execute("docmanager:open", {"path": "train.ipynb"})
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")


def test_a_busy_notebook_hibernates_when_it_is_idle(notebooks: LabPage, lab: Lab) -> None:
    page = notebooks
    page.run_cell(2)
    expect(page.row("Running", "train.ipynb")).to_be_visible()
    row = page.card
    choose(page, row, "Hibernate When Idle")
    ordered = row.get_by_text("hibernates when idle")
    ordered.focus()
    why = "Will hibernate as soon as it is idle."
    expect(ordered).to_have_attribute("data-explanation", why)
    assert overflowing(page.panel) == []
    for theme in THEMES if SCREENSHOTS else ():
        page.set_theme(theme)
        page.picture(f"hibernates when idle {theme}")
    page.set_theme("JupyterLab Light")
    choose(page, row, "Cancel Hibernation")
    expect(row).not_to_contain_text("hibernates when idle")
    choose(page, row, "Hibernate When Idle")
    (lab.notebooks / "stop").touch()
    expect(row).to_contain_text("Hibernated")
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")
    expect(row).not_to_contain_text("Hibernated")


def test_a_refused_hibernation_is_explained(notebooks: LabPage) -> None:
    page = notebooks
    row = page.card
    choose(page, row, "Keep on the GPU")
    expect(row).to_contain_text("kept on the GPU")
    row.hover()
    row.get_by_role("button", name="More actions").click()
    item = page.page.get_by_role("menuitem", name="Hibernate Now")
    expect(item).to_have_attribute("aria-disabled", "true")
    page.page.keyboard.press("Escape")
    caption = page.page.evaluate(
        "group => window.jupyterapp.commands.caption('gpushare:hibernate', { group })",
        page.kernel_of("train.ipynb"),
    )
    assert caption == "Cannot hibernate now: it is kept on the GPU."
    choose(page, row, "Stop Keeping")


def test_idle_notebooks_hibernate_after_the_configured_time(notebooks: LabPage, lab: Lab) -> None:
    page = notebooks
    mode = page.panel.get_by_role("button", name="How notebooks share the GPU")

    def ask(minutes: str) -> None:
        mode.click()
        page.page.get_by_role("menuitem", name="Set When Idle Notebooks Hibernate").click()
        dialog = page.page.get_by_role("dialog")
        dialog.get_by_role("textbox").fill(minutes)
        dialog.get_by_role("button", name="Set").click()
        dialog.wait_for(state="detached")

    ask("0.01")
    expect(page.card).to_contain_text("Hibernated")
    assert lab.status()["settings"]["hibernate_after"] == pytest.approx(0.6)
    mode.click()
    page.page.get_by_role("menuitemcheckbox", name="Hibernate Idle").click()
    expect(mode).to_have_attribute("title", re.compile("Idle notebooks do not hibernate."))
    assert lab.status()["settings"]["hibernate_after"] is None
