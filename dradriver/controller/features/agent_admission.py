"""Says by an Event on the node agents' DaemonSet that Pod Security forbids them in its namespace."""

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
    """Return what writes an Event about a DaemonSet; ``instance`` is the replica that says so."""
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
    """Looks every ten minutes, while this replica leads, whether Pod Security forbids the node agents."""

    def __init__(self, client: Client, *, namespace: str, daemon_set: str, record: Record | None = None) -> None:
        """Look at nothing yet.

        Args:
            client: The API server.
            namespace: The driver's.
            daemon_set: The name of the node agents' DaemonSet there.
            record: Writes an Event about it; None for no Event.
        """
        self._client, self._record = client, record
        self._namespace, self._daemon_set = namespace, daemon_set

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                await self.look()
            except DriverError as error:
                logger.warning("whether Pod Security forbids the node agents is not known: %s", error)
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
        message = f"{pod_security.problem(self._namespace, level)}. Run: {pod_security.cure(self._namespace)}"
        logger.warning("%s", message)
        if self._record is not None:
            daemon_set = await self._client.get(
                DAEMON_SETS, self._daemon_set, namespace=self._namespace, type=MetadataOnly
            )
            await self._record(daemon_set.metadata, message)
