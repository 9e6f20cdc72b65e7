"""Lists workloads that preemption can end, and pods that end already. ``Preemptable`` calls it.

A *workload* is a gang or a single pod. A pod *ends* from its deletion until it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.workloads import Workload, WorkloadPod, Workloads


class RunningWorkloads:
    """The running workloads of the cluster that can be ended, and the pods that end.

    They are read again only when the cluster cache has changed.
    """

    def __init__(self, picture: Picture) -> None:
        """Make a list for the cluster cache ``picture``; ``all`` reads it."""
        self._picture, self._workloads = picture, Workloads(picture)
        self._running: tuple[Workload, ...] = ()  # workloads that can be ended as a whole
        self._ending: tuple[WorkloadPod, ...] = ()  # pods that end already
        self._version = -1  # the version of the cluster cache that both were read from

    def all(self) -> tuple[Sequence[Workload], Sequence[WorkloadPod]]:
        """Return the workloads that can be ended as a whole, and the ending pods.

        A gang cannot be ended as a whole if one of its pods shares its claim, or has a claim and is not bound yet. Pods
        of a gang without a claim are ignored. The second value has pods with a deletion timestamp whose GPUs become
        free when they end.
        """
        if self._version != self._picture.version:
            self._version = self._picture.version
            self._read()
        return self._running, self._ending

    def _read(self) -> None:
        alone: list[Workload] = []
        gangs: list[Workload] = []
        ending: list[WorkloadPod] = []
        # Pods that wait need not be read: there can be many more of them than running pods.
        bound = [key for key, pod in self._picture.pods.items() if pod.spec.node_name]
        for workload in self._workloads.of(bound):
            first = workload.pods[0]
            if workload.is_group:
                members = tuple(member for member in workload.pods if member.node or member.claim is not None)
                if all(map(_can_end, members)):
                    gangs.append(Workload(workload.key, members))
            elif not _can_end(first):
                continue
            elif first.is_ending:  # also a pod of a gang: once it is deleted, the gang does not have it any more
                ending.append(first)
            else:
                alone.append(workload)
        self._running, self._ending = (*alone, *gangs), tuple(ending)


def _can_end(member: WorkloadPod) -> bool:
    """Return whether a pod has GPUs that are free once it ends: it shares no claim."""
    return bool(member.devices) and not member.is_sharing
