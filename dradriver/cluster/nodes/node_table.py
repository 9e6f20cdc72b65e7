"""All nodes as arrays, to find the nodes with GPUs on which a pod fits.

Each node has one row. The table also says when a waiting pod should be tried again.

A *row* is the index of a node in all arrays.
"""

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
from dradriver.cluster.nodes.selector_classes import CORDONED, Classes
from dradriver.cluster.nodes.taints import Pattern

GONE: Final = "gone"  # its GPUs are published, and the API server has no such node
NOT_READY: Final = "not ready"
GOING: Final = "goes for maintenance before the pod would end"
_NOTHING: Final[Mapping[str, Amounts]] = MappingProxyType({})
_MIN_ROWS: Final = 64
_TAKEN, _FREE = 1, 2  # channels


class _Known(msgspec.Struct, frozen=True, gc=False):
    """The fields of a node that matter to the node table.

    If an update of the node leaves these fields equal, it is ignored. An example is a heartbeat of the kubelet.
    """

    labels: Mapping[str, str]
    taints: list[Taint]
    allocatable: Mapping[str, str]
    cordoned: bool
    ready: bool
    goes_at: float


_UNKNOWN: Final = _Known({}, [], {}, cordoned=False, ready=False, goes_at=node_maintenance.STAYS)


class NodeTable:
    """The nodes by name and by row.

    A node has its own row while the API server knows it or it offers GPUs. Only nodes that offer GPUs are ever
    eligible.

    Attributes:
        clock: A counter. It grows when something changes on a node with GPUs so that a waiting pod may fit there.
        freed: For each row the value of ``clock`` at its last such change, 0 if there was none: shape (rows,), int64.
            Adding rows replaces the array.
        generation: Counts the changes of nodes and of the resources used on them.
        spot_labels: Labels that mark a node as a spot node, in addition to the providers' own labels.
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
        """Return the row of the node ``name``: its index in all arrays.

        Raises:
            KeyError: The node has no row.
        """
        return self._rows[name]

    def find(self, name: str) -> int | None:
        """Return a node's row (its index in all arrays), None if it has none.

        ``name`` is the node's.
        """
        return self._rows.get(name)

    def named(self, names: Iterable[str]) -> Bools:
        """Return the nodes with these names, as one bool for each row.

        A row is the index of a node in all arrays. The array is new.
        """
        rows = np.zeros(self.rows, np.bool_)
        rows[[row for name in names if (row := self.find(name)) is not None]] = True
        return rows

    def name(self, row: int) -> str:
        """Return the name of the node in a row (an index in all arrays).

        Raises:
            KeyError: The row has no node.
        """
        name = self._names[row]
        if name is None:
            raise KeyError(row)
        return name

    def hostname(self, name: str) -> str:
        """Return a node's ``kubernetes.io/hostname`` label; without it the node's name."""
        return self._known.get(name, _UNKNOWN).labels.get(HOSTNAME, name)

    def label(self, name: str, key: str) -> str | None:
        """Return the value of a node's label; None if it does not exist.

        ``name`` is the node's, ``key`` the label's. If there is no such node, the result is None, too.
        """
        return self._known.get(name, _UNKNOWN).labels.get(key)

    def labels_of(self, name: str) -> Mapping[str, str]:
        """Return a node's labels; empty if the node does not exist."""
        return self._known.get(name, _UNKNOWN).labels

    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of all nodes that the API server knows; the same object until a label changes."""
        if self._labels is None:
            self._labels = {name: known.labels for name, known in self._known.items()}
        return self._labels

    def left(self, resources: Sequence[str], freed: Mapping[str, Amounts] = _NOTHING) -> Ints:
        """Return the free amounts of some resources, such as CPU, on all nodes.

        The shape is (rows, resources), a new array; a row is the index of a node. CPU is in thousandths of a core, all
        other resources in whole units. A resource that is not checked on a node (``claimable``) counts as free there in
        the largest possible amount.

        Args:
            resources: The resources.
            freed: For each node, amounts in use that count as free.
        """
        return self._capacity.columns(resources, self._by_row(freed))

    def labelled(self, key: str, values: Collection[str]) -> Bools:
        """Return the nodes that have a label with one of some values.

        ``key`` is the label's key. The result is a new array with one bool for each row (a node's index).
        """
        return self._classes.labelled(key, values)

    def having(self, key: str) -> Bools:
        """Return the nodes that have a label with this key, whatever its value.

        The result is a new array with one bool for each row (a node's index).
        """
        return self._classes.having(key)

    def selected(self, constraints: Constraints) -> Bools:
        """Return the nodes that a node selector and node affinity select.

        Both are in ``constraints``, whose other fields are ignored. The result is a new array with one bool for each
        row (a node's index).
        """
        return self._classes.selected(constraints) & self._there

    def tolerated(self, tolerations: tuple[Pattern, ...]) -> Bools:
        """Return the nodes whose taints some tolerations cover.

        A cordon is not checked. The result is a new array with one bool for each row (a node's index).
        """
        return self._classes.tolerated(tolerations)

    def reaching(self, where: Where) -> Bools:
        """Return the nodes that can reach all of some volumes.

        ``where`` has the terms (conditions on nodes) of each volume. A node can reach a volume if it matches at least
        one of the volume's terms. The result is a new array with one bool for each row (a node's index).
        """
        return self._classes.reaching(where)

    def channels(self, *, taken: bool = False) -> Bools:
        """Return the nodes whose channel of multi-node NVLink is free.

        The result is a new array with one bool for each row (a node's index). A job gets the channel of each of its
        nodes to use NVLink between nodes.

        Args:
            taken: Whether to include nodes whose channel is in use.
        """
        rows: Bools = self._channel >= (_TAKEN if taken else _FREE)
        return rows

    def set_channel(self, name: str, free: bool | None) -> None:
        """Set whether a node's channel for NVLink between nodes is free.

        ``free`` is None if the node has no channel. ``name`` is the node's.
        """
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
        """Return the values that a label has on some of the nodes.

        ``key`` is the label's key. ``rows`` are the nodes, one bool for each row (a node's index).
        """
        return self._classes.values(key, rows)

    def spot(self) -> Bools:
        """Return the spot nodes, which their provider can take away at any time.

        The result is a new array with one bool for each row (a node's index).
        """
        further = ((key, (value,)) for key, value in self.spot_labels.items())
        masks = [self.labelled(key, values) for key, values in (*node_maintenance.SPOT_LABELS.items(), *further)]
        rows: Bools = np.logical_or.reduce(masks)
        return rows

    @property
    def claimable(self) -> Collection[str]:
        """Return the extended resources that pods get through a DeviceClass.

        A node that does not list such a resource is not checked for it: kube-scheduler leaves the check to DRA.
        """
        return self._capacity.claimable

    @claimable.setter
    def claimable(self, resources: Collection[str]) -> None:
        self.generation += 1
        more = not self._capacity.claimable.issuperset(resources)
        self._capacity.claimable = frozenset(resources)
        if more:
            self.helped_on(self._offered)

    def set_node(self, name: str, node: Node | None) -> bool:
        """Add or update the node with this name; remove it if ``node`` is None.

        Returns:
            Whether more pods may fit now.
        """
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
        """Return whether a node is ready, not cordoned, and not scheduled for maintenance."""
        known = self._known.get(name, _UNKNOWN)
        return known.ready and not known.cordoned and self._rows.get(name) not in self._going

    def offer(self, name: str, offers: bool) -> None:
        """Set whether a node offers GPUs of this driver."""
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
        """Record that something became free on a node, so that waiting pods are tried there.

        Returns:
            Whether that can help any pod: the node exists and offers GPUs.
        """
        row = self._rows.get(name)
        if row is None or not self._offered[row] or not self._there[row]:
            return False
        self._helped(row)
        return True

    def helped_on(self, rows: Bools) -> None:
        """Record that more pods may fit on some nodes, so that waiting pods are tried there.

        ``rows`` are the nodes, one bool for each row (a node's index).
        """
        helped = rows & self._offered & self._there
        if helped.any():
            self._helped(helped)

    def take(self, node: str, request: Mapping[str, int]) -> None:
        """Count the resources of one more pod (``request``) on a node. The node need not exist."""
        self.generation += 1
        self._capacity.use(node, self._rows.get(node), request, 1)

    def give(self, node: str, request: Mapping[str, int]) -> bool:
        """Stop counting a pod's resources on a node. ``request`` has these resources.

        Returns:
            Whether another pod may fit on the node now.
        """
        self.generation += 1
        self._capacity.use(node, self._rows.get(node), request, -1)
        return any(request.values()) and self.helped(node)

    def is_there(self, name: str) -> bool:
        """Return whether the API server knows a node with this name."""
        return name in self._known

    def names(self) -> tuple[str, ...]:
        """Return the names of all nodes that the API server knows."""
        return tuple(self._known)

    def is_as(self, name: str, node: Node | None) -> bool:
        """Return whether the table has the present state of a node.

        ``node`` is the state that the API server has; None if the node does not exist. The audit of the cluster cache
        compares them.
        """
        return self._known.get(name) == (None if node is None else _read(node))

    def used(self) -> Mapping[str, Amounts]:
        """Return the resources that pods use of each node, by node name."""
        return self._capacity.used

    def set_used(self, name: str, amounts: Amounts) -> None:
        """Set the resources that all pods together use of a node."""
        self.give(name, dict(self._capacity.used.get(name, {})))
        self.take(name, amounts)

    def eligible(self, ask: Ask, freed: Mapping[str, Amounts] = _NOTHING) -> Bools:
        """Return the nodes with GPUs on which a pod fits now.

        The result is a new array with one bool for each row (a node's index).

        Args:
            ask: The requirements of the pod.
            freed: For each node, amounts in use that count as free, for example of a pod that is placed again.
        """
        return self._capacity.fitting(self.open(ask), ask.amounts, self._by_row(freed))

    def _by_row(self, freed: Mapping[str, Amounts]) -> Freed:
        return {row: (name, amounts) for name, amounts in freed.items() if (row := self._rows.get(name)) is not None}

    def open(self, ask: Ask) -> Bools:
        """Return the nodes with GPUs on which a pod may run, ignoring free resources.

        ``ask`` has the pod's requirements. The result is a new array with one bool for each row (a node's index).
        """
        rows = self._classes.mask(ask.key) & self._offered & self._ready
        if self._going:
            rows &= self._stays(ask)
        return rows

    def _stays(self, ask: Ask) -> Bools:
        """Return the nodes that have no maintenance while a pod runs that starts now.

        ``ask`` says how long the pod runs at most. The result has one bool for each row (a node's index).
        """
        until = time.time() + ask.lasts_s if ask.lasts_s else node_maintenance.STAYS
        stays: Bools = self._goes_at >= until
        return stays

    def gone_by(self, at: float) -> frozenset[str]:
        """Return the names of the nodes whose maintenance begins before ``at``, seconds since the epoch."""
        return frozenset(self.name(row) for row in self._going if self._goes_at[row] < at)

    def causes(
        self, ask: Ask, freed: Mapping[str, Amounts] = _NOTHING, *, only: Bools | None = None
    ) -> tuple[str, ...]:
        """Return why nodes with GPUs are not eligible: for each node the first cause, sorted.

        The result is empty if all are eligible.

        Args:
            ask: The requirements of the pod.
            freed: For each node, amounts in use that count as free.
            only: The nodes to look at, one bool for each row (a node's index); None for all.
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


def why_closed(node: Node) -> str:
    """Return in words why a node accepts no new pods, regardless of tolerations; empty if it accepts them."""
    known = _read(node)
    causes = {
        CORDONED: known.cordoned,
        NOT_READY: not known.ready,
        "goes for maintenance": known.goes_at != node_maintenance.STAYS,
    }
    return ", ".join(cause for cause, is_so in causes.items() if is_so)


def _read(node: Node) -> _Known:
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    labels, taints = node.metadata.labels, node.spec.taints
    keys = node_maintenance.KEYS
    stays = keys.isdisjoint(node.metadata.annotations) and labels.keys().isdisjoint(keys)
    stays = stays and keys.isdisjoint([taint.key for taint in taints])
    goes_at = node_maintenance.STAYS if stays else node_maintenance.goes_at(node)
    return _Known(labels, taints, node.status.allocatable, node.spec.unschedulable, ready, goes_at)
