"""All nodes as arrays, one row each: which of those with GPUs a pod fits on, and where trying again may help."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np

from dradriver.api.base import node_maintenance
from dradriver.api.base.affinity import HOSTNAME
from dradriver.api.base.objects import Node, Taint
from dradriver.cluster.nodes.capacity import Capacity, Freed
from dradriver.cluster.nodes.columns import Bools, Floats, Ints, grown
from dradriver.cluster.nodes.pod_demands import Ask, Constraints, Where
from dradriver.cluster.nodes.pod_resources import Amounts, amounts
from dradriver.cluster.nodes.selector_classes import Classes
from dradriver.cluster.nodes.taints import Pattern

GONE: Final = "gone"  # its GPUs are published, and the API server has no such node
NOT_READY: Final = "not ready"
GOING: Final = "goes for maintenance before the pod would end"
_NOTHING: Final[Mapping[str, Amounts]] = MappingProxyType({})
_MIN_ROWS: Final = 64
_TAKEN, _FREE = 1, 2  # channels


class _Known(msgspec.Struct, frozen=True, gc=False):
    """What counts of a node, to tell a change from a heartbeat."""

    labels: Mapping[str, str]
    taints: list[Taint]
    allocatable: Mapping[str, str]
    cordoned: bool
    ready: bool
    goes_at: float


_UNKNOWN: Final = _Known({}, [], {}, cordoned=False, ready=False, goes_at=node_maintenance.STAYS)


class NodeTable:
    """Nodes by name and by row.

    A node has a row while the API server knows it or it offers GPUs; nobody else has that row in the meantime. Only
    nodes that offer GPUs are ever eligible.

    Attributes:
        clock: Grows with every event on a node with GPUs that can let a pod in that found no place before.
        freed: The clock of each row's last such event, 0 if there was none: shape (rows,), int64. It is another array
            after rows were added.
        generation: Counts the changes of nodes and of what is used of them.
        spot_labels: Labels that say that a node is a spot node, in addition to those of its provider.
    """

    def __init__(self) -> None:
        self.clock = self.generation = 0
        self.freed: Ints = np.zeros(0, np.int64)
        self.spot_labels: Mapping[str, str] = {}
        self._names: list[str | None] = []
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._known: dict[str, _Known] = {}
        self._offered: Bools = np.zeros(0, np.bool_)
        self._there: Bools = np.zeros(0, np.bool_)  # rows whose node the API server knows
        self._ready: Bools = np.zeros(0, np.bool_)
        self._goes_at: Floats = np.zeros(0, np.float64)  # seconds since the epoch; infinite for those that stay
        self._going: set[int] = set()  # rows of the others
        self._channels: dict[str, bool] = {}  # nodes with a channel of multi-node NVLink, and whether it is free
        self._channel: Ints = np.zeros(0, np.int64)  # the same by row: 0 where there is none, 1 taken, 2 free
        self._classes = Classes()
        self._capacity = Capacity()
        self._labels: Mapping[str, Mapping[str, str]] | None = None

    @property
    def rows(self) -> int:
        """Return the length of all arrays of the node table. Some rows have no node."""
        return len(self._names)

    def row(self, name: str) -> int:
        """Return a node's row in the table; KeyError if it has none."""
        return self._rows[name]

    def find(self, name: str) -> int | None:
        """Return a node's row in the table, None if it has none."""
        return self._rows.get(name)

    def named(self, names: Iterable[str]) -> Bools:
        """Return the nodes of these names, those that have a row: shape (rows,), the caller's own."""
        rows = np.zeros(self.rows, np.bool_)
        rows[[row for name in names if (row := self.find(name)) is not None]] = True
        return rows

    def name(self, row: int) -> str:
        """Return the name of the node in a row of the table; KeyError if there is none."""
        name = self._names[row]
        if name is None:
            raise KeyError(row)
        return name

    def hostname(self, name: str) -> str:
        """Return a node's ``kubernetes.io/hostname`` label, its name where it has none."""
        return self._known.get(name, _UNKNOWN).labels.get(HOSTNAME, name)

    def label(self, name: str, key: str) -> str | None:
        """Return a node's label; None where it has none, and where there is no such node."""
        return self._known.get(name, _UNKNOWN).labels.get(key)

    def labels_of(self, name: str) -> Mapping[str, str]:
        """Return a node's labels; none where there is no such node."""
        return self._known.get(name, _UNKNOWN).labels

    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of all nodes that the API server knows: the same mapping while they are the same."""
        if self._labels is None:
            self._labels = {name: known.labels for name, known in self._known.items()}
        return self._labels

    def left(self, resources: Sequence[str], freed: Mapping[str, Amounts] = _NOTHING) -> Ints:
        """Return what all nodes have left of some resources: shape (rows, resources), the caller's own.

        If a resource need not be checked on a node, the node has as much as there can be, as in ``eligible``.

        Args:
            resources: The resources.
            freed: By node, what pods take there that counts as free.
        """
        return self._capacity.columns(resources, self._by_row(freed))

    def labelled(self, key: str, values: Collection[str]) -> Bools:
        """Return the nodes that have a label with one of some values: shape (rows,), the caller's own."""
        return self._classes.labelled(key, values)

    def having(self, key: str) -> Bools:
        """Return the nodes that have a label, whatever it says: shape (rows,), the caller's own."""
        return self._classes.having(key)

    def selected(self, constraints: Constraints) -> Bools:
        """Return all nodes that a node selector and node affinity select: shape (rows,), the caller's own."""
        return self._classes.selected(constraints) & self._there

    def tolerated(self, tolerations: tuple[Pattern, ...]) -> Bools:
        """Return the nodes whose taints some tolerations cover, except a cordon: shape (rows,), the caller's own."""
        return self._classes.tolerated(tolerations)

    def reaching(self, where: Where) -> Bools:
        """Return the nodes that match one term of each entry: shape (rows,), the caller's own."""
        return self._classes.reaching(where)

    def channels(self, *, taken: bool = False) -> Bools:
        """Return the nodes with a free channel of multi-node NVLink, or with any: shape (rows,), the caller's own."""
        rows: Bools = self._channel >= (_TAKEN if taken else _FREE)
        return rows

    def set_channel(self, name: str, free: bool | None) -> None:
        """Set whether a node's channel of multi-node NVLink is free; None if it has none."""
        if self._channels.get(name) == free:
            return
        self.generation += 1
        if free is None:
            del self._channels[name]
        else:
            self._channels[name] = free
        if (row := self._rows.get(name)) is not None:
            self._channel[row] = self._channel_of(name)
        if free:
            self.helped(name)

    def _channel_of(self, name: str) -> int:
        free = self._channels.get(name)
        return 0 if free is None else _FREE if free else _TAKEN

    def values(self, key: str, rows: Bools) -> frozenset[str]:
        """Return the values that a label has on some of the nodes."""
        return self._classes.values(key, rows)

    def spot(self) -> Bools:
        """Return the nodes that their provider may take away at any time: shape (rows,), the caller's own."""
        further = ((key, (value,)) for key, value in self.spot_labels.items())
        masks = [self.labelled(key, values) for key, values in (*node_maintenance.SPOT_LABELS.items(), *further)]
        rows: Bools = np.logical_or.reduce(masks)
        return rows

    @property
    def claimable(self) -> Collection[str]:
        """Extended resources that a DeviceClass serves: not checked on nodes that do not list them at all."""
        return self._capacity.claimable

    @claimable.setter
    def claimable(self, resources: Collection[str]) -> None:
        self.generation += 1
        more = not self._capacity.claimable.issuperset(resources)
        self._capacity.claimable = frozenset(resources)
        if more:
            self.helped_on(self._offered)

    def set_node(self, name: str, node: Node | None) -> bool:
        """Insert, update or remove a node; return whether more pods may fit now."""
        self.generation += 1
        if node is None:
            self._remove(name)
            return False
        stored = self._known.get(name)
        current = _read(node)
        if stored == current:
            return False
        is_new = stored is None
        former = _UNKNOWN if stored is None else stored
        row = self._claim(name)
        self._known[name] = current
        self._there[row], self._ready[row] = True, current.ready

        # Only what may let pods fit counts as help: a label may match them, a blocking taint may be gone.
        may_help = is_new or (current.ready and not former.ready) or current.goes_at > former.goes_at
        self._set_going(row, current.goes_at)
        if is_new or current.allocatable != former.allocatable:
            may_help |= self._capacity.set(row, name, amounts(current.allocatable))
        if is_new or current.labels != former.labels:
            self._classes.set_labels(row, name, current.labels)
            self._labels = None  # made again on demand
            self._changed(row)
            may_help = True
        if (current.taints, current.cordoned) != (former.taints, former.cordoned):
            self._classes.set_taints(row, former.taints, current.taints, cordoned=current.cordoned)
            self._changed(row)
            may_help |= former.cordoned and not current.cordoned
            may_help |= any(taint.blocks and taint not in current.taints for taint in former.taints)
        return may_help and current.ready and self.helped(name)

    def takes_new(self, name: str) -> bool:
        """Return whether a node is ready, not closed to new pods, and does not go for maintenance."""
        known = self._known.get(name, _UNKNOWN)
        return known.ready and not known.cordoned and self._rows.get(name) not in self._going

    def offer(self, name: str, offers: bool) -> None:
        """Set whether a node has GPUs of ours."""
        if not offers and name not in self._rows:
            return
        row = self._claim(name)
        self.generation += 1
        if bool(self._offered[row]) != offers:
            self._offered[row] = offers
            self._classes.changed()
            self.helped(name)
        self._release(name)

    def helped(self, name: str) -> bool:
        """Note that something became free on a node. Returns whether that can help any pod."""
        row = self._rows.get(name)
        if row is None or not self._offered[row] or not self._there[row]:
            return False
        self._helped(row)
        return True

    def helped_on(self, rows: Bools) -> None:
        """Note that pods may fit now on some nodes, (rows,), on which they did not fit before."""
        helped = rows & self._offered & self._there
        if helped.any():
            self._helped(helped)

    def take(self, node: str, request: Mapping[str, int]) -> None:
        """Count the resources of a pod on a node, known or not."""
        self.generation += 1
        self._capacity.use(node, self._rows.get(node), request, 1)

    def give(self, node: str, request: Mapping[str, int]) -> bool:
        """Stop counting the resources of a pod on a node. Returns whether that can help another."""
        self.generation += 1
        self._capacity.use(node, self._rows.get(node), request, -1)
        return any(request.values()) and self.helped(node)

    def is_there(self, name: str) -> bool:
        """Return whether the API server knows a node of that name."""
        return name in self._known

    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes that the API server knows."""
        return tuple(self._known)

    def is_as(self, name: str, node: Node | None) -> bool:
        """Return whether the table has a node in this state; ``node`` is None for one that does not exist."""
        return self._known.get(name) == (None if node is None else _read(node))

    def used(self) -> Mapping[str, Amounts]:
        """Return what pods take from each node that they take anything from, by name."""
        return self._capacity.used

    def set_used(self, name: str, amounts: Amounts) -> None:
        """Set what all pods together take from a node."""
        self.give(name, dict(self._capacity.used.get(name, {})))
        self.take(name, amounts)

    def eligible(self, ask: Ask, freed: Mapping[str, Amounts] = _NOTHING) -> Bools:
        """Return the nodes with GPUs that a pod fits on now: shape (rows,), the caller's own.

        Args:
            ask: What the pod asks.
            freed: By node, what pods take there that counts as free, such as the share of a pod that is placed again.
        """
        return self._capacity.fitting(self.open(ask), ask.amounts, self._by_row(freed))

    def _by_row(self, freed: Mapping[str, Amounts]) -> Freed:
        return {row: (name, amounts) for name, amounts in freed.items() if (row := self._rows.get(name)) is not None}

    def open(self, ask: Ask) -> Bools:
        """Return the nodes with GPUs that a pod may run on, what is free aside: shape (rows,), the caller's own."""
        rows = self._classes.mask(ask.key) & self._offered & self._ready
        if self._going:
            rows &= self._stays(ask)
        return rows

    def _stays(self, ask: Ask) -> Bools:
        """Return the nodes that are there until a pod has ended that begins now: shape (rows,)."""
        until = time.time() + ask.lasts_s if ask.lasts_s else node_maintenance.STAYS
        stays: Bools = self._goes_at >= until
        return stays

    def gone_by(self, at: float) -> frozenset[str]:
        """Return the nodes that have gone for maintenance by a time, seconds since the epoch."""
        return frozenset(self.name(row) for row in self._going if self._goes_at[row] < at)

    def causes(
        self, ask: Ask, freed: Mapping[str, Amounts] = _NOTHING, *, only: Bools | None = None
    ) -> tuple[str, ...]:
        """Return why nodes with GPUs are left out, sorted: of each node the first cause. Empty if all are eligible.

        Args:
            ask: What the pod asks.
            freed: As in ``eligible``.
            only: Rows of the nodes that are looked at; None for all.
        """
        offered = self._offered if only is None else self._offered & only
        causes = [GONE] if (offered & ~self._there).any() else []
        if (offered & self._there & ~self._ready).any():
            causes.append(NOT_READY)
        rows = offered & self._ready
        if self._going and (rows & ~self._stays(ask)).any():
            causes.append(GOING)
            rows &= self._stays(ask)
        causes += self._classes.causes(ask.key, rows)
        lacking = self._capacity.lacking(rows & self._classes.mask(ask.key), ask.amounts, self._by_row(freed))
        return tuple(sorted([*causes, *(f"too little {resource}" for resource in lacking)]))

    def _helped(self, rows: int | Bools) -> None:
        self.clock += 1
        self.freed[rows] = self.clock

    def _remove(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is None:
            return
        row = self._rows[name]
        self._labels = None
        self._there[row] = self._ready[row] = False
        self._set_going(row, node_maintenance.STAYS)
        self._classes.clear(row, known.taints)  # what the row had to give is replaced with its next node
        self._release(name)

    def _set_going(self, row: int, goes_at: float) -> None:
        self._goes_at[row] = goes_at
        (self._going.discard if goes_at == node_maintenance.STAYS else self._going.add)(row)

    def _changed(self, row: int) -> None:
        # Masks of classes are kept until ``changed``. They are only asked about nodes that offer GPUs (``open``).
        if self._offered[row]:
            self._classes.changed()

    def _claim(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            if not self._free:
                self._grow(len(self._names) + max(_MIN_ROWS, len(self._names) // 8))
            row = self._rows[name] = self._free.pop()
            self._names[row] = name
            self._channel[row] = self._channel_of(name)
        return row

    def _release(self, name: str) -> None:
        row = self._rows[name]
        if not self._there[row] and not self._offered[row]:
            del self._rows[name]
            self._names[row] = None
            self.freed[row] = self._channel[row] = 0
            self._free.append(row)

    def _grow(self, rows: int) -> None:
        self._free.extend(range(rows - 1, len(self._names) - 1, -1))  # the lowest row first
        self._names.extend([None] * (rows - len(self._names)))
        self.freed = grown(self.freed, rows)
        self._offered, self._there, self._ready = (
            grown(flags, rows) for flags in (self._offered, self._there, self._ready)
        )
        self._goes_at = grown(self._goes_at, rows, np.inf)
        self._channel = grown(self._channel, rows)
        self._classes.grow(rows)
        self._capacity.grow(rows)


def _read(node: Node) -> _Known:
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    labels, taints = node.metadata.labels, node.spec.taints
    keys = node_maintenance.KEYS
    stays = keys.isdisjoint(node.metadata.annotations) and labels.keys().isdisjoint(keys)
    stays = stays and keys.isdisjoint([taint.key for taint in taints])
    goes_at = node_maintenance.STAYS if stays else node_maintenance.goes_at(node)
    return _Known(labels, taints, node.status.allocatable, node.spec.unschedulable, ready, goes_at)
