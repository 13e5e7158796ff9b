# SPDX-License-Identifier: BSD-3-Clause
"""The panel in a real JupyterLab, in a real browser, behind a base URL."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect, sync_playwright

from tests.scheduler.client import FakeClient
from tests.server_extension.lab import PATIENCE, TOKEN, Lab, environment

pytestmark = pytest.mark.browser

STATUS = "**/gpushare/api/status*"

#: Milliseconds in which the panel must show a change: the push comes at once, the safety net after 30 s.
PUSH = 10_000


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """Return a private folder whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="gpushare-"))
    yield folder
    shutil.rmtree(folder)
    Path("/dev/shm", f"gpushare-sim-{folder.name}").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def lab(runtime: Path, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Return a JupyterLab with two notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    settings = {"LabApp": {"expose_app_in_browser": True}}
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook["metadata"] = {"kernelspec": kernelspec}
    with Lab(
        folder / "server", environment(runtime), root, base_url="/user/ada/", settings=settings
    ) as lab:
        for name in ("train.ipynb", "plots.ipynb"):
            (lab.notebooks / name).write_text(json.dumps(notebook))
        yield lab


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """Return the browser, which talks to nobody else."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium,
            args=[
                "--no-sandbox",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--no-first-run",
            ],
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser) -> Page:
    """Return JupyterLab with a notebook in front."""
    page = browser.new_page(viewport={"width": 1280, "height": 760})
    page.set_default_timeout(30_000)
    page.goto(f"{lab.url}lab/tree/plots.ipynb?token={TOKEN}&reset")
    page.locator(".jp-Notebook").wait_for()
    page.locator("li[data-id='jupyter-gpushare-panel']").wait_for()
    return page


@pytest.fixture(scope="module")
def panel(page: Page, lab: Lab) -> Locator:
    """Return the panel, open."""
    lab.shared_status()
    page.locator("li[data-id='jupyter-gpushare-panel']").click()
    panel = page.get_by_role("region", name="GPU sharing")
    panel.wait_for()
    return panel


@pytest.fixture
def gpu(lab: Lab) -> dict[str, Any]:
    """Return what the server says of the simulated GPU."""
    return lab.shared_status()["gpus"][0]  # type: ignore[no-any-return]


def section(panel: Locator, name: str) -> Locator:
    return panel.get_by_role("region", name=name)


def kernel_of(lab: Lab, notebook: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while not (found := [s for s in lab.get("api/sessions") if s["path"] == notebook]):
        assert time.monotonic() < deadline, lab.log
        time.sleep(0.1)
    return str(found[0]["kernel"]["id"])


def test_it_says_that_nobody_is_there(panel: Locator) -> None:
    expect(panel.get_by_role("heading", name="Nobody uses the GPU yet")).to_be_visible()
    expect(panel).to_contain_text("of 8\u00a0GiB in use")
    expect(panel.get_by_role("list")).to_have_count(0)


def test_it_shows_by_push_who_runs_and_who_waits_and_why(
    runtime: Path, lab: Lab, gpu: dict[str, Any], panel: Locator, page: Page
) -> None:
    path, most = runtime / "s.sock", gpu["total"] * 3 // 4
    front = kernel_of(lab, "plots.ipynb")
    with (
        FakeClient(path, "other", gpu["uuid"], name="deep/train.ipynb") as holder,
        FakeClient(path, front, gpu["uuid"], name="plots.ipynb") as waiter,
    ):
        holder.attach()
        holder.grow(most)
        holder.run()
        running = section(panel, "Running").get_by_role("listitem")
        expect(running).to_contain_text("train.ipynb", timeout=PUSH)
        expect(running).to_contain_text("6\u00a0GiB")

        waiter.attach()
        waiter.grow(most)
        waiter.request()
        waiting = section(panel, "Waiting").get_by_role("listitem")
        expect(waiting).to_contain_text("plots.ipynb", timeout=PUSH)
        expect(waiting).to_contain_text("needs 6")
        expect(waiting).to_contain_text("train")
        expect(waiting).to_contain_text("this one")
        expect(waiting.get_by_role("img", name="position 1")).to_be_visible()
        expect(panel.get_by_role("status")).to_contain_text("waits for the GPU, position 1")
        # Of this server's notebooks one can open the document, by the keyboard too.
        name = waiting.get_by_role("button", name="plots.ipynb")
        name.focus()
        expect(name).to_be_focused()
        expect(running.get_by_role("button")).to_have_count(0)

        lab.post("gpushare/api/release", {"group": "other"})
        holder.release()
        holder.evict()
        waiter.take()
        expect(section(panel, "Running")).to_contain_text("plots.ipynb", timeout=PUSH)
        expect(section(panel, "Idle")).to_contain_text("train.ipynb")
        expect(section(panel, "Idle")).to_contain_text("in host memory")
        expect(section(panel, "Waiting")).to_have_count(0)
        expect(panel.get_by_role("status")).to_contain_text("has the GPU")
    expect(panel.get_by_role("heading", name="Nobody uses the GPU yet")).to_be_visible(timeout=PUSH)


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_every_text_can_be_read(
    theme: str, runtime: Path, gpu: dict[str, Any], panel: Locator, page: Page, tmp_path: Path
) -> None:
    page.evaluate(
        "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})",
        f"JupyterLab {theme}",
    )
    page.wait_for_function(
        "light => document.body.dataset.jpThemeLight === light", arg=str(theme == "Light").lower()
    )
    with FakeClient(runtime / "s.sock", "other", gpu["uuid"], name="train.ipynb") as holder:
        holder.attach()
        holder.grow(gpu["total"] // 2)
        holder.run()
        expect(section(panel, "Running")).to_contain_text("train.ipynb", timeout=PUSH)
        panel.screenshot(path=tmp_path / f"{theme}.png")
        contrasts = panel.evaluate(CONTRASTS)
        assert "train.ipynb" in [text for text, _ in contrasts]
        for text, ratio in contrasts:
            assert ratio >= 4.5, f"{text!r} has a contrast of {ratio:.1f} in the {theme} theme"


def test_a_panel_that_nobody_sees_asks_nothing(
    runtime: Path, gpu: dict[str, Any], panel: Locator, page: Page
) -> None:
    asked: list[str] = []

    def note(request: Any) -> None:
        if "gpushare/api/status" in request.url:
            asked.append(request.url)

    tab = page.locator("li[data-id='jupyter-gpushare-panel']")
    page.on("request", note)
    tab.click()
    expect(panel).to_be_hidden()
    asked.clear()
    with FakeClient(runtime / "s.sock", "other", gpu["uuid"], name="train.ipynb") as client:
        client.attach()
        # The hint is seen in the page, and the panel lets it pass.
        page.wait_for_timeout(500)
        assert asked == []
        tab.click()
        expect(section(panel, "Idle")).to_contain_text("train.ipynb", timeout=PUSH)
        assert asked
    page.remove_listener("request", note)


@pytest.mark.parametrize(
    ("answer", "heading"),
    [
        ({"status": 404}, "The server part is not running"),
        ({"status": 403}, "You may not see the GPU"),
        ({"status": 503}, "The Jupyter server does not answer"),
        ({"status": 500, "json": {"message": "Oh."}}, "The GPU is not shared"),
        ({"json": {"code": "no_driver", "params": {}}}, "No NVIDIA driver was found"),
        ({"json": {"code": "starting", "params": {}}}, "Starting"),
    ],
)
def test_it_explains_why_there_is_nothing(
    answer: dict[str, Any], heading: str, panel: Locator, page: Page
) -> None:
    if "status" not in answer:
        empty = {"time": 0, "hint": 0, "gpus": [], "groups": [], "notices": [], "host": None}
        answer = {"json": {**empty, "availability": answer["json"]}}

    def fulfil(route: Route) -> None:
        route.fulfill(**answer)

    tab = page.locator("li[data-id='jupyter-gpushare-panel']")
    page.route(STATUS, fulfil)
    tab.click()
    tab.click()
    expect(panel.get_by_role("heading", name=heading)).to_be_visible()
    page.unroute(STATUS)
    tab.click()
    tab.click()
    expect(panel.get_by_role("heading", name="Nobody uses the GPU yet")).to_be_visible()


#: Text and contrast of each piece of text in the panel, after WCAG 2.
CONTRASTS = """panel => {
  const parse = colour => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = (top, below) =>
    [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
  const background = element => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour[3] === 1) {
        return colour;
      }
    }
    return [255, 255, 255, 1];
  };
  const luminance = colour => {
    const [r, g, b] = colour.map(value => {
      const part = value / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const element = walker.currentNode.parentElement;
    if (text && element.getBoundingClientRect().width > 1) {
      const below = background(element);
      const top = over(parse(getComputedStyle(element).color), below);
      const [high, low] = [luminance(top), luminance(below)].sort((a, b) => b - a);
      found.push([text, (high + 0.05) / (low + 0.05)]);
    }
  }
  return found;
}"""
