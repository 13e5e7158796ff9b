# SPDX-License-Identifier: BSD-3-Clause
"""What the built libraries export and what they ask of the system."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import SymbolTableSection

SHIMS = ("libgpushare.so", "libgpushare-alias.so", "libgpushare-nvml.so")
AARCH64 = "aarch64-linux-gnu-gcc"
#: CentOS 7 and manylinux2014: the oldest system that people still run notebooks on.
OLDEST_GLIBC = (2, 17)


def exported(path: Path) -> set[str]:
    """Return the symbols that a library gives to others."""
    with path.open("rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        assert isinstance(table, SymbolTableSection)
        return {
            symbol.name
            for symbol in table.iter_symbols()
            if symbol["st_shndx"] != "SHN_UNDEF"
            and symbol["st_info"]["bind"] == "STB_GLOBAL"
            and symbol["st_other"]["visibility"] == "STV_DEFAULT"
        }


def dynamic(path: Path, tag: str) -> list[str]:
    """Return the strings of a dynamic tag, such as DT_NEEDED."""
    attribute = {"DT_NEEDED": "needed", "DT_SONAME": "soname"}[tag]
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        return [getattr(entry, attribute) for entry in section.iter_tags(tag)]


def versions_needed(path: Path) -> set[str]:
    """Return the symbol versions that a library needs from others."""
    with path.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".gnu.version_r")
        if section is None:
            return set()
        assert isinstance(section, GNUVerNeedSection)
        return {aux.name for _, auxiliaries in section.iter_versions() for aux in auxiliaries}


def too_new(path: Path) -> set[str]:
    """Return the needed versions that the oldest system lacks."""
    found = set()
    for version in versions_needed(path):
        match = re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version)
        if match is None or (int(match[1]), int(match[2])) > OLDEST_GLIBC:
            found.add(version)
    return found


def promised(root: Path) -> set[str]:
    """Return the functions of api.h."""
    text = (root / "csrc/interposer/client/api.h").read_text()
    return set(re.findall(r"^GPUSHARE_EXPORT [^;]*?\b(gpushare_\w+)\(", text, re.MULTILINE))


def test_the_driver_shim_exports_the_driver(
    libraries: Path, root: Path, declared: dict[str, tuple[str, ...]]
) -> None:
    names = exported(libraries / "libgpushare.so")
    ours = {name for name in names if name.startswith("gpushare_")}
    assert names - ours == set(declared)
    assert len(promised(root)) >= 8
    assert promised(root) - ours == set()


def test_the_nvml_shim_exports_nvml(
    libraries: Path, generator: Callable[[str], ModuleType], headers: Path
) -> None:
    declarations = generator("declarations")
    flags = ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"]
    text = declarations.preprocess("cc", headers / "nvml.h", flags)
    # Whatever looks like a function of NVML's in the header, whatever its result.
    functions = set(re.findall(r"\b(nvml[A-Z]\w*)\s*\([^()*]*[^()]*\)\s*;", text))
    names = exported(libraries / "libgpushare-nvml.so")
    assert functions - names == set()
    assert names == functions | set(declarations.NVML_UNDECLARED) | {"gpushare_nvml_shim"}


def test_libraries_have_their_sonames(libraries: Path) -> None:
    assert dynamic(libraries / "libgpushare.so", "DT_SONAME") == ["libcuda.so.1"]
    assert dynamic(libraries / "libgpushare-alias.so", "DT_SONAME") == ["libcuda.so"]
    assert dynamic(libraries / "libgpushare-nvml.so", "DT_SONAME") == ["libnvidia-ml.so.1"]
    assert dynamic(libraries / "libgpushare-alias.so", "DT_NEEDED") == ["libcuda.so.1"]


@pytest.mark.parametrize("name", ["libgpushare.so", "libgpushare-nvml.so", "gpushare-hibernator"])
def test_only_libc_is_needed(libraries: Path, name: str) -> None:
    needed = dynamic(libraries / name, "DT_NEEDED")
    # By name, for systems where threads and dlopen are not libc's.
    assert {"libpthread.so.0", "libdl.so.2"} <= set(needed)
    allowed = {"libpthread.so.0", "libdl.so.2", "libc.so.6"}
    assert {n for n in needed if not n.startswith("ld-linux")} <= allowed


def test_no_new_glibc_is_needed(libraries: Path, simulated: Path) -> None:
    ours = [*SHIMS, "gpushare-hibernator"]
    built = [*(libraries / name for name in ours), *simulated.glob("lib*.so.*")]
    assert len(built) > len(ours)
    assert {path.name: too_new(path) for path in built if too_new(path)} == {}


def test_a_newer_glibc_is_detected(tmp_path: Path) -> None:
    """The check above sees what the compiler does by itself on a system with glibc 2.34 or newer."""
    source = tmp_path / "new.c"
    source.write_text("#include <dlfcn.h>\nvoid *f(void) { return dlopen(0, 1); }\n")
    library = tmp_path / "new.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    defaults = versions_needed(library)
    new = any(int(v.split(".")[1]) >= 34 for v in defaults if v.startswith("GLIBC_2."))
    assert bool(too_new(library)) == new


def test_the_interposer_runs_on_aarch64(
    root: Path, tmp_path: Path, compile_c: Callable[..., Path]
) -> None:
    """That it compiles is tested with the wheel."""
    emulator = shutil.which("qemu-aarch64")
    if shutil.which(AARCH64) is None or emulator is None:
        pytest.skip("no cross compiler or emulator here (Debian: gcc-aarch64-linux-gnu, qemu-user)")
    command = ["make", "-j2", "-C", str(root / "csrc"), f"CC={AARCH64}", f"PYTHON={sys.executable}"]
    command += [f"OUT={tmp_path}", f"BUILD={tmp_path / 'build'}", "interposer"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    flags = ("-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1")
    driver = compile_c("small_driver.c", "libcuda.so.1", *flags, compiler=AARCH64)
    library = tmp_path / "libgpushare.so"
    arguments = compile_c("arguments.c", "arguments", str(driver), compiler=AARCH64)
    calls = compile_c("first_calls.c", "calls", "-pthread", str(driver), compiler=AARCH64)
    command = [emulator, "-L", f"/usr/{AARCH64.removesuffix('-gcc')}"]
    command += ["-E", f"LD_PRELOAD={library}", "-E", f"GPUSHARE_DRIVER={driver}"]
    for first in range(3):
        done = subprocess.run(
            [*command, str(arguments), str(first)], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == ["0"] * 6
    done = subprocess.run([*command, str(calls)], capture_output=True, text=True, check=True)
    assert done.stdout == "32\n"
