# SPDX-License-Identifier: BSD-3-Clause
"""JupyterLab with extensions that share documents, and that run their cells on the server (`make acceptance`).

The real extensions are in an environment of their own (``requirements/front-ends.txt``). Each test loads those that
work together, as a user would install them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.lab import Lab
from tests.support.lab_page import LabPage, notebook
from tests.support.notebook import SETUP, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: What is loaded: server extensions, and extensions of JupyterLab.
COLLABORATION = (
    {"jupyter_server_fileid", "jupyter_server_ydoc"},
    {"@jupyter/collaboration-extension", "@jupyter/docprovider-extension"},
)
TOGETHER = {
    "jupyter-collaboration": COLLABORATION,
    "jupyter-server-nbmodel": (
        COLLABORATION[0] | {"jupyter_server_nbmodel"},
        COLLABORATION[1] | {"@datalayer/jupyter-server-nbmodel"},
    ),
    "jupyter-server-documents": (
        {"jupyter_server_fileid", "jupyter_server_documents"},
        COLLABORATION[1] | {"@jupyter-ai-contrib/server-documents"},
    ),
}
ALL = [set[str]().union(*parts) for parts in zip(*TOGETHER.values(), strict=True)]

CELLS = (f"{SETUP}\nprint('ready')", "assert data.read() == known\nprint('right')")

#: Waits until the notebook in front has its document and its kernel.
CONNECTED = """async () => {
  const { context } = window.jupyterapp.shell.currentWidget;
  await context.ready;
  await context.sessionContext.ready;
  await context.sessionContext.session.kernel.info;
}"""


@pytest.fixture(scope="module", params=TOGETHER)
def together(request: pytest.FixtureRequest) -> tuple[set[str], set[str]]:
    """Return what is loaded."""
    return TOGETHER[request.param]


@pytest.fixture(scope="module")
def extensions(together: tuple[set[str], set[str]]) -> dict[str, bool]:
    return {name: name in together[0] for name in ALL[0]}


@pytest.fixture(scope="module")
def python(root: Path) -> str:
    path = root / "build" / "front-ends" / "bin" / "python"
    if not path.exists():
        pytest.skip("build/front-ends is missing: run `make build/front-ends/stamp`")
    return str(path)


@pytest.fixture(scope="module")
def page_config(together: tuple[set[str], set[str]]) -> dict[str, Any]:
    """Return the configuration that leaves the other extensions out."""
    return {"disabledExtensions": dict.fromkeys(ALL[1] - together[1], True)}


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser) -> Iterator[LabPage]:
    """Return JupyterLab with a notebook in front and the panel open."""
    (lab.notebooks / "shared.ipynb").write_text(json.dumps(notebook(*CELLS)))
    page = LabPage(browser, lab)
    page.open("lab/tree/shared.ipynb?reset")
    lab.shared_status()
    page.show_panel()
    yield page
    page.close()


def test_a_shared_notebook_has_all_signals(lab: Lab, page: LabPage) -> None:
    kernel = page.kernel_of("shared.ipynb")
    # The document comes from the server by itself.
    expect(page.front.locator(".jp-CodeCell")).to_have_count(len(CELLS))
    # Before the page has its kernel, the command runs nothing.
    page.page.evaluate(CONNECTED)
    page.execute("notebook:run-all-cells")
    outputs = page.front.locator(".jp-OutputArea-output")
    expect(outputs.filter(has_text="right")).to_be_visible()

    # The group is the notebook's kernel, by the name of its file.
    (group,) = until(lambda: lab.status()["groups"], "a group")
    assert (group["id"], group["name"]) == (kernel, "shared.ipynb")
    until(lambda: lab.status()["groups"][0]["cell"] is None, "the cells have ended")
    assert lab.status()["groups"][0]["last_cell"] is not None
    expect(page.card).to_contain_text("shared.ipynb")
    expect(page.chip).to_contain_text("GPU:")

    # It follows the file's name.
    page.page.evaluate(
        "() => window.jupyterapp.shell.currentWidget.context.rename('renamed.ipynb')"
    )
    until(lambda: lab.status()["groups"][0]["name"] == "renamed.ipynb", lab.log)
    expect(page.card).to_contain_text("renamed.ipynb")
    assert lab.status()["groups"][0]["id"] == kernel
