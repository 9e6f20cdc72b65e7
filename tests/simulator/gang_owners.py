"""What makes the pods of some gangs of a story: Jobs that can be suspended and resumed, and PodGroups to be read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from dradriver.kube.resources import PODS, Resource
from tests.fakes.apistore import Event, Key, Object
from tests.fakes.control_plane.jobs import JOBS, Jobs
from tests.simulator.gangs import Gang
from tests.simulator.world import World

POD_GROUPS: Final = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", namespaced=True)
UNPERMITTED: Final = "team-r"  # whose Jobs the controller may read, and not suspend
NEVER: Final = 1_000_000  # pods that may fail: a Job that has failed makes none, and says nothing of ours
READ_S: Final = 25.0  # until an object that was not there is read again: every 10 s, and once more where that failed


def enrich(gang: Gang, rng: random.Random) -> None:
    """Draw where a gang may be, what becomes of it when it loses a pod, and what makes its pods or counts them."""
    if rng.random() < 0.35:
        gang.wishes = gang.wishes | {"near": rng.choice(("leaf", "leaf", "preferred leaf"))}
    if rng.random() < 0.25:
        gang.wishes = gang.wishes | {"max-nodes": str(rng.choice((1, 2, 2, 3)))}
    if rng.random() < 0.6:
        gang.wishes = gang.wishes | {"on-member-loss": rng.choice(("restart", "restart", "replace"))}
    if gang.job and rng.random() < 0.7:
        gang.owner = JOBS.kind
        if rng.random() < 0.25:
            gang.key = UNPERMITTED, gang.key[1]
        gang.counted = gang.size[0] == gang.size[1] and rng.random() < 0.5
    elif not gang.job and rng.random() < 0.4:
        gang.owner = POD_GROUPS.kind


class GangOwners:
    """The objects above gangs, the Job controller, and people who suspend and resume Jobs themselves."""

    def __init__(self, world: World, rng: random.Random, make: Callable[[Gang, int, str], Object]) -> None:
        """``make`` returns a pod of a gang by its index and name, which is there from then on."""
        self._world, self._rng, self._make = world, rng, make
        self._gangs: dict[Key, Gang] = {}
        # A story can have several sets of gangs, each with its own draws.
        self._jobs = Jobs(world.server, self._pod, delete=world.housekeeping.delete_pod, has=self._gangs.__contains__)
        self._planned = False

    def begin(self) -> None:
        """Have the server know of such objects, and put the nodes there are below leaf switches."""
        world, rng = self._world, self._rng
        world.server.serves |= {JOBS, POD_GROUPS}
        world.plan.unpermitted.add((UNPERMITTED, JOBS.plural))
        for node in world.nodes.values():
            node.leaf = rng.choice(("l1", "l1", "l2"))
            world.show_node(node)
        world.trace("nodes below leaf switches: %s", {node.name: node.leaf for node in world.nodes.values()})
        world.server.listeners.append(self._happened)
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            world.loop.call_at(rng.uniform(0, world.plan.until), rng.choice((self._suspend, self._resume)))

    def create(self, gang: Gang) -> None:
        """Create a gang's object: a Job makes its pods, a PodGroup may come later than they."""
        least, most = gang.size
        head: Object = {"metadata": {"name": gang.key[1], "namespace": gang.key[0]}}
        self._gangs[gang.key] = gang
        self._world.trace("%s %s/%s comes", gang.owner, *gang.key)
        if gang.owner == JOBS.kind:
            spec = {"parallelism": most, "completions": most, "completionMode": "Indexed", "backoffLimit": NEVER}
            self._world.server.put(JOBS, head | {"spec": spec})
            return
        self._world.server.put(POD_GROUPS, head | {"spec": {"schedulingPolicy": {"gang": {"minCount": least}}}})
        for key in gang.pods:
            self._world.health.excuse(key, READ_S)

    def _pod(self, job: Object, name: str, index: int) -> Object:
        metadata = job["metadata"]
        return self._make(self._gangs[metadata["namespace"], metadata["name"]], index, name)

    def _happened(self, event: Event) -> None:
        gang = self._world.gangs.get(event.key) if event.plural == PODS.plural else None
        if event.plural == JOBS.plural or (gang is not None and gang.owner == JOBS.kind):
            self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._world.loop.call_later(self._rng.choice((0.02, 0.1, 0.1, 1.0, 4.0)), self._act)

    def _act(self) -> None:
        self._planned = False
        self._jobs.act()

    # What people do.

    def _suspend(self) -> None:
        running = [job for job in self._world.server.all(JOBS) if not job["spec"].get("suspend")]
        if not running:
            return
        job = self._rng.choice(running)["metadata"]
        key = job["namespace"], job["name"]
        self._world.trace("somebody suspends Job %s/%s", *key)
        self._set(key, True)
        self._world.loop.call_later(self._rng.uniform(1, 30), self._set, key, False)

    def _resume(self) -> None:
        for job in self._world.server.all(JOBS):
            if job["spec"].get("suspend"):
                key = job["metadata"]["namespace"], job["metadata"]["name"]
                self._world.trace("somebody resumes Job %s/%s", *key)
                self._set(key, False)
                return

    def _set(self, key: Key, suspend: bool) -> None:
        self._world.server.edit(JOBS, key, lambda job: job["spec"].update(suspend=suspend))
