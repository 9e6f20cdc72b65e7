"""Which MIG instances a GPU can have together, by NVML's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.topology.machine import MigProfile


def possible(profiles: Sequence[MigProfile], placed: Sequence[tuple[MigProfile, int]]) -> bool:
    """Return whether a GPU can have these instances (profile, start) at a time."""
    slices = [n for profile, start in placed for n in range(start, start + profile.size)]
    names = [profile.name for profile, _ in placed]
    kinds = zip(*(profile.engines for profile in profiles), strict=True)
    return (
        len(slices) == len(set(slices))
        and all(start in profile.starts for profile, start in placed)
        and sum(profile.compute for profile, _ in placed) <= max(profile.compute for profile in profiles)
        and all(names.count(profile.name) <= profile.most for profile in profiles)
        and all(
            sum(profile.engines[kind] for profile, _ in placed) <= max(counts)
            or any(count * profile.most > max(counts) for count, profile in zip(counts, profiles, strict=True))
            for kind, counts in enumerate(kinds)
        )
    )
