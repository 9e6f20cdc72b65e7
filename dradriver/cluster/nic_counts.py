"""How many NICs nodes have for who asks for some: counted where he may go, and again only where something changed."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
import numpy as np

from dradriver.allocator.request import NEAR_REQUIRED
from dradriver.api import simple_cel
from dradriver.api.nics import NicAsk, NicRequest, Tolerated
from dradriver.api.simple_cel import Term
from dradriver.cluster.nic_devices import Nic
from dradriver.cluster.nic_ways import Ways, of_gpu, same
from dradriver.cluster.nodes.columns import Bools, Ints, grown
from dradriver.cluster.nodes.table import NodeTable

_MOST: Final = 1024  # wishes of which it is kept: 25 KB each with 5000 nodes
_MOST_SHORT: Final = 1024  # the same of which nodes were found short: 40 KB each

_Memo: TypeAlias = dict[tuple[object, ...], tuple[bool, ...]]
_Asked: TypeAlias = tuple[str, str, int, tuple[str, ...], tuple[Tolerated, ...], tuple[str, ...]]
_Wish: TypeAlias = tuple[bool, tuple[_Asked, ...], bool]


class Source(Protocol):
    """Where NICs are read from."""

    def untaken(self, node: str) -> Iterable[Nic]: ...  # noqa: D102

    def ways(self, node: str) -> Ways | None: ...  # noqa: D102

    def terms(self, request: NicRequest) -> tuple[Term, ...] | None: ...  # noqa: D102


class _Kind(msgspec.Struct, frozen=True):
    """NICs that are one to who asks.

    Attributes:
        driver: Whose they are.
        terms: What each must be.
        ties: Attributes that it must have in common with a GPU.
        tolerations: The taints that it may have.
        count: How many are wanted.
    """

    driver: str
    terms: tuple[Term, ...]
    ties: tuple[str, ...]
    tolerations: tuple[Tolerated, ...]
    count: int


class _Known:
    """What is known of one wish.

    Attributes:
        counts: How many NICs each node has, 0 where these are too few: (rows,).
        stale: Nodes that are to be counted again: (rows,).
        seen: Up to when what changed is in ``stale``.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(0, np.int32)
        self.stale: Bools = np.zeros(0, np.bool_)
        self.seen = 0


class Counts:
    """How many NICs nodes have, by what is asked for.

    Attributes:
        clock: Grows with every change.
        short: Nodes that were found to have too few beside the GPUs that are free there.
    """

    def __init__(self, nodes: NodeTable, source: Source) -> None:
        """Begin with nothing counted."""
        self.clock = 0
        self.short = Short(self)
        self._nodes, self._source = nodes, source
        self._changed_at: Ints = np.zeros(0, np.int64)
        self._known: OrderedDict[_Wish, _Known] = OrderedDict()

    def changed(self, node: str) -> None:
        """Take in that a node's NICs, who has them, its machine or what is free of it may be others."""
        self.clock += 1
        if (row := self._nodes.find(node)) is not None:
            self._changes()[row] = self.clock

    def forget(self) -> None:
        """Take in that anything may be otherwise."""
        self._known.clear()
        self.short.forget()

    def since(self, clocks: Ints) -> Bools:
        """Return the nodes of which something changed since these clocks: (rows,)."""
        found: Bools = self._changes() > clocks
        return found

    def of(self, ask: NicAsk, fit: Bools, *, every: bool = False) -> Ints:
        """Return how many free NICs nodes have that any of the requests may have; 0 where they are too few: (rows,).

        Where NICs must be near GPUs, or have something in common with them, those count that are so with any GPU of
        their node.

        Args:
            ask: What is asked for.
            fit: The nodes that are of interest; all others have 0.
            every: Whether the number counts; else it is counted until there are enough.
        """
        wish = _wish(ask, every)
        known = self._known.get(wish)
        if known is None:
            known = self._known[wish] = _Known()
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        self._known.move_to_end(wish)
        if (rows := self._nodes.rows) > len(known.stale):
            known.stale, known.counts = grown(known.stale, rows, True), grown(known.counts, rows)
        known.stale |= self._changes()[: len(known.stale)] > known.seen
        known.seen = self.clock
        due = np.flatnonzero(known.stale & fit)
        if len(due):
            kinds, memo = self._kinds(ask), _Memo()
            for row in due.tolist():
                known.counts[row] = self._count(self._nodes.name(row), ask, kinds, memo, every=every)
            known.stale[due] = False
        found: Ints = np.where(fit, known.counts, 0).astype(np.int64)
        return found

    def _changes(self) -> Ints:
        if (rows := self._nodes.rows) > len(self._changed_at):
            self._changed_at = grown(self._changed_at, rows)
        return self._changed_at

    def _kinds(self, ask: NicAsk) -> Sequence[_Kind]:
        """Return what is asked for, equal requests as one; nothing where one of them is for no NIC."""
        out: dict[tuple[str, tuple[Term, ...], tuple[str, ...], tuple[Tolerated, ...]], int] = {}
        for request in ask.requests:
            terms = self._source.terms(request)
            if terms is None:
                return ()
            key = request.driver, terms, _ties(ask, request), request.tolerations
            out[key] = out.get(key, 0) + request.count
        return [_Kind(*key, count) for key, count in out.items()]

    def _count(self, node: str, ask: NicAsk, kinds: Sequence[_Kind], memo: _Memo, *, every: bool) -> int:
        near, ties = ask.near == NEAR_REQUIRED, {tie for kind in kinds for tie in kind.ties}
        ways = self._source.ways(node) if near or ties else None
        if not kinds or (ways is None and (near or ties)):
            return 0
        values = {} if ways is None else {tie: [of_gpu(gpu, tie) for gpu in ways.machine.gpus] for tie in ties}
        having, total, most = [0] * len(kinds), 0, sys.maxsize if every else ask.count
        read = tuple({term.attribute for kind in kinds for term in kind.terms})
        for nic in self._source.untaken(node):
            if near and ways is not None and nic.given not in ways.near:
                continue
            own = _judged(nic, kinds, read, memo)
            if ties:
                own = tuple(is_one and _is_tied(nic, kind, values) for is_one, kind in zip(own, kinds, strict=True))
            if any(own):
                total += 1
                having = [number + is_one for number, is_one in zip(having, own, strict=True)]
                if total >= most and all(has >= kind.count for has, kind in zip(having, kinds, strict=True)):
                    break
        enough = total >= ask.count and all(has >= kind.count for has, kind in zip(having, kinds, strict=True))
        return total if enough else 0


class Short:
    """Nodes that have too few NICs for somebody beside the GPUs that are free there, until they change.

    That is found out by looking, at so many nodes at a time: whoever looks again goes on with those behind them.
    """

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._found: OrderedDict[Hashable, Ints] = OrderedDict()  # when each node was found to be short, by row; or -1

    def of(self, wish: Hashable, fit: Bools) -> Bools:
        """Return those of some nodes that are known to be short for a wish: (rows,)."""
        found = self._found.get(wish)
        if found is None:
            return np.zeros_like(fit)
        self._found.move_to_end(wish)
        short: Bools = fit & ~self._counts.since(self._long_enough(wish, found, len(fit)))
        return short

    def add(self, wish: Hashable, nodes: Bools) -> None:
        """Take in that these nodes were found to be short for a wish."""
        found = self._long_enough(wish, self._found.get(wish, np.zeros(0, np.int64)), len(nodes))
        found[nodes] = self._counts.clock
        if len(self._found) > _MOST_SHORT:
            self._found.popitem(last=False)

    def forget(self) -> None:
        """Take in that anything may be otherwise."""
        self._found.clear()

    def _long_enough(self, wish: Hashable, found: Ints, rows: int) -> Ints:
        if len(found) < rows or wish not in self._found:
            found = self._found[wish] = grown(found, rows, -1)
        return found


def _judged(nic: Nic, kinds: Sequence[_Kind], read: Sequence[str], memo: _Memo) -> tuple[bool, ...]:
    """Return of which kinds a NIC is by what is said of it: those of different nodes say the same where it is read."""
    driver = nic.given[0]
    said = [nic.attributes.get(name) for name in read]
    key = (driver, nic.taints, *said, *map(type, said))  # True is 1 to a dictionary, and not to the scheduler
    found = memo.get(key)
    if found is None:
        found = memo[key] = tuple(
            kind.driver == driver
            and nic.tolerated(kind.tolerations)
            and simple_cel.hold(kind.terms, driver, nic.attributes)
            for kind in kinds
        )
    return found


def _is_tied(nic: Nic, kind: _Kind, values: Mapping[str, Sequence[object]]) -> bool:
    return all(any(same(nic.attributes.get(tie), value) for value in values[tie]) for tie in kind.ties)


def _ties(ask: NicAsk, request: NicRequest) -> tuple[str, ...]:
    """Return the attributes that NICs of a request must have in common with GPUs."""
    own = {one.name for one in ask.requests}
    return tuple(
        sorted({one.attribute for one in ask.alike if request.name in one.requests and set(one.requests) - own})
    )


def _wish(ask: NicAsk, every: bool) -> _Wish:
    """Return what two wishes have in common for which nodes have the same: requests' names say nothing."""
    requests = sorted(
        (one.device_class, one.driver, one.count, one.selectors, one.tolerations, _ties(ask, one))
        for one in ask.requests
    )
    return ask.near == NEAR_REQUIRED, tuple(requests), every
