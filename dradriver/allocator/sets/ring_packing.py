"""How many rings fit into the links of one set at the same time: exact, with links that several rings need.

Every ring is a number with six bits for each direction of each pair, how often it goes that way, and so is what is left
of the links: rings are taken from it, the same again and again or one after the other, until none fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import mul
from typing import TypeAlias

_BITS = 6  # up to 31 channels, and a bit that tells where a subtraction lacks some
MOST = (1 << _BITS - 1) - 1
_RINGS = 100  # looked at, and
_STEPS = 4000  # taken: a search that needs more says nothing, and the bound stays
_Onward: TypeAlias = list[list[tuple[int, int]]]


def most(channels: list[list[int]], wanted: int, thirds: Mapping[tuple[int, int], int]) -> int:
    """Return the most directed rings through all GPUs that fit at once, ``wanted`` at most.

    Args:
        channels: By pair, how many fit each way: ``MOST`` at most.
        wanted: As many as bounds allow; given back where a search for fewer would take too long.
        thirds: The GPU that a step between two others may lead through.
    """
    unit, guard = _fields(len(channels))
    left = guard
    onward: _Onward = []  # widest links first, third GPUs last
    for units, each in zip(unit, channels, strict=True):
        left += sum(map(mul, units, each))
        linked = sorted([(-count, b) for b, count in enumerate(each) if count])
        onward.append([(b, units[b]) for _, b in linked])
    for (a, b), third in thirds.items():
        if channels[a][third] and channels[third][b]:
            onward[a].append((b, unit[a][third] + unit[third][b]))
    if _one_by_one(onward, left, guard, wanted) == wanted:
        return wanted
    rings = list(itertools.islice(_rings(onward, left, guard), _RINGS + 1))
    steps = iter(range(_STEPS))

    def fill(left: int, rings: list[int], missing: int) -> int:
        best = 0
        rings = [ring for ring in rings if left - ring & guard == guard]
        for at, ring in enumerate(rings):
            if best == missing or next(steps, None) is None:
                break
            best = max(best, 1 + fill(left - ring, rings[at:], missing - 1))
        return best

    fitting = fill(left, rings, wanted)
    settled = len(rings) <= _RINGS and next(steps, None) is not None
    return fitting if settled else wanted


@lru_cache(maxsize=16)
def _fields(count: int) -> tuple[list[list[int]], int]:
    """The number that stands for one channel of each pair, and the guard bits that show where channels are lacking."""
    unit = [[1 << _BITS * (count * a + b) for b in range(count)] for a in range(count)]
    return unit, sum(map(sum, unit)) << _BITS - 1


def _one_by_one(onward: _Onward, left: int, guard: int, wanted: int) -> int:
    """How many rings fit if each time the first that fits is taken."""
    for count in range(wanted):
        ring = next(_rings(onward, left, guard), None)
        if ring is None:
            return count
        left -= ring
    return wanted


def _rings(onward: _Onward, left: int, guard: int) -> Iterator[int]:
    """Yield all rings that ``left`` has room for."""

    def extend(ring: int, here: int, unseen: int) -> Iterator[int]:
        goals = unseen or 1
        for there, step in onward[here]:
            if goals >> there & 1 and left - ring - step & guard == guard:
                if unseen:
                    yield from extend(ring + step, there, unseen & ~(1 << there))
                else:
                    yield ring + step

    return extend(0, 0, (1 << len(onward)) - 2)
