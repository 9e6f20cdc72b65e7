"""What MIG instances of a GPU run out of in addition to memory slices: engines, compute slices, a profile's count.

The allocator, the counters of ResourceSlices, the node agent and the simulated GPUs all keep these limits.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dradriver.topology.machine import MigProfile

ENGINES: Final = ("copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines")
"""Kinds of engines that an instance has to itself, in the order of ``MigProfile.engines``."""

_DECODERS: Final = ENGINES.index("decoders")
_OFA: Final = ENGINES.index("ofa-engines")
_MOST_STATES: Final = 1 << 12  # far more than a GPU of today has


class Limit(NamedTuple):
    """Something of which a GPU has a number, and each instance takes some.

    Attributes:
        name: A DNS label: ``ofa-engines``, ``compute-slices``, ``profile-1``.
        total: How many the GPU has.
        needs: How many an instance of each profile takes.
    """

    name: str
    total: int
    needs: Mapping[MigProfile, int]


def every_limit(profiles: Sequence[MigProfile]) -> tuple[Limit, ...]:
    """Return all limits of the MIG instances of a GPU with these profiles."""
    compute = {profile: profile.compute for profile in profiles}
    counts = [
        Limit(f"profile-{number}", profile.most, {other: int(other is profile) for other in profiles})
        for number, profile in enumerate(profiles)
    ]
    return (*_engines(profiles), Limit("compute-slices", max(compute.values(), default=0), compute), *counts)


@functools.lru_cache(maxsize=64)
def binding_limits(profiles: tuple[MigProfile, ...]) -> tuple[Limit, ...]:
    """Return the fewest limits of MIG instances that, with memory slices, allow what all limits allow.

    A limit is left out if memory slices and the limits before it never let its total be exceeded: on an H100 the OFA
    engine alone remains. None remains if no placement overlaps another: these instances exist together already.
    """
    spans = [(start, start + profile.size) for profile in profiles for start in profile.starts]
    if sum(end - start for start, end in spans) == len({n for start, end in spans for n in range(start, end)}):
        return ()
    chosen: list[Limit] = []
    for limit in every_limit(profiles):
        if _can_exceed(profiles, chosen, limit):
            chosen.append(limit)
    return tuple(chosen)


def _engines(profiles: Sequence[MigProfile]) -> list[Limit]:
    """Return the limits of engines; of a kind that instances share none.

    The GPU has as many as its best equipped profile: ``+me.all``, or the one of all slices. NVML says how many
    instances of one profile a GPU can have. If these alone need more engines than there are, instances share them.
    """
    counts = {profile: profile.engines for profile in profiles}
    if not any(map(any, counts.values())):
        counts = _engines_by_name(profiles)
    limits = []
    for kind in reversed(range(len(ENGINES))):
        needs = {profile: engines[kind] if kind < len(engines) else 0 for profile, engines in counts.items()}
        total = max(needs.values(), default=0)
        if total and all(need * profile.most <= total for profile, need in needs.items()):
            limits.append(Limit(ENGINES[kind], total, needs))
    return limits


def _engines_by_name(profiles: Sequence[MigProfile]) -> dict[MigProfile, tuple[int, ...]]:
    """Return the engines that the profiles' names tell of, for sources that have no numbers.

    Instances with ``+me`` have the OFA engine, which a GPU has once. If there is a ``+me.all``, it has all decoders,
    ``-me`` has none, and each other instance has one for each compute slice (NVIDIA's MIG user guide, RTX PRO 6000).
    """
    whole = max((profile.compute for profile in profiles), default=0)
    some_take_all = any("+me.all" in profile.name for profile in profiles)
    counts = {}
    for profile in profiles:
        engines = [0] * len(ENGINES)
        engines[_OFA] = int("+me" in profile.name)
        if some_take_all and "-me" not in profile.name:
            engines[_DECODERS] = whole if "+me.all" in profile.name else profile.compute
        counts[profile] = tuple(engines)
    return counts


def _can_exceed(profiles: Sequence[MigProfile], limits: Sequence[Limit], limit: Limit) -> bool:
    """Return whether MIG instances that fit into memory and ``limits`` can take more than the total of ``limit``.

    The search goes from the lowest memory slice to the highest. If there are too many ways, it ends with True.

    Args:
        profiles: The GPU's MIG profiles.
        limits: The limits that instances keep.
        limit: A further limit.
    """
    # ``reached[n]`` is about instances below memory slice ``n``. A key is how much they take of each of ``limits``. The
    # value is the most of ``limit`` that they can take then.
    end = max(start + profile.size for profile in profiles for start in profile.starts)
    reached: list[dict[tuple[int, ...], int]] = [{} for _ in range(end + 1)]
    reached[0][(0,) * len(limits)] = 0
    for position in range(end):
        if len(reached[position]) > _MOST_STATES:
            return True
        beginning = [profile for profile in profiles if position in profile.starts]
        for used, used_of_limit in reached[position].items():
            # Either no instance begins at this slice, or one of a profile that can begin here.
            reached[position + 1][used] = max(reached[position + 1].get(used, 0), used_of_limit)
            for profile in beginning:
                used_then = tuple(n + each.needs[profile] for n, each in zip(used, limits, strict=True))
                if all(n <= each.total for n, each in zip(used_then, limits, strict=True)):
                    after, total = reached[position + profile.size], used_of_limit + limit.needs[profile]
                    after[used_then] = max(after.get(used_then, 0), total)
                    if total > limit.total:
                        return True
    return False
