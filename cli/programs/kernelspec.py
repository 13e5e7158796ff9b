# SPDX-License-Identifier: BSD-3-Clause
"""``gpushare kernelspec``: kernelspecs for front ends that bypass kernel provisioners."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from jupyter_core.paths import jupyter_data_dir

from ...kernel_provisioner.launch import BACKENDS
from ...scheduler.node.arguments import nearest
from .run import _backend, _memory

DESCRIPTION = """\
Create kernelspecs that share the GPU in every front end. VS Code, nbconvert, papermill, qtconsole and others bypass
Jupyter's kernel provisioners; a kernelspec that this command creates starts its kernel with `gpushare run`.
"""


class KernelspecError(Exception):
    """A request that failed; the message is one sentence for the user."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``gpushare kernelspec``."""
    parser = subparsers.add_parser(
        "kernelspec",
        description=DESCRIPTION,
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{add,list,remove}")
    add = verbs.add_parser("add", help="create a kernelspec")
    add.add_argument("name", metavar="NAME", help="name of the new kernelspec")
    add.add_argument(
        "--from",
        dest="source",
        default="python3",
        metavar="SPEC",
        help="kernelspec to base the new one on (default: python3)",
    )
    add.add_argument(
        "--display-name",
        metavar="NAME",
        help="name shown in front ends (default: based on the display name of SPEC)",
    )
    add.add_argument(
        "--memory", type=_memory, metavar="SIZE", help="limit of GPU memory, such as 20GiB"
    )
    add.add_argument(
        "--backend", type=_backend, metavar="BACKEND", help=f"memory backend: {', '.join(BACKENDS)}"
    )
    place = add.add_mutually_exclusive_group()
    place.add_argument("--user", action="store_true", help="install for this user (the default)")
    place.add_argument(
        "--prefix",
        type=Path,
        metavar="DIR",
        help="install under this prefix, such as the folder of a virtual environment",
    )
    verbs.add_parser("list", help="list the kernelspecs that were created by gpushare")
    remove = verbs.add_parser("remove", help="remove a kernelspec that was created by gpushare")
    remove.add_argument("name", metavar="NAME", help="name of the kernelspec")


def run(arguments: argparse.Namespace) -> int:
    """Create, list or remove kernelspecs; return the exit status."""
    try:
        if arguments.verb == "add":
            folder = add(
                arguments.name,
                source=arguments.source,
                display_name=arguments.display_name,
                prefix=arguments.prefix,
                options=_options(arguments),
            )
            print(f"Created the kernelspec {arguments.name} in {folder}.")
        elif arguments.verb == "list":
            made = find()
            for name, (folder, spec) in sorted(made.items()):
                print(f"{name}\tfrom {spec.metadata['gpushare']['wraps']}\t{folder}")
            if not made:
                print(
                    "No kernelspecs; create one with: gpushare kernelspec add NAME", file=sys.stderr
                )
        else:
            print(f"Removed the kernelspec {arguments.name} from {remove(arguments.name)}.")
    except KernelspecError as error:
        print(f"gpushare: {error}", file=sys.stderr)
        return 2
    return 0


def add(
    name: str,
    *,
    source: str = "python3",
    display_name: str | None = None,
    prefix: Path | None = None,
    options: list[str] | None = None,
) -> Path:
    """Create a kernelspec that starts the kernel of another one with ``gpushare run``.

    Parameters
    ----------
    name
        The name of the new kernelspec.
    source
        The name of the kernelspec to wrap.
    display_name
        The name shown in front ends.
    prefix
        The prefix to install below; None: the user's own folder.
    options
        Options of ``gpushare run``.

    Returns
    -------
    Path
        The new kernelspec's folder.

    Raises
    ------
    KernelspecError
        If it cannot be created.
    """
    # jupyter_client ignores kernelspecs with other names.
    if not re.fullmatch(r"[a-z0-9._-]+", name, re.IGNORECASE | re.ASCII):
        raise KernelspecError(
            f"invalid name {name!r}; use letters, digits, dots, dashes and underscores"
        )
    try:
        wrapped = KernelSpecManager().get_kernel_spec(source)
    except NoSuchKernel:
        known = sorted(KernelSpecManager().find_kernel_specs())
        raise KernelspecError(
            f"unknown kernelspec {source!r}{nearest(source, known)}; choose from {', '.join(known) or 'none'}"
        ) from None
    if _is_made(wrapped):
        raise KernelspecError(
            f"{source} already shares the GPU; use --from {wrapped.metadata['gpushare']['wraps']} instead"
        )
    kernels = (
        Path(jupyter_data_dir()) / "kernels"
        if prefix is None
        else prefix.absolute() / "share/jupyter/kernels"
    )
    folder = kernels / name.lower()
    if folder.exists() and not _is_made(_read(folder)):
        raise KernelspecError(
            f"{folder} already exists and was not created by gpushare; choose another name"
        )
    spec = _wrap(wrapped, source, name, display_name, options or [])
    try:
        kernels.mkdir(parents=True, exist_ok=True)
        if folder.exists():
            shutil.rmtree(folder)
        if wrapped.resource_dir and Path(wrapped.resource_dir).is_dir():
            # For the logos.
            shutil.copytree(wrapped.resource_dir, folder)
        folder.mkdir(exist_ok=True)
        (folder / "kernel.json").write_text(json.dumps(spec, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise KernelspecError(f"cannot write {folder}: {error.strerror}") from error
    return folder


def find() -> dict[str, tuple[Path, KernelSpec]]:
    """Return the kernelspecs that were created by gpushare, by name."""
    made = {}
    for name, folder in KernelSpecManager().find_kernel_specs().items():
        spec = _read(Path(folder))
        if spec is not None and _is_made(spec):
            made[name] = (Path(folder), spec)
    return made


def remove(name: str) -> Path:
    """Remove a kernelspec that was created by gpushare, and return its former folder.

    Raises
    ------
    KernelspecError
        If there is none with this name, or it was not created by gpushare.
    """
    made = find()
    if name.lower() not in made:
        raise KernelspecError(
            f"{name!r} was not created by gpushare{nearest(name, made)}; kernelspecs created by gpushare: "
            f"{', '.join(sorted(made)) or 'none'}"
        )
    folder = made[name.lower()][0]
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise KernelspecError(f"cannot remove {folder}: {error.strerror}") from error
    return folder


def _wrap(
    wrapped: KernelSpec, source: str, name: str, display_name: str | None, options: list[str]
) -> dict[str, Any]:
    command = list(wrapped.argv)
    # jupyter_client replaces these by its own interpreter, but only at the start of the command.
    if command[:1] in (["python"], ["python3"], [f"python3.{sys.version_info[1]}"]):
        command[0] = sys.executable
    spec: dict[str, Any] = wrapped.to_dict()
    spec["argv"] = [*_gpushare(), "run", "--default-name", name, *options, "--", *command]
    spec["display_name"] = display_name or f"{wrapped.display_name} (shared GPU)"
    # The provisioner must not add the interposer a second time.
    spec["metadata"] = {**(wrapped.metadata or {}), "gpushare": {"enabled": False, "wraps": source}}
    return spec


def _gpushare() -> list[str]:
    """Return the command with a path that does not depend on the front end's environment."""
    script = Path(sysconfig.get_path("scripts"), "gpushare")
    if script.is_file():
        return [str(script)]
    return [sys.executable, "-m", "jupyter_gpushare.cli.main"]


def _options(arguments: argparse.Namespace) -> list[str]:
    options = []
    if arguments.memory is not None:
        options += ["--memory", str(arguments.memory)]
    if arguments.backend is not None:
        options += ["--backend", arguments.backend]
    return options


def _read(folder: Path) -> KernelSpec | None:
    try:
        return KernelSpec.from_resource_dir(str(folder))
    except (OSError, ValueError):
        return None


def _is_made(spec: KernelSpec | None) -> bool:
    stated = None if spec is None else (spec.metadata or {}).get("gpushare")
    return isinstance(stated, dict) and isinstance(stated.get("wraps"), str)
