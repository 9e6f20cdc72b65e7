"""Every state that MIG instances can bring a GPU into, computed once a kind of GPU from its own placements.

A state says which memory slices are taken and, where they can run out before memory does, how many compute slices and
how many instances of a profile. A GPU of today has some hundred states, so what holds of each is a table.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from dradriver.allocator.sets.kept import Kept
from dradriver.topology.machine import Machine, MigProfile

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
_Key = tuple[int, int, Counts]  # memory slices as a mask, compute slices, instances of the profiles that are counted


class _States(NamedTuple):
    """States by number.

    Attributes:
        after: Where a profile's number and a start lead from each.
        keys: The number of each.
        counted: Profiles whose instances are counted: there may be fewer than would have room.
        compute: Compute slices of the GPU; 0 where memory runs out first.
    """

    after: list[dict[tuple[int, int], int]]
    keys: dict[_Key, int]
    counted: Counts
    compute: int

    def by_slices(self) -> list[int]:
        """The states' numbers, those with the fewest memory slices taken first: every placement leads on."""
        return [number for key, number in sorted(self.keys.items(), key=lambda item: item[0][0].bit_count())]

    def most_compute(self, profiles: tuple[MigProfile, ...]) -> int:
        """The most compute slices that instances which fit together can take."""
        most = [0] * len(self.after)
        for state in self.by_slices():
            for (number, _), then in self.after[state].items():
                most[then] = max(most[then], most[state] + profiles[number].compute)
        return max(most)


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
        self.profiles = profiles
        self.number = {profile.name: at for at, profile in enumerate(profiles)}
        self.closed = len(states.after)
        self._states = states
        shape = (self.closed + 1, len(profiles))
        self.most = np.zeros(shape, dtype=np.int32)
        for state in reversed(states.by_slices()):
            for (profile, _), then in states.after[state].items():
                self.most[state, profile] = max(self.most[state, profile], 1 + self.most[then, profile])
        room = np.sort(self.most * np.array([p.size for p in profiles], dtype=np.int32), axis=1)  # the most is last
        weight = np.maximum(np.arange(len(profiles), dtype=np.int32) - max(len(profiles) - _MOST_COUNTED, 0), 0)
        self.worth: NDArray[np.int32] = room @ (1 << weight)
        self.free = np.zeros(self.closed + 1, dtype=np.int32)
        slices = functools.reduce(int.__or__, _spans(profiles), 0).bit_count()
        for (taken, _, _), state in states.keys.items():
            self.free[state] = slices - taken.bit_count()
        self.cost = np.full(shape, NONE, dtype=np.int32)
        self.start = np.full(shape, -1, dtype=np.int64)
        for state, transitions in enumerate(states.after):
            for (profile, start), then in sorted(transitions.items()):
                cost = int(self.worth[state] - self.worth[then])
                if cost <= self.cost[state, profile]:
                    self.cost[state, profile], self.start[state, profile] = cost, start
        spare = np.minimum(self.worth, _MOST_WORTH)[:, None]
        self.order = np.where(self.cost < NONE, self.cost * (_MOST_WORTH + 1) + spare, NONE).astype(np.int32)
        self._answers: dict[Hashable, Any] = {}

    def state(self, instances: Iterable[tuple[str, int]]) -> int:
        """The state of a GPU with these instances (profile name, start); ``closed`` where it is none of the states."""
        states = self._states
        slices, compute, counts = 0, 0, (0,) * len(states.counted)
        for name, start in instances:
            number = self.number.get(name)
            if number is None or slices & _span(self.profiles[number], start):
                return self.closed
            slices |= _span(self.profiles[number], start)
            compute += self.profiles[number].compute if states.compute else 0
            counts = _plus(counts, states.counted.index(number)) if number in states.counted else counts
        return states.keys.get((slices, compute, counts), self.closed)

    def ways(self, state: int, wanted: Counts) -> dict[Counts, Way]:
        """The cheapest way for each count of instances by profile up to ``wanted`` that fits; all zero is one."""
        return self._answer(self._find_ways, state, wanted)

    def costs(self, counts: Counts) -> NDArray[np.int32]:
        """By state what so many instances of each profile cost at their best starts; ``NONE`` where they do not fit.

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
        """The most worth that each state keeps beside so many instances; -1 where they do not fit."""
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
        none = (0,) * len(wanted)
        if state == self.closed:
            return {none: Way(0, ())}
        reached: dict[tuple[Counts, int], tuple[tuple[int, int], ...]] = {(none, state): ()}
        for profile, count in enumerate(wanted):
            edge = [(counts, at, -1, placed) for (counts, at), placed in reached.items()]
            for _ in range(count):
                edge = [
                    (_plus(counts, profile), then, start, (*placed, (profile, start)))
                    for counts, at, last, placed in edge
                    for (number, start), then in self._states.after[at].items()
                    if number == profile and start > last
                ]
                for counts, at, _, placed in edge:
                    reached.setdefault((counts, at), placed)
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
    """The different lists of MIG profiles that a machine's GPUs have, by position, as many as are looked at."""
    return tuple(dict.fromkeys(gpu.profiles for gpu in machine.gpus if gpu.profiles))[:_MOST_KINDS]


def layouts_of(machine: Machine) -> list[Layout | None]:
    """The layout of each position's GPU; None without MIG profiles, and for kinds beyond those looked at."""
    seen = kinds(machine)
    return [layout_of(gpu.profiles) if gpu.profiles in seen else None for gpu in machine.gpus]


def layout_of(profiles: Profiles) -> Layout | None:
    """The layout of a GPU with these profiles; None without any, and for more states than can be tabulated.

    About 1 MB for a GPU of today.
    """
    kept = _KEPT.find(profiles)
    if kept is None:
        return keep(profiles, _layout(profiles))
    return None if isinstance(kept, _Untold) else kept


def keep(profiles: Profiles, layout: Layout | None) -> Layout | None:
    """Keep a layout that was computed elsewhere, and return it."""
    _KEPT.put(profiles, layout or _Untold(), 1)
    return layout


def known(profiles: Profiles) -> bool:
    """Whether the layout of a GPU with these profiles is there."""
    return profiles in _KEPT


def _layout(profiles: Profiles) -> Layout | None:
    free = _reachable(profiles, counted=(), compute=0) if profiles else None
    if free is None:
        return None
    loose = Layout(profiles, free)
    if loose.free[0] == sum(span.bit_count() for span in _spans(profiles)):
        return loose  # none is in another's way: instances that are there already are there together
    counted = tuple(n for n, profile in enumerate(profiles) if loose.most[0, n] > profile.most)
    total = max(profile.compute for profile in profiles)
    compute = total if free.most_compute(profiles) > total else 0
    if not counted and not compute:
        return loose
    bound = _reachable(profiles, counted=counted, compute=compute)
    return None if bound is None else Layout(profiles, bound)


def _reachable(profiles: tuple[MigProfile, ...], *, counted: tuple[int, ...], compute: int) -> _States | None:
    """All states that can be reached from the empty GPU with at most so much compute (0: any); None for too many."""
    keys: dict[_Key, int] = {(0, 0, (0,) * len(counted)): 0}
    queue = list(keys)
    after: list[dict[tuple[int, int], int]] = []
    steps = 0
    for slices, used, counts in queue:
        transitions: dict[tuple[int, int], int] = {}
        for number, profile in enumerate(profiles):
            then_used = used + profile.compute if compute else 0
            if then_used > compute or (number in counted and counts[counted.index(number)] >= profile.most):
                continue
            then_counts = _plus(counts, counted.index(number)) if number in counted else counts
            for start in profile.starts:
                if slices & _span(profile, start):
                    continue
                then = (slices | _span(profile, start), then_used, then_counts)
                if then not in keys:
                    keys[then] = len(keys)
                    queue.append(then)
                transitions[number, start] = keys[then]
        after.append(transitions)
        steps += len(transitions)
        if len(keys) > _MOST_STATES or steps > _MOST_STEPS:
            return None
    return _States(after, keys, counted, compute)


def _spans(profiles: tuple[MigProfile, ...]) -> list[int]:
    """The memory slices of every placement, as masks."""
    return [_span(profile, start) for profile in profiles for start in profile.starts]


def _span(profile: MigProfile, start: int) -> int:
    """The memory slices of a placement as a mask."""
    return ((1 << profile.size) - 1) << start


def _plus(counts: Counts, at: int) -> Counts:
    return (*counts[:at], counts[at] + 1, *counts[at + 1 :])
