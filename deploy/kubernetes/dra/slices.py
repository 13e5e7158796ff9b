# SPDX-License-Identifier: BSD-3-Clause
"""GPUs as devices with attributes, capacities and taints, and the ResourceSlices of a node. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..node import Fault
from .conditions import taints
from .configuration import DRIVER

#: The most devices of a slice whose devices may have taints.
MOST_DEVICES = 64
#: The longest text of an attribute.
LONGEST = 64

_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML describes it, and why it is not for new claims."""

    uuid: str
    model: str
    memory: int
    driver: str | None = None
    cuda: str | None = None
    compute_capability: tuple[int, int] | None = None
    fault: Fault = ""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How GPUs are shared.

    Attributes
    ----------
    places
        Claims that may share one GPU.
    overcommit
        What all claims of a GPU may ask of its memory together, as a multiple.
    """

    places: int
    overcommit: float


def device_name(uuid: str) -> str:
    """Return the name of a GPU's device."""
    return uuid.lower()


def device(gpu: Gpu, sharing: Sharing, host_memory: int | None) -> dict[str, Any]:
    """Return a GPU as a device of a slice.

    Parameters
    ----------
    gpu
        The GPU.
    sharing
        How it is shared.
    host_memory
        Bytes of host memory for the evicted data of its claims; None: not known.
    """
    attributes: dict[str, dict[str, Any]] = {
        "uuid": {"string": gpu.uuid},
        "model": {"string": gpu.model[:LONGEST]},
        "memory": {"int": gpu.memory},
    }
    capability = gpu.compute_capability and "{}.{}".format(*gpu.compute_capability)
    for name, text in (
        ("driverVersion", gpu.driver),
        ("cudaVersion", gpu.cuda),
        ("computeCapability", capability),
    ):
        if text and (version := semantic(text)):
            attributes[name] = {"version": version}
    made: dict[str, Any] = {
        "name": device_name(gpu.uuid),
        "allowMultipleAllocations": True,
        "attributes": attributes,
        "capacity": _capacities(gpu.memory, sharing, host_memory),
    }
    if tainted := taints(gpu.fault):
        made["taints"] = tainted
    return made


def _capacities(memory: int, sharing: Sharing, host_memory: int | None) -> dict[str, Any]:
    # A range needs room for one step above its least value.
    some = {"validRange": {"min": "1", "step": "1"}}
    found: dict[str, Any] = {
        "places": {
            "value": str(sharing.places),
            "requestPolicy": {
                "default": "1",
                **(some if sharing.places > 1 else {"validValues": ["1"]}),
            },
        },
        "memory": {
            "value": quantity(int(memory * sharing.overcommit)),
            "requestPolicy": {
                "default": "0",
                "validRange": {"min": "0", "max": quantity(memory)},
            },
        },
    }
    if host_memory:
        found["hostMemory"] = {
            "value": quantity(host_memory),
            "requestPolicy": {"default": "0", "validRange": {"min": "0"}},
        }
    return found


def quantity(size: int) -> str:
    """Return whole MiB as the API itself would write them, so that they can be compared as texts."""
    size &= -1 << 20
    power = 0
    while size and size % 1024 == 0 and power < len(_UNITS) - 1:
        size //= 1024
        power += 1
    return f"{size}{_UNITS[power]}"


def parse_quantity(text: Any) -> int:
    """Return the bytes of a quantity that a claim consumes.

    Raises
    ------
    ValueError
        It is not a quantity of bytes.
    """
    match = re.fullmatch(r"(\d+)((?:[KMGTPE]i)|[kMGTPE]|)", str(text), re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a number of bytes")
    number, unit = int(match[1]), match[2]
    if unit.endswith("i"):
        return int(number << 10 * _UNITS.index(unit))
    return int(number * 1000 ** " kMGTPE".index(unit or " "))


def semantic(text: str) -> str | None:
    """Return a version as semver.org requires it: three numbers without leading zeros; None if it is not a version."""
    parts = re.fullmatch(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text, re.ASCII)
    return parts and ".".join(str(int(part or 0)) for part in parts.groups())


def pool(node: str, devices: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the specifications of a node's slices, without the generation of the pool."""
    parts = [devices[at : at + MOST_DEVICES] for at in range(0, len(devices), MOST_DEVICES)]
    return [
        {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": len(parts)},
            "devices": [*part],
        }
        for part in parts
    ]


def is_same(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a slice is as wanted. The generation and the times of taints do not count."""
    return _comparable(wanted) == _comparable(found)


def _comparable(spec: Mapping[str, Any]) -> dict[str, Any]:
    devices = [
        {
            **each,
            "taints": [
                {name: value for name, value in taint.items() if name != "timeAdded"}
                for taint in each.get("taints") or ()
            ],
        }
        for each in spec.get("devices") or ()
    ]
    of_pool = {n: v for n, v in (spec.get("pool") or {}).items() if n != "generation"}
    return {**spec, "pool": of_pool, "devices": devices}
