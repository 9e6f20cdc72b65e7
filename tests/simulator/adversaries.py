"""Who makes preemption hard in a story: decoys, owners of many pods, and others that use up the evictions of a minute.

One pod of the highest priority needs all GPUs of a node. The rules say when it must have them, that nobody of lower
priority is served before it for long, and that no more pods are told to end than the policies let, whoever leads.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from dradriver.api.policies.policy_sections import Policies
from dradriver.api.policies.tenant_policies import Queue
from dradriver.kube.resources import CONFIG_MAPS, POD_DISRUPTION_BUDGETS, PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Key, Object
from tests.simulator import cast
from tests.simulator.cast import claim_of
from tests.simulator.preempting import ON, victims_of
from tests.simulator.replicas import Replicas
from tests.simulator.state import State
from tests.simulator.world import Node, World

UNITS: Final = 2  # that may end within a minute
GPUS: Final = 4  # of a node, and of the large pod
HIGHEST: Final = 5000
MINUTE_S: Final = 60.0
# A minute in which nobody ends, another one where a leader has just begun or others had the evictions before the large
# pod was first tried, and the time of a promise.
BOUND_S: Final = 2 * MINUTE_S + 50.0
ROUNDS: Final = 2  # minutes' evictions that others may have while the large pod waits
OVERLAP_S: Final = 20.0  # for which a former leader may act on
SETTLED_S: Final = 15.0  # from when the large pod can preempt until it was tried
POLICIES: Final = Policies(
    queue=Queue(preemption=msgspec.structs.replace(ON.queue.preemption, workloads_per_minute=UNITS))
)
Broken = Callable[[str, str], None]


class _Told(NamedTuple):
    """A pod that was told to end.

    Attributes:
        at: When.
        replica: The controller's replica that did it.
        needs_more: Whether it was for a workload that needs more evictions than a minute has.
    """

    at: float
    replica: int
    needs_more: bool


class Adversaries:
    """The campaign, and the rules that hold in it."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._replicas: Replicas | None = None
        self._broken: Broken = lambda name, text: None
        self._nodes: list[str] = []
        self._large: Key = ("default", "large")
        self._web = 0
        self._possible_since: float | None = None
        self._lower: collections.Counter[str] = collections.Counter()  # told to end for others meanwhile
        self._told: collections.deque[_Told] = collections.deque()
        self._stored: dict[int, float] = {}  # by replica: when it last stored what the next leader must know

    def begin(self) -> None:
        """Draw nodes, pods and budgets, and when leaders are killed."""
        world, rng = self._world, self._rng
        world.follow(POLICIES)
        world.watchers.append(self._watch)
        world.states.append(self.states)
        world.server.listeners.append(self._happened)
        for _ in range(2):
            self._nodes.append(world.name("f"))
            world.add_node(Node(self._nodes[-1], "rtx-a6000-x4-pairs"))
        first, second = self._nodes
        for _ in range(GPUS):
            world.loop.call_at(rng.uniform(0, 2), self._add_web)
        for number in range(GPUS):
            name = f"decoy-{number}"
            pod = self._pod(name, rng.choice(("default", "team-a")), 1, 0, second)
            pod["metadata"]["labels"]["app"] = name
            world.loop.call_at(rng.uniform(0, 2), world.add_pod, pod)
            if number < rng.randint(1, GPUS):
                self._budget(name, pod["metadata"]["namespace"])
        for number in range(rng.randint(8, 24)):
            pod = self._pod(f"small-{number}", rng.choice(("default", "team-a")), 1, 100, rng.choice((first, second)))
            at = rng.uniform(5, world.plan.until + 3 * MINUTE_S)
            world.loop.call_at(at, world.add_pod, pod)
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            world.loop.call_at(at + rng.uniform(MINUTE_S / 3, MINUTE_S), world.delete_pod, key)
        large = self._pod(self._large[1], self._large[0], GPUS, HIGHEST, "")
        world.loop.call_at(rng.uniform(5, world.plan.until), world.add_pod, large)
        world.plan.until += MINUTE_S  # so that the story lasts for as long as the large pod may wait

    def _pod(self, name: str, namespace: str, gpus: int, priority: int, node: str) -> Object:
        spec: Object = {"priority": priority} | ({"nodeSelector": {"kubernetes.io/hostname": node}} if node else {})
        return cast.pod(name, namespace, {"main": gpus}, {"product": "NVIDIA RTX A6000"}, **spec)

    def _add_web(self) -> None:
        """Let the ReplicaSet make a pod."""
        self._web += 1
        pod = self._pod(f"web-{self._web}", "default", 1, -10, self._nodes[0])
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        self._world.add_pod(pod)

    def _budget(self, name: str, namespace: str) -> None:
        world = self._world
        spec: Object = {"selector": {"matchLabels": {"app": name}}}
        head = {"name": name, "namespace": namespace}
        budget = {"metadata": head, "spec": spec, "status": {"disruptionsAllowed": 0}}
        world.server.put(POD_DISRUPTION_BUDGETS, budget)
        if self._rng.random() < 0.3:
            freed: Object = budget | {"status": {"disruptionsAllowed": 1}}
            world.loop.call_at(self._rng.uniform(0, 2 * MINUTE_S), world.server.put, POD_DISRUPTION_BUDGETS, freed)

    # What must hold.

    def _watch(self, replicas: Replicas, broken: Broken) -> None:
        self._replicas, self._broken = replicas, broken
        for _ in range(self._rng.choice((0, 1, 1, 2))):
            self._world.loop.call_at(self._rng.uniform(5, self._world.plan.until + 30), self._kill)

    def _kill(self) -> None:
        if self._replicas is not None and self._replicas.leader is not None:
            self._replicas.kill(self._replicas.leader)

    def states(self) -> Iterator[State]:
        """Give what may not last: the large pod can preempt, and has no node."""
        pod = self._world.pod(self._large)
        if pod is None or self._large in self._world.spoiled or not self._waits(pod) or not self._can_preempt(pod):
            self._possible_since = None
            self._lower.clear()
            return
        if self._possible_since is None:
            self._possible_since = self._world.loop.now
        uid = pod["metadata"]["uid"]
        yield State("who has possible victims is bound", uid, BOUND_S, "the large pod waits", self._large)

    @staticmethod
    def _waits(pod: Object) -> bool:
        return "deletionTimestamp" not in pod["metadata"] and not pod["spec"].get("nodeName")

    def _can_preempt(self, large: Object) -> bool:
        """Return whether the first node could be the large pod's, if all ended there that may."""
        world, node = self._world, self._world.nodes[self._nodes[0]]
        if not node.ready or node.cordoned or node.tainted or node.gone or node.name not in world.truth.pools:
            return False
        if node.form != "whole" or large["metadata"]["namespace"] in {space for space, _ in world.plan.refusing}:
            return False
        for (pool, _), claims in world.truth.allocated().items():
            if pool == node.name and not all(map(self._may_end, claims)):
                return False
        # Without a garbage collector it is the controller that deletes such claims, 10 to 20 s later.
        if not world.housekeeping.collects and any(
            self._is_left(claim, node.name) for claim in world.server.all(RESOURCE_CLAIMS)
        ):
            return False
        return not any(gpu[0] == node.name for gpu in world.truth.ruled())

    def _is_left(self, claim: Object, node: str) -> bool:
        """Return whether a claim is pinned to GPUs of a node for a pod that is gone."""
        made = self._world.truth.made.get(claim["metadata"]["uid"])
        if made is None or all(gpu[0] != node for gpu in made.takes):
            return False
        pod = self._world.pod((claim["metadata"]["namespace"], made.pod[0]))
        return pod is None or pod["metadata"]["uid"] != made.pod[1]

    def _may_end(self, claim: Key) -> bool:
        """Return whether a claim is that of a pod of lower priority, with a claim of its own."""
        found = self._world.server.find(RESOURCE_CLAIMS, claim[1], claim[0])
        made = None if found is None else self._world.truth.made.get(found["metadata"]["uid"])
        if found is None or made is None:
            return False
        pod = self._world.pod((claim[0], made.pod[0]))
        users = found.get("status", {}).get("reservedFor") or ()
        is_own = pod is None or (claim[1] == claim_of(made.pod[0]) and len(users) <= 1)
        return is_own and (pod is None or (pod["spec"].get("priority") or 0) < HIGHEST)

    def _happened(self, event: Event) -> None:
        call, old, new = self._world.server.acting, event.old, event.new
        if event.plural == CONFIG_MAPS.plural and call is not None:
            self._stored[call.replica] = self._world.loop.now
        if event.plural != PODS.plural or old is None:
            return
        was = "deletionTimestamp" in old["metadata"]
        ends = new is None or "deletionTimestamp" in new["metadata"]
        owners = old["metadata"].get("ownerReferences") or ()
        if ends and not was and any(owner["uid"] == "web" for owner in owners):
            self._world.loop.call_later(self._rng.uniform(0.5, 3), self._add_web)
        if call is not None and call.verb == "evict" and ends and not was:
            self._evicted(old, call.replica)

    def _evicted(self, pod: Object, replica: int) -> None:
        world, now = self._world, self._world.loop.now
        # No more than may end, but for those who need more; a leader that was replaced may act on for a while.
        uid = pod["metadata"]["uid"]
        claims = [claim for claim in world.server.all(RESOURCE_CLAIMS) if uid in victims_of(claim)]
        priorities = [self._priority(claim) for claim in claims]
        needs_more = any(len(victims_of(claim)) > UNITS for claim in claims)
        self._told.append(_Told(now, replica, needs_more))
        while self._told[0].at <= now - MINUTE_S + 1:
            self._told.popleft()
        known = [told for told in self._told if told.replica == replica or not self._is_lost(told)]
        overlaps = len({told.replica for told in known}) > 1 and now - known[0].at < OVERLAP_S
        if not any(told.needs_more for told in known) and len(known) > UNITS * (2 if overlaps else 1):
            self._broken("no more end within a minute than may", f"{pod['metadata']['name']}: {list(self._told)}")

        # Nobody of lower priority is served while the large pod could be.
        since = self._possible_since
        if since is None or HIGHEST in priorities or now < max(since, world.health.since(self._large)) + SETTLED_S:
            return
        self._lower["lower"] += 1
        if self._lower["lower"] > ROUNDS * UNITS:
            self._broken("nobody of less priority is served first", f"{pod['metadata']['name']} ends for {priorities}")

    def _is_lost(self, told: _Told) -> bool:
        """Return whether the server refused to store that a pod was told to end, and its replica was killed then."""
        was_stored = self._stored.get(told.replica, 0.0) >= told.at
        return not was_stored and self._world.health.not_stored.get(told.replica, 0.0) >= told.at

    def _priority(self, claim: Object) -> int:
        made = self._world.truth.made.get(claim["metadata"]["uid"])
        pod = None if made is None else self._world.pod((claim["metadata"]["namespace"], made.pod[0]))
        return 0 if pod is None else pod["spec"].get("priority") or 0
