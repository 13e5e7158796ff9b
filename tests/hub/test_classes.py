# SPDX-License-Identifier: BSD-3-Clause
"""Classes of GPU use, with a real spawner of JupyterHub."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from traitlets.config import Config

from jupyter_gpushare.hub.spawner import GpuClass, NoSuchClass, Offer, offer

CLASSES = (
    GpuClass("shared", "Shared GPU", "All of it, in turns"),
    GpuClass("small", "Small <share>", memory="8GiB"),
    GpuClass("course", "Course", groups={"course"}, memory="4GiB"),
    GpuClass("none", "No GPU", environment={"CUDA_VISIBLE_DEVICES": ""}),
)


def spawner(*groups: str, config: Config | None = None) -> Any:
    """Return the spawner of a user in these groups, as JupyterHub creates it from its configuration."""
    # Not at the top: each worker of pytest would import JupyterHub, which takes 2 s.
    from jupyterhub.spawner import SimpleLocalProcessSpawner

    if config is None:
        config = Config()
        offer(config, *CLASSES)
    user = SimpleNamespace(groups=[SimpleNamespace(name=name) for name in groups])
    return SimpleLocalProcessSpawner(config=config, user=user, environment={"KEPT": "1"})


def start(spawner: Any, **options: str) -> dict[str, str]:
    """Run the spawner's hook, as before the start of a server, and return the server's environment."""
    spawner.user_options = options
    asyncio.run(spawner.run_pre_spawn_hook())
    return dict(spawner.environment)


def test_the_form_offers_the_classes_of_the_user() -> None:
    form = asyncio.run(spawner().get_options_form())
    assert re.findall(r'value="(\w+)"( checked)?', form) == [
        ("shared", " checked"),
        ("small", ""),
        ("none", ""),
    ]
    assert "Small &lt;share&gt;" in form
    assert 'value="course"' in asyncio.run(spawner("staff", "course").get_options_form())


def test_without_a_choice_there_is_no_form() -> None:
    config = Config()
    offer(config, CLASSES[0], CLASSES[2])
    assert asyncio.run(spawner(config=config).get_options_form()) == ""
    assert start(spawner(config=config)) == {"KEPT": "1"}


def test_only_the_variables_of_the_chosen_class_reach_the_server() -> None:
    one = spawner()
    options = one.options_from_form({"gpushare_class": ["small"], "other": ["x"]})
    assert options == {"gpushare_class": "small"}
    assert start(one, **options) == {"KEPT": "1", "GPUSHARE_MEMORY": str(8 << 30)}
    assert start(one, gpushare_class="none") == {"KEPT": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert start(one, **one.options_from_form({})) == {"KEPT": "1"}


def test_the_api_refuses_classes_of_other_groups() -> None:
    for name in ("course", "no-such-class"):
        with pytest.raises(NoSuchClass, match="choose one of: shared, small, none") as error:
            start(spawner("staff"), gpushare_class=name)
        assert name in error.value.jupyterhub_message
    assert start(spawner("course"), gpushare_class="course")["GPUSHARE_MEMORY"] == str(4 << 30)


def test_an_existing_hook_is_called() -> None:
    called = []
    config = Config()

    async def before(spawner: Any) -> None:
        called.append(spawner)

    config.Spawner.pre_spawn_hook = before
    offer(config, *CLASSES)
    one = spawner(config=config)
    start(one)
    assert called == [one]


def test_invalid_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="invalid size"):
        GpuClass("bad", "Bad", memory="much")
    for classes in ((), (CLASSES[0], CLASSES[0])):
        with pytest.raises(ValueError, match="define at least one"):
            Offer(*classes)
