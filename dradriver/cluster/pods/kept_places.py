"""Places of lost pods of gangs that run on: kept for a while, for the pods that their owners make anew."""

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
    """The place of a lost pod.

    Attributes:
        gang: The gang's key.
        pod: The lost pod's key; another may have it by now.
        claim: The lost pod's claim; what it held is kept once it is gone.
        choice: What that claim was made from.
        rank: Where the pod stood among the others; None where nothing said.
        index: Its place in the gang's plan.
        until: The end, by the loop's clock.
    """

    gang: Key
    pod: Key
    claim: Key
    choice: Choice
    rank: Rank | None
    index: int
    until: float


def is_lost(old: Pod, new: Pod | None) -> bool:
    """Return whether a bound pod is gone and did not end well, so that its place may be kept."""
    if not old.spec.node_name or old.finished or old.metadata.deletion_timestamp is not None:
        return False
    if new is None or new.metadata.uid != old.metadata.uid:
        return True
    return new.status.phase != "Succeeded" and (new.finished or new.metadata.deletion_timestamp is not None)


class KeptPlaces:
    """The places that are kept for the replacements of lost pods; a gang has at most as many as it has pods.

    Attributes:
        of_gang: The places of each gang that has any, by the claims of the lost pods.
    """

    def __init__(self, accounts: Accounts, recount: Callable[[Key], None]) -> None:
        """Begin without places.

        Args:
            accounts: Counts what is kept as taken.
            recount: Called with each claim whose kept devices have changed.
        """
        self._accounts, self._recount = accounts, recount
        self.of_gang: dict[Key, dict[Key, Kept]] = {}
        self._in_use: set[Key] = set()  # claims of lost pods that have their devices still

    def lost(self, pod: Pod, of: Membership, claim: ClaimRecord | None, *, running: int) -> None:
        """Keep the place of a lost pod of a gang that runs on.

        If the whole gang starts again, nothing is kept.

        Args:
            pod: The lost pod.
            of: Its membership of the gang.
            claim: The claim of the name that the pod's claim had.
            running: Number of the gang's pods that have their places.
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
        """Keep so many places of a gang at most, of those lost last."""
        places = tuple(self.of_gang.get(gang, {}).values())
        for kept in places[: max(0, len(places) - max(0, most))]:
            self.let_go(kept)

    def let_go(self, kept: Kept) -> None:
        """Stop keeping the place of a lost pod; one that is not kept is no error."""
        places = self.of_gang.get(kept.gang, {})
        if places.pop(kept.claim, None) is not None and not places:
            del self.of_gang[kept.gang]
        self._in_use.discard(kept.claim)
        self._accounts.let_go(kept.claim)
        self._recount(kept.claim)

    def recount(self, claim: Key) -> bool:
        """Note whether a lost pod's claim still has the devices of its kept place.

        Returns whether it has given them back.
        """
        known = self._accounts.claims.get(claim)
        if known is not None and known.devices:
            self._in_use.add(claim)
            return False
        was_in_use = claim in self._in_use
        self._in_use.discard(claim)
        return was_in_use

    def end(self, gang: Key) -> None:
        """Stop keeping all places of a gang."""
        for kept in tuple(self.of_gang.get(gang, {}).values()):
            self.let_go(kept)

    def gang_of(self, claim: Key) -> Key:
        """Return the gang for which the place of a lost pod's claim is kept."""
        return next(gang for gang, places in self.of_gang.items() if claim in places)

    def find(self, gang: Key, rank: Rank | None) -> Kept | None:
        """Return the kept place of the lost pod that had a rank; of those without ranks a free one."""
        places = [kept for kept in self.of_gang.get(gang, {}).values() if kept.rank == rank]
        return min(places, key=lambda kept: bool(self._accounts.claims.get(kept.claim)), default=None)

    def ready(self, of: Membership) -> Kept | None:
        """Return the place that is kept for a pod of a gang and that it can have now; None without one."""
        kept = self.find(of.gang, of.member.rank)
        claim = None if kept is None else self._accounts.claims.get(kept.claim)
        return None if claim is not None and claim.devices else kept

    def expire(self, now: float) -> None:
        """Stop keeping the places whose time is over."""
        for kept in [each for places in self.of_gang.values() for each in places.values() if each.until <= now]:
            self.let_go(kept)
