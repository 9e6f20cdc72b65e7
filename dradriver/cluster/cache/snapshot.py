"""Snapshots: read-only views of the cluster cache, unchanged or with a hypothetical change.

The folder ``placing`` decides on snapshots. Making a snapshot takes constant time. A snapshot that is derived from
another one, such as without some pods or nodes, costs only as much as it differs. Nothing here changes the cache.

A *row* is the index of a node in all arrays of nodes. A *fleet* is the allocator's arrays of the nodes and their free
GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from dradriver.allocator.fleet.fleet import Fleet
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.remaining import Remaining
from dradriver.cluster.nodes.columns import Bools, Ints
from dradriver.cluster.nodes.pod_demands import Ask
from dradriver.cluster.nodes.pod_resources import Amounts


class StaleSnapshotError(RuntimeError):
    """A snapshot was used after the cluster cache had changed.

    This is a bug. The cache can change at each ``await``, so a snapshot must not be used after the next ``await``.
    """


class Snapshot:
    """The cluster as the pods of one namespace can use it, valid until the cluster cache changes.

    Attributes:
        namespace: The namespace; empty for a view of the whole cluster.
        rows: The nodes that the snapshot includes, one bool for each row (a node's index); None for all.
        is_few: Whether the caller asks about only a few nodes. Then the error for "no place" need not say why.
    """

    __slots__ = (
        "_fleet",
        "_freed",
        "_generation",
        "_gone",
        "_left",
        "_picture",
        "_whose",
        "is_few",
        "namespace",
        "rows",
    )

    def __init__(self, picture: Picture, namespace: str = "", *, whose: Collection[str] = ()) -> None:
        """Make a snapshot of the cluster as it is.

        Args:
            picture: The cluster cache.
            namespace: The namespace of the pods that are to be placed.
            whose: The waiting workloads whose reserved GPUs are included. GPUs that are reserved for other workloads
                are left out.
        """
        self.namespace = namespace
        self.rows: Bools | None = None
        self.is_few = False
        self._picture, self._whose = picture, whose
        self._fleet: Fleet | None = None
        self._freed: Mapping[str, Amounts] = {}
        self._gone: frozenset[Key] = frozenset()
        self._left: dict[tuple[str, frozenset[Key], bool], Remaining] = {}  # shared by all that are derived
        # Bringing the fleet up to date can leave out a broken node, which is a change of the cache.
        _ = picture.inventory.fleet
        self._generation = picture.generation
        if whose:
            self._fleet = picture.fleets.without(namespace=namespace, whose=whose)

    # What there is.

    @property
    def picture(self) -> Picture:
        """Return the cluster cache behind the snapshot, read only, for data that the snapshot does not change.

        Raises:
            StaleSnapshotError: The cache has changed since the snapshot was made.
        """
        if self._picture.generation != self._generation:
            raise StaleSnapshotError("the cluster cache has changed since this snapshot was made")
        return self._picture

    @property
    def fleet(self) -> Fleet:
        """Return the GPUs that the snapshot sees, as the allocator's arrays."""
        return self.picture.fleets.of(self.namespace) if self._fleet is None else self._fleet

    @property
    def is_plain(self) -> bool:
        """Return whether the snapshot has its namespace's GPUs as they are now.

        False if the snapshot has a hypothetical change, such as GPUs without some claims.
        """
        return self._fleet is None

    @property
    def gone_pods(self) -> Set[Key]:
        """Return the pods that the snapshot treats as gone: the users of the claims that are left out."""
        users = self.picture.claim_users
        return frozenset(pod for claim in self._gone for pod in users.of(claim))

    def open(self, ask: Ask) -> Bools:
        """Return the nodes with GPUs on which a pod may run, ignoring free resources.

        ``ask`` has the pod's requirements for its node. The result is a new array that the caller may change: one bool
        for each row (the index of a node). It includes nodes that the snapshot leaves out; the method ``narrowed``
        removes them.
        """
        return self.picture.nodes.open(ask)

    def eligible(self, ask: Ask) -> Bools:
        """Return the nodes with GPUs on which a pod fits now.

        ``ask`` has the pod's requirements for its node. The result is a new array with one bool for each row (the index
        of a node). It includes nodes that the snapshot leaves out; the method ``narrowed`` removes them.
        """
        return self.picture.nodes.eligible(ask, self._freed)

    def left(self, resources: Sequence[str]) -> Ints:
        """Return the free amounts of some resources, such as CPU, on each node.

        The shape is (rows, resources); a row is the index of a node. CPU is in thousandths of a core, all other
        resources in whole units. It is a new array that the caller may change.
        """
        return self.picture.nodes.left(resources, self._freed)

    def causes(self, ask: Ask, only: Bools | None = None) -> tuple[str, ...]:
        """Return why nodes with GPUs are not eligible for a pod: the first cause of each node, sorted.

        ``ask`` has the pod's requirements for its node. ``only`` are the nodes to look at, one bool for each row (the
        index of a node); None for all.
        """
        return self.picture.nodes.causes(ask, self._freed, only=only)

    def narrowed(self, fit: Bools) -> Bools:
        """Return the mask ``fit`` without the nodes that the snapshot leaves out: shape (rows,)."""
        return fit if self.rows is None else fit & self.rows

    # What would be.

    def among(self, rows: Bools | None, *, is_few: bool = False) -> Snapshot:
        """Return a snapshot of only the nodes in ``rows``; the same snapshot if ``rows`` is None.

        Args:
            rows: The nodes, one bool for each row (the index of a node).
            is_few: Whether the caller asks about only a few nodes. Then the error for "no place" need not say why.
        """
        if rows is None:
            return self
        new = self._copy()
        new.rows = rows if self.rows is None else self.rows & rows
        new.is_few = self.is_few or is_few
        return new

    def avoiding(self, nodes: Collection[str]) -> Snapshot:
        """Return a snapshot without these nodes, given by name."""
        return self.among(~self.picture.nodes.named(nodes)) if nodes else self

    def offering(self, fleet: Fleet | None) -> Snapshot:
        """Return a snapshot with the GPUs of another fleet, such as one without some claims.

        A fleet is the allocator's arrays of nodes and free GPUs. The same snapshot is returned if ``fleet`` is None.
        """
        if fleet is None:
            return self
        new = self._copy()
        new._fleet = fleet
        return new

    def offering_only(self, gpus: Mapping[str, Set[int]]) -> Snapshot:
        """Return a snapshot that offers only some GPUs of some nodes.

        Args:
            gpus: The GPUs to offer of each node, by the machine's GPU numbers. Nodes that are not named keep all GPUs.
        """
        # A copy of the fleet keeps the places in the network that it was made with.
        self.picture.fleets.locate(self.picture.nodes.labels(), self.namespace)
        return self.offering(self.fleet.narrowed(gpus))

    def without(
        self, claims: Iterable[Key] = (), pod_usage: Iterable[tuple[str, Amounts]] = (), *, are_own: bool = False
    ) -> Snapshot:
        """Return a snapshot as if some pods were gone.

        Args:
            claims: The claims of the pods. Their devices count as free.
            pod_usage: The node of each pod, and the CPU, memory and other resources that the pod uses there.
            are_own: Whether the claims belong to the pods that are to be placed. Then these pods may have the GPUs of
                the claims even if the GPUs are now reserved for other workloads.
        """
        new = self._copy()

        # CPU, memory and other resources of the nodes.
        freed = {node: dict(amounts) for node, amounts in self._freed.items()}
        for node, amounts in pod_usage:
            freed_of_node = freed.setdefault(node, {})
            for resource, amount in amounts.items():
                freed_of_node[resource] = freed_of_node.get(resource, 0) + amount
        new._freed = freed

        # GPUs: without these claims and those that earlier calls took out, because what is left is computed by node.
        # ``whose`` are the workloads whose reserved GPUs the snapshot offers. ``known`` remembers what is left of
        # nodes.
        added = frozenset(claims)
        new._gone = self._gone | added
        if added:
            new._fleet = self.picture.fleets.without(
                *new._gone,
                namespace=self.namespace,
                whose=self._whose,
                are_own=are_own,
                fleet=self.fleet,
                known=self._left,
            )
        return new

    def _copy(self) -> Snapshot:
        new = object.__new__(Snapshot)
        for name in Snapshot.__slots__:
            setattr(new, name, getattr(self, name))
        return new
