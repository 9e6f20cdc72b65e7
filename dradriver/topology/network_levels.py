"""The levels of a cluster's network, and where nodes stand in them by the keys of their labels.

There are no core names for them (KEP-4962 is closed), so each source of labels has a family of keys here; a cluster
with others gives its keys, nearest first. Sources: the documents of topograph, AWS, Google Cloud, OCI; for CoreWeave
issues and charts.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from dradriver.topology.machine import Machine

# Levels of the network by name, nearest first, in a cluster that says nothing of its own; below them is the node, above
# them the cluster.
FABRIC = "fabric"
SUB_DOMAIN = "sub-domain"  # a rack of a fabric that has several; only topograph labels it
LEVELS = (FABRIC, "leaf", "spine", "zone")
NODE, CLUSTER = "node", "cluster"

Domain: TypeAlias = tuple[str, ...]
"""A part of the network by its name, after the names of the parts around it, the widest first."""

ZONE: Final = "topology.kubernetes.io/zone"
CLIQUE: Final = "nvidia.com/gpu.clique"  # <ClusterUUID>.<CliqueID>, of multi-node NVLink only
ENOUGH: Final = 0.9  # of the nodes must have a family's nearest key

_TIER: Final = "fabric.topograph.run/tier-"

# By level the key of its label, nearest first. Those of topograph go on without an end: see ``_wider_tiers``.
FAMILIES: Final[tuple[Mapping[str, str], ...]] = (
    {
        "leaf": f"{_TIER}0",
        "spine": f"{_TIER}1",
        "core": f"{_TIER}2",
    },
    {
        "leaf": "network.topology.nvidia.com/leaf",
        "spine": "network.topology.nvidia.com/spine",
        "core": "network.topology.nvidia.com/core",
    },
    {
        "leaf": "topology.k8s.aws/network-node-layer-3",
        "spine": "topology.k8s.aws/network-node-layer-2",
        "core": "topology.k8s.aws/network-node-layer-1",
    },
    {
        "leaf": "cloud.google.com/gce-topology-subblock",
        "spine": "cloud.google.com/gce-topology-block",
    },
    {
        "leaf": "oci.oraclecloud.com/host.rack_id",
        "spine": "oci.oraclecloud.com/host.network_block_id",
    },
    {
        "leaf": "backend.coreweave.cloud/leafgroup",
        "spine": "backend.coreweave.cloud/superpod",
        "core": "backend.coreweave.cloud/fabric",
    },
    {
        "leaf": "ib.coreweave.cloud/leafgroup",
        "spine": "ib.coreweave.cloud/superpod",
        "core": "ib.coreweave.cloud/fabric",
    },
)

# Multi-node NVLink: one name wherever its nodes stand, so not within the levels around it.
FABRICS: Final = (
    CLIQUE,
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "topology.k8s.aws/ultraserver-id",
    "ds.coreweave.com/nvlink.domain",
)
_SUB_DOMAIN_KEY: Final = "accelerator.topograph.run/sub-domain"
_OF_NVLINK: Final = frozenset((*FABRICS, _SUB_DOMAIN_KEY))

_KNOWN: Final = {
    **{key: level for family in FAMILIES for level, key in family.items()},
    **dict.fromkeys(FABRICS, FABRIC),
    _SUB_DOMAIN_KEY: SUB_DOMAIN,
    ZONE: "zone",
    "topology.kubernetes.io/region": "region",
}


class Location(msgspec.Struct, frozen=True):
    """Where a server stands in the network.

    Attributes:
        domains: Its part of the network at each level of its cluster, nearest first; None where it is in none.
        gbps: Bandwidth of the server's network, one direction, GB/s; 0 where it is unknown.
    """

    domains: tuple[Domain | None, ...] = ()
    gbps: float = 0.0


def location(*, zone: str = "", spine: str = "", leaf: str = "", fabric: str = "", gbps: float = 0.0) -> Location:
    """Return where a server stands in the network of a cluster with the usual ``LEVELS``; an unknown name is empty.

    A leaf's name counts within its spine and zone, and a spine's within its zone: racks of two zones may both be called
    ``rack1``.

    Args:
        zone: Zone or site.
        spine: Spine switch or block of leaf switches.
        leaf: Leaf switch or rack.
        fabric: ``Machine.fabric``: a multi-node NVLink fabric, wherever it is. Its servers are one rack, so they are
            near each other; but containers on two of them reach each other over NVLink only with an IMEX channel, which
            nothing here gives them: between them is the network.
        gbps: As ``Location.gbps``.
    """
    every = (fabric,), (zone, spine, leaf), (zone, spine), (zone,)
    return Location(domains=tuple(names if names[-1] else None for names in every), gbps=gbps)


class Levels(msgspec.Struct, frozen=True):
    """The levels of a cluster's network, nearest first.

    Attributes:
        names: What they are called.
        keys: The label of each.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]

    def location(self, labels: Mapping[str, str], *, fabric: str = "", gbps: float = 0.0) -> Location:
        """Return where a node stands in the network at each of these levels, by its labels.

        A domain nests in those around it: a leaf of one name under two spines is two leaves. A node is in no domain of
        a level whose label it lacks. Worked example, with levels leaf, spine and zone: the labels ``leaf: l1`` and
        ``zone: z`` give ``(("z", "", "l1"), None, ("z",))``.

        Args:
            labels: The node's.
            fabric: ``Machine.fabric``, where no label names the NVLink fabric.
            gbps: Bandwidth of the node's network.
        """
        values = [labels.get(key, "") for key in self.keys]
        values = [value or (fabric if key in FABRICS else "") for key, value in zip(self.keys, values, strict=True)]
        fabric = next((value for key, value in zip(self.keys, values, strict=True) if key in FABRICS), "")
        domains: list[Domain | None] = []

        # A domain's name has the values of all wider levels first. A fabric nests in none: it may reach over several.
        # So does a sub-domain, but in its fabric: two fabrics may have a sub-domain of one name.
        for at, value in enumerate(values):
            key = self.keys[at]
            if key == _SUB_DOMAIN_KEY:
                domains.append((f"{fabric}/{value}",) if value and fabric else None)
                continue
            wider_values = () if key in FABRICS else tuple(
                each for key, each in zip(self.keys[:at:-1], values[:at:-1], strict=True) if key not in _OF_NVLINK
            )  # fmt: skip
            domains.append((*wider_values, value) if value else None)
        return Location(domains=tuple(domains), gbps=gbps)


def levels_of(nodes: Collection[Mapping[str, str]], configured: Sequence[str] = (), *, fabrics: bool = False) -> Levels:
    """Return the network levels of a cluster by its nodes' labels.

    Without configured keys they are an NVLink fabric, the first of ``FAMILIES`` whose nearest key nine nodes of ten
    have, and the zone. If some node has topograph's label of a sub-domain, that is a level below the fabric. A key that
    is known has the family's name for its level (``leaf``), another what follows its last slash: ``example.com/rack``
    is ``rack``.

    Args:
        nodes: The labels of each node with GPUs.
        configured: Label keys, nearest first.
        fabrics: Whether some machine is in an NVLink fabric. A fabric is then a level below those that are configured
            without one: it joins GPUs closer than any switch of the network does.
    """
    # The label key of the NVLink fabric that some node has.
    fabric = next((key for key in FABRICS if any(labels.get(key) for labels in nodes)), "")
    sub_domain = (_SUB_DOMAIN_KEY,) if any(labels.get(_SUB_DOMAIN_KEY) for labels in nodes) else ()
    if configured:
        keys = tuple(dict.fromkeys(configured))
        if (fabric or fabrics) and not any(key in FABRICS for key in keys):
            keys = tuple(dict.fromkeys((*sub_domain, fabric or CLIQUE, *keys)))
        return Levels(_names(keys), keys)

    family = next((family for family in FAMILIES if found(next(iter(family.values())), nodes)), {})
    wider_tiers = _wider_tiers(nodes) if family is FAMILIES[0] else ()
    keys = (*sub_domain, fabric or CLIQUE, *family.values(), *wider_tiers, ZONE)
    return Levels(_names(keys), keys)


def _wider_tiers(nodes: Collection[Mapping[str, str]]) -> tuple[str, ...]:
    """Return the label keys of topograph's tiers beyond the third, as far as nine nodes of ten have each."""
    keys = (f"{_TIER}{number}" for number in itertools.count(len(FAMILIES[0])))
    return tuple(itertools.takewhile(lambda key: found(key, nodes), keys))


def network_gbps(machine: Machine) -> float:
    """Return what a node's network cards carry together, one direction, GB/s: of RDMA if it has such, else of all.

    A virtual function is its card's, a member its bond's. Where the rate of some is not known, it is at least so much;
    0 where that of none is. Worked example: a DGX H100 has eight InfiniBand cards of 50 for its GPUs: 400.
    """
    bonded = {member for nic in machine.nics for member in nic.members}
    cards = [nic for nic in machine.nics if not nic.parent and nic.name not in bonded]
    rdma = [nic for nic in cards if nic.kind not in ("", "ethernet")]
    return sum(nic.gbps for nic in rdma or cards)


def found(key: str, nodes: Collection[Mapping[str, str]]) -> bool:
    """Return whether nine nodes of ten have a network level's label."""
    return bool(nodes) and sum(bool(labels.get(key)) for labels in nodes) >= ENOUGH * len(nodes)


def _names(keys: Iterable[str]) -> tuple[str, ...]:
    """Return a name of its own for each level; the whole key where a shorter name is taken, or NVLink's."""
    names: list[str] = []
    for key in keys:
        name = _KNOWN.get(key) or key.rpartition("/")[2]
        is_nvlinks = name in (FABRIC, SUB_DOMAIN)
        taken = name in (*names, NODE, CLUSTER) or (is_nvlinks and key not in _OF_NVLINK)
        names.append(key if taken else name)
    return tuple(names)
