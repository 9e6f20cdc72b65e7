"""kube-scheduler as a story has it: it comes late, works on several pods at a time, and sees what nobody else does."""

from __future__ import annotations

import random
from typing import Final

from dradriver.api.base import names
from dradriver.kube.resources import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.fakes.apistore import Event, Key, Object, key_of
from tests.fakes.control_plane import binding, fit
from tests.fakes.control_plane.binding import Verdict
from tests.fakes.control_plane.devices import results
from tests.fakes.control_plane.scheduler import Place, Scheduler
from tests.simulator.loop import VirtualLoop
from tests.simulator.server import Server
from tests.simulator.trace import Trace

_PARTS: Final = frozenset((names.SHARE_CLASS, names.MIG_CLASS))
AGAIN_S: Final = 5.0  # unschedulable pods are tried again at the latest
LOOK_S: Final = 5.0  # between two looks at a pod's binding conditions
BINDING_TIMEOUT_S: Final = 600.0
BLINK_S: Final = 2.0  # after which it tries a pod again whose conditions failed


class LateScheduler(Scheduler):
    """The model, with time between what it decides, writes and binds.

    Attributes:
        refused: Nodes by pod that it finds infeasible for reasons of its own: host ports, volumes.
        paused_until: It does nothing before.
        nominates: How often an unschedulable pod gets a nominated node, which lasts.
        deletes: Whether it deletes a pod that waits to be bound and loses its place to one more important, as 1.37.2
            was seen to; with 1.36.3 such a pod stays.
        overlooks: How often it does not see that a part fits, until a slice is written or some device is given back
            (seen with 1.36.3, of shares that are bound at the same time; a slice made on demand is counted likewise).
    """

    def __init__(self, server: Server, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        super().__init__(server)
        self.refused: dict[Key, frozenset[str]] = {}
        self.paused_until = 0.0
        self.nominates = 0.0
        self.deletes = False
        self.overlooks = 0.0
        self._loop, self._rng, self._trace = loop, rng, trace
        self._planned = False
        self._assumed: dict[Key, tuple[str, Object]] = {}
        self._reserved: dict[Key, list[Object]] = {}
        self._overlooked: dict[str, bool] = {}  # claims of parts that it has looked at, by uid
        self._waiting: set[Key] = set()  # of those that it assumed, who waits for conditions
        self._blinked: dict[Key, float] = {}  # when it tries a pod again
        self._unknown: dict[Key, str] = {}  # versions of pods of whose nominations it does not know
        self._drawn: set[Key] = set()  # pods with a nominated node of its own
        self._run = 0
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

    def _waiters(self) -> list[tuple[Object, str]]:
        return [(pod, node) for node, pod in self._assumed.values()]

    def _nominated(self, node: str) -> list[Object]:
        known = super()._nominated(node)
        return [pod for pod in known if self._unknown.get(key_of(pod)) != pod["metadata"]["resourceVersion"]]

    def restart(self) -> None:
        """Forget all that stands nowhere but in its memory; what it was about to write is never written."""
        self._run += 1
        self._assumed.clear()
        self._reserved.clear()
        self._waiting.clear()
        self._unknown = {
            key_of(pod): pod["metadata"]["resourceVersion"] for pod in self.store.all(PODS) if fit.gates(pod)
        }
        self._trace("scheduler restarts")
        self._wake()

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
        if event.plural == PODS.plural and event.key in self._waiting:
            assumed = self._assumed[event.key][1]["metadata"]["uid"]
            if new is None or new["metadata"]["uid"] != assumed or "deletionTimestamp" in new["metadata"]:
                self._waiting.discard(event.key)
                self._linger(event.key)
        self._wake()

    def _linger(self, key: Key) -> None:
        """Keep what a deleted pod that waited has until the next look at it, whatever becomes of its claims."""
        pod = self._assumed[key][1]
        held = [(key_of(claim), results(claim)) for claim in binding.claims_of(self.store, pod)]
        self._reserved |= dict(held)

        def look(run: int) -> None:
            if run == self._run and self._assumed.get(key, ("", None))[1] is pod:
                del self._assumed[key]
                for claim, _ in held:
                    self._reserved.pop(claim, None)
                self._wake()

        self._loop.call_later(self._rng.uniform(0, LOOK_S), look, self._run)

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
            if key_of(pod) not in self._assumed and self._blinked.get(key_of(pod), 0.0) <= self._loop.now:
                self._try(pod)

    def _try(self, pod: Object) -> None:
        claims = self.claims(pod)
        if claims is None or any(key_of(claim) in self._reserved for claim in claims):
            return
        if self.take_back(pod, elsewhere=False):
            return  # it is tried again
        place = self.place(pod, claims)
        if place is not None:
            self._assume(pod, place)
            return
        if waiters := [other for other in self.in_the_way(pod, claims) if key_of(other) in self._waiting]:
            for other in waiters:
                self._put_out(other, f"by pod {pod['metadata']['name']}")
                if self.deletes:
                    self.store.remove(PODS, key_of(other))
            return
        if not self.take_back(pod, elsewhere=self.elsewhere(pod, claims)):
            self._refuse(pod)

    def _put_out(self, pod: Object, why: str) -> None:
        self._trace("scheduler: pod %s loses its place %s", pod["metadata"]["name"], why)
        self._waiting.discard(key_of(pod))
        self._assumed.pop(key_of(pod), None)
        self.put_out(pod)

    # What it does, a while later.

    def _assume(self, pod: Object, place: Place) -> None:
        self._assumed[key_of(pod)] = place.node, pod
        for claim, found in place.given:
            self._reserved[key_of(claim)] = [] if results(claim) else found
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._allocate, self._run, pod, place)

    def _allocate(self, run: int, pod: Object, place: Place) -> None:
        if run != self._run:
            return
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
        if binding.waits(self.store, pod):
            self._waiting.add(key_of(pod))
            self._look(run, pod, place.node, self._loop.now)
            return
        self._loop.call_later(self._rng.uniform(0.001, 0.05), self._bind, run, pod, place.node)

    def _look(self, run: int, pod: Object, node: str, since: float) -> None:
        """Look whether a pod need wait no longer, and again later unless it lost its place meanwhile."""
        key = key_of(pod)
        known = self._assumed.get(key)
        if run != self._run or key not in self._waiting or known is None or known[1] is not pod:
            return
        found = self.verdict(pod, node)
        if found is Verdict.BIND:
            self._waiting.discard(key)
            self._loop.call_later(self._rng.uniform(0.001, 0.05), self._bind, run, pod, node)
        elif found is Verdict.FAILED or self._loop.now - since > BINDING_TIMEOUT_S:
            self._blinked[key] = self._loop.now + BLINK_S
            self._loop.call_later(BLINK_S + 0.01, self._wake)
            self._put_out(pod, "by a condition")
        else:
            self._loop.call_later(LOOK_S, self._look, run, pod, node, since)

    def _bind(self, run: int, pod: Object, node: str) -> None:
        if run != self._run:
            return
        del self._assumed[key_of(pod)]
        if self.bind(pod, node):
            self._trace("scheduler: pod %s is bound to %s", pod["metadata"]["name"], node)

    def _refuse(self, pod: Object) -> None:
        nominated = pod.get("status", {}).get("nominatedNodeName", "") if key_of(pod) in self._drawn else ""
        if self._rng.random() < self.nominates and "nominatedNodeName" not in pod.get("status", {}):
            nominated = str(self.store.all(NODES)[0]["metadata"]["name"])
            self._drawn.add(key_of(pod))
            self._loop.call_later(self._rng.uniform(10, 80), self._forget_nomination, key_of(pod))
        if self.refuse(pod, nominated=nominated):
            self._trace("scheduler: pod %s is unschedulable %s", pod["metadata"]["name"], nominated)

    def _forget_nomination(self, key: Key) -> None:
        self._drawn.discard(key)
        self.store.edit(PODS, key, lambda pod: pod["status"].pop("nominatedNodeName", None))
