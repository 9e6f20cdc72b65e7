"""Which of two states of an object is newer, by resource versions, and when that does not count."""

from __future__ import annotations

from typing import Any

from dradriver.api.base.pods import Pod
from dradriver.cluster.records.records import ClaimRecord
from dradriver.kube.reflector import Change


def is_truth(change: Change[Any], answered_at: float | None) -> bool:
    """Return whether a change counts whatever its version: it is of a read that began after the last answer.

    The server's store may have been put back, and all versions since then with it.
    """
    return change.read_at is not None and (answered_at is None or answered_at < change.read_at)


def outdated(one: ClaimRecord, other: ClaimRecord) -> bool:
    """Return whether a version of a claim is older than another, or is the one that we have deleted since."""
    same = one.metadata.resource_version == other.metadata.resource_version
    return one.uid == other.uid and (older(one, other) or (same and other.deleting and not one.deleting))


def older(one: Pod | ClaimRecord, other: Pod | ClaimRecord) -> bool:
    """Return whether a state of an object is older than another; versions are plain numbers (KEP-5504)."""
    a, b = one.metadata.resource_version, other.metadata.resource_version
    return a.isdecimal() and b.isdecimal() and (len(a), a) < (len(b), b)
