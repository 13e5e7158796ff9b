# SPDX-License-Identifier: BSD-3-Clause
"""Builds ``jupyter_gpushare._protocol``: ``csrc/protocol.h`` and ``csrc/pool*.h`` for Python.

``python -m jupyter_gpushare.scheduler.protocol.build`` builds it in place; the packaging hook calls
`build`. It calls the compiler directly, because ``ffi.compile()`` uses setuptools, which reads (and
fails at) this project's pyproject.toml.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

import cffi

MODULE = "jupyter_gpushare._protocol"
#: The file's name: one build serves every CPython from 3.10 on.
FILE_NAME = "_protocol.abi3.so"
OLDEST_PYTHON = 0x030A0000
HEADERS = ("protocol.h", "pool.h", "pool_directory.h", "pool_care.h", "pool_disk.h")

_CONSTANT = re.compile(r"\s*#define\s+\w+\s+(0x[0-9a-fA-F]+|\d+)\s*$")
_BODY = re.compile(
    r"^static inline ([^{;]+\))\s*\{(?:[^\n]*\}|\n.*?^\})$", re.MULTILINE | re.DOTALL
)


def declarations(header: str) -> str:
    """Return the declarations of a header for cffi, without the lines that only compilers understand."""
    lines = _BODY.sub(r"\1;", header).splitlines()
    kept = [line for line in lines if not line.lstrip().startswith("#") or _CONSTANT.match(line)]
    return "\n".join(kept) + "\n"


def build(
    cc: str | Sequence[str],
    out_dir: Path,
    include_dir: Path,
    *,
    python_include: Path | None = None,
    flags: Sequence[str] = ("-O2",),
) -> Path:
    """Compile the extension and return its path.

    Parameters
    ----------
    cc
        The C compiler's command.
    out_dir
        The folder for the extension.
    include_dir
        The folder of ``protocol.h`` and ``pool.h``.
    python_include
        The folder of ``Python.h``; default: the running interpreter's.
    flags
        Further flags of the compiler.

    Raises
    ------
    RuntimeError
        The compiler fails. The message contains its output.
    """
    command = shlex.split(cc) if isinstance(cc, str) else list(cc)
    python = python_include or Path(sysconfig.get_path("include"))
    ffi = cffi.FFI()
    for name in HEADERS:
        ffi.cdef(declarations((include_dir / name).read_text(encoding="utf-8")))
    ffi.set_source(MODULE, "".join(f'#include "{name}"\n' for name in HEADERS))
    out_dir.mkdir(parents=True, exist_ok=True)
    target = out_dir / FILE_NAME
    with tempfile.TemporaryDirectory(dir=out_dir, prefix=".protocol-") as work:
        source = Path(work) / "_protocol.c"
        ffi.emit_c_code(str(source))
        fresh = Path(work) / FILE_NAME
        command += [f"-DPy_LIMITED_API={OLDEST_PYTHON:#010x}", "-shared", "-fPIC", *flags]
        command += [f"-I{include_dir}", f"-I{python}", str(source), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr}")
        # Renamed, not overwritten: a running process may have the old one mapped.
        fresh.replace(target)
    return target


def main() -> int:
    """Build in place, in a checkout."""
    root = Path(__file__).resolve().parents[2]
    cc = sysconfig.get_config_var("CC") or "cc"
    print(build(cc, root / "jupyter_gpushare", root / "csrc"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
