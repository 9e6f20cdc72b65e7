"""Describes GPUs on which only the MIG instances that exist already can be used.

The allocator gets such a GPU with limited profiles: a profile can start only where an instance of the profile exists.
So an allocated instance makes no other instance unusable. The profiles are part of a node's kind. So nodes with equal
instances are of one kind; if one MIG configuration is rolled out to all nodes, there is one kind.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dradriver.topology.machine import Gpu


def with_instances(gpu: Gpu, instances: Iterable[tuple[str, int]]) -> Gpu:
    """Return the GPU as if it could have only the MIG instances that exist already.

    ``instances`` are these instances: pairs of profile name and first memory slice.
    """
    starts: dict[str, set[int]] = {}
    for profile, start in instances:
        starts.setdefault(profile, set()).add(start)
    left = tuple(
        msgspec.structs.replace(profile, starts=tuple(sorted(own)), most=len(own))
        for profile in gpu.profiles
        if (own := starts.get(profile.name, set()).intersection(profile.starts))
    )
    return msgspec.structs.replace(gpu, profiles=left)
