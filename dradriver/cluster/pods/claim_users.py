"""Which pods a claim is for: one, or all that share it by its name; and for whom of these its set is chosen."""

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
    """Pods by the claims that the webhook named for them, whether these exist or not.

    Of a set the questions come from pods that wait for the one that leads, thousands perhaps: so it is kept who leads.
    """

    def __init__(self, pods: Mapping[Key, Pod]) -> None:
        """``pods`` are those with our label, by namespace and name; ``put`` is told of each change."""
        self._pods = pods
        self._owners: dict[Key, Key] = {}  # of claims that are one pod's
        self._members: dict[Key, dict[Key, None]] = {}  # of claims that pods share
        self._leads: dict[Key, Key] = {}  # as far as they are known

    def put(self, claim: Key, pod: Key) -> bool:
        """Update a claim's users by a new, changed or gone pod. Returns whether another may lead a shared claim."""
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
        """Return whether a pod counts as a user of a claim."""
        return pod in self._members.get(claim, ()) if is_set(claim) else self._owners.get(claim) == pod

    def every(self) -> list[tuple[Key, Key]]:
        """Return all claims with the pods that use them."""
        return [*self._owners.items(), *((claim, pod) for claim, pods in self._members.items() for pod in pods)]

    def led(self) -> tuple[Key, ...]:
        """Return the shared claims whose leading pod is known."""
        return tuple(self._leads)

    def misled(self, claim: Key) -> bool:
        """Return whether the pod that is known to lead a shared claim is another than the one that should."""
        known = self._leads.get(claim)
        if known is None:
            return False
        pod = _first((self._pods[key] for key in self.of(claim) if key in self._pods), _may_lead)
        return pod is None or (pod.metadata.namespace, pod.metadata.name) != known

    def forget_lead(self, claim: Key) -> None:
        """Determine again which pod leads a shared claim."""
        self._leads.pop(claim, None)

    def of(self, claim: Key) -> Collection[Key]:
        """Return the pods that use a claim, those that have ended included."""
        if is_set(claim):
            return tuple(self._members.get(claim, ()))
        return () if (pod := self._owners.get(claim)) is None else (pod,)

    def concerned(self, old: ClaimRecord, new: ClaimRecord) -> Collection[Key]:
        """Return the pods that a claim's change concerns: of hundreds that share one, those that come and go.

        Each of them is written into the claim, and all others would be looked at for each.
        """
        if not is_set(new.key) or _state(old) != _state(new):
            return self.of(new.key)
        return [(new.metadata.namespace, name) for name, _ in {*old.owners} ^ {*new.owners}]

    def lead(self, claim: Key) -> Pod | None:
        """Return the pod for which a shared claim would be chosen; None if no pod wants one.

        Who is lifted already can go to few nodes, and comes first; then the oldest.
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
        """Return the pod for which a shared claim is kept that is not allocated; None if all owners have ended."""
        return _first(self.owners(claim), _waits)

    def staying(self, claim: ClaimRecord) -> tuple[tuple[str, str], ...]:
        """Return the owners that a shared claim is still for; all of them while few have finished.

        Of those that are deleted the garbage collector takes the names away. Finished ones may be there for long.
        """
        ended = {pod.metadata.uid for pod in self.owners(claim) if pod.finished}
        return (
            claim.owners if len(ended) < MOST_ENDED else tuple(owner for owner in claim.owners if owner[1] not in ended)
        )

    def crowd(self, claim: Key) -> Amounts:
        """Return what the pods that wait for a shared claim take together."""
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
    """Return whether a pod waits, and for nobody but us: another gate could hold it, and with it all, for ever."""
    return _waits(pod) and not (pod.gated and pod.held)


def _state(claim: ClaimRecord) -> tuple[object, ...]:
    """Return those facts about a claim whose change concerns all pods that share it."""
    return claim.uid, claim.set, claim.deleting, claim.devices is None, len(claim.users) < MOST
