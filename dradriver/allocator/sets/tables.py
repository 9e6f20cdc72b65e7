"""Everything about every subset of a machine's GPUs, computed once per shape and looked up ever after.

Positions, not GPU numbers: bit ``i`` of a mask is ``machine.gpus[i]``. For ``g`` GPUs an array over masks has
``2**g`` entries: 256 for 8 GPUs, 65,536 for 16. What is costly is computed for the canonical shape and shared by all
numberings; a numbering of its own costs one gather an array. A shape holds about 10 kB (8 GPUs) or 3 MB (16) and rows
of answers in a cache of its own, which is bounded to 16 MB however many different criteria are asked about. It goes
with its tables, and these when nobody has such a machine any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cached_property, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import msgspec
import numpy as np

from dradriver.allocator.request import Constraint, Level
from dradriver.allocator.sets import busbw, facts, subsets
from dradriver.allocator.sets.canonical import canonical
from dradriver.allocator.sets.criteria import ANY, Criteria
from dradriver.allocator.sets.shape import Shape, shape_of
from dradriver.allocator.sets.subsets import Array, Bools, Floats, Ints
from dradriver.allocator.sets.weighted_cache import Kept
from dradriver.errors import DriverError
from dradriver.topology.machine import Machine, PathType

MAX_GPUS = 16
SAME = 1 - 1e-5  # float32 values closer than this are equal
_MOST_ENTRIES = 1 << 22  # of all cached rows of one shape together
_MOST_ANSWERS = 1 << 16  # of each shape
_KEPT: Final[Kept[Shape, Tables]] = Kept(facts.MOST)

P = ParamSpec("P")
R = TypeVar("R")


class MachineTooLargeError(DriverError):
    """The machine has more GPUs than the tables hold."""

    reason = "MachineTooLarge"


class Tables:
    """All subsets of one shape.

    Attributes:
        shape: The shape.
        size: Number of GPUs g.
        everything: Mask of all GPUs.
        count: (2**g,) uint8, members of each mask.
        busbw: (2**g,) float32, predicted all-reduce bus bandwidth in GB/s, 0 below two GPUs; where nothing can be
            predicted (``Shape.predicted``) what sets compare by instead, which nobody is told.
        worth: (2**g,) float32, what sets are compared by: the same, or a mean where the CPUs are not known.
        step_gbps: (g, g) float32, rate of the step between two GPUs, one direction, GB/s: of links the line rate, else
            what NCCL counts.
        step_rank: (g, g) int64, how bad that step is: its number in ``steps``.
        steps: The machine's kinds of steps, best first: (level, GB/s).
        weakest: (2**g,) uint8, number in ``steps`` of the weakest step of the best ring; 0 below two GPUs.
        numa_nodes: (2**g,) int64, NUMA nodes that the set touches (an unknown one counts for itself).
        nic_distance: (2**g,) float32, sum over the GPUs of the path to their nearest NIC.
        still_offered: (5, 2**g) float32, what a free mask still offers, GB/s: best set of 8, of 4, of 2, total of
            disjoint sets of 4, of 2.
        given: (2**g,) bool, whether the machine gives such a set at all; None where it gives any.
    """

    def __init__(self, shape: Shape) -> None:
        """Take the figures of the canonical shape, and renumber them to this shape's GPU positions."""
        self.shape = shape
        self.size = g = shape.size
        self.everything = (1 << g) - 1
        self.count = np.bitwise_count(np.arange(1 << g))
        self._members: dict[int, Ints] = {}
        self._rows: OrderedDict[Hashable, Array] = OrderedDict()
        self._entries = 0  # entries of all rows
        self._answers: dict[Hashable, Any] = {}

        # Machines that are alike but for their numbering share one canonical shape, and what is computed for it.
        general, order = canonical(shape)
        canonical_facts = facts.facts_of(general)

        # By GPU its position in the canonical shape, and by mask the same set in that numbering.
        position = np.argsort(order)
        canonical_mask = subsets.unions((1 << position).tolist())
        pairs = np.ix_(position, position)
        self.steps, self.step_rank, self.step_gbps = (
            canonical_facts.steps,
            canonical_facts.step_rank[pairs],
            canonical_facts.step_gbps[pairs],
        )

        # The bandwidth if NCCL may use a single channel, or if it takes at least two: that depends on the numbering.
        takes_two_channels = busbw.split(shape)
        self.busbw: Floats = np.where(
            takes_two_channels, canonical_facts.busbw[1][canonical_mask], canonical_facts.busbw[0][canonical_mask]
        )
        self.worth: Floats = np.where(
            takes_two_channels, canonical_facts.worth[1][canonical_mask], canonical_facts.worth[0][canonical_mask]
        )
        self.weakest = canonical_facts.weakest[canonical_mask]
        self.still_offered: Floats = canonical_facts.still_offered[:, canonical_mask]
        self.given: Bools | None = None if canonical_facts.given is None else canonical_facts.given[canonical_mask]
        self._linked: Bools = canonical_facts.linked[canonical_mask]
        self.numa_nodes: Ints = _distinct(shape.numa)
        self.nic_distance: Floats = subsets.sums(shape.nics)

    @cached_property
    def has_equal_sets(self) -> bool:
        """Return whether the tables rate all sets of one size the same, as with one switch for all GPUs."""
        if self.given is not None:
            return False
        by_size = (self.worth[self.count == k] for k in range(2, self.size + 1))
        return all(float(worth.min()) >= SAME * float(worth.max()) for worth in by_size)

    def members(self, k: int) -> Ints:
        """Return all masks of ``k`` GPUs in the tables, lowest positions first: (C(g, k),), int64."""
        if k not in self._members:
            self._members[k] = subsets.members(self.size, k)
        return self._members[k]

    def row(self, key: Hashable, build: Callable[[], Array]) -> Array:
        """Return the row that the tables keep for a key; ``build`` makes it if it is not there."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            return row
        row = self._rows[key] = build()
        self._entries += row.size
        while self._entries > _MOST_ENTRIES and len(self._rows) > 1:
            self._entries -= self._rows.popitem(last=False)[1].size
        return row

    def answer(self, key: Hashable, find: Callable[[], R]) -> R:
        """Return the answer, never None, that the tables keep for a key; ``find`` makes it if it is not there."""
        answer: R | None = self._answers.get(key)
        if answer is None:
            answer = find()
            if len(self._answers) >= _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = answer
        return answer

    def allowed(self, criteria: Criteria) -> Bools:
        """Return by the tables which masks are sets that meet the criteria: (2**g,), bool."""
        key = self._key(criteria)
        out = self.row(("allowed", key), lambda: self._allowed(key))
        if criteria.min_busbw_gbps or criteria.min_worth:
            out = out & (self.busbw >= np.where(self.count < 2, 0, self.least(2, criteria)))
        return out

    def least(self, k: int, criteria: Criteria) -> float:
        """Return the least ``busbw`` in the tables that the criteria require of sets of ``k`` GPUs."""
        if k < 2 or not (criteria.min_busbw_gbps or criteria.min_worth):
            return 0.0
        if criteria.min_busbw_gbps and not self.shape.predicted:
            return float("inf")
        return max(criteria.min_busbw_gbps, criteria.min_worth) * SAME

    def best(self, k: int, criteria: Criteria = ANY) -> Floats:
        """Return by the tables per free mask the highest busbw of any admissible ``k``-subset, -1 without one.

        Shape (2**g,), float32, GB/s: the admissible sets' own values, spread to all masks that contain them.
        """
        criteria = self._key(criteria)
        return self.row(("best", k, criteria), lambda: self._best(k, criteria))

    def has(self, k: int, free: Ints, criteria: Criteria = ANY) -> Bools:
        """Return by the tables whether free masks have a ``k``-subset that meets the criteria.

        Shape of ``free``, bool.
        """
        out: Bools = self.best(k, criteria)[free] >= self.least(k, criteria)
        return out

    def fits(self, k: int, free: int, criteria: Criteria = ANY) -> bool:
        """Return by the tables whether one free mask has a ``k``-subset that meets the criteria."""
        return bool(self.best(k, criteria)[free] >= self.least(k, criteria))

    def meets(self, mask: int, constraint: Constraint) -> bool:
        """Return by the tables whether a set meets one constraint."""
        return bool(self._meets(constraint)[mask])

    def level(self, mask: int) -> Level:
        """Return by the tables the level of the weakest step of a set's best ring; of one GPU nvlink or pcie-switch."""
        if mask.bit_count() < 2:
            return Level.NVLINK if self._linked[mask] else Level.PCIE_SWITCH
        return self.steps[int(self.weakest[mask])][0]

    def busbw_gbps(self, mask: int) -> float:
        """Return by the tables a set's predicted bandwidth; 0 below two GPUs, and if there is no prediction."""
        return round(float(self.busbw[mask]), 2) if self.shape.predicted else 0.0

    def bandwidth_gbps(self, mask: int) -> float:
        """Return by the tables the rate of the weakest step of a set's best ring; 0 for a single GPU."""
        return self.steps[int(self.weakest[mask])][1] if mask.bit_count() > 1 else 0.0

    def rates(self) -> Floats:
        """Return ``bandwidth_gbps`` of all sets in the tables: (2**g,), float32; infinite for fewer than two GPUs."""
        rates = np.array([rate for _, rate in self.steps] or [0.0], dtype=np.float32)
        return np.where(self.count < 2, np.float32(np.inf), rates[self.weakest])

    def _key(self, criteria: Criteria) -> Criteria:
        """The criteria as a cache key: without bus bandwidth, the line rate raised to the next that a step has."""
        criteria = criteria.any_busbw
        if not criteria.min_bandwidth_gbps:
            return criteria
        enough = [rate for _, rate in self.steps if rate >= criteria.min_bandwidth_gbps * SAME]
        least = min(enough, default=float("inf"))
        return msgspec.structs.replace(criteria, min_bandwidth_gbps=least)

    def _allowed(self, criteria: Criteria) -> Bools:
        out: Bools = np.ones(1 << self.size, dtype=np.bool_) if self.given is None else self.given
        for constraint in criteria.constraints:
            out = out & self._meets(constraint)
        if criteria.min_bandwidth_gbps:
            out = out & (self.rates() >= criteria.min_bandwidth_gbps * SAME)
        if criteria.max_cross is not None:
            out = out & (self._outside() <= criteria.max_cross)
        if criteria.include:
            out = out & (np.arange(1 << self.size) & criteria.include == criteria.include)
        return out

    def _best(self, k: int, criteria: Criteria) -> Floats:
        own = np.where((self.count == k) & self.allowed(criteria), self.busbw, np.float32(-1))
        return subsets.best_inside(own)

    def _outside(self) -> Ints:
        """Members of each mask outside the NVLink domain that holds most of them: (2**g,), int64."""
        positions = range(self.size)
        linked = np.array([[self.shape.linked(a, b) > 0 for b in positions] for a in positions], dtype=np.bool_)
        inside = np.zeros(1 << self.size, dtype=np.int64)
        masks = np.arange(1 << self.size)
        for domain in subsets.components(linked.reshape(self.size, self.size)):
            inside = np.maximum(inside, np.bitwise_count(masks & domain))
        out: Ints = self.count - inside
        return out

    def _meets(self, constraint: Constraint) -> Bools:
        return self.row(constraint, lambda: self._compute(constraint))

    def _compute(self, constraint: Constraint) -> Bools:
        shape = self.shape
        if constraint is Constraint.NVLINK:
            return self._linked
        if constraint is Constraint.SAME_NUMA:
            unknown = subsets.sums([numa is None for numa in shape.numa]) > 0
            return subsets.cliques(_equal(shape.numa)) & ~unknown
        hops = np.array(shape.paths, dtype=np.int64).reshape(shape.size, shape.size)
        if constraint is Constraint.SAME_PCIE_SWITCH:
            return subsets.cliques(hops <= PathType.PIX)
        known = np.array([root is not None for root in shape.roots])
        both = known[:, None] & known[None, :]
        return subsets.cliques(np.where(both, _equal(shape.roots), hops <= PathType.PHB))


def remembered(function: Callable[Concatenate[Tables, P], R]) -> Callable[Concatenate[Tables, P], R]:
    """Return the function with a cache in the tables, which are its first argument."""

    @wraps(function)
    def ask(tables: Tables, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return tables.answer((function, args, *kwargs.values()), lambda: function(tables, *args, **kwargs))

    return ask


def tables_of_shape(shape: Shape) -> Tables:
    """Return the tables of all subsets of a shape, built on first use."""
    found = _KEPT.find(shape)
    return _KEPT.put(shape, Tables(shape), facts.weight(shape)) if found is None else found


def known(shape: Shape) -> bool:
    """Return whether the tables of a shape, or the costly facts below them, were computed."""
    return shape in _KEPT or facts.known(canonical(shape)[0])


def tables_of(machine: Machine) -> Tables:
    """Return the tables of all subsets of a machine's GPUs.

    Raises:
        MachineTooLargeError: The machine has more than 16 GPUs.
    """
    if len(machine.gpus) > MAX_GPUS:
        raise MachineTooLargeError(
            f"machine {machine.name!r} has {len(machine.gpus)} GPUs; at most {MAX_GPUS} are supported: describe "
            f"the parts that share links as machines of their own"
        )
    return tables_of_shape(shape_of(machine))


def _equal(values: tuple[int | None, ...]) -> Bools:
    return np.array([[a == b for b in values] for a in values], dtype=np.bool_).reshape(len(values), len(values))


def _distinct(values: tuple[int | None, ...]) -> Ints:
    """How many different values the members of each mask have; None differs from all: (2**g,), int64."""
    groups = [1 << value if value is not None else 1 << (MAX_GPUS + position) for position, value in enumerate(values)]
    return np.bitwise_count(subsets.unions(groups)).astype(np.int64)
