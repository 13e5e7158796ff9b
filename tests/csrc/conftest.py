# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of the C libraries share."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import nvidia
import pytest

from jupyter_gpushare import LIBRARIES

HERE = Path(__file__).parent
#: In the order in which they are preloaded.
SHIMS = ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")


@pytest.fixture(scope="session")
def libraries() -> Path:
    """Return the folder of the built libraries."""
    for name in SHIMS:
        assert (LIBRARIES / name).exists(), f"{name} is not built; run make -C csrc"
    return LIBRARIES


@pytest.fixture(scope="session")
def simulated(libraries: Path) -> Path:
    """Return the folder of the simulated driver."""
    folder = libraries / "sim"
    assert (folder / "libcuda.so.1").exists(), "the simulated driver is not built; run make -C csrc"
    return folder


@pytest.fixture(scope="session")
def headers() -> Path:
    """Return the folder of cuda.h and nvml.h."""
    for path in nvidia.__path__:
        for header in sorted(Path(path).glob("*/include/cuda.h"), reverse=True):
            return header.parent
    raise AssertionError("cuda.h is not installed")


@pytest.fixture(scope="session")
def generator(root: Path) -> Callable[[str], ModuleType]:
    """Return a function that imports a module of csrc/generator."""
    folder = str(root / "csrc")
    if folder not in sys.path:
        sys.path.append(folder)
    return lambda name: importlib.import_module(f"generator.{name}")


@pytest.fixture(scope="session")
def declared(
    generator: Callable[[str], ModuleType], root: Path, headers: Path
) -> dict[str, tuple[str, ...]]:
    """Return the driver's functions and their parameters, as the headers declare them."""
    interop = root / "csrc/compat/interop"
    flags = ["-D__CUDA_API_VERSION_INTERNAL", f"-I{interop}", f"-I{headers}"]
    declarations = generator("declarations")
    text = declarations.preprocess("cc", interop / "driver.h", flags)
    found: dict[str, tuple[str, ...]] = declarations.declarations(text, declarations.DECLARATION)
    return found


@pytest.fixture(scope="session")
def compile_c(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles one of this folder's C files."""

    def compile_one(source: str, output: str, *flags: str, compiler: str = "cc") -> Path:
        folder = tmp_path_factory.mktemp(Path(source).stem)
        path = folder / output
        command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"]
        subprocess.run([*command, str(path), str(HERE / source), *flags], check=True)
        return path

    return compile_one


@pytest.fixture
def preloaded(libraries: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a program under the interposer."""

    def run(
        *command: str | Path, env: Mapping[str, str | Path] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        preload = ":".join(str(libraries / name) for name in SHIMS)
        environment = {**os.environ, "LD_PRELOAD": preload}
        for name, value in (env or {}).items():
            environment[name] = str(value)
        return subprocess.run(
            [str(part) for part in command],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=check,
        )

    return run
