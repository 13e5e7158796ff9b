# SPDX-License-Identifier: BSD-3-Clause
"""Make the interposer's tables, stubs and wrappers from the headers and ``driver_api.csv``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generator.declarations import (
    DECLARATION,
    NVML_DECLARATION,
    NVML_UNDECLARED,
    Function,
    TableError,
    declarations,
    preprocess,
)
from generator.files import export_map, index_header, names_source, write
from generator.stubs import aarch64_stubs, stubs_source, x86_64_stubs
from generator.table import check, read_table
from generator.wrappers import hooks_header, wrappers_source

# The NVML shim implements these functions; the others only jump to NVML.
NVML_CUSTOM = frozenset(
    {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlErrorString"}
    | {
        f"nvmlDeviceGet{kind}RunningProcesses{version}"
        for kind in ("Compute", "Graphics", "MPSCompute")
        for version in ("", "_v2", "_v3")
    }
)


def write_all(
    out: Path, functions: list[Function], prefix: str, stem: str, more: list[str]
) -> None:
    """Write the files that the shims of the driver and of NVML have in common."""
    p = f"gs_{stem}"
    write(
        out / f"{stem}index.h", index_header(functions, prefix, f"GPUSHARE_{stem.upper()}INDEX_H")
    )
    write(out / f"{stem}names.c", names_source(functions, f"{p}names"))
    write(out / f"{stem}stubs_x86_64.S", stubs_source(x86_64_stubs(functions, p), "@progbits"))
    write(out / f"{stem}stubs_aarch64.S", stubs_source(aarch64_stubs(functions, p), "%progbits"))
    write(out / f"{stem}exports.map", export_map(functions, more))


def generate_driver(options: argparse.Namespace) -> None:
    """Write the driver shim's files."""
    here = Path(__file__).resolve().parent / "compat" / "interop"
    flags = [
        "-D__CUDA_API_VERSION_INTERNAL",
        f"-I{here}",
        *(f"-I{path}" for path in options.include),
    ]
    declared = declarations(preprocess(options.cc, here / "driver.h", flags), DECLARATION)
    rows = read_table(options.table)
    faults = check(rows, declared)
    if faults:
        raise TableError(
            "\n".join([f"{options.table.name} and the driver's headers differ:", *faults])
        )
    functions = [
        Function(
            name,
            declared[name],
            rows[name]["hook"],
            rows[name]["class"],
            rows[name]["parked"] == "waits",
        )
        for name in sorted(declared)
    ]
    write_all(options.out, functions, "GS_FN_", "real_", ["gpushare_*"])
    write(options.out / "entries.c", wrappers_source(functions))
    write(options.out / "real_hooks.h", hooks_header(functions))


def generate_nvml(options: argparse.Namespace) -> None:
    """Write the NVML shim's files."""
    flags = ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"]
    declared = declarations(preprocess(options.cc, options.nvml, flags), NVML_DECLARATION)
    declared |= dict.fromkeys(NVML_UNDECLARED, ())
    lacking = NVML_CUSTOM - set(declared)
    if lacking:
        raise TableError(f"{options.nvml.name} lacks {', '.join(sorted(lacking))}")
    functions = [
        Function(name, declared[name], "custom" if name in NVML_CUSTOM else "pass")
        for name in sorted(declared)
    ]
    write_all(options.out, functions, "GS_NVML_", "nvml_", ["gpushare_nvml_shim"])


def main(arguments: list[str] | None = None) -> int:
    """Run the generator."""
    parser = argparse.ArgumentParser(
        description="Make the interposer's tables, stubs and wrappers."
    )
    parser.add_argument("--out", type=Path, required=True, help="directory for the generated files")
    parser.add_argument("--cc", default="cc", help="C compiler that preprocesses the headers")
    parser.add_argument(
        "--include", type=Path, action="append", required=True, help="directory of cuda.h"
    )
    parser.add_argument("--nvml", type=Path, required=True, help="path of nvml.h")
    parser.add_argument(
        "--table",
        type=Path,
        default=Path(__file__).with_name("driver_api.csv"),
        help="table of driver functions",
    )
    options = parser.parse_args(arguments)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
        generate_driver(options)
        generate_nvml(options)
    except (TableError, OSError) as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
