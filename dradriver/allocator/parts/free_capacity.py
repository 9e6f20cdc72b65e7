"""The free capacity of each GPU for shares and MIG slices, as arrays over the nodes of one kind.

``NodeGroup`` owns them. Arrays have one row for each GPU position, and one column for each node (its slot).
"""

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
    """How the GPUs of one node can be used, as bit masks of GPU positions.

    Attributes:
        unheld: The healthy GPUs that are not allocated as whole GPUs. Fractions of them may be in use.
        shared: The GPUs that can be used as shares.
        sliced: The GPUs that can be used as MIG slices.
        parts_only: The GPUs that are never allocated as whole GPUs.
        tenants: Pairs of a position and the only tenant that may get further fractions of this GPU.
    """

    unheld: int = 0
    shared: int = 0
    sliced: int = 0
    parts_only: int = 0
    tenants: tuple[tuple[int, int], ...] = ()


_NOTHING = Masks()
_ANY_SIZE = ShareRule()


class Rooms:
    """The free capacity for fractions (shares and MIG slices) of the GPUs of one node group.

    Arrays have the shape (GPUs, nodes): one row for each GPU position, so that questions about all nodes run along
    rows, and one column for each slot of the group. The arrays have an amount for two kinds of GPUs: GPUs that have
    fractions already, and empty GPUs that are never allocated as a whole. An empty GPU that can also be allocated as a
    whole counts as 0 in the arrays. The method ``opening`` returns these GPUs.

    Attributes:
        memory_mib: (GPUs,) int64, the memory of the GPU at each position.
        promised_mib: (GPUs,) int64, the memory that all shares of the GPU together may have. It can be more than the
            GPU's memory.
        equal: By position, the number of equal shares of the GPU; 0 for shares of any size.
        layouts: By position, the MIG layout of the GPU (its possible states); None without MIG profiles.
    """

    def __init__(self, machine: Machine, rules: Mapping[int, ShareRule]) -> None:
        """Make arrays for the nodes with this kind of machine; there are no nodes yet.

        ``rules`` say by GPU number how large the shares of the GPU may be.
        """
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
        """Add a node at the next slot (array column).

        Its GPUs have no free capacity for fractions.
        """
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
        """Remove the node in a slot (array column), and move the last node into the slot."""
        last = len(self._masks) - 1
        rows = (self._cores, self._memory, self._spare, self._states, self._opening, self._offered, self._tenants)
        for array in rows:
            array[:, slot] = array[:, last]
        self._with_fractions[slot] = self._with_fractions[last]
        self._masks[slot], self._parts[slot] = self._masks[last], self._parts[last]
        self._masks.pop()
        self._parts.pop()

    def set(self, slot: int, masks: Masks) -> int:
        """Set how a node's GPUs can be used, and compute their free capacity for fractions.

        ``slot`` is the node's column in the arrays. Return the bit mask of the GPUs that requests for whole GPUs may
        take.
        """
        if masks != self._masks[slot]:
            self._masks[slot] = masks
            self._refresh(slot)
        return self.whole(slot)

    def set_parts(self, slot: int, parts: Mapping[int, Sequence[Part]]) -> int:
        """Set the fractions in use on a node's GPUs, by position.

        ``slot`` is the node's column in the arrays. Return the bit mask of the GPUs that requests for whole GPUs may
        take.
        """
        self._parts[slot] = {position: tuple(each) for position, each in parts.items() if each}
        self._refresh(slot)
        return self.whole(slot)

    def whole(self, slot: int) -> int:
        """Return the bit mask of a node's GPUs that requests for whole GPUs may take.

        These GPUs are not allocated, have no fractions, and are not offered as fractions only. ``slot`` is the node's
        column in the arrays.
        """
        masks = self._masks[slot]
        return masks.unheld & ~masks.parts_only & ~_mask(self._parts[slot])

    def mask_with_fractions(self, slot: int) -> int:
        """Return a node's GPUs whose free capacity is in the arrays, as a bit mask.

        These are the GPUs that have fractions already, or are offered as fractions only. ``slot`` is the node's column
        in the arrays.
        """
        return int(self._with_fractions[slot])

    def seen_by(self, tenant: int) -> Rooms:
        """Return a read-only copy with the free capacity that one tenant can use.

        In the copy, a GPU that only another tenant may use has no free capacity. If there is no such GPU, this object
        is returned.
        """
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
        """Return whether only another tenant may get further fractions of each GPU: (GPUs, nodes), bool."""
        tenants = self._tenants[:, : len(self._masks)]
        out: Bools = (tenants != 0) & (tenants != tenant)
        return out

    def copied(self) -> Rooms:
        """Return a copy of the free capacity of all GPUs.

        Changes of the copy do not change this object.
        """
        new = copy.copy(self)
        new._cores, new._memory, new._spare = self._cores.copy(), self._memory.copy(), self._spare.copy()
        new._states, new._opening, new._offered = self._states.copy(), self._opening.copy(), self._offered.copy()
        new._with_fractions, new._tenants = self._with_fractions.copy(), self._tenants.copy()
        new._masks, new._parts = self._masks.copy(), self._parts.copy()
        return new

    def masks(self, slot: int) -> Masks:
        """Return how a node's GPUs can be used, such as which as MIG slices.

        ``slot`` is the node's column in the arrays. The result is what ``set`` was given for the node.
        """
        return self._masks[slot]

    def parts(self, slot: int) -> Mapping[int, Sequence[Part]]:
        """Return the shares and MIG slices in use on a node's GPUs, by position.

        ``slot`` is the node's column in the arrays.
        """
        return self._parts[slot]

    @property
    def cores(self) -> NDArray[np.int16]:
        """Return the free compute of each GPU for shares, in percent of the GPU: (GPUs, nodes)."""
        return self._cores[:, : len(self._masks)]

    @property
    def memory(self) -> NDArray[np.int32]:
        """Return the free memory of each GPU for shares, MiB: (GPUs, nodes)."""
        return self._memory[:, : len(self._masks)]

    @property
    def spare(self) -> NDArray[np.int32]:
        """Return the free compute and memory of each GPU for shares as one number: (GPUs, nodes).

        It is used to find the fullest GPU. The number is the free portion of the compute plus the free portion of the
        memory (``portion``).
        """
        return self._spare[:, : len(self._masks)]

    @property
    def states(self) -> NDArray[np.int16]:
        """Return the MIG state of each GPU as a number: (GPUs, nodes).

        The state says which slices still fit. The number is the state's index in the GPU's layout, the list of all
        possible states.
        """
        return self._states[:, : len(self._masks)]

    @property
    def masks_with_fractions(self) -> NDArray[np.uint16]:
        """Return for each node the GPUs whose free capacity is in the arrays, as a bit mask.

        These are the GPUs that have fractions already, or are offered as fractions only. The shape is (nodes,).
        """
        return self._with_fractions[: len(self._masks)]

    def opening(self, *, sliced: bool) -> NDArray[np.uint16]:
        """Return each node's empty GPUs that can be used whole or as fractions.

        The GPUs of a node are a bit mask; the shape is (nodes,). The fractions are MIG slices if ``sliced`` is set,
        else shares.
        """
        return self._opening[int(sliced), : len(self._masks)]

    def offered(self, *, sliced: bool) -> int:
        """Return the bit mask of the GPU positions that at least one node offers as fractions.

        The fractions are MIG slices if ``sliced`` is set, else shares.
        """
        return int(np.bitwise_or.reduce(self._offered[int(sliced), : len(self._masks)], initial=0))

    def _refresh(self, slot: int) -> None:
        """Compute the free capacity of one node again, for shares and MIG slices.

        ``slot`` is the node's column in the arrays. A GPU with shares has no capacity for slices, and the other way
        round. A GPU that is free as a whole has no capacity in the arrays, only its bit in the masks of empty GPUs
        (``_opening``). If policies offer an empty GPU as fractions only, its capacity is in the arrays.
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
    """Return compute and memory, as portions of a whole GPU, added up to one number.

    All compute of a GPU, or all its memory, counts as ``SPARE`` (2**20). So an empty GPU has twice that. ``total_mib``
    is the memory of the GPU.
    """
    return amount.cores * SPARE // ALL_CORES + amount.memory_mib * SPARE // max(total_mib, 1)


def _mask(positions: Mapping[int, object]) -> int:
    return sum(1 << position for position in positions)


def _wider(array: Array) -> Array:
    """Return the array with room for twice as many nodes."""
    return np.concatenate((array, np.zeros_like(array)), axis=-1)
