"""The limits on the GPUs that a workload may use.

A feature, such as the caps of tenants or reserved GPUs, registers its limit here. It puts the limit in force while the
limit can matter to any workload. Placement and preemption ask all limits that are in force. A GPU product is *closed*
to a workload if a limit denies it.

A *member* is a pod of the workload. A *place* is a node and GPUs for one pod.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import numpy as np

from dradriver.allocator.request import LazyNoPlaceError, NoPlaceError
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.nodes.columns import Bools
from dradriver.queue.equivalence_classes import ANYWHERE, Closed
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Reason

NOWHERE: Final[Closed] = frozenset({"\0"})
"""No product of GPUs is open. The text is no product's name."""


class LimitError(LazyNoPlaceError):
    """The limits deny a workload all GPUs that it requests."""


class NeverAllowedError(LimitError):
    """A workload requests more GPUs than a limit can ever leave it.

    Then waiting for other workloads cannot help.
    """


class Allowance(NamedTuple):
    """Which members of a workload may have a place under the limits, and on which GPUs.

    Attributes:
        members: The members that need a place and may get one together.
        closed: The GPU products that these members may not use.
        why: Which GPUs the limits keep from the workload, and why; None if they keep none.
    """

    members: tuple[Member, ...]
    closed: Closed = ANYWHERE
    why: NoPlaceError | None = None


class Offer(NamedTuple):
    """The members and the part of the cluster that a workload may use under the limits.

    Attributes:
        members: The members that need a place and may get one together.
        snapshot: A copy of the cluster's state, without the nodes and GPUs that the workload may not use.
        why: Which GPUs the limits keep from the workload, and why; None if they keep none.
    """

    members: tuple[Member, ...]
    snapshot: Snapshot
    why: NoPlaceError | None = None

    def refusal(self, error: NoPlaceError) -> NoPlaceError:
        """Return the error of a failed search, with the GPUs that limits denied.

        These GPUs are a possible cause of the failure. If limits kept none, the error is returned unchanged.
        """
        why = self.why
        return error if why is None else error.more(why.stable, nearest=why.nearest, cause=why.cause)


class Limit:
    """A limit of the GPUs that workloads may use, set by a feature.

    The caps of tenants are such a limit. The base class limits nothing; subclasses override methods. ``Limits`` calls
    these methods only while the limit is in force, and calls ``regroup`` before it comes into force.
    """

    def regroup(self) -> None:
        """React to changed tenants: namespaces belong to other tenants, or tenants have other policies."""

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count GPUs of a namespace's claims and tentative placements.

        Args:
            namespace: The namespace.
            more: The GPUs by product; negative numbers for GPUs that were released.
        """

    def looked_at(self, key: Key) -> None:
        """Note that the controller has processed a pod or gang, which may no longer wait."""

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the GPU products that the workload cannot get now because of this limit."""
        return ANYWHERE

    def allow(self, workload: PendingWorkload, allowance: Allowance) -> Allowance:
        """Return which members may have a place under this limit, and on which GPUs.

        Args:
            workload: The workload.
            allowance: The answer of the limits before this one.

        Raises:
            LimitError: This limit denies all GPUs that the workload requests.
            WordError: The workload's request cannot be read.
        """
        return allowance

    def reserved(self, workload: PendingWorkload) -> str:
        """Return the name under which this limit reserves GPUs for a workload.

        Empty if it reserves none.
        """
        return ""

    def whose(self, workload: PendingWorkload, later_s: float) -> tuple[str, ...]:
        """Return the names of the reservations whose GPUs a workload may use.

        Args:
            workload: The workload.
            later_s: In how many seconds the workload would begin to use the GPUs.

        Raises:
            WordError: The workload's request cannot be read.
        """
        return ()

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return why a workload waits, with a sentence about this limit if it applies."""
        return reason


class Limits:
    """The limits in force, asked one after another.

    Attributes:
        eased: Tenants that may use more GPUs than before. The worker removes a tenant when it has tried the tenant's
            workloads again.
    """

    def __init__(self, picture: Picture) -> None:
        """Create an object without limits in force; ``picture`` is the cluster cache."""
        self._picture = picture
        self._in_force: list[Limit] = []  # the limits in the order in which they came into force
        self.eased: set[str] = set()

    def put(self, limit: Limit, *, in_force: bool) -> None:
        """Put a limit in force, or take it out of force.

        Limits are asked in the order in which they came into force.
        """
        if not in_force and limit in self._in_force:
            self._in_force.remove(limit)
        elif in_force and limit not in self._in_force:
            limit.regroup()  # nobody told it what changed meanwhile
            self._in_force.append(limit)

    # What limits are told.

    def regroup(self) -> None:
        """Tell all limits that namespaces belong to other tenants, or that tenants have other policies."""
        for limit in self._in_force:
            limit.regroup()

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Tell all limits that GPUs of a namespace's claims and tentative placements have changed.

        Args:
            namespace: The namespace.
            more: The GPUs by product; negative numbers for GPUs that were released.
        """
        for limit in self._in_force:
            limit.charge(namespace, more)

    def looked_at(self, key: Key) -> None:
        """Tell all limits that the controller has processed a pod or gang.

        The pod or gang may no longer wait.
        """
        for limit in self._in_force:
            limit.looked_at(key)

    # What limits are asked.

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the GPU products that a workload cannot get now because of any limit."""
        closed = ANYWHERE
        for limit in self._in_force:
            closed |= limit.closed(workload)
        return closed

    def allow(self, workload: PendingWorkload) -> Allowance:
        """Return which members may have a place under all limits, and on which GPUs.

        Raises:
            LimitError: The limits deny all GPUs that the workload requests.
            WordError: The workload's request cannot be read.
        """
        allowance = Allowance(members_wanting(workload))
        for limit in self._in_force:
            allowance = limit.allow(workload, allowance)
        return allowance

    def offer(self, workload: PendingWorkload) -> Offer:
        """Return which members and which part of the cluster the limits leave a workload.

        Raises:
            LimitError: The limits deny all GPUs that the workload requests.
            WordError: The workload's request cannot be read.
        """
        members, closed, why = self.allow(workload)
        return Offer(members, self.view(workload, closed), why)

    def view(self, workload: PendingWorkload, closed: Closed, ended: Collection[Key] = ()) -> Snapshot:
        """Return the part of the cluster that a workload may use without some GPU products.

        Args:
            workload: The workload.
            closed: The denied products.
            ended: Claims that count as ended. The workload may use their GPUs.

        Raises:
            WordError: The workload's request cannot be read.
        """
        whose = self.whose(workload)
        snapshot = Snapshot(self._picture, workload.key[0], whose=whose).without(ended, are_own=True)
        rows, open_gpus = open_nodes(self._picture, closed) if closed else (None, {})
        # A late pod of a gang has the place that is kept for it, whatever else it may have.
        if (whose or open_gpus) and (kept := kept_claim(self._picture, workload)) is not None:
            snapshot = snapshot.without([kept], are_own=True)
        if open_gpus:
            snapshot = snapshot.offering_only(open_gpus)
        return snapshot.among(rows)

    def reserved(self, workload: PendingWorkload) -> str:
        """Return the name under which a limit reserves GPUs for a workload, or an empty text."""
        return next(filter(None, (limit.reserved(workload) for limit in self._in_force)), "")

    def whose(self, workload: PendingWorkload, later_s: float = 0.0) -> tuple[str, ...]:
        """Return the names of the reservations whose GPUs a workload may use.

        Args:
            workload: The workload.
            later_s: In how many seconds the workload would begin to use the GPUs.

        Raises:
            WordError: The workload's request cannot be read.
        """
        return tuple(who for limit in self._in_force for who in limit.whose(workload, later_s))

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return the reason why a workload waits, with the texts that the limits add."""
        for limit in self._in_force:
            reason = limit.told(workload, reason)
        return reason

    def open_rows(self, closed: Closed) -> Bools | None:
        """Return the nodes with a GPU of a product outside ``closed``; None for all nodes.

        The result has a bool for each row of the node table. It is None if ``closed`` is empty.
        """
        return open_nodes(self._picture, closed)[0] if closed else None


def members_wanting(workload: PendingWorkload) -> tuple[Member, ...]:
    """Return the members of a workload that have no place yet. Limits are not asked."""
    if not workload.is_gang:
        return (workload.lead,)
    return tuple(member for member in workload.members if member in workload.wanting)


def kept_claim(picture: Picture, workload: PendingWorkload) -> Key | None:
    """Return the claim that keeps a lost pod's GPUs for its replacement.

    ``workload`` is the replacement, a new pod of a running gang. None if it replaces no pod, or if no GPUs are kept for
    it. No limit, such as a cap, can take the kept GPUs from the pod.
    """
    membership = picture.gangs.of(workload.key) if workload.lead.near else None
    kept = None if membership is None else picture.kept_places.ready(membership)
    return None if kept is None else kept.claim


def open_nodes(picture: Picture, closed: Closed) -> tuple[Bools, Mapping[str, frozenset[int]]]:
    """Return the nodes and GPUs that remain if some GPU products are denied.

    Args:
        picture: The cluster cache.
        closed: The denied products.

    Returns:
        A bool for each row of the node table: whether the node has a GPU of a product that is not denied. And, for each
            node with both allowed and denied GPUs, the numbers of the allowed GPUs.
    """
    rows = np.zeros(len(picture.nodes.freed), dtype=np.bool_)
    open_gpus: dict[str, frozenset[int]] = {}
    if closed >= NOWHERE:
        return rows, open_gpus
    for group in picture.inventory.fleet.groups:
        gpus = group.machine.gpus
        open_numbers = frozenset(gpu.index for gpu in gpus if gpu.product not in closed)
        if open_numbers:
            group_rows = group.rows()
            rows[group_rows[group_rows >= 0]] = True  # a node without a row is not in the cluster
            if len(open_numbers) < len(gpus):
                open_gpus |= dict.fromkeys(group.names, open_numbers)
    return rows, open_gpus


def closed_nodes(picture: Picture, closed: Closed) -> frozenset[str]:
    """Return the names of the nodes that have a GPU of a product in ``closed``.

    A returned node can also have GPUs of other products.
    """
    groups = picture.inventory.fleet.groups if closed else ()
    nodes = (group.names for group in groups if any(gpu.product in closed for gpu in group.machine.gpus))
    return frozenset(name for names in nodes for name in names)
