# SPDX-License-Identifier: BSD-3-Clause
"""What a person sees and does who signs in to JupyterHub with a browser."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import quote

from playwright.sync_api import Browser, Locator, Page, WebSocket, expect

from tests.support.hub.hub import PASSWORD, Hub, Seat
from tests.support.lab import Lab
from tests.support.lab_page import LabPage

#: The kernel of the notebook in front has answered, and the first cell is selected.
READY = """async () => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
  content.activeCellIndex = 0;
}"""


ENDED = re.compile(r"^\[\d+\]:$")

#: What the server extension answers that tells of others.
ANSWERS = ("gpushare/api/status", "gpushare/api/explain", "gpushare/api/shares")

#: With the user's own cookie, as the panel does.
FETCH = "url => fetch(url).then(answer => answer.text())"


POST = """async ([url, body]) => {
  const [, token] = document.cookie.match('\\\\b_xsrf=([^;]*)');
  const answer = await fetch(url, {
    method: 'POST',
    headers: { 'X-XSRFToken': token, 'Content-Type': 'application/json' },
    body: JSON.stringify(body)
  });
  return [answer.status, await answer.text()];
}"""


def sign_in(page: Page, hub: Hub, user: str, to: str = "") -> None:
    """Sign in to the Hub, and go where that leads, or to an address of it, without waiting."""
    page.goto(f"{hub.url}/hub/login" + (f"?next={quote(to)}" if to else ""))
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click(no_wait_after=True)


class SeatPage(LabPage):
    """One page of a user of the Hub.

    Parameters
    ----------
    browser
        Where to open it.
    seat
        The user's server.
    """

    def __init__(self, browser: Browser, seat: Seat) -> None:
        super().__init__(browser, cast(Lab, seat))
        self.seat = seat
        #: What came over its connections.
        self._frames: list[str] = []
        self.page.on("websocket", self._listen)

    def _listen(self, connection: WebSocket) -> None:
        connection.on("framereceived", lambda frame: self._frames.append(str(frame)))

    def sign_in(self) -> None:
        """Sign in, which starts the user's server if it does not run."""
        sign_in(self.page, self.seat.hub, self.seat.user)

    def open(self, address: str) -> None:
        """Go to an address of the user's server, once it runs, and wait until a notebook is there."""
        self.page.wait_for_url(f"{self.seat.url}**")
        self.page.goto(self.seat.url + address)
        self.page.locator(".jp-Notebook").first.wait_for()
        self.page.evaluate(READY)

    def run(self, cells: int) -> None:
        """Run the next cells of the notebook in front, with the toolbar's button."""
        for _ in range(cells):
            self.front.get_by_role("button", name="Run this cell and advance").click()

    def cell(self, index: int) -> Locator:
        """Return a cell of the notebook in front."""
        return self.front.locator(".jp-CodeCell").nth(index)

    def output(self, index: int) -> Locator:
        """Return what a cell has printed."""
        return self.cell(index).locator(".jp-OutputArea")

    def expect_ended(self, index: int) -> None:
        """Wait until a cell has ended."""
        expect(self.cell(index).locator(".jp-InputPrompt")).to_have_text(ENDED)

    def told(self) -> str:
        """Return all that the page shows or was sent, and all that its user may fetch of the GPU."""
        answers = [self.page.evaluate(FETCH, f"{self.seat.url}{path}") for path in ANSWERS]
        return "\n".join([self.page.content(), *self._frames, *answers])

    def post(self, path: str, body: object) -> tuple[int, str]:
        """POST to an address of the user's server as the page does, and return the status and the text."""
        status, text = self.page.evaluate(POST, [f"{self.seat.url}{path}", body])
        return int(status), str(text)
