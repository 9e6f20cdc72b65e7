"""Where gangs may be, and how many of them begin: below one leaf switch, on so many nodes, as their authors say."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator

from dradriver.kube.resources import PODS, RESOURCE_CLAIMS
from tests.fakes.apistore import Event, Object
from tests.fakes.control_plane import fit
from tests.fakes.storeclient import Call
from tests.simulator.gangs import Gang, going, living, plan_of
from tests.simulator.world import World


class LimitRules:
    """Looks at every claim of a gang that a controller makes, and says where a gang may be at all."""

    def __init__(self, world: World, broken: Callable[[str, str], None]) -> None:
        self._world, self._broken = world, broken
        self._well: collections.Counter[int] = collections.Counter()  # pods that have ended well, by gang
        self._stopped: dict[int, int] = {}  # by gang: at which version a pod of it ran no more
        world.server.listeners.append(self._happened)

    def _happened(self, event: Event) -> None:
        gang = self._world.gangs.get(event.key) if event.plural == PODS.plural else None
        if gang is not None and event.new is not None and event.old is not None:
            self._well[id(gang)] += _ended_well(event.new) and not _ended_well(event.old)
        if gang is not None and event.old is not None and _runs(event.old) and not (event.new and _runs(event.new)):
            self._stopped[id(gang)] = event.version
        call = self._world.server.acting
        if event.plural == RESOURCE_CLAIMS.plural and call is not None and event.old is None and event.new is not None:
            plan, size, _ = plan_of(event.new)
            of = self._gang(event.new)
            # Whose pods somebody meddled with, as by taking a gate away, may run without a plan.
            if plan and of is not None and not any(key in self._world.spoiled for key in of.pods):
                self._made(of, event.new, plan, size, call)

    def known_to_end(self, gang: Gang, seen_pods: int) -> bool:
        """Return whether who had seen so much of pods could know which of a gang's run no more.

        For who could not they run: then a pod that comes to them waits for nobody.
        """
        return seen_pods >= self._stopped.get(id(gang), 0)

    def _gang(self, claim: Object) -> Gang | None:
        made = self._world.truth.made.get(claim["metadata"]["uid"])
        return None if made is None else self._world.gangs.get((claim["metadata"]["namespace"], made.pod[0]))

    def _made(self, gang: Gang, claim: Object, plan: str, size: int, call: Call) -> None:
        least = max(1, gang.size[0] - self._well[id(gang)])
        run = sum(map(_runs, living(map(self._world.pod, gang.pods))))  # of an earlier plan, bound without the others
        if size + run < least and self.known_to_end(gang, call.seen_pods):
            self._broken("a gang begins with as many as its size", f"{gang.key} with {size} beside {run} of {least}")
        truth, nodes = self._world.truth, set[str]()
        for pod in living(map(self._world.pod, gang.pods)):
            other = self._world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], gang.key[0])
            if other is None or going(other) or plan_of(other)[0] != plan:
                continue
            made = truth.made.get(other["metadata"]["uid"])
            if made is not None and (
                made.replica == call.replica or made.version <= call.seen
            ):  # else it could not know
                nodes |= {node for node, _ in made.takes}
        # Of a node that offers nothing just now nobody knows where it stands.
        nodes &= self._world.truth.pools.keys()
        if not self._holds(gang, nodes):
            self._broken("a gang is where its author wants it", f"{gang.key} is on {sorted(nodes)}: {gang.wishes}")

    def _holds(self, gang: Gang, nodes: Iterable[str]) -> bool:
        """Return whether a gang may be on all of these nodes."""
        there = set(nodes)
        if gang.most_nodes and len(there) > gang.most_nodes:
            return False
        below = {self._leaf(node) for node in there}
        return not gang.near or (len(below) <= 1 and "" not in below)

    def _leaf(self, node: str) -> str:
        known = self._world.nodes.get(node)
        return "" if known is None else known.leaf

    def within(self, gang: Gang) -> Iterator[frozenset[str]]:
        """Give sets of nodes of which any may hold all of a gang."""
        every = sorted(self._world.nodes)
        if not gang.near and not gang.most_nodes:
            yield frozenset(every)
            return
        if gang.near and not all(map(self._leaf, every)):
            return  # then there may be no such level
        most = min(gang.most_nodes or len(every), len(every))
        below = sorted({self._leaf(node) for node in every}) if gang.near else [None]
        for leaf in below:
            inside = [node for node in every if leaf is None or self._leaf(node) == leaf]
            for some in itertools.combinations(inside, min(most, len(inside))):
                yield frozenset(some)

    def may_join(self, gang: Gang, node: str) -> bool:
        """Return whether a pod that comes to a gang which runs may be on a node, beside the others."""
        nodes = {node}
        for pod in living(map(self._world.pod, gang.pods)):
            claim = self._world.server.find(RESOURCE_CLAIMS, fit.claim_names(pod)[0], gang.key[0])
            made = None if claim is None else self._world.truth.made.get(claim["metadata"]["uid"])
            nodes |= set() if made is None else {other for other, _ in made.takes}
            nodes |= {pod["spec"]["nodeName"]} if pod["spec"].get("nodeName") else set()
        return self._holds(gang, nodes)


def _runs(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and bool(living([pod]))


def _ended_well(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Succeeded")
