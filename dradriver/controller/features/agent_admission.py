"""Writes an Event on the node agents' DaemonSet if Pod Security forbids them in their namespace.

``registry`` runs it while this replica leads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dradriver.api.base import pod_security
from dradriver.api.base.objects import Metadata, MetadataOnly
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import DAEMON_SETS, NAMESPACES

logger = logging.getLogger(__name__)

PERIOD_S: Final = 600.0  # Events are deleted after an hour

Record = Callable[[Metadata, str], Awaitable[None]]
"""Writes an Event about a DaemonSet: its metadata, the message."""


def recorder(client: Client, *, instance: str) -> Record:
    """Return the function that writes an Event about a DaemonSet.

    ``instance`` is the name of this replica, which the Event shows.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(about: Metadata, message: str) -> None:
        await events.record(
            about=Reference(DAEMON_SETS.kind, about.namespace, about.name, about.uid, DAEMON_SETS.api_version),
            type="Warning",
            reason="PodSecurityForbidsAgent",
            message=message,
            action="Checking",
        )

    return record


class AgentAdmission:
    """Checks every ten minutes, while this replica leads, whether Pod Security forbids the node agents."""

    def __init__(self, client: Client, *, namespace: str, daemon_set: str, record: Record | None = None) -> None:
        """Make a check that does nothing until ``run`` or ``look`` is called.

        Args:
            client: The API server.
            namespace: The driver's namespace.
            daemon_set: The name of the node agents' DaemonSet in that namespace.
            record: Writes an Event about the DaemonSet; None for no Event.
        """
        self._client, self._record = client, record
        self._namespace, self._daemon_set = namespace, daemon_set

    async def run(self) -> None:
        """Check the namespace every ten minutes until cancelled."""
        while True:
            try:
                await self.look()
            except DriverError as error:
                logger.warning("The controller cannot check whether Pod Security forbids the node agents: %s", error)
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Write an Event if the namespace forbids the node agents.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        namespace = await self._client.get(NAMESPACES, self._namespace, type=MetadataOnly)
        level = pod_security.forbidding_level(namespace.metadata.labels)
        if not level:
            return
        problem = pod_security.problem(self._namespace, level)
        message = f"Node agents cannot start: {problem}. Run: {pod_security.cure(self._namespace)}"
        logger.warning("%s", message)
        if self._record is not None:
            daemon_set = await self._client.get(
                DAEMON_SETS, self._daemon_set, namespace=self._namespace, type=MetadataOnly
            )
            await self._record(daemon_set.metadata, message)
