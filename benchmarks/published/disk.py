# SPDX-License-Identifier: BSD-3-Clause
"""How fast an idle notebook's data comes from a disk: bytes from the disk to the end of the first CUDA kernel.

The limit is the disk itself: ``dd iflag=direct`` of a file in the same folder, before and after ours, and ``fio``
with several requests under way where it is installed. The file has the same size, but at most 8 GiB, so that there is
room for both. ``GPUSHARE_BENCH_DISK`` names the folder; without it, ``/var/tmp``::

    gpushare bench disk --gib 4
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..harness.figures import Figure, fraction_right, quartile_distance
from ..harness.machine import Machine, machine
from ..programs.distinct import DistinctHolder

GIB = 1 << 30
#: What the notebook holds, on a real GPU and on the simulated one; and the blocks that it consists of.
SIZE, SIMULATED_SIZE, BLOCK = 24 * GIB, 2 * GIB, 512 << 20
ROUNDS = 5
#: The largest file that is read for comparison.
COMPARED = 8 * GIB
#: The fraction of the disk's own speed to reach.
TARGET = 0.9
#: Bytes per second of the simulated GPU's copies: an H200's.
BANDWIDTH = "54700000000"
#: Seconds in which data has to reach the disk.
PATIENCE = 600.0


def run(gib: float | None = None) -> Iterator[Figure]:
    """Measure how long a notebook waits whose data is on a disk.

    Parameters
    ----------
    gib
        What it holds (default: `SIZE`, or `SIMULATED_SIZE`).
    """
    asked = int((gib or 0) * GIB)
    with tempfile.TemporaryDirectory(
        prefix="gpushare-", dir=os.environ.get("GPUSHARE_BENCH_DISK", "/var/tmp")
    ) as name:
        folder = Path(name)
        space = str(2 * max(SIZE, asked))
        flags = ("--disk-folder", name, "--disk-size", space, "--disk-after", "0.1")
        with machine(
            *flags,
            whole=True,
            GPUSHARE_SIM_BANDWIDTH=BANDWIDTH,
            GPUSHARE_SIM_MEMORY=str((asked or SIMULATED_SIZE) * 3 // 2),
        ) as here:
            size = asked or (SIMULATED_SIZE if here.driver.simulated else SIZE)
            yield from _measure(here, folder, size)


def _measure(here: Machine, folder: Path, size: int) -> Iterator[Figure]:
    file, compared = folder / "dd", min(size, COMPARED)
    _write(file, compared)
    holder = DistinctHolder(here.client_environ("idle"), torch=False)
    holder.call("hold", size, BLOCK, 1)
    ours, to_disk, limits = [], [], []
    for _ in range(ROUNDS):
        to_disk.append(_spill(here))
        before = max(_dd(file, compared), _fio(file, compared))
        start, end = holder.call("touch")
        ours.append(size / (end - start) / 1e9)
        # The speed of a disk that others use changes, so ours is compared with what was there before and after.
        limits.append((before + max(_dd(file, compared), _fio(file, compared))) / 2)
    equal = bool(holder.call("equal"))
    holder.close()
    rate, limit = statistics.median(ours), statistics.median(limits)
    what = f"{size / GIB:g} GiB from the disk to the first kernel"
    spread = quartile_distance(ours)
    yield Figure("disk", what, rate, "GB/s", limit, ROUNDS, spread)
    parts = [one / other for one, other in zip(ours, limits, strict=True)]
    yield Figure(
        "disk",
        "part of the disk's own speed",
        statistics.median(parts),
        "",
        None,
        ROUNDS,
        quartile_distance(parts),
        TARGET,
        at_least=True,
    )
    yield Figure(
        "disk",
        "to the disk, from the eviction on",
        statistics.median(to_disk),
        "GB/s",
        None,
        ROUNDS,
        quartile_distance(to_disk),
    )
    yield fraction_right("disk", "every byte right", float(equal))


def _spill(here: Machine) -> float:
    """Evict the notebook's data, and wait until all of it is on the disk; return GB/s."""
    start = time.monotonic()
    here.control("evict", group="bench-idle")
    while True:
        group: Any = here.group("idle")
        on_disk, elsewhere = (
            sum(gpu[kind] for gpu in group["gpus"] for kind in kinds)
            for kinds in (("disk",), ("resident", "swapped"))
        )
        if elsewhere == 0:
            break
        if time.monotonic() > start + PATIENCE:
            raise RuntimeError(f"{elsewhere} bytes did not go to the disk, {on_disk} did")
        time.sleep(0.005)
    return float(on_disk / (time.monotonic() - start) / 1e9)


def _write(file: Path, size: int) -> None:
    command = ["dd", "if=/dev/urandom", f"of={file}", "bs=16M", "oflag=direct", "iflag=fullblock"]
    subprocess.run([*command, f"count={size >> 24}"], capture_output=True, check=True)


def _dd(file: Path, size: int) -> float:
    start = time.monotonic()
    command = ["dd", f"if={file}", "of=/dev/null", "bs=16M", "iflag=direct"]
    subprocess.run(command, capture_output=True, check=True)
    return size / (time.monotonic() - start) / 1e9


def _fio(file: Path, size: int) -> float:
    """Return the speed of reads with 8 requests under way; 0: fio is not installed."""
    if shutil.which("fio") is None:
        return 0.0
    command = ["fio", "--name=read", f"--filename={file}", "--rw=read", "--bs=16M", "--direct=1"]
    command += ["--iodepth=8", "--ioengine=libaio", f"--size={size}", "--output-format=json"]
    done = subprocess.run(command, capture_output=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"]) / 1e9
