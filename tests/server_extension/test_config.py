# SPDX-License-Identifier: BSD-3-Clause
"""What can be set, and what happens when it is set wrongly."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp
from traitlets import TraitError
from traitlets.config import Config

from jupyter_gpushare.server_extension.app import GpuShareExtension
from jupyter_gpushare.server_extension.config import GpuShare

GetStatus = Callable[[], Awaitable[dict[str, Any]]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantum", "soon"),
        ("quantum", 0),
        ("quantum", -1.5),
        ("anti_thrash", "maybe"),
        ("reserve", "-1"),
        ("reserve", "much"),
        ("host_memory", "12 parsecs"),
        ("host", "perhaps"),
        ("socket", "/" + "x" * 200),
        ("policy", "chaos"),
        ("hibernate_after", "soon"),
        ("hibernate_after", -1),
        ("hibernate_after", float("inf")),
        ("hibernate_after", float("nan")),
        ("record", "/nowhere/at/all"),
        ("shares", {"ada": {"limit": 0.5}}),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(name: str, value: Any) -> None:
    with pytest.raises(TraitError, match=name):
        GpuShare(**{name: value})


def test_values_reach_the_scheduler(runtime: Path) -> None:
    options = GpuShare(
        policy="fcfs",
        quantum=2.5,
        anti_thrash="on",
        hibernate_after=60,
        prefetch=False,
        prefetch_likelihood=0.8,
        reservation_hold=30,
        reserve="512MiB",
        host_memory=1 << 30,
        record=str(runtime / "events"),
    )
    assert options.scheduler_arguments() == (
        *("--policy", "fcfs", "--quantum", "2.5", "--anti-thrash", "on", "--hibernate-after", "60"),
        *("--prefetch", "off", "--prefetch-likelihood", "0.8", "--reservation-hold", "30"),
        *("--reserve", "512MiB", "--host-memory", str(1 << 30)),
        *("--record", str(runtime / "events")),
    )
    assert GpuShare().scheduler_arguments() == (
        *("--policy", "burst", "--quantum", "auto", "--anti-thrash", "auto"),
        *(
            "--hibernate-after",
            "600",
            "--prefetch",
            "on",
            "--prefetch-likelihood",
            "0.5",
            "--reservation-hold",
            "60",
        ),
    )
    for off in (0, None):
        assert GpuShare(hibernate_after=off).scheduler_arguments()[7] == "0"


class TestScheduler:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config, runtime: Path) -> Config:
        options = {"policy": "fcfs", "hibernate_after": 0, "record": str(runtime / "events")}
        jp_server_config.GpuShare = Config(options)
        return jp_server_config

    async def test_the_scheduler_is_started_with_the_values(
        self, scheduler: Any, get_status: GetStatus, runtime: Path
    ) -> None:
        settings = (await get_status())["settings"]
        assert settings["policy"] == "fcfs"
        assert settings["hibernate_after"] is None
        assert (runtime / "events").is_file()


def test_only_a_personal_scheduler_is_hosted(runtime: Path) -> None:
    assert GpuShare().may_host()
    assert GpuShare(socket=str(runtime / "new" / "s.sock")).may_host()
    assert not GpuShare(host="never").may_host()
    if os.getuid() == 0:
        os.chown(runtime, 65534, -1)
        assert not GpuShare().may_host()
        assert GpuShare(host="always").may_host()
        os.chown(runtime, 0, -1)
    else:
        assert not GpuShare(socket="/usr/s.sock").may_host()


class TestMistake:
    @pytest.fixture
    def jp_server_config(self, jp_server_config: Config) -> Config:
        jp_server_config.GpuShare = Config({"quantum": "soon"})
        return jp_server_config

    async def test_the_server_continues_without_sharing(
        self,
        jp_serverapp: ServerApp,
        extension: GpuShareExtension,
        get_status: GetStatus,
        jp_fetch: Callable[..., Awaitable[Any]],
    ) -> None:
        status = await get_status()
        assert status["availability"]["code"] == "bad_configuration"
        error = status["availability"]["params"]["error"]
        assert "quantum" in error
        assert "'soon'" in error
        assert "\n" not in error
        assert (await jp_fetch("api", "status")).code == 200
        assert extension.host is None


def test_a_mistake_is_one_line_in_the_log(
    jp_server_config: Config,
    jp_configurable_serverapp: Callable[..., ServerApp],
    capfd: pytest.CaptureFixture[str],
) -> None:
    jp_server_config.GpuShare = Config({"reserve": "much"})
    jp_configurable_serverapp(config=jp_server_config)
    written = capfd.readouterr().err
    (line,) = (line for line in written.splitlines() if "GpuShare.reserve" in line)
    assert "'much'" in line
    assert "Traceback" not in written
