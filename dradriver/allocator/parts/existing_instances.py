"""MIG instances that are there already: all that their GPU can have, so nothing is lost by taking one but itself.

Such a GPU is to the allocator one whose profiles can start where an instance is and nowhere else. A node's kind has
these profiles in it: nodes with equal instances are alike, as they are where one configuration is rolled out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dradriver.topology.machine import Gpu


def with_instances(gpu: Gpu, instances: Iterable[tuple[str, int]]) -> Gpu:
    """Return the GPU as if it could have only the existing MIG instances, given by profile and first memory slice."""
    starts: dict[str, set[int]] = {}
    for profile, start in instances:
        starts.setdefault(profile, set()).add(start)
    left = tuple(
        msgspec.structs.replace(profile, starts=tuple(sorted(own)), most=len(own))
        for profile in gpu.profiles
        if (own := starts.get(profile.name, set()).intersection(profile.starts))
    )
    return msgspec.structs.replace(gpu, profiles=left)
