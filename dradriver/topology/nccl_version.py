"""The release of NCCL in the containers that run on a machine.

Predictions of bandwidth depend on it (``docs/internals/busbw.md``).
"""

from __future__ import annotations

import re
from typing import TypeAlias

from dradriver.topology.errors import TopologyError

Release: TypeAlias = tuple[int, int]

OLDEST: Release = (2, 19)  # before, AMD's sockets were no limit
NEWEST: Release = (2, 30)  # the last one whose sources were read
_VERSION = re.compile(r"(?a:(\d{1,2})\.(\d{1,3})(?:\.\d{1,3})?)")


def release(version: str) -> Release:
    """Return the release of an NCCL version: (2, 23) for ``2.23.4``.

    For an empty version, return the newest known release. A version newer than the known ones is returned unchanged;
    predictions for it are those of the newest known release.

    Raises:
        TopologyError: The text is no version, or a version before 2.19.
    """
    if not version:
        return NEWEST
    match = _VERSION.fullmatch(version)
    given = (int(match[1]), int(match[2])) if match else (0, 0)
    if given < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise TopologyError(
            f"nccl-version: {version!r} is not allowed. Write {oldest} or a later version, for example 2.23 or 2.23.4."
        )
    return given
