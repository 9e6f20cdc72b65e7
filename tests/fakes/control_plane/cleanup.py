"""The claim controller of kube-controller-manager, and the garbage collector, as far as claims go.

A claim loses the pods that have ended among its users, or that were deleted and never bound; with the last of them, or
deleted with none, its devices and the finalizer that protects it. One whose owners are gone is deleted; one that a pod
controls, also when that has ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from dradriver.api.base import names
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object, Store, key_of
from tests.fakes.control_plane import fit


def clean(store: Store, claims: Iterable[Object], *, collects: bool = True) -> None:
    """Do once for each claim what follows from the pods; with ``collects`` false none goes with its owners."""
    pods = {pod["metadata"]["uid"]: pod for pod in store.all(PODS)}
    living = {uid for uid, pod in pods.items() if not (fit.finished(pod) or _never_bound(pod))}
    for claim in claims:
        users = claim.get("status", {}).get("reservedFor") or []
        staying = [user for user in users if user["uid"] in living]
        _release(store, claim, users, staying)
        owners = claim["metadata"].get("ownerReferences") or ()
        uids = [owner["uid"] for owner in owners]
        if not uids or "deletionTimestamp" in claim["metadata"]:
            continue
        gone = not any(uid in pods for uid in uids)
        controlled = any(owner.get("controller") for owner in owners)
        ended = not gone and not staying and not any(uid in living for uid in uids)
        if (gone and collects) or (ended and controlled):
            store.remove(RESOURCE_CLAIMS, key_of(claim))


def _release(store: Store, claim: Object, users: list[Object], staying: list[Object]) -> None:
    """Let a claim have the users that stay, and nothing more where there are none."""
    metadata, status = claim["metadata"], claim.get("status", {})
    finalizers = metadata.get("finalizers") or []
    held = names.FINALIZER in finalizers or bool(status.get("allocation"))
    if len(staying) == len(users) and not ("deletionTimestamp" in metadata and not staying and held):
        return
    status = status | {"reservedFor": staying}
    if not staying:
        status = {key: value for key, value in status.items() if key not in ("allocation", "devices")}
        metadata = metadata | {"finalizers": [name for name in finalizers if name != names.FINALIZER]}
    store.put(RESOURCE_CLAIMS, claim | {"metadata": metadata, "status": status})


def _never_bound(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
