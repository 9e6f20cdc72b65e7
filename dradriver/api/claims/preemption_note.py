"""The note on a claim that lists the pods preempted for it, and how long the claim waits for them to end.

A *note* is an annotation in which the driver keeps data for itself. The controller writes the note with the claim,
before it evicts any of the pods. So a new leader knows from the claims alone for which pod the GPUs are, and which pods
to evict. When the preempted pods are gone, the claim is a tentative placement like any other: its GPUs are chosen, and
the scheduler has not allocated them yet.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim

MOST: Final = 512  # pods that one claim names
LONGEST: Final = 128 << 10  # characters of the annotation: half of what an object's annotations may have


class Victim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A pod that is preempted.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid. A new pod with the same name is another pod, and is not preempted.
    """

    namespace: str
    name: str
    uid: str


class Preempts(msgspec.Struct, frozen=True, kw_only=True):
    """The preemption that is noted on a claim.

    Attributes:
        at: When the controller decided to preempt, seconds since the epoch.
        until: Until when the GPUs are kept while the pods end, seconds since the epoch.
        victims: The preempted pods: those that use the pinned devices or needed resources of the node, and all other
            pods of their gangs.
        spare: The owners of the victims, as ``namespace/Job/train``. For a while, the pods that they create in place of
            the victims are not preempted.
        why: The reason, for people.
    """

    at: int
    until: int
    victims: tuple[Victim, ...]
    spare: tuple[str, ...] = ()
    why: str = ""

    @property
    def uids(self) -> frozenset[str]:
        """Return the uids of all pods that this preemption ends."""
        return frozenset(victim.uid for victim in self.victims)


_PREEMPTS: Final = msgspec.json.Decoder(Preempts)


def written(preempts: Preempts) -> str:
    """Return the text of the note with the pods that are preempted for a claim."""
    return msgspec.json.encode(preempts).decode()


def read(claim: ResourceClaim) -> Preempts | None:
    """Return the preemption in the note on this driver's claim; None without a readable note."""
    text = claim.metadata.annotations.get(names.PREEMPTS)
    if text is None or len(text) > LONGEST:
        return None
    try:
        found = _PREEMPTS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return found if len(found.victims) <= MOST else None
