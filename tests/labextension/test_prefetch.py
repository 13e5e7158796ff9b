# SPDX-License-Identifier: BSD-3-Clause
"""Real notebooks whose memory is back on the GPU before a cell needs it, because their user returned to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from playwright.sync_api import Browser, Request, expect

from tests.support.lab import Lab
from tests.support.lab_page import LabPage, notebook, overflowing
from tests.support.notebook import SETUP, until

pytestmark = pytest.mark.browser

USE = "print('found' if data.read() == known else 'lost')"
KEYS = "some words that a person types, fifty letters long"


#: From now on, messages that sockets send are counted.
COUNT = """() => {
  window.gpushareSent = 0;
  for (const socket of window.gpushareSockets) {
    const send = socket.send.bind(socket);
    socket.send = message => {
      window.gpushareSent += 1;
      send(message);
    };
  }
}"""


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Lab:
    """Return the server with a notebook that uses the GPU."""
    document = notebook(SETUP, USE, "# ")
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "Notes."}
    document["cells"].append(text)
    (lab.notebooks / "plots.ipynb").write_text(json.dumps(document))
    return lab


@pytest.fixture(scope="module")
def used(page: LabPage) -> LabPage:
    """Return the page, whose notebook has used the GPU."""
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")
    return page


def group(lab: Lab) -> dict[str, Any]:
    """Return the only group."""
    (found,) = lab.status()["groups"]
    return found  # type: ignore[no-any-return]


def evict(page: LabPage, lab: Lab) -> None:
    """Evict the memory of the notebook, and wait until the page shows that."""
    lab.post("gpushare/api/evict", {"group": group(lab)["id"]})
    until(lambda: group(lab)["gpus"][0]["resident"] == 0, "the memory is in the host")
    page.page.wait_for_function("() => window.jupyterapp.commands.isEnabled('gpushare:ready')")


def wait_until_ready(lab: Lab) -> None:
    until(lambda: (group(lab)["prefetch"] or {}).get("stage") == "ready", "the notebook is ready")
    assert group(lab)["gpus"][0]["swapped"] == 0


def check_use(page: LabPage, lab: Lab) -> None:
    """Run the cell that uses the GPU; it finds its data there."""
    restored = group(lab)["totals"]["restored"]
    page.output_of(1).evaluate("node => node.remove()")
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")
    assert group(lab)["totals"]["restored"] == restored


class Traffic:
    """What a page sends: its requests to the server extension except those for the state, and messages of sockets."""

    def __init__(self, page: LabPage) -> None:
        self._page = page.page
        self._requests: list[dict[str, Any]] = []
        self._page.on("request", self._note)
        self._page.evaluate(COUNT)

    def _note(self, request: Request) -> None:
        if "gpushare/api" in request.url and request.method != "GET":
            self._requests.append(json.loads(request.post_data or "{}"))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The bodies of the requests."""
        # Playwright delivers events only while a call of its own waits for the browser.
        self._page.evaluate("() => {}")
        return self._requests

    @property
    def messages(self) -> int:
        """The number of messages of sockets."""
        return int(self._page.evaluate("() => window.gpushareSent"))


def test_the_memory_is_back_before_the_first_cell_runs(used: LabPage, lab: Lab) -> None:
    page = used
    evict(page, lab)
    bursts = group(lab)["totals"]["bursts"]
    page.front.locator(".jp-CodeCell .cm-content").nth(2).click()
    traffic = Traffic(page)
    assert len(KEYS) == 50
    page.page.keyboard.type(KEYS)
    wait_until_ready(lab)
    assert group(lab)["prefetch"]["hint"] == "typing"
    assert group(lab)["totals"]["bursts"] == bursts
    expect(page.card).to_contain_text("Ready")
    expect(page.card).to_contain_text("Its user is typing in it.")
    expect(page.chip).to_have_text("GPU: ready")
    expect(page.status_item).to_contain_text("GPU: ready")
    page.page.keyboard.type(KEYS)
    # One small message, with nothing of what was typed.
    (request,) = traffic.requests
    assert request.keys() == {"page", "kernel_id", "hint"}
    assert (request["kernel_id"], request["hint"]) == (group(lab)["id"], "typing")
    assert traffic.messages == 0
    assert page.violations("#jupyter-gpushare-panel", "#jp-main-statusbar") == []
    assert overflowing(page.panel) == []
    page.picture("ready")
    check_use(page, lab)


def test_users_can_get_a_notebook_ready(used: LabPage, lab: Lab) -> None:
    page = used
    evict(page, lab)
    page.card.get_by_role("button", name="Get ready").click()
    wait_until_ready(lab)
    expect(page.card).to_contain_text("Its user asked to get it ready.")
    check_use(page, lab)


def test_a_console_is_a_place_to_type(used: LabPage, lab: Lab) -> None:
    page = used
    page.execute("notebook:create-console", {"activate": True})
    prompt = page.page.locator(".jp-CodeConsole-promptCell .cm-content")
    prompt.click()
    evict(page, lab)
    traffic = Traffic(page)
    page.page.keyboard.type("x")
    wait_until_ready(lab)
    assert [request["hint"] for request in traffic.requests] == ["typing"]
    page.page.keyboard.press("Backspace")
    page.execute("docmanager:open", {"path": "plots.ipynb"})
    check_use(page, lab)


def test_a_markdown_cell_of_notebook_7_is_a_place_to_type(
    used: LabPage, browser: Browser, lab: Lab
) -> None:
    page = LabPage(browser, lab)
    page.open("notebooks/plots.ipynb")
    page.select_cell(3)
    expect(page.chip).to_contain_text("GPU: idle")
    page.front.locator(".jp-MarkdownCell .jp-RenderedMarkdown").click()
    page.page.keyboard.press("Enter")
    expect(page.front.locator(".jp-MarkdownCell .cm-content")).to_be_focused()
    evict(page, lab)
    traffic = Traffic(page)
    page.page.keyboard.type("x")
    wait_until_ready(lab)
    assert [request["hint"] for request in traffic.requests] == ["typing"]
    expect(page.chip).to_have_text("GPU: ready")
    page.close()
