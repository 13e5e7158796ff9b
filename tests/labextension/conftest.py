# SPDX-License-Identifier: BSD-3-Clause
"""A real JupyterLab, and a real browser in front of it; one of each for a file of tests.

Playwright runs an event loop under the tests; pytest-jupyter must not want one of its own here.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.labextension.crowd import MEMORY
from tests.support.lab import Lab, environment
from tests.support.lab_page import (
    EDITORS,
    LEAN,
    NEWS,
    NO_NEWS,
    SCREENSHOTS,
    STEADY_CURSOR,
    LabPage,
    launch,
    notebook,
    write_page_config,
    write_settings,
)


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """Make no loop: there is no server in this process."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """Clean nothing up."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    yield folder
    shutil.rmtree(folder)
    Path("/dev/shm", f"gpushare-sim-{folder.name}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    """Return the environment variables of the simulated machine."""
    return {"GPUSHARE_SIM_MEMORY": f"{MEMORY}MiB"}


@pytest.fixture(scope="module")
def python() -> str:
    """Return the interpreter that runs the server; JupyterLab comes with it."""
    return sys.executable


@pytest.fixture(scope="module")
def extensions() -> dict[str, bool]:
    """Return further server extensions, and whether each is loaded."""
    return {}


@pytest.fixture(scope="module")
def page_config() -> dict[str, Any]:
    """Return the configuration of JupyterLab's pages."""
    return LEAN


@pytest.fixture(scope="module")
def lab(
    runtime: Path,
    simulated: dict[str, str],
    python: str,
    extensions: dict[str, bool],
    page_config: dict[str, Any],
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Lab]:
    """Return a server with JupyterLab and Notebook 7, behind a base URL, and with some notebooks."""
    settings = {
        "LabApp": {"expose_app_in_browser": True},
        "JupyterNotebookApp": {"expose_app_in_browser": True},
        # Long turns keep the state stable during a test. Pictures show usual waits.
        "GpuShare": {"quantum": 3600 if SCREENSHOTS is None else 120},
    }
    with Lab(
        tmp_path_factory.mktemp("lab") / "server",
        {**environment(runtime), **simulated},
        root,
        base_url="/user/ada/",
        settings=settings,
        python=python,
        extensions=extensions,
    ) as lab:
        write_page_config(lab, page_config)
        write_settings(lab, NEWS, NO_NEWS)
        write_settings(lab, EDITORS, STEADY_CURSOR)
        for path in ("train.ipynb", "plots.ipynb", "deep/train.ipynb"):
            file = lab.notebooks / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(notebook()))
        yield lab


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Return the browser."""
    with sync_playwright() as playwright:
        browser = launch(playwright, chromium)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser) -> Iterator[LabPage]:
    """Return JupyterLab with a notebook in front and the panel open."""
    page = LabPage(browser, lab)
    page.open("lab/tree/plots.ipynb?reset")
    lab.shared_status()
    page.show_panel()
    yield page
    page.close()


@pytest.fixture(scope="module")
def gpu(lab: Lab) -> dict[str, Any]:
    """Return the simulated GPU in the server's status."""
    return lab.shared_status()["gpus"][0]  # type: ignore[no-any-return]
