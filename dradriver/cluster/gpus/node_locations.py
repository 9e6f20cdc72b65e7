"""The location of nodes in the network, told to the allocator: from their labels, and their machines' cards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dradriver.allocator import Fleet
from dradriver.topology.gpu_distances import CLUSTER
from dradriver.topology.machine import Machine
from dradriver.topology.network_levels import levels_of, network_gbps


def locate(
    fleet: Fleet,
    labels: Mapping[str, Mapping[str, str]],
    machines: Mapping[str, Machine],
    configured: Sequence[str] = (),
    gbps_of: Mapping[str, float] | None = None,
) -> None:
    """Tell the allocator the network's levels, and the location of every node of the fleet.

    Args:
        fleet: The allocator's nodes.
        labels: Of each node that the API server knows.
        machines: Of each node, for its NVLink fabric and the rate of its network cards.
        configured: Label keys of levels, nearest first; those that are known are looked for where none are given.
        gbps_of: What levels carry for each node, one direction, GB/s, by their label keys; ``cluster`` for all beyond.
    """
    of_nodes = {name: labels.get(name, {}) for name in fleet.nodes}
    fabrics = any(machine.fabric for machine in machines.values())
    levels = levels_of(of_nodes.values(), configured, fabrics=fabrics)
    keys = {**dict(zip(levels.names, levels.keys, strict=True)), CLUSTER: CLUSTER}
    known = gbps_of or {}
    fleet.set_levels(levels.names, {name: known[key] for name, key in keys.items() if key in known})
    for name, own in of_nodes.items():
        machine = machines.get(name)
        fabric, gbps = ("", 0.0) if machine is None else (machine.fabric, network_gbps(machine))
        fleet.set_location(name, levels.location(own, fabric=fabric, gbps=gbps))
