# SPDX-License-Identifier: BSD-3-Clause
"""Makes our provisioner the default one, unless the configuration chooses another."""

from __future__ import annotations

import os

from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

PROVISIONER = "gpushare"
VARIABLE = "JUPYTER_DEFAULT_PROVISIONER_NAME"


def choose_provisioner(app: ServerApp) -> None:
    """Make kernels start under our provisioner unless a user or an administrator chose another.

    A file in ``jupyter_server_config.d`` cannot do this: the server reads nothing but the list of extensions there.
    """
    if _stated(app) is not None:
        return
    app.update_config(
        Config({"KernelProvisionerFactory": {"default_provisioner_name": PROVISIONER}})
    )
    if KernelProvisionerFactory.initialized():
        # Another extension made it before; it reads the configuration no more.
        KernelProvisionerFactory.instance().default_provisioner_name = PROVISIONER


def default_provisioner(app: ServerApp) -> str | None:
    """Return the provisioner of kernels whose kernelspec names none."""
    if KernelProvisionerFactory.initialized():
        return str(KernelProvisionerFactory.instance().default_provisioner_name)
    return _stated(app)


def _stated(app: ServerApp) -> str | None:
    stated = app.config.get("KernelProvisionerFactory", {}).get("default_provisioner_name")
    return stated or os.environ.get(VARIABLE) or None
