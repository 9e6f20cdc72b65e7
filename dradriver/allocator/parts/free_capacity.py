"""The free capacity of each GPU for shares and MIG slices, as arrays over the nodes of one kind."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.parts.layouts import layouts_of
from dradriver.allocator.parts.offers import ShareRule
from dradriver.allocator.request import Amount, MigPart, Part, SharePart
from dradriver.allocator.sets.masks import positions_of
from dradriver.allocator.sets.subsets import Array, Bools, Ints
from dradriver.topology.machine import Machine

ALL_CORES = 100
SPARE = 1 << 20  # half of what an empty GPU has
MOST_TIMES = 16  # that memory is promised; what is left stays far below a cost that nothing has


class Masks(NamedTuple):
    """Positions of one node's GPUs.

    Attributes:
        unheld: Nobody has them as a whole, and nothing is wrong with them.
        shared: May be had in shares.
        sliced: May be had in MIG slices.
        parts_only: Are never had whole.
        tenants: By position, the only tenant that may get further fractions.
    """

    unheld: int = 0
    shared: int = 0
    sliced: int = 0
    parts_only: int = 0
    tenants: tuple[tuple[int, int], ...] = ()


_NOTHING = Masks()
_ANY_SIZE = ShareRule()


class Rooms:
    """The GPUs of nodes of one kind: slot ``i`` is the group's, row ``p`` of the arrays is position ``p``.

    What is left stands in the arrays of a GPU that is in use by parts, and of an empty one that is never had whole. Of
    an empty GPU that may also be had whole nothing stands there: ``opening`` says which those are. Every array over
    GPUs has a row a position, so that what is asked of all nodes is asked along rows.

    Attributes:
        memory_mib: (g,) int64, memory of each position's GPU.
        promised_mib: (g,) int64, how much of it all shares together may have; it may be more.
        equal: By position, the number of equal shares of its GPU; 0 for shares of any size.
        layouts: The MIG layout of each position's GPU; None without MIG profiles.
    """

    def __init__(self, machine: Machine, rules: Mapping[int, ShareRule]) -> None:
        """Take the machine that the nodes have, and how its GPUs are shared, by the machine's own numbers."""
        g = len(machine.gpus)
        own = [rules.get(gpu.index, _ANY_SIZE) for gpu in machine.gpus]
        self.memory_mib: Ints = np.array([gpu.memory_mib for gpu in machine.gpus], dtype=np.int64)
        promised: Ints = np.array([rule.memory_mib for rule in own], dtype=np.int64)
        self.promised_mib = np.minimum(np.where(promised > 0, promised, self.memory_mib), MOST_TIMES * self.memory_mib)
        self.equal = [rule.equal for rule in own]
        self.layouts = layouts_of(machine)
        self._closed = np.array([layout.closed if layout else 0 for layout in self.layouts], dtype=np.int16)
        self._cores = np.zeros((g, 64), dtype=np.int16)
        self._memory = np.zeros((g, 64), dtype=np.int32)
        self._spare = np.zeros((g, 64), dtype=np.int32)
        self._states = np.zeros((g, 64), dtype=np.int16)
        self._opening = np.zeros((2, 64), dtype=np.uint16)
        self._offered = np.zeros((2, 64), dtype=np.uint16)
        self._with_fractions = np.zeros(64, dtype=np.uint16)
        self._tenants = np.zeros((g, 64), dtype=np.int64)  # 0 where anybody may have more parts
        self._masks: list[Masks] = []
        self._parts: list[Mapping[int, Sequence[Part]]] = []

    def add(self) -> None:
        """Add a node at the next slot; its GPUs have no free capacity for parts."""
        slot = len(self._masks)
        if slot == self._cores.shape[1]:
            self._cores, self._memory = _wider(self._cores), _wider(self._memory)
            self._spare, self._states = _wider(self._spare), _wider(self._states)
            self._opening, self._offered = _wider(self._opening), _wider(self._offered)
            self._with_fractions, self._tenants = _wider(self._with_fractions), _wider(self._tenants)
        self._masks.append(_NOTHING)
        self._parts.append({})
        self._refresh(slot)

    def drop(self, slot: int) -> None:
        """Remove the free capacity of the node in a slot by moving the last node into it."""
        last = len(self._masks) - 1
        rows = (self._cores, self._memory, self._spare, self._states, self._opening, self._offered, self._tenants)
        for array in rows:
            array[:, slot] = array[:, last]
        self._with_fractions[slot] = self._with_fractions[last]
        self._masks[slot], self._parts[slot] = self._masks[last], self._parts[last]
        self._masks.pop()
        self._parts.pop()

    def set(self, slot: int, masks: Masks) -> int:
        """Set which GPUs of a node have free capacity for parts; return the mask that whole requests may take."""
        if masks != self._masks[slot]:
            self._masks[slot] = masks
            self._refresh(slot)
        return self.whole(slot)

    def set_parts(self, slot: int, parts: Mapping[int, Sequence[Part]]) -> int:
        """Set which parts take capacity of a node's GPUs, by position; return the mask that whole requests may take."""
        self._parts[slot] = {position: tuple(each) for position, each in parts.items() if each}
        self._refresh(slot)
        return self.whole(slot)

    def whole(self, slot: int) -> int:
        """Return the mask of a node's GPUs that are free as a whole: unheld, without parts, not for parts alone."""
        masks = self._masks[slot]
        return masks.unheld & ~masks.parts_only & ~_mask(self._parts[slot])

    def mask_with_fractions(self, slot: int) -> int:
        """Return the mask of a node's GPUs whose free capacity the arrays hold."""
        return int(self._with_fractions[slot])

    def seen_by(self, tenant: int) -> Rooms:
        """Return the free capacity that a tenant can use, read only: GPUs with another tenant's parts have none."""
        theirs = self.is_kept_from(tenant)
        if not theirs.any():
            return self
        seen = copy.copy(self)
        seen._cores, seen._memory, seen._spare = (
            np.where(theirs, array.dtype.type(0), array) for array in (self.cores, self.memory, self.spare)
        )
        seen._states = np.where(theirs, self._closed[:, None], self.states)
        bits = np.uint16(1) << np.arange(len(theirs), dtype=np.uint16)
        seen._with_fractions = self.masks_with_fractions & ~np.bitwise_or.reduce(
            np.where(theirs, bits[:, None], np.uint16(0)), axis=0
        )
        return seen

    def is_kept_from(self, tenant: int) -> Bools:
        """Return which GPUs have free capacity for another tenant alone: (g, nodes)."""
        tenants = self._tenants[:, : len(self._masks)]
        out: Bools = (tenants != 0) & (tenants != tenant)
        return out

    def copied(self) -> Rooms:
        """Return a copy of the free capacity; changes in it change nothing here."""
        new = copy.copy(self)
        new._cores, new._memory, new._spare = self._cores.copy(), self._memory.copy(), self._spare.copy()
        new._states, new._opening, new._offered = self._states.copy(), self._opening.copy(), self._offered.copy()
        new._with_fractions, new._tenants = self._with_fractions.copy(), self._tenants.copy()
        new._masks, new._parts = self._masks.copy(), self._parts.copy()
        return new

    def masks(self, slot: int) -> Masks:
        """Return the masks of a node's offered and free GPUs, from which its free capacity was computed."""
        return self._masks[slot]

    def parts(self, slot: int) -> Mapping[int, Sequence[Part]]:
        """Return the shares and MIG slices that take capacity of a node's GPUs, by position."""
        return self._parts[slot]

    @property
    def cores(self) -> NDArray[np.int16]:
        """Return the free capacity of each GPU for shares in compute, percent: (g, nodes)."""
        return self._cores[:, : len(self._masks)]

    @property
    def memory(self) -> NDArray[np.int32]:
        """Return the free capacity of each GPU for shares in memory, MiB: (g, nodes)."""
        return self._memory[:, : len(self._masks)]

    @property
    def spare(self) -> NDArray[np.int32]:
        """Return the free capacity of each GPU for shares, compute and memory added up as portions: (g, nodes)."""
        return self._spare[:, : len(self._masks)]

    @property
    def states(self) -> NDArray[np.int16]:
        """Return the free capacity of each GPU for MIG slices, as the number of a layout state: (g, nodes)."""
        return self._states[:, : len(self._masks)]

    @property
    def masks_with_fractions(self) -> NDArray[np.uint16]:
        """Return the masks of the GPUs whose free capacity the arrays hold: (nodes,)."""
        return self._with_fractions[: len(self._masks)]

    def opening(self, *, sliced: bool) -> NDArray[np.uint16]:
        """Return the masks of empty GPUs that are free as a whole or in shares, or in slices: (nodes,)."""
        return self._opening[int(sliced), : len(self._masks)]

    def offered(self, *, sliced: bool) -> int:
        """Return the mask of positions whose capacity some node offers in shares, or in slices."""
        return int(np.bitwise_or.reduce(self._offered[int(sliced), : len(self._masks)], initial=0))

    def _refresh(self, slot: int) -> None:
        """Compute again what the GPUs of the node at ``slot`` have free for shares and MIG slices.

        A GPU with shares has nothing free for slices, and the other way round. GPUs that are free as a whole are in
        ``_opening`` only, unless policies offer them as fractions alone.
        """
        masks, parts = self._masks[slot], self._parts[slot]  # what is offered and free; the fractions by position
        opening = self.whole(slot)
        self._offered[:, slot] = masks.shared, masks.sliced
        self._opening[:, slot] = opening & masks.shared, opening & masks.sliced

        # Nothing is free, until a GPU below says otherwise. ``_closed`` is the MIG state in which nothing fits.
        self._cores[:, slot] = self._memory[:, slot] = self._spare[:, slot] = 0
        self._states[:, slot] = self._closed

        # The GPUs whose free capacity is counted: those with fractions, and empty ones that are offered as fractions
        # alone.
        partly_used = (_mask(parts) | masks.unheld & masks.parts_only) & (masks.shared | masks.sliced)
        self._with_fractions[slot] = partly_used
        self._tenants[:, slot] = 0
        for position, tenant in masks.tenants:
            self._tenants[position, slot] = tenant
        for position in positions_of(partly_used):
            bit, parts_here = 1 << position, parts.get(position, ())
            shares = [part.amount for part in parts_here if isinstance(part, SharePart)]
            slices = [(part.profile, part.start) for part in parts_here if isinstance(part, MigPart)]
            if masks.shared & bit and not slices:
                total_mib, shareable_mib = int(self.memory_mib[position]), int(self.promised_mib[position])
                free_cores = max(ALL_CORES - sum(amount.cores for amount in shares), 0)
                # The shares together may have more memory than the GPU has, if a policy says so.
                free_mib = max(shareable_mib - sum(amount.memory_mib for amount in shares), 0)
                self._cores[position, slot], self._memory[position, slot] = free_cores, free_mib
                self._spare[position, slot] = portion(Amount(free_cores, free_mib), total_mib)
            layout = self.layouts[position]
            if masks.sliced & bit and not shares and layout is not None:
                self._states[position, slot] = layout.state(slices)


def portion(amount: Amount, total_mib: int) -> int:
    """Return free capacity as one number: portions of compute and memory, added up; a whole GPU is 2 * ``SPARE``."""
    return amount.cores * SPARE // ALL_CORES + amount.memory_mib * SPARE // max(total_mib, 1)


def _mask(positions: Mapping[int, object]) -> int:
    return sum(1 << position for position in positions)


def _wider(array: Array) -> Array:
    """The array with room for twice as many nodes."""
    return np.concatenate((array, np.zeros_like(array)), axis=-1)
