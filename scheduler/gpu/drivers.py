# SPDX-License-Identifier: BSD-3-Clause
"""Finds the libraries of the CUDA driver, and our own."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..._version import LIBRARIES

CUDA = "libcuda.so.1"
NVML = "libnvidia-ml.so.1"

#: Where drivers put their libraries without an entry in ldconfig (containers, WSL, NixOS).
FOLDERS = (
    f"/usr/lib/{platform.machine()}-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)


class DriverError(Exception):
    """A library cannot be used; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class Driver:
    """The driver that clients must use."""

    cuda: Path
    nvml: Path | None
    simulated: bool

    def environment(self) -> dict[str, str]:
        """The variables from which a client's interposer finds the driver."""
        found = {"GPUSHARE_DRIVER": str(self.cuda)}
        if self.nvml is not None:
            found["GPUSHARE_NVML"] = str(self.nvml)
        return found


@dataclass(frozen=True, slots=True)
class Libraries:
    """Our shims, in the order in which they are preloaded."""

    cuda: Path
    alias: Path
    nvml: Path

    def preload(self) -> list[Path]:
        """The value of ``LD_PRELOAD``."""
        return [self.cuda, self.alias, self.nvml]

    @property
    def hibernator(self) -> Path:
        """The program that has the driver checkpoint processes, for schedulers and for clients that lost theirs."""
        return self.cuda.with_name("gpushare-hibernator")


def find_driver(environ: Mapping[str, str] | None = None) -> Driver | None:
    """Find the driver, or return None if there is none. This does not check whether it has a GPU.

    Raises
    ------
    DriverError
        A library that the environment names does not exist, or the simulated driver is not
        built.
    """
    environ = os.environ if environ is None else environ
    simulated = environ.get("GPUSHARE_SIM", "") not in ("", "0")
    cuda: Path | None
    nvml: Path | None
    if simulated:
        cuda, nvml = LIBRARIES / "sim" / CUDA, LIBRARIES / "sim" / NVML
        for path in (cuda, nvml):
            if not path.is_file():
                raise DriverError(
                    f"GPUSHARE_SIM is set, but the simulated driver is not built: {path} is missing"
                )
    else:
        cuda = _named("GPUSHARE_DRIVER", environ) or _search(CUDA, environ)
        nvml = _named("GPUSHARE_NVML", environ) or _search(NVML, environ)
    return None if cuda is None else Driver(cuda, nvml, simulated)


def libraries() -> Libraries:
    """Return our shims: those of ``GPUSHARE_LIBRARIES``, which fit the scheduler outside of a container, or our own.

    Raises
    ------
    DriverError
        They do not exist.
    """
    given = os.environ.get("GPUSHARE_LIBRARIES")
    folder = Path(given) if given else LIBRARIES
    found = Libraries(
        folder / "libgpushare.so",
        folder / "libgpushare-alias.so",
        folder / "libgpushare-nvml.so",
    )
    for path in found.preload():
        if not path.is_file():
            if given:
                raise DriverError(f"GPUSHARE_LIBRARIES names {folder}, but {path} is missing")
            raise DriverError(
                f"the interposer is not built: {path} is missing; in a checkout, run: make -C csrc"
            )
    return found


def _named(variable: str, environ: Mapping[str, str]) -> Path | None:
    value = environ.get(variable)
    if not value:
        return None
    path = Path(value)
    if not path.is_absolute():
        raise DriverError(f"{variable} must be an absolute path, not {value!r}")
    if not path.is_file():
        raise DriverError(f"{variable} names {value}, which is not a file")
    if _is_shim(path):
        raise DriverError(
            f"{variable} names {value}, which is gpushare's own shim and not a driver"
        )
    return path


def _search(name: str, environ: Mapping[str, str]) -> Path | None:
    for path in _candidates(name, environ):
        if path.is_file() and not _is_shim(path) and "stubs" not in path.parts:
            return path
    return None


def _candidates(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    for folder in environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder.startswith("/"):
            yield Path(folder, name)
    yield from map(Path, _ldconfig().get(name, ()))
    for folder in FOLDERS:
        yield Path(folder, name)


def look_again() -> None:
    """Make the next search find a driver that was installed since the last one."""
    _ldconfig.cache_clear()


@lru_cache(maxsize=1)
def _ldconfig() -> dict[str, list[str]]:
    """The loader's cache, for this process's architecture."""
    wanted = {"x86_64": "x86-64", "aarch64": "AArch64"}.get(platform.machine(), "")
    found: dict[str, list[str]] = {}
    for command in ("ldconfig", "/sbin/ldconfig"):
        try:
            listing = subprocess.run(
                [command, "-p"],
                capture_output=True,
                text=True,
                check=False,
                timeout=5,
                env={"PATH": os.defpath},
            ).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        for line in listing.splitlines():
            match = re.match(r"\s*(\S+) \(([^)]*)\) => (/.*)", line)
            if match and wanted in match[2]:
                found.setdefault(match[1], []).append(match[3])
        break
    return found


def _is_shim(path: Path) -> bool:
    real = path.resolve()
    return real.name.startswith("libgpushare") or real.parent == LIBRARIES.resolve()
