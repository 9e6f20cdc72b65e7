"""Node groups: nodes of one kind as arrays, with the same links, products and GPU numbers, whatever is free on each."""

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
    """Return what nodes must share to be of one group; equal links are not enough, products and drivers count, too."""
    gpus = ((gpu.index, gpu.products, gpu.architecture, gpu.memory_mib, gpu.profiles) for gpu in machine.gpus)
    return (shape_of(machine), machine.vendor.word, machine.driver_version, machine.cuda_version, rules, *gpus)


def without_uuids(machine: Machine) -> Machine:
    """Return the machine as all nodes of a group have it in common: without its GPUs' uuids."""
    gpus = tuple(msgspec.structs.replace(gpu, uuid="") for gpu in machine.gpus)
    return msgspec.structs.replace(machine, gpus=gpus)


_NUMBERS: Final = itertools.count()


class NodeGroup:
    """All nodes of one kind: slot ``i`` of every array is ``names[i]``.

    Attributes:
        tables: Their tables.
        machine: The machine of the first of them, without uuids, for what all of them share.
        key: What ``group_key`` gives for each.
        number: A short name of the group. Copies have the same.
        rules: How their GPUs are shared, by number.
        vendor: The vendor of their GPUs.
        names: Names of the nodes.
        rooms: What is left of GPUs that may be had in parts; None while no node of the group offers any.
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
        """Add a node to the group with nothing free on it, and return its slot in the group."""
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
        """Drop a node from the group: move the last node into its slot and return the name; empty if it was last."""
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
        """Return a copy of the group that shares the tables; changes in one change nothing in the other."""
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
        """Return the mask of GPU numbers on the group's nodes; KeyError for a number that they do not have."""
        mask = 0
        for number in gpus:
            mask |= self._bit[number]
        return mask

    def set_free(self, slot: int, mask: int) -> None:
        """Set what is free on a node of the group; its GPUs with parts, or never had whole, stay for parts alone."""
        if self.rooms is not None:
            mask = self.rooms.set(slot, self.rooms.masks(slot)._replace(unheld=mask))
        self._free[slot] = mask

    def set_offer(self, slot: int, offer: Offer) -> None:
        """Set which GPUs of a node of the group may be had in parts; KeyError for a number that it does not have."""
        shared, sliced, parts_only = map(self.mask_of, (offer.shared, offer.sliced, offer.parts_only))
        tenants = tuple((self.mask_of([number]).bit_length() - 1, tenant) for number, tenant in offer.tenants)
        if self.rooms is not None or shared | sliced | parts_only:
            rooms = self._made_rooms()
            self._free[slot] = rooms.set(slot, Masks(rooms.masks(slot).unheld, shared, sliced, parts_only, tenants))

    def set_parts(self, slot: int, parts: Mapping[int, Sequence[Part]]) -> None:
        """Set which parts are on the GPUs of a node of the group; KeyError for a number that it does not have."""
        by_position = {self._bit[number].bit_length() - 1: each for number, each in parts.items()}
        if self.rooms is not None or any(by_position.values()):
            self._free[slot] = self._made_rooms().set_parts(slot, by_position)

    def narrow(self, slot: int, mask: int) -> None:
        """Offer no other GPUs of a node of the group than those of a mask; what is on the others stays there."""
        if self.rooms is None:
            self._free[slot] &= mask
            return
        own = self.rooms.masks(slot)
        less = own._replace(unheld=own.unheld & mask, shared=own.shared & mask, sliced=own.sliced & mask)
        self._free[slot] = self.rooms.set(slot, less)

    def offer_and_parts(self, slot: int) -> tuple[Offer, dict[int, Sequence[Part]]]:
        """Return the offer that was set for a node of the group, and the parts on its GPUs by their numbers."""
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
        """Return the mask of a group node's positions that nobody has as a whole, those with parts included."""
        return self.free(slot) if self.rooms is None else self.rooms.masks(slot).unheld

    def _made_rooms(self) -> Rooms:
        if self.rooms is None:
            self.rooms = Rooms(self.machine, dict(self.rules))
            for slot, free in enumerate(self.free_masks().tolist()):
                self.rooms.add()
                self.rooms.set(slot, Masks(unheld=free))
        return self.rooms

    def set_row(self, slot: int, row: int) -> None:
        """Set which row of the caller's arrays a node of the group has."""
        self._row[slot] = row

    def set_site(self, slot: int, site: int) -> None:
        """Set where a node of the group stands in the network: the number of its location."""
        self._site[slot] = site

    def free(self, slot: int) -> int:
        """Return the mask of the free positions of one node of the group."""
        return int(self._free[slot])

    def row_and_site(self, slot: int) -> tuple[int, int]:
        """Return for a node of the group its row in the caller's arrays and the number of its location."""
        return int(self._row[slot]), int(self._site[slot])

    def free_masks(self) -> NDArray[np.uint16]:
        """Return the mask of free positions of each node of the group: (nodes,), uint16; a view."""
        return self._free[: len(self.names)]

    def spared_masks(self) -> NDArray[np.uint16]:
        """Return ``free_masks`` of the group's nodes without GPUs that may be had in parts: (nodes,), uint16."""
        free = self.free_masks()
        if self.rooms is None:
            return free
        return free & ~(self.rooms.opening(sliced=False) | self.rooms.opening(sliced=True))

    def sites(self) -> NDArray[np.int32]:
        """Return the location's number of each node of the group: (nodes,), int32; a view."""
        return self._site[: len(self.names)]

    def rows(self) -> Ints:
        """Return each group node's row in the caller's arrays, ``NO_ROW`` without one: (nodes,), int64; a view."""
        return self._row[: len(self.names)]

    def by_name(self) -> Ints:
        """Return the slots of the group's nodes in the order of their names: (nodes,), int64."""
        if self._by_name is None:
            self._by_name = np.array(sorted(range(len(self.names)), key=self.names.__getitem__), dtype=np.int64)
        return self._by_name

    def at_rows(self, eligible: Bools) -> Bools:
        """Return by node of the group the entry of a caller's array at its row; False without one: (nodes,)."""
        rows = self.rows()
        if not len(eligible):
            return np.zeros(len(rows), dtype=np.bool_)
        out: Bools = eligible.take(rows, mode="clip")
        out &= rows.view(np.uint64) < len(eligible)  # of no row this makes a row far beyond the end
        return out

    def suitable(self, request: Request) -> int:
        """Return the mask of positions whose GPUs a request accepts on the group's nodes; 0 for another vendor."""
        if request.vendor != self.vendor:
            return 0
        if not filters(request):
            return self.tables.everything
        exclude = request.exclude if isinstance(request, Whole) else ()
        kind = request.product, request.architecture, request.min_memory_mib, request.min_driver, request.min_cuda
        return self._suitable(*kind, exclude, request.near_nic if isinstance(request, Whole) else "")

    def include(self, request: Whole) -> int | None:
        """Return the mask of GPUs that a request must include on the group's nodes; None if they lack a number."""
        if not self._bit.keys() >= set(request.include):
            return None
        return self.mask_of(request.include)

    def describe(self, taken: int, request: Whole) -> Choice:
        """Return the choice of a set of positions on any node of the group; its ``node`` is empty."""
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
