"""Shares: a GPU has compute and memory, and takes shares as long as both last.

The fullest GPU that still fits is the cheapest one: what a share costs is what is left beside it, compute and memory
added up as portions of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dradriver.allocator.parts.asks import Counts
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.phrases import amount
from dradriver.allocator.parts.rooms import ALL_CORES, SPARE, Rooms, share_of
from dradriver.allocator.request import Amount, Part, Share, SharePart
from dradriver.allocator.sets.subsets import Array

_TOO_MUCH = Amount(ALL_CORES + 1, 1 << 30)  # what no GPU has


class _Left(NamedTuple):
    """What is left of a GPU, its memory, and in how many equal shares it is had."""

    cores: int
    memory_mib: int
    total_mib: int
    equal: int


class Shares:
    """An ``Ask`` for shares."""

    sliced: bool = False

    def __init__(self, request: Share) -> None:
        self._request = request
        self._kinds = tuple(dict.fromkeys(request.amounts))
        self.wanted = tuple(request.amounts.count(each) for each in self._kinds)
        self.containers: tuple[tuple[int, ...], ...] = tuple((self._kinds.index(each),) for each in request.amounts)
        self._known = lru_cache(maxsize=1024)(self._ways)
        self._taken = lru_cache(maxsize=64)(self._take)

    @property
    def request(self) -> Share:
        """See ``Ask``."""
        return self._request

    def costs(self, rooms: Rooms, kind: int) -> Array:
        """See ``Ask``."""
        cores, memory = self._needs(rooms, kind)
        fits = (rooms.cores >= cores) & (rooms.memory >= memory)
        return np.where(fits, rooms.spare, np.int32(NONE))

    def room(self, rooms: Rooms) -> Array:
        """See ``Ask``."""
        return rooms.spare

    def most(self, rooms: Rooms, kind: int) -> Array:
        """See ``Ask``."""
        cores, memory = self._needs(rooms, kind)
        return np.minimum(rooms.cores // cores, rooms.memory // memory)

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """See ``Ask``."""
        cores, memory = self._needs(rooms, kind)
        out: Array = np.minimum(ALL_CORES // cores, rooms.promised_mib[:, None] // memory)[:, 0]
        return out

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """See ``Ask``; in percent of compute."""
        each = [int(self._needs(rooms, kind)[0].min()) for kind in range(len(self._kinds))]
        total = sum(cores * count for cores, count in zip(each, self.wanted, strict=True))
        return total, rooms.cores, np.full(len(rooms.memory_mib), ALL_CORES)

    def left(self, rooms: Rooms, position: int, slot: int) -> _Left:
        """See ``Ask``."""
        cores, memory = int(rooms.cores[position, slot]), int(rooms.memory[position, slot])
        return _Left(cores, memory, int(rooms.memory_mib[position]), rooms.equal[position])

    def empty(self, rooms: Rooms, position: int) -> _Left:
        """See ``Ask``."""
        total, promised = int(rooms.memory_mib[position]), int(rooms.promised_mib[position])
        return _Left(ALL_CORES, promised, total, rooms.equal[position])

    def said(self, left: _Left) -> str:
        """See ``Ask``."""
        return amount(Amount(left.cores, left.memory_mib))

    def largest_first(self) -> list[int]:
        """See ``Ask``."""
        sizes = [(-each.cores, -each.memory_mib, kind) for kind, each in enumerate(self._kinds)]
        return [kind for _, _, kind in sorted(sizes)]

    def ways(self, left: _Left) -> Mapping[Counts, int]:
        """See ``Ask``."""
        return self._known(left)

    def cost(self, left: _Left, counts: Counts) -> int | None:
        """See ``Ask``."""
        cores, memory = left.cores, left.memory_mib
        for one, count in zip(self._taken(left.total_mib, left.equal), counts, strict=True):
            cores, memory = cores - one.cores * count, memory - one.memory_mib * count
        if min(cores, memory) < 0:
            return None
        return cores * SPARE // ALL_CORES + memory * SPARE // max(left.total_mib, 1) if any(counts) else 0

    def _ways(self, left: _Left) -> Mapping[Counts, int]:
        found: list[Counts] = [()]
        for at, most in enumerate(self.wanted):
            rest = (0,) * (len(self.wanted) - at - 1)
            found = [
                (*counts, count)
                for counts in found
                for count in range(most + 1)
                if self.cost(left, (*counts, count, *rest)) is not None
            ]
        return {counts: self.cost(left, counts) or 0 for counts in found}

    def parts(self, left: _Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """See ``Ask``."""
        return [
            (kind, SharePart(gpu=gpu, amount=one))
            for kind, (one, count) in enumerate(zip(self._taken(left.total_mib, left.equal), counts, strict=True))
            for _ in range(count)
        ]

    def _take(self, memory_mib: int, equal: int) -> tuple[Amount, ...]:
        """What a share of each kind takes of a GPU with so much memory."""
        return tuple(share_of(kind, memory_mib, equal) or _TOO_MUCH for kind in self._kinds)

    def _needs(self, rooms: Rooms, kind: int) -> tuple[Array, Array]:
        """Cores and memory of a part on the GPUs of each position: (g, 1) each."""
        gpus = zip(rooms.memory_mib.tolist(), rooms.equal, strict=True)
        amounts = [self._taken(memory, equal)[kind] for memory, equal in gpus]
        cores = np.array([each.cores for each in amounts], dtype=np.int32)[:, None]
        return cores, np.array([each.memory_mib for each in amounts], dtype=np.int32)[:, None]
