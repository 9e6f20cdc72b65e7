"""Equivalence classes of waiting workloads: either all workloads of a class find a place, or none does.

The queue tries one workload of a class, and the answer holds for the others.
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
        asker: Their asker.
        group: The group of all workloads that find a place together or not at all.
        heap: The workloads by order. Workloads that are not in the line any more are removed later: when they come to
            the top, or when there are many.
        size: The number of workloads.
        queued: The line's rank among the lines of the asker that may find a place; None if this line may not.
        behind: When a try costs much and finds no place, the line moves behind others. Then this is the creation time
            of the newest workload at that time, and the number of the move.
        reason: Why the first workload waits; for a new line the reason of its group. The other workloads have the same
            reason without figures that change all the time.
        informed: The workloads whose reason on the pod has these figures.
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

        An asker is the pods, or the gangs, of one namespace.

        Args:
            order: The workload's position in its tenant: priority, time, key.
        """
        return order[0], *max((order[1], 0), self.behind), order[2]


class Group:
    """The waiting workloads of one equivalence class that may use the same GPUs.

    All workloads of a group are in one tenant's partition, or all are without a partition.

    Attributes:
        closed: The products of GPUs that a cap denies them. If there are some, all workloads are of one tenant.
        key: The key of the group in ``Rechecks``.
        asks: What the pods of one workload require of a node, in addition to GPUs.
        is_gang: Whether the workloads are gangs.
        gpus: The fewest free GPUs of a node that can take any pod of a workload.
        family: The key that the group shares with other groups of single pods that request the same GPUs. A node that
            lacks the GPUs for one group lacks them for all groups of the family. None if the group is in no family: its
            workloads are gangs, or request NICs.
        lines: The workloads by asker; no line is empty.
        failed_at: When a workload of the group last found no place, by the node table's counter of changes; ``NEVER``
            if none did.
        work: The cost of that try, in evaluations of nodes.
        reason: The reason why it found no place.
        checked_at: When the group was last tried again although no node had become free.
        seen: The version of the cluster cache at that time.
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

        The workload may have left the queue a moment ago.
        """
        return min(line.heap[0] for line in self.lines.values())


def _gpus(kind: Kind, *, is_gang: bool) -> int:
    """Return how many free GPUs a node needs at least to take a pod.

    0 for fractions, for GPUs that are kept for the pod, and for a shared claim that exists: a node without free GPUs
    can have these.

    Args:
        kind: The key of the pod's equivalence class.
        is_gang: Whether the pod is a member of a gang.
    """
    # Fractions may be of GPUs that are in use. So are GPUs that a single pod shares with others, or that are kept for
    # it because it comes to a gang that runs.
    return kind[0].gpus if isinstance(kind[0], Whole) and (is_gang or not kind[2]) else 0


def _family(kinds: Kinds, tenant: str, closed: Closed) -> Hashable:
    """Return the key of a group's family: the class of a single pod without its CPU, memory and node requirements.

    None for a gang, because a single node cannot refuse it. None for a pod that requests NICs, because the search for
    NICs has a limit for all nodes together.
    """
    (request, ask, *others), *more = kinds
    return None if more or kinds[0][5] is not None else (request, ask.lasts_s, *others, tenant, closed)
