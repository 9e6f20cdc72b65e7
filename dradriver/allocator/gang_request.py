"""What a gang of pods wants, and the places that were chosen for it: plain data, without numpy.

A gang is many pods that start together or not at all. Most have equal pods; where members differ (a launcher and its
workers), those that differ are further *roles*.
"""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Choice, Whole


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """Members of a gang that are equal.

    Attributes:
        pod: The GPUs that each of them requests.
        pods: The number of members.
        needs: What each takes of its node in addition to GPUs, by the columns of the caller's ``amounts``: CPU, memory,
            a pod's slot and so on. A resource with a need of 0 is not checked.
    """

    pod: Whole
    pods: int
    needs: tuple[int, ...] = ()


class GangRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a gang wants: a place for all of its pods, or none.

    Attributes:
        pod: What each of its equal pods wants. Its strategy is the gang's: ``spread`` takes as many nodes as there are
            pods, any other as few as can hold them.
        pods: How many.
        needs: What each takes in addition to GPUs; see ``Role``.
        roles: Members that differ from those, in the order of their indices, which follow those of the equal pods. They
            stand with the others, and on the same nodes where these have room.
        least_pods: The fewest that will do where not all ``pods`` have a place: as many as have one are placed. None
            for all. Of equal pods only.
        max_nodes: Most nodes.
        min_gpus_per_node: Fewest GPUs of the gang on any node that has some.
        min_network_gbps: Least network bandwidth of each node, if there are several: what its NICs have within the
            narrowest level, and beyond that what levels are said to carry (``Fleet.set_levels``). A node or a level of
            which it is not known has none.
        near: The level of the network (``Fleet.levels``, ``node`` or ``cluster``) that should hold all of them.
        near_required: Whether nothing wider will do.
        one_fabric: Whether several nodes must be of one multi-node NVLink fabric, in a cluster that has any: what the
            pods share works within one.
    """

    pod: Whole
    pods: int
    needs: tuple[int, ...] = ()
    roles: tuple[Role, ...] = ()
    least_pods: int | None = None
    max_nodes: int | None = None
    min_gpus_per_node: int = 0
    min_network_gbps: float = 0.0
    near: str = ""
    near_required: bool = False
    one_fabric: bool = False

    @property
    def members(self) -> tuple[Role, ...]:
        """Return all roles of a gang's request, the equal pods first."""
        return (Role(pod=self.pod, pods=self.pods, needs=self.needs), *self.roles)


class GangChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A place for every pod of a gang.

    Attributes:
        pods: The pods' choices by index: role after role, within each in the order that ranks should take, so that
            neighbours by index are neighbours in the network.
        nodes: The nodes, those of one part of the network one after another.
        reach: What holds them together, a level of the network: ``node``, ``fabric`` (one multi-node NVLink fabric,
            whose servers are near each other; NVLink itself ends at a server), ``leaf``, ``spine``, ``zone``, or what
            the cluster's levels are called; ``cluster`` where none holds them.
        busbw_gbps: The least predicted of any pod of two GPUs and more, and over several nodes at most their network's,
            where it is known; 0 of a vendor of whose links nobody knows what they carry.
        fallback: What was preferred and not had by all pods: words of the ladder, and ``near: leaf``.
    """

    pods: tuple[Choice, ...]
    nodes: tuple[str, ...]
    reach: str
    busbw_gbps: float
    fallback: tuple[str, ...] = ()
