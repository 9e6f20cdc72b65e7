"""The fleets that the allocator searches: all GPUs, one tenant's GPUs, and copies in which some claims' GPUs are free.

A *fleet* is the allocator's arrays of nodes and their free GPUs. It is *up to date* if it shows all known changes of
GPUs and claims. A *partition* is the GPUs that the policies file gives to one tenant.

A *row* is the index of a node in all arrays of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set

from dradriver.allocator import Fleet
from dradriver.api.claims.pins import Device, Key
from dradriver.api.policies.partitions import OTHERS
from dradriver.api.policies.policy_sections import Policies
from dradriver.cluster.gpus import node_locations
from dradriver.cluster.gpus.inventory import Inventory
from dradriver.cluster.gpus.kueue_topologies import KueueTopologies, KueueTopology
from dradriver.cluster.gpus.remaining import Remaining
from dradriver.cluster.gpus.tenant_fleets import View, Views
from dradriver.cluster.nodes.columns import Bools
from dradriver.cluster.nodes.node_table import NodeTable
from dradriver.kube.reflector import Change


class Fleets:
    """The fleet (the allocator's arrays of GPUs) that each namespace may use.

    Attributes:
        views: The fleet of each tenant: only the GPUs that the policies file lets it use (its partition).
        topologies: The network levels of Kueue's Topologies, used if the driver's own levels are not configured.
    """

    def __init__(
        self, inventory: Inventory, nodes: NodeTable, partition_of: Callable[[str], str] | None = None
    ) -> None:
        """Make the fleets. ``follow`` sets the partitions later, and ``set_levels`` the network's levels.

        A partition has the GPUs of one tenant. ``partition_of`` returns the tenant whose partition a namespace must
        use, see ``Views``.
        """
        self.views = Views(nodes, partition_of)
        self.topologies = KueueTopologies()
        self._inventory, self._nodes = inventory, nodes
        self._levels: Sequence[str] = ()
        self._gbps_of: Mapping[str, float] = {}
        inventory.marked.add(self.views.mark)

    # Who may have what.

    def follow(self, policies: Policies) -> None:
        """Apply the policies in force: which tenants have GPUs (a partition) of their own.

        If the partitions changed, waiting pods are tried again.
        """
        self._inventory.follow(policies)
        if self.views.follow(policies.tenants, self._inventory.pools()):
            for name in self._inventory.pools():
                self._inventory.marked(name, True)
            self._help_all()

    def relabelled(self, name: str) -> None:
        """Update the tenants' fleets after a node's labels changed.

        A tenant's partition (the GPUs that it may use) can select nodes by label.
        """
        self._inventory.set_exclusive(name)
        if self.views.moved(name, self._inventory.pool(name)):
            self._inventory.marked(name, True)
            self._nodes.helped(name)

    def of(self, namespace: str) -> Fleet:
        """Return the fleet (arrays of GPUs) that a namespace's workloads can use, up to date."""
        view = self._view(namespace)
        return self._inventory.fleet if view is None else view.fleet

    def bound(self, namespace: str, rows: Bools) -> str:
        """Return a sentence that says why a namespace cannot use all GPUs of some nodes.

        It is empty if the namespace can use all of them.

        Args:
            namespace: The namespace.
            rows: The nodes, one bool for each row (the index of a node).
        """
        whose, view = self.views.whose(namespace), self._view(namespace)
        if whose is None or view is None:
            return ""
        of_all, of_view = (_count(fleet, rows) for fleet in (self._inventory.fleet, view.fleet))
        if of_all == of_view and not (rows & self._nodes.named(view.divided)).any():
            return ""
        if whose == OTHERS:
            return "GPUs in the exclusive partition of another tenant are left out"
        return f"Only GPUs in the partition of tenant {whose} can be used"

    def open_to(self, namespace: str, node: str) -> frozenset[int] | None:
        """Return the numbers of the GPUs of a node that a namespace may use.

        The policies file says which these are. None if the namespace may use all of them.
        """
        whose, pool = self.views.whose(namespace), self._inventory.pool(node)
        return None if whose is None or pool is None else self.views.open_to(whose, node, pool)

    def catch_up(self, late: Callable[[], bool]) -> bool:
        """Bring all fleets up to date, node by node, until ``late`` returns True.

        ``late`` says that the caller has no more time.

        Returns:
            Whether nodes remain that are not up to date.
        """
        return self._inventory.catch_up(late) or any(self._bring(view, late) for view in self.views.all())

    def _view(self, namespace: str) -> View | None:
        whose = self.views.whose(namespace)
        if whose is None:
            return None
        view = self.views.of(whose, self._inventory.pools())
        self._inventory.catch_up(_never)
        self._bring(view, _never)
        return view

    def _bring(self, view: View, late: Callable[[], bool]) -> bool:
        """Bring one tenant's fleet up to date, node by node, until ``late`` returns True.

        ``view`` has the tenant's fleet. ``late`` says that the caller has no more time. The fleet of the whole cluster
        must be up to date before.

        Returns:
            Whether nodes remain that are not up to date.
        """
        if not view.dirty:  # a set that was large once takes long to look through, even if it is empty
            return False
        for name in sorted(view.dirty):
            view.dirty.discard(name)
            pool = self._inventory.pool_of(name)
            if pool is None or pool.row is None:
                view.forget(name)
                self.views.forget(name)
            elif not (numbers := self.views.open_to(view.whose, name, pool)):
                view.forget(name)
            else:
                view.put(name, pool, self._inventory.machine(pool), pool.row)
                (view.divided.add if len(numbers) < len(pool.devices) else view.divided.discard)(name)
                self._inventory.set_left(view.fleet, name, self._inventory.open(name, pool).among(numbers))
            if late():
                break
        return bool(view.dirty)

    def is_right(self, name: str) -> bool:
        """Return whether every fleet counts a node's free GPUs correctly.

        The fleets are compared with the allocations of claims. The audit of the cluster cache asks this.
        """
        inventory = self._inventory
        pool = inventory.pool_of(name)
        open_to = {} if pool is None else self.views.anew(name, pool).open

        def seen(view: View) -> frozenset[int]:
            return view.fleet.free(name) if name in view.fleet.nodes else frozenset()

        def is_so(view: View) -> bool:
            if name in view.dirty:
                return True
            numbers = open_to.get(view.whose)
            if pool is None or numbers is None:
                return not seen(view)
            left = inventory.open(name, pool).among(numbers)
            return seen(view) == set(left.free) - left.offer.parts_only

        return inventory.is_counted_right(name) and all(map(is_so, self.views.all()))

    # What might be.

    def without(
        self,
        *claims: Key,
        namespace: str,
        whose: Collection[str] = (),
        are_own: bool = True,
        fleet: Fleet | None = None,
        known: dict[tuple[str, frozenset[Key], bool], Remaining] | None = None,
    ) -> Fleet:
        """Return a namespace's fleet as it would be if these claims were gone; read only.

        Args:
            claims: The claims.
            namespace: The namespace.
            whose: The waiting workloads whose reserved GPUs count as free. GPUs that are reserved for other workloads
                do not count as free.
            are_own: Whether the claims belong to the pods that are to be placed. Then these pods may have the GPUs of
                the claims even if the GPUs are now reserved for other workloads.
            fleet: The fleet to start from, which is not changed; None for the namespace's own.
            known: A cache of what remains of nodes. The caller keeps it while the cluster cache does not change.
        """
        # The copy below keeps the network locations that its origin has, so these must be set first.
        self.locate(self._nodes.labels(), namespace)
        inventory = self._inventory

        # 1. The nodes that differ, each with the claims that are gone there. The namespace's own fleet does not offer
        #    reserved GPUs at all, so it also differs on nodes with GPUs that are reserved for ``whose``.
        gone_claims: dict[str, set[Key]] = {}
        if fleet is None and whose:
            gone_claims = {node: set() for node in inventory.reserved.nodes(whose)}
        for claim in claims:
            for node, _ in inventory.holds.of(claim):  # the claim's devices, as node and device name
                gone_claims.setdefault(node, set()).add(claim)

        # 2. A copy of the fleet that differs on these nodes. It shares the data of all other nodes.
        fleet = self.of(namespace) if fleet is None else fleet
        nodes = {node for node in gone_claims if node in fleet.nodes}
        if not nodes:
            return fleet
        fleet = fleet.copied(nodes)
        for name in nodes:
            key = name, frozenset(gone_claims[name]), are_own
            remaining = None if known is None else known.get(key)
            if remaining is None:
                remaining = self._left(name, key[1], namespace=namespace, whose=whose, are_own=are_own)
                if known is not None:
                    known[key] = remaining
            inventory.set_left(fleet, name, remaining)  # replaces in the copy what is free on the node
        return fleet

    def _left(self, name: str, claims: Set[Key], *, namespace: str, whose: Collection[str], are_own: bool) -> Remaining:
        inventory, pool = self._inventory, self._inventory.pool(name)
        assert pool is not None, "the fleet has it"
        left = inventory.open(name, pool, claims, whose=whose, are_own=are_own)
        mine = self.open_to(namespace, name)
        return left if mine is None else left.among(mine)

    def alone_with(self, claims: Set[Key], devices: Collection[Device]) -> Fleet:
        """Return a copy of the fleet in which one node offers only some GPUs.

        The controller searches this copy to see which of these GPUs a pod would get. All other nodes are unchanged. The
        caller must not change the copy or pass it on.

        Args:
            claims: The claims that count as gone.
            devices: The GPUs that the node still offers, all of one node.
        """
        fleet, inventory = self._inventory.fleet, self._inventory
        (name,) = {node for node, _ in devices}
        pool = inventory.pool(name)
        if pool is None or name not in fleet.nodes:
            return fleet
        fleet = fleet.copied({name})
        numbers = pool.numbers({device for _, device in devices})
        inventory.set_left(fleet, name, inventory.left(name, pool, claims).among(numbers))
        return fleet

    # Where nodes stand in the network.

    def set_levels(self, keys: Sequence[str], gbps_of: Mapping[str, float]) -> None:
        """Set the label keys of the network's levels, nearest first, and the rate of each level.

        A level is, for example, a rack. ``gbps_of`` has rates in GB/s by label key. If no keys are given, the levels of
        Kueue's Topology or well-known label keys are used.
        """
        if (tuple(keys), gbps_of) != (tuple(self._levels), self._gbps_of):
            self._levels, self._gbps_of = keys, gbps_of
            self._move()

    def topology_changed(self, change: Change[KueueTopology]) -> None:
        """Update the network levels of all fleets after a Kueue Topology changed.

        A Topology names the node labels of levels, such as racks. A fleet is the allocator's arrays of nodes and GPUs.
        """
        self.topologies.changed(change)
        self._move()

    def locate(self, labels: Mapping[str, Mapping[str, str]], namespace: str) -> None:
        """Set the network location of every node in a namespace's fleet, if labels or machines have changed.

        Args:
            labels: The labels of each node that the API server knows. If this is the same object as in the last call,
                and no machine has changed, nothing happens.
            namespace: The namespace.
        """
        viewed = self._view(namespace) or self._inventory
        fleet = viewed.fleet
        if viewed.located is not labels:
            viewed.located = labels
            pools = ((name, self._inventory.pool(name)) for name in fleet.nodes)
            machines = {name: pool.machine for name, pool in pools if pool is not None}
            levels = self._levels or self.topologies.keys([labels.get(name, {}) for name in fleet.nodes])
            node_locations.locate(fleet, labels, machines, levels, self._gbps_of)

    def _move(self) -> None:
        self._inventory.located = None
        for view in self.views.all():
            view.located = None
        self._help_all()  # a gang that found no place may have one by other levels

    def _help_all(self) -> None:
        for name in self._inventory.pools():
            self._nodes.helped(name)


def _count(fleet: Fleet, rows: Bools) -> int:
    """Return how many of some nodes a fleet contains.

    ``rows`` are the nodes, one bool for each row (the index of a node).
    """
    return sum(int(group.at_rows(rows).sum()) for group in fleet.groups)


def _never() -> bool:
    return False
