"""Layouts: every state that MIG instances can bring a GPU into, computed once for each kind of GPU.

``mig_slices`` and ``free_capacity`` look states up. A state says which memory slices are taken. It also says how much
is taken of each other limit that instances can reach before memory runs out (``mig_limits.py``: media engines, compute
slices). Current GPUs have some hundred states, so the figures of each state are stored in tables.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.weighted_cache import Kept
from dradriver.topology.machine import Machine, MigProfile
from dradriver.topology.mig_limits import Limit, binding_limits

NONE = 1 << 30  # a cost that nothing has
_MOST_STATES = 1 << 13
_MOST_STEPS = 1 << 14  # from state to state: six times as many as a GPU of today has
_MOST_KINDS = 4  # of GPUs in one machine: a server has one, rarely two
_KEPT: Final[Kept[Profiles, Layout | _Untold]] = Kept(16)
_MOST_WORTH = (1 << 8) - 1  # that is told apart
_MOST_COUNTED = 16  # profiles that count for more than the next: costs stay within 32 bits

_MOST_ANSWERS = 1 << 13

P = ParamSpec("P")
R = TypeVar("R")
Counts = tuple[int, ...]
Profiles = tuple[MigProfile, ...]
_Key = tuple[int, Counts]  # memory slices as a mask, what is taken of each limit


class _States(NamedTuple):
    """All states that MIG instances can bring one kind of GPU into, numbered.

    Attributes:
        after: By state: for each possible new instance (profile number and start slice), the number of the next state.
        keys: The number of each state. A key is the mask of taken memory slices, and how much is taken of each limit.
        needs: By profile, how much an instance takes of each limit.
    """

    after: list[dict[tuple[int, int], int]]
    keys: dict[_Key, int]
    needs: list[Counts]

    def by_slices(self) -> list[int]:
        """Return the numbers of all MIG states, sorted by taken memory slices, fewest first.

        Each new instance leads to a later state in this order.
        """
        return [number for key, number in sorted(self.keys.items(), key=lambda item: item[0][0].bit_count())]


class Way(NamedTuple):
    """A way to place some MIG instances on a GPU, and its cost.

    Attributes:
        cost: What the GPU can no longer offer to later pods, as a number (``Layout``).
        placements: Profile number and start slice of each instance, sorted by profile number.
    """

    cost: int
    placements: tuple[tuple[int, int], ...]


class Layout:
    """The states that MIG instances can bring one kind of GPU into, with their figures.

    State 0 is the empty GPU; in the state ``closed`` nothing fits. The ``worth`` of a state measures what it can still
    hold. For each profile, it counts the memory slices that instances of this profile alone could still take. The
    largest of these numbers counts twice as much as the next one, which counts twice as much as the one after it, and
    so on. The cost of a placement is the worth that is lost. So a placement leaves free slices where large instances,
    and instances of many profiles, still fit. (If all profiles count alike, fewer slices find a place: ``python -m
    tests.bench.parts``.)

    Worked example, H100: on an empty GPU, instances of its seven profiles can take 8, 8, 8, 7, 6, 4 and 1 memory
    slices. So the worth is 8 * 64 + 8 * 32 + 8 * 16 + 7 * 8 + 6 * 4 + 4 * 2 + 1 = 985. The first ``1g.10gb`` costs 263
    at start 6: the profiles can then still take 6, 6, 6, 4, 4, 1 and 0 memory slices. It costs 295 at start 4, where a
    ``2g`` instance could be. It costs 309 at start 0, because then ``4g`` does not fit any more, either.

    Attributes:
        profiles: The GPU's profiles.
        number: Number of each profile by its name.
        closed: Number of the state in which nothing fits; it is the last state.
        most: (states, profiles) int32, how many instances of one profile alone still fit.
        worth: (states,) int32, see above.
        free: (states,) int32, memory slices that are not taken.
        cost: (states, profiles) int32, cost of one instance at its best start; ``NONE`` if none fits.
        order: (states, profiles) int32, a number that compares by cost and, among equal costs, by the worth of the
            state. So the fullest GPU is first, and other GPUs stay empty.
        start: (states, profiles) int64, the best start. Among equally good ones it is the highest, because some large
            profiles can start at the lowest slices only.
    """

    def __init__(self, profiles: tuple[MigProfile, ...], states: _States) -> None:
        """Compute what each MIG state can still hold, and the costs of new instances.

        Args:
            profiles: The GPU's MIG profiles.
            states: Its states. State 0 is the empty GPU. ``after[state]`` has, by profile number and start slice, the
                number of the next state.
        """
        self.profiles = profiles
        self.number = {profile.name: at for at, profile in enumerate(profiles)}
        self.closed = len(states.after)
        self._states = states
        shape = (self.closed + 1, len(profiles))
        self.most = np.zeros(shape, dtype=np.int32)

        # From the fullest state back to the empty one, so that the states a placement leads to are known.
        for state in reversed(states.by_slices()):
            for (profile, _), next_state in states.after[state].items():
                self.most[state, profile] = max(self.most[state, profile], 1 + self.most[next_state, profile])

        # (states, profiles): the memory slices that each profile alone could still take, ascending in each state.
        slices_of_profiles = np.sort(self.most * np.array([p.size for p in profiles], dtype=np.int32), axis=1)

        # The largest number of slices, which is last, counts twice as much as the one before, and so on.
        # If there are more than ``_MOST_COUNTED`` profiles, the smallest all count alike: the sum must fit into 32
        # bits.
        exponent = np.maximum(np.arange(len(profiles), dtype=np.int32) - max(len(profiles) - _MOST_COUNTED, 0), 0)
        self.worth: NDArray[np.int32] = slices_of_profiles @ (1 << exponent)
        self.free = np.zeros(self.closed + 1, dtype=np.int32)
        slices_of_gpu = functools.reduce(int.__or__, _spans(profiles), 0).bit_count()
        for (taken_slices, _), state in states.keys.items():
            self.free[state] = slices_of_gpu - taken_slices.bit_count()

        # What an instance costs: the worth that its best start takes.
        self.cost = np.full(shape, NONE, dtype=np.int32)
        self.start = np.full(shape, -1, dtype=np.int64)
        for state, transitions in enumerate(states.after):
            for (profile, start), next_state in sorted(transitions.items()):
                cost = int(self.worth[state] - self.worth[next_state])
                # Of equal costs the highest start wins: starts are in ascending order.
                if cost <= self.cost[state, profile]:
                    self.cost[state, profile], self.start[state, profile] = cost, start
        capped_worth = np.minimum(self.worth, _MOST_WORTH)[:, None]

        # One number: the cost first, then how much the state is still worth.
        self.order = np.where(self.cost < NONE, self.cost * (_MOST_WORTH + 1) + capped_worth, NONE).astype(np.int32)
        self._answers: dict[Hashable, Any] = {}

    def state(self, instances: Iterable[tuple[str, int]]) -> int:
        """Return the number of the state of a GPU that has these MIG instances.

        An instance is a pair of profile name and start slice. If no GPU can have these instances together, the result
        is ``closed``, the state in which nothing fits.
        """
        slices, used = next(iter(self._states.keys))
        for name, start in instances:
            number = self.number.get(name)
            if number is None or slices & _span(self.profiles[number], start):
                return self.closed
            slices |= _span(self.profiles[number], start)
            used = _sum(used, self._states.needs[number])
        return self._states.keys.get((slices, used), self.closed)

    def ways(self, state: int, wanted: Counts) -> dict[Counts, Way]:
        """Return the cheapest way to place each combination of MIG instances on a GPU.

        ``state`` is the GPU's state before. Only combinations that fit are returned. ``wanted`` is the most instances
        of each profile. A key is the number of instances of each profile.
        """
        return self._answer(self._find_ways, state, wanted)

    def costs(self, counts: Counts) -> NDArray[np.int32]:
        """Return for each state of a GPU the cost of placing some MIG instances.

        The cost is what later pods lose; it is ``NONE`` if the instances do not fit. ``counts`` is the number of
        instances of each profile. The shape is (states,), int32; read only.
        """
        return self._answer(self._find_costs, counts)

    def _answer(self, find: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of ``find`` for these arguments from a cache, or compute it.

        ``find`` is a method of this layout. The cache belongs to the layout and is freed together with it.
        """
        key = (find.__name__, args)
        if key not in self._answers:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[key] = find(*args, **kwargs)
        found: R = self._answers[key]
        return found

    def _find_costs(self, counts: Counts) -> NDArray[np.int32]:
        kept = self._answer(self._find_kept, counts)
        return np.where(kept < 0, np.int32(NONE), self.worth - kept)

    def _find_kept(self, counts: Counts) -> NDArray[np.int32]:
        """Return for each state the most worth that can remain after MIG instances are placed.

        The worth of a state measures what it can still hold (``Layout``). ``counts`` is the number of instances of each
        profile. The result is -1 in states where the instances do not fit.
        """
        if not any(counts):
            return self.worth
        number = next(number for number, count in enumerate(counts) if count)
        rest = self._answer(self._find_kept, (*counts[:number], counts[number] - 1, *counts[number + 1 :]))
        kept = np.full(self.closed + 1, -1, dtype=np.int32)
        for state, transitions in enumerate(self._states.after):
            after = [then for (profile, _), then in transitions.items() if profile == number]
            kept[state] = max((int(rest[then]) for then in after), default=-1)
        return kept

    def _find_ways(self, state: int, wanted: Counts) -> dict[Counts, Way]:
        """Return the cheapest way to place each combination of the requested MIG instances.

        Args:
            state: The number of the GPU's state before the instances are added.
            wanted: The most instances of each profile.
        """
        nothing = (0,) * len(wanted)
        if state == self.closed:  # no instance fits
            return {nothing: Way(0, ())}

        # 1. Profile and start of each instance, by the number of instances of each profile and the state that results.
        reached: dict[tuple[Counts, int], tuple[tuple[int, int], ...]] = {(nothing, state): ()}

        # 2. Profile after profile, add one more instance to each entry of ``frontier``: the number of instances, the
        #    state that they lead to, the start of the last one of this profile (-1 before the first), the placements.
        #    The starts of a profile ascend, so that each combination comes up once.
        for profile, count in enumerate(wanted):
            frontier = [(counts, at, -1, placed) for (counts, at), placed in reached.items()]
            for _ in range(count):
                frontier = [
                    (_plus(counts, profile), next_state, start, (*placed, (profile, start)))
                    for counts, at, last, placed in frontier
                    for (next_profile, start), next_state in self._states.after[at].items()
                    if next_profile == profile and start > last
                ]
                for counts, at, _, placed in frontier:
                    reached.setdefault((counts, at), placed)

        # 3. The cheapest of all ways to place the same instances. The cost is how much less the GPU can then take.
        ways: dict[Counts, Way] = {}
        for (counts, at), placed in reached.items():
            way = Way(int(self.worth[state] - self.worth[at]), placed)
            ways[counts] = min(ways.get(counts, way), way, key=_preferred)
        return ways


def _preferred(way: Way) -> tuple[int, list[int]]:
    return way.cost, [-start for _, start in way.placements]


class _Untold:
    """A marker in the cache: GPUs with these MIG profiles have no layout.

    A layout is the list of all states that MIG instances can bring a GPU into. The layout of these profiles would have
    more states than a table can hold.
    """


def kinds(machine: Machine) -> tuple[Profiles, ...]:
    """Return the first four different lists of MIG profiles that GPUs of a machine have.

    All GPUs with the same list share one layout (all states that MIG instances can bring a GPU into). GPUs with a fifth
    list count as GPUs without MIG.
    """
    return tuple(dict.fromkeys(gpu.profiles for gpu in machine.gpus if gpu.profiles))[:_MOST_KINDS]


def layouts_of(machine: Machine) -> list[Layout | None]:
    """Return all MIG states (the layout) of each GPU of a machine, by position.

    An entry is None for a GPU without MIG profiles, with too many states, or with a list that ``kinds`` leaves out.
    """
    seen = kinds(machine)
    return [layout_of(gpu.profiles) if gpu.profiles in seen else None for gpu in machine.gpus]


def layout_of(profiles: Profiles) -> Layout | None:
    """Return the layout of GPUs with these MIG profiles: all states they can be in.

    The result is None if there are no profiles, or if the layout would have too many states. A layout of a current GPU
    takes about 1 MB.
    """
    kept = _KEPT.find(profiles)
    if kept is None:
        return keep(profiles, _layout(profiles))
    return None if isinstance(kept, _Untold) else kept


def keep(profiles: Profiles, layout: Layout | None) -> Layout | None:
    """Store the layout of GPUs with these MIG profiles in the cache, and return it.

    A layout is all states that MIG instances can bring a GPU into. ``layout`` is None if there are too many states.
    Another process may have computed it.
    """
    _KEPT.put(profiles, layout or _Untold(), 1)
    return layout


def known(profiles: Profiles) -> bool:
    """Return whether the layout of GPUs with these MIG profiles is computed already.

    A layout is all states that MIG instances can bring a GPU into.
    """
    return profiles in _KEPT


def _layout(profiles: Profiles) -> Layout | None:
    if not profiles or _reachable(profiles, ()) is None:
        return None
    states = _reachable(profiles, binding_limits(profiles))
    return None if states is None else Layout(profiles, states)


def _reachable(profiles: tuple[MigProfile, ...], limits: Sequence[Limit]) -> _States | None:
    """Return all states that MIG instances can bring an empty GPU into; None if there are too many.

    The search is breadth-first from the empty GPU: ``queue`` grows while it is read. A state is the bit mask of the
    memory slices that are taken, and how much is taken of each limit.

    Args:
        profiles: The GPU's MIG profiles. Each has a size in memory slices, and the slices at which an instance may
            start.
        limits: The limits that can be reached before memory slices run out. Each has a total for the GPU, and how much
            an instance of each profile needs.
    """
    totals = [limit.total for limit in limits]
    needs = [tuple(limit.needs[profile] for limit in limits) for profile in profiles]
    keys: dict[_Key, int] = {(0, (0,) * len(limits)): 0}
    queue = list(keys)
    after: list[dict[tuple[int, int], int]] = []
    steps = 0
    for taken_slices, used in queue:
        # By profile and start, the number of the state with one more instance.
        transitions: dict[tuple[int, int], int] = {}
        for number, profile in enumerate(profiles):
            next_used = _sum(used, needs[number])
            is_over_limit = any(map(operator.gt, next_used, totals))
            if is_over_limit:
                continue
            for start in profile.starts:
                if taken_slices & _span(profile, start):
                    continue
                next_key = (taken_slices | _span(profile, start), next_used)
                if next_key not in keys:
                    keys[next_key] = len(keys)
                    queue.append(next_key)
                transitions[number, start] = keys[next_key]
        after.append(transitions)
        steps += len(transitions)
        if len(keys) > _MOST_STATES or steps > _MOST_STEPS:
            return None
    return _States(after, keys, needs)


def _spans(profiles: tuple[MigProfile, ...]) -> list[int]:
    """Return as bit masks the memory slices of each possible MIG placement."""
    return [_span(profile, start) for profile in profiles for start in profile.starts]


def _span(profile: MigProfile, start: int) -> int:
    """Return as a bit mask the memory slices of a MIG instance at ``start``."""
    return ((1 << profile.size) - 1) << start


def _sum(counts: Counts, more: Counts) -> Counts:
    return tuple(map(operator.add, counts, more))


def _plus(counts: Counts, at: int) -> Counts:
    return (*counts[:at], counts[at] + 1, *counts[at + 1 :])
