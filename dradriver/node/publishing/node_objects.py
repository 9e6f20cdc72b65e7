"""Watches this node in the API: its Node, and the ResourceSlices of its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.api.base.objects import Node
from dradriver.api.slices import lost_gpus, resource_slices
from dradriver.event import Event
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import NODES, RESOURCE_SLICES
from dradriver.node.discovery.gpu_slots import Published
from dradriver.node.vendors.nvidia.discovery import driver_release
from dradriver.topology.errors import TopologyError
from dradriver.topology.machine import Machine


class NodeObjects:
    """A Node and all of its slices, of any driver, as the API server has them.

    Attributes:
        name: The node's name.
        node_changed: An ``event.Event`` that occurs at each change of the Node.
        slice_changed: An ``event.Event`` that occurs at each change of a slice.
    """

    def __init__(self, client: Client, name: str) -> None:
        """Store the arguments; watch nothing yet.

        Args:
            client: The client of the API server, already entered.
            name: The node's name.
        """
        self.name = name
        self.node_changed: Event[[Change[Node]]] = Event()
        self.slice_changed: Event[[Change[ResourceSlice]]] = Event()
        self._earlier: Machine | None = None  # the machine that the node's slices last described, by any agent
        self._nodes = Reflector(
            client, NODES, Node, field_selector=f"metadata.name={name}", on_change=self.node_changed
        )
        self._slices = Reflector(
            client,
            RESOURCE_SLICES,
            ResourceSlice,
            field_selector=f"spec.nodeName={name}",
            on_change=self.slice_changed,
        )

    async def run(self) -> None:
        """Watch the node and its slices until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._slices.run())

    async def synced(self) -> None:
        """Wait until the Node and its slices were read from the API server for the first time."""
        await self._nodes.synced.wait()
        await self._slices.synced.wait()

    @property
    def node(self) -> Node | None:
        """Return the Node; None until it was read, or if it does not exist."""
        return self._nodes.store.get(("", self.name))

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the Node; empty until it was read."""
        return {} if self.node is None else self.node.metadata.labels

    @property
    def runtime(self) -> str:
        """Return the container runtime of the Node: ``containerd://2.1.4``; empty until it was read."""
        return "" if self.node is None else self.node.status.node_info.container_runtime_version

    def is_removed(self, uuid: str) -> bool:
        """Return whether the Node's annotation says that the GPU with this uuid was removed permanently."""
        text = "" if self.node is None else self.node.metadata.annotations.get(names.REMOVED_GPUS, "")
        return uuid.lower() in {part.strip().lower() for part in text.split(",")}

    def published(self) -> Published | None:
        """Return the machine and lost GPUs that this driver's slices of the node describe.

        The result is None until the slices were read from the API server.
        """
        if not self._slices.synced.is_set():
            return None
        return Published(self.earlier(), lost_gpus.read(self.ours, None))

    def released(self) -> str | None:
        """Return why all processes must close the GPU driver now; None if they need not.

        The Node's labels tell this, for example when an operator updates the driver.
        """
        return driver_release.reason(self.labels)

    @property
    def ours(self) -> list[ResourceSlice]:
        """Return this node's slices that belong to this driver."""
        return [piece for piece in self._slices.store.values() if piece.spec.driver == names.DRIVER]

    def others(self, driver: str) -> list[ResourceSlice]:
        """Return this node's slices of all drivers except ``driver``."""
        return [piece for piece in self._slices.store.values() if piece.spec.driver != driver]

    def earlier(self) -> Machine | None:
        """Return the machine that the node's slices describe, or described last; None if unknown.

        This agent or an earlier agent may have written the slices.
        """
        with contextlib.suppress(TopologyError):
            self._earlier = resource_slices.read_machine(self.ours) or self._earlier
        return self._earlier
