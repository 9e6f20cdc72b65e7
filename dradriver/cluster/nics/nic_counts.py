"""How many free NICs each node has for a request.

NICs are counted only on nodes where the pod may go, and again only on nodes whose NICs changed. ``Nics`` owns the
counts. The *request* of a pod consists of *NIC requests*, each for a number of NICs, and of *constraints*: attributes
whose value several devices must have in common. A *row* is the index of a node in all arrays of nodes.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api.vocabulary import simple_cel
from dradriver.api.vocabulary.nic_requests import NicAsk, NicRequest, Tolerated
from dradriver.api.vocabulary.simple_cel import Term
from dradriver.cluster.nics.nic_devices import Nic
from dradriver.cluster.nics.nic_distances import Ways, of_gpu, same
from dradriver.cluster.nodes.columns import Bools, Ints, grown
from dradriver.cluster.nodes.node_table import NodeTable

_MOST: Final = 1024  # wishes of which it is kept: 25 KB each with 5000 nodes
_MOST_SHORT: Final = 1024  # the same of which nodes were found short: 40 KB each

_MOST_READ: Final = 50_000  # NICs that one look counts: cards have dozens of functions; 10 us each
_MOST_JUDGES: Final = 64
_MOST_JUDGED: Final = 1 << 14  # NICs of which a judge keeps what it said: they say the same on many nodes
_MOST_ENDED: Final = 1024

_Of = TypeVar("_Of")
_What = TypeVar("_What")
_Alike: TypeAlias = tuple[tuple[str, int], ...]
_Asked: TypeAlias = tuple[str, str, int, tuple[str, ...], tuple[Tolerated, ...], tuple[str, ...], _Alike]
_Wish: TypeAlias = tuple[bool, tuple[_Asked, ...], bool]


class Source(Protocol):
    """Protocol: the object from which ``Counts`` reads the NICs of each node.

    ``Nics`` implements it.
    """

    def untaken(self, node: str) -> Iterable[Nic]: ...  # noqa: D102

    def many(self, node: str) -> int: ...  # noqa: D102

    def ways(self, node: str) -> Ways | None: ...  # noqa: D102

    def terms(self, request: NicRequest) -> tuple[Term, ...] | None: ...  # noqa: D102


class Judge:
    """Evaluates whether a NIC matches each of some requests for NICs.

    NICs with equal attributes share one result.
    """

    def __init__(self, requests: Sequence[tuple[str, tuple[Term, ...] | None, tuple[Tolerated, ...]]]) -> None:
        """Make an object that has evaluated no NICs yet.

        Args:
            requests: For each request its driver, the conditions on the NIC's attributes (None: no NIC matches), and
                the taints that the NIC may have.
        """
        self._requests = requests
        self._read = tuple({term.attribute for _, terms, _ in requests for term in terms or ()})
        # Answers of ``of`` by all that it reads of a NIC: driver, taints and attributes.
        self._memo: dict[tuple[object, ...], tuple[bool, ...]] = {}

    def of(self, nic: Nic) -> tuple[bool, ...]:
        """Return for each of the requests whether a NIC matches it."""
        driver = nic.given[0]
        said = [nic.attributes.get(name) for name in self._read]
        key = (driver, nic.taints, *said, *map(type, said))  # True is 1 to a dictionary, and not to the scheduler
        found = self._memo.get(key)
        if found is None:
            if len(self._memo) >= _MOST_JUDGED:
                self._memo.clear()
            found = self._memo[key] = tuple(
                terms is not None
                and own == driver
                and nic.tolerated(tolerations)
                and simple_cel.hold(terms, driver, nic.attributes)
                for own, terms, tolerations in self._requests
            )
        return found


class _Kind(msgspec.Struct, frozen=True):
    """NIC requests of a pod for which the same NICs are suitable. They are counted together.

    Attributes:
        driver: The driver of the NICs.
        terms: The conditions on the attributes of each NIC.
        tolerations: The taints that a NIC may have.
        ties: Attributes whose value a NIC must have in common with a GPU.
        alike: Attributes whose value a NIC must have in common with other NICs. Each comes with the position of its
            constraint in the pod's request.
        count: The number of NICs requested.
    """

    driver: str
    terms: tuple[Term, ...]
    tolerations: tuple[Tolerated, ...]
    ties: tuple[str, ...]
    alike: _Alike
    count: int


class _Known:
    """The counts of NICs for one request, as arrays by row (a node's index).

    Attributes:
        counts: The number of suitable free NICs of each node; 0 if the node has too few for the request.
        stale: Which nodes must be counted again.
        seen: The value of ``Counts.clock`` when ``stale`` was last updated.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int32)
        self.stale: Bools = np.zeros(0, np.bool_)
        self.seen = 0


class Counts:
    """The number of free NICs that each node has, by request.

    Attributes:
        clock: A counter that grows with every change of a node's NICs.
        short: Nodes where a search found too few NICs for the GPUs that are free there. The next search skips them.
    """

    def __init__(self, nodes: NodeTable, source: Source) -> None:
        """Make an object that has counted no NICs yet.

        ``source`` has the NICs of each node.
        """
        self.clock = 0
        self.short = Short(self)
        self._nodes, self._source = nodes, source
        self._changed_at: Ints = np.zeros(0, np.int64)  # the clock when each node last changed: (rows,)
        self._random = random.Random(0)  # noqa: S311  # chance, no secret
        self._known: dict[_Wish, _Known] = {}  # the counts of each wish
        self._judges: dict[tuple[NicRequest, ...], Judge] = {}  # the judge of each group of requests
        self._ended: dict[NicAsk, dict[str, int]] = {}  # by request: nodes not searched completely, and the clock then

    def changed(self, node: str) -> None:
        """Mark a node for a new count, because its NICs, their claims, its machine or its free GPUs changed."""
        self.clock += 1
        if (row := self._nodes.find(node)) is not None:
            self._changes()[row] = self.clock

    def forget(self) -> None:
        """Forget all NIC counts, because any of them may be wrong."""
        self._known.clear()
        self._judges.clear()
        self._ended.clear()
        self.short.forget()

    def judge(self, requests: tuple[NicRequest, ...]) -> Judge:
        """Return the object that evaluates whether a NIC matches each of these requests."""
        found = self._judges.get(requests)
        if found is None:
            found = self._judges[requests] = Judge(
                [(one.driver, self._source.terms(one), one.tolerations) for one in requests]
            )
            _bound(self._judges, _MOST_JUDGES, self._random)
        return found

    def looked(self, ask: NicAsk, node: str, *, ended: bool) -> None:
        """Record whether the NIC search on a node for a request was complete.

        ``has_ended`` reads the record, for the message of a waiting pod.

        Args:
            ask: The request.
            node: The node.
            ended: Whether the search ended early: it reached its limit of work before it had found anything.
        """
        nodes = self._ended.get(ask)
        if nodes is not None:
            nodes.pop(node, None)
        if ended:
            self._ended.setdefault(ask, {})[node] = self.clock
            _bound(self._ended, _MOST_ENDED, self._random)

    def has_ended(self, ask: NicAsk) -> bool:
        """Return whether the NIC search for a request ended early on some node.

        This node may still have enough NICs, and the message of a waiting pod says so. Nodes whose NICs have changed
        since do not count. ``ask`` has the NIC requests of a pod.
        """
        rows = {node: self._nodes.find(node) for node in self._ended.get(ask, ())}
        changes = self._changes()
        return any(row is not None and changes[row] <= self._ended[ask][node] for node, row in rows.items())

    def since(self, clocks: Ints) -> Bools:
        """Return the nodes whose NICs changed after a past value of ``clock``: (rows,).

        A caller that remembers a result for a node with the value of ``clock`` computes the result again if this is
        True. ``clocks`` has the past value for each node.
        """
        found: Bools = self._changes() > clocks
        return found

    def of(self, ask: NicAsk, fit: Bools, *, counts_all: bool = False) -> Ints:
        """Return how many free NICs each node has for a pod's NIC requests; 0 if too few.

        The shape is (rows,); a row is the index of a node. The request can require that NICs are near GPUs, or have an
        attribute in common with GPUs. Then a NIC counts if this is true for any GPU of its node.

        Args:
            ask: The NIC requests of a pod.
            fit: The nodes to count on, one bool for each row. The result is 0 for all other nodes.
            counts_all: Whether to count all suitable NICs. If False, counting on a node stops when there are enough.
        """
        key = _wish(ask, counts_all)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known()
            _bound(self._known, _MOST, self._random)

        # Counts stay valid until the NICs of their node change.
        rows = self._nodes.rows
        if rows > len(known.stale):
            known.stale, known.counts = grown(known.stale, rows, True), grown(known.counts, rows)
        known.stale |= self._changes()[: len(known.stale)] > known.seen
        known.seen = self.clock
        due = np.flatnonzero(known.stale & fit)
        if len(due):
            self._count_rows(ask, due, known, counts_all=counts_all)
        counts: Ints = np.where(fit, known.counts, 0).astype(np.int64)
        return counts

    def _count_rows(self, ask: NicAsk, due: Ints, known: _Known, *, counts_all: bool) -> None:
        """Count NICs on some nodes, at least on one, until ``_MOST_READ`` NICs have been read.

        Without this limit, one request could stop the controller for long. The nodes that are not counted get 0 for
        now, and a later call counts them. The first of them is recorded with ``looked``, so that the pod's message says
        that the search was not complete.

        Args:
            ask: The NIC requests of a pod.
            due: The nodes, as indices in all arrays of nodes (rows).
            known: The object that the counts are written to.
            counts_all: Whether to count all suitable NICs. If False, counting on a node stops when there are enough.
        """
        kinds = self._kinds(ask)
        judge = Judge([(kind.driver, kind.terms, kind.tolerations) for kind in kinds])
        nics_left = _MOST_READ
        for number, row in enumerate(due.tolist()):
            node = self._nodes.name(row)
            nics_left -= self._source.many(node)
            if nics_left < 0 and number > 0:
                known.counts[due[number:]] = 0
                self.looked(ask, node, ended=True)
                return
            self.looked(ask, node, ended=False)
            known.counts[row] = self._count(node, ask, kinds, judge, counts_all=counts_all)
            known.stale[row] = False

    def _changes(self) -> Ints:
        if (rows := self._nodes.rows) > len(self._changed_at):
            self._changed_at = grown(self._changed_at, rows)
        return self._changed_at

    def _kinds(self, ask: NicAsk) -> Sequence[_Kind]:
        """Return the NIC requests of a pod, with equal ones merged.

        ``ask`` has the requests. Empty if one of the requests can match no NIC, so that no node has enough.
        """
        out: dict[tuple[str, tuple[Term, ...], tuple[Tolerated, ...], tuple[str, ...], _Alike], int] = {}
        for request in ask.requests:
            terms = self._source.terms(request)
            if terms is None:
                return ()
            key = request.driver, terms, request.tolerations, _ties(ask, request), _alike(ask, request)
            out[key] = out.get(key, 0) + request.count
        return [_Kind(*key, count) for key, count in out.items()]

    def _count(self, node: str, ask: NicAsk, kinds: Sequence[_Kind], judge: Judge, *, counts_all: bool) -> int:
        near, ties = ask.near == NEAR_REQUIRED, {tie for kind in kinds for tie in kind.ties}
        ways = self._source.ways(node) if near or ties else None
        if not kinds or (ways is None and (near or ties)):
            return 0
        values = {} if ways is None else {tie: [of_gpu(gpu, tie) for gpu in ways.machine.gpus] for tie in ties}
        having, addresses, most = [0] * len(kinds), set[str](), sys.maxsize if counts_all else ask.count
        alike = {one: _InCommon(one, kinds) for kind in kinds for one in kind.alike}
        for nic in self._source.untaken(node):
            if near and ways is not None and nic.given not in ways.near:
                continue
            own = judge.of(nic)
            if ties:
                own = tuple(is_one and _is_tied(nic, kind, values) for is_one, kind in zip(own, kinds, strict=True))
            if any(own):
                addresses.add(nic.address)  # two drivers may show one NIC
                having = [number + is_one for number, is_one in zip(having, own, strict=True)]
                for each in alike.values():
                    each.add(nic, own)
                if len(addresses) >= most and self._enough(having, kinds, alike):
                    break
        return len(addresses) if len(addresses) >= ask.count and self._enough(having, kinds, alike) else 0

    @staticmethod
    def _enough(having: Sequence[int], kinds: Sequence[_Kind], alike: Mapping[tuple[str, int], _InCommon]) -> bool:
        each_has = all(has >= kind.count for has, kind in zip(having, kinds, strict=True))
        return each_has and all(one.enough for one in alike.values())


class _InCommon:
    """Counts a node's NICs by their value of an attribute that they must share.

    Attributes:
        enough: Whether as many NICs as requested have the same value.
    """

    def __init__(self, one: tuple[str, int], kinds: Sequence[_Kind]) -> None:
        self.enough = False
        self._attribute, self._counts = one[0], {at: kind.count for at, kind in enumerate(kinds) if one in kind.alike}
        self._all = sum(self._counts.values())
        # By the attribute's value: the addresses of NICs that have it, and how many of each kind do.
        self._having: dict[tuple[type, object], tuple[set[str], Counter[int]]] = {}

    def add(self, nic: Nic, own: Sequence[bool]) -> None:
        """Count a NIC under its value of the attribute.

        Args:
            nic: The NIC.
            own: For each kind of request, whether the NIC matches it.
        """
        value = nic.attributes.get(self._attribute)
        which = [at for at in self._counts if own[at]]
        if self.enough or value is None or not which:
            return
        addresses, having = self._having.setdefault((type(value), value), (set(), Counter()))
        addresses.add(nic.address)
        having.update(which)
        self.enough = len(addresses) >= self._all and all(having[at] >= count for at, count in self._counts.items())


class Short:
    """Nodes where a search found too few NICs for a request, given the GPUs that are free there.

    A search looks at a limited number of nodes. So the next search for the request skips the nodes recorded here, and
    comes to others. A node stays recorded until it changes.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._random = random.Random(0)  # noqa: S311  # chance, no secret
        self._found: dict[Hashable, Ints] = {}  # when each node was found to be short, by row; or -1

    def of(self, wish: Hashable, fit: Bools) -> Bools:
        """Return the nodes in ``fit`` that are known to have too few NICs.

        ``wish`` is the key of the request for NICs. ``fit`` and the result have one bool for each row (a node's index).
        """
        found = self._found.get(wish)
        if found is None:
            return np.zeros_like(fit)
        short: Bools = fit & ~self._counts.since(self._long_enough(wish, found, len(fit)))
        return short

    def add(self, wish: Hashable, nodes: Bools) -> None:
        """Record that these nodes have too few NICs for a request.

        ``wish`` is the key of the request. ``nodes`` has one bool for each row (a node's index).
        """
        found = self._long_enough(wish, self._found.get(wish, np.zeros(0, np.int64)), len(nodes))
        found[nodes] = self._counts.clock
        _bound(self._found, _MOST_SHORT, self._random)

    def forget_of(self, wish: Hashable) -> None:
        """Forget which nodes had too few NICs for the request with key ``wish``."""
        self._found.pop(wish, None)

    def forget(self) -> None:
        """Forget which nodes had too few NICs for any request."""
        self._found.clear()

    def _long_enough(self, wish: Hashable, found: Ints, rows: int) -> Ints:
        if len(found) < rows or wish not in self._found:
            found = self._found[wish] = grown(found, rows, -1)
        return found


def _bound(known: dict[_Of, _What], most: int, own: random.Random) -> None:
    """Remove a random entry from the table ``known`` if it has more than ``most`` entries.

    ``own`` makes the random choice. The newest entry is never removed. The least recently used entry would be a bad
    choice: waiting pods ask in turn, so each entry would be removed just before its next use.
    """
    if len(known) > most:
        del known[own.choice([*known][:-1])]


def _is_tied(nic: Nic, kind: _Kind, values: Mapping[str, Sequence[object]]) -> bool:
    return all(any(same(nic.attributes.get(tie), value) for value in values[tie]) for tie in kind.ties)


def _ties(ask: NicAsk, request: NicRequest) -> tuple[str, ...]:
    """Return the attributes that NICs of a request must have in common with GPUs.

    ``ask`` has all NIC requests of the pod, with constraints.
    """
    own = {one.name for one in ask.requests}
    return tuple(
        sorted({one.attribute for one in ask.alike if request.name in one.requests and set(one.requests) - own})
    )


def _alike(ask: NicAsk, request: NicRequest) -> tuple[tuple[str, int], ...]:
    """Return the attributes that NICs must have in common only with other NICs.

    ``request`` is the request for these NICs. Attributes that they must have in common with GPUs, too, are left out
    (``_ties``). Each attribute comes with the position of its constraint in ``ask.alike``, the constraints of the pod's
    request.
    """
    own = {one.name for one in ask.requests}
    every = enumerate(ask.alike)
    return tuple((one.attribute, at) for at, one in every if request.name in one.requests and set(one.requests) <= own)


def _wish(ask: NicAsk, every: bool) -> _Wish:
    """Return the key of a pod's NIC requests in the table of counts.

    Requests that differ only in the names of their parts have the same key, so they share their counts. ``ask`` has the
    requests. ``every`` says whether all suitable NICs are counted, or only as many as requested.
    """
    requests = sorted(
        (one.device_class, one.driver, one.count, one.selectors, one.tolerations, _ties(ask, one), _alike(ask, one))
        for one in ask.requests
    )
    return ask.near == NEAR_REQUIRED, tuple(requests), every
