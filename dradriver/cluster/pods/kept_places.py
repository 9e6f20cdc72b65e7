"""Places (node and GPUs) of lost pods of running gangs, kept for their replacements.

They are released if no replacement comes for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from dradriver.allocator.request import Choice
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs.gang_owners import Rank
from dradriver.cluster.pods.claim_accounts import Accounts
from dradriver.cluster.pods.gang_pods import Membership
from dradriver.cluster.records.records import ClaimRecord

KEPT_S: Final = 120.0  # a Job makes a lost pod anew after 10 s, and after 20, 40, 80 s where it goes on losing them


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The place (node and GPUs) of a lost pod, kept for its replacement.

    Attributes:
        gang: The gang's key.
        pod: The lost pod's key. A new pod may have the same key by now.
        claim: The lost pod's claim. Its devices stay counted after it is gone.
        choice: The chosen GPUs that the claim was made from.
        rank: The lost pod's rank in the gang; None if it had none.
        index: The position of the place in the gang's plan, which lists the places of all its pods.
        until: When the place is released, in seconds of the event loop's clock.
    """

    gang: Key
    pod: Key
    claim: Key
    choice: Choice
    rank: Rank | None
    index: int
    until: float


def is_lost(old: Pod, new: Pod | None) -> bool:
    """Return whether a bound pod was deleted or failed.

    Then its GPUs may be kept for a new pod of its gang. ``new`` is None if the pod was deleted.
    """
    if not old.spec.node_name or old.finished or old.metadata.deletion_timestamp is not None:
        return False
    if new is None or new.metadata.uid != old.metadata.uid:
        return True
    return new.status.phase != "Succeeded" and (new.finished or new.metadata.deletion_timestamp is not None)


class KeptPlaces:
    """The places (node and GPUs) kept for replacements of lost pods.

    A gang has at most as many kept places as it has pods.

    Attributes:
        of_gang: The kept places of each gang, by the claims of the lost pods.
    """

    def __init__(self, accounts: Accounts, recount: Callable[[Key], None]) -> None:
        """Make a collection without kept places.

        Args:
            accounts: Counts the devices of kept places as used.
            recount: Called with each claim whose kept devices have changed.
        """
        self._accounts, self._recount = accounts, recount
        self.of_gang: dict[Key, dict[Key, Kept]] = {}
        self._in_use: set[Key] = set()  # claims of lost pods that have their devices still

    def lost(self, pod: Pod, of: Membership, claim: ClaimRecord | None, *, running: int) -> None:
        """Keep the node and GPUs of a lost pod of a gang that runs on.

        Nothing is kept if the whole gang restarts, if the pod had fractions of GPUs, or if no gang plan had a place for
        the pod.

        Args:
            pod: The lost pod.
            of: Its membership of the gang.
            claim: The claim that now has the name of the pod's claim; None if there is none.
            running: The number of the gang's pods that have their places.
        """
        if claim is None or claim.pin is None or claim.planned is None or not claim.owned_by(pod.metadata.uid):
            return  # the pod had no place in a gang's plan
        is_restarted_whole = of.wants is not None and of.wants.restarts
        if is_restarted_whole or not isinstance(claim.pin.choice, Choice):
            return  # places of shares and MIG slices are not kept
        self.of_gang.setdefault(of.gang, {})[claim.key] = Kept(
            gang=of.gang,
            pod=(pod.metadata.namespace, pod.metadata.name),
            claim=claim.key,
            choice=claim.pin.choice,
            rank=of.member.rank,
            index=claim.planned.index,
            until=asyncio.get_running_loop().time() + KEPT_S,
        )
        self._accounts.keep(claim.key, claim.pin.taken)
        self._recount(claim.key)
        self.trim(of.gang, claim.planned.size - running)

    def trim(self, gang: Key, most: int) -> None:
        """Keep at most ``most`` places of a gang's lost pods, and release all further ones.

        A place is a node and GPUs. The places of the pods that were lost last are kept.
        """
        places = tuple(self.of_gang.get(gang, {}).values())
        for kept in places[: max(0, len(places) - max(0, most))]:
            self.let_go(kept)

    def let_go(self, kept: Kept) -> None:
        """Release the place (node and GPUs) that is kept for a lost pod's replacement.

        Nothing happens if it is not kept any more.
        """
        places = self.of_gang.get(kept.gang, {})
        if places.pop(kept.claim, None) is not None and not places:
            del self.of_gang[kept.gang]
        self._in_use.discard(kept.claim)
        self._accounts.let_go(kept.claim)
        self._recount(kept.claim)

    def recount(self, claim: Key) -> bool:
        """Record whether the devices of a lost pod's claim are still allocated to it.

        Returns:
            Whether the claim has released the devices since the last call.
        """
        known = self._accounts.claims.get(claim)
        if known is not None and known.devices:
            self._in_use.add(claim)
            return False
        was_in_use = claim in self._in_use
        self._in_use.discard(claim)
        return was_in_use

    def end(self, gang: Key) -> None:
        """Release all places (node and GPUs) that are kept for new pods of a gang."""
        for kept in tuple(self.of_gang.get(gang, {}).values()):
            self.let_go(kept)

    def gang_of(self, claim: Key) -> Key:
        """Return the gang for which the place of a lost pod is kept.

        ``claim`` is the lost pod's claim; its place must be kept.
        """
        return next(gang for gang, places in self.of_gang.items() if claim in places)

    def find(self, gang: Key, rank: Rank | None) -> Kept | None:
        """Return the kept place (node and GPUs) of a gang's lost pod with this rank.

        None if no such place is kept. Several places can have the same rank, for example None. Then a place whose claim
        is gone is preferred.
        """
        places = [kept for kept in self.of_gang.get(gang, {}).values() if kept.rank == rank]
        return min(places, key=lambda kept: bool(self._accounts.claims.get(kept.claim)), default=None)

    def ready(self, of: Membership) -> Kept | None:
        """Return the kept place that a gang's new pod can take now, or None.

        A kept place is the node and the GPUs of a lost pod. The lost pod had the same rank, and its claim has released
        the devices. ``of`` is the new pod's membership.
        """
        kept = self.find(of.gang, of.member.rank)
        claim = None if kept is None else self._accounts.claims.get(kept.claim)
        return None if claim is not None and claim.devices else kept

    def expire(self, now: float) -> None:
        """Release the kept places (node and GPUs) for which no new pod came in time.

        ``now`` is the event loop's time, in seconds.
        """
        for kept in [each for places in self.of_gang.values() for each in places.values() if each.until <= now]:
            self.let_go(kept)
