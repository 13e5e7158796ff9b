# SPDX-License-Identifier: BSD-3-Clause
"""What the page costs: the time until people see a change, the page's own work, the server's, and what is loaded.

Needs a checkout, the requirements of the tests, and Chromium; runs on the simulated driver::

    gpushare bench lab
    python -m jupyter_gpushare.benchmarks.published.lab --peer-python ENVIRONMENT/bin/python

The second also measures the servers of jupyterlab-nvdashboard and jupyter-resource-usage, if that environment
has them. Their pages are played by clients of their protocols: a websocket for each chart that says 100 ms, and a
request every 5 seconds, which are what their pages do unless they are told otherwise.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from ..._version import LIBRARIES
from ...scheduler.node.arguments import Parser
from ...scheduler.protocol.client import ControlClient
from ..harness.figures import Figure, percentile, quartile_distance
from ..harness.pages import TIMEOUT, Pages, Play, charts, our_page, processor_use, usage_page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.client import FakeClient  # noqa: E402
from tests.support.environment import find_chromium  # noqa: E402
from tests.support.lab import TOKEN, Lab, environment  # noqa: E402
from tests.support.lab_page import NEWS, NO_NEWS, LabPage, launch, notebook, write_settings  # noqa: E402

BENCH = "lab"
GPUS, NOTEBOOKS, PAGES = 8, 200, 5
#: Changes that people see, a second, of all notebooks together.
CHANGES = 20.0
ROUNDS = 60
#: Seconds of each measurement of what processors do.
WINDOW = 30.0

# --- The machine and its users --------------------------------------------------------------------


@contextlib.contextmanager
def _folder(gpus: int) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder whose path is short enough for a socket, and a simulated machine's environment."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    name = f"bench-{uuid.uuid4().hex[:12]}"
    try:
        yield (
            folder,
            {
                **environment(folder),
                "GPUSHARE_SIM_NAME": name,
                "GPUSHARE_SIM_DEVICES": str(gpus),
            },
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path("/dev/shm", f"gpushare-sim-{name}").unlink(missing_ok=True)


@contextlib.contextmanager
def _lab(gpus: int) -> Iterator[tuple[Lab, Path]]:
    """Yield a server and its scheduler's socket; notebooks take turns, one at a time on each GPU."""
    settings = {
        "LabApp": {"expose_app_in_browser": True},
        "GpuShare": {"anti_thrash": "on", "quantum": 3600},
    }
    with (
        _folder(gpus) as (folder, environ),
        Lab(
            folder / "server",
            environ,
            ROOT,
            base_url="/user/ada/",
            settings=settings,
            extensions={"jupyter_lsp": True},
        ) as lab,
    ):
        (lab.notebooks / "plots.ipynb").write_text(json.dumps(notebook()))
        write_settings(lab, NEWS, NO_NEWS)
        lab.shared_status()
        yield lab, Path(environ["GPUSHARE_SOCKET"])


@contextlib.contextmanager
def _chromium() -> Iterator[Browser]:
    found = find_chromium()
    if found is None:
        raise RuntimeError(
            "Chromium is not installed; on Debian, run: apt-get install chromium-headless-shell"
        )
    with sync_playwright() as playwright:
        browser = launch(playwright, found)
        try:
            yield browser
        finally:
            browser.close()


class Crowd:
    """Notebooks that take turns on the GPUs, in a thread.

    Parameters
    ----------
    path
        The scheduler's socket.
    """

    def __init__(self, path: Path) -> None:
        with ControlClient(path) as control:
            gpus = control.request("status")["status"]["gpus"]
        self._stop = threading.Event()
        self._queues: list[collections.deque[FakeClient]] = []
        for index, gpu in enumerate(gpus):
            queue: collections.deque[FakeClient] = collections.deque()
            for number in range(NOTEBOOKS // len(gpus)):
                name = f"folder-{index}/experiment-{number:02}.ipynb"
                client = FakeClient(path, uuid.uuid4().hex, gpu["uuid"], name=name)
                client.attach()
                client.grow(gpu["total"] // NOTEBOOKS)
                queue.append(client)
            # One runs, half of the others wait.
            queue[0].run()
            for client in list(queue)[1 : len(queue) // 2 + 1]:
                client.request()
            self._queues.append(queue)
        self._thread = threading.Thread(target=self._live)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for queue in self._queues:
            for client in queue:
                client.close()

    def _live(self) -> None:
        """One gives its GPU to the next and another begins to wait: three changes at once."""
        for turn in range(1 << 30):
            if self._stop.wait(random.uniform(0.5, 1.5) * 3 / CHANGES):
                return
            queue = self._queues[turn % len(self._queues)]
            holder = queue.popleft()
            holder.release("quiet")
            queue[0].take()
            queue.append(holder)
            queue[len(queue) // 2].request()


# --- From an event to a pixel ---------------------------------------------------------------------

#: Notes when the text of the panel's part came to be, and when it had been drawn.
_WATCH = """name => {
  const panel = document.querySelector('#jupyter-gpushare-panel');
  const seen = (window.gpushareSeen = []);
  let last = '';
  new MutationObserver(() => {
    const section = [...panel.querySelectorAll('section')].find(
      section => [...section.querySelectorAll('li')].some(row => row.textContent.includes(name))
    );
    const heading = section?.querySelector('h3')?.firstChild?.textContent?.trim() ?? '';
    if (heading === last) {
      return;
    }
    last = heading;
    const entry = { heading, changed: performance.now(), drawn: 0 };
    seen.push(entry);
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => (entry.drawn = performance.now());
      port2.postMessage(0);
    });
  }).observe(panel, { subtree: true, childList: true, characterData: true, attributes: true });
}"""


def _clock(page: Page) -> float:
    """Seconds to add to the page's clock for CLOCK_MONOTONIC: from the fastest of some questions."""
    best, offset = float("inf"), 0.0
    for _ in range(50):
        before = time.monotonic()
        there = page.evaluate("() => performance.now()") / 1000
        after = time.monotonic()
        if after - before < best:
            best, offset = after - before, (before + after) / 2 - there
    return offset


def _seen(page: Page, count: int, heading: str) -> float:
    """Return when, on the page's clock in seconds, the waiter was drawn under a heading."""
    page.wait_for_function(
        "([count, heading]) => window.gpushareSeen.slice(count)"
        ".some(entry => entry.heading === heading && entry.drawn)",
        arg=[count, heading],
    )
    entry = page.evaluate(
        "([count, heading]) => window.gpushareSeen.slice(count).find(entry => entry.heading === heading)",
        [count, heading],
    )
    return float(entry["drawn"]) / 1000


def _pixels(lab: Lab, path: Path, page: LabPage) -> Iterator[Figure]:
    """A notebook begins to wait, and gets the GPU: until the panel has drawn either."""
    gpu = lab.shared_status()["gpus"][0]
    delays = []
    with (
        FakeClient(path, uuid.uuid4().hex, gpu["uuid"], name="holder.ipynb") as holder,
        FakeClient(path, uuid.uuid4().hex, gpu["uuid"], name="waiter.ipynb") as waiter,
    ):
        for client in (holder, waiter):
            client.attach()
            client.grow(gpu["total"] // 8)
        holder.run()
        page.panel.get_by_text("holder").first.wait_for()
        page.page.evaluate(_WATCH, "waiter")
        offset = _clock(page.page)
        count = 0
        for _ in range(ROUNDS):
            for act, heading in ((waiter.request, "Waiting"), (holder.release, "Running")):
                # A user starts at any moment.
                time.sleep(random.uniform(0.15, 0.4))
                count = page.page.evaluate("() => window.gpushareSeen.length")
                began = time.monotonic()
                act()
                if heading == "Running":
                    waiter.take()
                delays.append((_seen(page.page, count, heading) + offset - began) * 1000)
            waiter.release("quiet")
            holder.run()
    spread = quartile_distance(delays)
    metric = "event to pixel"
    for name, value, target in (
        ("median", statistics.median(delays), 100.0),
        ("p95", percentile(delays, 95), None),
    ):
        yield Figure(BENCH, f"{metric}, {name}", value, "ms", None, len(delays), spread, target)


# --- What a page loads ----------------------------------------------------------------------------


def _sizes(lab: Lab, browser: Browser) -> Iterator[Figure]:
    """What a page loads of ours at its start, and by the time that the panel is there."""
    loaded: dict[str, int] = {}

    def note(response: Any) -> None:
        if "/extensions/jupyter-gpushare/" in response.url:
            path = response.url.partition("?")[0].partition("/static/")[2]
            body = ROOT / "jupyter_gpushare" / "labextension" / "static" / path
            loaded[path] = len(gzip.compress(body.read_bytes(), 9, mtime=0))

    page = LabPage(browser, lab)
    try:
        page.page.on("response", note)
        page.open("lab/tree/plots.ipynb?reset")
        page.page.wait_for_load_state("networkidle")
        start = sum(loaded.values()), len(loaded)
        page.show_panel()
        page.page.wait_for_load_state("networkidle")
        whole = sum(loaded.values()), len(loaded)
    finally:
        page.close()
    for name, (size, files), target in (
        ("at start", start, 20.0),
        ("with the panel", whole, 150.0),
    ):
        metric = f"loaded {name}, gzipped"
        yield Figure(BENCH, metric, size / 1000, "kB", None, files, 0.0, target)


# --- What a page does with an update --------------------------------------------------------------

#: Marks in the trace where the deltas arrive that the server has announced and the page has fetched.
_MARK = """
const ask = window.fetch;
window.fetch = async (...args) => {
  const response = await ask(...args);
  if (response.url.includes('gpushare/api/changes')) {
    performance.mark('gpushare-changes');
  }
  return response;
};
"""

#: The fewest of them that a measurement needs.
_FEWEST = 5

_SHOW_ALL = """panel =>
  panel.querySelectorAll('button[aria-expanded="false"][aria-controls]').forEach(button => button.click())
"""

#: Events of a trace that say for how long the page computed what it shows: script, style and layout.
_RENDERING = frozenset(
    ("FunctionCall", "EvaluateScript", "FireAnimationFrame", "UpdateLayoutTree", "Layout")
)
#: Microseconds after the deltas came in, in which the page shows what they say; what it does later is not for them.
_SHOWN = 100_000


def _updates(
    browser: Browser, page: LabPage, what: str, target: float | None = None
) -> Iterator[Figure]:
    """The main thread's work for each answer with deltas, of the page with the panel open."""
    browser.start_tracing(
        page=page.page,
        categories=[
            "blink.user_timing",
            "devtools.timeline",
            "disabled-by-default-devtools.timeline",
        ],
    )
    began = time.monotonic()
    page.page.evaluate("() => performance.clearMarks('gpushare-changes')")
    page.page.wait_for_timeout(WINDOW / 2 * 1000)
    page.page.wait_for_function(
        "fewest => performance.getEntriesByName('gpushare-changes').length >= fewest",
        arg=_FEWEST,
        timeout=TIMEOUT * 1000,
    )
    seconds = time.monotonic() - began
    events = json.loads(browser.stop_tracing())["traceEvents"]
    marks = [e for e in events if e["name"] == "gpushare-changes"]
    thread = marks[0]["pid"], marks[0]["tid"]
    spans = sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"])
        for e in events
        if e["ph"] == "X" and (e["pid"], e["tid"]) == thread
    )
    tasks = [(start, end) for start, end, name in spans if name == "RunTask"]
    rendering = _outermost([(start, end) for start, end, name in spans if name in _RENDERING])
    starts = [
        # The task in which the deltas came in.
        max((start for start, end in tasks if start <= mark["ts"] <= end), default=mark["ts"])
        for mark in marks
    ]
    for name, parts, goal in (
        (f"update of {NOTEBOOKS} notebooks, {what}", rendering, target),
        (f"the same with painting, {what}", tasks, None),
    ):
        work = [
            sum(end - start for start, end in parts if begin <= start < begin + _SHOWN) / 1000
            for begin in starts
        ]
        median, spread = statistics.median(work), quartile_distance(work)
        yield Figure(BENCH, name, median, "ms", None, len(work), spread, goal)
    yield Figure(
        BENCH, f"updates a second, {what}", len(marks) / seconds, "", None, len(marks), 0.0
    )


def _outermost(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans that lie in no other; they are sorted by their starts."""
    found: list[tuple[float, float]] = []
    for start, end in spans:
        if not found or start >= found[-1][1]:
            found.append((start, end))
    return found


# --- What a server does for pages -----------------------------------------------------------------


def _cost(lab: Lab, path: Path) -> Iterator[Figure]:
    """Processor time of server and scheduler: without a page, and with five pages."""
    with ControlClient(path) as control:
        pids = {"server": lab.process.pid}
        pids["scheduler"] = control.request("status")["status"]["scheduler"]["pid"]
        first = control.request("history")["sequence"]
        began = time.monotonic()
        quiet = processor_use(pids, WINDOW / 2)
        rate = (control.request("history")["sequence"] - first) / (time.monotonic() - began)
    with Pages(lab.url, TOKEN, our_page, PAGES):
        looked = processor_use(pids, WINDOW)
    yield Figure(BENCH, "events a second", rate, "", None, 1, 0.0)
    for name, target in (("server", 5.0), ("scheduler", None)):
        metric = f"{name} with {PAGES} pages, {NOTEBOOKS} notebooks"
        yield Figure(BENCH, metric, looked[name], "%", quiet[name], 1, 0.0, target)


# --- All of ours ----------------------------------------------------------------------------------


def run() -> Iterator[Figure]:
    """Measure all that is ours."""
    with _chromium() as browser:
        with _lab(1) as (lab, path):
            page = LabPage(browser, lab)
            page.open("lab/tree/plots.ipynb?reset")
            page.show_panel()
            yield from _pixels(lab, path, page)
            page.close()
            yield from _sizes(lab, browser)
        with _lab(GPUS) as (lab, path), Crowd(path):
            yield from _cost(lab, path)
            page = LabPage(browser, lab)
            page.page.add_init_script(_MARK)
            page.open("lab/tree/plots.ipynb?reset")
            page.show_panel()
            page.panel.get_by_text("experiment").first.wait_for()
            yield from _updates(browser, page, "as shown", 16)
            page.panel.evaluate(_SHOW_ALL)
            yield from _updates(browser, page, "all rows")
            page.close()


# --- Others ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """A server extension that we compare with, and what its pages do."""

    name: str
    module: str
    does: str
    play: Play


PEERS = (
    Peer("nvdashboard", "jupyterlab_nvdashboard", "1 chart", charts("gpu_resource")),
    Peer(
        "nvdashboard",
        "jupyterlab_nvdashboard",
        "3 charts",
        charts("gpu_resource", "gpu_utilization", "gpu_usage"),
    ),
    Peer("resource-usage", "jupyter_resource_usage", "every 5 s", usage_page),
)


def peers(python: str) -> Iterator[Figure]:
    """Measure the servers of others in their environment, on a machine with as many GPUs."""
    for peer in PEERS:
        if subprocess.run([python, "-c", f"import {peer.module}"], capture_output=True).returncode:
            print(f"gpushare: {python} has no {peer.module}", file=sys.stderr)
            continue
        with (
            _folder(GPUS) as (folder, environ),
            _peer_server(python, peer, folder, environ) as (
                url,
                pid,
            ),
        ):
            quiet = processor_use({"server": pid}, WINDOW / 2)["server"]
            with Pages(url, TOKEN, peer.play, PAGES):
                looked = processor_use({"server": pid}, WINDOW)["server"]
        metric = f"{peer.name}, {PAGES} pages, {peer.does}"
        yield Figure(BENCH, metric, looked, "%", quiet, 1, 0.0)


#: A Jupyter server on GPUs without NVLink, whose bus says nothing: more than that the simulated NVML does not know.
_PEER = """
import pynvml
from jupyter_server.serverapp import main
def unsupported(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
pynvml.nvmlDeviceGetNvLinkVersion = pynvml.nvmlDeviceGetMaxPcieLinkGeneration = unsupported
main()
"""


@contextlib.contextmanager
def _peer_server(
    python: str, peer: Peer, folder: Path, environ: Mapping[str, str]
) -> Iterator[tuple[str, int]]:
    """Yield the address of a server with this extension alone, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(python, "-c", _PEER, "--no-browser", "--allow-root"),
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.jpserver_extensions={ {peer.module: True} }",
    ]
    private = {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        # The simulated NVML answers in place of the driver's.
        "LD_LIBRARY_PATH": str(LIBRARIES / "sim"),
    }
    log = folder / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env={**environ, **private}, stdout=output, stderr=subprocess.STDOUT
        )
    url = f"http://127.0.0.1:{port}/"
    try:
        deadline = time.monotonic() + TIMEOUT
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if time.monotonic() > deadline or server.poll() is not None:
                raise RuntimeError(log.read_text(errors="replace"))
            time.sleep(0.05)
        yield url, server.pid
    finally:
        server.terminate()
        server.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure us, and others if their Python is given."""
    parser = Parser(prog="python -m jupyter_gpushare.benchmarks.published.lab", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--peer-python", metavar="PATH", help="the Python that has the others")
    parser.add_argument("--peers-only", action="store_true", help="measure only the others")
    options = parser.parse_args(arguments)
    figures: list[Iterator[Figure]] = [] if options.peers_only else [run()]
    if options.peer_python:
        figures.append(peers(options.peer_python))
    for found in figures:
        for figure in found:
            print(figure.as_json() if options.json else figure.as_text(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
