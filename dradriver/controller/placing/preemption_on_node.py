"""Chooses which workloads to preempt for a single pod: the cheapest ones of one node.

A *piece* is the part of a running workload on one node. ``preemption_plan`` calls this module. The search takes these
steps:

1. Each node gets a lower bound of the cost (``preemption_cost.least``).
2. The nodes are searched by simulations, lowest bound first, until a bound exceeds the best cost.
3. The placement also names other nodes with workloads that could end. If the chosen victims cannot be ended, a later
   preemption uses another of these nodes.

A *victim* is a workload that preemption ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from dradriver.cluster.records.placement import Placement
from dradriver.controller.placing.decide import usable_hostnames
from dradriver.controller.placing.preemption_cost import FEW, Cost, Piece, choices, cost_of, least
from dradriver.controller.placing.preemption_search import Found, PreemptionNode, Search, spared
from dradriver.queue.pending import Member

MOST_TRIES: Final = 128  # simulations for one pod
MOST_OF_NODE: Final = 24  # of them on one node
# Nodes that a pod is kept to once its gate is gone, which cannot be changed later. If a webhook keeps the pods of the
# first ones from ending, it needs the others. They slow its binding down (``decide.MOST_NODES``); few pods preempt.
MOST_KEPT_TO: Final = 64


class _Option(NamedTuple):
    """Workloads of a node to end, and the place that becomes free.

    The smaller of two options is the better one.
    """

    cost: Cost
    score: float  # of the place, negated
    node: str
    pieces: Sequence[Piece]
    place: Placement


def on_one_node(search: Search) -> Found | None:
    """Return the cheapest place for a single pod by preemption; None if there is none.

    ``search`` has the pod, and simulates that workloads end.
    """
    # ``lacks`` is how much the node has too little of GPUs and each resource. ``least`` returns a lower bound of the
    # cost of freeing that; None if all workloads of the node together do not have it.
    bounds = [
        (bound, node.name, node)
        for node in search.candidates()
        if (bound := least(node.pieces, tuple(node.lacks.values()))) is not None
    ]
    heapq.heapify(bounds)
    best: _Option | None = None
    other_nodes: list[str] = []
    remaining_tries = MOST_TRIES
    while bounds and remaining_tries > 0:
        bound, name, node = heapq.heappop(bounds)
        if best is not None and bound > best.cost:
            # No node from here on can be cheaper. The pod may also go to them; they are not searched.
            other_nodes += [name, *(other for _, other, _ in heapq.nsmallest(MOST_KEPT_TO, bounds))]
            break
        node_search = _NodeSearch(search, node, min(remaining_tries, MOST_OF_NODE))
        option = node_search.cheapest()
        remaining_tries -= node_search.tries
        if option is None:
            continue
        if best is None:
            best = option
        elif option[:3] < best[:3]:  # by cost, score and the name of the node
            other_nodes.append(best.node)
            best = option
        else:
            other_nodes.append(name)
    if best is None:
        return None

    (member,) = search.members
    hostnames = usable_hostnames(search.picture, member.wish, [best.node, *other_nodes], MOST_KEPT_TO)
    place = msgspec.structs.replace(best.place, hostnames=hostnames)
    victims = tuple(search.victims(best.pieces))
    return Found({member: place}, victims, tuple(search.ending.get(best.node, ())))


class _NodeSearch:
    """Searches one node for the cheapest workloads to end. ``tries`` counts its simulations.

    There are at most ``most`` simulations.
    """

    def __init__(self, search: Search, node: PreemptionNode, most: int) -> None:
        self._search, self._node, self._most = search, node, most
        self._snapshot = search.snapshot.among(search.picture.nodes.named([node.name]), is_few=True)
        self._ending = search.ending.get(node.name, ())
        self.tries = 0

    def cheapest(self) -> _Option | None:
        """Return the cheapest option of the node; None if there is none.

        Sets of workloads are simulated in the order of their cost. If there are too many sets, the simulation begins
        with the end of all workloads, and then spares them one by one.
        """
        pieces = self._node.pieces
        if len(pieces) > FEW:
            return self._all_but_spared()
        best: _Option | None = None
        for chosen in choices(pieces, tuple(self._node.lacks.values())):
            if best is not None and cost_of(chosen) > best.cost:
                break
            if self.tries >= self._most:
                return self._all_but_spared() if best is None else best
            # After the first failure: if even all of them are not enough, no set is.
            if self.tries == 1 and best is None and self._simulate(pieces) is None:
                return None
            option = self._option(chosen, self._simulate(chosen))
            if option is not None and (best is None or option.score < best.score):
                best = option
        return best

    def _all_but_spared(self) -> _Option | None:
        """Return an option in which all workloads end except those that can be spared.

        The most expensive workload is spared first. None if even all workloads together free too little.
        """
        pieces = sorted(self._node.pieces, key=lambda piece: (-piece.priority, -piece.lost_s, piece.key))
        return self._option(*spared(pieces, self._simulate(pieces), pieces, self._simulate))

    def _simulate(self, pieces: Collection[Piece]) -> dict[Member, Placement] | None:
        """Return the pod's place after these workloads have ended; None if there is none.

        If ``pieces`` is empty, the result is None: the caller knows that the pod has no place without preemption.
        """
        if not pieces:
            return None
        self.tries += 1
        if self._search.is_too_many(pieces, self._ending):
            return None
        victims = self._search.victims(pieces)
        ended = [pod for victim in victims for pod in victim.pods if pod.node == self._node.name]
        return self._search.places(self._snapshot, [*ended, *self._ending])

    def _option(self, pieces: Sequence[Piece], places: dict[Member, Placement] | None) -> _Option | None:
        if places is None:
            return None
        (place,) = places.values()
        score = float(getattr(place.choice, "score", 0))
        return _Option(cost_of(pieces), -score, self._node.name, pieces, place)
