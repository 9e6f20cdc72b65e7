"""Finds the physical server below a virtual machine, by the policies file.

The policies file names a profile (a machine's description) for each instance type.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dradriver.api.base.objects import Node
from dradriver.errors import DriverError
from dradriver.node.errors import NotYetError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


class HostServer:
    """Finds the physical server below this node by the policies in force."""

    def __init__(self, servers: Callable[[], Mapping[str, str]], get_node: Callable[[], Awaitable[Node]]) -> None:
        """Store the arguments; read nothing yet.

        Args:
            servers: Returns the profile of the physical server for each instance type (the value of the node's label).
            get_node: Reads this node from the API server; called once, and only if ``servers`` names any server.
        """
        self._servers = servers
        self._get_node = get_node
        self._kind: str | None = None
        self._said: Mapping[str, str] | None = None
        self._read: dict[str, Machine] = {}

    async def find(self) -> Machine | None:
        """Return the physical server below this virtual machine; None if the policies name none for its instance type.

        Raises:
            NotYetError: The node cannot be read now.
        """
        servers = self._servers()
        if not servers:
            return None
        if self._kind is None:
            try:
                self._kind = (await self._get_node()).metadata.labels.get(INSTANCE_TYPE, "")
            except (DriverError, TimeoutError) as error:
                raise NotYetError(f"this node's instance type cannot be read: {str(error) or 'no answer'}") from error
        name = servers.get(self._kind)
        if name is None:
            if servers != self._said:
                self._said = servers
                known = ", ".join(servers)
                logger.warning(
                    "nccl.servers in the policies file has no entry for the instance type %r. It has %s.",
                    self._kind[:64],
                    known,
                )
            return None
        if name not in self._read:
            from dradriver.topology import profiles  # here, for most nodes are no virtual machines

            self._read[name] = profiles.load(name)
        return self._read[name]
