# SPDX-License-Identifier: BSD-3-Clause
from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_gpushare.scheduler.gpu import drivers
from jupyter_gpushare.scheduler.gpu.drivers import Driver, DriverError, find_driver, libraries


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of our libraries, and a machine without a driver."""
    ours = tmp_path / "lib"
    for name in ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so"):
        touch(ours / name)
    touch(ours / "sim" / "libcuda.so.1")
    touch(ours / "sim" / "libnvidia-ml.so.1")
    monkeypatch.setattr(drivers, "LIBRARIES", ours)
    monkeypatch.setattr(drivers, "FOLDERS", (str(tmp_path / "usr"),))
    monkeypatch.setattr(drivers, "_ldconfig", dict)
    return ours


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_without_a_driver_none_is_found(built: Path) -> None:
    assert find_driver({}) is None


def test_the_simulated_driver_is_asked_for(built: Path) -> None:
    expected = Driver(
        built / "sim" / "libcuda.so.1", built / "sim" / "libnvidia-ml.so.1", simulated=True
    )
    assert find_driver({"GPUSHARE_SIM": "1"}) == expected
    assert find_driver({"GPUSHARE_SIM": "0"}) is None


def test_a_simulated_driver_that_is_not_built_is_reported(built: Path) -> None:
    (built / "sim" / "libcuda.so.1").unlink()
    with pytest.raises(DriverError, match="not built"):
        find_driver({"GPUSHARE_SIM": "1"})


def test_the_system_is_searched(built: Path, tmp_path: Path) -> None:
    cuda = touch(tmp_path / "usr" / "libcuda.so.1")
    assert find_driver({}) == Driver(cuda, None, simulated=False)
    nvml = touch(tmp_path / "usr" / "libnvidia-ml.so.1")
    assert find_driver({}) == Driver(cuda, nvml, simulated=False)


def test_the_interposer_is_not_taken_for_the_driver(built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "preloaded"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(built / "libgpushare.so")
    assert find_driver({"LD_LIBRARY_PATH": f":{folder}:relative"}) is None
    with pytest.raises(DriverError, match="shim"):
        find_driver({"GPUSHARE_DRIVER": str(folder / "libcuda.so.1")})


def test_a_stub_is_no_driver(built: Path, tmp_path: Path) -> None:
    stub = touch(tmp_path / "cuda" / "stubs" / "libcuda.so.1")
    assert find_driver({"LD_LIBRARY_PATH": str(stub.parent)}) is None


def test_the_loaders_path_comes_before_the_system(built: Path, tmp_path: Path) -> None:
    touch(tmp_path / "usr" / "libcuda.so.1")
    mine = touch(tmp_path / "mine" / "libcuda.so.1")
    found = find_driver({"LD_LIBRARY_PATH": str(mine.parent)})
    assert found is not None
    assert found.cuda == mine


def test_named_libraries_must_exist(built: Path, tmp_path: Path) -> None:
    cuda = touch(tmp_path / "x" / "libcuda.so.1")
    found = find_driver({"GPUSHARE_DRIVER": str(cuda)})
    assert found is not None
    assert found.environment() == {"GPUSHARE_DRIVER": str(cuda)}
    with pytest.raises(DriverError, match="GPUSHARE_NVML names"):
        find_driver({"GPUSHARE_DRIVER": str(cuda), "GPUSHARE_NVML": str(tmp_path / "none")})
    with pytest.raises(DriverError, match="absolute"):
        find_driver({"GPUSHARE_DRIVER": "libcuda.so.1"})


def test_our_libraries_are_listed_in_preload_order(built: Path) -> None:
    assert [path.name for path in libraries().preload()] == [
        "libgpushare.so",
        "libgpushare-alias.so",
        "libgpushare-nvml.so",
    ]
    (built / "libgpushare-alias.so").unlink()
    with pytest.raises(DriverError, match="not built"):
        libraries()
