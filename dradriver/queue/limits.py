"""What limits the GPUs that a workload may have. Features register their limits here; placement and preemption ask.

A feature, such as the caps of tenants or reserved GPUs, puts its limit in force while it can matter to any workload.
Nothing asks a limit that is not in force.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """A limit keeps a workload from all GPUs that it requests."""

    @property
    def why(self) -> Reason:
        """Return the reason of a workload that a limit keeps waiting; its figures change all the time."""
        return Reason(self.cause, str(self), self.stable if self.stable != str(self) else "")


class Allowance(NamedTuple):
    """What limits leave to a workload.

    Attributes:
        members: Its members that need a place and may have one together.
        closed: The products of GPUs that these may not get.
        why: Which GPUs are left out, and why; None if none are.
    """

    members: tuple[Member, ...]
    closed: Closed = ANYWHERE
    why: Reason | None = None


class Offer(NamedTuple):
    """The cluster as the limits leave it to a workload.

    Attributes:
        members: Its members that need a place and may have one together.
        snapshot: The cluster with the nodes and GPUs that it may use.
        why: Which GPUs are left out, and why; None if none are.
    """

    members: tuple[Member, ...]
    snapshot: Snapshot
    why: Reason | None = None

    def refusal(self, error: NoPlaceError) -> NoPlaceError:
        """Return the error of a search in this offer, with the GPUs that limits left out of it: they may be why."""
        return error if self.why is None else error.more(self.why.text, self.why.cause)


class Limit:
    """What a feature keeps from workloads, and what it reserves for them. By default nothing: override what differs.

    ``Limits`` calls it only while it is in force, and calls ``regroup`` before it comes into force.
    """

    def regroup(self) -> None:
        """Note that namespaces belong to other tenants, or that tenants have other policies."""

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count GPUs that a namespace was given or promised, by product; negative if they were released."""

    def looked_at(self, key: Key) -> None:
        """Note that a pod or gang was looked at."""

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the products of GPUs that the limit keeps from a workload now."""
        return ANYWHERE

    def allow(self, workload: PendingWorkload, allowance: Allowance) -> Allowance:
        """Return the part of an allowance that this limit leaves to a workload.

        Raises:
            LimitError: It leaves none of the GPUs that the workload requests.
            WordError: The workload's request cannot be read.
        """
        return allowance

    def reserved(self, workload: PendingWorkload) -> str:
        """Return the name under which the limit reserves GPUs for a workload; empty if it reserves none."""
        return ""

    def whose(self, workload: PendingWorkload, later_s: float) -> tuple[str, ...]:
        """Return whose reserved GPUs the limit leaves to a workload that begins so many seconds from now.

        Raises:
            WordError: The workload's request cannot be read.
        """
        return ()

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return why a workload waits, with what this limit has to add."""
        return reason


class Limits:
    """The limits in force, each in turn.

    Attributes:
        eased: Tenants that a limit leaves more than before. Who looks at their workloads again removes them.
    """

    def __init__(self, picture: Picture) -> None:
        """Begin with none in force."""
        self._picture = picture
        self._in_force: list[Limit] = []  # the limits in the order in which they came into force
        self.eased: set[str] = set()

    def put(self, limit: Limit, *, in_force: bool) -> None:
        """Put a limit in force, or out of it. Limits are asked in the order in which they came into force."""
        if not in_force and limit in self._in_force:
            self._in_force.remove(limit)
        elif in_force and limit not in self._in_force:
            limit.regroup()  # nobody told it what changed meanwhile
            self._in_force.append(limit)

    # What limits are told.

    def regroup(self) -> None:
        """Tell limits that namespaces belong to other tenants, or that tenants have other policies."""
        for limit in self._in_force:
            limit.regroup()

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Tell limits that a namespace was given or promised GPUs, by product; negative if they were released."""
        for limit in self._in_force:
            limit.charge(namespace, more)

    def looked_at(self, key: Key) -> None:
        """Tell limits that a pod or gang was looked at."""
        for limit in self._in_force:
            limit.looked_at(key)

    # What limits are asked.

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the products of GPUs that any limit keeps from a workload now."""
        closed = ANYWHERE
        for limit in self._in_force:
            closed |= limit.closed(workload)
        return closed

    def allow(self, workload: PendingWorkload) -> Allowance:
        """Return what all limits leave to a workload.

        Raises:
            LimitError: They leave none of the GPUs that it requests.
            WordError: Its request cannot be read.
        """
        allowance = Allowance(members_wanting(workload))
        for limit in self._in_force:
            allowance = limit.allow(workload, allowance)
        return allowance

    def offer(self, workload: PendingWorkload) -> Offer:
        """Return the cluster as all limits leave it to a workload.

        Raises:
            LimitError: They leave none of the GPUs that it requests.
            WordError: Its request cannot be read.
        """
        members, closed, why = self.allow(workload)
        whose = self.whose(workload)
        snapshot = Snapshot(self._picture, workload.key[0], whose=whose)
        rows, open_gpus = open_nodes(self._picture, closed) if closed else (None, {})
        # A late pod of a gang has the place that is kept for it, whatever else it may have.
        if (whose or open_gpus) and (kept := kept_claim(self._picture, workload)) is not None:
            snapshot = snapshot.without([kept], are_own=True)
        if open_gpus:
            snapshot = snapshot.offering_only(open_gpus)
        return Offer(members, snapshot.among(rows), why)

    def reserved(self, workload: PendingWorkload) -> str:
        """Return the name under which a limit reserves GPUs for a workload; empty if none does."""
        return next(filter(None, (limit.reserved(workload) for limit in self._in_force)), "")

    def whose(self, workload: PendingWorkload, later_s: float = 0.0) -> tuple[str, ...]:
        """Return whose reserved GPUs the limits leave to a workload that begins so many seconds from now.

        Raises:
            WordError: Its request cannot be read.
        """
        return tuple(who for limit in self._in_force for who in limit.whose(workload, later_s))

    def told(self, workload: PendingWorkload, reason: Reason) -> Reason:
        """Return why a workload waits, with what the limits have to add."""
        for limit in self._in_force:
            reason = limit.told(workload, reason)
        return reason

    def open_rows(self, closed: Closed) -> Bools | None:
        """Return the nodes with GPUs of products that no limit closes: (rows,); None for all nodes."""
        return open_nodes(self._picture, closed)[0] if closed else None


def members_wanting(workload: PendingWorkload) -> tuple[Member, ...]:
    """Return the members of a workload that want a place now, before any limit is asked."""
    if not workload.is_gang:
        return (workload.lead,)
    return tuple(member for member in workload.members if member in workload.wanting)


def kept_claim(picture: Picture, workload: PendingWorkload) -> Key | None:
    """Return the claim whose place no limit takes from a late pod of a gang; None if no place is kept for it."""
    membership = picture.gangs.of(workload.key) if workload.lead.near else None
    kept = None if membership is None else picture.kept_places.ready(membership)
    return None if kept is None else kept.claim


def open_nodes(picture: Picture, closed: Closed) -> tuple[Bools, Mapping[str, frozenset[int]]]:
    """Return nodes with GPUs that limits leave open: (rows,), and the numbers of these GPUs where not all are open."""
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
    """Return the nodes with GPUs of products that limits close, whatever other GPUs the nodes have."""
    groups = picture.inventory.fleet.groups if closed else ()
    nodes = (group.names for group in groups if any(gpu.product in closed for gpu in group.machine.gpus))
    return frozenset(name for names in nodes for name in names)
