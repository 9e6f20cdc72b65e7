"""Decides which of two states of an object is newer, by their resource versions.

The cluster cache gets states from reflectors and from its own writes, in any order.
"""

from __future__ import annotations

from typing import Any

from dradriver.api.base.pods import Pod
from dradriver.cluster.records.records import ClaimRecord
from dradriver.kube.reflector import Change


def is_truth(change: Change[Any], answered_at: float | None) -> bool:
    """Return whether a reflector's change counts, even if its resource version is low.

    It counts if the reflector began to read after ``answered_at``, the API server's last answer to our own write (None
    without one). Then a lower version is no sign of an old state: the API server's store may have been restored from a
    backup, which sets all versions back.
    """
    return change.read_at is not None and (answered_at is None or answered_at < change.read_at)


def outdated(one: ClaimRecord, other: ClaimRecord) -> bool:
    """Return whether ``one`` is an older state of a claim than ``other``.

    If only ``other`` is being deleted, ``one`` is older even with the same version: the controller marks ``other``
    itself when it deletes the claim.
    """
    same = one.metadata.resource_version == other.metadata.resource_version
    return one.uid == other.uid and (older(one, other) or (same and other.deleting and not one.deleting))


def older(one: Pod | ClaimRecord, other: Pod | ClaimRecord) -> bool:
    """Return whether ``one`` is an older state of an object than ``other``, by resource version.

    Versions are plain numbers (KEP-5504).
    """
    a, b = one.metadata.resource_version, other.metadata.resource_version
    return a.isdecimal() and b.isdecimal() and (len(a), a) < (len(b), b)
