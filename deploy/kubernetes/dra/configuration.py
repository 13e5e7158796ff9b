# SPDX-License-Identifier: BSD-3-Clause
"""The opaque configuration of claims and classes, and the entitlement that follows. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....scheduler.node.entitlements import parse_share

#: The name of the driver: in slices and classes, and in claims' configuration.
DRIVER = "jupyter-gpushare"
#: What the parameters call themselves.
API_VERSION, KIND = "jupyter-gpushare/v1alpha1", "GpuShareConfig"
#: Keys whose values have an order, and what a claim gets that states none and has no maximum.
SHARES: dict[str, float] = {"request": 0.0, "limit": 0.0, "weight": 1.0, "memory": 0, "host": 0}
#: Keys with which 0 means no limit.
_CAPS = ("limit", "memory", "host")
_KEYS = ("class", *SHARES)


class ConfigurationError(Exception):
    """The configuration of a claim or a class is not valid. The message is one sentence for its author."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a claim's user is entitled to."""

    #: The class of new kernels; None: their behaviour decides.
    priority: str | None = None
    #: Those of `SHARES` that differ from the default.
    shares: dict[str, float] = field(default_factory=dict)


def configuration(allocated: Iterable[Mapping[str, Any]], host_memory: int = 0) -> Configuration:
    """Return what follows from the configuration in a claim's allocation.

    Parameters
    ----------
    allocated
        The list ``config`` of the allocation: what the class states, and what the claim states.
    host_memory
        The bytes of host memory that the claim takes of its devices; 0: it did not ask for any.

    Raises
    ------
    ConfigurationError
        It is not valid, or the claim asks for more than the class allows.
    """
    stated: dict[str, Any] = {}
    maximum: dict[str, float] = {}
    ours = [each for each in allocated if each.get("opaque", {}).get("driver") == DRIVER]
    # What the class states comes first, because the claim's keys replace it.
    for each in sorted(ours, key=lambda each: each.get("source") != "FromClass"):
        of_class = each.get("source") == "FromClass"
        whose = "the DeviceClass" if of_class else "the claim"
        found = _parameters(each["opaque"].get("parameters"), whose)
        limits = found.pop("maximum", None)
        if limits is not None:
            if not of_class:
                raise ConfigurationError(
                    "the claim states a maximum; only a DeviceClass can state it"
                )
            maximum |= _maximum(limits)
        stated |= {key: _value(key, value, whose) for key, value in found.items()}
    if host_memory:
        stated["host"] = min(host_memory, stated.get("host") or host_memory)
    priority = stated.pop("class", "auto")
    return Configuration(None if priority == "auto" else priority, _bounded(stated, maximum))


def _bounded(stated: Mapping[str, float], maximum: Mapping[str, float]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for key, usual in SHARES.items():
        value, most = stated.get(key, usual), maximum.get(key)
        if most is not None and not (key in _CAPS and most == 0):
            unlimited = key in _CAPS and value == 0
            if key in stated and (unlimited or value > most):
                said = "no limit" if unlimited else f"{value:g}"
                raise ConfigurationError(
                    f"the claim's {key} ({said}) is above the maximum of the DeviceClass, {most:g}; ask for less"
                )
            value = most if unlimited else min(value, most)
        if value != usual:
            shares[key] = value
    return shares


def _parameters(found: Any, whose: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ConfigurationError(f"the parameters of {whose} must be an object, not {found!r}")
    given = dict(found)
    version, kind = given.pop("apiVersion", None), given.pop("kind", None)
    if (version, kind) != (API_VERSION, KIND):
        raise ConfigurationError(
            f"the parameters of {whose} are {kind!r} of {version!r}; use kind {KIND} of apiVersion {API_VERSION}"
        )
    if unknown := given.keys() - {*_KEYS, "maximum"}:
        raise ConfigurationError(
            f"unknown key {', '.join(sorted(map(str, unknown)))} of {whose}; use {', '.join(_KEYS)}"
        )
    return given


def _maximum(found: Any) -> dict[str, float]:
    whose = "the DeviceClass's maximum"
    if not isinstance(found, dict) or found.keys() - SHARES.keys():
        raise ConfigurationError(
            f"{whose} must be an object with the keys {', '.join(SHARES)}, not {found!r}"
        )
    return {key: _value(key, value, whose) for key, value in found.items()}


def _value(key: str, value: Any, whose: str) -> Any:
    try:
        return parse_share("priority" if key == "class" else key, value)
    except ValueError as error:
        raise ConfigurationError(f"invalid {key} of {whose}: {error}") from None
