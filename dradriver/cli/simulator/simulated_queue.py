"""The simulated queue of waiting jobs, grouped by tenant and by the sizes of the jobs' pods.

A *kind* of job is the list of the sizes of its pods, in GPUs. Jobs with the same pod sizes are of one kind.
"""

from __future__ import annotations

import bisect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TypeAlias

from dradriver.cli.simulator.trace import Job

Kind: TypeAlias = tuple[int, ...]
"""GPUs of each pod, the largest first: jobs of one kind find a place or do not."""


def pods(gpus: int, largest: int) -> Kind:
    """Return the pod sizes of a job on nodes with ``largest`` GPUs: the fewest pods, as equal as possible."""
    count = -(-gpus // largest)
    return tuple(gpus // count + (number < gpus % count) for number in range(count))


def covers(kind: Kind, other: Kind) -> bool:
    """Return whether a job surely finds no place, because another job found none.

    ``kind`` has the pod sizes of the first job, ``other`` those of the job that found no place, largest first. True if
    the first job has at least as many pods, each at least as large. False if it may find a place.
    """
    return len(kind) >= len(other) and all(mine >= its for mine, its in zip(kind, other, strict=False))


class Waiting:
    """A job that waits.

    Attributes:
        job: The job.
        kind: The sizes of its pods, in GPUs.
        since: The time since which it waits, seconds: its arrival.
    """

    __slots__ = ("job", "kind", "since")

    def __init__(self, job: Job, kind: Kind) -> None:
        self.job = job
        self.kind = kind
        self.since = job.arrival_s


_Declared: TypeAlias = tuple[float, int, Waiting]


def _declared(waiting: Waiting) -> _Declared | None:
    declared_s = waiting.job.declared_s
    return None if declared_s is None else (declared_s, waiting.job.number, waiting)


class Blocked:
    """The pod sizes for which no place was found since GPUs last became free."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._known: dict[Kind, bool] = {}

    def __contains__(self, kind: Kind) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = any(covers(kind, other) for other in self._kinds)
        return known

    def add(self, kind: Kind) -> None:
        """Record that a job with these pod sizes found no place."""
        self._kinds.append(kind)
        for other, known in self._known.items():
            if not known and covers(other, kind):
                self._known[other] = True

    def clear(self) -> None:
        """Forget all pod sizes without a place, because GPUs became free."""
        self._kinds.clear()
        self._known.clear()


class Lines:
    """All waiting jobs, by tenant and pod sizes; jobs of equal sizes are sorted by arrival."""

    def __init__(self, tenants: int) -> None:
        self._lines: list[dict[Kind, OrderedDict[int, Waiting]]] = [{} for _ in range(tenants)]
        self._declared: dict[Kind, list[_Declared]] = {}  # by what they declare
        self.counts = [0] * tenants

    def __len__(self) -> int:
        return sum(self.counts)

    def add(self, waiting: Waiting) -> None:
        """Add a job (``waiting``) to the end of the simulated queue."""
        line = self._lines[waiting.job.tenant].setdefault(waiting.kind, OrderedDict())
        line[waiting.job.number] = waiting
        if (entry := _declared(waiting)) is not None:
            bisect.insort(self._declared.setdefault(waiting.kind, []), entry)
        self.counts[waiting.job.tenant] += 1

    def remove(self, waiting: Waiting) -> None:
        """Remove a job from the simulated queue."""
        kinds = self._lines[waiting.job.tenant]
        del kinds[waiting.kind][waiting.job.number]
        if (entry := _declared(waiting)) is not None:
            declared = self._declared[waiting.kind]
            del declared[bisect.bisect_left(declared, entry)]
        if not kinds[waiting.kind]:
            del kinds[waiting.kind]
        self.counts[waiting.job.tenant] -= 1

    def has(self, waiting: Waiting) -> bool:
        """Return whether a job is in the simulated queue."""
        return waiting.job.number in self._lines[waiting.job.tenant].get(waiting.kind, ())

    def head(self, tenant: int, *, passed: Blocked | None = None) -> Waiting | None:
        """Return a tenant's oldest job in the simulated queue, or None.

        Jobs with pod sizes in ``passed``, which found no place, are skipped.
        """
        heads = (
            next(iter(line.values()))
            for kind, line in self._lines[tenant].items()
            if passed is None or kind not in passed
        )
        return min(heads, key=lambda waiting: (waiting.job.arrival_s, waiting.job.number), default=None)

    def ended_within(self, longest_s: float, fits: Callable[[Kind], bool]) -> Iterator[Waiting]:
        """Yield the waiting jobs that declare a duration of at most ``longest_s`` seconds.

        Only jobs count for whose pod sizes ``fits`` returns True.
        """
        for kind, declared in self._declared.items():
            if fits(kind):
                yield from (waiting for _, _, waiting in declared[: bisect.bisect(declared, (longest_s, math.inf))])

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all waiting jobs."""
        for kinds in self._lines:
            for line in kinds.values():
                yield from line.values()
