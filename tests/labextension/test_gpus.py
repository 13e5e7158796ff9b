# SPDX-License-Identifier: BSD-3-Clause
"""The panel on a machine with eight GPUs, and names that are written from right to left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.labextension.crowd import MEMORY, Crowd, size
from tests.support.lab_page import LabPage, overflowing

pytestmark = pytest.mark.browser

HEBREW = "ניסוי 12 חדש.ipynb"


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    """Return eight GPUs."""
    return {"GPUSHARE_SIM_DEVICES": "8", "GPUSHARE_SIM_MEMORY": f"{MEMORY}MiB"}


@pytest.fixture(scope="module")
def extensions() -> dict[str, bool]:
    """Return what JupyterLab's pages ask for."""
    return {"jupyter_lsp": True}


@pytest.fixture(scope="module")
def page_config() -> dict[str, Any]:
    """Return no configuration, so that one file of tests uses JupyterLab as it is installed."""
    return {}


@pytest.fixture
def crowd(runtime: Path, gpu: dict[str, Any], page: LabPage) -> Iterator[Crowd]:
    """Return the notebooks of the first GPU."""
    with Crowd(runtime / "s.sock", gpu) as crowd:
        yield crowd
    expect(page.panel.get_by_role("listitem")).to_have_count(0)


def test_this_notebook_and_the_queue_are_seen_first(crowd: Crowd, page: LabPage) -> None:
    crowd.running(HEBREW, 0.6)
    crowd.waiting("next.ipynb", 0.5)
    crowd.idle("plots.ipynb", 0.1, group=page.kernel_of("plots.ipynb"))
    expect(page.card).to_contain_text("plots.ipynb")
    for section, name in (("Running", HEBREW), ("Waiting", "next.ipynb")):
        expect(page.row(section, name)).to_be_in_viewport()
    # The GPU that is used is a line, and so are all others together.
    used = page.panel.get_by_role("group", name="GPU 0, ")
    expect(used).to_contain_text(f"of {size(1)}")
    idle = page.panel.get_by_role("button", name="7 idle GPUs")
    expect(idle).to_be_in_viewport()
    line = page.panel.get_by_role("group", name="GPU 7, ")
    expect(line).to_have_count(0)
    assert overflowing(page.panel) == []
    page.picture("panel-8-gpus")
    idle.click()
    expect(line).to_be_visible()
    used.get_by_role("button").click()
    contents = used.get_by_role("list", name="Contents of its memory")
    expect(contents).to_contain_text(HEBREW)
    expect(contents).to_contain_text("free")
    assert overflowing(page.panel) == []
    page.picture("panel-8-gpus-unfolded", page.panel)
    used.get_by_role("button").click()
    expect(contents).to_have_count(0)
    idle.click()
    expect(line).to_have_count(0)
    assert page.violations(".jp-GpuSharePanel") == []


def test_a_right_to_left_name_is_not_split(crowd: Crowd, page: LabPage) -> None:
    crowd.running(HEBREW, 0.6)
    name = page.row("Running", HEBREW).locator("bdi")
    # One run in one box: its parts cannot be put in another order.
    expect(name).to_have_text(HEBREW)
    assert name.evaluate("node => getComputedStyle(node).direction") == "rtl"
    assert name.evaluate("node => node.children.length") == 0
    crowd.waiting("next.ipynb", 0.5)
    waiting = page.row("Waiting", "next.ipynb")
    expect(waiting).to_contain_text("\u2068" + HEBREW.removesuffix(".ipynb") + "\u2069")
