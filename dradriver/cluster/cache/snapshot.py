"""What a decision sees of the cluster: a read-only view of the cluster cache, and what would be if something changed.

``placing`` decides on snapshots. A snapshot is made in constant time and derived ones cost what they change: nodes of
pods that would be gone, or nodes that are left out. Nothing here changes the cache.
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
    """The cluster cache has changed since the snapshot was made. This is a bug: a snapshot ends at the next await."""


class Snapshot:
    """The cluster as the pods of one namespace can use it, valid until the cluster cache changes.

    Attributes:
        namespace: The namespace; empty for a view of everything.
        rows: The nodes that are not left out, shape (rows,); None for all.
        is_few: Whether only a few nodes are asked about, so that a refusal need not say why.
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
        """Make one of the cluster as it is.

        Args:
            picture: The cluster cache.
            namespace: The namespace of the pods that are to be placed.
            whose: Reserved GPUs are left out, except those that are reserved for these.
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
        """Return the cluster cache below the snapshot, for what the snapshot does not leave out; read only.

        Raises:
            StaleSnapshotError: It has changed since.
        """
        if self._picture.generation != self._generation:
            raise StaleSnapshotError("the cluster cache has changed since this snapshot was made")
        return self._picture

    @property
    def fleet(self) -> Fleet:
        """Return the GPUs that the snapshot sees."""
        return self.picture.fleets.of(self.namespace) if self._fleet is None else self._fleet

    @property
    def is_plain(self) -> bool:
        """Return whether the snapshot's GPUs are those that the namespace can use now, without any change."""
        return self._fleet is None

    @property
    def gone_pods(self) -> Set[Key]:
        """Return the pods that count as gone: those of the claims that the snapshot does not have."""
        users = self.picture.claim_users
        return frozenset(pod for claim in self._gone for pod in users.of(claim))

    def open(self, ask: Ask) -> Bools:
        """Return the snapshot's nodes with GPUs that a pod may run on, whatever is free there.

        Shape (rows,), the caller's own.
        """
        return self.picture.nodes.open(ask)

    def eligible(self, ask: Ask) -> Bools:
        """Return the snapshot's nodes with GPUs on which a pod fits: shape (rows,), the caller's own."""
        return self.picture.nodes.eligible(ask, self._freed)

    def left(self, resources: Sequence[str]) -> Ints:
        """Return what the snapshot's nodes have left of some resources.

        Shape (rows, resources), the caller's own.
        """
        return self.picture.nodes.left(resources, self._freed)

    def causes(self, ask: Ask, only: Bools | None = None) -> tuple[str, ...]:
        """Return why the snapshot's nodes with GPUs are not eligible, sorted; ``only``: rows to look at."""
        return self.picture.nodes.causes(ask, self._freed, only=only)

    def narrowed(self, fit: Bools) -> Bools:
        """Return these nodes without those that the snapshot leaves out: shape (rows,)."""
        return fit if self.rows is None else fit & self.rows

    # What would be.

    def among(self, rows: Bools | None, *, is_few: bool = False) -> Snapshot:
        """Return a snapshot with these nodes alone; None for all."""
        if rows is None:
            return self
        new = self._copy()
        new.rows = rows if self.rows is None else self.rows & rows
        new.is_few = self.is_few or is_few
        return new

    def avoiding(self, nodes: Collection[str]) -> Snapshot:
        """Return a snapshot without these nodes."""
        return self.among(~self.picture.nodes.named(nodes)) if nodes else self

    def offering(self, fleet: Fleet | None) -> Snapshot:
        """Return a snapshot with these GPUs; None for no change."""
        if fleet is None:
            return self
        new = self._copy()
        new._fleet = fleet
        return new

    def offering_only(self, gpus: Mapping[str, Set[int]]) -> Snapshot:
        """Return a snapshot with no other GPUs of some nodes than these, by the machine's own numbers."""
        # A copy of the fleet keeps the places in the network that it was made with.
        self.picture.fleets.locate(self.picture.nodes.labels(), self.namespace)
        return self.offering(self.fleet.narrowed(gpus))

    def without(
        self, claims: Iterable[Key] = (), pod_usage: Iterable[tuple[str, Amounts]] = (), *, are_own: bool = False
    ) -> Snapshot:
        """Return a snapshot as if some pods were gone.

        Args:
            claims: The claims of the pods: what they use is free.
            pod_usage: For each of the pods its node, and what it uses there of CPU, memory and other resources.
            are_own: Whether the claims belong to the pods that are to be placed. Then these pods may have the GPUs of
                the claims even if the GPUs are reserved for others by now.
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
