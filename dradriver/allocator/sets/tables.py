"""All figures of every set of a machine's GPUs, to look up by bit mask.

``choice`` and ``fleet`` read them. A *ring* leads through all GPUs of a set. The figures are computed once per shape (a
machine without names). Bit ``i`` of a mask is ``machine.gpus[i]``: a position, not a GPU number. For ``g`` GPUs an
array over masks has ``2**g`` entries: 256 for 8 GPUs, 65,536 for 16. Costly figures are computed for the canonical
shape and shared by all machines that differ only in their numbering. Each further numbering costs one array copy. A
shape takes about 10 kB (8 GPUs) or 3 MB (16), and a cache of answers. However many different criteria are requested,
the cache has at most 4 million array entries (at most 32 MB) and 65,536 other results. The cache is freed with its
tables, and the tables are freed when no machine of that shape is left.
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
    """The machine has more GPUs than the allocator supports (16)."""

    reason = "MachineTooLarge"


class Tables:
    """The bandwidth and other figures of all sets of GPUs of one shape.

    Arrays with an axis of length 2**g (for g GPUs) have one entry for each bit mask of GPUs. A *step* is the connection
    between two GPUs.

    Attributes:
        shape: The shape: a machine without names.
        size: Number of GPUs g.
        everything: Bit mask of all GPUs.
        count: (2**g,) uint8, number of GPUs of each mask.
        busbw: (2**g,) float32, predicted all-reduce bus bandwidth in GB/s, 0 below two GPUs. If no bandwidth can be
            predicted (``Shape.predicted``), it is the strength of the links (``strength.of_sets``). The strength is
            used for comparisons only and not shown to users.
        worth: (2**g,) float32, the figure that sets are compared by: ``busbw``, or a mean if the CPUs are not known.
        step_gbps: (g, g) float32, rate of the step between two GPUs, one direction, GB/s: the line rate of links, else
            NCCL's figure.
        step_rank: (g, g) int64, the kind of that step, as an index into ``steps``.
        steps: The machine's kinds of steps, best first: (level, GB/s).
        weakest: (2**g,) uint8, the weakest step of the set's best ring, as an index into ``steps``; 0 below two GPUs.
        numa_nodes: (2**g,) int64, the number of NUMA nodes of the set (each unknown one counts separately).
        nic_distance: (2**g,) float32, sum over the GPUs of the path to their nearest NIC.
        still_offered: (5, 2**g) float32, what a mask of free GPUs still offers, GB/s: the best set of 8, of 4 and of 2,
            and the total of disjoint sets of 4 and of 2.
        given: (2**g,) bool, whether the machine's maker allows such a set; None if any set is allowed.
    """

    def __init__(self, shape: Shape) -> None:
        """Read the figures of all sets of GPUs, and renumber them to this machine's positions.

        The figures are stored once for all machines that are alike, in a numbering that these machines share. They are
        computed if they are not known yet.
        """
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
        """Return whether all sets of one size are equally good, as below one NVLink switch."""
        if self.given is not None:
            return False
        by_size = (self.worth[self.count == k] for k in range(2, self.size + 1))
        return all(float(worth.min()) >= SAME * float(worth.max()) for worth in by_size)

    def members(self, k: int) -> Ints:
        """Return the bit masks of all sets of ``k`` GPUs, lowest positions first: (C(g, k),) for g GPUs, int64."""
        if k not in self._members:
            self._members[k] = subsets.members(self.size, k)
        return self._members[k]

    def row(self, key: Hashable, build: Callable[[], Array]) -> Array:
        """Return the cached array for a key, such as one figure of all sets.

        If there is none, ``build`` computes it, and it is cached.
        """
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
        """Return the cached answer for a key, such as the best set for some criteria.

        If there is none, ``find`` computes it, and it is cached. An answer is never None.
        """
        answer: R | None = self._answers.get(key)
        if answer is None:
            answer = find()
            if len(self._answers) >= _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
            self._answers[key] = answer
        return answer

    def allowed(self, criteria: Criteria) -> Bools:
        """Return whether each set (bit mask of GPUs) meets the criteria: (2**g,) for g GPUs, bool."""
        key = self._key(criteria)
        out = self.row(("allowed", key), lambda: self._allowed(key))
        if criteria.min_busbw_gbps or criteria.min_worth:
            out = out & (self.busbw >= np.where(self.count < 2, 0, self.least(2, criteria)))
        return out

    def least(self, k: int, criteria: Criteria) -> float:
        """Return the least ``busbw`` that the criteria require of sets of ``k`` GPUs, GB/s.

        The result is 0 if they require none, and infinite if they require a prediction that this machine does not have.
        """
        if k < 2 or not (criteria.min_busbw_gbps or criteria.min_worth):
            return 0.0
        if criteria.min_busbw_gbps and not self.shape.predicted:
            return float("inf")
        return max(criteria.min_busbw_gbps, criteria.min_worth) * SAME

    def best(self, k: int, criteria: Criteria = ANY) -> Floats:
        """Return for each mask of free GPUs the highest busbw of a set of ``k`` of them.

        Only sets that meet the criteria count; -1 if there is none. The shape is (2**g,) for g GPUs, float32, GB/s. A
        mask has the highest value of all such sets that it contains.
        """
        criteria = self._key(criteria)
        return self.row(("best", k, criteria), lambda: self._best(k, criteria))

    def has(self, k: int, free: Ints, criteria: Criteria = ANY) -> Bools:
        """Return whether each mask of free GPUs contains a set of ``k`` GPUs that meets the criteria.

        The result has the shape of ``free``, bool.
        """
        out: Bools = self.best(k, criteria)[free] >= self.least(k, criteria)
        return out

    def fits(self, k: int, free: int, criteria: Criteria = ANY) -> bool:
        """Return whether one mask of free GPUs contains a set of ``k`` GPUs that meets the criteria."""
        return bool(self.best(k, criteria)[free] >= self.least(k, criteria))

    def meets(self, mask: int, constraint: Constraint) -> bool:
        """Return whether a set (bit mask of GPUs) meets one constraint."""
        return bool(self._meets(constraint)[mask])

    def level(self, mask: int) -> Level:
        """Return how far apart the GPUs of a set are: the level of the weakest step of the set's best ring.

        ``mask`` is the bit mask of the set. A step is the connection between two GPUs. For one GPU it is ``nvlink`` if
        the GPU has links, else ``pcie-switch``.
        """
        if mask.bit_count() < 2:
            return Level.NVLINK if self._linked[mask] else Level.PCIE_SWITCH
        return self.steps[int(self.weakest[mask])][0]

    def busbw_gbps(self, mask: int) -> float:
        """Return the predicted bandwidth of a set (the bit mask ``mask``), GB/s.

        0 below two GPUs, and if there is no prediction.
        """
        return round(float(self.busbw[mask]), 2) if self.shape.predicted else 0.0

    def bandwidth_gbps(self, mask: int) -> float:
        """Return the rate of the weakest step of a set's best ring, GB/s.

        ``mask`` is the bit mask of the set. A step is the connection between two GPUs. The result is 0 for a single
        GPU.
        """
        return self.steps[int(self.weakest[mask])][1] if mask.bit_count() > 1 else 0.0

    def rates(self) -> Floats:
        """Return the rate of the weakest step of each set's best ring: (2**g,) for g GPUs, float32, GB/s.

        A step is the connection between two GPUs. The rate is infinite for fewer than two GPUs, so that they meet any
        minimum.
        """
        rates = np.array([rate for _, rate in self.steps] or [0.0], dtype=np.float32)
        return np.where(self.count < 2, np.float32(np.inf), rates[self.weakest])

    def _key(self, criteria: Criteria) -> Criteria:
        """Return the criteria in a form that is used as a cache key.

        Criteria about bus bandwidth are removed. The minimum line rate is raised to the next rate that a step
        (connection of two GPUs) of this machine has. So criteria that select the same sets have the same key.
        """
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
        """Return for each set how many of its GPUs are not in its main NVLink domain.

        The main domain is the one that has most of the set's GPUs. The shape is (2**g,) for g GPUs, int64.
        """
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
    """Return the function with a cache of its results; used as a decorator.

    The function's first argument is a ``Tables`` object, which holds the cache.
    """

    @wraps(function)
    def ask(tables: Tables, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return tables.answer((function, args, *kwargs.values()), lambda: function(tables, *args, **kwargs))

    return ask


def tables_of_shape(shape: Shape) -> Tables:
    """Return the figures of all sets of GPUs of a shape (a machine without names).

    They are computed at the first use.
    """
    found = _KEPT.find(shape)
    return _KEPT.put(shape, Tables(shape), facts.weight(shape)) if found is None else found


def known(shape: Shape) -> bool:
    """Return whether the figures of all sets of GPUs of a shape are computed already.

    A shape is a machine without names. True also if only the costly facts are computed, from which the figures are
    made.
    """
    return shape in _KEPT or facts.known(canonical(shape)[0])


def tables_of(machine: Machine) -> Tables:
    """Return the bandwidth and other figures of all sets of a machine's GPUs.

    Raises:
        MachineTooLargeError: The machine has more than 16 GPUs.
    """
    if len(machine.gpus) > MAX_GPUS:
        raise MachineTooLargeError(
            f"machine {machine.name!r} has {len(machine.gpus)} GPUs, and at most {MAX_GPUS} are supported. "
            "Describe each part whose GPUs share links as a machine of its own."
        )
    return tables_of_shape(shape_of(machine))


def _equal(values: tuple[int | None, ...]) -> Bools:
    return np.array([[a == b for b in values] for a in values], dtype=np.bool_).reshape(len(values), len(values))


def _distinct(values: tuple[int | None, ...]) -> Ints:
    """Return how many different values the members of each set have: (2**g,) for g GPUs, int64.

    ``values`` has one value for each GPU, such as its NUMA node. Each None counts as different.
    """
    groups = [1 << value if value is not None else 1 << (MAX_GPUS + position) for position, value in enumerate(values)]
    return np.bitwise_count(subsets.unions(groups)).astype(np.int64)
