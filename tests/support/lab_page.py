# SPDX-License-Identifier: BSD-3-Clause
"""What a person sees and does in JupyterLab, and how one finds out whether it is right."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, Playwright, ViewportSize, expect

from tests.support.lab import PATIENCE, TOKEN, Lab

AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"

#: Where pictures go, if any are wanted. Read here because tests start without such variables.
SCREENSHOTS = os.environ.get("GPUSHARE_SCREENSHOTS")

#: Milliseconds in which a page must show what it is told, and do it: many, for a busy machine.
REACTION = 60_000
expect.set_options(timeout=REACTION)

THEMES = ("JupyterLab Light", "JupyterLab Dark", "JupyterLab Dark High Contrast")

#: JupyterLab asks at its first start whether people want news; these do not.
NEWS = "@jupyterlab/apputils-extension/notification"
NO_NEWS = {"fetchNews": "false", "checkForUpdates": False}

#: While the cursor of an editor blinks, the browser draws a page all the time.
EDITORS = "@jupyterlab/codemirror-extension/plugin"
STEADY_CURSOR = {"defaultConfig": {"cursorBlinkRate": 0}}

#: Plugins that no test uses. At each load of a page, the server took 2 s of processor time for the formats in which
#: notebooks can be exported (it imports nbconvert), and the browser 1 s to draw the splash screen, which a new theme
#: shows, too.
UNUSED = (
    "apputils-extension:announcements",
    "apputils-extension:splash",
    "extensionmanager-extension",
    "fileeditor-extension:language-server",
    "lsp-extension",
    "mathjax-extension",
    "mermaid-extension",
    "notebook-extension:export",
    "notebook-extension:language-server",
    "notebook-extension:update-raw-mimetype",
    "pluginmanager-extension",
    "terminal-extension",
    "tooltip-extension",
    "vega5-extension",
)
#: Those that pictures of JupyterLab show, too.
SEEN = (
    "application-extension:property-inspector",
    "celltags-extension",
    "debugger-extension",
    "metadataform-extension",
    "notebook-extension:active-cell-tool",
    "notebook-extension:metadata-editor",
    "notebook-extension:toc",
    "notebook-extension:tools",
    "toc-extension",
)
#: Configuration of JupyterLab's pages without what no test uses. To find out whether JupyterLab must be built, the
#: server would start Node.js twice.
LEAN = {
    "buildCheck": "false",
    "disabledExtensions": {
        f"@jupyterlab/{name}": True for name in (*UNUSED, *(SEEN if SCREENSHOTS is None else ()))
    },
}

#: What one drags to make a sidebar wider.
HANDLE = "#jp-main-split-panel > .lm-SplitPanel-handle:not(.lm-mod-hidden)"

TAB = "li[data-id='jupyter-gpushare-panel']"


def launch(playwright: Playwright, chromium: str) -> Browser:
    """Start the system's Chromium, which connects to no other server."""
    return playwright.chromium.launch(
        executable_path=chromium,
        args=[
            "--no-sandbox",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
        ],
    )


def notebook(*cells: str) -> dict[str, Any]:
    """Return a notebook with these cells, as its file has it."""
    return {
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{index}",
                "source": source,
                "metadata": {},
                "execution_count": None,
                "outputs": [],
            }
            for index, source in enumerate(cells)
        ],
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def write_settings(lab: Lab, name: str, settings: dict[str, Any]) -> None:
    """Set what a user has set before the page is opened."""
    file = lab.folder / "config" / "lab" / "user-settings" / f"{name}.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(settings))


def write_page_config(lab: Lab, config: dict[str, Any]) -> None:
    """Configure JupyterLab's and Notebook 7's pages before they are opened."""
    file = lab.folder / "config" / "labconfig" / "page_config.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config))


class LabPage:
    """One page of JupyterLab or Notebook 7.

    Parameters
    ----------
    browser
        Where to open it.
    lab
        The server.
    viewport
        Size of the page.
    scale
        Pixels of a picture for a pixel of the page.
    """

    def __init__(
        self, browser: Browser, lab: Lab, viewport: ViewportSize | None = None, scale: float = 1
    ) -> None:
        self.lab = lab
        self.context = browser.new_context(
            viewport=viewport or {"width": 1280, "height": 800}, device_scale_factor=scale
        )
        self.context.add_init_script(SOCKETS)
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(REACTION)

    def close(self) -> None:
        """Close it."""
        self.context.close()

    def open(self, address: str) -> None:
        """Go to an address of the server, and wait until a notebook is there."""
        join = "&" if "?" in address else "?"
        self.page.goto(f"{self.lab.url}{address}{join}token={TOKEN}")
        self.page.locator(".jp-Notebook").first.wait_for()

    # --- What there is ----------------------------------------------------------------------------

    @property
    def panel(self) -> Locator:
        """The panel."""
        return self.page.get_by_role("region", name="GPU sharing", exact=True)

    def section(self, name: str) -> Locator:
        """Return a part of the panel."""
        return self.panel.get_by_role("region", name=name)

    @property
    def card(self) -> Locator:
        """The card of the notebook in front."""
        return self.section("This notebook")

    def row(self, section: str, name: str) -> Locator:
        """Return a notebook's row in a part of the panel."""
        rows = self.section(section).get_by_role("listitem")
        return rows.filter(has=self.page.get_by_text(name, exact=True))

    @property
    def status_item(self) -> Locator:
        """Our item in the status bar."""
        return self.page.locator("#jp-main-statusbar .jp-GpuShare-statusItem")

    @property
    def front(self) -> Locator:
        """The notebook that is in front."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    @property
    def chip(self) -> Locator:
        """The state of the notebook in front, in its toolbar."""
        return self.front.locator(".jp-GpuShare-chip")

    @property
    def strip(self) -> Locator:
        """The lines under cells of the notebook in front."""
        return self.front.locator(".jp-GpuShare-strip")

    def output_of(self, index: int) -> Locator:
        """Return what a code cell of the notebook in front has put out."""
        return self.front.locator(".jp-CodeCell").nth(index).locator(".jp-OutputArea-output")

    @property
    def notification(self) -> Locator:
        """A notification in the corner."""
        return self.page.locator(".Toastify__toast")

    # --- What one does ----------------------------------------------------------------------------

    def show_panel(self) -> None:
        """Open the panel."""
        if not self.panel.is_visible():
            self.page.locator(TAB).click()
            self.panel.wait_for()

    def hide_panel(self) -> None:
        """Close the panel."""
        if self.panel.is_visible():
            self.page.locator(TAB).click()
            self.panel.wait_for(state="hidden")

    def execute(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Execute a command of JupyterLab."""
        return self.page.evaluate(
            "([id, args]) => window.jupyterapp.commands.execute(id, args).then(() => null)",
            [command, arguments or {}],
        )

    def select_cell(self, index: int) -> None:
        """Select a cell of the notebook in front, whose kernel has answered then."""
        self.page.evaluate(SELECT, index)

    def run_cell(self, index: int) -> None:
        """Run a cell of the notebook in front, with the toolbar's button."""
        self.select_cell(index)
        self.front.get_by_role("button", name="Run this cell and advance").click()

    def set_theme(self, theme: str) -> None:
        """Choose a theme, and wait until it is there."""
        self.execute("apputils:change-theme", {"theme": theme})
        self.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=theme
        )

    def dismiss_notification(self) -> None:
        """Wait for a notification, and close it."""
        self.notification.get_by_role("button", name="Hide notification").click()
        self.notification.wait_for(state="detached")

    def hide(self, hidden: bool) -> None:
        """Be in a hidden tab, or in front again."""
        self.page.evaluate(HIDE, hidden)

    def resize_panel(self, width: int) -> None:
        """Drag the sidebar to a width in pixels."""
        handle = self.page.locator(HANDLE).last
        box, panel = handle.bounding_box(), self.panel.bounding_box()
        assert box
        assert panel
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + panel["width"] - width, y, steps=4)
        self.page.mouse.up()

    def close_sockets(self) -> None:
        """Lose the connections, as a computer that sleeps does."""
        self.page.evaluate("() => window.gpushareSockets.forEach(socket => socket.close())")

    def ask(self) -> None:
        """Let the page ask for the whole state, as it does when its network is back."""
        self.page.evaluate("() => window.dispatchEvent(new Event('online'))")

    def kernel_of(self, document: str) -> str:
        """Return the id of a document's kernel, once it has one: by its path, or by its type."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for session in self.lab.get("api/sessions"):
                if document in (session["path"], session["type"]):
                    return str(session["kernel"]["id"])
            assert time.monotonic() < deadline, self.lab.log
            self.page.wait_for_timeout(50)

    # --- Whether it is right ----------------------------------------------------------------------

    def violations(self, *selectors: str) -> list[str]:
        """Return what axe finds wrong in these parts of the page."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.add_script_tag(path=AXE)
            # JupyterLab's body has no height and hides what overflows: axe would take all text for hidden.
            self.page.add_style_tag(content="body { height: 100vh; }")
        return self.page.evaluate(VIOLATIONS, [list(selectors)])  # type: ignore[no-any-return]

    def picture(self, name: str, of: Locator | None = None) -> None:
        """Keep a picture of the window, or of a part, if pictures are wanted."""
        if SCREENSHOTS is None:
            return
        self.page.mouse.move(0, 0)
        # Dragging the edge of the sidebar selects text.
        self.page.evaluate("() => getSelection().removeAllRanges()")
        path = Path(SCREENSHOTS) / f"{name}.png"
        if of is not None:
            of.screenshot(path=path, animations="disabled")
        else:
            self.page.screenshot(path=path, animations="disabled")

    def numbered_picture(self, name: str, of: Locator, parts: Sequence[Locator]) -> None:
        """Keep a picture of a part with numbers in its left margin, at the parts that a guide explains."""
        if SCREENSHOTS is None:
            return
        box = of.bounding_box()
        assert box is not None
        heights = [part.evaluate(MIDDLE) for part in parts]
        self.page.evaluate(NUMBER, [heights, box["x"], MARGIN])
        self.page.mouse.move(0, 0)
        self.page.screenshot(
            path=Path(SCREENSHOTS) / f"{name}.png",
            animations="disabled",
            clip={**box, "x": box["x"] - MARGIN, "width": box["width"] + MARGIN},
        )
        self.page.evaluate("document.getElementById('numbers').remove()")


#: Width of the margin for numbers, in pixels.
MARGIN = 32
MIDDLE = "part => { const box = part.getBoundingClientRect(); return box.top + box.height / 2; }"
NUMBER = """
([heights, right, width]) => {
  const margin = document.createElement('div');
  margin.id = 'numbers';
  margin.style.cssText = `position: fixed; z-index: 100000; top: 0; bottom: 0; background: white;
    left: ${right - width}px; width: ${width}px`;
  heights.forEach((height, index) => {
    const number = document.createElement('span');
    number.textContent = index + 1;
    number.style.cssText = `position: absolute; left: 4px; top: ${height - 11}px; width: 22px; height: 22px;
      border-radius: 50%; background: #b3261e; color: white; font: bold 13px/22px sans-serif; text-align: center`;
    margin.append(number);
  });
  document.body.append(margin);
}
"""


def overflowing(part: Locator) -> list[str]:
    """Return what does not fit into a part of the page, or is cut off though nothing tells the whole.

    After another size or another status, the page may need some frames until everything fits.
    """
    deadline = time.monotonic() + PATIENCE
    while found := part.evaluate(OVERFLOWING):
        if time.monotonic() > deadline:
            return found  # type: ignore[no-any-return]
        part.page.wait_for_timeout(50)
    return []


SOCKETS = """
window.gpushareSockets = [];
const Socket = window.WebSocket;
window.WebSocket = class extends Socket {
  constructor(...args) {
    super(...args);
    window.gpushareSockets.push(this);
  }
};
"""

#: The kernel of the notebook in front has answered, and its cell of this number is selected.
SELECT = """async index => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
  content.activeCellIndex = index;
}"""

HIDE = """hidden => {
  Object.defineProperty(document, 'hidden', { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event('visibilitychange'));
}"""

VIOLATIONS = """async ([selectors]) => {
  const found = await axe.run(selectors, {
    resultTypes: ['violations'],
    // Of the whole page, which is JupyterLab's.
    rules: { region: { enabled: false } }
  });
  return found.violations.flatMap(({ id, nodes }) =>
    nodes.map(node => `${id}: ${node.html} ${node.failureSummary}`)
  );
}"""

OVERFLOWING = """part => {
  const edge = part.getBoundingClientRect();
  const name = element =>
    `${element.tagName}.${element.className?.baseVal ?? element.className}: ` +
    (element.textContent ?? '').slice(0, 60);
  const found = [];
  for (const element of [part, ...part.querySelectorAll('*')]) {
    const box = element.getBoundingClientRect();
    if (box.width <= 1 || box.height <= 1 || element.closest('svg')) {
      // Not there, or only for screen readers; or a drawing.
      continue;
    }
    const style = getComputedStyle(element);
    const wider = element.clientWidth > 0 && element.scrollWidth > element.clientWidth + 1;
    if (style.textOverflow === 'ellipsis') {
      if (wider && !element.closest('[title]')) {
        found.push(`cut off without a title: ${name(element)}`);
      }
    } else if (wider) {
      found.push(`does not fit: ${name(element)}`);
    }
    let clipped = false;
    for (let above = element.parentElement; above && above !== part; above = above.parentElement) {
      clipped ||= getComputedStyle(above).overflowX !== 'visible';
    }
    if (!clipped && (box.left < edge.left - 1 || box.right > edge.right + 1)) {
      found.push(`sticks out: ${name(element)}`);
    }
  }
  return found;
}"""
