"""A workload that had to end for another, as the ConfigMap of reservations keeps it for the next leader."""

from __future__ import annotations

from typing import Annotated

import msgspec

Who = Annotated[str, msgspec.Meta(max_length=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class Evicted(msgspec.Struct, frozen=True, array_like=True):
    """A workload that had to end for another.

    Attributes:
        at: When it was told to, seconds since the epoch.
        uid: The uid of its first pod that was.
        lineage: What made it, as ``Workload.lineage`` says it.
    """

    at: Seconds
    uid: Who
    lineage: Who
