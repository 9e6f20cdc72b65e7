"""What becomes of gangs in a story: pods that come, a Job that makes lost ones anew, and trouble from outside."""

from __future__ import annotations

import random

from msgspec.structs import replace

from dradriver.api.base import gang_barrier_device
from dradriver.kube.resources import DEVICE_CLASSES, PODS
from tests.fakes.apistore import Event, Key, Object
from tests.simulator import cast
from tests.simulator.gang_owners import GangOwners, enrich
from tests.simulator.gangs import Gang, living
from tests.simulator.world import Node, World

QUOTA, WEBHOOK, DENIED = 2, 9, 7  # numbers in REFUSALS


class GangLife:
    """The gangs of a story from their beginning to their end."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world, self._rng = world, rng
        self._every: list[Gang] = []
        self._index: dict[Key, int] = {}
        self._made = 0
        self._more = random.Random(str(rng.getstate()[1][:4]))  # beside: the other stories stay what they are
        self._owners = GangOwners(world, self._more, self._comes)
        world.server.listeners.append(self._happened)

    def begin(self, *, barrier: bool, owned: bool = False, idle_s: int = 0) -> None:
        """Draw gangs and what happens to them, up to when faults end.

        Args:
            barrier: Whether the server keeps what makes a seat.
            owned: Whether they are small ones of Jobs, that start and lose pods, while writes to Jobs go wrong.
            idle_s: After how many idle seconds most of them are to be ended; 0 for none.
        """
        world, rng = self._world, self._rng
        world.server.put(DEVICE_CLASSES, {"metadata": {"name": gang_barrier_device.CLASS}, "spec": {}})
        if not barrier:
            world.server.lacks |= {"bindingConditions", "bindingFailureConditions"}
        for _ in range(rng.randint(0, 4)):
            name = world.name("g")
            world.add_node(Node(name, "rtx-a6000-x4-pairs", cpu=rng.choice((8, 16)), zone=rng.choice("ab")))
        world.scheduler.deletes = self._more.random() < 0.4
        rich = owned or self._more.random() < 0.6
        if owned:
            world.plan.owners = [rng.choice(("well", "well", "kill-after", "kill-before", "lost")) for _ in range(6)]
        if rich:
            self._owners.begin()
        until = world.plan.until
        for _ in range(rng.randint(1, 4)):
            gang = self._draw(world.name("gang"))
            if owned:
                gang = replace(gang, size=(2, 2), gpus=[1, 1], spec={"cpu": "1"}, wishes={}, job=True)
            if rich:
                enrich(gang, self._more)
            if owned:
                gang.owner = "Job"
            if idle_s and self._more.random() < 0.8:
                gang.wishes = gang.wishes | {"idle-timeout": f"{idle_s}s"}
            self._every.append(gang)
            at, spread = rng.uniform(0, until * (0.3 if owned else 0.7)), rng.choice((0.0, 0.5, 8.0))
            missing = rng.random() < 0.1
            if gang.owner:
                late = gang.owner != "Job" and self._more.random() < 0.3
                world.loop.call_at(at + (self._more.uniform(0, 6) if late else 0.0), self._owners.create, gang)
            if gang.owner == "Job":
                continue
            for index in range(gang.size[1] - missing):
                world.loop.call_at(at + rng.uniform(0, spread), self._add, gang, index)
        acts = (self._delete, self._delete, self._put_out, self._put_out, self._restart, self._finish, self._lose_node)
        for _ in range(rng.choice((0, 1, 2, 4, 8))):
            world.loop.call_at(rng.uniform(0, until), rng.choice(acts))
        for _ in range(rng.randint(2, 6) if owned else 0):
            world.loop.call_at(rng.uniform(until * 0.3, until), self._delete)

    def _draw(self, name: str) -> Gang:
        rng = self._rng
        most = rng.choice((2, 2, 3, 3, 4, 5, 6, 8))
        least = rng.randint(1, most) if rng.random() < 0.25 else most
        one, other = rng.choice((1, 1, 2, 2, 3, 4, 8)), rng.choice((1, 2, 4))
        leads = least == most and rng.random() < 0.3  # of a range all are alike
        gpus = [other if leads and index == 0 else one for index in range(most)]
        spec: Object = {"cpu": rng.choice(("0", "1", "1", "2", "4"))}
        if rng.random() < 0.2:
            spec["priority"] = rng.choice((-10, 100))
        if rng.random() < 0.1:
            spec["nodeSelector"] = {"zone": rng.choice("ab")}
        wishes = rng.choice(({}, {}, {}, {"multi-node-policy": "spread"}, {"multi-node-policy": "pack"}))
        namespace = rng.choice(("default", "team-a", "team-g"))
        return Gang((namespace, name), (least, most), gpus, spec, wishes, job=rng.random() < 0.6)

    def _add(self, gang: Gang, index: int) -> None:
        self._made += 1
        name = f"{gang.key[1]}-{index}" + (f"-{self._made}" if gang.job else "")
        self._world.server.put(PODS, self._comes(gang, index, name))

    def _comes(self, gang: Gang, index: int, name: str) -> Object:
        """Return a pod of a gang that is about to be there."""
        world, rng, key = self._world, self._rng, (gang.key[0], name)
        if rng.random() < 0.05:
            gang.picky = True
            world.scheduler.refused[key] = frozenset(rng.sample(sorted(world.nodes), rng.randint(1, len(world.nodes))))
        if rng.random() < 0.04:
            world.plan.denied[cast.claim_of(name)] = rng.choice((QUOTA, WEBHOOK, DENIED))
        world.gangs[key] = gang
        self._index[key] = index
        gang.pods.append(key)
        world.health.together[key] = gang.pods
        pod = gang.pod(index, name)
        world.comes(pod)
        return pod

    # The Job controller.

    def _happened(self, event: Event) -> None:
        own = event.plural == PODS.plural and event.key in self._index  # there may be others' gangs
        gang = self._world.gangs[event.key] if own else None
        if gang is None or not gang.job or gang.owner or event.old is None:
            return
        lost = event.new is None or event.new.get("status", {}).get("phase") == "Failed"
        before = event.old.get("status", {}).get("phase")
        if lost and before not in ("Succeeded", "Failed"):
            index = self._index[event.key]
            self._world.loop.call_later(self._rng.choice((0.1, 1.0, 8.0)), self._create_again, gang, index)

    def _create_again(self, gang: Gang, index: int) -> None:
        found = (self._world.pod(key) for key in gang.pods if self._index[key] == index)
        there = any(pod is not None and pod.get("status", {}).get("phase") != "Failed" for pod in found)
        if not there and self._world.loop.now < self._world.plan.until + 30:  # when all is taken away nothing comes
            self._add(gang, index)

    # What others do.

    def _living(self, gang: Gang) -> list[Object]:
        return living(map(self._world.pod, gang.pods))

    def _some(self) -> Object | None:
        found = [pod for gang in self._every for pod in self._living(gang)]
        return self._rng.choice(found) if found else None

    def _delete(self) -> None:
        if (pod := self._some()) is not None:
            self._world.delete_pod((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _finish(self) -> None:
        pod = self._some()
        if pod is not None and pod["spec"].get("nodeName"):
            self._world.finish_pod((pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _put_out(self) -> None:
        """A pod of high priority takes the CPU of a node, as of one on which a member waits to be bound."""
        world, rng = self._world, self._rng
        waiting = [pod for gang in self._every for pod in self._living(gang) if not pod["spec"].get("nodeName")]
        nominated = [pod["status"]["nominatedNodeName"] for pod in waiting if pod["status"].get("nominatedNodeName")]
        node = rng.choice(nominated or sorted(world.nodes))
        cpu = rng.choice((4, 8, 14))
        container = {"name": "main", "image": "example.com/image", "resources": {"requests": {"cpu": str(cpu)}}}
        name = world.name("important")
        world.trace("pod %s of priority 1000 wants %d CPU of node %s", name, cpu, node)
        selector = {"kubernetes.io/hostname": node}
        world.put_pod(name, priority=1000, containers=[container], nodeSelector=selector)
        world.loop.call_later(rng.uniform(1, 40), world.server.remove, PODS, ("default", name))

    def _restart(self) -> None:
        self._world.scheduler.restart()

    def _lose_node(self) -> None:
        """A node is not ready any more, and the pods on it are deleted, as by the taint manager."""
        world, rng = self._world, self._rng
        node = world.nodes[rng.choice(sorted(world.nodes))]
        node.ready = False
        world.show_node(node)
        for pod in world.server.all(PODS):
            key = pod["metadata"]["namespace"], pod["metadata"]["name"]
            if pod["spec"].get("nodeName") == node.name and key in world.gangs:
                world.loop.call_later(rng.uniform(0, 5), world.delete_pod, key)

        def back() -> None:
            node.ready = True
            world.show_node(node)

        world.loop.call_later(rng.uniform(5, 40), back)
