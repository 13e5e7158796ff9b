# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the C libraries, the C program and the cffi module into the wheel and tags it by what they need.

Lists the npm packages whose code the wheel contains in an SBOM. Makes the links of README.md absolute, for pages
outside of the repository such as the package index.

``GPUSHARE_CC`` names another C compiler, also one for another machine:
``GPUSHARE_CC=aarch64-linux-gnu-gcc`` makes an aarch64 wheel.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

#: The oldest glibc that a wheel is made for (manylinux2014): the interposer has to load into
#: images as old as that.
OLDEST_GLIBC = (2, 17)
#: Libraries that every system with glibc has.
SYSTEM_LIBRARIES = frozenset(
    {
        "ld-linux-aarch64.so.1",
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libgcc_s.so.1",
        "libm.so.6",
        "libpthread.so.0",
        "librt.so.1",
    }
)
ELF_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


class BuildError(Exception):
    """The build cannot go on; the message says what to do."""


class Binary(NamedTuple):
    """What a library is for and what it needs."""

    machine: str
    soname: str
    linked: set[str]
    glibc: tuple[int, int]

    @classmethod
    def read(cls, path: Path) -> Binary:
        """Read it from the ELF file's dynamic section and symbol versions."""
        soname, linked, glibc = path.name, set(), (0, 0)
        with path.open("rb") as file:
            elf = ELFFile(file)
            machine = elf["e_machine"]
            for section in elf.iter_sections():
                if isinstance(section, GNUVerNeedSection):
                    names = [
                        version.name for _, used in section.iter_versions() for version in used
                    ]
                    found = (re.fullmatch(r"GLIBC_(\d+)\.(\d+)(\.\d+)?", name) for name in names)
                    glibc = max([glibc, *((int(hit[1]), int(hit[2])) for hit in found if hit)])
                elif isinstance(section, DynamicSection):
                    for tag in section.iter_tags():
                        if tag.entry.d_tag == "DT_SONAME":
                            soname = tag.soname  # type: ignore[attr-defined]
                        elif tag.entry.d_tag == "DT_NEEDED":
                            linked.add(tag.needed)  # type: ignore[attr-defined]
        return cls(ELF_MACHINES.get(machine, machine), soname, linked, glibc)


def is_binary(path: Path) -> bool:
    """Whether a file is a compiled library or program."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def platform_tag(paths: Iterable[Path]) -> str:
    """Return the wheel's platform tag: manylinux by the newest glibc needed, if glibc is all."""
    binaries = [Binary.read(path) for path in paths]
    machines = {binary.machine for binary in binaries}
    if len(machines) != 1:
        raise BuildError(f"the libraries are for several machines: {', '.join(sorted(machines))}")
    (machine,) = machines
    there = SYSTEM_LIBRARIES | {binary.soname for binary in binaries}
    if set().union(*(binary.linked for binary in binaries)) <= there:
        major, minor = max(OLDEST_GLIBC, *(binary.glibc for binary in binaries))
        return f"manylinux_{major}_{minor}_{machine}"
    return f"linux_{machine}"


def compiler() -> list[str]:
    """Return the command of the C compiler."""
    command = shlex.split(os.environ.get("GPUSHARE_CC") or os.environ.get("CC") or "")
    if not command:
        command = [next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "cc")]
    if not shutil.which(command[0]):
        raise BuildError(
            f"no C compiler {command[0]!r}; install one (Debian, Ubuntu: apt-get install gcc)"
        )
    return command


def machine_of(command: list[str]) -> str:
    """Return the machine that a compiler makes code for."""
    done = subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise BuildError(f"{shlex.join(command)} does not tell what machine it compiles for")
    return done.stdout.strip().split("-")[0]


def python_headers(machine: str, shim: Path) -> list[Path]:
    """Return the folders of Python.h for a machine.

    The limited API depends on pyconfig.h only for the sizes of C's types, which are the same on
    all 64-bit Linux machines. So a cross build takes this machine's, even where Debian looks for it
    in a folder named after the other.
    """
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise BuildError(
            f"no Python.h in {include}; install Python's headers "
            "(Debian, Ubuntu: apt-get install python3-dev)"
        )
    native = sysconfig.get_config_var("MULTIARCH") or ""
    other = native.replace(native.split("-")[0], machine)
    multiarch = include.parent / native / include.name / "pyconfig.h"
    if other == native or not multiarch.is_file():
        return [include]
    stand_in = shim / other / include.name / "pyconfig.h"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(f'#include "{multiarch}"\n', encoding="utf-8")
    return [shim, include]


def build_module(root: Path, command: list[str], machine: str, out: Path) -> None:
    """Compile the cffi module of the wire protocol."""
    source = root / "jupyter_gpushare" / "scheduler" / "protocol" / "build.py"
    # By path: importing the package would need what it needs at run time.
    spec = importlib.util.spec_from_file_location("protocol_build", source)
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    with tempfile.TemporaryDirectory() as work:
        *more, include = python_headers(machine, Path(work))
        flags = ["-O2", *(f"-I{folder}" for folder in more)]
        builder.build(command, out, root / "csrc", python_include=include, flags=flags)


def build_libraries(root: Path, command: list[str], machine: str, **settings: object) -> None:
    """Compile the interposer, the hibernator and the simulated driver with csrc/Makefile."""
    make = shutil.which("gmake") or shutil.which("make")
    if make is None:
        raise BuildError("no make; install it (Debian, Ubuntu: apt-get install make)")
    settings |= {"PYTHON": sys.executable, "CC": shlex.join(command), "ARCH": machine}
    words = [
        make,
        "--silent",
        "-j2",
        "-C",
        str(root / "csrc"),
        *(f"{k}={v}" for k, v in settings.items()),
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{shlex.join(words)} failed:\n{done.stdout}{done.stderr}")


#: What the builders of the JupyterLab extension and the Hub's page report about the packages that they bundled.
BUNDLED = (
    Path("jupyter_gpushare", "labextension", "static", "third-party-licenses.json"),
    Path("jupyter_gpushare", "hub", "static", "third-party-licenses.json"),
)


def npm_component(package: dict[str, str]) -> dict[str, Any]:
    """Describe a bundled npm package as CycloneDX does."""
    scope, _, name = package["name"].rpartition("/")
    return {
        "type": "library",
        **({"group": scope} if scope else {}),
        "name": name,
        "version": package["versionInfo"],
        **({"licenses": [{"expression": package["licenseId"]}]} if package["licenseId"] else {}),
        "purl": f"pkg:npm/{quote(package['name'])}@{quote(package['versionInfo'])}",
    }


def bill_of_materials(version: str, reports: Iterable[Path]) -> dict[str, Any]:
    """Return the wheel's SBOM: the software in it that an installer does not know of.

    The Python packages that it needs are in its metadata.

    Parameters
    ----------
    version
        The version of jupyter-gpushare.
    reports
        Reports of bundled npm packages.

    Returns
    -------
    dict
        A CycloneDX 1.6 document, which is the same for each build from the same sources.

    Raises
    ------
    BuildError
        A report is missing.
    """
    reports = list(reports)
    for path in reports:
        if not path.is_file():
            raise BuildError(
                f"{path} is missing: build the JupyterLab extension and the Hub page with "
                "`jlpm build:prod` in labextension/ (a development build makes no such report)"
            )
    packages = [p for path in reports for p in json.loads(path.read_text("utf-8"))["packages"]]
    bundled = {c["purl"]: c for c in map(npm_component, packages)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "jupyter-gpushare",
                "version": version,
                "licenses": [{"expression": "BSD-3-Clause"}],
                "purl": f"pkg:pypi/jupyter-gpushare@{quote(version)}",
            }
        },
        "components": [bundled[purl] for purl in sorted(bundled)],
    }


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds what it compiles to the wheel; an editable install has it next to the sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, then say what the wheel holds and where it runs."""
        try:
            self._build(version, build_data)
        except (BuildError, RuntimeError) as error:
            self.app.abort(f"jupyter-gpushare cannot be built: {error}")

    def _build(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        command = compiler()
        machine = machine_of(command)
        if version == "editable":
            # Where `make -C csrc` puts it too.
            build_module(root, command, machine, root / "jupyter_gpushare")
            build_libraries(root, command, machine)
            return
        out = root / "build" / "wheel" / machine
        shutil.rmtree(out / "package", ignore_errors=True)
        build_module(root, command, machine, out / "package")
        # The object files stay: make compiles again what has changed. Those of another compiler than the usual one have
        # a folder of their own; the others are also those of the editable install, which does without STRIP.
        objects = {"BUILD": out / "objects"} if "GPUSHARE_CC" in os.environ else {}
        build_libraries(
            root, command, machine, CFLAGS="-O2 -g", STRIP=1, OUT=out / "package" / "lib", **objects
        )
        built = sorted(path for path in (out / "package").rglob("*") if path.is_file())
        build_data["pure_python"] = False
        tag = platform_tag(path for path in built if is_binary(path))
        build_data["tag"] = f"cp310-abi3-{tag}"
        sbom = out / "jupyter-gpushare.cdx.json"
        document = bill_of_materials(self.metadata.version, (root / path for path in BUNDLED))
        sbom.write_text(json.dumps(document, indent=2), encoding="utf-8")
        build_data["sbom_files"].append(str(sbom.relative_to(root)))
        for path in built:
            inside = Path("jupyter_gpushare") / path.relative_to(out / "package")
            build_data["force_include"][str(path)] = str(inside)


def absolute_links(markdown: str, source: str) -> str:
    """Make the links of a Markdown page at the top of the repository absolute.

    Parameters
    ----------
    markdown
        The page. Links inside the page, and those that are absolute already, stay as they are.
    source
        Address of the repository.
    """

    def replace(match: re.Match[str]) -> str:
        image, target = match.groups(default="")
        return f"{image}]({source}/{'raw' if image else 'blob'}/HEAD/{target})"

    return re.sub(r"(!\[[^\[\]]*)?\]\((?![a-z]+:|#)([^()\s]+)\)", replace, markdown)


class ReadmeHook(MetadataHookInterface):
    """Takes the package's description from README.md."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute_links(text, metadata["urls"]["Source"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
