# SPDX-License-Identifier: BSD-3-Clause
"""The built extension in the oldest JupyterLab that it supports (`make test-lower-bounds`).

The server and JupyterLab's pages come from the environment with the lowest version of every dependency. The browser
is driven from the environment of the other tests, by their page object. Galata, JupyterLab's own page object, would
need the Node packages of that JupyterLab and a browser of its own, and would test nothing more here.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from playwright.sync_api import expect

from tests.labextension.crowd import Crowd, size
from tests.support.lab_page import LabPage

pytestmark = pytest.mark.browser

#: The plugins of this extension, and whether each is active.
PLUGINS = """() => Object.fromEntries(
  window.jupyterapp.listPlugins()
    .filter(id => id.startsWith('jupyter-gpushare:'))
    .map(id => [id, window.jupyterapp.isPluginActivated(id)])
)"""


@pytest.fixture(scope="module")
def python(root: Path) -> str:
    """Return the interpreter with the lowest version of every dependency."""
    path = root / "build" / "lower-bounds" / "bin" / "python"
    if not path.exists():
        pytest.skip("no environment with the lowest versions (make test-lower-bounds)")
    return str(path)


@pytest.fixture(scope="module")
def crowd(runtime: Path, gpu: dict[str, Any], page: LabPage) -> Iterator[Crowd]:
    """Return a crowd in which the notebook in front is running on the GPU, and another is waiting."""
    with Crowd(runtime / "s.sock", gpu) as crowd:
        crowd.running("plots.ipynb", 0.5, group=page.kernel_of("plots.ipynb"))
        crowd.waiting("evaluate.ipynb", 0.75)
        yield crowd


def test_it_is_the_oldest_and_every_plugin_is_active(page: LabPage) -> None:
    requirements = map(Requirement, importlib.metadata.requires("jupyter-gpushare") or [])
    (bound,) = {
        specifier.version
        for requirement in requirements
        for specifier in requirement.specifier
        if requirement.name == "jupyterlab"
    }
    version = page.page.evaluate("() => window.jupyterapp.version")
    assert f"{version}.".startswith(f"{bound}."), version
    plugins = page.page.evaluate(PLUGINS)
    assert len(plugins) >= 8
    assert all(plugins.values()), plugins


def test_panel_notebook_and_status_bar_show_the_state(crowd: Crowd, page: LabPage) -> None:
    expect(page.row("Running", "plots.ipynb")).to_be_visible()
    expect(page.row("Waiting", "evaluate.ipynb")).to_be_visible()
    expect(page.chip).to_contain_text("GPU: running")
    expect(page.status_item).to_contain_text("GPU: running")


def test_the_menus_of_jupyterlab_offer_what_the_schema_declares(
    crowd: Crowd, page: LabPage
) -> None:
    tab = page.page.locator("#jp-main-dock-panel .lm-TabBar-tab").filter(has_text="plots.ipynb")
    tab.click(button="right")
    menu = page.page.get_by_role("menu")
    expect(menu.get_by_text("Release the GPU", exact=True)).to_be_visible()
    page.page.keyboard.press("Escape")
    page.page.get_by_role("menuitem", name="View").click()
    menu.get_by_text("Show GPU Timeline", exact=True).click()
    timeline = page.page.locator("#jupyter-gpushare-timeline")
    expect(timeline.get_by_role("slider")).to_contain_text("evaluate")


def test_the_sidebar_of_running_kernels_has_its_section(crowd: Crowd, page: LabPage) -> None:
    page.execute("running:show-panel")
    item = page.page.locator("#jp-running-sessions .jp-GpuShare-running")
    expect(item).to_contain_text(f"running · {size(0.5)}")
    page.picture("oldest-jupyterlab")
