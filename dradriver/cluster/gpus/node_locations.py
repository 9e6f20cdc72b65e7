"""Sets the location of each node in the network, in the allocator's arrays.

The location comes from the node's labels and from the network cards of its machine.

A *fleet* is the allocator's arrays of the nodes and their free GPUs. A *level* of the network is, for example, the rack
or the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dradriver.allocator import Fleet
from dradriver.topology.machine import Machine
from dradriver.topology.network_levels import CLUSTER, levels_of, network_gbps


def locate(
    fleet: Fleet,
    labels: Mapping[str, Mapping[str, str]],
    machines: Mapping[str, Machine],
    configured: Sequence[str] = (),
    gbps_of: Mapping[str, float] | None = None,
) -> None:
    """Set the network's levels, and the location of each node, in the allocator's fleet.

    Levels are, for example, rack and block.

    Args:
        fleet: The allocator's fleet, which is changed.
        labels: The labels of each node that the API server knows.
        machines: The machine of each node, for its NVLink fabric and the rate of its network cards.
        configured: Label keys of the levels, nearest first. If empty, well-known label keys are tried.
        gbps_of: Rate per node and direction of a level in GB/s, by label key. The key ``cluster`` is the level above
            all others.
    """
    labels_of_nodes = {name: labels.get(name, {}) for name in fleet.nodes}
    has_fabrics = any(machine.fabric for machine in machines.values())
    levels = levels_of(labels_of_nodes.values(), configured, fabrics=has_fabrics)

    key_of_level = {**dict(zip(levels.names, levels.keys, strict=True)), CLUSTER: CLUSTER}
    gbps_of = gbps_of or {}
    fleet.set_levels(levels.names, {level: gbps_of[key] for level, key in key_of_level.items() if key in gbps_of})

    for name, node_labels in labels_of_nodes.items():
        machine = machines.get(name)
        fabric, gbps = ("", 0.0) if machine is None else (machine.fabric, network_gbps(machine))
        fleet.set_location(name, levels.location(node_labels, fabric=fabric, gbps=gbps))
