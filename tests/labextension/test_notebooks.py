# SPDX-License-Identifier: BSD-3-Clause
"""Real notebooks that contend for the GPU, in JupyterLab and in Notebook 7: what one sees in them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, expect

from tests.support.lab import Lab
from tests.support.lab_page import (
    THEMES,
    LabPage,
    notebook,
    overflowing,
    write_settings,
)

pytestmark = pytest.mark.browser

#: Takes three quarters of the GPU's memory.
ALLOCATE = """\
import os
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, launch

SOURCE = '__global__ void step(float *x) { x[blockIdx.x] += 1; }'
device = Device()
device.set_current()
stream = device.create_stream()
compiled = Program(SOURCE, "c++").compile("cubin", name_expressions=["step"])
step, grid = compiled.get_kernel("step"), LaunchConfig(grid=400, block=1)
_, free, total = driver.cuMemGetInfo()
data = device.allocate(total * 3 // 4, stream=stream)
"""

#: Always has work on the GPU, even on a busy machine, because an idle GPU would be granted to the waiting notebook.
TRAIN = """\
steps = []
while not os.path.exists("stop"):
    launch(stream, grid, step, data)
    steps.append(stream.record())
    if len(steps) > 300:
        steps.pop(0).sync()
stream.sync()
print("trained")
"""

PLOT = """\
launch(stream, grid, step, data)
stream.sync()
print("plotted")
"""

#: The kernel of the notebook in front has answered, and the first cell is selected.
READY = """async () => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
  content.activeCellIndex = 0;
}"""

#: Another client of the kernel runs the cells of the notebook in front, and the document marks them as running: so do
#: extensions that run cells on the server.
RUN_ON_SERVER = """async () => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  const { kernel } = sessionContext.session;
  await kernel.info;
  const client = window.jupyterapp.serviceManager.kernels.connectTo({ model: kernel.model });
  for (const { model: { sharedModel } } of content.widgets) {
    sharedModel.executionState = 'running';
    const future = client.requestExecute({ code: sharedModel.getSource() });
    future.done.finally(() => { sharedModel.executionState = 'idle'; });
  }
}"""

SHUT_DOWN = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()"


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    """Return a GPU whose memory a test may fill, and whose CUDA kernels take a while, but no time of a processor."""
    return {
        "GPUSHARE_SIM_MEMORY": "128MiB",
        "GPUSHARE_SIM_CONTEXT": "2MiB",
        "GPUSHARE_SIM_KERNEL_NS": "5000000",
    }


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Lab:
    """Return the server, whose notebooks use the GPU, and whose user is impatient."""
    write_settings(lab, "jupyter-gpushare/plugin", {"notificationDelay": 1})
    (lab.notebooks / "train.ipynb").write_text(json.dumps(notebook(ALLOCATE, TRAIN)))
    for name in ("plots.ipynb", "evaluate.ipynb", "remote.ipynb"):
        (lab.notebooks / name).write_text(json.dumps(notebook(ALLOCATE, PLOT)))
    return lab


def run_next(page: LabPage) -> None:
    """Run the selected cell of the notebook in front, with the toolbar's button."""
    page.front.get_by_role("button", name="Run this cell and advance").click()


def run(page: LabPage) -> None:
    """Run both cells of the notebook in front."""
    page.page.evaluate(READY)
    run_next(page)
    run_next(page)


def cell(page: LabPage, index: int) -> Locator:
    return page.front.locator(".jp-CodeCell").nth(index)


@pytest.fixture(scope="module")
def contention(lab: Lab, page: LabPage) -> Iterator[None]:
    """Two notebooks want the GPU: train.ipynb has it, and plots.ipynb, in front, waits."""
    # Room for what is to be seen.
    page.execute("application:toggle-left-area")
    page.resize_panel(320)
    page.execute("docmanager:open", {"path": "train.ipynb"})
    run(page)
    expect(page.row("Running", "train.ipynb")).to_be_visible()
    # Otherwise the scheduler would move it to the background after some seconds and preempt it.
    group = page.kernel_of("train.ipynb")
    lab.post("gpushare/api/adjust", {"group": group, "priority": "interactive"})
    page.execute("docmanager:open", {"path": "plots.ipynb"})
    run(page)
    expect(page.row("Waiting", "plots.ipynb")).to_be_visible()
    yield
    (lab.notebooks / "stop").touch()


def test_all_views_show_the_running_and_the_waiting_notebook_and_the_reason(
    contention: None, page: LabPage
) -> None:
    expect(page.row("Running", "train.ipynb")).to_be_visible()
    expect(page.row("Waiting", "plots.ipynb")).to_contain_text("This notebook")
    expect(page.card).to_contain_text("Waiting, 1st")
    expect(page.card).to_contain_text("more; train has the GPU")
    expect(page.chip).to_contain_text("waiting, 1st")
    expect(page.status_item).to_contain_text("1st")
    strip = cell(page, 1).locator(".jp-GpuShare-strip")
    expect(strip).to_contain_text("1st")
    expect(strip).to_contain_text("train")
    for action in ("Go to train", "Let others go first"):
        expect(strip.get_by_role("button", name=action)).to_be_visible()
    text = "plots is waiting for the GPU: 1st in the queue. train is using it"
    expect(page.notification).to_contain_text(text)
    page.picture("notification")
    page.dismiss_notification()


def test_a_busy_gpus_line_fits_into_a_panel_of_any_width(contention: None, page: LabPage) -> None:
    line = page.panel.get_by_role("group", name="GPU 0, ")
    for width in (250, 340, 420, 320):
        page.resize_panel(width)
        expect(line).to_contain_text("% busy")
        assert overflowing(page.panel) == []


@pytest.mark.parametrize("theme", THEMES)
def test_every_theme_can_be_read(theme: str, contention: None, page: LabPage) -> None:
    page.set_theme(theme)
    found = page.violations(
        "#jupyter-gpushare-panel",
        ".jp-GpuShare-chip",
        ".jp-GpuShare-strip",
        ".jp-GpuShare-statusItem",
    )
    assert found == []
    for part in (page.panel, page.chip, page.strip, page.status_item):
        assert overflowing(part) == []
    name = theme.removeprefix("JupyterLab ").lower().replace(" ", "-")
    page.picture(f"lab-{name}")
    page.picture(f"panel-{name}", page.panel)
    if theme == THEMES[0]:
        # docs/how-to/panel.md explains these parts by their numbers.
        parts = (
            page.card.locator(".jp-GpuShare-cardState"),
            page.card.locator(".jp-GpuShare-cardMemory"),
            page.card.locator(".jp-GpuShare-cardActions"),
            page.row("Running", "train.ipynb").locator(".jp-GpuShare-name"),
            page.row("Waiting", "plots.ipynb"),
            page.panel.locator(".jp-GpuShare-gpu .jp-GpuShare-line").first,
            page.panel.locator(".jp-GpuShare-lanes"),
        )
        page.numbered_picture("panel-numbered", page.panel, parts)
    page.set_theme("JupyterLab Light")


def test_notebook_7_shows_panel_chip_and_strip(
    contention: None, browser: Browser, lab: Lab
) -> None:
    page = LabPage(browser, lab)
    page.open("notebooks/evaluate.ipynb")
    page.page.evaluate(READY)
    run_next(page)
    expect(cell(page, 0).locator(".jp-InputPrompt")).to_have_text("[1]:")
    # Otherwise it could go first: it is active, and the expected length of bursts depends on the machine.
    group = page.kernel_of("evaluate.ipynb")
    lab.post("gpushare/api/adjust", {"group": group, "priority": "background"})
    run_next(page)
    expect(page.chip).to_contain_text("waiting, 2nd")
    strip = cell(page, 1).locator(".jp-GpuShare-strip")
    expect(strip).to_contain_text("2nd")
    page.chip.click()
    page.page.get_by_role("menuitem", name="Show GPU Sharing").click()
    expect(page.row("Running", "train.ipynb")).to_be_visible()
    expect(page.row("Waiting", "plots.ipynb")).to_be_visible()
    expect(page.row("Waiting", "evaluate.ipynb")).to_contain_text("This notebook")
    parts = ("#jupyter-gpushare-panel", ".jp-GpuShare-chip", ".jp-GpuShare-strip")
    assert page.violations(*parts) == []
    for part in (page.panel, page.chip, page.strip):
        assert overflowing(part) == []
    page.dismiss_notification()
    page.picture("notebook-7")
    page.close()


def test_the_chip_is_visible_between_both_sidebars(contention: None, page: LabPage) -> None:
    # The page is 1280 pixels wide: the toolbar moves what does not fit to a menu.
    page.execute("application:toggle-left-area")
    try:
        toolbar = page.front.get_by_role("toolbar").first
        expect(toolbar.locator(".jp-Toolbar-responsive-opener")).to_be_visible()
        expect(toolbar.locator(".jp-GpuShare-chip")).to_be_visible()
    finally:
        page.execute("application:toggle-left-area")


def test_a_cell_that_the_server_runs_has_its_strip(contention: None, page: LabPage) -> None:
    page.execute("docmanager:open", {"path": "remote.ipynb"})
    try:
        page.page.evaluate(RUN_ON_SERVER)
        expect(cell(page, 1).locator(".jp-GpuShare-strip")).to_contain_text("2nd")
        assert page.strip.count() == 1
    finally:
        page.page.evaluate(SHUT_DOWN)
        page.execute("docmanager:open", {"path": "plots.ipynb"})
    expect(page.row("Waiting", "remote.ipynb")).to_have_count(0)


def test_release_in_the_panel_lets_the_other_notebook_run(
    contention: None, page: LabPage, lab: Lab
) -> None:
    row = page.row("Running", "train.ipynb")
    row.hover()
    row.get_by_role("button", name="Release").click()
    expect(cell(page, 1).locator(".jp-OutputArea")).to_contain_text("plotted")
    strip = cell(page, 1).locator(".jp-GpuShare-strip")
    expect(strip).to_contain_text("waited")
    expect(strip).to_contain_text("ran")
    expect(page.notification).to_have_count(0)
    # The preempted notebook continues.
    expect(page.row("Running", "train.ipynb")).to_be_visible()
    page.picture("waited", cell(page, 1))

    page.execute("docmanager:save")
    saved = json.loads((lab.notebooks / "plots.ipynb").read_text())
    assert saved["cells"][1]["outputs"][0]["text"] == ["plotted\n"]
    assert "gpushare" not in json.dumps(saved).lower()
    assert "waited" not in json.dumps(saved)


def test_a_long_cell_is_moved_to_the_background(contention: None, page: LabPage) -> None:
    row = page.row("Running", "train.ipynb")
    row.hover()
    row.get_by_role("button", name="More actions").click()
    menu = page.page.get_by_role("menu")
    menu.get_by_role("menuitem", name="Set Priority Automatically").click()
    # It is in the background: what it is not can be asked for.
    row.hover()
    expect(row.get_by_role("button", name="Make interactive")).to_be_visible()
    row.get_by_role("button", name="More actions").click()
    # There is nothing to leave to itself any more.
    expect(menu.get_by_role("menuitem", name="Automatically")).to_have_count(0)
    menu.get_by_role("menuitem", name="Let Others Go First").click()
    label = row.get_by_text("low priority", exact=True)
    expect(label).to_have_attribute("title", "low priority (set manually)")
    page.execute("docmanager:open", {"path": "train.ipynb"})
    expect(page.chip).to_contain_text("GPU: running, low priority")


def test_a_preempted_cell_finishes_with_the_right_result(
    contention: None, page: LabPage, lab: Lab
) -> None:
    (lab.notebooks / "stop").touch()
    page.execute("docmanager:open", {"path": "train.ipynb"})
    expect(cell(page, 1).locator(".jp-OutputArea")).to_contain_text("trained")
    expect(page.chip).to_contain_text("idle")
    expect(page.status_item).to_contain_text("idle")
