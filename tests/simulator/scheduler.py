"""kube-scheduler as a story has it: it comes late, works on several pods at a time, and sees what nobody else does."""

from __future__ import annotations

import random
from typing import Final

from dradriver.api import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Event, Key, Object, key_of
from tests.fakes.control_plane import fit
from tests.fakes.control_plane.devices import results
from tests.fakes.control_plane.scheduler import Place, Scheduler
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import Server
from tests.simulator.trace import Trace

_PARTS: Final = frozenset((names.SHARE_CLASS, names.MIG_CLASS))
AGAIN_S: Final = 5.0  # unschedulable pods are tried again at the latest


class LateScheduler(Scheduler):
    """The model, with time between what it decides, writes and binds.

    Attributes:
        refused: Nodes by pod that it finds infeasible for reasons of its own: host ports, volumes.
        paused_until: It does nothing before.
        nominates: How often an unschedulable pod gets a nominated node, which lasts.
        overlooks: How often it does not see that a part fits, until a slice is written or some device is given back
            (seen with 1.36.3, of shares that are bound at the same time; a slice made on demand is counted likewise).
    """

    def __init__(self, server: Server, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        super().__init__(server)
        self.refused: dict[Key, frozenset[str]] = {}
        self.paused_until = 0.0
        self.nominates = 0.0
        self.overlooks = 0.0
        self._loop, self._rng, self._trace = loop, rng, trace
        self._planned = False
        self._assumed: dict[Key, tuple[str, Object]] = {}
        self._reserved: dict[Key, list[Object]] = {}
        self._overlooked: dict[str, bool] = {}  # claims of parts that it has looked at, by uid
        server.listeners.append(self._happened)
        self._again()

    def feasible(self, pod: Object, node: Object, *, cpu_taken: int = 0) -> bool:
        refused = node["metadata"]["name"] in self.refused.get(key_of(pod), ())
        return not refused and super().feasible(pod, node, cpu_taken=cpu_taken)

    def reserves(self, node: str) -> bool:
        """Return whether it is about to give some device of a node, as it alone knows."""
        return any(result["pool"] == node for result in self._reserved_results())

    def _reserved_results(self) -> list[Object]:
        return [result for held in self._reserved.values() for result in held]

    def _cpu_taken(self, node: str) -> int:
        return sum(fit.cpu_of(pod) for on, pod in self._assumed.values() if on == node)

    def _devices(self, claim: Object, node: str, besides: list[Object]) -> list[Object] | None:
        if not claim.get("status", {}).get("allocation") and self._overlooks(claim):
            return None
        return super()._devices(claim, node, besides)

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

    # When it works.

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
        for pod in self.queue():
            if key_of(pod) not in self._assumed:
                self._try(pod)

    def _try(self, pod: Object) -> None:
        claims = self.claims(pod)
        if claims is None or any(key_of(claim) in self._reserved for claim in claims):
            return
        place = self.place(pod, claims)
        if place is not None:
            self._assume(pod, place)
        else:
            self._refuse(pod)

    # What it does, a while later.

    def _assume(self, pod: Object, place: Place) -> None:
        self._assumed[key_of(pod)] = place.node, pod
        for claim, found in place.given:
            self._reserved[key_of(claim)] = [] if results(claim) else found
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._allocate, pod, place)

    def _allocate(self, pod: Object, place: Place) -> None:
        well = True
        for claim, found in place.given:
            self._reserved.pop(key_of(claim), None)
            if self.give(pod, claim, found):
                self._trace("scheduler: claim %s gets %s on %s", claim["metadata"]["name"], len(found), place.node)
            else:
                well = False
        if not well:
            del self._assumed[key_of(pod)]
            self._wake()
            return
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._bind, pod, place.node)

    def _bind(self, pod: Object, node: str) -> None:
        del self._assumed[key_of(pod)]
        if self.bind(pod, node):
            self._trace("scheduler: pod %s is bound to %s", pod["metadata"]["name"], node)

    def _refuse(self, pod: Object) -> None:
        nominated: dict[str, str] = {}
        if self._rng.random() < self.nominates and "nominatedNodeName" not in pod.get("status", {}):
            nominated["nominatedNodeName"] = str(self.store.all(NODES)[0]["metadata"]["name"])
            self._loop.call_later(self._rng.uniform(10, 80), self._forget_nomination, key_of(pod))
        if self.refuse(pod, **nominated):
            name = pod["metadata"]["name"]
            self._trace("scheduler: pod %s is unschedulable %s", name, nominated.get("nominatedNodeName"))

    def _forget_nomination(self, key: Key) -> None:
        self.store.edit(PODS, key, lambda pod: pod["status"].pop("nominatedNodeName", None))
