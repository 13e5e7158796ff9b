# SPDX-License-Identifier: BSD-3-Clause
"""What of the in-kernel part is loaded when, also where its folder is of another version by then."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jupyter_gpushare.kernel_provisioner import in_kernel, launch

from .cell_steps import SETUP, Ask, cells
from .conftest import Kernel, eventually, started

#: What a kernel needs at its start: each further module would be compiled there.
AT_START = {"cells", "deferred", "faults", "interposer", "interrupts", "names"}

LOADED = """
import sys
print(*(name for name in sys.modules if name.startswith("_gpushare_in_kernel")))
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a copy of the part, which kernels load."""
    copy = tmp_path / "in_kernel"
    shutil.copytree(launch.IN_KERNEL.parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(launch, "IN_KERNEL", copy / "__init__.py")
    return copy


async def loaded(kernel: Kernel) -> set[str]:
    """Which modules of ours the kernel has."""
    names = (await kernel.execute(LOADED)).stream("stdout").split()
    return {name.partition(".")[2] for name in names} - {""}


def upgrade(folder: Path) -> None:
    """Put another version in the folder's place."""
    for path in folder.glob("*.py"):
        path.write_text("raise RuntimeError('of another version')\n")


async def test_a_kernel_starts_with_the_hooks_alone(scheduler: Ask) -> None:
    async with started() as kernel:
        assert await loaded(kernel) == AT_START
        await kernel.execute(SETUP)
        await kernel.execute("work()")
        assert await loaded(kernel) == AT_START
        assert (await kernel.execute("%gpushare")).reply["status"] == "ok"
        assert {"magics", "tables", "verbs"} < await loaded(kernel)


async def test_an_upgrade_does_not_affect_a_running_kernel(scheduler: Ask, folder: Path) -> None:
    async with started() as kernel:
        await kernel.execute("%load_ext autoreload\n%autoreload 2")
        await kernel.execute(SETUP)
        upgrade(folder)
        for line in ("status", "explain", "history", "background"):
            result = await kernel.execute(f"%gpushare {line}")
            assert result.reply["status"] == "ok"
            assert result.stream("stderr") == ""
        shutil.rmtree(folder)
        assert (await kernel.execute("%%gpushare exclusive\nwork()")).reply["status"] == "ok"
        assert (await kernel.execute("%gpushare?")).reply["payload"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("magics", "missing"),
        ("verbs", "of another version"),
        ("interposer", "missing"),
        ("cells", "of another version"),
    ],
)
async def test_a_kernel_starts_in_the_middle_of_an_upgrade(
    name: str, fault: str, scheduler: Ask, folder: Path
) -> None:
    path = folder / f"{name}.py"
    if fault == "missing":
        path.unlink()
    else:
        path.write_text("from .faults import of_another_version\n")
    async with started() as kernel:
        # That the upgrade is over by now does not help: the kernel has modules from before.
        shutil.copy(Path(in_kernel.__file__).with_name(path.name), path)
        for code in ("%gpushare", "%gpushare help", "%%gpushare exclusive\n1"):
            said = (await kernel.execute(code)).stream("stderr").splitlines()
            assert len(said) == 1
            assert said[0].startswith("UsageError: gpushare: the files in ")
            assert "restart the kernel" in said[0]
        await kernel.client.complete("%gpushare s", reply=True, timeout=60)
        assert (await kernel.execute("%gpushare?")).reply["status"] == "ok"
        if name in ("cells", "interposer"):
            loading = await kernel.execute("%load_ext jupyter_gpushare")
            assert "restart the kernel" in loading.stream("stdout")
        assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        assert (await kernel.execute("work()\nprint(1)")).stream("stdout") == "1\n"
        if name in ("magics", "verbs"):
            await eventually(lambda: "end" in cells(scheduler, kernel), "hooks work")
        assert (await kernel.execute("%unload_ext jupyter_gpushare")).reply["status"] == "ok"


@pytest.mark.parametrize("missing", ["deferred.py", ""])
async def test_a_kernel_starts_without_the_folder(
    missing: str, scheduler: Ask, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if missing:
        (folder / missing).unlink()
    else:
        shutil.rmtree(folder)
    async with started() as kernel:
        assert (await kernel.execute(SETUP)).reply["status"] == "ok"
        assert (await kernel.execute("work()\nprint(1)")).stream("stdout") == "1\n"
    said = [line for line in capfd.readouterr().err.splitlines() if "gpushare" in line]
    assert len(said) == 1
    assert "WARNING | this kernel runs without %gpushare: " in said[0]
