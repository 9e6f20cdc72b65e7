"""Node groups: all nodes with the same kind of machine, as arrays. ``Fleet`` owns them.

The nodes of a group have the same links, products and GPU numbers. The index of a node in the arrays is its *slot*.
Free GPUs are bit masks: bit ``i`` is the GPU at position ``i`` of its machine. A *fraction* of a GPU is a share or a
MIG slice.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.choice.filters import filters, suitable
from dradriver.allocator.choice.machine_choice import describe
from dradriver.allocator.parts.free_capacity import Masks, Rooms
from dradriver.allocator.parts.offers import WHOLE, Offer, ShareRule
from dradriver.allocator.request import Choice, Constraint, Part, Request, Whole
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.shape import shape_of
from dradriver.allocator.sets.subsets import Bools, Ints
from dradriver.allocator.sets.tables import Tables
from dradriver.topology.machine import Machine

NO_ROW = -1
_MOST_ANSWERS = 1024  # kept of each kind


Rules = tuple[tuple[int, ShareRule], ...]
"""How GPUs are shared, by the machine's own numbers, ascending."""


def group_key(machine: Machine, rules: Rules = ()) -> Hashable:
    """Return a key that is equal for machines whose nodes belong into one group.

    The key has links, products, versions of the GPU driver and MIG profiles of the machine. It also has ``rules``,
    which say how large the shares of each GPU may be.
    """
    gpus = ((gpu.index, gpu.products, gpu.architecture, gpu.memory_mib, gpu.profiles) for gpu in machine.gpus)
    return (shape_of(machine), machine.vendor.word, machine.driver_version, machine.cuda_version, rules, *gpus)


def without_uuids(machine: Machine) -> Machine:
    """Return the machine without the uuids of its GPUs.

    All nodes of a group share this machine.
    """
    gpus = tuple(msgspec.structs.replace(gpu, uuid="") for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


_NUMBERS: Final = itertools.count()


class NodeGroup:
    """All nodes with the same kind of machine.

    The slot of a node is its index in every array: the node ``names[i]`` has slot ``i``.

    Attributes:
        tables: The bandwidth and other figures of all sets of the machine's GPUs.
        machine: The machine without uuids, which all nodes share.
        key: The ``group_key`` of the machine.
        number: A number that identifies the group. A copy of the group has the same number.
        rules: By GPU number, how large the shares of the GPU may be (``ShareRule``).
        vendor: The vendor of the GPUs.
        names: The names of the nodes.
        rooms: The free capacity for fractions (shares and MIG slices); None while no node of the group offers GPUs as
            fractions.
    """

    def __init__(self, tables: Tables, machine: Machine, *, key: Hashable, rules: Rules = ()) -> None:
        self.tables = tables
        self.machine = machine
        self.key = key
        self.number = next(_NUMBERS)
        self.rules = rules
        self.names: list[str] = []
        self._shares_names = False
        self.rooms: Rooms | None = None
        self.vendor = machine.vendor.word
        self._bit = {gpu.index: 1 << position for position, gpu in enumerate(machine.gpus)}
        # Masks of up to 16 GPUs: 2 bytes each.
        self._free = np.zeros(64, dtype=np.uint16)
        self._row = np.zeros(64, dtype=np.int64)
        self._site = np.zeros(64, dtype=np.int32)
        self._by_name: Ints | None = None
        # Of no method of its own, so that the group and its tables go with its last node and wait for no collector.
        self._suitable = lru_cache(maxsize=_MOST_ANSWERS)(partial(_suitable, machine))
        self._described = lru_cache(maxsize=_MOST_ANSWERS)(partial(_describe, machine, tables))

    def add(self, name: str, *, row: int = NO_ROW, site: int = 0) -> int:
        """Add the node ``name`` without free GPUs, and return its index in the group's arrays.

        ``row`` is the node's index in the caller's arrays; ``NO_ROW`` if it has none. ``site`` is the number of its
        network location; 0 if unknown.
        """
        slot = len(self.names)
        if slot == len(self._free):
            self._free = np.concatenate((self._free, np.zeros_like(self._free)))
            self._row = np.concatenate((self._row, np.zeros_like(self._row)))
            self._site = np.concatenate((self._site, np.zeros_like(self._site)))
        self._unshare_names()
        self.names.append(name)
        self._free[slot], self._row[slot], self._site[slot] = 0, row, site
        if self.rooms is not None:
            self.rooms.add()
        self._by_name = None
        return slot

    def drop(self, slot: int) -> str:
        """Remove the node at ``slot`` from the group.

        A slot is the index of a node in the group's arrays. The node in the last slot moves into this one. Return the
        name of that node, or an empty text if the removed node was itself in the last slot.
        """
        last = len(self.names) - 1
        for array in (self._free, self._row, self._site):
            array[slot] = array[last]
        if self.rooms is not None:
            self.rooms.drop(slot)
        self._unshare_names()
        self.names[slot] = self.names[last]
        self.names.pop()
        self._by_name = None
        return self.names[slot] if slot < last else ""

    def copied(self) -> NodeGroup:
        """Return a copy of the group, for simulations.

        The copy shares the figures of GPU sets. Changes of nodes in one do not change the other.
        """
        # Names change far less often than what is free: a copy is made when a node comes or goes.
        self._shares_names = True
        new = copy.copy(self)
        new.rooms = None if self.rooms is None else self.rooms.copied()
        new._free, new._row, new._site = self._free.copy(), self._row.copy(), self._site.copy()
        return new

    def _unshare_names(self) -> None:
        if self._shares_names:
            self.names, self._shares_names = self.names.copy(), False

    def mask_of(self, gpus: Collection[int]) -> int:
        """Return the bit mask of the GPUs with these numbers.

        Raises:
            KeyError: The machine does not have one of the numbers.
        """
        mask = 0
        for number in gpus:
            mask |= self._bit[number]
        return mask

    def set_free(self, slot: int, mask: int) -> None:
        """Set the free GPUs of a node, as a bit mask.

        GPUs that have fractions in use, or are offered as fractions only, do not become free for whole requests.
        ``slot`` is the index of the node in the group.
        """
        if self.rooms is not None:
            mask = self.rooms.set(slot, self.rooms.masks(slot)._replace(unheld=mask))
        self._free[slot] = mask

    def set_offer(self, slot: int, offer: Offer) -> None:
        """Set which GPUs of a node can be used as fractions (shares or MIG slices).

        ``slot`` is the index of the node in the group, ``offer`` has the GPUs.

        Raises:
            KeyError: The node does not have one of the GPU numbers.
        """
        shared, sliced, parts_only = map(self.mask_of, (offer.shared, offer.sliced, offer.parts_only))
        tenants = tuple((self.mask_of([number]).bit_length() - 1, tenant) for number, tenant in offer.tenants)
        if self.rooms is not None or shared | sliced | parts_only:
            rooms = self._made_rooms()
            self._free[slot] = rooms.set(slot, Masks(rooms.masks(slot).unheld, shared, sliced, parts_only, tenants))

    def set_parts(self, slot: int, parts: Mapping[int, Sequence[Part]]) -> None:
        """Set the fractions (shares and MIG slices) that are in use on a node's GPUs, by GPU number.

        ``slot`` is the index of the node in the group.

        Raises:
            KeyError: The node does not have one of the GPU numbers.
        """
        by_position = {self._bit[number].bit_length() - 1: each for number, each in parts.items()}
        if self.rooms is not None or any(by_position.values()):
            self._free[slot] = self._made_rooms().set_parts(slot, by_position)

    def narrow(self, slot: int, mask: int) -> None:
        """Let a node offer only the GPUs of a bit mask.

        Fractions that are in use on the other GPUs stay. ``slot`` is the index of the node in the group.
        """
        if self.rooms is None:
            self._free[slot] &= mask
            return
        own = self.rooms.masks(slot)
        less = own._replace(unheld=own.unheld & mask, shared=own.shared & mask, sliced=own.sliced & mask)
        self._free[slot] = self.rooms.set(slot, less)

    def offer_and_parts(self, slot: int) -> tuple[Offer, dict[int, Sequence[Part]]]:
        """Return which GPUs a node offers as fractions, and the fractions in use.

        Fractions are shares or MIG slices; those in use are listed by GPU number. ``slot`` is the index of the node in
        the group.
        """
        if self.rooms is None:
            return WHOLE, {}
        number = [gpu.index for gpu in self.machine.gpus]
        _, *masks, by_position = self.rooms.masks(slot)
        shared, sliced, parts_only = (frozenset(number[at] for at in positions_of(mask)) for mask in masks)
        tenants = tuple((number[position], tenant) for position, tenant in by_position)
        parts = {number[position]: each for position, each in self.rooms.parts(slot).items()}
        offer = Offer(shared=shared, sliced=sliced, parts_only=parts_only, rules=self.rules, tenants=tenants)
        return offer, parts

    def unheld(self, slot: int) -> int:
        """Return the bit mask of a node's GPUs that are not allocated as whole GPUs.

        ``slot`` is the index of the node in the group. Fractions of the GPUs may be in use.
        """
        return self.free(slot) if self.rooms is None else self.rooms.masks(slot).unheld

    def _made_rooms(self) -> Rooms:
        if self.rooms is None:
            self.rooms = Rooms(self.machine, dict(self.rules))
            for slot, free in enumerate(self.free_masks().tolist()):
                self.rooms.add()
                self.rooms.set(slot, Masks(unheld=free))
        return self.rooms

    def set_row(self, slot: int, row: int) -> None:
        """Set the row of a node: its index in the arrays that the caller passes.

        ``slot`` is the index of the node in the group.
        """
        self._row[slot] = row

    def set_site(self, slot: int, site: int) -> None:
        """Set where a node is in the network, as the number of a location (site).

        ``slot`` is the index of the node in the group.
        """
        self._site[slot] = site

    def free(self, slot: int) -> int:
        """Return the free GPUs of a node as a bit mask; ``slot`` is its index."""
        return int(self._free[slot])

    def row_and_site(self, slot: int) -> tuple[int, int]:
        """Return a node's row, and the number of its network location.

        The row is the node's index in the caller's arrays. ``slot`` is its index in the group.
        """
        return int(self._row[slot]), int(self._site[slot])

    def free_masks(self) -> NDArray[np.uint16]:
        """Return the free GPUs of each node as a bit mask: (nodes,), uint16.

        The array is a view of the group's own array. Bit ``i`` is the GPU at position ``i``.
        """
        return self._free[: len(self.names)]

    def spared_masks(self) -> NDArray[np.uint16]:
        """Return each node's free GPUs that cannot be used as fractions, as a bit mask.

        Fractions are shares and MIG slices. The shape is (nodes,), uint16.
        """
        free = self.free_masks()
        if self.rooms is None:
            return free
        return free & ~(self.rooms.opening(sliced=False) | self.rooms.opening(sliced=True))

    def sites(self) -> NDArray[np.int32]:
        """Return the number of each node's network location: (nodes,), int32.

        The array is a view of the group's own array.
        """
        return self._site[: len(self.names)]

    def rows(self) -> Ints:
        """Return the row of each node: its index in the caller's arrays.

        The shape is (nodes,), int64; the array is a view of the group's own array. The row is ``NO_ROW`` for a node
        that the caller's arrays do not have.
        """
        return self._row[: len(self.names)]

    def by_name(self) -> Ints:
        """Return the slots (indices) of the group's nodes, sorted by the nodes' names: (nodes,), int64."""
        if self._by_name is None:
            self._by_name = np.array(sorted(range(len(self.names)), key=self.names.__getitem__), dtype=np.int64)
        return self._by_name

    def at_rows(self, eligible: Bools) -> Bools:
        """Return for each node of the group whether the caller's array says that it is eligible: (nodes,).

        ``eligible`` has one entry for each row. The result is False for a node without a row.
        """
        rows = self.rows()
        if not len(eligible):
            return np.zeros(len(rows), dtype=np.bool_)
        out: Bools = eligible.take(rows, mode="clip")
        out &= rows.view(np.uint64) < len(eligible)  # of no row this makes a row far beyond the end
        return out

    def suitable(self, request: Request) -> int:
        """Return the bit mask of the GPUs that a request accepts on the group's nodes, free or not.

        The result is 0 if the request is for another vendor.
        """
        if request.vendor != self.vendor:
            return 0
        if not filters(request):
            return self.tables.everything
        exclude = request.exclude if isinstance(request, Whole) else ()
        kind = request.product, request.architecture, request.min_memory_mib, request.min_driver, request.min_cuda
        return self._suitable(*kind, exclude, request.near_nic if isinstance(request, Whole) else "")

    def include(self, request: Whole) -> int | None:
        """Return the GPUs that a set for this request must include, as a bit mask.

        The request names them by number. The result is None if the machine does not have one of the numbers.
        """
        if not self._bit.keys() >= set(request.include):
            return None
        return self.mask_of(request.include)

    def describe(self, taken: int, request: Whole) -> Choice:
        """Return the choice of a set of GPUs, which is the same for all nodes of the group.

        ``taken`` is the bit mask of the set, ``request`` the pod's request. ``node`` of the choice is empty.
        """
        return self._described(taken, request.containers, request.preferred)


def _suitable(
    machine: Machine,
    product: str,
    architecture: str,
    memory_mib: int,
    driver: str,
    cuda: str,
    exclude: tuple[int, ...],
    near_nic: str,
) -> int:
    wish = Whole(
        containers=(), vendor=machine.vendor.word, product=product, architecture=architecture,
        min_memory_mib=memory_mib, min_driver=driver, min_cuda=cuda, exclude=exclude, near_nic=near_nic,
    )  # fmt: skip
    return suitable(machine, wish)


def _describe(
    machine: Machine, tables: Tables, taken: int, containers: tuple[int, ...], preferred: tuple[Constraint, ...]
) -> Choice:
    return describe(machine, tables, taken, request=Whole(containers=containers, preferred=preferred))
