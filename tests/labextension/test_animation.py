# SPDX-License-Identifier: BSD-3-Clause
"""The animation in README.md: two notebooks share a GPU. Made by ``make screenshots``.

The simulated GPU cannot run PyTorch, so the notebooks use a small stand-in whose work is real CUDA work.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, expect

from tests.support.lab import PATIENCE, Lab
from tests.support.lab_page import SCREENSHOTS, LabPage, notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(SCREENSHOTS is None, reason="only `make screenshots` makes the animation"),
]

SIZE = {"width": 1240, "height": 560}
#: Pixels of the picture for a pixel of the page: text stays sharp on screens with a high resolution.
SCALE = 1.25
PANEL_WIDTH = 290
#: Seconds that a frame is shown at most, so that a slow machine makes no slow animation; and the last one.
LONGEST, LAST = 0.7, 3.0
#: Bytes that the file may have.
LARGEST = 1_000_000

#: Looks like a small PyTorch project: takes three quarters of the GPU, and computes for a given time.
NETS = """\
import math, time
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, Program, launch

SOURCE = "__global__ void step(float *x) { x[blockIdx.x] += 1; }"
images = range(60_000)


class ResNet:
    def __init__(self, layers=50):
        self.epochs = 0

    @classmethod
    def load(cls, path):
        return cls()

    def cuda(self):
        device = Device()
        device.set_current()
        self.stream = device.create_stream()
        compiled = Program(SOURCE, "c++").compile("cubin", name_expressions=["step"])
        self.step = compiled.get_kernel("step")
        _, free, total = driver.cuMemGetInfo()
        self.weights = device.allocate(total * 3 // 4, stream=self.stream)
        return self

    def compute(self, seconds):
        # Always more to do: a GPU that falls idle goes to the next notebook at once.
        grid, steps, end = LaunchConfig(grid=100_000, block=1), [], time.monotonic() + seconds
        while time.monotonic() < end:
            launch(self.stream, grid, self.step, self.weights)
            steps.append(self.stream.record())
            if len(steps) > 300:
                steps.pop(0).sync()
        self.stream.sync()

    def train(self, images):
        self.compute(1.2)
        self.epochs += 1
        return 2.3 * math.exp(-self.epochs / 2)

    def evaluate(self, images):
        self.compute(1.5)
        return 1 - math.exp(-1.4 - self.epochs / 4)
"""

PATHS = ("train.ipynb", "evaluate.ipynb")
TRAIN = (
    "from nets import ResNet, images\n\nmodel = ResNet(layers=50).cuda()",
    'for i in range(1, 4):\n    loss = model.train(images)\n    print(f"epoch {i}: {loss:.2f}")',
    "model.evaluate(images)",
)
EVALUATE = (
    'from nets import ResNet, images\n\nmodel = ResNet.load("best.pt").cuda()',
    'accuracy = model.evaluate(images)\nprint(f"accuracy: {accuracy:.1%}")',
)

#: A cell of a notebook is selected, and the notebook's Jupyter kernel has answered.
READY = """async ([path, index]) => {
  const widget = window.jupyterapp.shell.currentWidget;
  await widget.sessionContext?.ready;
  await widget.sessionContext?.session.kernel.info;
  return widget.context?.path === path && widget.content.activeCellIndex === index;
}"""

#: Explains what happens, below the page.
CAPTION = """text => {
  let bar = document.getElementById('caption');
  if (!bar) {
    bar = document.createElement('div');
    bar.id = 'caption';
    bar.style.cssText = 'position: fixed; bottom: 30px; left: 22px; right: 330px; text-align: center; z-index: 9999;' +
      'pointer-events: none';
    document.body.append(bar);
  }
  bar.innerHTML = '<span style="display: inline-block; padding: 8px 18px; border-radius: 20px; background: #263238;' +
    'color: white; font: 17px sans-serif"></span>';
  bar.firstChild.textContent = text;
}"""


class Film:
    """Frames of a page.

    Parameters
    ----------
    page
        The page.
    """

    def __init__(self, page: LabPage) -> None:
        self._page = page.page
        #: When each frame was taken, and the frame.
        self._frames: list[tuple[float, Image.Image]] = []

    def caption(self, text: str) -> None:
        """Explain what follows."""
        self._page.evaluate(CAPTION, text)

    def roll(self, until: Callable[[], bool], hold: float = 0.0) -> None:
        """Take frames until something has happened, and for some seconds afterwards."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            assert time.monotonic() < deadline
            self._take()
        end = time.monotonic() + hold
        self._take()
        while time.monotonic() < end:
            self._take()

    def _take(self) -> None:
        taken = time.monotonic()
        png = self._page.screenshot()
        self._frames.append((taken, Image.open(io.BytesIO(png)).convert("RGB")))

    def save(self, path: Path) -> None:
        """Write the frames that differ as an animation."""
        pictures: list[Image.Image] = []
        durations: list[float] = []
        ends = [*(taken for taken, _ in self._frames[1:]), self._frames[-1][0]]
        for (began, picture), end in zip(self._frames, ends, strict=True):
            if pictures and picture.tobytes() == pictures[-1].tobytes():
                durations[-1] += end - began
            else:
                pictures.append(picture)
                durations.append(end - began)
        shown = [round(1000 * min(duration, LONGEST)) for duration in durations]
        shown[-1] = round(1000 * LAST)
        pictures[0].save(
            path,
            save_all=True,
            append_images=pictures[1:],
            duration=shown,
            loop=0,
            lossless=True,
            quality=100,
            method=4,
            minimize_size=True,
        )


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    """Return a GPU that a busy machine can copy in a moment."""
    return {"GPUSHARE_SIM_MEMORY": "256MiB", "GPUSHARE_SIM_CONTEXT": "4MiB"}


@pytest.fixture(scope="module")
def page(lab: Lab, browser: Browser) -> Iterator[LabPage]:
    """Return JupyterLab with both notebooks side by side, and the panel."""
    (lab.notebooks / "nets.py").write_text(NETS)
    for name, cells in zip(PATHS, (TRAIN, EVALUATE), strict=True):
        (lab.notebooks / name).write_text(json.dumps(notebook(*cells)))
    page = LabPage(browser, lab, viewport=SIZE, scale=SCALE)
    page.open("lab/tree/train.ipynb?reset")
    lab.shared_status()
    page.execute("application:toggle-left-area")
    page.execute("docmanager:open", {"path": "evaluate.ipynb", "options": {"mode": "split-right"}})
    page.page.locator(".jp-Notebook").nth(1).wait_for()
    page.show_panel()
    page.resize_panel(PANEL_WIDTH)
    page.page.mouse.move(0, 0)
    yield page
    page.close()


def test_two_notebooks_share_a_gpu(page: LabPage, tmp_path: Path) -> None:
    def run(path: str, index: int) -> None:
        panel = page.page.locator(".jp-NotebookPanel").nth(PATHS.index(path))
        panel.locator(".jp-InputPrompt").nth(index).click()
        page.page.wait_for_function(READY, arg=[path, index])
        page.page.keyboard.press("Control+Enter")

    def output(text: str) -> Locator:
        return page.page.locator(".jp-OutputArea-output").filter(has_text=text)

    def waiting() -> bool:
        return page.row("Waiting", "evaluate.ipynb").is_visible()

    film = Film(page)
    for path in PATHS:
        run(path, 0)
    expect(page.page.locator(".jp-InputPrompt").filter(has_text="[1]:")).to_have_count(2)
    film.caption("Two notebooks, each with a model that takes 75% of the GPU's memory")
    film.roll(lambda: True, 2.0)
    film.caption("train.ipynb trains its model")
    run("train.ipynb", 1)
    # Keep the GPU until the cell ends. Otherwise a short cell could go before a long one.
    group = page.kernel_of("train.ipynb")
    page.lab.post("gpushare/api/adjust", {"group": group, "priority": "interactive"})
    film.roll(output("epoch 1").is_visible, 0.3)
    film.caption("evaluate.ipynb waits for the GPU, and the panel says why")
    run("evaluate.ipynb", 1)
    film.roll(waiting, 0.8)
    film.roll(lambda: not waiting())
    film.caption("Its turn: the other model moves to host memory, and nothing is lost")
    film.roll(output("accuracy:").is_visible, 0.5)
    film.caption("train.ipynb goes on: its model comes back as it was")
    run("train.ipynb", 2)
    film.roll(output("0.88").is_visible, 0.5)
    film.caption("Both are done: no out-of-memory error, no change to the code")
    film.roll(lambda: True, 0.5)
    assert SCREENSHOTS is not None
    made = Path(SCREENSHOTS) / "sharing.webp"
    film.save(made)
    assert made.stat().st_size < LARGEST
