"""Workloads: single pods, and pods that run and end together, with their claims and what they use.

Preemption, idle detection and ``gputopo defrag`` group pods here. Each of them then picks the workloads that it needs.

A *gang* is pods that start together. An *owner* is the object that created the pods, such as a Job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

import msgspec

from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage, is_set
from dradriver.api.gangs import suspendable_owners
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nodes.pod_resources import Amounts
from dradriver.cluster.pods.gpu_time import owner_of
from dradriver.cluster.records.records import ClaimRecord

_OWNER: Final = "owner/"  # no pod's name has a slash, and the keys of gangs begin with another prefix


class WorkloadPod(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A pod with its claim, and the resources that it uses once it is bound.

    Attributes:
        key: Namespace and name of the pod.
        pod: The pod.
        claim: The claim that the pod names; None if it names none, or the cluster cache has no such claim.
        devices: The devices that the pod uses. Empty unless it is bound, has not finished, and owns an allocated claim.
        amounts: The CPU, memory and other resources that the pod uses of its node. Empty if ``devices`` is empty.
        since: When the pod began to use the devices, seconds since the epoch; 0 if that is unknown or ``devices`` is
            empty.
        is_sharing: Whether other pods can use the claim, too: its GPUs were chosen for several pods, or it is reserved
            for other pods.
    """

    key: Key
    pod: Pod
    claim: ClaimRecord | None
    devices: Mapping[Device, Usage] = {}
    amounts: Amounts = {}
    since: float = 0.0
    is_sharing: bool = False

    @property
    def node(self) -> str:
        """Return the node that the workload's pod is bound to; empty if it is not bound."""
        return self.pod.spec.node_name

    @property
    def is_ending(self) -> bool:
        """Return whether the workload's pod is being deleted."""
        return self.pod.metadata.deletion_timestamp is not None

    @property
    def ends_at(self) -> float:
        """Return the latest time at which a deleted pod is gone, seconds since the epoch.

        0 if the pod is not deleted.
        """
        return seconds(self.pod.metadata.deletion_timestamp) or 0.0


class Workload(msgspec.Struct, frozen=True, eq=False, dict=True):
    """One pod, or several pods that end together: a gang, or all pods of a suspendable owner.

    Attributes:
        key: Namespace and name of the pod or the gang; for an owner, such as a Job, a key made from its uid.
        pods: The pods, at least one.
    """

    key: Key
    pods: tuple[WorkloadPod, ...]

    @property
    def is_group(self) -> bool:
        """Return whether the workload is a gang or an owner's pods, not a single pod.

        A gang or an owner with only one pod is a group, too.
        """
        return self.key != self.pods[0].key

    # Preemption reads these figures of all running pods for each pod that it helps, 20,000 of them on 5,000 nodes.

    @cached_property
    def priority(self) -> int:
        """Return the highest priority of the workload's pods."""
        return max([member.pod.spec.priority or 0 for member in self.pods])

    @cached_property
    def gpus(self) -> int:
        """Return how many GPUs the workload's pods use; a GPU of which a pod has a fraction counts as one."""
        return sum([len(member.devices) for member in self.pods])

    @cached_property
    def since(self) -> float:
        """Return when the workload's first pod began to use devices, seconds since the epoch.

        0 if this is unknown for any of its pods, or if one of them uses no devices.
        """
        return min([member.since for member in self.pods])

    @cached_property
    def grace_s(self) -> int:
        """Return the longest termination grace period of the workload's pods."""
        return max([member.pod.grace_s for member in self.pods])

    @property
    def devices(self) -> dict[Device, Usage]:
        """Return the devices that the workload's pods use, with the fraction of each."""
        return {device: usage for member in self.pods for device, usage in member.devices.items()}

    @cached_property
    def owner(self) -> str:
        """Return the owner of the workload's pods, as ``namespace/Job/train``; ``namespace/pod`` without one."""
        first = self.pods[0]
        return f"{first.key[0]}/{owner_of(first.pod) or first.key[1]}"

    @cached_property
    def lineage(self) -> str:
        """Return the name that the workload has again when it is recreated, like ``team-a/ReplicaSet/notebook``."""
        return lineage_of(self.pods[0].pod, self.key)

    @cached_property
    def made_at(self) -> float:
        """Return when the workload's oldest pod was created, seconds since the epoch; 0 if unknown for any pod."""
        return min([seconds(member.pod.metadata.creation_timestamp) or 0.0 for member in self.pods])

    @property
    def shown(self) -> str:
        """Return the workload's name in messages: ``team-a/Job/train's 4 pods`` or ``team-a/pod-0``."""
        return f"{self.owner}'s {len(self.pods)} pods" if len(self.pods) > 1 else "/".join(self.pods[0].key)

    def lost_gpu_s(self, now: float) -> float:
        """Return the GPU-seconds that are lost if the workload ends now: its GPUs times its running time.

        ``now`` is in seconds since the epoch.
        """
        return self.gpus * max(now - self.since, 0.0)


class Workloads:
    """Groups pods into workloads: single pods, and pods that end together.

    A pod is not read again until the pod or its claim changes.
    """

    def __init__(self, picture: Picture) -> None:
        """Make a grouping of the pods in ``picture``, the cluster cache.

        Each call of ``of`` reads the cache's present state.
        """
        self._picture = picture
        self._alone: dict[Key, Workload] = {}  # each pod of the last call as a workload of its own

    def of(self, pods: Iterable[Key], *, by_owner: bool = False) -> list[Workload]:
        """Return the workloads of some pods, each once, in the order of these pods.

        The workload of a gang contains all its pods that have not ended and were not deleted. A pod without a gang is a
        workload by itself.

        Args:
            pods: Keys of pods in the cluster cache.
            by_owner: Whether to group also the pods of each owner that can be suspended. Such a workload contains all
                pods of the owner, including those that have ended.
        """
        # Only what this call uses is kept, so pods that are gone do not pile up.
        read_before, self._alone = self._alone, {}
        gangs, all_pods = self._picture.gangs, self._picture.pods
        workloads: dict[Key, Workload] = {}
        pods_of_owners: dict[Key, list[Key]] | None = None
        for pod in pods:
            # The key of a workload is its gang's, its owner's, or the pod's own.
            membership = gangs.of(pod)
            if membership is not None:
                key = membership.gang
            else:
                key = (_owner_key(all_pods[pod]) if by_owner else None) or pod  # None: no owner that can be suspended
            if key in workloads:
                continue
            if key == pod:
                workloads[key] = self._of_pod(pod, read_before)
                continue

            if membership is not None:
                members: Iterable[Key] = gangs.pods(key)  # those that have not ended and were not deleted
            else:
                # Few calls meet such an owner, and finding its pods takes a look at all pods of the cluster.
                pods_of_owners = self._pods_of_owners() if pods_of_owners is None else pods_of_owners
                members = pods_of_owners[key]
            workloads[key] = Workload(key, tuple([self._of_pod(member, read_before).pods[0] for member in members]))
        return list(workloads.values())

    def _of_pod(self, key: Key, read_before: Mapping[Key, Workload]) -> Workload:
        """Return a single pod as a workload.

        If neither the pod nor its claim has changed, the workload is taken from ``read_before``. ``key`` is the pod's
        namespace and name.
        """
        pod, workload = self._picture.pods[key], read_before.get(key)
        if workload is None or self._has_changed(workload.pods[0], pod):
            workload = Workload(key, (self._read(key, pod),))
        self._alone[key] = workload
        return workload

    def _has_changed(self, before: WorkloadPod, pod: Pod) -> bool:
        if before.pod is not pod:
            return True
        # The key of a known claim spares reading the claim's name from the pod.
        claim = self._picture.claim_of(pod) if before.claim is None else self._picture.claims.get(before.claim.key)
        return claim is not before.claim

    def _read(self, key: Key, pod: Pod) -> WorkloadPod:
        claim, node_usage = self._picture.claim_of(pod), self._picture.node_usage.by(key)
        if claim is None:
            return WorkloadPod(key, pod, claim)
        uid = pod.metadata.uid
        is_sharing = is_set(claim.key) or not set(claim.users) <= {uid}
        is_running = pod.spec.node_name and not pod.finished and node_usage is not None
        is_given = self._picture.accounts.given(claim.key) and claim.owned_by(uid)
        devices = self._picture.held(claim.key) if is_running and is_given else {}
        if node_usage is None or not devices:
            return WorkloadPod(key, pod, claim, is_sharing=is_sharing)
        times = (pod.status.start_time, claim.allocated_at, pod.metadata.creation_timestamp)
        since = next((at for text in times if (at := seconds(text))), 0.0)
        return WorkloadPod(key, pod, claim, devices, node_usage[1], since, is_sharing)

    def _pods_of_owners(self) -> dict[Key, list[Key]]:
        pods_of: dict[Key, list[Key]] = {}
        for key, pod in self._picture.pods.items():
            if (owner := _owner_key(pod)) is not None:
                pods_of.setdefault(owner, []).append(key)
        return pods_of


def lineage_of(pod: Pod, workload: Key) -> str:
    """Return the lineage of a pod's workload: the name that it has again when it is recreated.

    For a gang this is the gang's name; for a single pod its owner's name, or the pod's own name without an owner.
    """
    namespace, name = workload
    is_alone = workload == (pod.metadata.namespace, pod.metadata.name)
    return f"{namespace}/{(owner_of(pod) if is_alone else '') or name}"


def suspendable_owner(pod: Pod) -> str:
    """Return the uid of a pod's controlling owner if the owner can be suspended.

    The result is empty for any other pod. An owner that is not suspended, such as a Job, creates a new pod if one ends.
    """
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return owner.uid if owner is not None and owner.kind in suspendable_owners.FIELDS else ""


def by_node(pods: Iterable[WorkloadPod]) -> dict[str, list[WorkloadPod]]:
    """Return the pods of workloads by the names of their nodes."""
    pods_of: dict[str, list[WorkloadPod]] = {}
    for member in pods:
        pods_of.setdefault(member.node, []).append(member)
    return pods_of


def _owner_key(pod: Pod) -> Key | None:
    owner = suspendable_owner(pod)
    return (pod.metadata.namespace, _OWNER + owner) if owner else None
