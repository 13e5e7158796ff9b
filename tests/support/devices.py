# SPDX-License-Identifier: BSD-3-Clause
"""Readings of the GPUs, by the simulated NVML. In processes of their own: NVML is loaded for good."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = """
import json, sys
from msgspec.structs import asdict
from pathlib import Path
from jupyter_gpushare.scheduler.gpu.devices import Devices

loaded = [name for name in sys.modules if "pynvml" in name]
devices = Devices(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
found = devices.start()
again = [asdict(reading) for gpu in found if (reading := devices.poll(gpu.gpu))]
print(json.dumps({
    "loaded": loaded,
    "found": [asdict(gpu) for gpu in found],
    "again": again,
    "energy": [devices.energy[gpu.gpu][1:] for gpu in found],
    "watts": [devices.watts(gpu.gpu) for gpu in found],
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
