"""The fleet of each tenant: which GPUs of the nodes it may have, by the partitions in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from dradriver.allocator import Fleet
from dradriver.api.policies.fields import Gpus
from dradriver.api.policies.partitions import OTHERS, Division, bounds, divide
from dradriver.api.policies.tenant_policies import Tenant
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.topology.machine import Machine

logger = logging.getLogger(__name__)


class View:
    """What one tenant may have, or all who have no partition.

    Attributes:
        whose: The tenant; ``OTHERS`` for all without a partition.
        fleet: The nodes that have GPUs for it, as if they had no others.
        dirty: Nodes of which it is not up to date.
        divided: Nodes of which it has some GPUs, and others do not belong to it.
        located: As of the whole fleet (``Inventory.located``).
    """

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.fleet = Fleet()
        self.dirty: set[str] = set()
        self.divided: set[str] = set()
        self.located: Mapping[str, Mapping[str, str]] | None = None
        self._has: dict[str, tuple[Pool, Machine, int]] = {}  # what each node of the fleet was put with

    def put(self, name: str, pool: Pool, machine: Machine, row: int) -> None:
        """Add a node to the tenant's fleet; what is free of it is set next."""
        known = self._has.get(name)
        if known is None or known[0] is not pool or known[1:] != (machine, row):
            self.fleet.set_node(name, machine, (), row=row)
            self._has[name] = pool, machine, row
            self.located = None

    def forget(self, name: str) -> None:
        """Remove a node from the tenant's fleet; an unknown one is no error."""
        self.divided.discard(name)
        if self._has.pop(name, None) is not None:
            self.fleet.remove(name)


class Views:
    """The views, made when somebody first looks for a place by them."""

    def __init__(self, nodes: NodeTable, partition_of: Callable[[str], str] | None = None) -> None:
        """Begin without partitions.

        Args:
            nodes: Has the labels of the nodes.
            partition_of: Returns the tenant whose partition binds a namespace, ``OTHERS`` for none; None if no
                namespace is bound.
        """
        self._nodes, self._partition_of = nodes, partition_of
        self._partitions: Mapping[str, tuple[Gpus, bool]] = {}
        self._exclusive = False
        self._views: dict[str, View] = {}
        self._divided: dict[str, tuple[Pool, Mapping[str, str], Division]] = {}
        self._told: set[tuple[str, str]] = set()

    def follow(self, tenants: Mapping[str, Tenant], nodes: Collection[str]) -> bool:
        """Apply the partitions of the policies in force to the tenants' fleets.

        Returns whether partitions are others now.
        """
        partitions = bounds(tenants)
        if partitions == self._partitions:
            return False
        self._partitions = partitions
        self._exclusive = any(exclusive for _, exclusive in partitions.values())
        self._views.clear()
        self._divided.clear()
        self._told.clear()
        if self._exclusive:
            self.of(OTHERS, nodes)  # the only one that may be of all nodes, so it is made bit by bit
        return True

    def whose(self, namespace: str) -> str | None:
        """Return which tenant's fleet a namespace uses, or ``OTHERS``; None if it may have every GPU.

        So may who is in no namespace, "": whoever looks at the cluster as it is.
        """
        if not self._partitions or not namespace:
            return None
        whose = OTHERS if self._partition_of is None else self._partition_of(namespace)
        if whose in self._partitions:
            return whose
        return OTHERS if self._exclusive else None

    def of(self, whose: str, nodes: Collection[str]) -> View:
        """Return a tenant's fleet; in one that is made now all these nodes must be set."""
        view = self._views.get(whose)
        if view is None:
            view = self._views[whose] = View(whose)
            view.dirty.update(nodes)
        return view

    def all(self) -> tuple[View, ...]:
        """Return the fleets of all tenants that have one."""
        return tuple(self._views.values())

    def mark(self, node: str, anew: bool) -> None:
        """Mark a node as changed in the tenants' fleets; ``anew``: its GPUs, or who may have them, may be others."""
        known = None if anew else self._divided.get(node)
        for view in self._views.values():
            if known is None or view.whose in known[2].open:
                view.dirty.add(node)

    def open_to(self, whose: str, name: str, pool: Pool) -> frozenset[int]:
        """Return the numbers of a node's GPUs that a tenant, or ``OTHERS``, may have."""
        return self._division(name, pool).open.get(whose, frozenset())

    def moved(self, name: str, pool: Pool | None) -> bool:
        """Return whether a node's GPUs belong to other tenants than before, by its labels now."""
        known = self._divided.get(name)
        return pool is not None and known is not None and self._division(name, pool).open != known[2].open

    def forget(self, name: str) -> None:
        """Remove a node from the tenants' fleets: it has no pool any more."""
        self._divided.pop(name, None)

    def anew(self, name: str, pool: Pool) -> Division:
        """Return which tenants may have which of a node's GPUs, computed again."""
        return divide(self._partitions, name, self._nodes.labels_of(name), pool.machine.gpus)

    def _division(self, name: str, pool: Pool) -> Division:
        labels = self._nodes.labels_of(name)
        known = self._divided.get(name)
        if known is not None and known[0] is pool and known[1] == labels:
            return known[2]
        division = self.anew(name, pool)
        self._divided[name] = pool, labels, division
        for first, second in sorted(division.clashes - self._told):
            self._told.add((first, second))
            logger.warning(
                "policies file: tenants %s and %s both have GPUs of node %s to themselves; %s has them, here and "
                "wherever else that is so: give their partitions different nodes, products or numbers",
                first, second, name, first,
            )  # fmt: skip
        return division
