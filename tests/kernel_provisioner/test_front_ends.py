# SPDX-License-Identifier: BSD-3-Clause
"""Front ends that start kernels without the provisioner: what their users learn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import papermill
import pytest

from .conftest import started

ADVICE = "gpushare kernelspec add"
OUT_OF_MEMORY = (
    "class OutOfMemoryError(RuntimeError): __module__ = 'torch'\n"
    "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
)


@pytest.fixture
def plain(add_kernelspec: Callable[..., str]) -> str:
    """Return a kernelspec whose kernels start as in front ends that bypass provisioners."""
    return add_kernelspec(
        "plain", metadata={"kernel_provisioner": {"provisioner_name": "local-provisioner"}}
    )


@pytest.mark.usefixtures("real_kernels")
async def test_the_magic_explains_that_nothing_is_shared(plain: str) -> None:
    async with started(plain) as kernel:
        assert "GPUSHARE_GROUP" not in kernel.environment()
        nothing = await kernel.execute("%who\nprint(__doc__)")
        assert nothing.stream("stdout").startswith("Interactive namespace is empty.")
        assert "IPython runs this" not in nothing.stream("stdout")
        assert nothing.stream("stderr") == ""
        said = (await kernel.execute("%gpushare")).stream("stderr")
        assert "does not share the GPU" in said
        assert ADVICE in said
        loaded = await kernel.execute("%load_ext jupyter_gpushare")
        assert loaded.reply["status"] == "ok"
        assert ADVICE in loaded.stream("stdout")


async def test_out_of_memory_is_explained_where_nothing_is_shared(plain: str) -> None:
    async with started(plain) as kernel:
        failed = await kernel.execute(OUT_OF_MEMORY)
        assert failed.errors() == ["OutOfMemoryError"]
        assert "does not share the GPU" in failed.stream("stderr")
        other = await kernel.execute("raise MemoryError('out of memory')")
        assert other.stream("stderr") == ""
        await kernel.execute("%load_ext jupyter_gpushare\n%unload_ext jupyter_gpushare")
        assert (await kernel.execute(OUT_OF_MEMORY)).stream("stderr") == ""
        assert "not found" in (await kernel.execute("%gpushare")).stream("stderr")


async def test_a_kernel_that_shares_has_the_provisioners_part() -> None:
    async with started() as kernel:
        loaded = "type(get_ipython()._gpushare[1]).__module__"
        assert (await kernel.execute(loaded)).data()["text/plain"] == "'_gpushare_in_kernel.cells'"
        assert (await kernel.execute("%load_ext jupyter_gpushare")).stream("stdout") == ""
        assert (await kernel.execute(OUT_OF_MEMORY)).stream("stderr") == ""


#: Python runs it at its start: the environment does not have the package.
WITHOUT_THE_PACKAGE = """
import os, sys
sys.path[:] = [place for place in sys.path if not os.path.exists(f"{place}/jupyter_gpushare")]
"""


async def test_loading_works_where_the_package_is_not_installed(
    add_kernelspec: Callable[..., str], tmp_path: Path
) -> None:
    """As in a kernel of another environment, into which the provisioner brings its part."""
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_THE_PACKAGE)
    name = add_kernelspec("other", env={"PYTHONPATH": str(tmp_path)})
    async with started(name, cwd=str(tmp_path)) as kernel:
        missing = await kernel.execute("import jupyter_gpushare")
        assert missing.errors() == ["ModuleNotFoundError"]
        loaded = await kernel.execute("%load_ext jupyter_gpushare\n%gpushare help")
        assert loaded.errors() == []
        assert "already loaded" in loaded.stream("stdout")
        assert loaded.stream("stderr") == ""


def notebook(path: Path, code: str) -> Path:
    content = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    content.metadata.kernelspec = {"name": "plain", "display_name": "plain", "language": "python"}
    nbformat.write(content, path)
    return path


def outputs(path: Path) -> str:
    return json.dumps(nbformat.read(path, 4).cells[-1].outputs)


def test_papermill_and_nbconvert(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUPYTER_DEFAULT_PROVISIONER_NAME")
    source = notebook(tmp_path / "magic.ipynb", "%gpushare")
    papermill.execute_notebook(source, tmp_path / "out.ipynb", progress_bar=False)
    assert ADVICE in outputs(tmp_path / "out.ipynb")
    source = notebook(tmp_path / "memory.ipynb", OUT_OF_MEMORY)
    subprocess.run(
        [
            *(sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--allow-errors"),
            *("--output", str(tmp_path / "converted.ipynb"), str(source)),
        ],
        check=True,
        capture_output=True,
    )
    assert "does not share the GPU" in outputs(tmp_path / "converted.ipynb")


def test_ipython_in_a_terminal() -> None:
    ipython = [sys.executable, "-m", "IPython", "--no-banner", "-c"]
    shown = subprocess.run(
        [*ipython, "%gpushare"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ADVICE in shown.stdout + shown.stderr
    run = [sys.executable, "-m", "jupyter_gpushare.cli.main", "run", "--"]
    shared = subprocess.run(
        [*run, *ipython, "%gpushare"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ADVICE not in shared.stdout + shared.stderr
    assert "No notebook is using the GPU." in shared.stdout
