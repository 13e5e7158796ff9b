#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compile the CUDA kernel of the interposer, digest.cu, to digest.ptx.

Run it after each change of digest.cu. It needs the NVRTC of CUDA 11, the last one with targets as old
as the GPUs that the supported drivers (R450 or newer) run on:

    python -m venv scratch
    scratch/bin/python -m pip install nvidia-cuda-nvrtc-cu11==11.8.89
    scratch/bin/python tools/compile_digest.py

The GPU's driver translates PTX for the GPU that it finds. It refuses PTX with a newer version than its
own, so the version is set to that of CUDA 11.0 (R450). The first line of the file has the hash of the
source; tests/csrc/test_digest.py compares the two.
"""

import argparse
import ctypes
import hashlib
import importlib.util
import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "csrc/interposer/memory/digest.cu"
TARGET = "compute_52"
PTX_VERSION = "7.0"  # of CUDA 11.0


def open_nvrtc() -> ctypes.CDLL:
    """Open the NVRTC of the package ``nvidia-cuda-nvrtc-cu11``."""
    spec = importlib.util.find_spec("nvidia.cuda_nvrtc")
    if spec is None or spec.origin is None:
        sys.exit(
            "NVRTC is missing. Install nvidia-cuda-nvrtc-cu11==11.8.89 in a scratch environment"
        )
    folder = Path(spec.origin).parent / "lib"
    for builtins in folder.glob("libnvrtc-builtins.so.11.*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libnvrtc.so.11.2"))


def compile_source(nvrtc: ctypes.CDLL, source: bytes) -> str:
    """Return the PTX text of a CUDA source, or exit with the compiler's messages."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [f"--gpu-architecture={TARGET}".encode(), b"--std=c++14"]
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"digest.cu", 0, None, None)
    failed = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*options)
    )
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if failed:
        sys.exit(log.value.decode())
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, text)
    return text.value.decode()


def make_ptx(source: bytes, compiled: str) -> str:
    """Return the contents of digest.ptx: its header and the compiled code, without comments."""
    code = re.sub(r"^\.version .*$", f".version {PTX_VERSION}", compiled, count=1, flags=re.M)
    # NVRTC hides variables, but the interposer writes them.
    code = re.sub(r"^(\.const|\.global) ", r".visible \1 ", code, flags=re.M)
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("//")]
    header = (
        f"// gpushare-digest 1, made of digest.cu with SHA-256 {hashlib.sha256(source).hexdigest()}"
    )
    return "\n".join([header, *lines]) + "\n"


def main() -> None:
    """Write digest.ptx."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "--output", type=Path, default=SOURCE.with_suffix(".ptx"), help="file to write"
    )
    arguments = parser.parse_args()
    source = SOURCE.read_bytes()
    arguments.output.write_text(make_ptx(source, compile_source(open_nvrtc(), source)))


if __name__ == "__main__":
    main()
