"""Which server is below this node, where it is a virtual machine: told by the policies file for types of instances."""

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
    """The server below, as the policies in force name it."""

    def __init__(self, servers: Callable[[], Mapping[str, str]], get_node: Callable[[], Awaitable[Node]]) -> None:
        """Ask nothing yet.

        Args:
            servers: Gives the profile of the server for each instance type, as the node's label names it.
            get_node: Reads this node from the API server; asked once, and only where there are servers.
        """
        self._servers = servers
        self._get_node = get_node
        self._kind: str | None = None
        self._said: Mapping[str, str] | None = None
        self._read: dict[str, Machine] = {}

    async def find(self) -> Machine | None:
        """Return the server below this virtual machine, None if none is named for its instance type.

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
                logger.warning("no server is named below instance type %r; nccl.servers has %s", self._kind[:64], known)
            return None
        if name not in self._read:
            from dradriver.topology import profiles  # here, for most nodes are no virtual machines

            self._read[name] = profiles.load(name)
        return self._read[name]
