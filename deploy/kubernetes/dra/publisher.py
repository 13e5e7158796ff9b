# SPDX-License-Identifier: BSD-3-Clause
"""Writes the ResourceSlices of a node, whenever they differ from what the node has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from . import slices
from .cluster import Cluster
from .configuration import DRIVER

log = logging.getLogger(__name__)

#: The longest name of an object, without the number of the slice.
_LONGEST = 245


class Publisher:
    """Publishes devices.

    Parameters
    ----------
    cluster
        The Kubernetes API.
    node
        The name of the Node.
    """

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._cluster = cluster
        self._node = node
        #: By name: the last specification that was written, and what the API stored. It drops unknown fields.
        self._stored: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    async def publish(self, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Write the slices if they differ; return whether they did.

        Raises
        ------
        ClusterError
            The API does not accept them.
        """
        wanted = slices.pool(self._node, devices)
        found = sorted(await self._cluster.slices(DRIVER, self._node), key=lambda each: _name(each))
        generations = {_generation(each) for each in found}
        same = len(wanted) == len(found) and all(
            slices.is_same(spec, self._as_wanted(each))
            for spec, each in zip(wanted, found, strict=True)
        )
        if same and len(generations) <= 1:
            return False
        generation = max(generations, default=0) + 1
        for spec in wanted:
            spec["pool"]["generation"] = generation
        await self._write(wanted, found)
        log.info("published %d devices (generation %d)", len(devices), generation)
        return True

    def _as_wanted(self, found: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the specification that was written, if the API still has what it made of this."""
        spec = found.get("spec") or {}
        wanted, stored = self._stored.get(_name(found), ({}, {}))
        return wanted if wanted and slices.is_same(stored, spec) else spec

    def _note(self, name: str, wanted: dict[str, Any], found: Mapping[str, Any]) -> None:
        stored = found.get("spec") or {}
        if not slices.is_same(wanted, stored):
            log.warning(
                "the Kubernetes API did not store all fields of the ResourceSlice %s; use Kubernetes 1.36, or set the "
                "feature gates DRAConsumableCapacity and DRADeviceTaints",
                name,
            )
        self._stored[name] = wanted, stored

    async def _write(
        self, wanted: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]
    ) -> None:
        for spec, before in zip(wanted, found, strict=False):
            _keep_times(spec, before.get("spec") or {})
            self._note(
                _name(before), spec, await self._cluster.replace_slice({**before, "spec": spec})
            )
        names = {_name(each) for each in found}
        free = (
            name
            for number in range(len(wanted) + len(found))
            if (name := f"{DRIVER}-{self._node}"[:_LONGEST] + f"-{number}") not in names
        )
        for spec in wanted[len(found) :]:
            made = await self._made(next(free), spec)
            self._note(_name(made), spec, await self._cluster.create_slice(made))
        for each in found[len(wanted) :]:
            await self._cluster.delete_slice(_name(each))

    async def _made(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": await self._cluster.node_uid(self._node),
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": spec,
        }


def _keep_times(spec: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Copy the times of taints that a device already has, since the API would set the present time."""
    times = {
        (each.get("name"), taint.get("key")): taint["timeAdded"]
        for each in before.get("devices") or ()
        for taint in each.get("taints") or ()
        if "timeAdded" in taint
    }
    for each in spec["devices"]:
        for taint in each.get("taints", ()):
            if time := times.get((each["name"], taint["key"])):
                taint["timeAdded"] = time


def _name(found: Mapping[str, Any]) -> str:
    return str((found.get("metadata") or {}).get("name", ""))


def _generation(found: Mapping[str, Any]) -> int:
    return int(((found.get("spec") or {}).get("pool") or {}).get("generation", 0))
