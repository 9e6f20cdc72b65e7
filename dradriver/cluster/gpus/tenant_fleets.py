"""The fleet of each tenant: the GPUs that the policies file lets it use.

These GPUs are the tenant's *partition*. ``Fleets`` keeps the fleets up to date.

A *fleet* is the allocator's arrays of the nodes and their free GPUs.
"""

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
    """The fleet (arrays of GPUs) of one tenant, or of all namespaces without a partition.

    A partition is the GPUs that the policies file lets a tenant use.

    Attributes:
        whose: The tenant; ``OTHERS`` for all namespaces without a partition.
        fleet: The nodes that have GPUs for the tenant, as if they had no other GPUs.
        dirty: Nodes that are not up to date in the fleet.
        divided: Nodes of which the tenant may use only some GPUs.
        located: The node labels from which the network locations in the fleet were made, like ``Inventory.located``.
    """

    def __init__(self, whose: str) -> None:
        self.whose = whose
        self.fleet = Fleet()
        self.dirty: set[str] = set()
        self.divided: set[str] = set()
        self.located: Mapping[str, Mapping[str, str]] | None = None
        self._has: dict[str, tuple[Pool, Machine, int]] = {}  # what each node of the fleet was put with

    def put(self, name: str, pool: Pool, machine: Machine, row: int) -> None:
        """Add a node to the tenant's fleet. The caller sets its free GPUs next.

        ``name`` is the node's, ``pool`` its devices, ``row`` its index in all arrays of nodes.
        """
        known = self._has.get(name)
        if known is None or known[0] is not pool or known[1:] != (machine, row):
            self.fleet.set_node(name, machine, (), row=row)
            self._has[name] = pool, machine, row
            self.located = None

    def forget(self, name: str) -> None:
        """Remove the node ``name`` from the tenant's fleet, if the fleet contains it."""
        self.divided.discard(name)
        if self._has.pop(name, None) is not None:
            self.fleet.remove(name)


class Views:
    """The tenants' fleets (arrays of GPUs).

    Each is made when a pod of the tenant is first placed.
    """

    def __init__(self, nodes: NodeTable, partition_of: Callable[[str], str] | None = None) -> None:
        """Make an object without fleets.

        Args:
            nodes: The table of nodes, which has the nodes' labels.
            partition_of: Returns the tenant whose partition (the GPUs that the policies file lets it use) a namespace
                must use, or ``OTHERS`` if it has no partition. None if no namespace has one.
        """
        self._nodes, self._partition_of = nodes, partition_of
        self._partitions: Mapping[str, tuple[Gpus, bool]] = {}
        self._exclusive = False
        self._views: dict[str, View] = {}
        self._divided: dict[str, tuple[Pool, Mapping[str, str], Division]] = {}
        self._told: set[tuple[str, str]] = set()

    def follow(self, tenants: Mapping[str, Tenant], nodes: Collection[str]) -> bool:
        """Apply the partitions (the GPUs of single tenants) of the policies in force.

        Args:
            tenants: The tenants in the policies file, by name.
            nodes: The nodes from which a fleet is made, if it is made now.

        Returns:
            Whether the partitions changed.
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
        """Return the tenant whose GPUs a namespace uses; None if it may use every GPU.

        ``OTHERS`` stands for all namespaces whose tenant has no GPUs of its own by the policies file. The empty
        namespace, used for a view of the whole cluster, may use every GPU.
        """
        if not self._partitions or not namespace:
            return None
        whose = OTHERS if self._partition_of is None else self._partition_of(namespace)
        if whose in self._partitions:
            return whose
        return OTHERS if self._exclusive else None

    def of(self, whose: str, nodes: Collection[str]) -> View:
        """Return the fleet (arrays of GPUs) of the tenant ``whose``; make it if needed.

        A new fleet is empty, and marks each of ``nodes`` as not up to date.
        """
        view = self._views.get(whose)
        if view is None:
            view = self._views[whose] = View(whose)
            view.dirty.update(nodes)
        return view

    def all(self) -> tuple[View, ...]:
        """Return the fleets that have been made, one for each tenant."""
        return tuple(self._views.values())

    def mark(self, node: str, anew: bool) -> None:
        """Mark a node as not up to date in the tenants' fleets.

        Args:
            node: The node.
            anew: If True, the node's GPUs, or the tenants that may use them, may have changed: the node is marked in
                all fleets. If False, it is marked only for the tenants that can use its GPUs.
        """
        known = None if anew else self._divided.get(node)
        for view in self._views.values():
            if known is None or view.whose in known[2].open:
                view.dirty.add(node)

    def open_to(self, whose: str, name: str, pool: Pool) -> frozenset[int]:
        """Return the numbers of a node's GPUs that the tenant ``whose`` may use.

        ``OTHERS`` stands for all namespaces whose tenant has no GPUs of its own by the policies file. ``name`` is the
        node's, ``pool`` has its GPUs.
        """
        return self._division(name, pool).open.get(whose, frozenset())

    def moved(self, name: str, pool: Pool | None) -> bool:
        """Return whether a node's GPUs belong to other tenants since its labels changed.

        ``pool`` has the node's GPUs. The result is False if it is None, or if it was not known before which tenants may
        use the node's GPUs.
        """
        known = self._divided.get(name)
        return pool is not None and known is not None and self._division(name, pool).open != known[2].open

    def forget(self, name: str) -> None:
        """Forget which tenants may use a node's GPUs, because the node publishes none now."""
        self._divided.pop(name, None)

    def anew(self, name: str, pool: Pool) -> Division:
        """Compute again which tenants may use which of a node's GPUs, and return it.

        ``pool`` has the node's GPUs.
        """
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
                "Policies file: the exclusive partitions of tenants %s and %s both contain GPUs of node "
"%s. Tenant %s gets the GPUs that both contain, on all nodes. Give the two partitions "
"different nodes, products or numbers.",
                first, second, name, first,
            )  # fmt: skip
        return division
