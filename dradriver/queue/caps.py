"""Limits a workload to the GPUs that the cap of its tenant leaves to it.

All GPUs that claims of the tenant's namespaces hold count, and so do GPUs that are only promised to them. A lower cap
takes nothing away from running workloads. The controller and the CLI call this module.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import is_set
from dradriver.api.policies.tenant_policies import Cap
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.gpu_parts import of_products
from dradriver.counted import counted
from dradriver.queue.equivalence_classes import ANYWHERE, Closed
from dradriver.queue.limits import NOWHERE, Allowance, Limit, LimitError, kept_claim, members_wanting
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Cause, Reason

CAP: Final = "its tenant's cap"
UNKNOWN: Final = (
    "whose its namespace is, is not known yet: some tenant has namespaces by their labels, and the controller has not "
    "read them, for which it needs the verbs list and watch on namespaces"
)
_ROUNDING: Final = 1e-6  # GPUs that adding up fractions may lose
_NAMED: Final = 3  # workloads with the most GPUs that a reason names
_LONGEST: Final = 63  # characters of such a name
_FRESH_S: Final = 10.0  # for which they are not computed again: thousands of claims may have to be added up


class Caps(Limit):
    """All tenants' caps, and what counts for them."""

    def __init__(
        self, tenants: Tenants, picture: Picture, eased: set[str], wake: Callable[[], object] = lambda: None
    ) -> None:
        """Begin with what there is.

        Args:
            tenants: Whose a namespace is, and their caps.
            picture: Says who has what; ``charge`` has to be called for each change of that.
            eased: Gets the tenants that hold less than before.
            wake: Called when a tenant holds less than before.
        """
        self._tenants, self._picture, self._eased, self._wake = tenants, picture, eased, wake
        self._use: dict[str, dict[str, float]] = {}  # GPUs by product, of tenants that were asked about
        self._users: dict[tuple[str, Cap], tuple[float, str]] = {}  # ``_who``'s answers, and when they were found

    @property
    def matters(self) -> bool:
        """Whether caps can keep a workload from GPUs: a tenant has one, or namespaces by labels, maybe unread."""
        return self._tenants.by_labels or any(tenant.cap for tenant in self._tenants.named.values())

    def regroup(self) -> None:
        """Apply other namespaces or caps of tenants."""
        self._use.clear()
        self._users.clear()

    def use(self, tenant: str) -> Mapping[str, float]:
        """Return how many GPUs count for a tenant's caps, by product; by none where that is not known."""
        usage = self._use.get(tenant)
        if usage is None:
            usage = self._use[tenant] = {}
            for namespace, gpus in self._picture.gpu_time.charges.items():
                if self._tenants.of(namespace) == tenant:
                    _add(usage, gpus)
        return usage

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count GPUs towards the caps of a namespace's tenant, by product; negative if they were released."""
        tenant = self._tenants.of(namespace)
        if not self._tenants.caps(tenant):
            return
        if (usage := self._use.get(tenant)) is not None:
            _add(usage, more)
        if any(gpus < 0 for gpus in more.values()):
            self._eased.add(tenant)
            self._wake()

    def used_of(self, tenant: str, cap: Cap) -> float:
        """Return how many GPUs count for a tenant's cap."""
        return math.fsum(gpus for product, gpus in self.use(tenant).items() if _counts_for(cap, product))

    # What is asked about a workload.

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the products of GPUs that the tenant's cap denies a workload now."""
        namespace = workload.key[0]
        if not self._tenants.known(namespace):
            return NOWHERE
        if not self._tenants.caps(self._tenants.of(namespace)):
            return ANYWHERE
        try:
            return self._fitting(workload, members_wanting(workload))[1]
        except WordError:  # another part of the controller tells the user
            return ANYWHERE

    def allow(self, workload: PendingWorkload, allowance: Allowance) -> Allowance:
        """Return the members and GPUs that the tenant's cap leaves to a workload.

        Raises:
            LimitError: The cap leaves none of the GPUs that it requests.
            WordError: The workload's request cannot be read.
        """
        if not self._tenants.known(workload.key[0]):
            raise LimitError(lambda: NoPlaceError(UNKNOWN, cause=Cause.CAP))
        tenant = self._tenants.of(workload.key[0])
        if not self._tenants.caps(tenant):
            return allowance
        members, closed = self._fitting(workload, allowance.members)
        if not closed:
            return allowance._replace(members=members)
        asked = self._asked(members)
        exceeded_cap = self._over(tenant, asked, self._leaving(workload))
        if _possible(asked) <= closed:
            # Who uses the cap is added up from all claims, and most callers do not read it.
            raise LimitError(partial(self._refusal, tenant, exceeded_cap, _most(asked, exceeded_cap)))
        why = Reason(Cause.CAP, f"GPUs left out by its tenant's cap: {self._told(tenant, exceeded_cap)}")
        return Allowance(members, allowance.closed | closed, why)

    def _refusal(self, tenant: str, cap: Cap, gpus: float) -> NoPlaceError:
        """Return the refusal of a workload that asks for this many GPUs of a cap."""
        asks = f"this asks for {_plain(gpus)}"
        text = f"{CAP}: {self._told(tenant, cap)}; {asks}"
        stable = f"{CAP}: tenant {tenant} has no room in its {counted(cap.gpus, 'GPU')}{_of(cap)}; {asks}"
        if gpus > cap.gpus + _ROUNDING:
            never = ", more than it may ever have"
            return NoPlaceError(text + never, stable=stable + never, cause=Cause.CAP)
        users = self._who(tenant, cap)
        return NoPlaceError(f"{text}: {users}" if users else text, stable=stable, cause=Cause.CAP)

    def _fitting(self, workload: PendingWorkload, wanting: tuple[Member, ...]) -> tuple[tuple[Member, ...], Closed]:
        """Return as many members as the cap leaves GPUs for, and the closed products.

        If it leaves none, all members are returned.
        """
        tenant, leaving = self._tenants.of(workload.key[0]), self._leaving(workload)

        def closed_for(count: int) -> tuple[Closed, bool]:
            """Return the products that caps close for the first members, and whether these can use no others."""
            asked = self._asked(wanting[:count])
            closed_products = self._products(tenant, asked, leaving)
            return closed_products, bool(closed_products) and _possible(asked) <= closed_products

        denied, is_denied = closed_for(len(wanting))
        has_begun = any(self._picture.claim_of(member.pod) is not None for member in workload.members)
        if not is_denied or has_begun or workload.least >= len(wanting):
            return wanting, denied

        # A gang can begin with fewer. A binary search: if the cap leaves GPUs for some members, it does for fewer.
        low, high = workload.least, len(wanting) - 1
        best = None
        while low <= high:
            middle = (low + high + 1) // 2
            closed_for_fewer, is_denied = closed_for(middle)
            if is_denied:
                high = middle - 1
            else:
                best, low = (wanting[:middle], closed_for_fewer), middle + 1
        return (wanting, denied) if best is None else best

    def _asked(self, members: Sequence[Member]) -> list[tuple[int, dict[str, float]]]:
        """Return what members request, as pairs: how many members, and the GPUs of each by the products it may get.

        Members with the same request are one pair. A member that joins a shared set that exists needs no more GPUs.
        """
        members_by_request: dict[object, list[Member]] = {}
        for member in members:
            joins_existing_set = is_set(member.wish.claim) and member.wish.claim in self._picture.claims
            if not joins_existing_set:
                members_by_request.setdefault(member.wish.request, []).append(member)
        kinds = self._picture.inventory.kinds
        return [(len(alike), kinds.asked(alike[0].wish.request)) for alike in members_by_request.values()]

    def _products(
        self, tenant: str, asked: Sequence[tuple[int, dict[str, float]]], leaving: Mapping[str, float]
    ) -> Closed:
        """Return the products of which the caps do not leave enough GPUs for all that is requested together."""
        closed: set[str] = set()
        for cap in self._tenants.caps(tenant):
            room = cap.gpus - self._counted(tenant, cap, leaving) + _ROUNDING
            capped = {product for product in _possible(asked) if _counts_for(cap, product)}
            for product in capped - closed:
                gpus = sum(count * _needed(by_product, product, capped) for count, by_product in asked)
                if gpus > room:
                    closed.add(product)
        return frozenset(closed)

    def _over(self, tenant: str, asked: Sequence[tuple[int, dict[str, float]]], leaving: Mapping[str, float]) -> Cap:
        """Return the first cap that is exceeded; the caller knows that one is."""
        possible = _possible(asked)
        for cap in self._tenants.caps(tenant):
            room = cap.gpus - self._counted(tenant, cap, leaving) + _ROUNDING
            if any(_counts_for(cap, product) for product in possible) and _most(asked, cap) > room:
                return cap
        raise AssertionError("one of them does")

    def _counted(self, tenant: str, cap: Cap, leaving: Mapping[str, float]) -> float:
        """Return how many GPUs count for a cap without some that are about to be released."""
        return self.used_of(tenant, cap) - math.fsum(
            gpus for product, gpus in leaving.items() if _counts_for(cap, product)
        )

    def _leaving(self, workload: PendingWorkload) -> dict[str, float]:
        """Return the GPUs by product that are released when a workload gets its place: those kept for it."""
        leaving: dict[str, float] = {}
        if (claim := kept_claim(self._picture, workload)) is not None:
            for bucket, gpus in self._picture.gpu_time.of(claim).items():
                _add(leaving, {bucket.product: gpus})
        return leaving

    # What people are told.

    def _told(self, tenant: str, cap: Cap) -> str:
        """Return how much of a cap a tenant uses, in words."""
        return f"tenant {tenant} holds {_plain(self.used_of(tenant, cap))} of {counted(cap.gpus, 'GPU')}{_of(cap)}"

    def _who(self, tenant: str, cap: Cap) -> str:
        """Return which pods or gangs use most of a cap, in words. The answer may be ``_FRESH_S`` seconds old."""
        now = asyncio.get_running_loop().time()
        cached = self._users.get((tenant, cap))
        if cached is not None and now < cached[0] + _FRESH_S:
            return cached[1]
        gpus_by_user: dict[str, float] = {}
        gpu_time = self._picture.gpu_time
        for claim in gpu_time.claims():
            if self._tenants.of(claim[0]) != tenant:
                continue
            for bucket, gpus in gpu_time.of(claim).items():
                if _counts_for(cap, bucket.product):
                    pods = self._picture.claim_users.of(claim)
                    # The owner if there is one, else the first pod, else the claim itself.
                    name = bucket.owner.partition("/")[2] or (min(pods)[1] if pods else claim[1])
                    _add(gpus_by_user, {f"{claim[0]}/{name[:_LONGEST]}": gpus})
        ranked = sorted(gpus_by_user.items(), key=lambda item: (-item[1], item[0]))
        more = f" and {len(ranked) - _NAMED} more" if len(ranked) > _NAMED else ""
        text = ", ".join(f"{name} {_plain(gpus)}" for name, gpus in ranked[:_NAMED]) + more
        self._users[tenant, cap] = now, text
        return text


def _of(cap: Cap) -> str:
    """Return of which products the GPUs of a cap are, in words; empty for all."""
    return f" of {', '.join(cap.products)}" if cap.products else ""


def _counts_for(cap: Cap, product: str) -> bool:
    """Return whether GPUs of a product count for a cap; a cap without products counts all."""
    return not cap.products or of_products(product, cap.products)


def _possible(asked: Sequence[tuple[int, dict[str, float]]]) -> set[str]:
    """Return the products that at least one of these requests may get."""
    return {product for _, by_product in asked for product in by_product}


def _needed(by_product: Mapping[str, float], product: str, capped: set[str]) -> float:
    """Return how many GPUs of a cap a request needs if it gets this product.

    A request that cannot use the product gets another one of the same cap: the most that it may need counts.
    """
    if product in by_product:
        return by_product[product]
    return max((by_product[other] for other in capped & by_product.keys()), default=0.0)


def _most(asked: Sequence[tuple[int, dict[str, float]]], cap: Cap) -> float:
    """Return how many GPUs of a cap these requests need at most."""
    return sum(
        count * max((gpus for product, gpus in by_product.items() if _counts_for(cap, product)), default=0)
        for count, by_product in asked
    )


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add GPUs by product to a total."""
    for product, gpus in more.items():
        total[product] = total.get(product, 0.0) + gpus


def _plain(gpus: float) -> str:
    return f"{round(gpus, 2):g}" if gpus < 1e5 else f"{gpus:.0f}"
