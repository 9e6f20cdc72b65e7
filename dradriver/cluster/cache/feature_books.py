"""What claims and pods use of optional features, such as NICs and NVLink channels.

For each feature there is a *book*: the functions that update the record of this use. The cluster cache keeps a record
only for claims and pods that use the feature. ``accounting`` asks the table of books here for each changed claim and
pod. A new feature needs one row in this table and no other line.

A node's *channel* is the device that a pod needs to use NVLink between nodes.
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
    """The functions that record which claims, or which pods, use one feature.

    Attributes:
        concerns: Returns whether a claim or pod uses the feature now, or has an old record. It tests plain data and
            runs no code of the feature.
        recount: Updates the record of a claim or pod from the cluster cache. It removes the record of an object that is
            gone. A repeated call has no further effect.
    """

    concerns: Callable[[Key], bool]
    recount: Callable[[Key], object]


class FeatureBooks(NamedTuple):
    """The books of all features: a book records which claims or pods use a feature.

    Attributes:
        of_claims: The books for claims, in the order in which they are updated. A claim is updated before its pods.
        of_pods: The books for pods.
    """

    of_claims: tuple[Book, ...]
    of_pods: tuple[Book, ...]

    def recount_claim(self, claim: Key) -> None:
        """Update the records of what a changed claim uses of features, such as NICs.

        Only features that the claim uses, or used before, are updated.
        """
        for concerns, recount in self.of_claims:
            if concerns(claim):
                recount(claim)

    def recount_pod(self, pod: Key) -> None:
        """Update the records of what a pod uses of features, such as NVLink channels.

        It is called after the pod, its node (also a tentative one) or its templates changed.
        """
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
    """Return the books of all features: they record which claims and pods use a feature.

    Args:
        pods: The living pods.
        accounts: The state of each claim.
        gangs: Which pods start together.
        nics: Records the NICs that claims use.
        channels: Records the channels of multi-node NVLink that claims and pods use.
        other_claims: Records the claims of other drivers that pods name.
        kept_places: Keeps the GPUs of lost pods of a gang for the pods that replace them.
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
