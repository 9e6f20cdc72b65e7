"""kube-scheduler: gives lifted pods the devices that their claims ask for, and binds them. It alone allocates.

Of the real one it has the order of its queue (priority, then age), the filters of ``fit`` and the allocator of
``devices``, reservations of claims that others have been given, optimistic writes of allocations, the finalizer,
and the condition of a pod that fits nowhere. A pod whose claim is missing it leaves without a word, as the real one.
It takes the first node, does not preempt, and needs no volumes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dradriver.api import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Object, Store
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import Room, offer, results

OURS: Final = ("", "default-scheduler")
REFUSED: Final = "0/4 nodes are available: 1 cannot allocate all claims, 3 node(s) didn't match Pod's node affinity."


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
        waiting = [pod for pod in self.store.all(PODS) if self._mine(pod)]
        return sorted(
            waiting, key=lambda pod: (-(pod["spec"].get("priority") or 0), pod["metadata"]["creationTimestamp"])
        )

    def _mine(self, pod: Object) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or fit.gates(pod) or fit.finished(pod):
            return False
        return spec.get("schedulerName", "") in OURS and "deletionTimestamp" not in pod["metadata"]

    def claims(self, pod: Object) -> list[Object] | None:
        """Return a pod's claims; None where one of them is not there, or going: such a pod has no condition at all."""
        namespace = pod["metadata"]["namespace"]
        every = [self.store.find(RESOURCE_CLAIMS, name, namespace) for name in fit.claim_names(pod)]
        found = [claim for claim in every if claim is not None and "deletionTimestamp" not in claim["metadata"]]
        return found if len(found) == len(every) else None

    def place(self, pod: Object, claims: list[Object]) -> Place | None:
        """Return the first node that a pod fits on and where its claims get all that they ask for."""
        for node in sorted(self.store.all(NODES), key=lambda node: str(node["metadata"]["name"])):
            name = node["metadata"]["name"]
            if not self.feasible(pod, node, cpu_taken=self._cpu_taken(name)):
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
        return given if all(one["pool"] == node for one in given) else None

    def _cpu_taken(self, node: str) -> int:
        """CPU of a node that it has given away and nobody can see yet, in thousandths."""
        return 0

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

    def bind(self, pod: Object, node: str) -> bool:
        """Bind a pod, if it is still there."""
        now = self.store.find(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or now["metadata"].get("deletionTimestamp"):
            return False
        status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        self.store.put(PODS, now | {"spec": now["spec"] | {"nodeName": node}, "status": status})
        return True

    def refuse(self, pod: Object, **more: str) -> bool:
        """Say on a pod that it fits nowhere, and more in its status; False where it says all that already."""
        news: Object = dict(more)
        if fit.unschedulable(pod) != REFUSED:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSED}
            news["conditions"] = [condition]
        if news:
            self.store.put(PODS, pod | {"status": pod.get("status", {}) | news})
        return bool(news)
