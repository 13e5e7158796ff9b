# SPDX-License-Identifier: BSD-3-Clause
"""Notebook runners, front ends and libraries with worker processes, while another notebook contends for the GPU.

They are installed in an environment of their own (``requirements/acceptance.txt``), as users would install them. They
use the kernelspec that ``gpushare kernelspec add`` makes. No scheduler runs before the first notebook starts.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.place import LIMIT, Place, outputs
from tests.support.folders import socket_folder

pytestmark = pytest.mark.slow

EXPECTED = {
    "right": True,
    "not in the notebook's group": [],
    "needs more than the GPU has, with the other notebook": True,
    "called outside programs": [],
}

#: A notebook that uses the GPU in its kernel.
ALONE = """\
import json, os, work
mine = work.Work(3 / 4, 5)
mine.step()
print(json.dumps(work.report([os.getpid()], mine.is_right())))
"""

#: How notebooks with worker processes begin.
BEGIN = """\
import json, os, tempfile, work
folder, count = tempfile.mkdtemp(), 6
"""


def check(found: list[Any], name: str, message: str = "", *, cell: bool = True) -> None:
    """Check that a cell has printed a report that is as expected, and no other message of ours than this one."""
    assert {output.output_type for output in found} == {"stream"}
    check_text("".join(output.text for output in found), name, message, cell=cell)


def check_text(text: str, name: str, message: str = "", *, cell: bool = True) -> None:
    """Check the one report in a text, and the messages of ours; other software may log what it likes.

    A message of a worker process may come too late for the cell.
    """
    reports = [json.loads(report) for report in re.findall(r'\{"right".*\}', text)]
    assert reports == [{**EXPECTED, "name": name, "in a cell": cell}], text
    assert re.findall("gpushare:.*", text) in ([], [message]), text


@pytest.fixture(scope="module")
def home(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a place whose kernelspec ``shared`` shares the GPU; in the end, no process is left."""
    programs = root / "build" / "acceptance" / "bin"
    if not (programs / "gpushare").exists():
        pytest.skip("build/acceptance is missing: run `make build/acceptance/stamp`")
    with socket_folder() as runtime:
        home = Place(tmp_path_factory.mktemp("home"), Path(runtime), programs)
        home.run("gpushare", "kernelspec", "add", "shared")
        try:
            with other_notebook(home):
                yield home
            home.until_only({})
        finally:
            home.clean()


@pytest.fixture
def place(home: Place) -> Iterator[Place]:
    """Return the place, where another notebook uses the GPU; in the end, no process of the test is left."""
    before = home.processes()
    yield home
    home.until_only(before)


@contextlib.contextmanager
def other_notebook(place: Place) -> Iterator[None]:
    """Keep a notebook running that holds three quarters of the GPU, and check its results in the end."""
    started, stop = place.folder / "started", place.folder / "stop"
    path = place.write("other.ipynb", f"import work\nwork.contend({str(started)!r}, {str(stop)!r})")
    with place.start("jupyter", "execute", "--timeout=-1", "--inplace", path.name) as process:
        try:
            deadline = time.monotonic() + LIMIT
            while not started.exists():
                assert process.poll() is None, process.communicate()[0]
                assert time.monotonic() < deadline, "the other notebook does not start"
                time.sleep(0.05)
            yield
            stop.touch()
            printed, _ = process.communicate(timeout=LIMIT)
            assert process.returncode == 0, printed
            assert "gpushare:" not in printed
            assert [output.text for output in outputs(path)] == ["right\n"]
        finally:
            process.kill()


def papermill(place: Place) -> None:
    place.write("plain.ipynb", ALONE, kernel="python3")
    place.run("papermill", "--kernel", "shared", "plain.ipynb", "done.ipynb")
    check(outputs(place.notebooks / "done.ipynb"), "plain.ipynb")


def nbconvert(place: Place) -> None:
    path = place.write("run.ipynb", ALONE, kernel="python3")
    options = ("--to", "notebook", "--execute", "--ExecutePreprocessor.kernel_name=shared")
    place.run("jupyter", "nbconvert", *options, "--inplace", path.name)
    check(outputs(path), path.name)


def nbclient(place: Place) -> None:
    check(place.execute(ALONE), "workers.ipynb")


def jupytext(place: Place) -> None:
    (place.notebooks / "script.py").write_text(ALONE)
    place.run("jupytext", "--to", "ipynb", "--set-kernel", "shared", "--execute", "script.py")
    check(outputs(place.notebooks / "script.ipynb"), "shared")


def console(place: Place) -> None:
    options = ("--kernel", "shared", "--simple-prompt", "--no-confirm-exit")
    printed = place.run("jupyter", "console", *options, typed=f"{ALONE}\nexit\n")
    check_text(printed, "shared")


def voila(place: Place) -> None:
    path = place.write("page.ipynb", ALONE)
    log = place.folder / "voila.log"
    with (
        log.open("w") as file,
        place.start("voila", "--no-browser", path.name, stdout=file) as process,
    ):
        try:
            deadline = time.monotonic() + LIMIT
            while not (found := re.search(r"http://localhost:\d+/\S*", log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
            with urllib.request.urlopen(found.group(), timeout=LIMIT) as answer:
                page = html.unescape(answer.read().decode())
        finally:
            process.terminate()
            process.wait(LIMIT)
    check_text(page, "shared")
    assert "gpushare:" not in log.read_text()


@pytest.mark.parametrize("run", [papermill, nbconvert, nbclient, jupytext, console, voila])
def test_a_front_end_without_provisioners_shares(
    place: Place, run: Callable[[Place], None]
) -> None:
    run(place)


MULTIPROCESSING = """\
import multiprocessing
with multiprocessing.get_context({method!r}).Pool(2) as pool:
    results = pool.starmap(work.task, [(number, folder) for number in range(count)], 1)
    found = work.report_tasks(results, count)
"""

JOBLIB = """\
import joblib
tasks = (joblib.delayed(work.task)(number, folder) for number in range(count))
results = joblib.Parallel(n_jobs=2, backend="loky", batch_size=1)(tasks)
found = work.report_tasks(results, count)
joblib.externals.loky.get_reusable_executor().shutdown(wait=True)
"""

IPYPARALLEL = """\
import ipyparallel
with ipyparallel.Cluster(n=2, log_level=30) as client:
    engines = client.load_balanced_view()
    results = engines.map_sync(work.task, range(count), [folder] * count)
    found = work.report_tasks(results, count)
    magic = client[:].apply_sync(lambda: get_ipython().find_line_magic("gpushare") is not None)
    assert all(magic)
"""

DASK = """\
import distributed
options = dict(processes=True, n_workers=2, threads_per_worker=1, dashboard_address=None)
with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
    tasks = client.map(work.task, range(count), [folder] * count, pure=False)
    results = client.gather(tasks)
    found = work.report_tasks(results, count)
"""

END = """\
work.until_left(results)
print(json.dumps(found))
"""

WORKERS = {
    **{method: MULTIPROCESSING.format(method=method) for method in ("fork", "spawn", "forkserver")},
    "joblib": JOBLIB,
    "ipyparallel": IPYPARALLEL,
    "dask": DASK,
}


@pytest.mark.parametrize("name", WORKERS)
def test_worker_processes_share_in_the_group_of_their_notebook(place: Place, name: str) -> None:
    # The kernel does not use CUDA itself, and no Jupyter server tells of its cells.
    check(place.execute(BEGIN + WORKERS[name] + END), "workers.ipynb", cell=False)


FORK_AFTER_CUDA = """\
import json, multiprocessing, os, work
from cuda.bindings import driver
mine = work.Work(3 / 4, 5)
mine.step()
with multiprocessing.get_context("fork").Pool(1) as pool:
    (error, _) = pool.apply(driver.cuMemAlloc, [1 << 20])
assert error == driver.CUresult.CUDA_ERROR_NOT_INITIALIZED, error
mine.step()
print(json.dumps(work.report([os.getpid()], mine.is_right())))
"""


FORKED = (
    "gpushare: this process was forked from one that had already used CUDA, so CUDA does not work in it. "
    'Use the start method "spawn" of multiprocessing'
)


def test_a_child_that_is_forked_after_the_first_use_of_cuda_gets_the_drivers_error(
    place: Place,
) -> None:
    """The child does not hang, and the notebook goes on."""
    check(place.execute(FORK_AFTER_CUDA, message=FORKED), "workers.ipynb", FORKED)
