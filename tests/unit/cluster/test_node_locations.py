from __future__ import annotations

import msgspec

from dradriver.allocator import Fleet
from dradriver.cluster.gpus.node_locations import locate
from dradriver.topology import profiles
from dradriver.topology.machine import Nic
from dradriver.topology.network_levels import ZONE

LEAF = "fabric.topograph.run/tier-0"


def test_nodes_stand_where_their_labels_and_machines_say() -> None:
    machine = profiles.load("dgx-h100")
    joined = tuple(msgspec.structs.replace(gpu, fabric="u.1") for gpu in machine.gpus)
    fast = msgspec.structs.replace(machine, gpus=joined, nics=(Nic(name="ib0", kind="infiniband", gbps=50.0),))
    fleet = Fleet()
    for name in ("a", "b", "c"):
        fleet.set_node(name, machine, range(8))
    labels = {name: {LEAF: "l1", ZONE: "z"} for name in ("a", "b", "d")}
    locate(fleet, labels, {"a": fast})
    assert list(fleet.levels) == ["fabric", "zone"], "the leaf is known of two nodes of three"
    locate(fleet, labels | {"c": {LEAF: "l2"}}, {"a": fast})
    assert list(fleet.levels) == ["fabric", "leaf", "spine", "core", "zone"]
    assert fleet.location("a").domains == (("u.1",), ("z", "", "", "l1"), None, None, ("z",))
    assert (fleet.location("a").gbps, fleet.location("b").gbps) == (50, 0)
    assert fleet.location("c").domains == (None, ("", "", "", "l2"), None, None, None)
    locate(fleet, labels, {}, [ZONE])
    assert list(fleet.levels) == ["zone"]
    assert [fleet.location(name).domains for name in ("b", "c")] == [(("z",),), (None,)]
