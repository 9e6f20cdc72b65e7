"""The pods of each claim: one pod, or all pods that share the claim by its name.

For a shared claim it also finds the leading pod, for which the claim's GPUs are chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key, claim_key, is_set
from dradriver.cluster.nodes.pod_resources import LARGEST, Amounts, request_of
from dradriver.cluster.records.records import ClaimRecord

MOST: Final = 256  # pods that may use a claim at once: ResourceClaimReservedForMaxSize of resource.k8s.io/v1
MOST_ENDED: Final = 32  # finished pods that a claim names as owners


class ClaimUsers:
    """The pods of each claim, by the claim name that the webhook wrote into the pods. A claim need not exist.

    The GPUs of a shared claim are chosen for one of its pods, the leading pod. Thousands of pods can wait for it, so
    the leading pods are remembered.
    """

    def __init__(self, pods: Mapping[Key, Pod]) -> None:
        """Make an index of ``pods``, this driver's pods by namespace and name.

        ``put`` must be called for each change.
        """
        self._pods = pods
        self._owners: dict[Key, Key] = {}  # of claims that are one pod's
        self._members: dict[Key, dict[Key, None]] = {}  # of claims that pods share
        self._leads: dict[Key, Key] = {}  # as far as they are known

    def put(self, claim: Key, pod: Key) -> bool:
        """Update a claim's pods after a pod was added, changed or removed.

        Returns:
            Whether another pod may now be the one for which a shared claim's GPUs are chosen.
        """
        known = self._pods.get(pod)
        if known is not None and claim_key(known) != claim:
            known = None
        if is_set(claim):
            return self._put_member(claim, pod, known)
        if known is not None:
            self._owners[claim] = pod
        elif self._owners.get(claim) == pod:
            del self._owners[claim]
        return False

    def has(self, claim: Key, pod: Key) -> bool:
        """Return whether a pod is recorded as a user of a claim."""
        return pod in self._members.get(claim, ()) if is_set(claim) else self._owners.get(claim) == pod

    def every(self) -> list[tuple[Key, Key]]:
        """Return all pairs of a claim and a pod that uses it."""
        return [*self._owners.items(), *((claim, pod) for claim, pods in self._members.items() for pod in pods)]

    def led(self) -> tuple[Key, ...]:
        """Return the shared claims whose leading pod is remembered.

        The leading pod is the one for which the claim's GPUs are chosen.
        """
        return tuple(self._leads)

    def misled(self, claim: Key) -> bool:
        """Return whether the wrong pod is remembered as leading a shared claim.

        The leading pod is the one for which the claim's GPUs are chosen.
        """
        known = self._leads.get(claim)
        if known is None:
            return False
        pod = _first((self._pods[key] for key in self.of(claim) if key in self._pods), _may_lead)
        return pod is None or (pod.metadata.namespace, pod.metadata.name) != known

    def forget_lead(self, claim: Key) -> None:
        """Forget which pod leads a shared claim, so that it is determined again.

        The leading pod is the one for which the claim's GPUs are chosen.
        """
        self._leads.pop(claim, None)

    def of(self, claim: Key) -> Collection[Key]:
        """Return the pods that use a claim, including those that have ended."""
        if is_set(claim):
            return tuple(self._members.get(claim, ()))
        return () if (pod := self._owners.get(claim)) is None else (pod,)

    def concerned(self, old: ClaimRecord, new: ClaimRecord) -> Collection[Key]:
        """Return the pods that the controller must look at again after a claim's change.

        ``old`` and ``new`` are the claim's states. Hundreds of pods can share a claim, and the claim changes whenever
        one of them is added to its owners. For a change of the owners alone, only the pods that were added or removed
        are returned. For any other change, all pods of the claim are returned.
        """
        if not is_set(new.key) or _state(old) != _state(new):
            return self.of(new.key)
        return [(new.metadata.namespace, name) for name, _ in {*old.owners} ^ {*new.owners}]

    def lead(self, claim: Key) -> Pod | None:
        """Return the leading pod of a shared claim: the claim's GPUs are chosen for this pod.

        None if no pod waits for the claim. A pod without its scheduling gate comes first, because it can go only to few
        nodes. Then the oldest pod leads.
        """
        if claim not in self._leads:
            pod = _first((self._pods[key] for key in self.of(claim)), _may_lead)
            if pod is None:
                return None
            self._leads[claim] = pod.metadata.namespace, pod.metadata.name
        return self._pods[self._leads[claim]]

    def owners(self, claim: ClaimRecord) -> Iterator[Pod]:
        """Yield the pods that own a claim and still exist."""
        for name, uid in claim.owners:
            pod = self._pods.get((claim.metadata.namespace, name))
            if pod is not None and pod.metadata.uid == uid:
                yield pod

    def heir(self, claim: ClaimRecord) -> Pod | None:
        """Return the next pod to lead an unallocated shared claim: an owner that still waits.

        The controller looks for a place for this pod. The other pods that share the claim wait until it is allocated.
        None if no owner waits.
        """
        return _first(self.owners(claim), _waits)

    def staying(self, claim: ClaimRecord) -> tuple[tuple[str, str], ...]:
        """Return the pods that should stay owners of a shared claim: name and uid.

        The controller writes them into the claim. If 32 or more owners have finished, these are left out, because
        finished pods can exist for a long time. The garbage collector removes the names of deleted owners.
        """
        ended = {pod.metadata.uid for pod in self.owners(claim) if pod.finished}
        return (
            claim.owners if len(ended) < MOST_ENDED else tuple(owner for owner in claim.owners if owner[1] not in ended)
        )

    def crowd(self, claim: Key) -> Amounts:
        """Return the resources, for example CPU, of the pods together that wait for a shared claim.

        At most ``MOST`` pods count.
        """
        total: Amounts = {}
        for pod in itertools.islice(filter(_may_lead, (self._pods[key] for key in self.of(claim))), MOST):
            for resource, amount in request_of(pod).items():
                total[resource] = min(total.get(resource, 0) + amount, LARGEST)
        return total

    def _put_member(self, claim: Key, pod: Key, known: Pod | None) -> bool:
        members = self._members.setdefault(claim, {})
        if known is None:
            members.pop(pod, None)
            if not members:
                del self._members[claim]
        else:
            members[pod] = None
        lead = self._leads.get(claim)
        if lead is None:
            return False
        before = lead != pod and known is not None and _may_lead(known) and _order(known) < _order(self._pods[lead])
        if lead == pod or before:
            del self._leads[claim]
        return lead == pod or before


def _first(pods: Iterable[Pod], wanted: Callable[[Pod], bool]) -> Pod | None:
    return min(filter(wanted, pods), key=_order, default=None)


def _order(pod: Pod) -> tuple[bool, str, str]:
    return pod.gated, pod.metadata.creation_timestamp or "", pod.metadata.uid


def _waits(pod: Pod) -> bool:
    return not (pod.finished or pod.spec.node_name or pod.metadata.deletion_timestamp is not None)


def _may_lead(pod: Pod) -> bool:
    """Return whether a pod can lead a shared claim: GPUs are chosen for this pod.

    It must wait for this controller only. A pod with another scheduling gate could wait for ever, and all pods of the
    claim with it.
    """
    return _waits(pod) and not (pod.gated and pod.held)


def _state(claim: ClaimRecord) -> tuple[object, ...]:
    """Return those facts about a claim that concern all pods that share it.

    If these facts change, the controller looks at all these pods again.
    """
    return claim.uid, claim.set, claim.deleting, claim.devices is None, len(claim.users) < MOST
