"""One node's NICs as somebody may have them: which are what each request asks for, and what they have in common."""

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

MOST_WORK: Final = 1 << 17  # in a whole search: NICs times requests, each time that they are gone through
MOST_TRIES: Final = 64  # on one node, beside the first
_TRIES: Final = 8  # that cost as much as to go through a node's NICs once
_FAR: Final = 4096  # what a step more counts beside how many other functions of its card are in use


class Tries:
    """How much more of a search is made: of nodes, what their NICs may have in common, and sets of their GPUs.

    The first node is gone through whatever it costs, so that whoever asks again comes further.

    Attributes:
        ended: Whether the search on a node ended before its end.
        starved: Nodes on which it ended, or did not begin, because of what others had cost.
    """

    def __init__(self, *, every_node: bool = False) -> None:
        """Begin with nothing tried; ``every_node`` has each node looked at, and what is tried beside that bounded."""
        self.ended = False
        self.starved: set[str] = set()
        self._every_node = every_node
        self._left, self._here, self._node, self._work = MOST_WORK, 0, "", 0
        self._nodes: dict[str, bool] = {}  # whether it was the first

    def may_begin(self, node: str) -> bool:
        """Return whether a node is looked at; one that was looked at before is looked at to its end."""
        if node in self._nodes:
            return True
        if self._left <= 0 and not self._every_node:
            self.ended = True
            self.starved.add(node)
            return False
        self._nodes[node] = not self._nodes
        return True

    def begin(self, node: str, work: int) -> None:
        """Begin with a node; ``work`` is what it costs to go through its NICs once."""
        self._node, self._work, self._here, self.ended = node, work, MOST_TRIES, False
        if not self._every_node:
            self._left -= work

    def more(self) -> bool:
        """Return whether one thing more is tried."""
        if self._here and (self._left > 0 or self._nodes[self._node]):
            self._here -= 1
            self._left -= self._work // _TRIES
            return True
        self.ended = True
        if self._here:
            self.starved.add(self._node)
        return False


class NodeNics:
    """A node's free NICs that any request may have, in the order of their addresses; what two drivers show is one.

    Attributes:
        machine: The node's.
        number: Its GPUs' positions, by uuid.
        addresses: The NICs'.
        fitting: The NICs that each request may have by what it asks for.
        work: What it costs to go through them once.
    """

    def __init__(self, picture: Picture, ask: NicAsk, node: str, besides: Key | None, taken: Collection[Place]) -> None:
        """Read them; ``besides`` is a claim whose NICs count as free, ``taken`` are some that do not."""
        pool, ways = picture.inventory.pool(node), picture.nics.ways(node)
        assert pool is not None, "GPUs were chosen there"
        assert ways is not None, "its machine is known"
        self.machine: Machine = pool.machine
        self.number = {uuid: at for at, uuid in enumerate(gpu.uuid for gpu in self.machine.gpus)}
        self._ask, self._most = ask, ways.most
        self._nics: list[dict[int, Nic]] = [{} for _ in ask.requests]
        judge = picture.nics.counts.judge(ask.requests)
        free = [nic for nic in picture.nics.free(node, besides) if (node, nic.address) not in taken]
        columns: dict[str, int] = {}
        parents: list[str] = []
        self._ways: list[Sequence[int]] = []
        for nic in free:
            fits = judge.of(nic)
            if True not in fits:
                continue
            own, column = ways.of[nic.given], columns.setdefault(nic.address, len(columns))
            if column == len(parents):
                self._ways.append(own)
                parents.append(nic.parent)
            else:
                self._ways[column] = tuple(map(min, self._ways[column], own))
                parents[column] = parents[column] or nic.parent
            for request, is_one in zip(self._nics, fits, strict=True):
                if is_one:
                    request[column] = nic
        self.addresses = list(columns)
        self._ranks = [0] * len(columns)
        if any(parents):
            free_ones = {nic.address for nic in free}
            others = {(nic.parent, nic.address) for nic in picture.nics.on(node) if nic.address not in free_ones}
            used = Counter(parent for parent, _ in others)
            for column, parent in enumerate(parents):
                if parent:
                    self._ranks[column] = min(used[parent], _FAR - 1)
                    used[parent] += 1
        self.fitting: Usable = [set(own) for own in self._nics]
        self.work = len(columns) * len(ask.requests)

    def value(self, request: int, column: int, attribute: str) -> object:
        """Return what a NIC says by an attribute to a request that may have it; None where it does not."""
        return self._nics[request][column].attributes.get(attribute)

    def costs(self, gpus: Sequence[int]) -> Costs:
        """Return what each NIC costs for each of some GPUs: (GPUs, NICs)."""
        steps = np.array([[ways[gpu] for ways in self._ways] for gpu in gpus], dtype=np.int64)
        out: Costs = steps.reshape(len(gpus), len(self._ways)) * _FAR + np.array(self._ranks, dtype=np.int64)
        if self._ask.near == NEAR_REQUIRED:
            out[steps.reshape(out.shape) > (-1 if self._most is None else self._most)] = NEVER
        return out

    def ways(
        self,
        alike: Sequence[Alike],
        usable: Usable,
        tries: Tries,
        least: Callable[[Usable], int],
        bound: Callable[[], int],
    ) -> Iterator[Usable]:
        """Yield for each way in which NICs can have in common what they must which of them each request may have.

        Args:
            alike: What they must have in common.
            usable: What each request may have but for that.
            tries: How many are tried.
            least: Says what such NICs cost at least: the least first.
            bound: Asked before each: one that costs as much is not looked at, nor those after it.
        """
        if not alike:
            yield usable
            return
        own = [(least(each), number, each) for number, each in enumerate(self._in_common(alike[0], usable))]
        for at, (cost, _, each) in enumerate(sorted(own, key=lambda one: one[:2])):
            if cost >= bound() or (at and not tries.more()):
                return
            yield from self.ways(alike[1:], each, tries, least, bound)

    def _in_common(self, one: Alike, usable: Usable) -> Iterator[Usable]:
        """Yield for each value of an attribute that is had by enough NICs which of them each request may have."""
        counts = {at: each.count for at, each in enumerate(self._ask.requests) if each.name in one.requests}
        values: dict[tuple[type, object], dict[int, set[int]]] = {}
        for at in counts:
            for column in usable[at]:
                if (value := self.value(at, column, one.attribute)) is not None:
                    values.setdefault((type(value), value), {}).setdefault(at, set()).add(column)
        for value in sorted(values, key=repr):
            own = values[value]
            each_has = all(len(own.get(at, ())) >= count for at, count in counts.items())
            if each_has and len(set().union(*own.values())) >= sum(counts.values()):
                yield [own.get(at, each) for at, each in enumerate(usable)]
