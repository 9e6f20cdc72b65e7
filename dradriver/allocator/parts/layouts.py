"""Layouts: every state that MIG instances can bring a GPU into, computed once for each kind of GPU.

A state says which memory slices are taken, and how much of each limit that can be reached before memory runs out
(``mig_limits.py``: media engines, compute slices). A GPU of today has some hundred states, so what holds of each is a
table.
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
    """States by number.

    Attributes:
        after: Where a profile's number and a start lead from each.
        keys: The number of each.
        needs: What an instance of each profile takes of each limit.
    """

    after: list[dict[tuple[int, int], int]]
    keys: dict[_Key, int]
    needs: list[Counts]

    def by_slices(self) -> list[int]:
        """Return the numbers of layout states, the fewest taken slices first: each placement leads to a later one."""
        return [number for key, number in sorted(self.keys.items(), key=lambda item: item[0][0].bit_count())]


class Way(NamedTuple):
    """How some instances are put onto a GPU.

    Attributes:
        cost: What they take from those who come later.
        placements: Profile number and start of each, by profile number.
    """

    cost: int
    placements: tuple[tuple[int, int], ...]


class Layout:
    """The states of one kind of GPU: 0 is the empty one, ``closed`` one in which nothing fits.

    ``worth`` of a state is what instances of one profile alone could still take, in memory slices, over the profiles:
    the most counts twice as much as the next, that twice as much as the next, and so on. A placement costs the worth
    that it takes, so room that is good for many slices is kept, of whatever profile (where all profiles count alike,
    more slices find no place: ``python -m tests.bench.parts``). Worked example, H100: an empty one has 8, 8, 8, 7, 6, 4
    and 1, which makes 985. The first ``1g.10gb`` costs 263 at start 6 (6, 6, 6, 4, 4, 1, 0 are left), 295 at 4, where
    ``2g`` can be, and 309 at 0, as ``4g`` is spoiled, too.

    Attributes:
        profiles: The GPU's profiles.
        number: Number of each profile by its name.
        closed: Number of the state in which nothing fits, the last.
        most: (closed + 1, profiles) int32, how many instances of one profile alone still fit.
        worth: (closed + 1,) int32.
        free: (closed + 1,) int32, memory slices that are not taken.
        cost: (closed + 1, profiles) int32, what one instance at its best start costs; ``NONE`` where none fits.
        order: (closed + 1, profiles) int32, the same, and of equal costs what the state is worth: the fullest GPU
            first, so that others stay empty.
        start: (closed + 1, profiles) int64, that start; of equally good ones the highest, as some large profiles can
            only be at the lowest.
    """

    def __init__(self, profiles: tuple[MigProfile, ...], states: _States) -> None:
        """Compute the tables of all states.

        Args:
            profiles: The GPU's MIG profiles.
            states: Its states. ``after[state]`` has, by profile number and start slice, the number of the next state.
                State 0 is the empty GPU.
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
        """Return a GPU's layout state with these MIG instances (profile name, start); ``closed`` for no such state."""
        slices, used = next(iter(self._states.keys))
        for name, start in instances:
            number = self.number.get(name)
            if number is None or slices & _span(self.profiles[number], start):
                return self.closed
            slices |= _span(self.profiles[number], start)
            used = _sum(used, self._states.needs[number])
        return self._states.keys.get((slices, used), self.closed)

    def ways(self, state: int, wanted: Counts) -> dict[Counts, Way]:
        """Return the cheapest way from a layout state for each count of MIG instances up to ``wanted`` that fits."""
        return self._answer(self._find_ways, state, wanted)

    def costs(self, counts: Counts) -> NDArray[np.int32]:
        """Return by layout state the cost of so many MIG instances of each profile; ``NONE`` if they do not fit.

        (closed + 1,) int32; read only.
        """
        return self._answer(self._find_costs, counts)

    def _answer(self, find: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What ``find``, a method of this layout, returns; remembered here, so that it goes with the layout."""
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
        """Return the most worth that each state keeps next to so many instances; -1 if they do not fit."""
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
            state: The state of the GPU before the instances are added.
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
    """There is no layout: it would have more states than can be tabulated."""


def kinds(machine: Machine) -> tuple[Profiles, ...]:
    """Return the different lists of MIG profiles on a machine, each of which has one layout, by position."""
    return tuple(dict.fromkeys(gpu.profiles for gpu in machine.gpus if gpu.profiles))[:_MOST_KINDS]


def layouts_of(machine: Machine) -> list[Layout | None]:
    """Return the MIG layout of each position's GPU; None without MIG profiles."""
    seen = kinds(machine)
    return [layout_of(gpu.profiles) if gpu.profiles in seen else None for gpu in machine.gpus]


def layout_of(profiles: Profiles) -> Layout | None:
    """Return the MIG layout of a GPU with these profiles; None without any, or with more states than a table holds.

    About 1 MB for a GPU of today.
    """
    kept = _KEPT.find(profiles)
    if kept is None:
        return keep(profiles, _layout(profiles))
    return None if isinstance(kept, _Untold) else kept


def keep(profiles: Profiles, layout: Layout | None) -> Layout | None:
    """Store a MIG layout that was computed elsewhere, and return it."""
    _KEPT.put(profiles, layout or _Untold(), 1)
    return layout


def known(profiles: Profiles) -> bool:
    """Return whether the MIG layout of a GPU with these profiles was computed."""
    return profiles in _KEPT


def _layout(profiles: Profiles) -> Layout | None:
    if not profiles or _reachable(profiles, ()) is None:
        return None
    states = _reachable(profiles, binding_limits(profiles))
    return None if states is None else Layout(profiles, states)


def _reachable(profiles: tuple[MigProfile, ...], limits: Sequence[Limit]) -> _States | None:
    """Return all states that MIG instances can bring an empty GPU into; None if there are too many.

    A breadth-first search from the empty GPU: ``queue`` grows while it is read. A state is the mask of memory slices
    that are taken, and how much is taken of each limit. A profile has a size in memory slices and the slices where an
    instance may start.

    Args:
        profiles: The GPU's MIG profiles.
        limits: The limits that can be reached before memory slices run out. Each has a total for the GPU and what an
            instance of each profile needs.
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
    """The memory slices of every placement, as masks."""
    return [_span(profile, start) for profile in profiles for start in profile.starts]


def _span(profile: MigProfile, start: int) -> int:
    """The memory slices of a placement as a mask."""
    return ((1 << profile.size) - 1) << start


def _sum(counts: Counts, more: Counts) -> Counts:
    return tuple(map(operator.add, counts, more))


def _plus(counts: Counts, at: int) -> Counts:
    return (*counts[:at], counts[at] + 1, *counts[at + 1 :])
