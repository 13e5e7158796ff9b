# SPDX-License-Identifier: BSD-3-Clause
"""Classes of GPU use that users choose from when they start their server (``docs/how-to/admin/hub-page.md``).

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

#: The key among the user's options, and the field of the form.
OPTION = "gpushare_class"


class NoSuchClass(ValueError):
    """Somebody asked for a class that is not offered to them; the message says which are."""

    @property
    def jupyterhub_message(self) -> str:
        """What the Hub shows to its user."""
        return str(self)


@dataclass(frozen=True)
class GpuClass:
    """One choice.

    Parameters
    ----------
    name
        What it is called in the API (``{"gpushare_class": NAME}``).
    title
        What people choose.
    text
        What it means, in a sentence.
    groups
        Groups of the Hub of which a user has to be in one; none: it is for all.
    memory
        Most device memory of one kernel, such as ``8GiB``; None: all that there is.
    environment
        Further variables of the server's environment, such as ``{"CUDA_VISIBLE_DEVICES": ""}`` for none of the GPUs.

    Raises
    ------
    ValueError
        If the memory is no size.
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
        """Whether it is offered to somebody in these groups of the Hub."""
        return not self.groups or bool(groups.intersection(self.groups))

    def variables(self) -> dict[str, str]:
        """Return what it adds to the environment of the user's server."""
        cap = {} if self.memory is None else {"GPUSHARE_MEMORY": str(parse_size(self.memory))}
        return {**cap, **self.environment}


class Offer:
    """The classes that there are; the first that is for a user is theirs unless they choose.

    Parameters
    ----------
    classes
        The classes, in the form's order.

    Raises
    ------
    ValueError
        If there is none, or two have one name.
    """

    def __init__(self, *classes: GpuClass) -> None:
        if not classes or len({found.name for found in classes}) < len(classes):
            raise ValueError("name one class at least, and no two the same")
        self.classes = classes

    def of(self, spawner: Any) -> list[GpuClass]:
        """Return the classes that are for a spawner's user."""
        groups = {group.name for group in spawner.user.groups}
        return [found for found in self.classes if found.is_for(groups)]

    def form(self, spawner: Any) -> str:
        """Return the form, as ``Spawner.options_form`` wants it: none where there is no choice."""
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
        """Return the options that a form states, as ``Spawner.options_from_form`` wants them."""
        chosen = form.get(OPTION, [""])[0]
        return {OPTION: chosen} if chosen else {}

    def apply(self, spawner: Any) -> None:
        """Set up a spawner for the class that its user chose: a ``Spawner.pre_spawn_hook``.

        Options may come by the API as well as by the form, so it is here that they are checked.

        Raises
        ------
        NoSuchClass
            If it is none that is for the user; the server does not start.
        """
        offered = self.of(spawner)
        name = (spawner.user_options or {}).get(OPTION)
        chosen = offered[:1] if name is None else [c for c in offered if c.name == name]
        if not chosen:
            names = ", ".join(found.name for found in offered) or "none"
            raise NoSuchClass(
                f"there is no class of GPU use {name!r} for you; choose one of: {names}"
            )
        # A spawner lives on between starts: what the last choice brought has to go.
        ours = {name for found in self.classes for name in found.variables()}
        kept = {name: value for name, value in spawner.environment.items() if name not in ours}
        spawner.environment = {**kept, **chosen[0].variables()}


def offer(config: Any, *classes: GpuClass) -> Offer:
    """Let users choose among classes when they start their server.

    Parameters
    ----------
    config
        The ``c`` of ``jupyterhub_config.py``. A ``pre_spawn_hook`` that is there already is called first.
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
