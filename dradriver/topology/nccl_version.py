"""Which release of NCCL runs on a machine: predictions differ by it (``docs/allocator.md``)."""

from __future__ import annotations

import re
from typing import TypeAlias

from dradriver.topology.errors import TopologyError

Release: TypeAlias = tuple[int, int]

OLDEST: Release = (2, 19)  # before, AMD's sockets were no limit
NEWEST: Release = (2, 30)  # the last one whose sources were read
_VERSION = re.compile(r"(?a:(\d{1,2})\.(\d{1,3})(?:\.\d{1,3})?)")


def release(version: str) -> Release:
    """Return the release of an NCCL version: (2, 23) for ``2.23.4``, the newest known for an empty one.

    Raises:
        TopologyError: No version, or one before 2.19. Newer ones than are known are taken to predict as those.
    """
    if not version:
        return NEWEST
    match = _VERSION.fullmatch(version)
    given = (int(match[1]), int(match[2])) if match else (0, 0)
    if given < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TopologyError(f"nccl-version: {version!r}; write {oldest} or a later one, as 2.23 or 2.23.4")
    return given
