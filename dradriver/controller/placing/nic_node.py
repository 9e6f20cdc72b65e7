"""The NICs of one node for one claim: which NIC fits which request, what it costs, and how long to search.

``nic_choice`` assigns them.
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
    """How much more effort a search for NICs may make.

    It bounds three things: nodes, values that NICs may have in common, and sets of their GPUs. The first node is always
    searched completely, whatever it costs, so that each new search makes progress.

    Attributes:
        ended: Whether the search of the current node ended before it was complete.
        cut_short: Nodes that were not searched completely because of the effort that other nodes had cost.
    """

    def __init__(self, *, skips_nodes: bool = True) -> None:
        """Begin with the full effort left.

        ``skips_nodes``: Whether nodes are skipped once other nodes have cost all the effort. If not, only the tries on
        each node are bounded.
        """
        self.ended = False
        self.cut_short: set[str] = set()
        self._skips_nodes = skips_nodes
        self._work_left = MOST_WORK  # effort left for all nodes together
        self._is_first: dict[str, bool] = {}  # by node: whether it was the first node of the search
        # The current node, how many tries it has left, and what it costs to go through its NICs once.
        self._node, self._node_tries_left, self._node_work = "", 0, 0

    def may_begin(self, node: str) -> bool:
        """Return whether a node may be searched; a node that was begun may always be searched again."""
        if node in self._is_first:
            return True
        if self._work_left <= 0 and self._skips_nodes:
            self.ended = True
            self.cut_short.add(node)
            return False
        self._is_first[node] = not self._is_first
        return True

    def begin(self, node: str, work: int) -> None:
        """Begin to search a node; ``work`` is what it costs to go through its NICs once."""
        self._node, self._node_work, self._node_tries_left, self.ended = node, work, MOST_TRIES, False
        if self._skips_nodes:
            self._work_left -= work

    def more(self) -> bool:
        """Return whether one more alternative may be tried on the current node, and count it."""
        if self._node_tries_left and (self._work_left > 0 or self._is_first[self._node]):
            self._node_tries_left -= 1
            self._work_left -= self._node_work // _TRIES
            return True
        self.ended = True
        if self._node_tries_left:
            self.cut_short.add(self._node)
        return False


class NodeNics:
    """A node's free NICs that at least one request may have. A NIC is a number: its column in ``costs``.

    Attributes:
        machine: The node's machine.
        number: Positions of its GPUs by uuid.
        addresses: PCI addresses of the NICs, by their numbers.
        fitting: The NICs that match each request's driver, selectors and tolerations.
        work: What it costs to go through the NICs once.
    """

    def __init__(self, picture: Picture, ask: NicAsk, node: str, besides: Key | None, taken: Collection[Place]) -> None:
        """Read the NICs of a node.

        Args:
            picture: The cluster cache.
            ask: The NICs that the claim requests.
            node: The node.
            besides: A claim whose NICs count as free.
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
        """Return the attribute of a NIC that a request may have; None if the NIC does not have the attribute."""
        return self._nics[request][column].attributes.get(attribute)

    def costs(self, gpus: Sequence[int]) -> Costs:
        """Return what each NIC costs for each of these GPUs: (GPUs, NICs); ``NEVER`` if a required NIC is not near.

        The distance decides. Of NICs at the same distance, those of the less used network card are cheaper.
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
        """Yield, for each way to satisfy constraints among NICs, the NICs of each request.

        A constraint is satisfied by each value that enough NICs have in common, for example each PCIe root. So there is
        one alternative for each combination of such values. The cheapest values come first.

        Args:
            constraints: Attributes that NICs of some requests must have in common.
            usable: The NICs that each request may have apart from the constraints.
            effort: Bounds how many alternatives are tried.
            least_cost: Returns a lower bound of the cost of an alternative.
            cost_to_beat: Returns the cost from which on an alternative is of no use. It is called before each one.
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
        """Yield the usable NICs once for each value of the constraint's attribute that enough NICs have."""
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
    """Return for each NIC how many functions of its network card are used before it, to spread load over cards.

    Args:
        picture: The cluster cache.
        node: The node of the NICs.
        parents: The physical function of each NIC that is a virtual function; empty for other NICs.
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
