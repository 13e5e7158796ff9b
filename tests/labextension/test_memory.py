# SPDX-License-Identifier: BSD-3-Clause
"""Real notebooks whose memory leaves the GPU and comes back: evicted and prefetched, or hibernated and woken."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Request, expect

from tests.support.lab import Lab, hibernator_of
from tests.support.lab_page import SCREENSHOTS, THEMES, LabPage, notebook, overflowing
from tests.support.notebook import SETUP, until
from tests.support.stopping import stopped

pytestmark = pytest.mark.browser

USE = "print('found' if data.read() == known else 'lost')"
KEYS = "some words that a person types, fifty letters long"

#: Is busy until the file `stop` exists.
WORK = """\
import os
while not os.path.exists('stop'):
    data.read()
"""

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
def simulated() -> dict[str, str]:
    """Return a GPU of the usual size."""
    return {}


@pytest.fixture(scope="module")
def lab(lab: Lab) -> Lab:
    """Return the server, whose notebooks use the GPU."""
    plots = notebook(SETUP, USE, "# ")
    text = {"cell_type": "markdown", "id": "text", "metadata": {}, "source": "Notes."}
    plots["cells"].append(text)
    train = notebook(SETUP, USE, WORK)
    for name, document in (("plots.ipynb", plots), ("train.ipynb", train)):
        (lab.notebooks / name).write_text(json.dumps(document))
    return lab


@pytest.fixture(scope="module")
def used(page: LabPage) -> LabPage:
    """Return the page, whose notebook has used the GPU."""
    use(page)
    return page


@pytest.fixture(scope="module")
def both(used: LabPage) -> LabPage:
    """Return the page with two notebooks that have used the GPU, the one in front last."""
    page = used
    page.execute("application:toggle-left-area")
    page.resize_panel(340)
    for name in ("train.ipynb", "plots.ipynb"):
        page.execute("docmanager:open", {"path": name})
        use(page)
        expect(page.card).to_contain_text(name)
        expect(page.card).to_contain_text("Idle")
    return page


def use(page: LabPage) -> None:
    """Let the notebook in front use the GPU."""
    page.run_cell(0)
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")


def group(lab: Lab) -> dict[str, Any]:
    """Return the group of plots.ipynb."""
    (found,) = (each for each in lab.status()["groups"] if each["name"] == "plots.ipynb")
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
    page.execute("application:close")
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


def choose(page: LabPage, row: Locator, action: str) -> None:
    """Choose what is in a row's menu, which shows what was possible when it was opened."""
    item = page.page.get_by_role("menuitem", name=action)

    def is_offered() -> bool:
        row.hover()
        row.get_by_role("button", name="More actions").click()
        expect(page.page.get_by_role("menuitem", name="Go to the Notebook")).to_be_visible()
        if not item.is_visible():
            page.page.keyboard.press("Escape")
            return False
        return True

    until(is_offered, f"the menu offers {action}")
    item.click()


def test_a_notebook_hibernates_and_its_next_cell_wakes_it(both: LabPage, lab: Lab) -> None:
    page = both
    before = lab.status()["gpus"][0]["contexts"]
    assert before > 0
    row = page.row("Idle", "train.ipynb")
    choose(page, row, "Hibernate Now")
    expect(row).to_contain_text(re.compile(r"hibernated for .* · wakes in about"))
    choose(page, page.card, "Hibernate Now")
    expect(page.card).to_contain_text("Hibernated")
    freed = re.compile(r"freed [\d.]+\sMiB of GPU memory · wakes in about")
    expect(page.card).to_contain_text(freed)
    # The driver leaves a quarter of the two contexts. The scheduler derives this from readings. If other programs
    # started or ended while it measured the contexts, it may overestimate both the contexts and what is left of them.
    assert 0 < lab.status()["gpus"][0]["contexts"] < before / 2
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


def test_users_can_wake_a_notebook(both: LabPage) -> None:
    page = both
    row = page.row("Idle", "train.ipynb")
    choose(page, row, "Wake")
    expect(row).not_to_contain_text("hibernated for")
    page.execute("docmanager:open", {"path": "train.ipynb"})
    page.run_cell(1)
    expect(page.output_of(1)).to_have_text("found")


def test_a_busy_notebook_hibernates_when_it_is_idle(both: LabPage, lab: Lab) -> None:
    page = both
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


def test_a_refused_hibernation_is_explained(both: LabPage) -> None:
    page = both
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


def test_idle_notebooks_hibernate_after_the_configured_time(both: LabPage, lab: Lab) -> None:
    page = both
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
