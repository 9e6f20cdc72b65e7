"""The controller: reflectors that keep the picture of the cluster, and the worker that acts on it while it leads."""

from __future__ import annotations

import asyncio
from typing import Any

from dradriver.api import names
from dradriver.api.objects import Node, Pod, ResourceSlice
from dradriver.api.pins import Claim
from dradriver.controller.worker import Worker
from dradriver.kube.client import Client
from dradriver.kube.reflector import Reflector
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES


class Controller:
    """Reflectors run in every replica, so that a standby takes over with a picture that is up to date."""

    def __init__(self, client: Client, *, patience_s: float = 5.0, grace_s: float = 10.0) -> None:
        """Make a controller that knows nothing yet; see ``Worker`` for the times."""
        self.worker = Worker(client, patience_s=patience_s, grace_s=grace_s)
        cluster = self.worker.cluster
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(client, PODS, Pod, on_change=cluster.pod_changed),
            Reflector(client, RESOURCE_CLAIMS, Claim, on_change=cluster.claim_changed),
            Reflector(client, NODES, Node, on_change=cluster.node_changed),
            Reflector(
                client,
                RESOURCE_SLICES,
                ResourceSlice,
                field_selector=f"spec.driver={names.DRIVER}",
                on_change=cluster.slice_changed,
            ),
        )

    def ready(self) -> bool:
        """Return whether the picture of the cluster is whole."""
        return all(reflector.synced.is_set() for reflector in self._reflectors)

    async def synced(self) -> None:
        """Wait until the picture of the cluster is whole."""
        for reflector in self._reflectors:
            await reflector.synced.wait()

    async def watch(self) -> None:
        """Keep the picture up to date until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())

    async def work(self) -> None:
        """Act on the picture until cancelled. One replica at a time should; two do no harm."""
        await self.synced()
        await self.worker.run()
