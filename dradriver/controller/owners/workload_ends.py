"""How workloads end for others: by suspending the owner of a gang, or pod by pod. ``Evictions`` asks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_owners, suspendable_owners
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload


def may_end(picture: Picture, workload: Workload, suspendable: Set[str]) -> bool:
    """Return whether all pods of a workload can be evicted for others, as far as is known.

    Args:
        picture: The cluster cache.
        workload: The workload.
        suspendable: Kinds of owners that the controller may suspend.
    """
    if workload.key not in picture.gangs:
        return True
    owner_kinds = {_suspended_by(member.pod) for member in workload.pods}
    if owner_kinds == {()}:  # the Eviction API ends all of them
        return True
    if any(suspendable_owners.of_kueue(member.pod.metadata) for member in workload.pods):
        return False
    return all(not suspendable.isdisjoint(kinds) for kinds in owner_kinds)


def split(picture: Picture, pods: Iterable[Pod]) -> tuple[dict[Key, list[Pod]], list[Pod]]:
    """Return the pods that end by suspending an owner, by gang, and those that the Eviction API ends."""
    gangs: dict[Key, list[Pod]] = {}
    single_pods: list[Pod] = []
    for pod in pods:
        if (gang := suspended_with(picture, pod)) is not None:
            gangs.setdefault(gang, []).append(pod)
        else:
            single_pods.append(pod)
    return gangs, single_pods


def suspended_with(picture: Picture, pod: Pod) -> Key | None:
    """Return the gang of a pod that ends by suspending its owner; None if the Eviction API ends the pod."""
    membership = picture.gangs.of(pod_key(pod))
    return membership.gang if membership is not None and _suspended_by(pod) else None


def workload_of(picture: Picture, pod: Pod) -> Key:
    """Return the key of the workload that a pod ends with: of its gang, or its own."""
    membership = picture.gangs.of(pod_key(pod))
    return pod_key(pod) if membership is None else membership.gang


def pod_key(pod: Pod) -> Key:
    """Return namespace and name of a pod that may end."""
    return pod.metadata.namespace, pod.metadata.name


def _suspended_by(pod: Pod) -> tuple[str, ...]:
    """Return the possible kinds of the owner that is suspended to end a pod; empty if the pod is evicted instead.

    The Jobs of a JobSet make its pods, and a TrainJob can have made the JobSet.
    """
    kind = next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")
    if kind == "Job" and gang_owners.JOBSET + "jobset-name" in pod.metadata.labels:
        return "JobSet", "TrainJob"
    return (kind,) if kind in suspendable_owners.FIELDS else ()
