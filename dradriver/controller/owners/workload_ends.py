"""Says how preemption ends a workload: by suspending the owner of a gang, or pod by pod. Pure.

``Evictions`` calls it.

A *workload* is a gang or a single pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import gang_owners, suspendable_owners
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload


def may_end(picture: Picture, workload: Workload, suspendable: Set[str]) -> bool:
    """Return whether the kinds of its owners let all pods of a workload be ended.

    Pods are evicted, or their owner is suspended. Disruption budgets and permissions are not checked.

    Args:
        picture: The cluster cache.
        workload: The workload.
        suspendable: Kinds of owners, such as Job, that the controller may suspend.
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
    """Return pods that must end in two groups, by the way in which they end.

    The first value has, by gang, the pods that end because their owner is suspended. The second value has the pods that
    the Eviction API ends.
    """
    gangs: dict[Key, list[Pod]] = {}
    single_pods: list[Pod] = []
    for pod in pods:
        if (gang := suspended_with(picture, pod)) is not None:
            gangs.setdefault(gang, []).append(pod)
        else:
            single_pods.append(pod)
    return gangs, single_pods


def suspended_with(picture: Picture, pod: Pod) -> Key | None:
    """Return the gang that ends together with a pod, by suspending their owner.

    Returns None if the Eviction API ends the pod.
    """
    membership = picture.gangs.of(pod_key(pod))
    return membership.gang if membership is not None and _suspended_by(pod) else None


def workload_of(picture: Picture, pod: Pod) -> Key:
    """Return the key of a pod's gang, or the pod's own key without a gang."""
    membership = picture.gangs.of(pod_key(pod))
    return pod_key(pod) if membership is None else membership.gang


def pod_key(pod: Pod) -> Key:
    """Return a pod's key: its namespace and name."""
    return pod.metadata.namespace, pod.metadata.name


def _suspended_by(pod: Pod) -> tuple[str, ...]:
    """Return the kinds of owners that may be suspended to end a pod.

    Empty if the pod is evicted instead. For a pod of a JobSet there are two: JobSet and TrainJob, because a TrainJob
    can have created the JobSet.
    """
    kind = next((owner.kind for owner in pod.metadata.owner_references if owner.controller), "")
    if kind == "Job" and gang_owners.JOBSET + "jobset-name" in pod.metadata.labels:
        return "JobSet", "TrainJob"
    return (kind,) if kind in suspendable_owners.FIELDS else ()
