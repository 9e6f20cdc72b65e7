"""GPUs that are kept for some who wait: whoever has some of them keeps it, and nobody else is given any."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from dradriver.api.claims.pins import Device
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.gpus.remaining import Remaining
from dradriver.event import Event


class Reserved:
    """Whole GPUs by node, each with whom it is for.

    Attributes:
        changed: A reserved GPU was allocated, or became free.
        by_node: The devices of each node that has reserved GPUs, each with whom it is for.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.changed: Event[[]] = Event()
        self.by_node: dict[str, dict[str, str]] = {}

    def nodes(self, whose: Collection[str]) -> set[str]:
        """Return the nodes that have GPUs reserved for one of these workloads."""
        return {node for node, reserved in self.by_node.items() if not set(whose).isdisjoint(reserved.values())}

    def keep(self, gpus: Mapping[Device, str]) -> set[str]:
        """Reserve these GPUs, and no others. Returns the nodes whose reserved GPUs changed."""
        before, self.by_node = self.by_node, {}
        for (node, device), who in gpus.items():
            self.by_node.setdefault(node, {})[device] = who
        return {node for node in before.keys() | self.by_node.keys() if before.get(node) != self.by_node.get(node)}

    def whose(self, gpu: Device) -> str:
        """Return the workload that a GPU is reserved for; empty for none."""
        return self.by_node.get(gpu[0], {}).get(gpu[1], "")

    def seen(self, devices: Collection[Device]) -> None:
        """Note that the holders of these devices, which may be reserved, changed."""
        if any(device in self.by_node.get(node, ()) for node, device in devices):
            self.changed()

    def left(
        self, node: str, pool: Pool, left: Remaining, *, whose: Collection[str] = (), held: Collection[Device] = ()
    ) -> Remaining:
        """Return what is left of a node with reserved GPUs, without those that are reserved for others.

        Args:
            node: The node, one of ``by_node``.
            pool: Its pool.
            left: What is left of it.
            whose: Who asks: what is kept for one of these counts.
            held: Devices that count whoever they are kept for, because whoever asks has them.
        """
        closed = {
            device for device, who in self.by_node[node].items() if who not in whose and (node, device) not in held
        }
        return left.among({number for number, (device, _) in pool.devices.items() if device not in closed})
