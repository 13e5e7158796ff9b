# SPDX-License-Identifier: BSD-3-Clause
"""Readings of the GPUs, by the simulated NVML. In processes of their own: NVML is loaded for good."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from jupyter_gpushare.scheduler.drivers import find_driver

GIB = 1 << 30

CODE = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from jupyter_gpushare.scheduler.devices import Devices

loaded = [name for name in sys.modules if "pynvml" in name]
devices = Devices(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
found = devices.start()
again = [asdict(reading) for gpu in found if (reading := devices.poll(gpu.gpu))]
print(json.dumps({
    "loaded": loaded,
    "found": [asdict(gpu) for gpu in found],
    "again": again,
    "new": len(devices.discover()),
    "driver": devices.driver_version,
    "state": devices.state,
    "unknown": devices.read("GPU-0") is None,
}))
devices.stop()
assert all(devices.read(gpu.gpu) is None for gpu in found)
"""


def readings(environ: dict[str, str], *arguments: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


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


def test_without_nvml_no_gpu_is_known(environ: dict[str, str], tmp_path: Path) -> None:
    assert readings(environ)["found"] == []
    broken = tmp_path / "libnvidia-ml.so.1"
    broken.write_text("no library")
    seen = readings(environ, str(broken))
    assert seen["found"] == []
    assert "cannot be loaded" in str(seen["state"])
