# SPDX-License-Identifier: BSD-3-Clause
"""Checks of the installation: packages, provisioner, extensions and kernelspecs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

from .finding import Finding

EXTENSION = "jupyter_gpushare"
LABEXTENSION = "jupyter-gpushare"
PROVISIONER = "gpushare"


def provisioner(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check which provisioner the Jupyter configuration selects."""
    topic = "provisioner"
    known = [
        entry.name
        for entry in importlib.metadata.entry_points(group="jupyter_client.kernel_provisioners")
    ]
    if PROVISIONER not in known:
        yield Finding(
            topic,
            "fail",
            "not installed in this environment",
            "install jupyter-gpushare in this environment",
        )
        return
    from jupyter_core.application import JupyterApp

    # It reads the same configuration as ServerApp, which takes a second to import.
    app = JupyterApp(config_file_name="jupyter_server_config")
    app.load_config_file()
    chosen = app.config.get("KernelProvisionerFactory", {}).get("default_provisioner_name")
    where = "your Jupyter configuration"
    if not chosen:
        chosen, where = (
            environ.get("JUPYTER_DEFAULT_PROVISIONER_NAME"),
            "JUPYTER_DEFAULT_PROVISIONER_NAME",
        )
    if chosen and chosen != PROVISIONER:
        yield Finding(
            topic,
            "warn",
            f"{where} selects {chosen!r}, so kernels start without GPU sharing",
            f"select {PROVISIONER!r} there",
        )
    elif chosen:
        yield Finding(topic, "ok", f"selected by {where}")
    else:
        yield Finding(topic, "ok", "selected by the server extension")


def packages() -> Iterator[Finding]:
    """Check the versions of the packages that gpushare needs."""
    from ...server_extension.dependencies import mismatches

    found = list(mismatches())
    for mismatch in found:
        yield Finding(
            "packages",
            "warn" if mismatch.extra else "fail",
            str(mismatch),
            f"run: pip install '{mismatch.package}{mismatch.required}'",
        )
    if not found:
        yield Finding("packages", "ok", "all versions are supported")


def server_extension() -> Iterator[Finding]:
    """Check that the Jupyter server loads the server extension."""
    from jupyter_core.paths import jupyter_config_path
    from jupyter_server.extension.config import ExtensionConfigManager

    manager = ExtensionConfigManager(read_config_path=jupyter_config_path())
    stated = manager.get_jpserver_extensions()  # type: ignore[no-untyped-call]
    if stated.get(EXTENSION):
        yield Finding("server extension", "ok", "enabled")
    elif EXTENSION in stated:
        yield Finding(
            "server extension",
            "fail",
            "disabled",
            f"run: jupyter server extension enable {EXTENSION}",
        )
    else:
        yield Finding(
            "server extension",
            "fail",
            "not found in this Jupyter installation's configuration",
            f"install jupyter-gpushare in Jupyter's environment, or run: jupyter server extension enable {EXTENSION}",
        )


def labextension() -> Iterator[Finding]:
    """Check that JupyterLab finds the panel."""
    from jupyter_core.paths import jupyter_path

    for folder in jupyter_path("labextensions"):
        if Path(folder, LABEXTENSION, "package.json").is_file():
            yield Finding("labextension", "ok", str(Path(folder, LABEXTENSION)))
            return
    yield Finding(
        "labextension",
        "warn",
        "the JupyterLab panel is not installed",
        "install jupyter-gpushare in JupyterLab's environment",
    )


def kernelspecs() -> Iterator[Finding]:
    """List the kernelspecs whose kernels share the GPU in every front end."""
    from ..programs.kernelspec import find

    if made := find():
        names = ", ".join(sorted(made))
        yield Finding("kernelspecs", "ok", f"share the GPU in every front end: {names}")
    else:
        yield Finding(
            "kernelspecs",
            "ok",
            "none; kernels started by papermill, nbconvert, VS Code or jupyter console do not share the GPU",
            "run: gpushare kernelspec add shared, then select that kernelspec in the front end",
        )
