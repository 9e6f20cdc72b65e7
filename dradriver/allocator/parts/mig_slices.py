"""Requests for MIG slices. A slice is placed on the GPU, and at the start slice, where later pods lose least.

``layouts.py`` computes what they lose; ``part_ranking`` makes the requests. Slices of one profile are of one *kind*;
the methods get the kind's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.parts.layouts import NONE, Layout
from dradriver.allocator.parts.part_requests import Counts, every_count
from dradriver.allocator.request import Mig, MigPart, Part
from dradriver.allocator.sets.subsets import Array, Ints


class _Left(NamedTuple):
    """A GPU's layout (all possible MIG states), and the number of its current state.

    The layout is None for a GPU without MIG.
    """

    layout: Layout | None
    state: int


class Slices:
    """A request for MIG slices, with the costs by which places for them are compared.

    It implements ``Ask``, the protocol of requests for fractions.
    """

    sliced: bool = True

    def __init__(self, request: Mig) -> None:
        self._request = request
        every = [profile for profiles in request.profiles for profile in profiles]
        self._kinds = tuple(dict.fromkeys(every))
        self.wanted = tuple(every.count(profile) for profile in self._kinds)
        self.containers = tuple(tuple(map(self._kinds.index, profiles)) for profiles in request.profiles)
        self._fitting: dict[Layout, list[tuple[int, Array]]] = {}
        self._known = lru_cache(maxsize=1024)(self._ways)

    @property
    def request(self) -> Mig:
        """Return the request for MIG slices."""
        return self._request

    def costs(self, rooms: Rooms, kind: int) -> Array:
        """Return the cost of one MIG slice on each GPU of ``rooms``: (GPUs, nodes).

        The lowest cost is best. Costs compare what the GPU can no longer offer to later pods, and among equals how full
        the GPU is (``Layout.order``). The cost is ``NONE`` where the slice does not fit. ``kind`` is the number of the
        slice's profile in the request, ``rooms`` has the GPUs' MIG states.
        """
        out = np.full(rooms.states.shape, NONE, dtype=np.int32)
        for position, layout in enumerate(rooms.layouts):
            if layout is not None and (number := layout.number.get(self._kinds[kind])) is not None:
                layout.order[:, number].take(rooms.states[position], out=out[position], mode="clip")
        return out

    def room(self, rooms: Rooms) -> Array:
        """Return how much each GPU has free for MIG slices, as one number: (GPUs, nodes).

        The number measures what the GPU can still hold (the worth of its state in ``Layout``). ``rooms`` has the
        states.
        """
        out = np.zeros(rooms.states.shape, dtype=np.int32)
        for position, layout in enumerate(rooms.layouts):
            if layout is not None:
                layout.worth.take(rooms.states[position], out=out[position], mode="clip")
        return out

    def most(self, rooms: Rooms, kind: int) -> Array:
        """Return how many MIG slices of one profile (``kind``) fit on each GPU in use by fractions: (GPUs, nodes).

        ``rooms`` has the state of these GPUs.
        """
        out = np.zeros(rooms.states.shape, dtype=np.int32)
        for position, layout in enumerate(rooms.layouts):
            if layout is not None and (number := layout.number.get(self._kinds[kind])) is not None:
                layout.most[:, number].take(rooms.states[position], out=out[position], mode="clip")
        return out

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """Return how many MIG slices of a profile (``kind``) fit on each GPU of a node if the GPU is empty: (GPUs,).

        ``rooms`` has the GPUs of a group of nodes.
        """
        numbers = [layout.number.get(self._kinds[kind]) if layout else None for layout in rooms.layouts]
        most = [
            0 if layout is None or number is None else int(layout.most[0, number])
            for layout, number in zip(rooms.layouts, numbers, strict=True)
        ]
        return np.array(most, dtype=np.int64)

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """Return three numbers of memory slices: requested, free on each GPU, of an empty GPU.

        The first is the least that all requested MIG slices need together. A search skips a node if its GPUs together
        have less than that. Only memory slices that the requested profiles can take count as free. The shapes are: int,
        (GPUs, nodes), (GPUs,).
        """
        free = np.zeros(rooms.states.shape, dtype=np.int32)
        empty = np.zeros(len(rooms.layouts), dtype=np.int32)
        sizes = [1] * len(self._kinds)
        for position, layout in enumerate(rooms.layouts):
            if layout is not None:
                usable = np.minimum(layout.free, sum(self._usable(layout), start=np.int32(0)))
                usable.take(rooms.states[position], out=free[position], mode="clip")
                empty[position] = usable[0]
                sizes = [layout.profiles[n].size if n is not None else 1 for n in self._numbers(layout)]
        alike = len({layout.profiles for layout in rooms.layouts if layout is not None}) == 1
        least = sizes if alike else [1] * len(sizes)
        return sum(size * count for size, count in zip(least, self.wanted, strict=True)), free, empty

    def _usable(self, layout: Layout) -> Iterator[Array]:
        """Yield for each requested profile how many memory slices its instances can take.

        Each array has one entry for each MIG state of the GPU. Instances of other profiles are ignored. No more
        instances than requested count. ``layout`` has the states of the GPU.
        """
        for number, count in zip(self._numbers(layout), self.wanted, strict=True):
            if number is not None:
                yield np.minimum(layout.most[:, number], count) * np.int32(layout.profiles[number].size)

    def _numbers(self, layout: Layout) -> list[int | None]:
        return [layout.number.get(name) for name in self._kinds]

    def left(self, rooms: Rooms, position: int, slot: int) -> _Left:
        """Return the layout (all possible MIG states) and the present state of one GPU.

        ``rooms`` has the states for a group of nodes. ``position`` is the row of the GPU in its arrays, ``slot`` the
        column of the GPU's node.
        """
        return _Left(rooms.layouts[position], int(rooms.states[position, slot]))

    def empty(self, rooms: Rooms, position: int) -> _Left:
        """Return the layout (all possible MIG states) and the empty state of one GPU.

        ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """
        return _Left(rooms.layouts[position], 0)

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """Return the cost of each combination of MIG slices on one GPU of each node; lower is better.

        ``position`` is the row of the GPU in ``rooms``, ``slots`` are the columns of the nodes. A key is the index of
        the combination in ``every_count``, the list of all combinations. A value has the cost on each node of
        ``slots``: (len(slots),), int32.
        """
        states = rooms.states[position]
        states = states if len(slots) == len(states) else states[slots]
        return {way: costs.take(states, mode="clip") for way, costs in self._each(rooms.layouts[position])}

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """Return the cost of each combination of MIG slices on one empty GPU; lower is better.

        A key is the index of the combination in ``every_count``, the list of all combinations. A combination that does
        not fit is left out. ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """
        return {way: int(costs[0]) for way, costs in self._each(rooms.layouts[position])}

    def _each(self, layout: Layout | None) -> list[tuple[int, Array]]:
        """Return the costs of each combination of slices that fits on an empty GPU, by state.

        ``layout`` has the states of the GPU; None for a GPU without MIG. Each entry is a pair: the index of the
        combination in ``every_count``, the list of all combinations, and an array with the cost in each state.
        """
        if layout is None:
            return []
        if layout not in self._fitting:
            numbers = self._numbers(layout)
            self._fitting[layout] = [
                (way, costs)
                for way, counts in enumerate(every_count(self.wanted))
                if way and not any(count and number is None for count, number in zip(counts, numbers, strict=True))
                for costs in (layout.costs(_by_profile(layout, numbers, counts)),)
                if costs[0] < NONE
            ]
        return self._fitting[layout]

    def ways(self, left: _Left) -> Mapping[Counts, int]:
        """Return the cost of each combination of MIG slices that fits on a GPU.

        A key is the number of slices of each profile. ``left`` has the possible MIG states of the GPU (its layout), and
        its state now.
        """
        return self._known(left)

    def _ways(self, left: _Left) -> Mapping[Counts, int]:
        if left.layout is None:
            return {(0,) * len(self.wanted): 0}
        numbers = self._numbers(left.layout)
        ways = left.layout.ways(left.state, _by_profile(left.layout, numbers, self.wanted))
        return {
            tuple(0 if number is None else counts[number] for number in numbers): way.cost
            for counts, way in ways.items()
        }

    def said(self, left: _Left) -> str:
        """Return the names of the MIG profiles that still fit on a GPU, as text."""
        if left.layout is None:
            return "no MIG slice"
        most = left.layout.most[left.state]
        return ", ".join(p.name for p, count in zip(left.layout.profiles, most, strict=True) if count)

    def largest_first(self) -> list[int]:
        """Return the numbers of the requested profiles, the profile that is hardest to place first."""
        return sorted(range(len(self._kinds)), key=lambda kind: (-int(self._kinds[kind].partition("g")[0]), kind))

    def cost(self, left: _Left, counts: Counts) -> int | None:
        """Return the total cost of these MIG slices on one GPU.

        The result is None if they do not fit. ``counts`` is the number of slices of each profile. ``left`` has the
        possible MIG states of the GPU (its layout), and its state now.
        """
        if left.layout is None:
            return None if any(counts) else 0
        numbers = self._numbers(left.layout)
        if any(count and number is None for count, number in zip(counts, numbers, strict=True)):
            return None
        wanted = _by_profile(left.layout, numbers, counts)
        way = left.layout.ways(left.state, wanted).get(wanted)
        return None if way is None else way.cost

    def parts(self, left: _Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """Return the MIG slices that the pod gets on one GPU, with their profile numbers.

        ``counts`` has the number of slices of each profile. ``left`` has the possible MIG states of the GPU (its
        layout), and its state now. ``gpu`` is the GPU's number.
        """
        assert left.layout is not None, "there is a way"
        numbers = self._numbers(left.layout)
        wanted = _by_profile(left.layout, numbers, counts)
        parts: list[tuple[int, Part]] = []
        for number, start in left.layout.ways(left.state, wanted)[wanted].placements:
            profile = left.layout.profiles[number]
            part = MigPart(gpu=gpu, profile=profile.name, start=start, size=profile.size)
            parts.append((self._kinds.index(profile.name), part))
        return parts


def _by_profile(layout: Layout, numbers: Sequence[int | None], counts: Counts) -> Counts:
    """Return the number of requested slices in the order of a layout's profiles.

    Args:
        layout: The MIG layout of a GPU: its profiles, and all states that instances can bring it into.
        numbers: For each requested profile its number in the layout; None if the layout does not have it.
        counts: The number of slices of each requested profile.
    """
    out = [0] * len(layout.profiles)
    for number, count in zip(numbers, counts, strict=True):
        if number is not None:
            out[number] = count
    return tuple(out)
