"""What keeps a pod from being bound once its claims are allocated: binding conditions (KEP-5007), as 1.36.3 has them.

The scheduler looks at the claims of such a pod every 5 s. All conditions true: it binds the pod. One that says failure:
the pod loses its place, and the next attempt takes the allocation back; unless the claim is being deleted, another
follows. A claim that is deleted stays meanwhile, and the pod is bound with it if its conditions come true.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from dradriver.api.base import names
from dradriver.kube.resources import RESOURCE_CLAIMS
from tests.fakes.apistore import Object, Store
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results


class Verdict(enum.Enum):
    """What the conditions of all of a pod's claims say together."""

    BIND = enum.auto()
    WAIT = enum.auto()
    FAILED = enum.auto()


def verdict(store: Store, pod: Object) -> Verdict:
    """Return what is to become of a pod whose claims were allocated for it."""
    claims = list(claims_of(store, pod))
    uid = pod["metadata"]["uid"]
    if len(claims) < len(fit.claim_names(pod)) or any(failed(claim) or uid not in users(claim) for claim in claims):
        return Verdict.FAILED
    met = all(
        condition in _true(claim, result)
        for claim in claims
        for result in results(claim)
        for condition in result.get("bindingConditions", ())
    )
    return Verdict.BIND if met else Verdict.WAIT


def waits(store: Store, pod: Object) -> bool:
    """Return whether a pod has a claim that is reserved for it and has conditions, met or not."""
    uid = pod["metadata"]["uid"]
    return any(uid in users(claim) and conditional(claim) for claim in claims_of(store, pod))


def claims_of(store: Store, pod: Object) -> Iterator[Object]:
    """Give the claims of a pod that are there, deleted or not."""
    for name in fit.claim_names(pod):
        if (claim := store.find(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"])) is not None:
            yield claim


def users(claim: Object) -> list[str]:
    """Return the uids of those that a claim is reserved for."""
    return [user["uid"] for user in claim.get("status", {}).get("reservedFor") or ()]


def conditional(claim: Object) -> bool:
    """Return whether something that a claim was allocated has binding conditions."""
    return any(result.get("bindingConditions") for result in results(claim))


def failed(claim: Object) -> bool:
    """Return whether one of a claim's devices says that its pod cannot be bound."""
    return any(
        condition in _true(claim, result)
        for result in results(claim)
        for condition in result.get("bindingFailureConditions", ())
    )


def _true(claim: Object, result: Object) -> set[str]:
    """The conditions that hold of one device, or one share of it."""
    same = ("driver", "pool", "device", "shareID")
    return {
        condition["type"]
        for entry in claim.get("status", {}).get("devices") or ()
        if [entry.get(key) for key in same] == [result.get(key) for key in same]
        for condition in entry.get("conditions") or ()
        if condition["status"] == "True"
    }


# What is written.


def unreserve(store: Store, pod: Object) -> None:
    """Reserve a pod's claims for it no more; they stay allocated."""
    uid = pod["metadata"]["uid"]
    for claim in list(claims_of(store, pod)):
        if uid in users(claim):
            staying = [user for user in claim["status"]["reservedFor"] if user["uid"] != uid]
            store.put(RESOURCE_CLAIMS, claim | {"status": claim["status"] | {"reservedFor": staying}})


def deallocate(store: Store, claim: Object) -> None:
    """Take a claim's devices back; what was said of them goes too, and of one that is deleted the finalizer."""
    status = {key: value for key, value in claim["status"].items() if key not in ("allocation", "devices")}
    metadata = claim["metadata"]
    if "deletionTimestamp" in metadata:
        left = [name for name in metadata.get("finalizers") or () if name != names.FINALIZER]
        metadata = metadata | {"finalizers": left}
    store.put(RESOURCE_CLAIMS, claim | {"metadata": metadata, "status": status | {"reservedFor": []}})


def lost(store: Store, pod: Object, *, elsewhere: bool) -> list[Object]:
    """Return the claims of a pod that finds no place of which the allocation is taken back: they are in nobody's use.

    That is where a condition says failure, or where the pod fits but for its claim on other nodes (the PostFilter of
    kube-scheduler's plugin).
    """
    uid = pod["metadata"]["uid"]
    return [
        claim
        for claim in claims_of(store, pod)
        if results(claim) and (failed(claim) or elsewhere) and set(users(claim)) <= {uid}
    ]
