"""What the agent asks the API server and writes there beside its slices: claims, their statuses, its node."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.api.base.objects import Node
from dradriver.kube.client import Client, PatchKind
from dradriver.kube.resources import NODES, RESOURCE_CLAIMS

FIELD_MANAGER: Final = "gpu-topology-node"
NODE_S: Final = 5.0


class ApiServer:
    """The questions and writes of one node's agent; all raise what the client raises."""

    def __init__(self, client: Client, node: str) -> None:
        """Ask nothing yet; ``client`` is entered by then."""
        self._client = client
        self._node = node

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a claim from the API server."""
        return await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=ResourceClaim)

    async def node(self) -> Node:
        """Return this agent's Node from the API server.

        Raises:
            TimeoutError: There was no answer in five seconds: a prepare waits for it.
        """
        async with asyncio.timeout(NODE_S):
            return await self._client.get(NODES, self._node, type=Node)

    async def apply_status(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Write the agent's part of a claim's status to the API server, by server-side apply."""
        await self._client.patch(
            RESOURCE_CLAIMS,
            name,
            body,
            kind=PatchKind.APPLY,
            namespace=namespace,
            subresource="status",
            field_manager=FIELD_MANAGER,
        )
