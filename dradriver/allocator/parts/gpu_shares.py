"""Requests for shares. A share fits on a GPU that has enough free compute and enough free memory for it.

``part_ranking`` makes the requests. The cost of a share is the capacity that remains free on its GPU: compute and
memory, added up as portions of the GPU. So the fullest GPU with enough capacity is the cheapest one. Shares of one size
are of one *kind*; the methods get the kind's number.
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
    """Return the largest share that a GPU with ``memory_mib`` of memory can give.

    ``equal`` is the number of equal shares into which it is divided; 0 for shares of any size.
    """
    return Amount(ALL_CORES // equal, memory_mib // equal) if equal else Amount(ALL_CORES, memory_mib)


def share_of(amount: Amount, memory_mib: int, equal: int) -> Amount | None:
    """Return the compute and memory that a share takes of a GPU.

    The result is None if a share cannot be that large. If the GPU is divided into equal shares, the result is one of
    these, even if the request is smaller.

    Args:
        amount: The requested amount.
        memory_mib: The memory of the GPU, MiB.
        equal: The number of equal shares of the GPU; 0 for shares of any size.
    """
    asked, most = amount.of(memory_mib), largest_share(memory_mib, equal)
    if asked.cores > most.cores or asked.memory_mib > most.memory_mib:
        return None
    return most if equal else asked


class _Left(NamedTuple):
    """The free compute and memory of a GPU, its total memory, and the number of its equal shares."""

    cores: int
    memory_mib: int
    total_mib: int
    equal: int


class _Need(NamedTuple):
    """The compute and memory that some shares take of a GPU, and both together as one number.

    ``portion``, this number, is the fraction of the GPU's compute plus the fraction of its memory.
    """

    cores: int
    memory_mib: int
    portion: int


class Shares:
    """A request for shares of GPUs, with the costs that compare places.

    It implements ``Ask``, the protocol of requests for fractions.
    """

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
        """Return the cost of one share on each GPU of ``rooms``: (GPUs, nodes).

        The cost is the capacity that the GPU has free before the share is placed, as one number: the lowest is best. It
        is ``NONE`` where the share does not fit. ``kind`` is the number of the share's size in the request.
        """
        cores, memory = self._needs(rooms, kind)
        fits = (rooms.cores >= cores) & (rooms.memory >= memory)
        return np.where(fits, rooms.spare, np.int32(NONE))

    def room(self, rooms: Rooms) -> Array:
        """Return the free compute and memory of each GPU as one number: (GPUs, nodes).

        The number is the free portion of the compute plus the free portion of the memory (``portion``). ``rooms`` has
        the free capacity.
        """
        return rooms.spare

    def most(self, rooms: Rooms, kind: int) -> Array:
        """Return how many shares of one size (``kind``) fit on each GPU in use by fractions: (GPUs, nodes).

        ``rooms`` has the free capacity of these GPUs.
        """
        cores, memory = self._needs(rooms, kind)
        return np.minimum(rooms.cores // cores, rooms.memory // memory)

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """Return how many shares of one size (``kind``) fit on each GPU of a node if the GPU is empty: (GPUs,).

        ``rooms`` has the GPUs of a group of nodes.
        """
        cores, memory = self._needs(rooms, kind)
        out: Array = np.minimum(ALL_CORES // cores, rooms.promised_mib[:, None] // memory)[:, 0]
        return out

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """Return three percentages of compute: requested, free on each GPU, and of an empty GPU.

        The first is the least that all requested shares need together. A search skips a node if its GPUs together have
        less than that. ``rooms`` has the free capacity. The shapes are: int, (GPUs, nodes), (GPUs,).
        """
        each = [int(self._needs(rooms, kind)[0].min()) for kind in range(len(self._kinds))]
        total = sum(cores * count for cores, count in zip(each, self.wanted, strict=True))
        return total, rooms.cores, np.full(len(rooms.memory_mib), ALL_CORES)

    def left(self, rooms: Rooms, position: int, slot: int) -> _Left:
        """Return the free compute and memory of one GPU.

        ``rooms`` has the free capacity of a group of nodes. ``position`` is the row of the GPU in its arrays, ``slot``
        the column of the GPU's node.
        """
        cores, memory = int(rooms.cores[position, slot]), int(rooms.memory[position, slot])
        return _Left(cores, memory, int(rooms.memory_mib[position]), rooms.equal[position])

    def empty(self, rooms: Rooms, position: int) -> _Left:
        """Return the compute and memory that shares can have on one GPU if it is empty.

        ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """
        total, promised = int(rooms.memory_mib[position]), int(rooms.promised_mib[position])
        return _Left(ALL_CORES, promised, total, rooms.equal[position])

    def said(self, left: _Left) -> str:
        """Return as text the free compute and memory of a GPU, for messages."""
        return amount(Amount(left.cores, left.memory_mib))

    def largest_first(self) -> list[int]:
        """Return the numbers of the shares' sizes in the request, the largest size first."""
        sizes = [(-each.cores, -each.memory_mib, kind) for kind, each in enumerate(self._kinds)]
        return [kind for _, _, kind in sorted(sizes)]

    def ways(self, left: _Left) -> Mapping[Counts, int]:
        """Return the cost of each combination of shares that fits on a GPU; lower is better.

        A key is the number of shares of each size. The cost is the capacity that remains free on the GPU. ``left`` is
        the free capacity of the GPU now.
        """
        return self._known(left)

    def cost(self, left: _Left, counts: Counts) -> int | None:
        """Return the total cost of these shares on one GPU; lower is better.

        The result is None if they do not fit. ``left`` is the free capacity of the GPU, ``counts`` the number of shares
        of each size.
        """
        need = self._needed(counts, left.total_mib, left.equal)
        if need.cores > left.cores or need.memory_mib > left.memory_mib:
            return None
        return portion(Amount(left.cores, left.memory_mib), left.total_mib) - need.portion if any(counts) else 0

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """Return the cost of each combination of shares on one GPU of each node; lower is better.

        ``position`` is the row of the GPU in ``rooms``, ``slots`` are the columns of the nodes. A key is the index of
        the combination in ``every_count``, the list of all combinations. A value has the cost on each node of
        ``slots``: (len(slots),), int32.
        """
        rows = [rooms.cores[position], rooms.memory[position], rooms.spare[position]]
        cores, memory, spare = rows if len(slots) == len(rows[0]) else [row[slots] for row in rows]
        out = {}
        for way, need in self._each(*self._gpu(rooms, position)).items():
            lacking = (cores < need.cores) | (memory < need.memory_mib)
            # Faster than to choose by what is true: chance makes processors guess wrong.
            out[way] = lacking * np.int32(NONE + need.portion) + (spare - np.int32(need.portion))
        return out

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """Return the cost of each combination of shares on one empty GPU; lower is better.

        A key is the index of the combination in ``every_count``, the list of all combinations. A combination that does
        not fit is left out. ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """
        total, promised, equal = self._gpu(rooms, position)
        whole = portion(Amount(ALL_CORES, promised), total)
        return {way: whole - need.portion for way, need in self._each(total, promised, equal).items()}

    def _gpu(self, rooms: Rooms, position: int) -> tuple[int, int, int]:
        """Return three properties of the GPU in row ``position`` of ``rooms``.

        1. its memory, MiB
        2. the memory that all its shares together may have, MiB
        3. the number of its equal shares; 0 for shares of any size
        """
        return int(rooms.memory_mib[position]), int(rooms.promised_mib[position]), rooms.equal[position]

    def _each(self, total_mib: int, promised_mib: int, equal: int) -> dict[int, _Need]:
        """Return what each combination of shares needs of a GPU, for combinations that fit on it if it is empty.

        Keys are indices into ``every_count``, the list of all combinations. ``total_mib`` is the memory of the GPU,
        ``promised_mib`` the memory that all its shares together may have, MiB. ``equal`` is the number of its equal
        shares; 0 for shares of any size.
        """
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
        """Return what some shares together need of one GPU.

        ``counts`` has the number of shares of each size. ``total_mib`` is the memory of the GPU, ``equal`` the number
        of equal shares into which it is divided (0 for none).
        """
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
        """Return the shares that the pod gets on one GPU, with their size numbers.

        ``counts`` has the number of shares of each size. ``left`` is the GPU's free capacity, ``gpu`` its number.
        """
        return [
            (kind, SharePart(gpu=gpu, amount=amount))
            for kind, (amount, count) in enumerate(zip(self._taken(left.total_mib, left.equal), counts, strict=True))
            for _ in range(count)
        ]

    def _take(self, memory_mib: int, equal: int) -> tuple[Amount, ...]:
        """Return for each requested size the compute and memory that a share takes of a GPU.

        The GPU has ``memory_mib`` of memory and ``equal`` equal shares.
        """
        return tuple(share_of(kind, memory_mib, equal) or _TOO_MUCH for kind in self._kinds)

    def _needs(self, rooms: Rooms, kind: int) -> tuple[Array, Array]:
        """Return the compute and the memory that one share of a size takes of each GPU of a node.

        Both arrays have the shape (GPUs, 1). ``kind`` is the number of the size in the request.
        """
        gpus = zip(rooms.memory_mib.tolist(), rooms.equal, strict=True)
        amounts = [self._taken(memory, equal)[kind] for memory, equal in gpus]
        cores = np.array([each.cores for each in amounts], dtype=np.int32)[:, None]
        return cores, np.array([each.memory_mib for each in amounts], dtype=np.int32)[:, None]
