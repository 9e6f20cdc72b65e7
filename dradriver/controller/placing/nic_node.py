"""The NICs of one node for one claim: which NIC fits which request, what it costs, and how long to search.

A *constraint* of a claim (``matchAttribute``) requires that several devices have the same value of an attribute, such
as a PCIe root. The *cost* of a NIC for a GPU grows with their distance. ``nic_choice`` assigns the NICs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from dradriver.allocator.choice.nearest_nics import NEVER, Costs
from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.claims.pins import Key
from dradriver.api.vocabulary.nic_requests import Alike, NicAsk
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.nics.nic_devices import Nic
from dradriver.cluster.nics.nic_inventory import Place
from dradriver.topology.machine import Machine

Usable: TypeAlias = list[set[int]]
"""The NICs that each request may have, by their numbers."""

MOST_WORK: Final = 1 << 17  # of a whole search: NICs times requests, each time that all are gone through
MOST_TRIES: Final = 64  # on one node, after the first
_TRIES: Final = 8  # this many tries cost as much as to go through a node's NICs once
_FAR: Final = 4096  # cost of one step of distance; more than any number of functions of a card that are in use


class NicSearchEffort:
    """The remaining effort of a search for NICs on several nodes.

    The effort limits how many nodes are searched. On each node it also limits the search: how many values for the
    constraints, and how many sets of GPUs, are tried. The first node is always searched, with at most ``MOST_TRIES``
    further tries, so that each new search makes progress.

    Attributes:
        ended: Whether the search of the current node stopped before it was complete.
        cut_short: Nodes that were not searched completely, because the search of other nodes had used up the effort.
    """

    def __init__(self, *, skips_nodes: bool = True) -> None:
        """Begin with the full effort left.

        Args:
            skips_nodes: Whether nodes are skipped once the effort is used up. If False, each node is searched, with a
                limited number of tries.
        """
        self.ended = False
        self.cut_short: set[str] = set()
        self._skips_nodes = skips_nodes
        self._work_left = MOST_WORK  # effort left for all nodes together
        self._is_first: dict[str, bool] = {}  # by node: whether it was the first node of the search
        # The current node, how many tries it has left, and what it costs to go through its NICs once.
        self._node, self._node_tries_left, self._node_work = "", 0, 0

    def may_begin(self, node: str) -> bool:
        """Return whether a node may be searched.

        A node whose search has begun may always be searched again.
        """
        if node in self._is_first:
            return True
        if self._work_left <= 0 and self._skips_nodes:
            self.ended = True
            self.cut_short.add(node)
            return False
        self._is_first[node] = not self._is_first
        return True

    def begin(self, node: str, work: int) -> None:
        """Begin to search a node; ``work`` is the cost of one pass over its NICs."""
        self._node, self._node_work, self._node_tries_left, self.ended = node, work, MOST_TRIES, False
        if self._skips_nodes:
            self._work_left -= work

    def more(self) -> bool:
        """Count one more try on the current node; return whether it is allowed."""
        if self._node_tries_left and (self._work_left > 0 or self._is_first[self._node]):
            self._node_tries_left -= 1
            self._work_left -= self._node_work // _TRIES
            return True
        self.ended = True
        if self._node_tries_left:
            self.cut_short.add(self._node)
        return False


class NodeNics:
    """The free NICs of a node that some request of a claim may have.

    A NIC is named by a number: its column in the array of costs.

    Attributes:
        machine: The node's hardware: its GPUs and their links.
        number: The position of each GPU in ``machine``, by uuid.
        addresses: The PCI addresses of the NICs, by their numbers.
        fitting: For each request, the NICs that match its driver, selectors and tolerations.
        work: The cost of one pass over the NICs: their number times the number of requests.
    """

    def __init__(self, picture: Picture, ask: NicAsk, node: str, besides: Key | None, taken: Collection[Place]) -> None:
        """Read the NICs of a node.

        Args:
            picture: The cluster cache.
            ask: The NICs that the claim requests.
            node: The node.
            besides: A claim whose NICs count as free; None for none.
            taken: NICs that count as taken.
        """
        pool, distances = picture.inventory.pool(node), picture.nics.ways(node)
        assert pool is not None, "GPUs were chosen there"
        assert distances is not None, "its machine is known"
        self.machine: Machine = pool.machine
        self.number = {gpu.uuid: position for position, gpu in enumerate(self.machine.gpus)}
        self._ask, self._longest_near = ask, distances.most  # the longest distance that is near; None for none
        # By request: the NICs that it may have, by column.
        self._nics: list[dict[int, Nic]] = [{} for _ in ask.requests]
        self._distances: list[Sequence[int]] = []
        judge = picture.nics.counts.judge(ask.requests)  # says for each request whether a NIC fits it
        free = [nic for nic in picture.nics.free(node, besides) if (node, nic.address) not in taken]

        # Two drivers can publish the same NIC, so a column is a PCI address. It gets the shorter of their distances.
        columns: dict[str, int] = {}
        parents: list[str] = []
        for nic in free:
            fits_requests = judge.of(nic)
            if True not in fits_requests:
                continue
            # ``distance``: how far this NIC is from each GPU, by the GPU's position. ``parent``: see ``_ranks``.
            distance, column = distances.of[nic.given], columns.setdefault(nic.address, len(columns))
            if column == len(parents):
                self._distances.append(distance)
                parents.append(nic.parent)
            else:
                self._distances[column] = tuple(map(min, self._distances[column], distance))
                parents[column] = parents[column] or nic.parent
            for request_nics, fits in zip(self._nics, fits_requests, strict=True):
                if fits:
                    request_nics[column] = nic

        self.addresses = list(columns)
        self._ranks = _ranks(picture, node, parents, {nic.address for nic in free})
        self.fitting: Usable = [set(request_nics) for request_nics in self._nics]
        self.work = len(columns) * len(ask.requests)

    def value(self, request: int, column: int, attribute: str) -> object:
        """Return the value of a NIC's attribute; None if the NIC lacks it.

        Args:
            request: The index of a request that may have the NIC.
            column: The NIC.
            attribute: The name of the attribute.
        """
        return self._nics[request][column].attributes.get(attribute)

    def costs(self, gpus: Sequence[int]) -> Costs:
        """Return the cost of each NIC for each of these GPUs: (GPUs, NICs).

        The cost is ``NEVER`` if near NICs are required and the NIC is not near. Otherwise a nearer NIC is cheaper. At
        the same distance, a NIC of a card with fewer used virtual functions is cheaper.
        """
        distances = np.array([[distance[gpu] for distance in self._distances] for gpu in gpus], dtype=np.int64)
        distances = distances.reshape(len(gpus), len(self._distances))  # also if one of both is empty
        costs: Costs = distances * _FAR + np.array(self._ranks, dtype=np.int64)
        if self._ask.near == NEAR_REQUIRED:
            longest_near = -1 if self._longest_near is None else self._longest_near
            costs[distances > longest_near] = NEVER
        return costs

    def alternatives(
        self,
        constraints: Sequence[Alike],
        usable: Usable,
        effort: NicSearchEffort,
        least_cost: Callable[[Usable], int],
        cost_to_beat: Callable[[], int],
    ) -> Iterator[Usable]:
        """Yield each request's usable NICs, for each way to satisfy the constraints.

        A constraint is satisfied by each value that enough NICs have in common, such as a PCIe root. So there is one
        way for each combination of values. The cheapest values come first.

        Args:
            constraints: Attributes that the NICs of some requests must have in common.
            usable: For each request, the NICs that it may have apart from the constraints.
            effort: Limits how many ways are tried.
            least_cost: Returns a lower bound of the cost of a way.
            cost_to_beat: Returns the cost of the best assignment so far. Ways that cost as much or more are skipped.
        """
        if not constraints:
            yield usable
            return
        constraint, *other_constraints = constraints
        by_cost = sorted(self._satisfying(constraint, usable), key=least_cost)
        for number, narrowed in enumerate(by_cost):
            # The first alternative is always tried, so that some search is complete whatever the effort left.
            if least_cost(narrowed) >= cost_to_beat() or (number > 0 and not effort.more()):
                return
            yield from self.alternatives(other_constraints, narrowed, effort, least_cost, cost_to_beat)

    def _satisfying(self, constraint: Alike, usable: Usable) -> Iterator[Usable]:
        """Yield the NICs of each request, once for each value that satisfies one constraint.

        ``usable`` has, for each request, the NICs to select from. A value satisfies the constraint if enough NICs have
        it as the constraint's attribute.
        """
        counts = {
            index: request.count
            for index, request in enumerate(self._ask.requests)
            if request.name in constraint.requests
        }
        # NICs by value and request. The type is part of the key because 1, 1.0 and True are equal in Python.
        nics_by_value: dict[tuple[type, object], dict[int, set[int]]] = {}
        for index in counts:
            for nic in usable[index]:
                value = self.value(index, nic, constraint.attribute)
                if value is not None:
                    nics_by_value.setdefault((type(value), value), {}).setdefault(index, set()).add(nic)

        for key in sorted(nics_by_value, key=repr):
            nics = nics_by_value[key]
            has_enough_each = all(len(nics.get(index, ())) >= count for index, count in counts.items())
            if has_enough_each and len(set().union(*nics.values())) >= sum(counts.values()):
                yield [nics.get(index, unconstrained) for index, unconstrained in enumerate(usable)]


def _ranks(picture: Picture, node: str, parents: Sequence[str], free_addresses: Collection[str]) -> list[int]:
    """Return a number for each NIC by which load is spread over network cards.

    NICs with lower numbers are preferred. For a NIC that is a virtual function, the functions of the same card that are
    in use are counted. The card's free functions earlier in the list count, too. For any other NIC the number is 0.

    Args:
        picture: The cluster cache.
        node: The node of the NICs.
        parents: For each NIC that is a virtual function, its physical function; empty for other NICs.
        free_addresses: PCI addresses of the free NICs: all others of the node are in use.
    """
    ranks = [0] * len(parents)
    if not any(parents):
        return ranks
    # A set, because two drivers can publish the same NIC.
    in_use = {(nic.parent, nic.address) for nic in picture.nics.on(node) if nic.address not in free_addresses}
    used_functions = Counter(parent for parent, _ in in_use)
    for column, parent in enumerate(parents):
        if parent:
            ranks[column] = min(used_functions[parent], _FAR - 1)
            used_functions[parent] += 1
    return ranks
