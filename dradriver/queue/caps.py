"""Which GPUs a tenant's cap leaves to a workload of its.

What counts is all that claims of the tenant's namespaces hold or are promised, whoever chose it, from when that is
decided. A cap that is lower takes nothing away.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key, is_set
from dradriver.api.policies.tenant_policies import Cap
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.cache.snapshot import Snapshot
from dradriver.cluster.gpus.gpu_parts import of_products
from dradriver.cluster.nodes.columns import Bools
from dradriver.queue.equivalence_classes import ANYWHERE, Closed
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Cause

CAP: Final = "its tenant's cap"
UNKNOWN: Final = (
    "whose its namespace is, is not known yet: some tenant has namespaces by their labels, and the controller has not "
    "read them, for which it needs the verbs list and watch on namespaces"
)
_ALL: Final[Closed] = frozenset({"\0"})  # where nobody knows whose a namespace is
_ROUNDING: Final = 1e-6  # GPUs that adding up fractions may lose
_NAMED: Final = 3  # who has most, in a reason
_LONGEST: Final = 63  # characters of a name in it
_FRESH_S: Final = 10.0  # that those are named again without a look: thousands may have to be added up


class CapError(NoPlaceError):
    """A tenant's cap keeps a workload from all GPUs that it asks for.

    Attributes:
        about: The message without figures that change all the time.
    """

    def __init__(self, message: str, about: str) -> None:
        super().__init__(message, cause=Cause.CAP)
        self.about = about


class Left(NamedTuple):
    """What a cap leaves to a workload.

    Attributes:
        members: Those of it that want a place and may have one together.
        snapshot: The cluster with the nodes and GPUs that it may have.
        why: What is left out, in words; empty for nothing.
    """

    members: tuple[Member, ...]
    snapshot: Snapshot
    why: str = ""


class Limits(NamedTuple):
    """What a cap leaves to a workload, node by node.

    Attributes:
        members: Those of it that want a place and may have one together.
        closed: Nodes with GPUs that it may not have.
    """

    members: tuple[Member, ...]
    closed: frozenset[str] = frozenset()


class Caps:
    """All tenants' caps, and what counts for them.

    Attributes:
        fallen: Tenants that have less than before. The caller that looks at their workloads again removes them.
    """

    def __init__(self, tenants: Tenants, picture: Picture, wake: Callable[[], object]) -> None:
        """Begin with what there is.

        Args:
            tenants: Whose a namespace is, and their caps.
            picture: Says who has what; ``charge`` has to be called for each change of that.
            wake: Called when a tenant has less than before.
        """
        self._tenants, self._picture, self._wake = tenants, picture, wake
        self._use: dict[str, dict[str, float]] = {}  # GPUs by product, of tenants that were asked about
        self._users: dict[tuple[str, Cap], tuple[float, str]] = {}
        self.fallen: set[str] = set()

    def regroup(self) -> None:
        """Apply other namespaces or caps of tenants."""
        self._use.clear()
        self._users.clear()

    def use(self, tenant: str) -> Mapping[str, float]:
        """Return how many GPUs a tenant holds or is promised, by product; by none where that is not known."""
        usage = self._use.get(tenant)
        if usage is None:
            usage = self._use[tenant] = {}
            for namespace, gpus in self._picture.gpu_time.charges.items():
                if self._tenants.of(namespace) == tenant:
                    _add(usage, gpus)
        return usage

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count that a namespace is given or promised so many more GPUs for its tenant's cap; negative for fewer."""
        tenant = self._tenants.of(namespace)
        if not self._tenants.caps(tenant):
            return
        if (use := self._use.get(tenant)) is not None:
            _add(use, more)
        if any(gpus < 0 for gpus in more.values()):
            self.fallen.add(tenant)
            self._wake()

    def used_of(self, tenant: str, cap: Cap) -> float:
        """Return how many GPUs count for a tenant's cap."""
        return math.fsum(
            gpus for product, gpus in self.use(tenant).items() if not cap.products or of_products(product, cap.products)
        )

    # What is asked about a workload.

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the products of GPUs that the tenant's cap denies a workload now."""
        if not self._tenants.known(workload.key[0]):
            return _ALL
        if not self._tenants.caps(self._tenants.of(workload.key[0])):
            return ANYWHERE
        try:
            return self._fitting(workload)[1]
        except WordError:  # it is told that anyhow
            return ANYWHERE

    def limits(self, workload: PendingWorkload) -> Limits | None:
        """Return the nodes and GPUs that the tenant's cap leaves to a workload; None for nothing.

        Raises:
            WordError: What it asks for cannot be read.
        """
        if not self._tenants.known(workload.key[0]):
            return None
        if not self._tenants.caps(self._tenants.of(workload.key[0])):
            return Limits(_wanting(workload))
        members, closed = self._fitting(workload)
        if closed and _possible(self._asked(members)) <= closed:
            return None
        groups = self._picture.inventory.fleet.groups if closed else ()
        names_of_groups = (group.names for group in groups if any(gpu.product in closed for gpu in group.machine.gpus))
        return Limits(members, frozenset(name for names in names_of_groups for name in names))

    def open_rows(self, closed: Closed) -> Bools | None:
        """Return the nodes that have GPUs of products without a reached cap: (rows,); None for all."""
        return self._rows(closed)[0] if closed else None

    def left(self, workload: PendingWorkload, whose: Collection[str] = ()) -> Left:
        """Return how many GPUs the tenant's cap leaves to a workload.

        Args:
            workload: The workload.
            whose: Those whose reserved GPUs it may have.

        Raises:
            CapError: Nothing of what it asks for.
            WordError: What it asks for cannot be read.
        """
        if not self._tenants.known(workload.key[0]):
            raise CapError(UNKNOWN, UNKNOWN)
        tenant = self._tenants.of(workload.key[0])
        if not self._tenants.caps(tenant):
            return Left(_wanting(workload), self._snapshot(workload, whose))
        members, closed = self._fitting(workload)
        if not closed:
            return Left(members, self._snapshot(workload, whose))
        asked = self._asked(members)
        over = self._over(tenant, asked, self._leaving(workload))
        why = self._told(tenant, over)
        if _possible(asked) <= closed:
            gpus = _most(asked, over)
            text = f"{CAP}: {why}; this asks for {_plain(gpus)}"
            if gpus > over.gpus + _ROUNDING:
                text += ", more than it may ever have"
            elif users := self._who(tenant, over):
                text += f": {users}"
            raise CapError(text, f"{CAP} {self._tenants.caps(tenant).index(over)}")
        rows, mixed = self._rows(closed)
        snapshot = self._snapshot(workload, whose, mixed).among(rows)
        return Left(members, snapshot, f"GPUs left out by {CAP}: {why}")

    def _fitting(self, workload: PendingWorkload) -> tuple[tuple[Member, ...], Closed]:
        """Return as many members as the cap leaves GPUs for (all if for none), and the closed products."""
        tenant, leaving = self._tenants.of(workload.key[0]), self._leaving(workload)
        wanting = _wanting(workload)

        def closed_for(count: int) -> tuple[Closed, bool]:
            asked = self._asked(wanting[:count])
            closed_products = self._products(tenant, asked, leaving)
            return closed_products, bool(closed_products) and _possible(asked) <= closed_products

        closed, none = closed_for(len(wanting))
        whole = any(self._picture.claim_of(member.pod) is not None for member in workload.members)
        if not none or whole or workload.least >= len(wanting):
            return wanting, closed
        low, high = workload.least, len(wanting) - 1
        best = None
        while low <= high:  # where some are left for so many, there are for fewer
            middle = (low + high + 1) // 2
            fewer, none = closed_for(middle)
            if none:
                high = middle - 1
            else:
                best, low = (wanting[:middle], fewer), middle + 1
        return (wanting, closed) if best is None else best

    def _asked(self, members: Sequence[Member]) -> list[tuple[int, dict[str, float]]]:
        """Return what members ask for, those that ask for the same together: GPUs of one, by the products it may get.

        Who comes to a set that others have asks for nothing more.
        """
        count: dict[object, list[Member]] = {}
        for member in members:
            if not (is_set(member.wish.claim) and member.wish.claim in self._picture.claims):
                count.setdefault(member.wish.request, []).append(member)
        kinds = self._picture.inventory.kinds
        return [(len(alike), kinds.asked(alike[0].wish.request)) for alike in count.values()]

    def _products(
        self, tenant: str, asked: Sequence[tuple[int, dict[str, float]]], leaving: Mapping[str, float]
    ) -> Closed:
        """Return the products of which there may be no more for all that is asked together."""
        closed: set[str] = set()
        for cap in self._tenants.caps(tenant):
            room = cap.gpus - self._counted(tenant, cap, leaving) + _ROUNDING
            mine = {product for product in _possible(asked) if not cap.products or of_products(product, cap.products)}
            for product in mine - closed:
                gpus = sum(
                    count * each.get(product, max((each[other] for other in mine & each.keys()), default=0.0))
                    for count, each in asked
                )
                if gpus > room:
                    closed.add(product)
        return frozenset(closed)

    def _over(self, tenant: str, asked: Sequence[tuple[int, dict[str, float]]], leaving: Mapping[str, float]) -> Cap:
        """Return the first cap that closes something."""
        possible = _possible(asked)
        for cap in self._tenants.caps(tenant):
            mine = {product for product in possible if not cap.products or of_products(product, cap.products)}
            room = cap.gpus - self._counted(tenant, cap, leaving) + _ROUNDING
            if mine and _most(asked, cap) > room:
                return cap
        raise AssertionError("one of them does")

    def _counted(self, tenant: str, cap: Cap, leaving: Mapping[str, float]) -> float:
        return self.used_of(tenant, cap) - math.fsum(
            gpus for product, gpus in leaving.items() if not cap.products or of_products(product, cap.products)
        )

    def _kept(self, workload: PendingWorkload) -> Key | None:
        """Return the claim whose place is kept for a pod that comes to a gang which runs; it counts no more then."""
        of = self._picture.gangs.of(workload.key) if workload.lead.near else None
        kept = None if of is None else self._picture.kept_places.ready(of)
        return None if kept is None else kept.claim

    def _leaving(self, workload: PendingWorkload) -> dict[str, float]:
        leaving: dict[str, float] = {}
        if (claim := self._kept(workload)) is not None:
            for bucket, gpus in self._picture.gpu_time.of(claim).items():
                _add(leaving, {bucket.product: gpus})
        return leaving

    def _rows(self, closed: Closed) -> tuple[Bools, dict[str, frozenset[int]]]:
        """Return the nodes that have other GPUs, and which GPUs those are where a node has closed ones, too."""
        rows = np.zeros(len(self._picture.nodes.freed), dtype=np.bool_)
        mixed: dict[str, frozenset[int]] = {}
        for group in self._picture.inventory.fleet.groups:
            gpus = group.machine.gpus
            others = (
                frozenset(gpu.index for gpu in gpus if gpu.product not in closed) if closed != _ALL else frozenset()
            )
            if others:
                at = group.rows()
                rows[at[at >= 0]] = True
                if len(others) < len(gpus):
                    mixed |= dict.fromkeys(group.names, others)
        return rows, mixed

    def _snapshot(
        self, workload: PendingWorkload, whose: Collection[str], mixed: Mapping[str, frozenset[int]] | None = None
    ) -> Snapshot:
        """Return the cluster as a workload may use it: with what is reserved for these, without closed GPUs."""
        snapshot = Snapshot(self._picture, workload.key[0], whose=whose)
        if (kept := self._kept(workload)) is not None and (whose or mixed):
            snapshot = snapshot.without([kept], own=True)
        return snapshot.offering_only(mixed) if mixed else snapshot

    # What people are told.

    def _told(self, tenant: str, cap: Cap) -> str:
        of = f" of {', '.join(cap.products)}" if cap.products else ""
        return f"tenant {tenant} holds {_plain(self.used_of(tenant, cap))} of {_plain(cap.gpus)} GPUs{of}"

    def _who(self, tenant: str, cap: Cap) -> str:
        """Return who holds most of what counts for a cap."""
        now = asyncio.get_running_loop().time()
        known = self._users.get((tenant, cap))
        if known is not None and now < known[0] + _FRESH_S:
            return known[1]
        gpus_by_user: dict[str, float] = {}
        gpu_time = self._picture.gpu_time
        for claim in gpu_time.claims():
            if self._tenants.of(claim[0]) != tenant:
                continue
            for bucket, gpus in gpu_time.of(claim).items():
                if not cap.products or of_products(bucket.product, cap.products):
                    pods = self._picture.claim_users.of(claim)
                    name = bucket.owner.partition("/")[2] or (min(pods)[1] if pods else claim[1])
                    _add(gpus_by_user, {f"{claim[0]}/{name[:_LONGEST]}": gpus})
        ranked = sorted(gpus_by_user.items(), key=lambda item: (-item[1], item[0]))
        more = f" and {len(ranked) - _NAMED} more" if len(ranked) > _NAMED else ""
        text = ", ".join(f"{name} {_plain(gpus)}" for name, gpus in ranked[:_NAMED]) + more
        self._users[tenant, cap] = now, text
        return text


def _wanting(workload: PendingWorkload) -> tuple[Member, ...]:
    """Return the members of a workload that want a place now."""
    if workload.key == workload.lead.key:
        return (workload.lead,)
    return tuple(member for member in workload.members if member in workload.wanting)


def _possible(asked: Sequence[tuple[int, dict[str, float]]]) -> set[str]:
    return {product for _, each in asked for product in each}


def _most(asked: Sequence[tuple[int, dict[str, float]]], cap: Cap) -> float:
    """Return how many GPUs that count for a cap is the most that is asked."""
    return sum(
        count
        * max((gpus for name, gpus in each.items() if not cap.products or of_products(name, cap.products)), default=0)
        for count, each in asked
    )


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    for product, gpus in more.items():
        total[product] = total.get(product, 0.0) + gpus


def _plain(gpus: float) -> str:
    return f"{round(gpus, 2):g}" if gpus < 1e5 else f"{gpus:.0f}"
