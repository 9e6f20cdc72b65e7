"""A gang's request and the places chosen for it: plain data, without numpy.

The controller makes the requests. A place is a node and GPUs. A gang is many pods that start together or not at all. In
most gangs all pods are equal. In some they differ, as a launcher differs from its workers. Then each kind of different
members is a further *role*.
"""

from __future__ import annotations

import msgspec

from dradriver.allocator.request import Choice, Whole


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a gang that are equal.

    Attributes:
        pod: The GPUs that each of them requests.
        pods: The number of members.
        needs: The amounts that each of them needs in addition to GPUs: CPU, memory, one of the pods that a node may
            have, and so on. They are in the order of the columns of the caller's ``amounts``. A resource with a need of
            0 is not checked.
    """

    pod: Whole
    pods: int
    needs: tuple[int, ...] = ()


class GangRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A gang's request: a place for all of its pods, or none.

    Attributes:
        pod: The GPUs that each of the equal pods requests. Its strategy holds for the gang. ``spread`` uses as many
            nodes as there are pods; any other strategy uses as few nodes as can hold them.
        pods: The number of equal pods.
        needs: The amounts that each of the equal pods needs in addition to GPUs; see ``Role``.
        roles: The members that differ from the equal pods, in the order of their indices. Their indices follow those of
            the equal pods. They are placed near the equal pods, and on the same nodes if these have room.
        least_pods: For an elastic gang without ``roles``, the fewest equal pods with which it can start. If not all
            ``pods`` have a place, as many as possible are placed. None if all pods are needed.
        max_nodes: The largest number of nodes that the gang may use; None for any number.
        min_gpus_per_node: Fewest GPUs of the gang on any node that has some of its pods.
        min_network_gbps: Least network bandwidth of each node, GB/s, if the gang has several nodes. Within the
            narrowest level, the bandwidth of the node's NICs is compared with it. Beyond that level, the known
            bandwidth of the wider levels is compared (``Fleet.set_levels``). An unknown bandwidth counts as 0.
        near: The level of the network whose domain should hold all pods: a name of ``Fleet.levels``, ``node`` or
            ``cluster``.
        near_required: Whether a domain of a wider level is refused.
        one_fabric: Whether all nodes must be in one multi-node NVLink fabric, if the cluster has any. The pods share
            memory, which works within one fabric only.
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
    """The places of all pods of a gang: for each pod a node and GPUs.

    Attributes:
        pods: The pods' choices by index, role after role. Within a role they have the order that ranks should have:
            pods with adjacent indices are near each other in the network.
        nodes: The nodes; the nodes of one network domain are adjacent.
        reach: The narrowest level of the network with one domain that contains all nodes: ``node``, ``fabric`` (one
            multi-node NVLink fabric), ``leaf``, ``spine``, ``zone``, or another name of a level of the cluster.
            ``cluster`` if there is no such level.
        busbw_gbps: The lowest predicted bandwidth of any pod with at least two GPUs. Over several nodes it is at most
            the network's bandwidth, if that is known. 0 for a vendor whose link bandwidths are not known.
        fallback: The preferences of the gang that its places do not meet for all pods: preferred constraints, and
            ``near: leaf``. Empty if all are met.
    """

    pods: tuple[Choice, ...]
    nodes: tuple[str, ...]
    reach: str
    busbw_gbps: float
    fallback: tuple[str, ...] = ()
