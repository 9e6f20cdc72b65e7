"""Defines ``Ask``: what requests for shares and for MIG slices have in common.

The searches of ``fleet`` call it. Equal fractions of a request are of one *kind*. ``counts`` is a combination of
fractions: the number of fractions of each kind. ``Left`` is the free capacity of one GPU. Its type differs for shares
and MIG slices, so other code only passes it back to the ``Ask`` that returned it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

from dradriver.allocator.parts.free_capacity import Rooms
from dradriver.allocator.request import Mig, Part, Share
from dradriver.allocator.sets.subsets import Array, Ints

Left: TypeAlias = Any
Counts = tuple[int, ...]


class Ask(Protocol):
    """The protocol of requests for fractions of GPUs: shares or MIG slices.

    Attributes:
        wanted: The number of fractions of each kind. Equal fractions are of one kind.
        containers: For each container the kinds of its fractions.
        sliced: Whether the fractions are MIG slices; if not, they are shares.
    """

    wanted: Counts
    containers: tuple[tuple[int, ...], ...]
    sliced: bool

    @property
    def request(self) -> Share | Mig:
        """Return the request for shares or MIG slices."""

    def costs(self, rooms: Rooms, kind: int) -> Array:
        """Return the cost of one fraction of a kind on each GPU: (GPUs, nodes).

        The lowest cost is best: it says what later pods lose. It is ``NONE`` on a GPU where the fraction does not fit.
        ``rooms`` has the free capacity.
        """

    def room(self, rooms: Rooms) -> Array:
        """Return the free capacity of each GPU as one number: (GPUs, nodes).

        The emptiest GPU has the largest number. ``rooms`` has the free capacity for fractions.
        """

    def most(self, rooms: Rooms, kind: int) -> Array:
        """Return how many fractions of a kind fit on each GPU in use by fractions: (GPUs, nodes).

        ``rooms`` has the free capacity of these GPUs.
        """

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """Return how many fractions of a kind fit on each GPU of a node if the GPU is empty: (GPUs,).

        ``rooms`` has the GPUs of a group of nodes.
        """

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """Return three amounts: requested, free on each GPU, and of an empty GPU.

        The first is the least that all requested fractions need together. A search skips a node if its GPUs together
        have less than that. ``rooms`` has the free capacity. The shapes are: int, (GPUs, nodes), (GPUs,).
        """

    def left(self, rooms: Rooms, position: int, slot: int) -> Left:
        """Return the free capacity of one GPU, as the argument for ``ways`` and ``cost``.

        ``rooms`` has the free capacity of a group of nodes. ``slot`` is the column of the GPU's node in its arrays,
        ``position`` the row of the GPU.
        """

    def empty(self, rooms: Rooms, position: int) -> Left:
        """Return the capacity that one GPU would have if it were empty.

        ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """

    def said(self, left: Left) -> str:
        """Return as text the free capacity of a GPU, for messages."""

    def ways(self, left: Left) -> Mapping[Counts, int]:
        """Return the cost of each combination of fractions that fits into ``left``; lower is better.

        ``left`` is the free capacity of a GPU. A key is the number of fractions of each kind. The combination without
        fractions costs 0.
        """

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """Return the cost of each combination of fractions on one GPU of each node; lower is better.

        ``position`` is the row of the GPU in ``rooms``, ``slots`` are the columns of the nodes. A key is the index of
        the combination in ``every_count``, the list of all combinations. A value has the cost on each node of
        ``slots``: (len(slots),), int32. If a combination does not fit on a GPU, its cost is at least ``NONE``. A
        combination that would not fit even on an empty GPU is left out, and so is the combination without fractions.
        """

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """Return the cost of each combination of fractions on one empty GPU; lower is better.

        A key is the index of the combination in ``every_count``, the list of all combinations. A combination that does
        not fit is left out. ``position`` is the row of the GPU in ``rooms``, which has the GPUs of a group of nodes.
        """

    def largest_first(self) -> list[int]:
        """Return the kinds of the requested fractions, the kind that is hardest to place first."""

    def cost(self, left: Left, counts: Counts) -> int | None:
        """Return the total cost of these fractions on one GPU; lower is better.

        The result is None if they do not fit. ``left`` is the free capacity of the GPU, ``counts`` the number of
        fractions of each kind.
        """

    def parts(self, left: Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """Return the fractions that the pod gets on one GPU, with their kinds.

        ``counts`` has the number of fractions of each kind. ``left`` is the GPU's free capacity, ``gpu`` its number.
        """


@lru_cache(maxsize=256)
def every_count(wanted: Counts) -> tuple[Counts, ...]:
    """Return all combinations of at most ``wanted`` fractions of each kind, the one without fractions first.

    A combination is the number of fractions of each kind. For ``(2, 1)`` these are (0, 0), (0, 1), (1, 0), (1, 1), (2,
    0) and (2, 1).
    """
    return tuple(itertools.product(*(range(count + 1) for count in wanted)))
