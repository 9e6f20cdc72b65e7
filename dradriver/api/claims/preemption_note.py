"""The note on a claim that says which pods are preempted for it, and until when it waits for them.

It is written with the claim, so before any of them is told to end: whoever leads then knows from the claims alone whose
GPUs these are to be, and whom to end. A claim that says so is a promise like any other once those pods are gone.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.dra_objects import ResourceClaim

MOST: Final = 512  # pods that one claim names
LONGEST: Final = 128 << 10  # characters of the annotation: half of what an object's annotations may have


class Victim(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A pod that has to end.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        uid: Its uid: what is made anew under its name is another, and has not to end.
    """

    namespace: str
    name: str
    uid: str


class Preempts(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim says of those that have to end for it.

    Attributes:
        at: When that was decided, seconds since the epoch.
        until: Until when its GPUs are kept while they end, the same.
        victims: The pods: those that hold what it is pinned to or takes of its node, and all others of their gangs.
        spare: What made them, as ``namespace/Job/train``: not to be ended again for a while.
        why: The same in words, for people.
    """

    at: int
    until: int
    victims: tuple[Victim, ...]
    spare: tuple[str, ...] = ()
    why: str = ""

    @property
    def uids(self) -> frozenset[str]:
        """Return the uids of all pods that the preemption noted on a claim ends."""
        return frozenset(victim.uid for victim in self.victims)


_PREEMPTS: Final = msgspec.json.Decoder(Preempts)


def written(preempts: Preempts) -> str:
    """Return the text of the note with the pods that are preempted for a claim."""
    return msgspec.json.encode(preempts).decode()


def read(claim: ResourceClaim) -> Preempts | None:
    """Return which pods are preempted for a claim of ours by its note; None without one, or for a damaged one."""
    text = claim.metadata.annotations.get(names.PREEMPTS)
    if text is None or len(text) > LONGEST:
        return None
    try:
        found = _PREEMPTS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    return found if len(found.victims) <= MOST else None
