"""The node agent's requests to the API server about claims, their statuses and its Node; not about slices."""

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
    """Sends the requests of this node's agent to the API server.

    All methods raise the errors of the client, for example ``ApiError`` if the server refuses a request.
    """

    def __init__(self, client: Client, node: str) -> None:
        """Store the arguments; send no request yet.

        Args:
            client: The client of the API server. The caller enters it before the first request.
            node: This node's name.
        """
        self._client = client
        self._node = node

    async def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Return a claim from the API server."""
        return await self._client.get(RESOURCE_CLAIMS, name, namespace=namespace, type=ResourceClaim)

    async def node(self) -> Node:
        """Return this agent's Node from the API server.

        Raises:
            TimeoutError: The API server did not answer within five seconds. The limit is short because the preparation
                of a claim waits for the answer.
        """
        async with asyncio.timeout(NODE_S):
            return await self._client.get(NODES, self._node, type=Node)

    async def apply_status(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Write the agent's own fields of a claim's status to the API server.

        By server-side apply, fields of other programs stay. ``body`` is the claim with these fields.
        """
        await self._client.patch(
            RESOURCE_CLAIMS,
            name,
            body,
            kind=PatchKind.APPLY,
            namespace=namespace,
            subresource="status",
            field_manager=FIELD_MANAGER,
        )
