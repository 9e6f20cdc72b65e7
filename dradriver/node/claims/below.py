"""Which server is below this node, where it is a virtual machine: told by an admin for each type of instance."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from dradriver.api.objects import Node
from dradriver.errors import DriverError
from dradriver.node.errors import NotYetError
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)

INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"


def _read(servers: Mapping[str, str]) -> dict[str, Machine]:
    from dradriver.topology.load import read_machine  # here, for most nodes are no virtual machines

    return {kind: read_machine(source) for kind, source in servers.items()}


class Below:
    """The server below, found once."""

    def __init__(self, servers: Mapping[str, str], get_node: Callable[[], Awaitable[Node]]) -> None:
        """Read the servers.

        Args:
            servers: Profile or file of the server for each instance type, as the node's label names it.
            get_node: Reads this node from the API server.

        Raises:
            TopologyError: A profile or file cannot be read.
        """
        self._servers = _read(servers) if servers else {}
        self._get_node = get_node
        self._known = not servers
        self._found: Machine | None = None

    async def find(self) -> Machine | None:
        """Return the server, None where none is named for this node's instance type.

        Raises:
            NotYetError: The node cannot be read now.
        """
        if not self._known:
            try:
                kind = (await self._get_node()).metadata.labels.get(INSTANCE_TYPE, "")
            except (DriverError, TimeoutError) as error:
                raise NotYetError(f"this node's instance type cannot be read: {str(error) or 'no answer'}") from error
            self._known, self._found = True, self._servers.get(kind)
            if self._found is None:
                known = ", ".join(self._servers)
                logger.warning("no server is named below instance type %r; nccl.servers has %s", kind[:64], known)
        return self._found
