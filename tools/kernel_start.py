#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times what the in-kernel part adds to a kernel's start, in fresh interpreters.

Runs the code that the provisioner hands to kernels, in a process that has imported ipykernel, as a kernel has by then.
Prints the medians in milliseconds, of the clock and of the processor: with all bytecode there, and where each source
has to be compiled, as for a kernel of another Python version whose bytecode cannot be written.

Usage: tools/kernel_start.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile

from jupyter_gpushare import LIBRARIES
from jupyter_gpushare.kernel_provisioner.launch import with_in_kernel_part

#: Times the code in argv[1]; argv[2] is where its bytecode is.
CHILD = """
import gc, sys, time
import ipykernel.kernelapp
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
sys.pycache_prefix = sys.argv[2]
sys.dont_write_bytecode = not sys.argv[3:]
gc.collect()
begin, used = time.perf_counter(), time.process_time()
exec(sys.argv[1])
used, end = time.process_time() - used, time.perf_counter()
assert shell._gpushare[0] is not None
print(1000 * (end - begin), 1000 * used)
"""


def timed(code: str, cache: str, *, write: bool) -> tuple[float, ...]:
    """Run the code once; return its milliseconds: of the clock, and of the processor."""
    environ = {**os.environ, "LD_PRELOAD": str(LIBRARIES / "libgpushare.so")}
    environ["GPUSHARE_DISABLE"] = "1"
    command = [sys.executable, "-c", CHILD, code, cache, *(["write"] if write else [])]
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    return tuple(map(float, done.stdout.split()))


def main() -> None:
    """Alternate between the two, so that both meet the same machine."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 21
    _, _, code = with_in_kernel_part(["python", "-m", "ipykernel_launcher"])[-1].partition("=")
    with tempfile.TemporaryDirectory() as folder:
        full, empty = f"{folder}/full", f"{folder}/empty"
        timed(code, full, write=True)
        cached, compiled = [], []
        for _ in range(rounds):
            cached.append(timed(code, full, write=False))
            compiled.append(timed(code, empty, write=False))
    for name, rows in (("with bytecode", cached), ("without bytecode", compiled)):
        for what, times in zip(("elapsed", "processor"), zip(*rows, strict=True), strict=True):
            low, middle, high = statistics.quantiles(times, n=4)
            print(f"{name}, {what}: {middle:.2f} ms ({low:.2f} to {high:.2f}), {rounds} rounds")


if __name__ == "__main__":
    main()
