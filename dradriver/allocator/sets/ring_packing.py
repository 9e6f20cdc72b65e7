"""Computes how many rings fit into the links of one set at the same time: exact, also if rings need the same links.

``ring_capacity`` calls it. A ring is a number with six bits for each direction of each pair: how many channels it uses
there. The free channels of the links are a number of the same form. Rings are subtracted from it, the same ring
repeatedly or different rings, until none fits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import mul
from typing import TypeAlias

_BITS = 6  # up to 31 channels, and a bit that tells where a subtraction lacks some
MOST = (1 << _BITS - 1) - 1
# A search that needs more rings or steps gives up, and the bound stays.
_MAX_RINGS = 100
_MAX_STEPS = 4000
_Onward: TypeAlias = list[list[tuple[int, int]]]


def most(channels: list[list[int]], most_rings: int, thirds: Mapping[tuple[int, int], int]) -> int:
    """Return how many directed rings fit into the links at once, at most ``most_rings``.

    Each ring goes through all GPUs. The free channels of all directed pairs are packed into one integer, with six bits
    for each pair. The highest bit of each pair is its guard. A subtraction clears the guard if the pair has too few
    channels. So one subtraction takes a ring, and one bit mask shows whether the ring fitted.

    Args:
        channels: ``channels[a][b]``: how many channels fit from GPU a to GPU b, at most ``MOST``.
        most_rings: The most rings that other bounds allow. This number is also returned if the search would take too
            long.
        thirds: By pair of GPUs without direct links, the GPU that relays between them.
    """
    # ``channel_unit[a][b]`` is the number that stands for one channel from a to b.
    channel_unit, guard = _fields(len(channels))
    channels_left = guard

    # By GPU where a ring can go next: the widest links first, because greedy packing then often reaches ``most_rings``.
    next_steps: _Onward = []
    for units_from, counts in zip(channel_unit, channels, strict=True):
        channels_left += sum(map(mul, units_from, counts))
        linked = sorted([(-count, b) for b, count in enumerate(counts) if count])
        next_steps.append([(b, units_from[b]) for _, b in linked])
    for (a, b), third in thirds.items():
        if channels[a][third] and channels[third][b]:
            next_steps[a].append((b, channel_unit[a][third] + channel_unit[third][b]))

    # Greedy is often enough. If it is not, rings are packed exactly, within bounds on rings and steps.
    if _greedy_count(next_steps, channels_left, guard, most_rings) == most_rings:
        return most_rings
    # Each ring is the sum of its steps' numbers, so that one subtraction takes it.
    rings = list(itertools.islice(_rings(next_steps, channels_left, guard), _MAX_RINGS + 1))
    steps = iter(range(_MAX_STEPS))

    def fill(channels_left: int, rings: list[int], missing: int) -> int:
        # Return the most rings that fit into ``channels_left``, at most ``missing``. A ring may be taken several times.
        # Rings before it in ``rings`` are not tried after it, so that each combination comes up once.
        best = 0
        rings = [ring for ring in rings if (channels_left - ring) & guard == guard]
        for at, ring in enumerate(rings):
            if best == missing or next(steps, None) is None:
                break
            best = max(best, 1 + fill(channels_left - ring, rings[at:], missing - 1))
        return best

    # If a bound was reached, the search proves nothing, and the caller's bound stays.
    rings_found = fill(channels_left, rings, most_rings)
    is_exact = len(rings) <= _MAX_RINGS and next(steps, None) is not None
    return rings_found if is_exact else most_rings


@lru_cache(maxsize=16)
def _fields(count: int) -> tuple[list[list[int]], int]:
    """Return for each directed pair the integer that stands for one channel, and the guard bits of all pairs.

    A subtraction clears a pair's guard bit if the pair has too few channels. ``count`` is the number of GPUs.
    """
    unit = [[1 << _BITS * (count * a + b) for b in range(count)] for a in range(count)]
    return unit, sum(map(sum, unit)) << _BITS - 1


def _greedy_count(onward: _Onward, left: int, guard: int, wanted: int) -> int:
    """Return how many rings fit if the first that fits is taken each time.

    The result is at most ``wanted``.

    ``left`` has the free channels of the links. ``onward`` has for each GPU the next GPUs, with the channels that the
    step uses. A ring does not fit if it clears a bit of ``guard``.
    """
    for count in range(wanted):
        ring = next(_rings(onward, left, guard), None)
        if ring is None:
            return count
        left -= ring
    return wanted


def _rings(onward: _Onward, left: int, guard: int) -> Iterator[int]:
    """Yield all rings that fit into the free channels ``left``, as integers.

    An integer has six bits for each directed pair (``_fields``). ``onward`` has for each GPU the next GPUs, with the
    integer of that step. If a ring does not fit, the subtraction clears a bit of ``guard``.
    """

    def extend(ring: int, here: int, unseen: int) -> Iterator[int]:
        goals = unseen or 1
        for there, step in onward[here]:
            if goals >> there & 1 and (left - ring - step) & guard == guard:
                if unseen:
                    yield from extend(ring + step, there, unseen & ~(1 << there))
                else:
                    yield ring + step

    return extend(0, 0, (1 << len(onward)) - 2)
