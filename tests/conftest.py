# SPDX-License-Identifier: BSD-3-Clause
"""What all tests share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from jupyter_gpushare.benchmarks.harness import machine
from tests.support import schedulers
from tests.support.environment import COMPILER, find_chromium
from tests.support.folders import socket_folder
from tests.support.properties import PROPERTY_TIMEOUT
from tests.support.workshop import Workshop

pytest_plugins = ("pytest_jupyter.jupyter_server",)

# No deadline: how long an example takes only says how busy the machine is. `make test` draws the
# same examples each time, so that a change is judged by what it does; `make test-slow` draws others.
settings.register_profile("same-examples", deadline=None, derandomize=True)
settings.register_profile("new-examples", deadline=None)
settings.load_profile("same-examples")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the repository's top folder."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Workshop:
    """Return where the interposer is built with bugs."""
    return Workshop(tmp_path_factory.mktemp("workshop"), root)


@pytest.fixture(scope="session", autouse=True)
def _private_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the tests away from the scheduler and the settings of the user that runs them."""
    # Parallel workers of pytest have subfolders of a shared folder.
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    compiler = shared / "kernels" / "compiler"
    compiler.parent.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        compiler.symlink_to(Path(__file__).with_name("support") / "kernel-compiler")
    with socket_folder() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", folder)
        for name in [*os.environ]:
            if name.startswith("GPUSHARE_") or name == "JUPYTER_DEFAULT_PROVISIONER_NAME":
                patch.delenv(name)
        patch.setenv(COMPILER, str(compiler))
        # NumPy's threads would only wait for work, some of them busily.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def _forked_schedulers() -> Iterator[None]:
    """Let the benchmarks fork their schedulers: a start takes 0.3 s of processor time, and a fork 0.02 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "start_scheduler", schedulers.start_scheduler)
        yield


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let what the tests start be interrupted: in the background of a shell, SIGINT is ignored, and so on down."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def jp_asyncio_loop() -> asyncio.AbstractEventLoop:
    """Let pytest-jupyter's servers run on the loop that pytest-asyncio gives the test."""
    return asyncio.get_running_loop()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of the system's Chromium."""
    if path := find_chromium():
        return path
    pytest.skip(
        "Chromium is not installed; on Debian, run: apt-get install chromium-headless-shell"
    )


#: The files whose tests take longest, in that order. One of them that began last would end long after all others.
LONGEST = [
    "labextension/test_notebooks.py",
    "scheduler/test_hibernation_service.py",
    "scheduler/test_hibernation_in_containers.py",
    "differential/test_sanitized.py",
    "interposer/test_failures.py",
    "differential/test_differential.py",
    "kernel_provisioner/test_ticket.py",
    "interposer/test_kinds.py",
    "interposer/test_mappings.py",
    "kernel_provisioner/test_magics.py",
    "kernel_provisioner/test_magic_tables.py",
    "scheduler/test_pool.py",
    "benchmarks/test_short.py",
    "interposer/test_suspected.py",
    "interposer/test_restores.py",
    "interposer/test_hibernate.py",
    "interposer/test_hibernate_alone.py",
    "gpu/test_runner.py",
    "hub/test_service_page.py",
    "hub/test_containers.py",
    "hub/test_hub.py",
    "kernel_provisioner/test_provisioner.py",
    "labextension/test_memory.py",
    "labextension/test_jupyterlab.py",
    "scheduler/test_simulation.py",
    "scheduler/test_host.py",
    "server_extension/test_hibernate.py",
    "cli/demo/test_demo.py",
    "server_extension/test_status.py",
    "gpu/test_hibernate_bench.py",
    "interposer/test_bare_driver.py",
    "interposer/test_beside_running_work.py",
    "scheduler/test_properties.py",
    "scheduler/test_server.py",
    "server_extension/test_queued.py",
    "server_extension/test_feed.py",
    "cli/doctor/test_doctor.py",
    "scheduler/test_visibility.py",
    "interposer/test_captures.py",
    "interposer/test_open_captures.py",
    "acceptance/test_upgrade.py",
    "gpu/test_comparisons.py",
    "scheduler/test_suspicion.py",
    "interposer/test_host_pages.py",
    "scheduler/test_shares.py",
    "scheduler/test_tickets.py",
    "fuzz/test_fuzz.py",
]


def pytest_configure() -> None:
    """Collect garbage rarely. With Python's own limits, that takes about a tenth of the time of the property tests."""
    gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each property test the time to report its example, and put the items in order.

    The longest files come first, and the scheduler's, which are many and short, come last, so that parallel workers end
    at about the same time.
    """
    for item in items:
        if item.get_closest_marker("hypothesis") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PROPERTY_TIMEOUT))
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    last = len(places)
    items.sort(
        key=lambda item: places.get(item.path, last + (item.path.parent.name == "scheduler"))
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs an NVIDIA GPU where there is none."""
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
