# SPDX-License-Identifier: BSD-3-Clause
"""Three PyTorch notebooks that together need more than the GPU has, under a real Jupyter server.

Each is run alone first; then all at once. Every digest that a notebook prints must be the same both times. On an NVIDIA
H200 each takes 60 GiB::

    python tools/torch_notebooks.py --json torch.json

Prints the queue's timeline and a summary; exit status 1 if a result differs. Backend ``swap``; managed memory is never
used.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from jupyter_gpushare.cli.demo.plan import Plan
from jupyter_gpushare.cli.demo.run import run_demo
from jupyter_gpushare.scheduler.gpu.devices import Devices
from jupyter_gpushare.scheduler.gpu.drivers import find_driver

GIB = 1 << 30

_SET_UP = """
import hashlib, torch
device = torch.device("cuda")
torch.manual_seed({seed})
BYTES = int({gib} * 2**30)
PARTS = 12
def digest(tensor):
    # Exact: integers in the order of the bytes. No rounding hides a byte that differs.
    words = tensor.contiguous().view(torch.int32).flatten()
    # In parts: PyTorch sums integers in a copy of 64 bits each.
    total = sum(int(part.sum(dtype=torch.int64)) for part in words.split(1 << 26)) % 2**64
    sample = words[:: max(1, words.numel() // 100003)].cpu().numpy().tobytes()
    return f"{{total:016x}}-{{hashlib.sha256(sample).hexdigest()[:16]}}"
def show(title, *tensors):
    print("✓", title, *(digest(tensor) for tensor in tensors))
"""

_FILL = """
generator = torch.Generator(device=device).manual_seed({seed})
data = [torch.empty(BYTES // PARTS // 4, dtype=torch.float32, device=device) for _ in range(PARTS)]
for part in data:
    part.uniform_(generator=generator)
show("filled", *data)
"""

_PASS = """
for _ in range({passes}):
    for part in data:
        part.mul_(1.0009765625).frac_()
torch.cuda.synchronize()
show("pass {index}", data[0], data[-1])
"""

_TRAIN = """
n = 4096
weights = torch.rand(n, n, device=device, generator=generator).div_(n).requires_grad_()
optimizer = torch.optim.SGD([weights], lr=0.5)
for step in range({steps}):
    inputs = data[step % PARTS][: n * n].view(n, n)
    loss = (inputs @ weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
show(f"trained, loss {{loss.item():.6g}}", weights.detach())
"""

_CPU = """
import time
time.sleep({seconds})
print("✓ thought about it")
"""

_END = """
show("at the end", *data)
"""


def _notebook(name: str, cells: list[tuple[str, str, float]], run: str) -> dict[str, Any]:
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "gpushare_demo": {"run": run},
        },
        "cells": [
            {
                "cell_type": "code",
                "id": f"{name}-{index}",
                "execution_count": None,
                "outputs": [],
                "metadata": {
                    "gpushare_demo": {
                        "title": title,
                        "pause": pause,
                        "checks": "show(" in source and index > 0,
                    }
                },
                "source": source,
            }
            for index, (title, source, pause) in enumerate(cells)
        ],
    }


def notebooks(gib: float) -> dict[str, dict[str, Any]]:
    """Make the notebooks: one explores with pauses, one trains by Run All, one does both."""
    explore = [("fill", _FILL.format(seed=1), 0.5)]
    explore += [(f"pass {i}", _PASS.format(passes=20, index=i), 2.0) for i in range(1, 5)]
    train = [("fill", _FILL.format(seed=2), 0.0)]
    train += [
        ("train", _TRAIN.format(steps=1500), 0.0),
        ("pass", _PASS.format(passes=20, index=1), 0.0),
    ]
    train += [
        ("on the CPU", _CPU.format(seconds=3), 0.0),
        ("train more", _TRAIN.format(steps=1500), 0.0),
    ]
    both = [("fill", _FILL.format(seed=3), 1.0), ("train", _TRAIN.format(steps=600), 1.0)]
    both += [(f"pass {i}", _PASS.format(passes=10, index=i), 1.5) for i in range(1, 4)]
    return {
        f"{name}.ipynb": _notebook(
            name,
            [("imports", _SET_UP.format(seed=seed, gib=gib), 0.0), *cells, ("end", _END, 0.0)],
            run,
        )
        for seed, (name, cells, run) in enumerate(
            [("explore", explore, "cells"), ("train", train, "all"), ("both", both, "cells")]
        )
    }


def _plan(gib: float) -> Plan:
    driver = find_driver(os.environ)
    devices = Devices(driver.nvml if driver is not None and not driver.simulated else None)
    found = devices.start()
    devices.stop()
    if not found or driver is None:
        raise SystemExit("PyTorch needs a real NVIDIA GPU, and there is none here")
    environ = {**os.environ, "GPUSHARE_BACKEND": "swap", "GPUSHARE_FORBID_MANAGED": "1"}
    return Plan(driver, gib * GIB / found[0].total, "", environ, "the run alone")


def main() -> int:
    """Run the notebooks and compare."""
    parser = argparse.ArgumentParser(description="Three PyTorch notebooks share a GPU.")
    parser.add_argument(
        "--gib", type=float, default=60.0, help="device memory of each, GiB (default: 60)"
    )
    parser.add_argument("--json", type=Path, required=True, help="file for what happened")
    args = parser.parse_args()
    made = notebooks(args.gib)
    with tempfile.TemporaryDirectory() as folder:
        for name, notebook in made.items():
            Path(folder, name).write_text(json.dumps(notebook))
        status = run_demo(_plan(args.gib), Path(folder), list(made), port=0, report=args.json)
    try:
        found = json.loads(args.json.read_text())
    except (OSError, ValueError):
        return status
    different = [
        name
        for name, notebook in found["notebooks"].items()
        if not notebook["checks"] or notebook["checks"] != found["checks_alone"].get(name)
    ]
    print(
        f"Same results together as alone: {'no: ' + ', '.join(different) if different else 'yes, bit for bit'}."
    )
    return 1 if different or not found["notebooks"] else status


if __name__ == "__main__":
    sys.exit(main())
