"""The simulated queue of waiting jobs: a line for each tenant and kind, and whose turn it is."""

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
    """Return the pods of a job in the simulated queue, on nodes of so many GPUs: as few and as alike as possible."""
    count = -(-gpus // largest)
    return tuple(gpus // count + (number < gpus % count) for number in range(count))


def covers(kind: Kind, other: Kind) -> bool:
    """Return whether a kind of jobs in the simulated queue finds no place if the other kind finds none."""
    return len(kind) >= len(other) and all(mine >= its for mine, its in zip(kind, other, strict=False))


class Waiting:
    """A job that waits.

    Attributes:
        job: The job.
        kind: Its pods.
        since: Since when it is blocked, seconds: its arrival.
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
    """Kinds that find no place, until something is free."""

    def __init__(self) -> None:
        self._kinds: list[Kind] = []
        self._known: dict[Kind, bool] = {}

    def __contains__(self, kind: Kind) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = any(covers(kind, other) for other in self._kinds)
        return known

    def add(self, kind: Kind) -> None:
        """Note that a job of this kind in the simulated queue found no place."""
        self._kinds.append(kind)
        for other, known in self._known.items():
            if not known and covers(other, kind):
                self._known[other] = True

    def clear(self) -> None:
        """Forget which jobs in the simulated queue found no place: GPUs became free."""
        self._kinds.clear()
        self._known.clear()


class Lines:
    """All that wait, by tenant and kind; the jobs of each line by arrival."""

    def __init__(self, tenants: int) -> None:
        self._lines: list[dict[Kind, OrderedDict[int, Waiting]]] = [{} for _ in range(tenants)]
        self._declared: dict[Kind, list[_Declared]] = {}  # by what they declare
        self.counts = [0] * tenants

    def __len__(self) -> int:
        return sum(self.counts)

    def add(self, waiting: Waiting) -> None:
        """Add a job to the simulated queue; it is the youngest."""
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
        """Return a tenant's oldest job in the simulated queue, without the kinds that are blocked."""
        heads = (
            next(iter(line.values()))
            for kind, line in self._lines[tenant].items()
            if passed is None or kind not in passed
        )
        return min(heads, key=lambda waiting: (waiting.job.arrival_s, waiting.job.number), default=None)

    def ended_within(self, longest_s: float, fits: Callable[[Kind], bool]) -> Iterator[Waiting]:
        """Yield the jobs of some kinds in the simulated queue that declare at most so many seconds."""
        for kind, declared in self._declared.items():
            if fits(kind):
                yield from (waiting for _, _, waiting in declared[: bisect.bisect(declared, (longest_s, math.inf))])

    def __iter__(self) -> Iterator[Waiting]:
        """Yield all that wait."""
        for kinds in self._lines:
            for line in kinds.values():
                yield from line.values()
