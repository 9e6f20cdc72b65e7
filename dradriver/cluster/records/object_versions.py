"""Decides which of two states of an object is newer, by their resource versions.

The cluster cache gets states from reflectors and from its own writes, in any order.
"""

from __future__ import annotations

from typing import Any

from dradriver.api.base.pods import Pod
from dradriver.cluster.records.records import ClaimRecord
from dradriver.kube.reflector import Change


def is_truth(change: Change[Any], answered_at: float | None) -> bool:
    """Return whether a reflector's change counts even if its resource version is low.

    Args:
        change: The change.
        answered_at: When the API server last answered our own write of the object, by the event loop's clock; None if
            it never did.

    Returns:
        True if the reflector is known to have begun to read after ``answered_at``. Then a lower version does not mean
            an older state: the API server's store may have been restored from a backup, which sets all versions back.
    """
    return change.read_at is not None and (answered_at is None or answered_at < change.read_at)


def outdated(one: ClaimRecord, other: ClaimRecord) -> bool:
    """Return whether ``one`` is an older state of a claim than ``other``.

    With equal versions, ``one`` is older if only ``other`` is being deleted: the controller marks the claim so, in its
    cache, when it deletes the claim.
    """
    same = one.metadata.resource_version == other.metadata.resource_version
    return one.uid == other.uid and (older(one, other) or (same and other.deleting and not one.deleting))


def older(one: Pod | ClaimRecord, other: Pod | ClaimRecord) -> bool:
    """Return whether ``one`` is an older state of an object than ``other``, by resource version.

    Versions are plain numbers (KEP-5504).
    """
    a, b = one.metadata.resource_version, other.metadata.resource_version
    return a.isdecimal() and b.isdecimal() and (len(a), a) < (len(b), b)
