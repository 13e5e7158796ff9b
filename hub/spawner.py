# SPDX-License-Identifier: BSD-3-Clause
"""Classes of GPU use, one of which users choose when they start their server (docs/how-to/admin/hub-page.md).

In ``jupyterhub_config.py``::

    from jupyter_gpushare.hub.spawner import GpuClass, offer

    offer(
        c,
        GpuClass("shared", "Shared GPU", "All of the GPU, in turns with others"),
        GpuClass("small", "Small share", "At most 8 GiB of its memory", memory="8GiB"),
        GpuClass("course", "Course", "For members of the course", groups={"course"}, memory="4GiB"),
    )

A class sets environment variables of the kernels, which their users can change. Limits that users cannot change are
configured in the node scheduler, for a user or for a group of the Hub (``team:NAME``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ..scheduler.node.entitlements import parse_size

#: Name of the user option and of the form field.
OPTION = "gpushare_class"


class NoSuchClass(ValueError):
    """A user chose a class that is not available to them; the message lists the available ones."""

    @property
    def jupyterhub_message(self) -> str:
        """The message that the Hub shows to the user."""
        return str(self)


@dataclass(frozen=True)
class GpuClass:
    """A class of GPU use.

    Parameters
    ----------
    name
        Name of the class in the API (``{"gpushare_class": NAME}``).
    title
        Title in the form.
    text
        Description in the form, in one sentence.
    groups
        Groups of the Hub whose members may use the class; if empty, all users may.
    memory
        Maximum device memory of one kernel, such as ``8GiB``; None: no limit.
    environment
        Further environment variables of the server, such as ``{"CUDA_VISIBLE_DEVICES": ""}`` to hide all GPUs.

    Raises
    ------
    ValueError
        If the memory is not a valid size.
    """

    name: str
    title: str
    text: str = ""
    groups: frozenset[str] | set[str] = frozenset()
    memory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.memory is not None:
            parse_size(self.memory)

    def is_for(self, groups: set[str]) -> bool:
        """Whether the class is available to a user in these groups of the Hub."""
        return not self.groups or bool(groups.intersection(self.groups))

    def variables(self) -> dict[str, str]:
        """Return the environment variables of the user's server that the class sets."""
        cap = {} if self.memory is None else {"GPUSHARE_MEMORY": str(parse_size(self.memory))}
        return {**cap, **self.environment}


class Offer:
    """All classes. A user's default is the first one that is available to them.

    Parameters
    ----------
    classes
        The classes, in the order of the form.

    Raises
    ------
    ValueError
        If there is no class, or two have the same name.
    """

    def __init__(self, *classes: GpuClass) -> None:
        if not classes or len({found.name for found in classes}) < len(classes):
            raise ValueError(
                "invalid classes of GPU use; define at least one, each with a unique name"
            )
        self.classes = classes

    def of(self, spawner: Any) -> list[GpuClass]:
        """Return the classes that are available to the user of a spawner."""
        groups = {group.name for group in spawner.user.groups}
        return [found for found in self.classes if found.is_for(groups)]

    def form(self, spawner: Any) -> str:
        """Return the form for ``Spawner.options_form``; empty if there is no choice."""
        offered = self.of(spawner)
        if len(offered) < 2:
            return ""
        rows = [
            f'<div class="radio"><label><input type="radio" name="{OPTION}" value="{escape(found.name)}"'
            f"{' checked' * (found is offered[0])}> <b>{escape(found.title)}</b> {escape(found.text)}</label></div>"
            for found in offered
        ]
        return f"<fieldset><legend>GPU</legend>{''.join(rows)}</fieldset>"

    def read(self, form: Mapping[str, list[str]]) -> dict[str, str]:
        """Return the options in a submitted form, for ``Spawner.options_from_form``."""
        chosen = form.get(OPTION, [""])[0]
        return {OPTION: chosen} if chosen else {}

    def apply(self, spawner: Any) -> None:
        """Set up a spawner for the class that its user chose, as a ``Spawner.pre_spawn_hook``.

        The options are checked here, because they may come from the API instead of the form.

        Raises
        ------
        NoSuchClass
            If the class is not available to the user. The server does not start then.
        """
        offered = self.of(spawner)
        name = (spawner.user_options or {}).get(OPTION)
        chosen = offered[:1] if name is None else [c for c in offered if c.name == name]
        if not chosen:
            names = ", ".join(found.name for found in offered) or "none"
            raise NoSuchClass(
                f"the class of GPU use {name!r} is not available to you; choose one of: {names}"
            )
        # The spawner is the same object for each start, so variables of an earlier choice have to be removed.
        ours = {name for found in self.classes for name in found.variables()}
        kept = {name: value for name, value in spawner.environment.items() if name not in ours}
        spawner.environment = {**kept, **chosen[0].variables()}


def offer(config: Any, *classes: GpuClass) -> Offer:
    """Let users choose among classes when they start their server.

    Parameters
    ----------
    config
        The ``c`` of ``jupyterhub_config.py``. If it has a ``pre_spawn_hook`` already, that is called first.
    classes
        The classes.
    """
    made = Offer(*classes)
    before = config.Spawner.get("pre_spawn_hook")

    async def hook(spawner: Any) -> None:
        if before is not None:
            found = before(spawner)
            if hasattr(found, "__await__"):
                await found
        made.apply(spawner)

    config.Spawner.options_form = made.form
    config.Spawner.options_from_form = made.read
    config.Spawner.pre_spawn_hook = hook
    return made
