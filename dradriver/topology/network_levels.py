"""The levels of a cluster's network, and the location of nodes in them, by their labels.

Kubernetes has no standard labels for network levels (KEP-4962 is closed). So this module has a family of label keys for
each source of labels. An administrator can configure the keys of other labels, nearest level first.

The keys of topograph, AWS, Google Cloud and OCI are from their documents. CoreWeave's are from issues and Helm charts.

A family is the label keys of one source, nearest level first. A domain is one part of the network at a level, such as a
rack.
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
    """The location of a server in the network.

    Attributes:
        domains: Its domain at each network level of its cluster, nearest level first. A domain is one part of the
            network at a level, such as a rack. An entry is None if the server is in no domain of that level.
        gbps: Bandwidth of the server's network, one direction, GB/s; 0 if it is unknown.
    """

    domains: tuple[Domain | None, ...] = ()
    gbps: float = 0.0


def location(*, zone: str = "", spine: str = "", leaf: str = "", fabric: str = "", gbps: float = 0.0) -> Location:
    """Return the location of a server in a network with the usual levels, ``LEVELS``.

    A name that is not known is empty. A domain, such as a leaf, is named together with the wider domains around it:
    zone and spine. So racks of two zones may both be called ``rack1``.

    Args:
        zone: Zone or site.
        spine: Spine switch or block of leaf switches.
        leaf: Leaf switch or rack.
        fabric: ``Machine.fabric``: a multi-node NVLink fabric, in any zone. Its servers are one rack, so they are near
            each other. Containers on two of its servers reach each other over NVLink only with an IMEX channel. This
            function does not check for the channel.
        gbps: Bandwidth of the server's network, one direction, GB/s; 0 if it is unknown.
    """
    every = (fabric,), (zone, spine, leaf), (zone, spine), (zone,)
    return Location(domains=tuple(names if names[-1] else None for names in every), gbps=gbps)


class Levels(msgspec.Struct, frozen=True):
    """The levels of a cluster's network, nearest first.

    Attributes:
        names: Their names.
        keys: The label key of each.
    """

    names: tuple[str, ...]
    keys: tuple[str, ...]

    def location(self, labels: Mapping[str, str], *, fabric: str = "", gbps: float = 0.0) -> Location:
        """Return the location of a node at each of the network levels, by its labels.

        A domain is nested in the outer domains: leaves of the same name under two spines are two domains. An NVLink
        fabric is not nested, because it can be in several domains of a wider level. If the node lacks the label of a
        level, it is in no domain of that level. Worked example, with levels leaf, spine and zone: the labels ``leaf:
        l1`` and ``zone: z`` give ``(("z", "", "l1"), None, ("z",))``. The first entry is the leaf with its outer
        domains, without a spine. The second entry is None because the spine is unknown.

        Args:
            labels: The node's labels.
            fabric: ``Machine.fabric``, used if no label names the NVLink fabric.
            gbps: Bandwidth of the node's network, one direction, GB/s; 0 if it is unknown.
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

    Without configured keys, the levels are: an NVLink fabric, the levels of one family of labels, and the zone. A
    family (``FAMILIES``) is the label keys of one source, such as topograph or AWS. The first family is used for which
    90 % of the nodes have the key of the nearest level. If some node has topograph's label of a sub-domain, a part of
    an NVLink fabric, the sub-domain is a level below the fabric.

    A level whose key is known has the name that the family gives it, such as ``leaf``. The name of any other level is
    the text after the last slash of its key: ``rack`` for ``example.com/rack``.

    Args:
        nodes: The labels of each node with GPUs.
        configured: Label keys, nearest first.
        fabrics: Whether some machine is in an NVLink fabric. If so, and if no configured level is a fabric, the fabric
            becomes the lowest level, because it joins GPUs closer than any network switch does.
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
    """Return the label keys of network tiers from the fourth on, if most nodes have them.

    The keys end before the first tier whose key fewer than 90 % of the nodes have. The program topograph writes these
    labels: a tier is a level of switches, the nearest first.
    """
    keys = (f"{_TIER}{number}" for number in itertools.count(len(FAMILIES[0])))
    return tuple(itertools.takewhile(lambda key: found(key, nodes), keys))


def network_gbps(machine: Machine) -> float:
    """Return the total bandwidth of a node's network cards, one direction, GB/s.

    If the node has RDMA cards, only these count. A virtual function counts as its card, a member of a bond as its bond.
    If the rates of some cards are not known, the result is a lower bound; it is 0 if no rate is known. Worked example:
    a DGX H100 has eight InfiniBand cards of 50 for its GPUs: 400.
    """
    bonded = {member for nic in machine.nics for member in nic.members}
    cards = [nic for nic in machine.nics if not nic.parent and nic.name not in bonded]
    rdma = [nic for nic in cards if nic.kind not in ("", "ethernet")]
    return sum(nic.gbps for nic in rdma or cards)


def found(key: str, nodes: Collection[Mapping[str, str]]) -> bool:
    """Return whether at least 90 % of the nodes have a label with this key.

    ``nodes`` are the labels of each node.
    """
    return bool(nodes) and sum(bool(labels.get(key)) for labels in nodes) >= ENOUGH * len(nodes)


def _names(keys: Iterable[str]) -> tuple[str, ...]:
    """Return a different name for each network level, from its label key.

    The name is short if possible (``rack``). If another level has the short name, or if the short name is that of an
    NVLink level, the name is the whole key.
    """
    names: list[str] = []
    for key in keys:
        name = _KNOWN.get(key) or key.rpartition("/")[2]
        is_nvlinks = name in (FABRIC, SUB_DOMAIN)
        taken = name in (*names, NODE, CLUSTER) or (is_nvlinks and key not in _OF_NVLINK)
        names.append(key if taken else name)
    return tuple(names)
