"""The books of features: what the cluster cache keeps for claims and pods that use a feature, and for no others.

``accounting`` asks the table here with each claim and pod that changed. A new feature is a row, and no line elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.nics.nic_inventory import Nics
from dradriver.cluster.pods.claim_accounts import Accounts
from dradriver.cluster.pods.gang_pods import Gangs
from dradriver.cluster.pods.kept_places import KeptPlaces
from dradriver.cluster.pods.nvlink_channels import Channels
from dradriver.cluster.pods.other_claims import OtherClaims
from dradriver.cluster.records.templates import beside


class Book(NamedTuple):
    """What a feature keeps of claims, or of pods.

    Attributes:
        concerns: Returns whether a claim or a pod uses the feature now, or is in the book from before. It tests plain
            data and runs no code of the feature.
        recount: Counts a claim or a pod again, by what the cluster cache has of it now: nothing if it is gone. To be
            told twice of the same does no harm.
    """

    concerns: Callable[[Key], bool]
    recount: Callable[[Key], object]


class FeatureBooks(NamedTuple):
    """The books of all features.

    Attributes:
        of_claims: Those that are told of claims, in this order, before any is told of the claims' pods.
        of_pods: Those that are told of pods.
    """

    of_claims: tuple[Book, ...]
    of_pods: tuple[Book, ...]

    def recount_claim(self, claim: Key) -> None:
        """Tell the books that a claim concerns that it changed."""
        for concerns, recount in self.of_claims:
            if concerns(claim):
                recount(claim)

    def recount_pod(self, pod: Key) -> None:
        """Tell the books that a pod concerns that the pod, its place or its templates changed."""
        for concerns, recount in self.of_pods:
            if concerns(pod):
                recount(pod)


def feature_books(
    *,
    pods: Mapping[Key, Pod],
    accounts: Accounts,
    gangs: Gangs,
    nics: Nics,
    channels: Channels,
    other_claims: OtherClaims,
    kept_places: KeptPlaces,
    touch: Callable[[Key], None],
    touch_pods_of: Callable[[Key], None],
) -> FeatureBooks:
    """Return the table of books.

    Args:
        pods: The living pods.
        accounts: Where each claim stands.
        gangs: Which pods start together.
        nics: The book of NICs.
        channels: The book of multi-node NVLink.
        other_claims: The book of other drivers' claims.
        kept_places: The book of lost pods' places.
        touch: Called with each pod that the controller must look at again.
        touch_pods_of: Called with each claim whose pods the controller must look at again.
    """
    claims = accounts.claims

    # For each feature: whether a claim or a pod concerns its book. It does if it uses the feature now, or if the book
    # has an entry of it from before (``of_claim``, ``of_pod``, ``named_by``). An intended claim is about to be created,
    # and its NICs count already.
    def has_nics(key: Key) -> bool:
        if key in nics.of_claim:
            return True
        if (claim := claims.get(key)) is not None:
            return claim.has_nics
        intended = accounts.intended_of(key)
        return intended is not None and bool(intended.nics)

    def recount_nics(key: Key) -> None:
        nics.hold(key, accounts.nics_of(key))
        if (claim := claims.get(key)) is not None and claim.nics:
            for rival in nics.others(key):  # claims that are in conflict with it
                touch_pods_of(rival)

    def has_channel(key: Key) -> bool:
        return key in channels.of_claim or ((claim := claims.get(key)) is not None and bool(claim.channels))

    def may_ask_for_channel(key: Key) -> bool:
        return key in channels.of_pod or ((pod := pods.get(key)) is not None and bool(beside(pod)))

    def is_named(key: Key) -> bool:
        return key in other_claims.named_by

    def names_other_claims(key: Key) -> bool:
        return key in other_claims.of_pod or ((pod := pods.get(key)) is not None and len(pod.spec.resource_claims) > 1)

    def recount_kept_place(key: Key) -> None:
        if kept_places.recount(key):
            # The place is kept for a new pod of the gang, which can have it now.
            for pod in gangs.pods(kept_places.gang_of(key)):
                touch(pod)

    return FeatureBooks(
        of_claims=(
            Book(has_channel, channels.recount_claim),
            Book(has_nics, recount_nics),
            Book(is_named, other_claims.claim_changed),
            Book(accounts.kept, recount_kept_place),  # claims of lost pods, whose places are kept for others
        ),
        of_pods=(Book(may_ask_for_channel, channels.recount), Book(names_other_claims, other_claims.recount)),
    )
