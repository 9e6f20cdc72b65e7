"""kube-scheduler: gives lifted pods the devices that their claims ask for, and binds them. It alone allocates."""

from __future__ import annotations

import random
from typing import Final

from dradriver.api import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Event, Key, Object
from tests.fakes.scheduler import fit
from tests.simulator.allocating import Room
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import Server
from tests.simulator.taking import results
from tests.simulator.trace import Trace
from tests.simulator.truth import Truth

OURS: Final = ("", "default-scheduler")
_PARTS: Final = frozenset((names.SHARE_CLASS, names.MIG_CLASS))
AGAIN_S: Final = 5.0  # unschedulable pods are tried again at the latest


class Scheduler:
    """As strict as the real one, which also sees what nobody else does.

    Attributes:
        refused: Nodes by pod that it finds infeasible for reasons of its own: host ports, volumes.
        paused_until: It does nothing before.
        nominates: How often an unschedulable pod gets a nominated node, which lasts.
        overlooks: How often it does not see that a part fits, until a slice is written or some device is given back
            (seen with 1.36.3, of shares that are bound at the same time; a slice made on demand is counted likewise).
    """

    def __init__(self, server: Server, truth: Truth, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        self.refused: dict[Key, frozenset[str]] = {}
        self.paused_until = 0.0
        self.nominates = 0.0
        self.overlooks = 0.0
        self._server, self._truth, self._loop, self._rng, self._trace = server, truth, loop, rng, trace
        self._planned = False
        self._assumed: dict[Key, tuple[str, Object]] = {}
        self._reserved: dict[Key, list[Object]] = {}
        self._overlooked: dict[str, bool] = {}  # claims of parts that it has looked at, by uid
        server.listeners.append(self._happened)
        self._again()

    def feasible(self, pod: Object, node: Object, *, cpu_taken: int = 0) -> bool:
        """Return whether a pod fits on a node, devices aside."""
        name, key = node["metadata"]["name"], _key(pod)
        if name in self.refused.get(key, ()) or fit.why_not(pod, node) is not None:
            return False
        if fit.repelled(pod, name, self._server.all(PODS)):
            return False
        room = fit.milli(node.get("status", {}).get("allocatable", {}).get("cpu", "0"))
        return fit.used_cpu(self._server.all(PODS), name) + cpu_taken + fit.cpu_of(pod) <= room

    def allocate(self, claim: Object, node: str) -> list[Object] | None:
        """Return what a claim would be given on a node now; None where that cannot be done."""
        taken = [result for other in self._server.all(RESOURCE_CLAIMS) for result in results(other)]
        taken += [result for held in self._reserved.values() for result in held]
        listed = self._truth.listed(node)
        if ruled := self._truth.ruled():
            listed = {name: device for name, device in listed.items() if (node, name) not in ruled}
        return Room(node, listed, self._truth.homes, taken).allocate(claim)

    def reserves(self, node: str) -> bool:
        """Return whether it is about to give some device of a node, as it alone knows."""
        return any(result["pool"] == node for held in self._reserved.values() for result in held)

    def _happened(self, event: Event) -> None:
        old, new = event.old, event.new
        freed = old is not None and results(old) and not (new is not None and results(new))
        if event.plural == RESOURCE_SLICES.plural or (event.plural == RESOURCE_CLAIMS.plural and freed):
            self._overlooked = dict.fromkeys(self._overlooked, False)
        self._wake()

    def _wake(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_later(self._rng.uniform(0.005, 0.1), self._work)

    def _again(self) -> None:
        self._loop.call_later(AGAIN_S, self._again)
        self._wake()

    def _work(self) -> None:
        if self._loop.now < self.paused_until:
            self._loop.call_at(self.paused_until, self._work)
            return
        self._planned = False
        queue = [pod for pod in self._server.all(PODS) if self._mine(pod)]
        queue.sort(key=lambda pod: (-(pod["spec"].get("priority") or 0), pod["metadata"]["creationTimestamp"]))
        for pod in queue:
            self._try(pod)

    def _mine(self, pod: Object) -> bool:
        spec = pod["spec"]
        if spec.get("nodeName") or fit.gates(pod) or _key(pod) in self._assumed or fit.finished(pod):
            return False
        return spec.get("schedulerName", "") in OURS and "deletionTimestamp" not in pod["metadata"]

    def _try(self, pod: Object) -> None:
        namespace = pod["metadata"]["namespace"]
        claims = [self._server.find(RESOURCE_CLAIMS, name, namespace) for name in fit.claim_names(pod)]
        # A pod whose claim does not exist has no condition and no event at all.
        if any(claim is None or claim["metadata"].get("deletionTimestamp") for claim in claims):
            return
        found = [claim for claim in claims if claim is not None]
        if any((namespace, claim["metadata"]["name"]) in self._reserved for claim in found):
            return
        for node in sorted(self._server.all(NODES), key=lambda node: str(node["metadata"]["name"])):
            name = node["metadata"]["name"]
            taken = sum(fit.cpu_of(other) for on, other in self._assumed.values() if on == name)
            if not self.feasible(pod, node, cpu_taken=taken):
                continue
            given = [self._devices(claim, name) for claim in found]
            if all(devices is not None for devices in given):
                self._assume(pod, name, [(c, d) for c, d in zip(found, given, strict=True) if d is not None])
                return
        self._refuse(pod)

    def _devices(self, claim: Object, node: str) -> list[Object] | None:
        """Return the results of allocating a claim on a node, or None where that cannot be done."""
        allocation = claim.get("status", {}).get("allocation")
        if allocation is not None:
            given = results(claim)
            return given if all(result["pool"] == node for result in given) else None
        if self._overlooks(claim):
            return None
        return self.allocate(claim, node)

    def _overlooks(self, claim: Object) -> bool:
        """Return whether it does not see the room for a claim of a part of a device that claims share."""
        requests = [request["exactly"] for request in claim["spec"].get("devices", {}).get("requests", ())]
        single = any("parentUUID" in str(exactly.get("selectors")) for exactly in requests)
        if single or not any(exactly["deviceClassName"] in _PARTS for exactly in requests):
            return False
        uid = claim["metadata"]["uid"]
        if uid not in self._overlooked:
            self._overlooked[uid] = self._rng.random() < self.overlooks
        return self._overlooked[uid]

    def _assume(self, pod: Object, node: str, given: list[tuple[Object, list[Object]]]) -> None:
        self._assumed[_key(pod)] = node, pod
        for claim, found in given:
            self._reserved[_key(claim)] = [] if results(claim) else found
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._allocate, pod, node, given)

    def _allocate(self, pod: Object, node: str, given: list[tuple[Object, list[Object]]]) -> None:
        metadata = pod["metadata"]
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        well = True
        for claim, found in given:
            self._reserved.pop(_key(claim), None)
            now = self._server.find(RESOURCE_CLAIMS, claim["metadata"]["name"], claim["metadata"]["namespace"])
            if now is None or now["metadata"]["resourceVersion"] != claim["metadata"]["resourceVersion"]:
                well = False  # somebody changed or deleted it: the update fails, and the pod is tried again
                continue
            status = now.get("status", {})
            users = [user for user in status.get("reservedFor", ()) if user["uid"] != metadata["uid"]]
            allocation = status.get("allocation") or {"devices": {"results": found}}
            self._server.put(
                RESOURCE_CLAIMS,
                now
                | {"metadata": now["metadata"] | {"finalizers": [names.FINALIZER]}}
                | {"status": status | {"allocation": allocation, "reservedFor": [*users, consumer]}},
            )
            self._trace("scheduler: claim %s gets %s on %s", claim["metadata"]["name"], len(found), node)
        if not well:
            del self._assumed[_key(pod)]
            self._wake()
            return
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._bind, pod, node)

    def _bind(self, pod: Object, node: str) -> None:
        del self._assumed[_key(pod)]
        now = self._server.find(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])
        if now is None or now["metadata"]["uid"] != pod["metadata"]["uid"] or now["metadata"].get("deletionTimestamp"):
            return
        status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        self._server.put(PODS, now | {"spec": now["spec"] | {"nodeName": node}, "status": status})
        self._trace("scheduler: pod %s is bound to %s", pod["metadata"]["name"], node)

    def _refuse(self, pod: Object) -> None:
        status = pod.get("status", {})
        news: Object = {}
        message = "0/4 nodes are available: 1 cannot allocate all claims, 3 node(s) didn't match Pod's node affinity."
        if fit.unschedulable(pod) != message:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
            news["conditions"] = [condition]
        if self._rng.random() < self.nominates and "nominatedNodeName" not in status:
            news["nominatedNodeName"] = str(next(iter(self._server.all(NODES)))["metadata"]["name"])
            self._loop.call_later(self._rng.uniform(10, 80), self._forget_nomination, _key(pod))
        if news:
            self._server.put(PODS, pod | {"status": status | news})
            self._trace("scheduler: pod %s is unschedulable %s", pod["metadata"]["name"], news.get("nominatedNodeName"))

    def _forget_nomination(self, key: Key) -> None:
        self._server.edit(PODS, key, lambda pod: pod["status"].pop("nominatedNodeName", None))


def _key(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
