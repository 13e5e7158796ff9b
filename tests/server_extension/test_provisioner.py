# SPDX-License-Identifier: BSD-3-Clause
"""Kernels start under our provisioner, unless another was chosen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_server.serverapp import ServerApp
from traitlets.config import Config

Start = Callable[..., ServerApp]


def default_provisioner(app: ServerApp) -> str:
    return str(KernelProvisionerFactory.instance(parent=app).default_provisioner_name)


def test_our_provisioner_is_the_default(jp_serverapp: ServerApp) -> None:
    assert default_provisioner(jp_serverapp) == "gpushare"


def test_our_provisioner_is_the_default_although_another_extension_read_it_before(
    jp_server_config: Config, jp_configurable_serverapp: Start
) -> None:
    KernelProvisionerFactory.instance()
    app = jp_configurable_serverapp(config=jp_server_config)
    assert default_provisioner(app) == "gpushare"


def test_a_choice_in_the_configuration_wins(
    jp_server_config: Config, jp_configurable_serverapp: Start
) -> None:
    # The name that would be the default without us: it must still count as a choice.
    chosen = {"default_provisioner_name": "local-provisioner"}
    jp_server_config.KernelProvisionerFactory = Config(chosen)
    app = jp_configurable_serverapp(config=jp_server_config)
    assert default_provisioner(app) == "local-provisioner"


def test_a_choice_in_the_environment_wins(
    jp_server_config: Config, jp_configurable_serverapp: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "local-provisioner")
    app = jp_configurable_serverapp(config=jp_server_config)
    assert default_provisioner(app) == "local-provisioner"


def test_sharing_that_is_switched_off_leaves_kernels_alone(
    jp_server_config: Config, jp_configurable_serverapp: Start
) -> None:
    jp_server_config.GpuShare = Config({"enabled": False})
    app = jp_configurable_serverapp(config=jp_server_config)
    assert default_provisioner(app) == "local-provisioner"


class TestAnotherDefault:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        chosen = {"default_provisioner_name": "local-provisioner"}
        jp_server_config.KernelProvisionerFactory = Config(chosen)
        return jp_server_config

    async def test_the_status_shows_the_provisioner(
        self, scheduler: Any, get_status: Callable[[], Awaitable[dict[str, Any]]]
    ) -> None:
        status = await get_status()
        assert status["availability"] == {
            "code": "provisioner_not_default",
            "params": {"provisioner": "local-provisioner"},
        }
        assert status["gpus"]
