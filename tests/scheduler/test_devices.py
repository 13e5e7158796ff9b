# SPDX-License-Identifier: BSD-3-Clause
"""Readings of the GPUs, by the simulated NVML. In processes of their own: NVML is loaded for good."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from jupyter_gpushare.scheduler.gpu.drivers import find_driver
from jupyter_gpushare.scheduler.protocol import wire as protocol
from tests.support.devices import readings

GIB = 1 << 30


def test_the_gpus_are_found_with_their_memory(environ: dict[str, str]) -> None:
    driver = find_driver(environ)
    assert driver is not None
    seen = readings(environ, str(driver.nvml))
    assert seen["loaded"] == []
    found = seen["found"]
    assert isinstance(found, list)
    (gpu,) = found
    assert gpu["gpu"].startswith("GPU-")
    assert gpu["total"] == 8 * GIB
    assert 0 <= gpu["used"] < GIB
    assert gpu["name"]
    assert gpu["index"] == 0
    assert seen["again"] == found
    assert seen["new"] == 0
    assert str(seen["driver"]).count(".") == 1
    assert seen["unknown"] is True
    ((joules, watts),) = cast("list[list[float]]", seen["energy"])
    assert joules >= 0
    assert seen["watts"] == [watts] == [72]


def test_old_gpus_have_no_energy_counter(environ: dict[str, str]) -> None:
    driver = find_driver(environ)
    assert driver is not None
    for has, energy, watts in (("1", [None, 72.0], 72), ("0", [None, None], None)):
        seen = readings({**environ, "GPUSHARE_SIM_ENERGY": has}, str(driver.nvml))
        assert (seen["energy"], seen["watts"]) == ([energy], [watts])


def test_memory_that_the_driver_reserves_does_not_count_as_used(environ: dict[str, str]) -> None:
    driver = find_driver(environ)
    assert driver is not None
    kept = {**environ, "GPUSHARE_SIM_RESERVED": "600MiB"}
    found = readings(kept, str(driver.nvml))["found"]
    assert isinstance(found, list)
    assert [(gpu["total"], gpu["used"]) for gpu in found] == [(8 * GIB, 0)]


def test_slices_are_gpus_of_their_own(environ: dict[str, str]) -> None:
    driver = find_driver(environ)
    assert driver is not None
    kinds = {
        "GPUSHARE_SIM_NAME": environ["GPUSHARE_SIM_NAME"] + "-mig",
        "GPUSHARE_SIM_DEVICES": "3",
        "GPUSHARE_SIM_MEMORY": "8GiB,4GiB",
        "GPUSHARE_SIM_MIG": "0,2,0",
        "GPUSHARE_SIM_MODEL": "Large,Small",
    }
    try:
        seen = readings({**environ, **kinds}, str(driver.nvml))
    finally:
        Path("/dev/shm", f"gpushare-sim-{kinds['GPUSHARE_SIM_NAME']}").unlink(missing_ok=True)
    found = seen["found"]
    assert isinstance(found, list)
    assert [(g["gpu"][:4], g["name"], g["total"] // GIB, g["index"]) for g in found] == [
        ("GPU-", "Large", 8, 0),
        ("MIG-", "Small MIG 1:0", 2, 1),
        ("MIG-", "Small MIG 1:1", 2, 1),
        ("GPU-", "Small", 4, 2),
    ]
    assert seen["again"] == found
    assert seen["new"] == 0
    # NVML has no figures for slices.
    assert seen["watts"] == [72, None, None, 72]
    for gpu in found:
        raw = protocol.gpu_bytes(gpu["gpu"])
        if gpu["gpu"].startswith("MIG-"):
            protocol.register_slice(gpu["gpu"])
        assert protocol.gpu_name(raw) == gpu["gpu"]


def test_without_nvml_no_gpu_is_known(environ: dict[str, str], tmp_path: Path) -> None:
    assert readings(environ)["found"] == []
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("no library")
    seen = readings(environ, str(broken))
    assert seen["found"] == []
    assert "cannot be loaded" in str(seen["state"])
