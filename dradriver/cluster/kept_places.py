"""Places of lost pods of gangs that run on: kept for a while, for the pods that their owners make anew."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api.gang_owners import Rank
from dradriver.api.pins import Key, Pin

KEPT_S: Final = 120.0  # a Job makes a lost pod anew after 10 s, and after 20, 40, 80 s where it goes on losing them


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a lost pod.

    Attributes:
        gang: The gang's key.
        claim: The lost pod's claim; what it held is kept once it is gone.
        pin: What that claim held.
        choice: The same as the choice that it was made from.
        rank: Where the pod stood among the others; None where nothing said.
        index: Its place in the gang's plan.
        until: The end, by the loop's clock.
    """

    gang: Key
    claim: Key
    pin: Pin
    choice: Choice
    rank: Rank | None
    index: int
    until: float


class KeptPlaces:
    """All of them. A gang has as many as it has lost pods at a time, so they are no more than its pods."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of: dict[Key, dict[Key, Kept]] = {}

    def add(self, kept: Kept) -> None:
        """Keep a place."""
        self._of.setdefault(kept.gang, {})[kept.claim] = kept

    def remove(self, kept: Kept) -> None:
        """Keep a place no more; one that is not kept is no error."""
        places = self._of.get(kept.gang, {})
        if places.pop(kept.claim, None) is not None and not places:
            del self._of[kept.gang]

    def find(self, gang: Key, rank: Rank | None) -> Kept | None:
        """Return the place of the pod that had a rank; of those without ranks the one that was lost first."""
        return next((kept for kept in self.of(gang) if kept.rank == rank), None)

    def of(self, gang: Key) -> Collection[Kept]:
        """Return the places of a gang, in the order in which they were lost."""
        return tuple(self._of.get(gang, {}).values())

    def ended(self, now: float) -> Collection[Kept]:
        """Return the places whose time is over."""
        return [kept for places in self._of.values() for kept in places.values() if kept.until <= now]
