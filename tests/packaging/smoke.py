# SPDX-License-Identifier: BSD-3-Clause
"""Tries an installed wheel, with the standard library alone: ``python smoke.py`` in the environment that has it.

Two programs take memory of a simulated GPU under a scheduler of their own. Neither a compiler nor Node.js is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

#: Takes three quarters of the GPU, writes, and reads the bytes back.
PROGRAM = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(48 << 20)
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == cuda.cuMemAlloc_v2(ctypes.byref(pointer), size) == 0
assert cuda.cuMemsetD8_v2(pointer, 7, size) == 0
seen = ctypes.create_string_buffer(size.value)
assert cuda.cuMemcpyDtoH_v2(seen, pointer, size) == 0
assert seen.raw == bytes([7]) * size.value
print("all bytes are there", flush=True)
input()
"""

COMMAND = Path(sys.executable).parent / "gpushare"


def gpushare(environ: dict[str, str], *arguments: str) -> str:
    """Run the command and return its output."""
    done = subprocess.run(
        [str(COMMAND), *arguments], env=environ, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def files() -> None:
    """Check that everything is where Jupyter looks for it."""
    wheel = distribution("jupyter-gpushare")
    assert wheel.version in gpushare(dict(os.environ), "--version")
    for name in (
        "share/jupyter/labextensions/jupyter-gpushare/package.json",
        "etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json",
    ):
        assert (Path(sys.prefix) / name).is_file(), name
    points = {(point.group, point.name): point for point in wheel.entry_points}
    points["jupyter_client.kernel_provisioners", "gpushare"].load()
    import jupyter_gpushare

    assert jupyter_gpushare._jupyter_server_extension_points()


def share(environ: dict[str, str]) -> None:
    """Run two programs that do not fit into the GPU's memory together."""
    command = [str(COMMAND), "run", "--", sys.executable, "-c", PROGRAM]
    programs = []
    for _ in range(2):
        program = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        # The second one has to evict the first one.
        assert program.stdout.readline() == "all bytes are there\n"
        programs.append(program)
    groups = json.loads(gpushare(environ, "status", "--json"))["groups"]
    assert len(groups) == 2
    assert sum(group["totals"]["evicted"] for group in groups) > 0
    for program in programs:
        program.communicate("\n")
        assert program.returncode == 0


def main() -> None:
    """Try everything, with a scheduler and a simulated GPU of its own."""
    files()
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("GPUSHARE_")}
        environ |= {
            "GPUSHARE_SIM": "1",
            "GPUSHARE_SIM_NAME": Path(folder).name,
            "GPUSHARE_SIM_MEMORY": "64MiB",
            "GPUSHARE_SIM_CONTEXT": "1MiB",
            "GPUSHARE_SOCKET": f"{folder}/scheduler.sock",
        }
        # It ends with its standard input, also if this program fails.
        scheduler = subprocess.Popen(
            [str(COMMAND), "scheduler", "--parent-pipe"],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert scheduler.stdout is not None
        assert scheduler.stdout.readline() == b"ready\n"
        share(environ)
        scheduler.communicate()
        assert scheduler.returncode == 0
        Path("/dev/shm", f"gpushare-sim-{Path(folder).name}").unlink()
    print("smoke test passed")


if __name__ == "__main__":
    main()
