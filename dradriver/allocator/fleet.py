"""Which node of a cluster: free masks of thousands of nodes as arrays, one per shape, ranked by table look-ups."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from dradriver.allocator import rings
from dradriver.allocator.choose import (
    Constraints,
    check,
    describe,
    keep_order,
    mask_of_gpus,
    numbers,
    pick,
    rungs,
    wanted,
)
from dradriver.allocator.request import Choice, NoPlaceError, Request
from dradriver.allocator.subsets import Bools, Ints
from dradriver.allocator.tables import Tables, of_machine
from dradriver.topology.machine import Machine


@dataclass(eq=False)
class _Alike:
    """All nodes of one shape: slot ``i`` of every array is ``names[i]``."""

    tables: Tables
    names: list[str] = field(default_factory=list)
    free: Ints = field(default_factory=lambda: np.zeros(64, dtype=np.int64))

    def add(self, name: str, free: int) -> int:
        slot = len(self.names)
        if slot == len(self.free):
            self.free = np.concatenate((self.free, np.zeros_like(self.free)))
        self.names.append(name)
        self.free[slot] = free
        return slot

    def drop(self, slot: int) -> str:
        """Free a slot by moving the last node into it; the name of the node that is there now."""
        last = len(self.names) - 1
        self.names[slot] = self.names[last]
        self.free[slot] = self.free[last]
        self.names.pop()
        return self.names[slot] if slot < last else ""

    def lowest_names(self, mask: int, usable: Bools | None, limit: int) -> list[str]:
        """The first names, in their order, of the usable nodes with exactly this free mask."""
        same = self.free[: len(self.names)] == mask
        if usable is not None:
            same &= usable
        return sorted(self.names[slot] for slot in np.flatnonzero(same).tolist())[:limit]


# Nodes of one shape, which of them may be looked at (None for all), and the different free masks that those have.
_Looked: TypeAlias = tuple[_Alike, Bools | None, Ints]


class Fleet:
    """The cluster's nodes with their machines and free GPUs.

    Per node 8 bytes of free mask, its name and a reference to its machine; tables are shared by alike machines.
    ``rank`` looks at each node once, in a count of the free masks that occur; what follows depends on the number of
    different masks, not of nodes.
    """

    def __init__(self) -> None:
        self._alike: dict[int, _Alike] = {}  # by identity of the shared tables
        self._slots: dict[str, tuple[_Alike, int]] = {}
        self._machines: dict[str, Machine] = {}

    @property
    def nodes(self) -> Collection[str]:
        """Names of all nodes."""
        return self._slots.keys()

    def machine(self, name: str) -> Machine:
        """The node's machine; KeyError for an unknown node."""
        return self._machines[name]

    def free(self, name: str) -> frozenset[int]:
        """The node's free GPUs, by the machine's own numbers; KeyError for an unknown node."""
        alike, slot = self._slots[name]
        return frozenset(numbers(self._machines[name], rings.positions(int(alike.free[slot]))))

    def set_node(self, name: str, machine: Machine, free: Collection[int]) -> None:
        """Insert a node, or update its machine and its free GPUs.

        Raises:
            MachineTooLargeError: More than 16 GPUs.
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        mask = mask_of_gpus(machine, free)
        known = self._machines.get(name)
        if known is None or (known is not machine and known != machine):
            tables = of_machine(machine)
            self.remove(name)
            alike = self._alike.setdefault(id(tables), _Alike(tables))
            self._machines[name] = machine
            self._slots[name] = alike, alike.add(name, mask)
            return
        alike, slot = self._slots[name]
        alike.free[slot] = mask

    def set_free(self, name: str, free: Collection[int]) -> None:
        """Update a node's free GPUs; KeyError for an unknown node.

        Raises:
            UnknownGpuError: ``free`` names a GPU that the machine does not have.
        """
        alike, slot = self._slots[name]
        alike.free[slot] = mask_of_gpus(self._machines[name], free)

    def remove(self, name: str) -> None:
        """Forget a node; an unknown one is no error."""
        found = self._slots.pop(name, None)
        if found is None:
            return
        del self._machines[name]
        alike, slot = found
        moved = alike.drop(slot)
        if moved:
            self._slots[moved] = alike, slot
        if not alike.names:
            del self._alike[id(alike.tables)]

    def rank(self, request: Request, *, eligible: Collection[str] | None = None, limit: int = 8) -> list[Choice]:
        """The best set on each of the best nodes, best first; one a node, at most ``limit``.

        Nodes are ordered by the rung of the preferred ladder that they reach, then by predicted bandwidth, then by
        how little the choice takes from what the node could still offer, then by fewest free GPUs, then by name.

        Args:
            request: What is wanted.
            eligible: Names of the nodes that may be looked at; None for all. Unknown names are passed over.
            limit: Most choices to return.

        Raises:
            NoPlaceError: No node has a fitting set; the message has the reason and the nearest thing that is possible.
        """
        check(request)
        looked = self._occurring(eligible)
        choices: list[Choice] = []
        passed: list[Constraints] = []
        for rung in rungs(request):
            for equal in _ordered(looked, request.gpus, rung=rung, passed=passed):
                names = [
                    (name, found)
                    for alike, usable, mask, found in equal
                    for name in alike.lowest_names(mask, usable, limit)
                ]
                for name, found in sorted(names)[: limit - len(choices)]:
                    machine, tables = self._machines[name], self._slots[name][0].tables
                    choices.append(describe(machine, tables, found, request=request, node=name))
                if len(choices) >= limit:
                    return choices
            passed.append(rung)
        if not choices:
            raise NoPlaceError(self._refusal(request, looked))
        return choices

    def _occurring(self, eligible: Collection[str] | None) -> list[_Looked]:
        """Per shape the nodes that may be looked at (None for all) and the different free masks they have."""
        chosen: dict[int, list[int]] = {}
        if eligible is not None:
            for name in eligible:
                if name in self._slots:
                    alike, slot = self._slots[name]
                    chosen.setdefault(id(alike.tables), []).append(slot)
        looked: list[_Looked] = []
        for key, alike in self._alike.items():
            free = alike.free[: len(alike.names)]
            usable: Bools | None = None
            if eligible is not None:
                if key not in chosen:
                    continue
                usable = np.zeros(len(free), dtype=np.bool_)
                usable[chosen[key]] = True
                free = free[usable]
            looked.append((alike, usable, np.flatnonzero(np.bincount(free))))
        return looked

    def _refusal(self, request: Request, looked: list[_Looked]) -> str:
        """Why no node fits, and the nearest thing that does."""
        what = wanted(request.gpus, request.required)
        if not looked:
            return f"{what}: no; no node is eligible" if self._slots else f"{what}: no; no node has GPUs"
        size, biggest = min((-alike.tables.size, _first(alike, usable)) for alike, usable, _ in looked)
        if request.gpus > -size:
            return f"{what}: no; the largest machine, {biggest}, has {-size}"
        plain = _largest(looked, request.gpus, constraints=frozenset())
        if plain is None:
            return f"{what}: no; no GPU is free"
        if plain[0] < request.gpus:
            return f"{what}: no; most GPUs free on one node: {plain[0]} on {plain[1]}"
        words = " and ".join(constraint.value for constraint in request.required)
        fitting = _largest(looked, request.gpus - 1, constraints=frozenset(request.required))
        nearest = f"largest free {words} set is {fitting[0]} on {fitting[1]}" if fitting else f"no free GPU has {words}"
        return f"{what}: no; {nearest}; without {words} there is a place on {plain[1]}"


def _ordered(
    looked: list[_Looked], gpus: int, *, rung: Constraints, passed: list[Constraints]
) -> Iterator[list[tuple[_Alike, Bools | None, int, int]]]:
    """Free masks that reach this rung and none above, best first, with the set to take; equal ones in one list."""
    values: list[tuple[float, _Alike, Bools | None, int]] = []
    for alike, usable, occurring in looked:
        if gpus > alike.tables.size:
            continue
        masks = occurring
        for above in passed:
            masks = masks[alike.tables.best(above)[gpus, masks] < 0]
        best = alike.tables.best(rung)[gpus, masks].round(2)
        reach = best >= 0
        values += [
            (value, alike, usable, mask)
            for value, mask in zip(best[reach].tolist(), masks[reach].tolist(), strict=True)
        ]
    values.sort(key=lambda entry: -entry[0])
    for _, same in itertools.groupby(values, key=lambda entry: entry[0]):
        places = []
        for _, alike, usable, mask in same:
            found = pick(alike.tables, mask, gpus=gpus, constraints=rung)
            assert found is not None
            places.append((_cost(alike.tables, mask, found), (alike, usable, mask, found)))
        places.sort(key=lambda place: place[0])
        for _, equal in itertools.groupby(places, key=lambda place: place[0]):
            yield [place for _, place in equal]


@lru_cache(maxsize=65536)
def _cost(tables: Tables, free: int, taken: int) -> tuple[float, ...]:
    """What taking a set costs those who come later (GB/s per row of ``keep``), then how many GPUs were free."""
    rows = list(keep_order(taken.bit_count()))
    lost = (tables.keep[rows, free] - tables.keep[rows, free ^ taken]).round(2)
    return (*lost.tolist(), free.bit_count())


def _largest(looked: list[_Looked], most: int, *, constraints: Constraints) -> tuple[int, str] | None:
    """Size of the largest admissible free set of at most ``most`` GPUs, and the first node by name that has it."""
    for gpus in range(most, 0, -1):
        names = [
            name
            for alike, usable, masks in looked
            if gpus <= alike.tables.size
            for mask in masks[alike.tables.best(constraints)[gpus, masks] >= 0].tolist()
            for name in alike.lowest_names(mask, usable, 1)
        ]
        if names:
            return gpus, min(names)
    return None


def _first(alike: _Alike, usable: Bools | None) -> str:
    return min(name for slot, name in enumerate(alike.names) if usable is None or usable[slot])
