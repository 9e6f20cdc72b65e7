"""Equivalence classes of waiting workloads, and how the queue sorts their workloads.

Either all workloads of a class find a place, or none does. The queue tries one workload of a class, and the answer
holds for all. Waiting workloads are sorted in three ways:

* An *asker* is the single pods, or the gangs, of one namespace.
* A *line* is the workloads of one class and one asker, in their order.
* A *group* is the lines of one class that may use the same GPUs, because the same caps and partition limit them.

A group is *in the queue* while its workloads may find a place (a node and GPUs for each pod).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple, TypeAlias

from dradriver.allocator.request import Whole
from dradriver.api.claims.pins import Key
from dradriver.queue.placement_request import Kind, Kinds
from dradriver.reason import Reason

NEVER: Final = -1

Order = tuple[int, str, str]
"""Priority, the highest first, as a negative number; since when it waits; who it is."""

Rank = tuple[int, str, int, str]
"""Priority, as in ``Order``; since when it waits, or was moved behind others; the number of that move; who it is."""

Closed: TypeAlias = frozenset[str]
"""Products of GPUs that a tenant's cap keeps some workloads from."""
ANYWHERE: Final[Closed] = frozenset()


class Asker(NamedTuple):
    """The gangs, or the single pods, of one namespace. Askers take turns in being tried.

    Attributes:
        tenant: The tenant.
        namespace: The namespace.
        is_gang: Whether these are gangs. Trying a gang can cost a thousand times as much as trying a pod.
    """

    tenant: str
    namespace: str
    is_gang: bool


class Line:
    """The waiting workloads of one equivalence class and one asker.

    Attributes:
        kinds: The key of the equivalence class: the requests that the workloads have in common.
        asker: The pods, or the gangs, of one namespace, to which the workloads belong.
        group: The group of all workloads that find a place together or not at all.
        heap: The workloads by order. A workload that has left the line can still be in the heap. It is removed when it
            comes to the top, or when there are many of these.
        size: The number of workloads in the line. Workloads that have left it do not count.
        queued: The line's rank in the queue among the lines of its asker; None if the line is not in the queue, because
            its workloads found no place.
        behind: The line's last move to the back, made because a try for it cost much and found no place. It has two
            values: the creation time of the newest workload at that time, and the number of the move. Before the first
            move they are an empty text and 0.
        reason: Why the first workload of the line waits; for a new line the reason of its group. The other workloads
            have the same reason, but without the figures that change all the time.
        informed: The workloads that were told the reason with these figures.
    """

    __slots__ = ("asker", "behind", "group", "heap", "informed", "kinds", "queued", "reason", "size")

    def __init__(self, kinds: Kinds, asker: Asker, group: Group) -> None:
        self.kinds = kinds
        self.asker = asker
        self.group = group
        group.lines[asker] = self
        self.heap: list[tuple[Order, Key]] = []
        self.size = 0
        self.queued: Rank | None = None
        self.behind = "", 0
        self.reason = group.reason
        self.informed: set[Key] = set()

    def rank(self, order: Order) -> Rank:
        """Return the rank of a workload of this line among all workloads of its asker.

        The lowest rank is served first. An asker is the pods, or the gangs, of one namespace.

        Args:
            order: The workload's position in its tenant: priority, time, key.
        """
        return order[0], *max((order[1], 0), self.behind), order[2]


class Group:
    """The waiting workloads of one equivalence class that may use the same GPUs.

    All workloads of a group are in one tenant's partition, or all are without a partition.

    Attributes:
        closed: The GPU products that a cap denies these workloads. If there are any, all workloads belong to one
            tenant.
        key: The key of the group in ``Rechecks``.
        asks: For each different pod of one workload, what it requires of a node in addition to GPUs.
        is_gang: Whether the workloads are gangs.
        gpus: The least number of free GPUs with which a node can take a pod of one of these workloads.
        family: The key that the group shares with other groups of single pods that request the same GPUs. A node that
            lacks the GPUs for one group lacks them for all groups of the family. None if the group is in no family: its
            workloads request NICs, or are gangs whose pods differ.
        lines: The workloads by asker; no line is empty.
        failed_at: When a workload of the group last found no place, by the node table's counter of changes; ``NEVER``
            if none did.
        work: The cost of that try, in evaluations of nodes.
        reason: Why that workload found no place; None if not known.
        checked_at: When the group was last put into the queue again although no node had become free.
        seen: The version of the cluster cache at ``checked_at``.
    """

    __slots__ = (
        "asks", "checked_at", "closed", "failed_at", "family", "gpus", "is_gang", "key", "lines", "reason", "seen",
        "work",
    )  # fmt: skip

    def __init__(self, kinds: Kinds, tenant: str, closed: Closed, *, is_gang: bool) -> None:
        self.closed = closed
        self.key = kinds, tenant, closed
        self.asks = tuple(kind[1] for kind in kinds)
        self.is_gang = is_gang
        self.gpus = min(_gpus(kind, is_gang=is_gang) for kind in kinds)
        self.family = _family(kinds, tenant, closed)
        self.lines: dict[Asker, Line] = {}
        self.failed_at = NEVER
        self.work = 0
        self.reason: Reason | None = None
        self.checked_at = 0.0
        self.seen = -1

    @property
    def queued(self) -> bool:
        """Return whether the group is in the queue: some of its workloads may find a place."""
        return any(line.queued is not None for line in self.lines.values())

    @property
    def oldest(self) -> tuple[Order, Key]:
        """Return the order and key of the oldest workload of the group.

        It can be a workload that has left the queue a moment ago.
        """
        return min(line.heap[0] for line in self.lines.values())


def _gpus(kind: Kind, *, is_gang: bool) -> int:
    """Return the least number of free GPUs that a node needs to take a pod.

    It is 0 if a node without free GPUs may take the pod: the pod requests fractions, joins a shared claim, or joins a
    running gang, which can keep GPUs for it. It is also 0 for a single pod that names other claims or templates.

    Args:
        kind: The key of the pod's equivalence class.
        is_gang: Whether the pod is a member of a gang.
    """
    # Fractions may be of GPUs that are in use. So are GPUs that a single pod shares with others, or that are kept for
    # it because it comes to a gang that runs.
    return kind[0].gpus if isinstance(kind[0], Whole) and (is_gang or not kind[2]) else 0


def _family(kinds: Kinds, tenant: str, closed: Closed) -> Hashable:
    """Return the key of a group's family.

    A family is the groups of single pods that request the same GPUs. The key is that of the equivalence class, without
    the pod's CPU, memory and node requirements. A gang of equal pods is alone in its family, because the key names the
    gang. None for a gang whose pods differ. None for pods that request NICs, because the search for NICs has a limit
    for all nodes together.
    """
    (request, ask, *others), *more = kinds
    return None if more or kinds[0][5] is not None else (request, ask.lasts_s, *others, tenant, closed)
