"""The record of a workload that was evicted for another one.

The controller stores these records in the ConfigMap of the reservations, so that the next leader knows them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Who = Annotated[str, msgspec.Meta(max_length=1024)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class Evicted(msgspec.Struct, frozen=True, array_like=True):
    """A workload that was evicted for another one.

    Attributes:
        at: When it was evicted, seconds since the epoch.
        uid: The uid of its first evicted pod.
        lineage: The gang or owner that creates the workload's pods, by which its replacement is recognized
            (``Workload.lineage``).
    """

    at: Seconds
    uid: Who
    lineage: Who
