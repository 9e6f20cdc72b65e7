"""Equivalence classes of waiting workloads: they find a place together or not at all."""

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
    """Whose workloads take turns in being looked at: those of one tenant, by namespace, and gangs apart.

    Attributes:
        tenant: The tenant.
        namespace: The namespace.
        is_gang: Whether these are gangs, whose looks can cost a thousand times as much as those of pods.
    """

    tenant: str
    namespace: str
    is_gang: bool


class Line:
    """Units of one kind and one asker.

    Attributes:
        kinds: What they ask for.
        asker: Whose they are.
        group: All that find a place or not as they do.
        heap: They by order; those that left are dropped when they come to the top, or when they are many.
        size: How many they are.
        queued: The rank that they stand under among the asker's lines; None while they do not.
        behind: Since when they were moved behind others, because a look at them cost much in vain; the number of the
            move.
        reason: What the first of them was told last; of a new line what its kind was. The others were told the same
            without figures that change all the time.
        informed: Which of them were told the figures.
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
        """Return the rank of a workload of these among those of all the asker's lines."""
        return order[0], *max((order[1], 0), self.behind), order[2]


class Group:
    """Units of one kind that may have the same GPUs: of one partition, or of none.

    Attributes:
        closed: The GPUs that a cap keeps them from; then they are one tenant's.
        key: By what the queue knows it.
        asks: What the pods of one of them ask of a node, GPUs aside.
        is_gang: Whether they are gangs.
        gpus: Fewest free GPUs of a node that may take any pod of one.
        family: What single pods share that may be refused GPUs by the same nodes, whatever else they ask of them; None
            where that does not say all.
        lines: Its workloads by asker; none is empty.
        failed_at: The nodes' clock when one of them last found no place; ``NEVER`` while none has.
        work: What that look cost, in evaluations of nodes.
        reason: Why, then.
        checked_at: When it was last asked without an event.
        seen: The version of the picture then.
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
        """Return whether any workload of the equivalence class is in the queue."""
        return any(line.queued is not None for line in self.lines.values())

    @property
    def oldest(self) -> tuple[Order, Key]:
        """Return the oldest workload of the equivalence class, or one that left a moment ago."""
        return min(line.heap[0] for line in self.lines.values())


def _gpus(kind: Kind, *, is_gang: bool) -> int:
    """Return the fewest free GPUs of a node that may take a pod; ``is_gang`` says that it starts with others."""
    # Fractions may be of GPUs that are in use. So are GPUs that a single pod shares with others, or that are kept for
    # it because it comes to a gang that runs.
    return kind[0].gpus if isinstance(kind[0], Whole) and (is_gang or not kind[2]) else 0


def _family(kinds: Kinds, tenant: str, closed: Closed) -> Hashable:
    """Return what is left of a single pod's kind without the amounts and the nodes that it asks for.

    A gang is not refused by one node. Nor is it one node's answer which NICs there are: the search for them has a limit
    over all nodes.
    """
    (request, ask, *others), *more = kinds
    return None if more or kinds[0][5] is not None else (request, ask.lasts_s, *others, tenant, closed)
