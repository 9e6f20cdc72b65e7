"""Equivalence classes of waiting workloads: they find a place together or not at all."""

from __future__ import annotations

from typing import Final, TypeAlias

from dradriver.allocator.request import Whole
from dradriver.api.claims.pins import Key
from dradriver.queue.placement_request import Kind
from dradriver.reason import Reason

NEVER: Final = -1

Order = tuple[int, str, str]
"""Priority, the highest first, as a negative number; since when it waits; who it is."""

Closed: TypeAlias = frozenset[str]
"""Products of GPUs that a tenant's cap keeps some workloads from."""
ANYWHERE: Final[Closed] = frozenset()


class Line:
    """Units of one kind and one tenant.

    Attributes:
        kind: What they ask for.
        tenant: Whose they are.
        group: All that find a place or not as they do.
        heap: They by order; those that left are dropped when they come to the top, or when they are many.
        size: How many they are.
        queued: The order that they stand under among the tenant's lines; None while they do not.
        reason: What the first of them was told last; of a new line what its kind was. The others were told the same
            without figures that change all the time.
        informed: Which of them were told the figures.
    """

    __slots__ = ("group", "heap", "informed", "kind", "queued", "reason", "size", "tenant")

    def __init__(self, kind: Kind, tenant: str, group: Group) -> None:
        self.kind = kind
        self.tenant = tenant
        self.group = group
        group.lines[tenant] = self
        self.heap: list[tuple[Order, Key]] = []
        self.size = 0
        self.queued: Order | None = None
        self.reason = group.reason
        self.informed: set[Key] = set()


class Group:
    """Units of one kind that may have the same GPUs: of one partition, or of none.

    Attributes:
        kind: What they ask for.
        closed: The GPUs that a cap keeps them from; then they are one tenant's.
        key: By what the queue knows it.
        lines: Its workloads by tenant; none is empty.
        failed_at: The nodes' clock when one of them last found no place; ``NEVER`` while none has.
        reason: Why, then.
        checked_at: When it was last asked without an event.
        seen: The version of the picture then.
        gpus: Fewest free GPUs of a node that may take one.
    """

    __slots__ = ("checked_at", "closed", "failed_at", "gpus", "key", "kind", "lines", "reason", "seen")

    def __init__(self, kind: Kind, tenant: str, closed: Closed) -> None:
        self.kind = kind
        self.closed = closed
        self.key = kind, tenant, closed
        # Parts may be of GPUs that are in use, and so is the set that others have already.
        self.gpus = kind[0].gpus if isinstance(kind[0], Whole) and not kind[2] else 0
        self.lines: dict[str, Line] = {}
        self.failed_at = NEVER
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
