"""Where a cluster's nodes stand in the network, and the largest gang that each level of it holds now."""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.allocator.fleet import domain_capacity
from dradriver.cli.cluster.listed_cluster import Scene
from dradriver.cluster.nodes.columns import Bools
from dradriver.view.terminal_text import plain

_GPUS: Final = 8  # of a pod, or as many as the largest node has


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """The largest gang of one level.

    Attributes:
        level: Of the network.
        gpus: GPUs of each pod.
        pods: How many pods.
        nodes: On how many nodes.
        domain: The part of the network that holds them, after those around it; empty where that is the whole cluster.
    """

    level: str
    gpus: int
    pods: int
    nodes: int
    domain: str


def stand(scene: Scene, namespace: str = "") -> None:
    """Set where the listed nodes stand in the network, by the policies' levels: the largest gangs depend on it.

    Args:
        scene: The cluster.
        namespace: The namespace whose GPUs are looked at; empty for all GPUs.
    """
    scene.picture.fleets.locate(scene.picture.nodes.labels(), namespace)


def largest_gangs(scene: Scene, fit: Bools, namespace: str) -> tuple[Gang, ...]:
    """Return the largest gang of a namespace in each network level that has parts; none without a known network.

    GPUs alone count. ``stand`` comes first, for the same namespace.
    """
    gpus, found = domain_capacity.largest_gangs(scene.picture.fleets.of(namespace), most=_GPUS, eligible=fit)
    if len(found) < 2:  # the cluster alone
        return ()
    return tuple(
        Gang(level=plain(level), gpus=gpus, pods=one.pods, nodes=len(one.nodes), domain=plain(one.domain))
        for level, one in found.items()
    )
