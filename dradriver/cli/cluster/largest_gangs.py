"""The network location of a cluster's nodes, and the largest gang that each network level has room for now."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.allocator.fleet import domain_capacity
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cluster.nodes.columns import Bools
from dradriver.view.terminal_text import plain

_GPUS: Final = 8  # of a pod, or as many as the largest node has


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """The largest gang that one network level has room for.

    Attributes:
        level: The level of the network.
        gpus: Number of GPUs of each pod.
        pods: Number of pods.
        nodes: Number of nodes on which the pods would be.
        domain: The network domain that holds the pods, with the outer domains before it; empty for the whole cluster.
    """

    level: str
    gpus: int
    pods: int
    nodes: int
    domain: str


def stand(scene: Scene, namespace: str = "") -> None:
    """Set the network location of the listed nodes, by the levels of the policies.

    Call this before ``largest_gangs``, which needs the locations.

    Args:
        scene: The cluster.
        namespace: The namespace whose GPUs are considered; empty for all GPUs.
    """
    scene.picture.fleets.locate(scene.picture.nodes.labels(), namespace)


def largest_gangs(scene: Scene, fit: Bools, namespace: str) -> tuple[Gang, ...]:
    """Return the largest gang of a namespace that each network level has room for.

    The result is empty if only the level ``cluster`` is known. ``scene`` is the listed cluster, ``fit`` the mask of the
    nodes that count, (rows,). CPU, memory and other limits are ignored. Call ``stand`` first, for the same namespace.
    """
    gpus, found = domain_capacity.largest_gangs(scene.picture.fleets.of(namespace), most=_GPUS, eligible=fit)
    if len(found) < 2:  # the cluster alone
        return ()
    return tuple(
        Gang(level=plain(level), gpus=gpus, pods=one.pods, nodes=len(one.nodes), domain=plain(one.domain))
        for level, one in found.items()
    )
