"""GPUs that are reserved for waiting workloads, so that other workloads do not get them.

A claim that uses such a GPU already keeps the GPU.

A *pool* is all ResourceSlices of a node, and has the node's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dradriver.api.claims.pins import Device
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.gpus.remaining import Remaining
from dradriver.event import Event


class Reserved:
    """The reserved whole GPUs by node, each with the workload that it is reserved for.

    Attributes:
        changed: Is called when a reserved GPU was allocated or became free.
        by_node: The workload of each reserved device, by node and device name.
    """

    def __init__(self) -> None:
        """Make a collection without reserved GPUs."""
        self.changed: Event[[]] = Event()
        self.by_node: dict[str, dict[str, str]] = {}

    def nodes(self, whose: Collection[str]) -> set[str]:
        """Return the nodes that have GPUs reserved for one of the workloads in ``whose``."""
        return {node for node, reserved in self.by_node.items() if not set(whose).isdisjoint(reserved.values())}

    def keep(self, gpus: Mapping[Device, str]) -> set[str]:
        """Replace all reservations. ``gpus`` has the waiting workload of each reserved GPU.

        Returns:
            The nodes whose reservations changed.
        """
        before, self.by_node = self.by_node, {}
        for (node, device), who in gpus.items():
            self.by_node.setdefault(node, {})[device] = who
        return {node for node in before.keys() | self.by_node.keys() if before.get(node) != self.by_node.get(node)}

    def whose(self, gpu: Device) -> str:
        """Return the workload that a GPU is reserved for; empty for none."""
        return self.by_node.get(gpu[0], {}).get(gpu[1], "")

    def seen(self, devices: Collection[Device]) -> None:
        """Call ``changed`` if one of these devices is reserved for a waiting workload.

        The caller passes the devices whose claims have just changed: a reserved device was allocated or became free.
        """
        if any(device in self.by_node.get(node, ()) for node, device in devices):
            self.changed()

    def left(
        self, node: str, pool: Pool, left: Remaining, *, whose: Collection[str] = (), held: Collection[Device] = ()
    ) -> Remaining:
        """Return what is left of a node without the GPUs that are reserved for other workloads.

        Args:
            node: The node, a key of ``by_node``.
            pool: Its pool.
            left: What is left of its GPUs if reservations are ignored.
            whose: The waiting workloads that ask. GPUs reserved for them count as left.
            held: Devices that count as left even if they are reserved for others, because the workloads that ask use
                them.
        """
        closed = {
            device for device, who in self.by_node[node].items() if who not in whose and (node, device) not in held
        }
        return left.among({number for number, (device, _) in pool.devices.items() if device not in closed})
