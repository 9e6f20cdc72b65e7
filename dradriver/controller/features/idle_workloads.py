"""Finds workloads with idle pods: a gang, all pods of an owner that can be suspended, or a single pod.

``IdlePods`` calls it.
"""

from __future__ import annotations

import msgspec

from dradriver.api.base.errors import WordError
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import claim_key, is_set
from dradriver.api.pod import resolved
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload, Workloads


def idle_workloads(picture: Picture) -> list[Workload]:
    """Return the workloads with at least one idle pod, without their ended pods.

    A pod with a warning that it will be ended counts as an idle pod, even if its GPUs work again.

    The other pods of a returned workload may be busy. If a pod shares its claim with others, and has no gang and no
    owner that can be suspended, it is a workload by itself.
    """
    pods = [
        key
        for claim in picture.claims.values()
        if claim.idle is not None or claim.idle_end is not None
        for key in picture.claim_users.of(claim.key)
        if (pod := picture.pods.get(key)) is not None and _is_living(pod)
    ]
    workloads = Workloads(picture).of(pods, by_owner=True)
    return [
        Workload(workload.key, tuple(member for member in workload.pods if _is_living(member.pod)))
        for workload in workloads
    ]


def timeout_s(pod: Pod) -> int | None:
    """Return after how many idle seconds a pod must end; None if it never must.

    It never must if it requests no timeout, or if it shares its claim. Pods that share a claim may request different
    timeouts, and the GPUs are free only once all of them have ended.
    """
    claim = claim_key(pod)
    if claim is None or is_set(claim) or resolved.rare(pod.metadata.annotations).idle_timeout_s is msgspec.UNSET:
        return None
    try:
        timeout = resolved.read(pod.metadata.annotations).idle_timeout_s
    except WordError:  # an annotation that cannot be read is no reason to end the pod
        return None
    return None if timeout is msgspec.UNSET else timeout


def _is_living(pod: Pod) -> bool:
    return not pod.finished and pod.metadata.deletion_timestamp is None
