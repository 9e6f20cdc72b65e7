"""Nodes of one kind as arrays: same links, same products, same GPU numbers, whatever is free on each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator import demands
from dradriver.allocator.request import Request
from dradriver.allocator.subsets import Bools, Ints
from dradriver.allocator.tables import Tables
from dradriver.topology.machine import Gpu, Machine

_FEW = 1000  # so many names are sorted at once rather than the order of all names kept up


def kind_of(machine: Machine, tables: Tables) -> tuple[object, ...]:
    """What nodes must share to be of one kind; machines of equal links need not share products or numbers."""
    gpus = ((gpu.index, gpu.product, gpu.architecture, gpu.memory_mib) for gpu in machine.gpus)
    return (id(tables), *gpus)


class Alike:
    """All nodes of one kind: slot ``i`` of every array is ``names[i]``.

    Attributes:
        tables: Their tables.
        gpus: The GPUs of the first of them, for what all of them share.
        names: Names of the nodes.
    """

    def __init__(self, tables: Tables, gpus: tuple[Gpu, ...]) -> None:
        self.tables = tables
        self.gpus = gpus
        self.names: list[str] = []
        # Masks of up to 16 GPUs: 2 bytes each.
        self._free = np.zeros(64, dtype=np.uint16)
        self._promised = np.zeros(64, dtype=np.uint16)
        self._site = np.zeros(64, dtype=np.int32)
        self._place: Ints | None = None  # of each slot's name among all names

    def add(self, name: str, free: int) -> int:
        """Take in a node; its slot."""
        slot = len(self.names)
        if slot == len(self._free):
            self._free = np.concatenate((self._free, np.zeros_like(self._free)))
            self._promised = np.concatenate((self._promised, np.zeros_like(self._promised)))
            self._site = np.concatenate((self._site, np.zeros_like(self._site)))
        self.names.append(name)
        self._free[slot] = free
        self._promised[slot] = self._site[slot] = 0
        self._place = None
        return slot

    def drop(self, slot: int) -> str:
        """Free a slot by moving the last node into it; the name of the node that is there now."""
        last = len(self.names) - 1
        for kept in (self._free, self._promised, self._site):
            kept[slot] = kept[last]
        self.names[slot] = self.names[last]
        self.names.pop()
        self._place = None
        return self.names[slot] if slot < last else ""

    def set_free(self, slot: int, mask: int) -> None:
        """Say what is free on a node."""
        self._free[slot] = mask

    def set_promised(self, slot: int, mask: int) -> None:
        """Say what of it is promised to placements that are not bound yet."""
        self._promised[slot] = mask

    def free(self, slot: int) -> int:
        """Free positions of a node, promised ones included."""
        return int(self._free[slot])

    def promised(self, slot: int) -> int:
        """Promised positions of a node."""
        return int(self._promised[slot])

    def set_site(self, slot: int, site: int) -> None:
        """Say where a node stands: the number of its location."""
        self._site[slot] = site

    def sites(self) -> NDArray[np.int32]:
        """Number of each node's location: (nodes,), int32."""
        return self._site[: len(self.names)]

    def offered(self) -> NDArray[np.uint16]:
        """What is free and not promised, per slot: (nodes,), uint16."""
        count = len(self.names)
        return self._free[:count] & ~self._promised[:count]

    def suitable(self, request: Request) -> int:
        """Mask of the positions whose GPUs are of the kind that is wanted."""
        if not demands.filters(request):
            return self.tables.everything
        return sum(1 << place for place, gpu in enumerate(self.gpus) if demands.suits(gpu, request))

    def include(self, request: Request) -> int | None:
        """Mask of the GPUs that must be in the set; None where these nodes have no such numbers."""
        places = {gpu.index: place for place, gpu in enumerate(self.gpus)}
        if not set(request.include) <= places.keys():
            return None
        return sum(1 << places[number] for number in set(request.include))

    def first_names(self, slots: Ints, limit: int) -> list[str]:
        """The first names, in their order, of some slots."""
        if len(slots) > _FEW:
            if self._place is None:
                order = sorted(range(len(self.names)), key=self.names.__getitem__)
                self._place = np.empty(len(order), dtype=np.int64)
                self._place[order] = np.arange(len(order))
            if len(slots) > limit:
                slots = slots[np.argpartition(self._place[slots], limit - 1)[:limit]]
        return sorted(self.names[slot] for slot in slots.tolist())[:limit]


class Looked:
    """Some nodes of one kind as a request sees them.

    Attributes:
        alike: The nodes.
        masks: The different sets of free, unpromised positions of the wanted kind that occur, ascending.
        counts: (largest mask + 1,) int64, how many nodes have each.
    """

    def __init__(self, alike: Alike, *, request: Request, eligible: Bools | None) -> None:
        self.alike = alike
        offered = alike.offered()
        suits = alike.suitable(request)
        usable = offered if suits == alike.tables.everything else offered & np.uint16(suits)
        self.counts = np.bincount(usable if eligible is None else usable[eligible], minlength=1)
        self.masks: Ints = np.flatnonzero(self.counts)
        self._usable = usable
        self._eligible = eligible

    def slots(self, mask: int) -> Ints:
        """Slots of the nodes with exactly this mask."""
        same = self._usable == mask
        if self._eligible is not None:
            same &= self._eligible
        return np.flatnonzero(same)

    def first_names(self, mask: int, limit: int) -> list[str]:
        """The first names of the nodes with exactly this mask."""
        return self.alike.first_names(self.slots(mask), limit)

    def all_slots(self) -> Ints:
        """Slots of all nodes that may be looked at."""
        if self._eligible is None:
            return np.arange(len(self.alike.names))
        return np.flatnonzero(self._eligible)

    def masks_of(self, slots: Sequence[int] | Ints) -> Ints:
        """The masks of some slots."""
        out: Ints = self._usable[slots].astype(np.int64)
        return out
