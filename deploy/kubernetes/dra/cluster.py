# SPDX-License-Identifier: BSD-3-Clause
"""The Kubernetes API, as far as the driver uses it."""

from __future__ import annotations

from typing import Any

import httpx2
import lightkube
from lightkube.generic_resource import create_global_resource, create_namespaced_resource

from ..node import NodeError

_GROUP = "resource.k8s.io"
_SLICE: Any = create_global_resource(_GROUP, "v1", "ResourceSlice", "resourceslices")
_CLAIM: Any = create_namespaced_resource(_GROUP, "v1", "ResourceClaim", "resourceclaims")
_NODE: Any = create_global_resource("", "v1", "Node", "nodes")

#: Seconds that an answer may take.
PATIENCE = 5.0


class ClusterError(Exception):
    """The API refused a request, or did not answer correctly. The message is one sentence."""


class Cluster:
    """A client of the API, with the service account of the pod, or with the file of ``KUBECONFIG``.

    Raises
    ------
    NodeError
        There is neither.
    """

    def __init__(self) -> None:
        try:
            self._client: Any = lightkube.AsyncClient(timeout=httpx2.Timeout(PATIENCE))
        except (lightkube.ConfigError, OSError, KeyError) as error:
            raise NodeError(
                f"there is no access to the Kubernetes API ({error}); run the driver in a pod with a service account, "
                "or set KUBECONFIG"
            ) from None

    async def close(self) -> None:
        """End the connections."""
        await self._client.aclose()

    async def slices(self, driver: str, node: str) -> list[dict[str, Any]]:
        """Return a driver's slices of a node."""
        fields = {"spec.driver": driver, "spec.nodeName": node}

        async def listed() -> list[dict[str, Any]]:
            return [dict(each) async for each in self._client.list(_SLICE, fields=fields)]

        found: list[dict[str, Any]] = await self._ask(listed())
        return found

    async def create_slice(self, made: dict[str, Any]) -> dict[str, Any]:
        """Add a slice, and return it as the API stores it."""
        return dict(await self._ask(self._client.create(_SLICE(made))))

    async def replace_slice(self, changed: dict[str, Any]) -> dict[str, Any]:
        """Change a slice, unless another program has changed it since it was read, and return it as it is stored."""
        return dict(await self._ask(self._client.replace(_SLICE(changed))))

    async def delete_slice(self, name: str) -> None:
        """Delete a slice."""
        await self._ask(self._client.delete(_SLICE, name))

    async def node_uid(self, name: str) -> str:
        """Return the uid of a Node."""
        found = await self._ask(self._client.get(_NODE, name))
        return str(_dictionary(dict(found), "metadata").get("uid", ""))

    async def claim(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a ResourceClaim."""
        return dict(await self._ask(self._client.get(_CLAIM, name, namespace=namespace)))

    async def _ask(self, request: Any) -> Any:
        try:
            return await request
        except lightkube.ApiError as error:
            raise ClusterError(f"the Kubernetes API refused: {error}") from None
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ClusterError(f"the Kubernetes API does not respond ({why})") from None
        except (lightkube.ConfigError, ValueError, TypeError, AttributeError, KeyError) as error:
            # The answer is not what the client expects, for example of a proxy.
            raise ClusterError(f"the Kubernetes API's answer is not valid ({error!r})") from None


def _dictionary(found: dict[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key)
    return value if isinstance(value, dict) else {}
