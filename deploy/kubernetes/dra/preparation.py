# SPDX-License-Identifier: BSD-3-Clause
"""Makes a prepared claim from a claim in the Kubernetes API. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .configuration import DRIVER, ConfigurationError, configuration
from .prepared import AllocatedGpu, ClaimError, PreparedClaim
from .slices import device_name, parse_quantity


def prepared_claim(
    found: Mapping[str, Any], uid: str, node: str, gpus: Mapping[str, str]
) -> PreparedClaim:
    """Return the prepared claim.

    Parameters
    ----------
    found
        The ResourceClaim.
    uid
        The uid of the claim that the kubelet means. A newer claim may have the same name.
    node
        The name of the node, and of its pool.
    gpus
        The UUIDs of the node's GPUs, by the name of the device.

    Raises
    ------
    ClaimError
        The claim cannot be prepared on this node.
    """
    about = _object(found, "metadata")
    namespace, name = str(about.get("namespace", "")), str(about.get("name", ""))
    if about.get("uid") != uid:
        raise ClaimError(
            f"the claim {namespace}/{name} was replaced by another one of this name; delete the pod"
        )
    allocation = _object(_object(_object(found, "status"), "allocation"), "devices")
    results = _ours(allocation.get("results"))
    if not results:
        raise ClaimError(f"the claim {namespace}/{name} has no GPU of {DRIVER} allocated")
    allocated = tuple(_gpu(each, node, gpus) for each in results)
    try:
        host = sum(
            parse_quantity(_object(each, "consumedCapacity").get("hostMemory", "0"))
            for each in results
        )
        entitled = configuration(allocation.get("config") or (), host)
    except (ConfigurationError, ValueError) as error:
        raise ClaimError(f"the claim {namespace}/{name} cannot be prepared: {error}") from None
    return PreparedClaim(
        uid,
        namespace,
        name,
        f"{namespace}/{_owner(about) or name}",
        allocated,
        entitled.priority,
        entitled.shares,
    )


def _ours(results: Any) -> list[Mapping[str, Any]]:
    return [
        each for each in results or () if isinstance(each, dict) and each.get("driver") == DRIVER
    ]


def _gpu(result: Mapping[str, Any], node: str, gpus: Mapping[str, str]) -> AllocatedGpu:
    pool, device = str(result.get("pool", "")), str(result.get("device", ""))
    uuid = gpus.get(device)
    if pool != node or uuid is None:
        raise ClaimError(f"the node {node} has no GPU {device!r} in a pool {pool!r}")
    # A subrequest is named REQUEST/SUBREQUEST, but the kubelet expects the request.
    return AllocatedGpu(str(result.get("request", "")).partition("/")[0], pool, device, uuid)


def _owner(about: Mapping[str, Any]) -> str:
    """Return the pod for which Kubernetes made the claim; empty: a user made the claim."""
    owners = about.get("ownerReferences") or ()
    return next((str(each["name"]) for each in owners if each.get("kind") == "Pod"), "")


def _object(found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = found.get(key)
    return value if isinstance(value, dict) else {}


def by_device(uuids: list[str]) -> dict[str, str]:
    """Return GPUs by the names of their devices."""
    return {device_name(uuid): uuid for uuid in uuids}
