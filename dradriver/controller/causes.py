"""What kind of thing keeps a pod waiting: one word for each reason that it may be told, for a metric."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final


class Cause(StrEnum):
    """Why a pod waits."""

    GPUS = "gpus"  # no set that it may have is free
    NEVER = "never"  # the cluster has no such set, also when it is empty
    NODES = "nodes"  # no node with GPUs can run it
    RESERVED = "reserved"  # what is free is kept for others, by a reservation, a partition or exclusiveTo
    CAP = "cap"  # its tenant's, or the namespace's quota
    GANG = "gang"  # others of its gang are missing, or have no place
    ENDING = "ending"  # others end for it
    SCHEDULER = "scheduler"  # the scheduler has not bound it
    GATE = "gate"  # another controller holds it
    STORAGE = "storage"  # a volume
    SERVER = "server"  # the API server, or a webhook of others
    POD = "pod"  # what it says itself, or what somebody did to its claim


# The first of these that a reason has. What is more telling stands first: at their end reasons name what is left out.
_PHRASES: Final[tuple[tuple[str, Cause], ...]] = (
    ("its tenant's cap", Cause.CAP),
    ("exceeded quota", Cause.CAP),
    ("a quota of this namespace", Cause.CAP),
    ("whose its namespace is", Cause.CAP),
    ("preempts", Cause.ENDING),
    ("did not end for it in time", Cause.ENDING),
    ("need longer than its tentative placement lasts", Cause.ENDING),
    ("is not handed over to kube-scheduler", Cause.RESERVED),
    ("are reserved for it", Cause.ENDING),
    ("waits until its gang has been started anew", Cause.GANG),
    ("pods of its gang are there", Cause.GANG),
    ("pods of its gang had their place in time", Cause.GANG),
    ("gang-size", Cause.GANG),
    ("write how many pods the gang has", Cause.GANG),
    ("nothing says which pods belong together", Cause.GANG),
    ("has no number of pods with GPUs", Cause.GANG),
    ("cannot start as one gang", Cause.GANG),
    ("starts pods one by one", Cause.GANG),
    ("all its GPUs are free", Cause.NEVER),
    ("when it is empty", Cause.NEVER),
    ("no node offers", Cause.NEVER),
    ("no node has GPUs of", Cause.NEVER),
    ("the scheduler finds no room on its nodes", Cause.SCHEDULER),
    ("has not bound", Cause.SCHEDULER),
    ("it was bound to node", Cause.SCHEDULER),
    ("waits until its scheduler has bound", Cause.SCHEDULER),
    ("waits for scheduling gate", Cause.GATE),
    ("waits for PersistentVolumeClaim", Cause.STORAGE),
    ("reserved for one that has waited for longer", Cause.RESERVED),
    ("left out are all GPUs but those of tenant", Cause.RESERVED),
    ("left out are GPUs that are a tenant's alone", Cause.RESERVED),
    ("another namespace uses fractions of", Cause.RESERVED),
    ("so no claim is given devices by this constraint", Cause.NEVER),
    ("no eligible node has", Cause.GPUS),
    ("none so far beside GPUs that are free", Cause.GPUS),
    ("not all were tried that the claim's requests allow", Cause.GPUS),
    ("have no place for all of them at once", Cause.GPUS),
    ("no place now", Cause.GPUS),
    ("the nodes that this pod was placed for have no other GPUs", Cause.GPUS),
    ("GPUs are left out that DeviceTaintRule", Cause.GPUS),
    ("GPUs are not free yet", Cause.GPUS),
    ("is being placed with pod", Cause.GPUS),
    ("no node with GPUs can run this pod", Cause.NODES),
    ("are assessed", Cause.NODES),
    ("nodes left out:", Cause.NODES),
    ("which cannot run this pod", Cause.NODES),
    ("a webhook may hold them up", Cause.SERVER),
    ("an error in the controller", Cause.SERVER),
)
_MOST: Final = 8192


@lru_cache(maxsize=_MOST)
def cause_of(reason: str) -> Cause:
    """Return what kind of thing a reason names (docs/troubleshooting.md has all)."""
    return next((cause for phrase, cause in _PHRASES if phrase in reason), Cause.POD)


def counted(reasons: Iterable[str]) -> dict[Cause, int]:
    """Return how many reasons there are of each cause; 0 of those that nobody is told."""
    found = dict.fromkeys(Cause, 0)
    for reason in reasons:
        found[cause_of(reason)] += 1
    return found
