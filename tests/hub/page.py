# SPDX-License-Identifier: BSD-3-Clause
"""JupyterLab and the Hub in the browser of a signed-in user."""

from __future__ import annotations

import re
from typing import cast
from urllib.parse import quote

from playwright.sync_api import Browser, Locator, Page, WebSocket, expect

from tests.support.hub.hub import PASSWORD, Hub, Seat
from tests.support.lab import Lab
from tests.support.lab_page import LabPage

#: Waits until the kernel of the front notebook responds, and selects the first cell.
READY = """async () => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  await sessionContext.ready;
  await sessionContext.session.kernel.info;
  content.activeCellIndex = 0;
}"""

ENDED = re.compile(r"^\[\d+\]:$")

#: Addresses of the server extension whose answers contain data about other users.
ANSWERS = ("gpushare/api/status", "gpushare/api/explain", "gpushare/api/shares")

#: Fetches with the user's own cookie, as the panel does.
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
    """Sign in to the Hub, and begin to open the user's server, or an address of the Hub."""
    page.goto(f"{hub.url}/hub/login" + (f"?next={quote(to)}" if to else ""))
    page.get_by_label("Username").fill(user)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click(no_wait_after=True)


class SeatPage(LabPage):
    """One page of a user of the Hub.

    Parameters
    ----------
    browser
        The browser to open the page in.
    seat
        The user's server.
    """

    def __init__(self, browser: Browser, seat: Seat) -> None:
        super().__init__(browser, cast(Lab, seat))
        self.seat = seat
        #: Messages received over WebSockets.
        self._frames: list[str] = []
        self.page.on("websocket", self._listen)

    def _listen(self, connection: WebSocket) -> None:
        connection.on("framereceived", lambda frame: self._frames.append(str(frame)))

    def sign_in(self) -> None:
        """Sign in, which starts the user's server if it is not running."""
        sign_in(self.page, self.seat.hub, self.seat.user)

    def open(self, address: str) -> None:
        """Go to an address of the user's server once it is running, and wait for a notebook."""
        self.page.wait_for_url(f"{self.seat.url}**")
        self.page.goto(self.seat.url + address)
        self.page.locator(".jp-Notebook").first.wait_for()
        self.page.evaluate(READY)

    def run(self, cells: int) -> None:
        """Run the next cells of the front notebook with the button in its toolbar."""
        for _ in range(cells):
            self.front.get_by_role("button", name="Run this cell and advance").click()

    def cell(self, index: int) -> Locator:
        """Return a cell of the front notebook."""
        return self.front.locator(".jp-CodeCell").nth(index)

    def output(self, index: int) -> Locator:
        """Return the output area of a cell."""
        return self.cell(index).locator(".jp-OutputArea")

    def expect_ended(self, index: int) -> None:
        """Wait until a cell has finished."""
        expect(self.cell(index).locator(".jp-InputPrompt")).to_have_text(ENDED)

    def visible(self) -> str:
        """Return everything about the GPU that the page shows or received, and that its user may fetch."""
        answers = [self.page.evaluate(FETCH, f"{self.seat.url}{path}") for path in ANSWERS]
        return "\n".join([self.page.content(), *self._frames, *answers])

    def post(self, path: str, body: object) -> tuple[int, str]:
        """Send a POST request to the user's server as the page does, and return the status and the text."""
        status, text = self.page.evaluate(POST, [f"{self.seat.url}{path}", body])
        return int(status), str(text)
