"""The limits on the MIG instances of a GPU in addition to memory slices.

They are engines, compute slices, and the highest number of instances of each profile. The allocator, the counters of
ResourceSlices, the node agent and the simulated GPUs all use them.
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
    """A resource of a GPU that MIG instances use up.

    Attributes:
        name: A DNS label: ``ofa-engines``, ``compute-slices``, ``profile-1``.
        total: The amount that the GPU has.
        needs: By MIG profile, the amount that one instance takes.
    """

    name: str
    total: int
    needs: Mapping[MigProfile, int]


def every_limit(profiles: Sequence[MigProfile]) -> tuple[Limit, ...]:
    """Return all limits on the MIG instances of a GPU with ``profiles``, except memory slices."""
    compute = {profile: profile.compute for profile in profiles}
    counts = [
        Limit(f"profile-{number}", profile.most, {other: int(other is profile) for other in profiles})
        for number, profile in enumerate(profiles)
    ]
    return (*_engines(profiles), Limit("compute-slices", max(compute.values(), default=0), compute), *counts)


@functools.lru_cache(maxsize=64)
def binding_limits(profiles: tuple[MigProfile, ...]) -> tuple[Limit, ...]:
    """Return the limits on MIG instances that matter in addition to memory slices.

    The limits are checked one after the other. A limit is left out if it can never be exceeded: no instances that fit
    into the memory slices and keep the earlier limits need more than its total. On an H100 only the limit of the OFA
    engine remains. The result is empty if no placement overlaps another: then all instances can exist together.
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
    """Return the limits of engines. An engine type that instances share has no limit.

    The GPU has as many engines of a type as the profile that has the most of them: ``+me.all``, or the profile of all
    slices. NVML gives how many instances of a profile can exist at a time. If these would need more engines than the
    GPU has, instances share the engines.
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
    """Return the engines of each profile by the profiles' names, for sources without numbers of engines.

    A GPU has one OFA engine; instances with ``+me`` have it. If the GPU has a profile ``+me.all``, decoders count, too:
    an instance of this profile has all of them, ``-me`` has none, and each other instance has one for each compute
    slice (NVIDIA's MIG user guide, RTX PRO 6000).
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
    """Return whether MIG instances can take more than the total of ``limit``.

    Only combinations of instances that fit into the memory and keep ``limits`` are considered. The search goes from the
    lowest memory slice to the highest. If there are too many combinations, it ends with True.

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
