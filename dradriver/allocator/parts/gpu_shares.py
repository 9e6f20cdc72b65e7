"""Shares: a GPU has compute and memory, and takes shares as long as both last.

The fullest GPU that still fits is the cheapest one: what a share costs is what is left beside it, compute and memory
added up as portions of the GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dradriver.allocator.parts.free_capacity import ALL_CORES, Rooms, portion
from dradriver.allocator.parts.layouts import NONE
from dradriver.allocator.parts.part_phrases import amount
from dradriver.allocator.parts.part_requests import Counts, every_count
from dradriver.allocator.request import Amount, Part, Share, SharePart
from dradriver.allocator.sets.subsets import Array, Ints

_TOO_MUCH = Amount(ALL_CORES + 1, 1 << 30)  # what no GPU has


def largest_share(memory_mib: int, equal: int) -> Amount:
    """Return the largest share of a GPU with so much memory, if the GPU is divided into so many equal shares."""
    return Amount(ALL_CORES // equal, memory_mib // equal) if equal else Amount(ALL_CORES, memory_mib)


def share_of(amount: Amount, memory_mib: int, equal: int) -> Amount | None:
    """Return what a share takes of a GPU with so much memory; None if it asks for more than one share can have.

    Of a GPU in equal shares it is one of these, also where less was asked for.
    """
    asked, most = amount.of(memory_mib), largest_share(memory_mib, equal)
    if asked.cores > most.cores or asked.memory_mib > most.memory_mib:
        return None
    return most if equal else asked


class _Left(NamedTuple):
    """What is left of a GPU, its memory, and in how many equal shares it is had."""

    cores: int
    memory_mib: int
    total_mib: int
    equal: int


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
        self._taken = lru_cache(maxsize=64)(self._take)
        self._fitting: dict[tuple[int, int, int], dict[int, _Need]] = {}

    @property
    def request(self) -> Share:
        """Return the request for shares of GPUs."""
        return self._request

    def costs(self, rooms: Rooms, kind: int) -> Array:
        """Return what one share costs on each GPU with something left: (g, nodes); ``NONE`` if it does not fit."""
        cores, memory = self._needs(rooms, kind)
        fits = (rooms.cores >= cores) & (rooms.memory >= memory)
        return np.where(fits, rooms.spare, np.int32(NONE))

    def room(self, rooms: Rooms) -> Array:
        """Return how much each GPU has free for shares, as one number: (g, nodes)."""
        return rooms.spare

    def most(self, rooms: Rooms, kind: int) -> Array:
        """Return how many shares of a kind fit on each GPU with free compute and memory: (g, nodes)."""
        cores, memory = self._needs(rooms, kind)
        return np.minimum(rooms.cores // cores, rooms.memory // memory)

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """Return how many shares of a kind fit on an empty GPU at each position: (g,)."""
        cores, memory = self._needs(rooms, kind)
        out: Array = np.minimum(ALL_CORES // cores, rooms.promised_mib[:, None] // memory)[:, 0]
        return out

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """Return the percent of compute that all shares take, each GPU has free, and an empty GPU has."""
        each = [int(self._needs(rooms, kind)[0].min()) for kind in range(len(self._kinds))]
        total = sum(cores * count for cores, count in zip(each, self.wanted, strict=True))
        return total, rooms.cores, np.full(len(rooms.memory_mib), ALL_CORES)

    def left(self, rooms: Rooms, position: int, slot: int) -> _Left:
        """Return the compute and memory that a GPU has free for shares."""
        cores, memory = int(rooms.cores[position, slot]), int(rooms.memory[position, slot])
        return _Left(cores, memory, int(rooms.memory_mib[position]), rooms.equal[position])

    def empty(self, rooms: Rooms, position: int) -> _Left:
        """Return the compute and memory that an empty GPU has for shares."""
        total, promised = int(rooms.memory_mib[position]), int(rooms.promised_mib[position])
        return _Left(ALL_CORES, promised, total, rooms.equal[position])

    def said(self, left: _Left) -> str:
        """Return in words how much compute and memory a GPU has free for shares."""
        return amount(Amount(left.cores, left.memory_mib))

    def largest_first(self) -> list[int]:
        """Return the kinds of shares, the hardest to place first."""
        sizes = [(-each.cores, -each.memory_mib, kind) for kind, each in enumerate(self._kinds)]
        return [kind for _, _, kind in sorted(sizes)]

    def ways(self, left: _Left) -> Mapping[Counts, int]:
        """Return the cost of each combination of shares that fits on a GPU, by its counts."""
        return self._known(left)

    def cost(self, left: _Left, counts: Counts) -> int | None:
        """Return what so many shares of each kind cost together on one GPU; None if they do not fit."""
        need = self._needed(counts, left.total_mib, left.equal)
        if need.cores > left.cores or need.memory_mib > left.memory_mib:
            return None
        return portion(Amount(left.cores, left.memory_mib), left.total_mib) - need.portion if any(counts) else 0

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """Return the cost of every number of shares on the GPU at a position of some nodes: (len(slots),) int32."""
        rows = [rooms.cores[position], rooms.memory[position], rooms.spare[position]]
        cores, memory, spare = rows if len(slots) == len(rows[0]) else [row[slots] for row in rows]
        out = {}
        for way, need in self._each(*self._gpu(rooms, position)).items():
            lacking = (cores < need.cores) | (memory < need.memory_mib)
            # Faster than to choose by what is true: chance makes processors guess wrong.
            out[way] = lacking * np.int32(NONE + need.portion) + (spare - np.int32(need.portion))
        return out

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """Return what every number of shares that fits costs on an empty GPU at a position."""
        total, promised, equal = self._gpu(rooms, position)
        whole = portion(Amount(ALL_CORES, promised), total)
        return {way: whole - need.portion for way, need in self._each(total, promised, equal).items()}

    def _gpu(self, rooms: Rooms, position: int) -> tuple[int, int, int]:
        """Memory of a position's GPU, how much of it is promised, and in how many equal shares it is had."""
        return int(rooms.memory_mib[position]), int(rooms.promised_mib[position]), rooms.equal[position]

    def _each(self, total_mib: int, promised_mib: int, equal: int) -> dict[int, _Need]:
        """What each combination of parts that fits such a GPU takes, by its place in ``every_count``."""
        gpu = total_mib, promised_mib, equal
        if gpu not in self._fitting:
            needs = (self._needed(counts, total_mib, equal) for counts in every_count(self.wanted))
            self._fitting[gpu] = {
                way: need
                for way, need in enumerate(needs)
                if way and need.cores <= ALL_CORES and need.memory_mib <= promised_mib
            }
        return self._fitting[gpu]

    def _needed(self, counts: Counts, total_mib: int, equal: int) -> _Need:
        """What some parts take of a GPU together."""
        each = [(amount, count) for amount, count in zip(self._taken(total_mib, equal), counts, strict=True) if count]
        return _Need(
            sum(amount.cores * count for amount, count in each),
            sum(amount.memory_mib * count for amount, count in each),
            sum(portion(amount, total_mib) * count for amount, count in each),
        )

    def _ways(self, left: _Left) -> Mapping[Counts, int]:
        every = every_count(self.wanted)
        return {counts: cost for counts in every if (cost := self.cost(left, counts)) is not None}

    def parts(self, left: _Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """Return so many shares of each kind on the GPU with this number, each after its kind."""
        return [
            (kind, SharePart(gpu=gpu, amount=amount))
            for kind, (amount, count) in enumerate(zip(self._taken(left.total_mib, left.equal), counts, strict=True))
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
