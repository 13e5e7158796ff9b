# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import LIBRARIES
from tests.deploy.api_server import NODE, ApiServer
from tests.support import fork_server
from tests.support.client import PATIENCE
from tests.support.folders import socket_folder
from tests.support.scheduler import environ, scheduler, start

__all__ = ["environ", "scheduler", "start"]


#: What the plugin, the driver and their kubelets import.
MODULES = (
    "google.protobuf.json_format",
    "grpc.aio",
    "pynvml",
    *(
        f"jupyter_gpushare.{name}"
        for name in (
            "cli.admin.device_plugin",
            "cli.admin.dra_driver",
            "deploy.kubernetes.dra.driver",
            "deploy.kubernetes.plugin",
            "deploy.kubernetes.slots",
            "deploy.libraries",
            "scheduler.gpu.devices",
            "scheduler.gpu.drivers",
        )
    ),
)


class Kubelet:
    """The stand-in's process, and what it told."""

    def __init__(
        self, folder: Path, refuse: int, *more: str, module: str = "tests.deploy.kubelet"
    ) -> None:
        self._process = fork_server.popen(
            ["-m", module, str(folder), str(refuse), *more],
            modules=MODULES,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._rest = b""
        self._lines: list[dict[str, Any]] = []
        self.until("ready")

    def until(self, what: str, value: Any = ...) -> Any:
        """Wait until it tells this, of this value where one is given; what it told before is forgotten."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + PATIENCE
        told = []
        while True:
            while self._lines:
                told.append(self._lines.pop(0))
                if what in told[-1] and value in (..., told[-1][what]):
                    return told[-1][what]
            left = deadline - time.monotonic()
            if left < 0 or not select.select([self._process.stdout], [], [], left)[0]:
                pytest.fail(f"no {what} of {value}, but {told}")
            data = os.read(self._process.stdout.fileno(), 65536)
            if not data:
                pytest.fail(f"the stand-in ended; no {what} of {value}, but {told}")
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += [json.loads(line) for line in lines]

    def call(self, method: str, **request: Any) -> Any:
        """Call the plugin that registered."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([method, request]).encode() + b"\n")
        self._process.stdin.flush()
        return self.until("answer")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Plugin:
    """The device plugin's process, or the DRA driver's."""

    def __init__(
        self, environ: dict[str, str], log: Path, *arguments: str, command: str = "device-plugin"
    ) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self.process = fork_server.popen(
                ["-m", "jupyter_gpushare.cli.main", command, "--interval", "0.05", *arguments],
                environ=environ,
                modules=MODULES,
                stdin=subprocess.DEVNULL,
                stderr=stderr,
            )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until(self, text: str) -> None:
        """Wait until it has logged this."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.log:
            assert time.monotonic() < deadline, self.log
            assert self.process.poll() is None, self.log
            time.sleep(0.02)

    def close(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)


@pytest.fixture
def node() -> Iterator[Path]:
    """The kubelet's folder for sockets. Not in pytest's own: a socket's path can have at most 107 bytes."""
    with socket_folder() as folder:
        yield Path(folder)


@pytest.fixture
def kubelets(node: Path) -> Iterator[Callable[..., Kubelet]]:
    """Start kubelets, which end with the test; one that is there ends first."""
    started: list[Kubelet] = []

    def begin(refuse: int = 0) -> Kubelet:
        for before in started:
            before.close()
        started[:] = [Kubelet(node, refuse)]
        return started[0]

    yield begin
    for kubelet in started:
        kubelet.close()


@pytest.fixture
def plugins(environ: dict[str, str], node: Path, tmp_path: Path) -> Iterator[Callable[..., Plugin]]:
    """Start plugins on a node of two GPUs, which end with the test."""
    started: list[Plugin] = []

    def begin(*arguments: str, **changes: str) -> Plugin:
        log = tmp_path / f"plugin-{len(started)}"
        started.append(Plugin({**environ, **changes}, log, "--kubelet-dir", str(node), *arguments))
        return started[-1]

    environ["GPUSHARE_SIM_DEVICES"] = "2"
    yield begin
    for plugin in started:
        plugin.close()


@pytest.fixture
def dra_kubelets(node: Path) -> Iterator[Callable[..., Kubelet]]:
    """Start kubelets for DRA drivers. A new one replaces the last one, which ends with the test otherwise."""
    started: list[Kubelet] = []

    def begin(refuse: int = 0, health: str = "v1") -> Kubelet:
        for before in started:
            before.close()
        started[:] = [Kubelet(node, refuse, health, module="tests.deploy.dra_kubelet")]
        return started[0]

    yield begin
    for kubelet in started:
        kubelet.close()


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A Kubernetes API with the Node of the tests."""
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def drivers(
    environ: dict[str, str], node: Path, api: ApiServer, tmp_path: Path
) -> Iterator[Callable[..., Plugin]]:
    """Start DRA drivers on a node of two GPUs, which end with the test."""
    started: list[Plugin] = []
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(api.kubeconfig())

    def begin(*arguments: str, **changes: str) -> Plugin:
        given = {
            "--kubelet-dir": node,
            "--cdi-dir": node / "cdi",
            "--state-dir": tmp_path / "state",
            "--node-name": NODE,
            "--resync": 0.2,
        }
        log = tmp_path / f"driver-{len(started)}"
        words = [str(word) for pair in given.items() for word in pair]
        started.append(
            Plugin({**environ, **changes}, log, *words, *arguments, command="dra-driver")
        )
        return started[-1]

    environ |= {"GPUSHARE_SIM_DEVICES": "2", "KUBECONFIG": str(kubeconfig)}
    yield begin
    for driver in started:
        driver.close()


@pytest.fixture(scope="session")
def losing_nvml(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a process whose GPUs get lost as the file LOST_GPUS says (losing_nvml.c)."""
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("losing_nvml.c")
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{library.name}"),
            *("-o", str(library), str(source), "-ldl"),
        ],
        check=True,
    )
    return {
        "GPUSHARE_SIM": "",
        "GPUSHARE_DRIVER": str(LIBRARIES / "sim" / "libcuda.so.1"),
        "GPUSHARE_NVML": str(library),
        "SIM_NVML": str(LIBRARIES / "sim" / "libnvidia-ml.so.1"),
        "LOST_GPUS": str(folder / "lost"),
    }
