"""What a request for parts asks of each GPU, whether they are shares or MIG slices.

Parts of a request that are alike are of one *kind*; ``counts`` are numbers of parts by kind. What is *left* of a GPU is
a value that an ask makes and reads itself.
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
    """A request of parts.

    Attributes:
        wanted: How many parts of each kind.
        containers: For each container the kinds of its parts.
        sliced: Whether it asks for MIG slices.
    """

    wanted: Counts
    containers: tuple[tuple[int, ...], ...]
    sliced: bool

    @property
    def request(self) -> Share | Mig:
        """Return the request for shares or MIG slices."""

    def costs(self, rooms: Rooms, kind: int) -> Array:
        """Return what one part of a kind costs on each GPU with room: (g, nodes); ``NONE`` if it does not fit."""

    def room(self, rooms: Rooms) -> Array:
        """Return how much each GPU has free for parts, as one number to find the emptiest by: (g, nodes)."""

    def most(self, rooms: Rooms, kind: int) -> Array:
        """Return how many parts of a kind of the request fit on each GPU with something left: (g, nodes)."""

    def most_empty(self, rooms: Rooms, kind: int) -> Array:
        """Return how many parts of a kind of the request fit on an empty GPU at each position: (g,)."""

    def volumes(self, rooms: Rooms) -> tuple[int, Array, Array]:
        """Return what all parts of the request take at least, each GPU has left, and an empty one has.

        Shapes: int, (g, nodes), (g,).
        """

    def left(self, rooms: Rooms, position: int, slot: int) -> Left:
        """Return what a GPU has free for parts."""

    def empty(self, rooms: Rooms, position: int) -> Left:
        """Return what an empty GPU has for parts."""

    def said(self, left: Left) -> str:
        """Return in words what a GPU has free for parts."""

    def ways(self, left: Left) -> Mapping[Counts, int]:
        """Return the cost of each combination of parts that fits, by its counts; the empty one costs 0."""

    def each_cost(self, rooms: Rooms, position: int, slots: Ints) -> Mapping[int, Array]:
        """Return the cost of every number of parts of the request on the GPU at a position: (len(slots),) int32 each.

        By number in ``every_count``. ``NONE`` or somewhat more where they do not fit; those that fit no such GPU are
        left out, and none of any.
        """

    def each_cost_empty(self, rooms: Rooms, position: int) -> Mapping[int, int]:
        """Return the cost of every number of parts that fits on an empty GPU, by number in ``every_count``."""

    def largest_first(self) -> list[int]:
        """Return the kinds of the requested parts, the hardest to place first."""

    def cost(self, left: Left, counts: Counts) -> int | None:
        """Return what so many parts of each kind cost together on one GPU; None if they do not fit."""

    def parts(self, left: Left, counts: Counts, *, gpu: int) -> Sequence[tuple[int, Part]]:
        """Return so many parts of each kind of the request, placed on the GPU with this number, each after its kind."""


@lru_cache(maxsize=256)
def every_count(wanted: Counts) -> tuple[Counts, ...]:
    """Return all combinations of at most so many parts of each kind as the request wants, the empty one first."""
    return tuple(itertools.product(*(range(count + 1) for count in wanted)))
