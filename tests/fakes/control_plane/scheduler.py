"""kube-scheduler: gives lifted pods the devices that their claims ask for, and binds them. It alone allocates.

Of the real one it has the order of its queue (priority, then age), the filters of ``fit`` and the allocator of
``devices``, reservations of claims that others have been given, optimistic writes of allocations, the finalizer,
and the condition of a pod that fits nowhere. A pod whose claim is missing it leaves without a word, as the real one.
A pod whose claims have binding conditions keeps its place unbound (``binding``), and loses it, with its claims still
allocated, to one of higher priority that needs its CPU; pods that are bound nobody preempts. A nominated node of a
gated pod keeps its CPU from pods that are no more important. A pod of a PodGroup it tries only once all of the group
have lost their gates and have their claims, as 1.37.2 with GenericWorkload, and it places each by itself. It takes the
first node, and needs no volumes.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from dradriver.api.base import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Key, Object, Store, key_of
from tests.fakes.control_plane import binding, fit
from tests.fakes.control_plane.binding import Verdict
from tests.fakes.control_plane.devices import Room, offer, results

OURS: Final = ("", "default-scheduler")
REFUSED: Final = "0/4 nodes are available: 1 cannot allocate all claims, 3 node(s) didn't match Pod's node affinity."


def priority(pod: Object) -> int:
    """Return how important a pod is."""
    return pod["spec"].get("priority") or 0


class Place(NamedTuple):
    """A node for a pod, and what each of its claims gets or has there."""

    node: str
    given: list[tuple[Object, list[Object]]]


class Scheduler:
    """Its decisions, one pod at a time, and its writes, one object at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def queue(self) -> list[Object]:
        """Return the pods that are its to place, in its order."""
        waiting = [pod for pod in self.store.all(PODS) if self._mine(pod) and not self._held(pod)]
        return sorted(waiting, key=lambda pod: (-priority(pod), pod["metadata"]["creationTimestamp"]))

    def _mine(self, pod: Object) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or fit.gates(pod) or fit.finished(pod):
            return False
        return spec.get("schedulerName", "") in OURS and "deletionTimestamp" not in pod["metadata"]

    def _held(self, pod: Object) -> bool:
        """Return whether a pod is in a PodGroup of which another pod has a gate, or lacks its claim, as of 1.37.2."""
        group, namespace = pod["spec"].get("schedulingGroup"), pod["metadata"]["namespace"]
        return group is not None and any(
            fit.gates(other) or self.claims(other) is None
            for other in self.store.all(PODS)
            if other["spec"].get("schedulingGroup") == group
            and other["metadata"]["namespace"] == namespace
            and not (other["spec"].get("nodeName") or fit.finished(other))
        )

    def claims(self, pod: Object) -> list[Object] | None:
        """Return a pod's claims; None where one of them is not there, or going: such a pod has no condition at all."""
        namespace = pod["metadata"]["namespace"]
        every = [self.store.find(RESOURCE_CLAIMS, name, namespace) for name in fit.claim_names(pod)]
        found = [claim for claim in every if claim is not None and "deletionTimestamp" not in claim["metadata"]]
        return found if len(found) == len(every) else None

    def place(self, pod: Object, claims: list[Object], *, without: Collection[Key] = ()) -> Place | None:
        """Return the first node that a pod fits on and where its claims get all that they ask for.

        ``without`` are pods that wait to be bound and count for nothing.
        """
        for node in sorted(self.store.all(NODES), key=lambda node: str(node["metadata"]["name"])):
            name = node["metadata"]["name"]
            if not self.feasible(pod, node, cpu_taken=self._cpu_taken(name, pod, without)):
                continue
            given: list[tuple[Object, list[Object]]] = []
            for claim in claims:
                found = self._devices(claim, name, [one for _, others in given for one in others])
                if found is None:
                    break
                given.append((claim, found))
            else:
                return Place(name, given)
        return None

    def in_the_way(self, pod: Object, claims: list[Object]) -> list[Object]:
        """Return the pods of lower priority that wait to be bound, if one without a place has one without them."""
        lower = [other for other, _ in self._waiters() if priority(other) < priority(pod)]
        place = self.place(pod, claims, without={key_of(other) for other in lower}) if lower else None
        return (
            [] if place is None else [other for other, node in self._waiters() if other in lower and node == place.node]
        )

    def elsewhere(self, pod: Object, claims: list[Object]) -> bool:
        """Return whether a pod fits on some node but for a claim of it that is allocated on another."""
        where = {one["pool"] for claim in claims for one in results(claim) if not one.get("bindingConditions")}
        return bool(where) and any(
            self.feasible(pod, node, cpu_taken=self._cpu_taken(node["metadata"]["name"], pod, ()))
            for node in self.store.all(NODES)
            if node["metadata"]["name"] not in where
        )

    def feasible(self, pod: Object, node: Object, *, cpu_taken: int = 0) -> bool:
        """Return whether a pod fits on a node, devices aside."""
        name, pods = node["metadata"]["name"], self.store.all(PODS)
        if fit.why_not(pod, node) is not None or fit.repelled(pod, name, pods):
            return False
        room = fit.milli(node.get("status", {}).get("allocatable", {}).get("cpu", "0"))
        return fit.used_cpu(pods, name) + cpu_taken + fit.cpu_of(pod) <= room

    def allocate(self, claim: Object, node: str, besides: list[Object] | None = None) -> list[Object] | None:
        """Return what a claim would be given on a node now; None where that cannot be done."""
        taken = [one for other in self.store.all(RESOURCE_CLAIMS) for one in results(other)]
        return Room(offer(self.store, node), [*taken, *self._reserved_results(), *(besides or ())]).allocate(claim)

    def _devices(self, claim: Object, node: str, besides: list[Object]) -> list[Object] | None:
        """Return what a claim has, or would be given, on a node; None where that cannot be done."""
        if not claim.get("status", {}).get("allocation"):
            return self.allocate(claim, node, besides)
        given = results(claim)
        return given if all(one["pool"] == node or one.get("bindingConditions") for one in given) else None

    def _cpu_taken(self, node: str, pod: Object, without: Collection[Key]) -> int:
        """CPU of a node that pods keep from this one that are not bound, in thousandths."""
        every = [other for other, on in self._waiters() if on == node and key_of(other) not in without]
        every += [other for other in self._nominated(node) if priority(other) >= priority(pod)]
        return sum(fit.cpu_of(other) for other in every if key_of(other) != key_of(pod))

    def _waiters(self) -> list[tuple[Object, str]]:
        """Pods that have their place and are not bound yet, with the node."""
        found: list[tuple[Object, str]] = []
        for pod in self.store.all(PODS):
            if self._mine(pod) and binding.waits(self.store, pod):
                given = [one for claim in binding.claims_of(self.store, pod) for one in results(claim)]
                found.append((pod, next((one["pool"] for one in given if not one.get("bindingConditions")), "")))
        return found

    def _nominated(self, node: str) -> list[Object]:
        """Gated pods that somebody nominated for a node."""
        return [
            pod
            for pod in self.store.all(PODS)
            if fit.gates(pod) and pod.get("status", {}).get("nominatedNodeName") == node and not fit.finished(pod)
        ]

    def _reserved_results(self) -> list[Object]:
        """Results that it has decided on and not written yet."""
        return []

    # What it writes.

    def give(self, pod: Object, claim: Object, found: list[Object]) -> bool:
        """Allocate a claim for a pod, or reserve an allocated one; False where it is another than was decided on."""
        metadata = pod["metadata"]
        now = self.store.find(RESOURCE_CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
        if now is None or now["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
            return False  # somebody changed or deleted it: the update fails, and the pod is tried again
        status = now.get("status", {})
        users = [user for user in status.get("reservedFor", ()) if user["uid"] != metadata["uid"]]
        user = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        allocation = status.get("allocation") or {"devices": {"results": found}}
        finalizers = [*dict.fromkeys([*(now["metadata"].get("finalizers") or ()), names.FINALIZER])]
        self.store.put(
            RESOURCE_CLAIMS,
            now
            | {"metadata": now["metadata"] | {"finalizers": finalizers}}
            | {"status": status | {"allocation": allocation, "reservedFor": [*users, user]}},
        )
        return True

    def verdict(self, pod: Object, node: str) -> Verdict:
        """Look at what keeps a pod from being bound; one that has to wait says on which node."""
        found = binding.verdict(self.store, pod)
        if found is Verdict.WAIT:
            self.store.edit(PODS, key_of(pod), lambda pod: pod["status"].update(nominatedNodeName=node))
        return found

    def put_out(self, pod: Object) -> None:
        """Let a pod have its place no more; its claims stay allocated."""
        binding.unreserve(self.store, pod)
        self.store.edit(PODS, key_of(pod), lambda pod: pod["status"].pop("nominatedNodeName", None))

    def take_back(self, pod: Object, *, elsewhere: bool) -> bool:
        """Take back the allocation of a pod's claims that are of no use to it; return whether there were any."""
        found = binding.lost(self.store, pod, elsewhere=elsewhere)
        for claim in found:
            binding.deallocate(self.store, claim)
        return bool(found)

    def bind(self, pod: Object, node: str) -> bool:
        """Bind a pod, if it is still there."""
        now = self.store.find(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or now["metadata"].get("deletionTimestamp"):
            return False
        status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        self.store.put(PODS, now | {"spec": now["spec"] | {"nodeName": node}, "status": status})
        return True

    def refuse(self, pod: Object, *, nominated: str = "") -> bool:
        """Say on a pod that it fits nowhere; False where it says so already.

        A node that it was nominated for is so no more (seen with 1.34.4, 1.35.4 and 1.36.3): what a pod that failed had
        kept there is of use to nobody. ``nominated`` is the node on which others make room for it.
        """
        before = pod.get("status", {})
        status = {key: value for key, value in before.items() if key != "nominatedNodeName"}
        if nominated:
            status["nominatedNodeName"] = nominated
        if fit.unschedulable(pod) != REFUSED:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSED}
            status["conditions"] = [condition]
        if status != before:
            self.store.put(PODS, pod | {"status": status})
        return bool(status != before)
