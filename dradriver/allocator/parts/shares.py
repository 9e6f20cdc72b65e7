"""Shares: a GPU has compute and memory, and takes shares as long as both last.

The fullest GPU that still fits is the cheapest one: what a share costs is what is left beside it, compute and memory
added up as portions of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dradriver.allocator.parts.asks import Counts, every_count
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.phrases import amount
from dradriver.allocator.parts.rooms import ALL_CORES, SPARE, Rooms, portion
from dradriver.allocator.request import Amount, Part, Share, SharePart
from dradriver.allocator.sets.subsets import Array, Ints


class _Left(NamedTuple):
    """What is left of a GPU, and its memory."""

    cores: int
    memory_mib: int
    total_mib: int


class _Need(NamedTuple):
    """What some parts take of a GPU: compute and memory, and both added up as portions of it."""

    cores: int
    memory_mib: int
    portion: int


class Shares:
    """An ``Ask`` for shares."""

    sliced: bool = False

    def __init__(self, request: Share) -> None:
        self._request = request
        self._kinds = tuple(dict.fromkeys(request.amounts))
        self.wanted = tuple(request.amounts.count(each) for each in self._kinds)
        self.containers: tuple[tuple[int, ...], ...] = tuple((self._kinds.index(each),) for each in request.amounts)
        self._known = lru_cache(maxsize=1024)(self._ways)
        self._fitting: dict[int, dict[int, _Need]] = {}

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
        out: Array = np.minimum(ALL_CORES // cores, rooms.memory_mib[:, None] // memory)[:, 0]
        return out

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """See ``Ask``; in percent of compute."""
        each = [int(self._needs(rooms, kind)[0].min()) for kind in range(len(self._kinds))]
        total = sum(cores * count for cores, count in zip(each, self.wanted, strict=True))
        return total, rooms.cores, np.full(len(rooms.memory_mib), ALL_CORES)

    def left(self, rooms: Rooms, position: int, slot: int) -> _Left:
        """See ``Ask``."""
        return _Left(
            int(rooms.cores[position, slot]), int(rooms.memory[position, slot]), int(rooms.memory_mib[position])
        )

    def empty(self, rooms: Rooms, position: int) -> _Left:
        """See ``Ask``."""
        memory = int(rooms.memory_mib[position])
        return _Left(ALL_CORES, memory, memory)

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
        need = self._needed(counts, left.total_mib)
        if need.cores > left.cores or need.memory_mib > left.memory_mib:
            return None
        return portion(Amount(left.cores, left.memory_mib), left.total_mib) - need.portion if any(counts) else 0

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """See ``Ask``."""
        rows = [rooms.cores[position], rooms.memory[position], rooms.spare[position]]
        cores, memory, spare = rows if len(slots) == len(rows[0]) else [row[slots] for row in rows]
        out = {}
        for way, need in self._each(int(rooms.memory_mib[position])).items():
            lacking = (cores < need.cores) | (memory < need.memory_mib)
            # Faster than to choose by what is true: chance makes processors guess wrong.
            out[way] = lacking * np.int32(NONE + need.portion) + (spare - np.int32(need.portion))
        return out

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """See ``Ask``."""
        return {way: 2 * SPARE - need.portion for way, need in self._each(int(rooms.memory_mib[position])).items()}

    def _each(self, total_mib: int) -> dict[int, _Need]:
        """What all numbers of parts take that fit a GPU with so much memory, by number in ``every_count``."""
        if total_mib not in self._fitting:
            needs = {way: self._needed(counts, total_mib) for way, counts in enumerate(every_count(self.wanted)) if way}
            self._fitting[total_mib] = {
                way: need for way, need in needs.items() if need.cores <= ALL_CORES and need.memory_mib <= total_mib
            }
        return self._fitting[total_mib]

    def _needed(self, counts: Counts, total_mib: int) -> _Need:
        """What some parts take of a GPU together."""
        each = [(amount.of(total_mib), count) for amount, count in zip(self._kinds, counts, strict=True) if count]
        return _Need(
            sum(amount.cores * count for amount, count in each),
            sum(amount.memory_mib * count for amount, count in each),
            sum(portion(amount, total_mib) * count for amount, count in each),
        )

    def _ways(self, left: _Left) -> Mapping[Counts, int]:
        every = every_count(self.wanted)
        fitting = [every[0], *(every[way] for way in self._each(left.total_mib))]
        return {counts: cost for counts in fitting if (cost := self.cost(left, counts)) is not None}

    def parts(self, left: _Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """See ``Ask``."""
        return [
            (kind, SharePart(gpu=gpu, amount=self._kinds[kind].of(left.total_mib)))
            for kind, count in enumerate(counts)
            for _ in range(count)
        ]

    def _needs(self, rooms: Rooms, kind: int) -> tuple[Array, Array]:
        """Cores and memory of a part on the GPUs of each position: (g, 1) each."""
        amounts = [self._of(kind, memory) for memory in rooms.memory_mib.tolist()]
        cores = np.array([each.cores for each in amounts], dtype=np.int32)[:, None]
        return cores, np.array([each.memory_mib for each in amounts], dtype=np.int32)[:, None]

    def _of(self, kind: int, memory_mib: int) -> Amount:
        return self._kinds[kind].of(memory_mib)
