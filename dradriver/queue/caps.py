"""Limits a workload to the GPUs that the cap of its tenant leaves to it.

A cap is a tenant's largest number of GPUs at one time: of some GPU products, or of all. The GPUs of all claims in the
tenant's namespaces count, allocated or tentatively placed. A product is *closed* to a workload if a cap leaves too few
GPUs of it. If a cap is lowered, running workloads keep their GPUs. The controller and the CLI call this module.

A *member* is a pod of the workload. An *allowance* says which members may have a place under the limits, and on which
GPUs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from dradriver.allocator.request import NoPlaceError
from dradriver.api.base.errors import WordError
from dradriver.api.claims.pins import Key, is_set
from dradriver.api.policies.tenant_policies import Cap
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.gpus.gpu_parts import of_products
from dradriver.counted import counted, first_of
from dradriver.queue.equivalence_classes import ANYWHERE, Closed
from dradriver.queue.limits import NOWHERE, Allowance, Limit, LimitError, NeverAllowedError, kept_claim, members_wanting
from dradriver.queue.namespace_tenants import Tenants
from dradriver.queue.pending import Member, PendingWorkload
from dradriver.reason import Cause

UNKNOWN: Final = (
    "The tenant of the namespace is not known yet: some tenants select namespaces by labels, and the controller has "
    "not read the namespaces. It needs the verbs list and watch on namespaces"
)
INVALID_POLICIES: Final = (
    "The policies file is invalid, and the controller has restarted since it was valid. So the controller does not "
    "know the limits of tenants, and places no pods until an administrator corrects the file: gputopo verify prints "
    "the error"
)
_ROUNDING: Final = 1e-6  # GPUs that adding up fractions may lose
_NAMED: Final = 3  # workloads with the most GPUs that a reason names
_LONGEST: Final = 63  # characters of such a name
_FRESH_S: Final = 10.0  # for which they are not computed again: thousands of claims may have to be added up
_LEAST_S: Final = 1.0  # the same, if the number of GPUs in use has changed


class _Obstacle(NamedTuple):
    """The caps that keep a workload from all GPUs that it can use.

    Attributes:
        requested: The caps that deny one product: the product that the workload gets first when caps are raised or
            GPUs are released. Each cap has the number of GPUs that the workload requests and that count for it.
        always: The products that caps deny even if no other workload of the tenant uses GPUs.
        is_permanent: Whether these are all products that the workload can use.
    """

    requested: dict[Cap, float]
    always: Closed
    is_permanent: bool


class _Users(NamedTuple):
    """The workloads that use most GPUs under a cap, at one time.

    Attributes:
        at: When they were found, by the event loop's clock.
        used: How many GPUs of the tenant counted for the cap then.
        text: The workloads, each with its GPUs, for a message.
    """

    at: float
    used: float
    text: str


class Caps(Limit):
    """The limit that the caps of all tenants set, with the GPUs that count for them."""

    def __init__(
        self, tenants: Tenants, picture: Picture, eased: set[str], wake: Callable[[], object] = lambda: None
    ) -> None:
        """Create the limit from the current tenants and the GPUs that their claims have now.

        Args:
            tenants: The tenant of each namespace, with its caps.
            picture: The cluster cache, with the GPUs of each namespace. The caller must call ``charge`` when they
                change.
            eased: A set of the caller. When a tenant uses fewer GPUs than before, this class adds the tenant's name, so
                that the caller tries its workloads again.
            wake: Called whenever a tenant is added to ``eased``.
        """
        self._tenants, self._picture, self._eased, self._wake = tenants, picture, eased, wake
        self._use: dict[str, dict[str, float]] = {}  # GPUs by product, of tenants that were asked about
        self._users: dict[tuple[str, Cap], _Users] = {}

    @property
    def matters(self) -> bool:
        """Return whether a cap may apply to any workload, so that this limit must be in force.

        True if a tenant has a cap. Also true if tenants select namespaces by labels, or if the policies are not known:
        it can be unknown then whether a cap applies.
        """
        if self._tenants.by_labels or not self._tenants.policies_known:
            return True
        return any(tenant.cap for tenant in self._tenants.named.values())

    def regroup(self) -> None:
        """Forget which GPUs were counted for which tenant, because namespaces or caps have changed.

        The GPUs are counted again when the numbers are needed.
        """
        self._use.clear()
        self._users.clear()

    def use(self, tenant: str) -> Mapping[str, float]:
        """Return how many GPUs of a tenant count for its caps, by GPU product.

        The product is an empty text for GPUs whose product is not known.
        """
        usage = self._use.get(tenant)
        if usage is None:
            usage = self._use[tenant] = {}
            for namespace, gpus in self._picture.gpu_time.charges.items():
                if self._tenants.of(namespace) == tenant:
                    _add(usage, gpus)
        return usage

    def charge(self, namespace: str, more: Mapping[str, float]) -> None:
        """Count GPUs towards the caps of a namespace's tenant.

        Args:
            namespace: The namespace.
            more: The GPUs by product; negative numbers for GPUs that were released.
        """
        tenant = self._tenants.of(namespace)
        if not self._tenants.caps(tenant):
            return
        if (usage := self._use.get(tenant)) is not None:
            _add(usage, more)
        if any(gpus < 0 for gpus in more.values()):
            self._eased.add(tenant)
            self._wake()

    def used_of(self, tenant: str, cap: Cap) -> float:
        """Return how many GPUs of a tenant count for one of its caps.

        A cap can be about some products only.
        """
        return math.fsum(gpus for product, gpus in self.use(tenant).items() if _counts_for(cap, product))

    # What is asked about a workload.

    def closed(self, workload: PendingWorkload) -> Closed:
        """Return the GPU products that a workload cannot get now, because a cap is reached.

        Empty if no cap keeps a product from it.
        """
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
        """Return the members of a workload that can get GPUs within its tenant's caps.

        The result also has the GPU products that the caps deny them.

        Args:
            workload: The workload.
            allowance: The answer of the limits before this one.

        Raises:
            LimitError: The cap denies all GPUs that the workload requests.
            WordError: The workload's request cannot be read.
        """
        if not self._tenants.known(workload.key[0]):
            unknown = UNKNOWN if self._tenants.policies_known else INVALID_POLICIES
            raise LimitError(lambda: NoPlaceError(unknown, cause=Cause.CAP))
        tenant = self._tenants.of(workload.key[0])
        if not self._tenants.caps(tenant):
            return allowance
        members, closed = self._fitting(workload, allowance.members)
        if not closed:
            return allowance._replace(members=members)
        asked = self._asked(members)
        leaving = self._leaving(workload)
        if _possible(asked) <= closed:
            obstacle = self._obstacle(tenant, asked, leaving)
            cap, gpus = next(iter(obstacle.requested.items()))
            requester = "this gang requests" if workload.is_gang else "this pod requests"
            if len(members) < len(allowance.members):
                requester += " at least"
            limit = f'tenant "{tenant}" may use {counted(cap.gpus, "GPU")}{_of(cap)}, {requester} {_plain(gpus)}'
            if obstacle.is_permanent:
                raise NeverAllowedError(lambda: NoPlaceError(f"Refused by quota: {limit}", cause=Cause.CAP))
            # Who uses the cap is added up from all claims, and most callers do not read it.
            raise LimitError(partial(self._waiting, tenant, cap, limit))

        # Other products are left. The reason names a cap only if there is no place on them.
        cap = next(cap for cap in self._tenants.caps(tenant) if self._products(tenant, asked, leaving, [cap]))
        limit = f'tenant "{tenant}" may use {counted(cap.gpus, "GPU")}{_of(cap)}'
        in_use = f"In use: {_plain(self.used_of(tenant, cap))}"
        why = NoPlaceError(f"GPUs are left out by quota: {limit}", nearest=in_use, cause=Cause.CAP)
        return Allowance(members, allowance.closed | closed, why)

    def _waiting(self, tenant: str, cap: Cap, limit: str) -> NoPlaceError:
        """Return the error for a workload that waits until its tenant uses fewer GPUs.

        ``limit`` is the text about the tenant's ``cap`` and the workload's request.
        """
        used = self.used_of(tenant, cap)
        users = self._who(tenant, cap, used)
        in_use = f"In use: {_plain(used)}" + (f" ({users})" if users else "")
        return NoPlaceError(f"Waiting for quota: {limit}", nearest=in_use, cause=Cause.CAP)

    def _fitting(self, workload: PendingWorkload, wanting: tuple[Member, ...]) -> tuple[tuple[Member, ...], Closed]:
        """Return the members that the caps leave GPUs for, and the denied products.

        Returns:
            The first members in ``wanting`` for which the cap leaves enough GPUs, and the denied products. All of
                ``wanting`` are returned if a pod of the workload already has a claim, or if the workload needs all of
                them to start. If the cap leaves too few GPUs even for the fewest members that can start, these are
                returned.
        """
        tenant, leaving = self._tenants.of(workload.key[0]), self._leaving(workload)

        def closed_for(count: int) -> tuple[Closed, bool]:
            """Return the GPU products that caps deny the first ``count`` members.

            The second value is True if these members could use only denied products: then they cannot get their GPUs.
            """
            asked = self._asked(wanting[:count])
            closed_products = self._products(tenant, asked, leaving, self._tenants.caps(tenant))
            return closed_products, bool(closed_products) and _possible(asked) <= closed_products

        denied, is_denied = closed_for(len(wanting))
        has_begun = any(self._picture.claim_of(member.pod) is not None for member in workload.members)
        if not is_denied or has_begun or workload.least >= len(wanting):
            return wanting, denied

        # A gang can begin with fewer. A binary search: if the cap leaves GPUs for some members, it does for fewer.
        low, high = workload.least + 1, len(wanting) - 1
        best = wanting[: workload.least], closed_for(workload.least)[0]
        while low <= high:
            middle = (low + high + 1) // 2
            closed_for_fewer, is_denied = closed_for(middle)
            if is_denied:
                high = middle - 1
            else:
                best, low = (wanting[:middle], closed_for_fewer), middle + 1
        return best

    def _asked(self, members: Sequence[Member]) -> list[tuple[int, dict[str, float]]]:
        """Return the different requests of some members, each with its number of members.

        A request is given as the number of GPUs that one member needs, by GPU product that it can use. If a member
        joins a set of GPUs that other pods already share, it needs no more GPUs and is left out.
        """
        members_by_request: dict[object, list[Member]] = {}
        for member in members:
            joins_existing_set = is_set(member.wish.claim) and member.wish.claim in self._picture.claims
            if not joins_existing_set:
                members_by_request.setdefault(member.wish.request, []).append(member)
        kinds = self._picture.inventory.kinds
        return [(len(alike), kinds.asked(alike[0].wish.request)) for alike in members_by_request.values()]

    def _products(
        self,
        tenant: str,
        asked: Sequence[tuple[int, dict[str, float]]],
        leaving: Mapping[str, float],
        caps: Sequence[Cap],
    ) -> Closed:
        """Return the products for which some caps leave too few GPUs.

        Args:
            tenant: The tenant of the workload that requests GPUs.
            asked: The requests, as ``_asked`` returns them.
            leaving: GPUs by product that do not count (``_leaving``).
            caps: The caps of the tenant that count.
        """
        closed: set[str] = set()
        for cap in caps:
            room = cap.gpus - self._counted(tenant, cap, leaving)
            closed |= {product for product, gpus in _counting(asked, cap).items() if _exceeds(gpus, room)}
        return frozenset(closed)

    def _obstacle(
        self, tenant: str, asked: Sequence[tuple[int, dict[str, float]]], leaving: Mapping[str, float]
    ) -> _Obstacle:
        """Return what keeps the requests in ``asked`` from GPUs. Caps deny all products that they can use.

        Args:
            tenant: The tenant.
            asked: The requests, as ``_asked`` returns them.
            leaving: GPUs by product that do not count (``_leaving``).
        """
        # 1. Which products stay denied, whatever other workloads release.
        counting = {cap: _counting(asked, cap) for cap in self._tenants.caps(tenant)}
        possible = _possible(asked)
        always = frozenset(
            product
            for cap, by_product in counting.items()
            for product, gpus in by_product.items()
            if _exceeds(gpus, cap.gpus)
        )
        is_permanent = possible <= always

        # 2. For each other product, or each if there is no other: the caps that deny it, and how many GPUs are missing.
        lacking: dict[str, list[tuple[int, float]]] = {}
        for product in possible if is_permanent else possible - always:
            for index, (cap, by_product) in enumerate(counting.items()):
                room = cap.gpus if is_permanent else cap.gpus - self._counted(tenant, cap, leaving)
                if product in by_product and _exceeds(by_product[product], room):
                    lacking.setdefault(product, []).append((index, by_product[product] - room))

        # 3. Take the product that the first cap of the policies file denies, then the one that lacks the fewest GPUs.
        #    So the cap that a reason names seldom changes as GPUs are allocated and released.
        def order(product: str) -> tuple[int, float, str]:
            return lacking[product][0][0], sum(gpus for _, gpus in lacking[product]), product

        first = min(lacking, key=order)
        caps = list(counting)
        requested = {caps[index]: counting[caps[index]][first] for index, _ in lacking[first]}
        return _Obstacle(requested, always, is_permanent)

    def _counted(self, tenant: str, cap: Cap, leaving: Mapping[str, float]) -> float:
        """Return how many GPUs count for a tenant's cap.

        ``leaving`` has GPUs, by product, that do not count: they are already kept for the workload (``_leaving``).
        """
        return self.used_of(tenant, cap) - math.fsum(
            gpus for product, gpus in leaving.items() if _counts_for(cap, product)
        )

    def _leaving(self, workload: PendingWorkload, ended: Collection[Key] = ()) -> dict[str, float]:
        """Return the GPUs, by product, that do not count for the caps of a workload's tenant.

        These are the GPUs of the tenant's claims in ``ended``, and the GPUs that are already kept for the workload,
        which must not count twice. A claim keeps these GPUs for a replacement pod of a running gang. When the pod gets
        its place, this claim is deleted.
        """
        leaving: dict[str, float] = {}
        tenant, kept = self._tenants.of(workload.key[0]), kept_claim(self._picture, workload)
        own_ended = {claim for claim in ended if self._tenants.of(claim[0]) == tenant}
        for claim in own_ended if kept is None else own_ended | {kept}:
            for bucket, gpus in self._picture.gpu_time.of(claim).items():
                _add(leaving, {bucket.product: gpus})
        return leaving

    # What people are told.

    def closed_without(self, workload: PendingWorkload, members: Sequence[Member], ended: Collection[Key]) -> Closed:
        """Return the GPU products that the caps would deny some members if the claims in ``ended`` had ended.

        Raises:
            WordError: The request of a member cannot be read.
        """
        tenant = self._tenants.of(workload.key[0])
        leaving = self._leaving(workload, ended)
        return self._products(tenant, self._asked(members), leaving, self._tenants.caps(tenant))

    def raising_helps(
        self, workload: PendingWorkload, members: Sequence[Member], has_place: Callable[[Closed], bool]
    ) -> str:
        """Return sentences for users: which higher cap gives a workload a place among the GPUs that are free now.

        One cap is named if it is enough to raise this cap, else all caps that close products to the workload. The
        result is empty if no cap helps.

        Args:
            workload: The workload. It has no place now.
            members: The members of it that need a place.
            has_place: Returns whether they have a place if only these GPU products are denied.

        Raises:
            WordError: The request of a member cannot be read.
        """
        tenant, leaving = self._tenants.of(workload.key[0]), self._leaving(workload)
        asked, caps = self._asked(members), self._tenants.caps(tenant)
        closing = [cap for cap in caps if self._products(tenant, asked, leaving, [cap])]
        denied = self._products(tenant, asked, leaving, closing)
        raises = [[cap] for cap in closing]
        if len(closing) > 1:
            raises.append(closing)
        for raised in raises:
            still_denied = self._products(tenant, asked, leaving, [cap for cap in closing if cap not in raised])
            if still_denied == denied or not has_place(still_denied):
                continue
            lacking = {
                cap: round(self._counted(tenant, cap, leaving) + max(_counting(asked, cap).values()) - cap.gpus, 6)
                for cap in raised
            }
            higher = " and ".join(
                f"from {_plain(cap.gpus)} to {counted(cap.gpus + gpus, 'GPU')}{_of(cap)}"
                for cap, gpus in lacking.items()
            )
            help_text = (
                f'Ask an administrator to raise the cap of tenant "{tenant}" {higher}. Then there is a place at once: '
                "the GPUs that the cap leaves out are free."
            )
            if all(self._counted(tenant, cap, leaving) >= gpus for cap, gpus in lacking.items()):
                released = " and ".join(f"{counted(gpus, 'GPU')}{_of(cap)}" for cap, gpus in lacking.items())
                help_text += f" It is also enough if pods of the tenant release {released}."
            return f"{help_text} gputopo tenants shows the caps and their use."
        return ""

    def helps(self, workload: PendingWorkload) -> str:
        """Return a sentence for users: what would help a workload that these caps refuse.

        The result is empty if the tenant is not known.

        Raises:
            WordError: The workload's request cannot be read.
        """
        if not self._tenants.known(workload.key[0]):
            return ""
        tenant, leaving = self._tenants.of(workload.key[0]), self._leaving(workload)
        asked = self._asked(self._fitting(workload, members_wanting(workload))[0])
        obstacle = self._obstacle(tenant, asked, leaving)
        cap = next(iter(obstacle.requested))
        if obstacle.is_permanent:
            named = [cap]
            higher = f"to at least {counted(obstacle.requested[cap], 'GPU')}{_of(cap)}{self._in_use(tenant, cap)}"
            raising = f'ask an administrator to raise the cap of tenant "{tenant}" {higher}'
            help_text = f"Request at most {counted(cap.gpus, 'GPU')}{_of(cap)}, or {raising}."
        else:
            named = list(obstacle.requested)
            released = " and ".join(
                f"{_plain(lacking)} more GPU{'' if math.isclose(lacking, 1) else 's'}{_of(cap)}"
                for cap, gpus in obstacle.requested.items()
                for lacking in [self._counted(tenant, cap, leaving) + gpus - cap.gpus]
            )
            raised = "the cap" if len(named) == 1 else "these caps"
            if len(named) > 1:
                released += f" (one GPU can count for {'both' if len(named) == 2 else 'all'})"
            help_text = f'Pods of tenant "{tenant}" must release {released}, or an administrator must raise {raised}.'
        others = [
            f"{counted(other.gpus, 'GPU')}{_of(other)}{self._in_use(tenant, other)}"
            for other in self._tenants.caps(tenant)
            if other not in named and self._products(tenant, asked, leaving, [other]) & obstacle.always
        ]
        if others:
            help_text += f" These caps of the tenant also apply: {', '.join(others)}."
        if obstacle.is_permanent:
            return help_text
        if obstacle.always:
            products = first_of(sorted(obstacle.always), _NAMED)
            help_text += f" GPUs of {products} are left out until a cap is raised, even if the tenant uses none."
        needing = "gang" if workload.is_gang else "pod"
        return f"{help_text} The {needing} also needs enough free GPUs. gputopo tenants shows the caps and their use."

    def _in_use(self, tenant: str, cap: Cap) -> str:
        """Return how many GPUs of a tenant count for its cap as text: `` (in use: 4)``; empty if none do."""
        used = self.used_of(tenant, cap)
        return f" (in use: {_plain(used)})" if used > _ROUNDING else ""

    def _who(self, tenant: str, cap: Cap, used: float) -> str:
        """Return as text the pods or gangs that use most GPUs under a cap.

        Each is named with its number of GPUs, for a message. The text can be up to ``_FRESH_S`` seconds old. It is
        empty if the GPUs in use changed within the last second, so that a message never has figures of two times.
        ``used`` is how many GPUs count for the cap now.
        """
        now = asyncio.get_running_loop().time()
        cached = self._users.get((tenant, cap))
        if cached is not None:
            is_same = math.isclose(cached.used, used, abs_tol=_ROUNDING)
            if now < cached.at + (_FRESH_S if is_same else _LEAST_S):
                return cached.text if is_same else ""
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
        text = first_of([f"{name} {_plain(gpus)}" for name, gpus in ranked], _NAMED)
        self._users[tenant, cap] = _Users(now, used, text)
        return text


def _of(cap: Cap) -> str:
    """Return the products of a cap as text for a message; empty if the cap counts all products."""
    return f" of {', '.join(cap.products)}" if cap.products else ""


def _exceeds(gpus: float, room: float) -> bool:
    """Return whether a request for ``gpus`` GPUs is larger than the ``room`` that a cap leaves."""
    return gpus > room + _ROUNDING


def _counts_for(cap: Cap, product: str) -> bool:
    """Return whether GPUs of a product count for a cap; a cap without products counts all."""
    return not cap.products or of_products(product, cap.products)


def _possible(asked: Sequence[tuple[int, dict[str, float]]]) -> set[str]:
    """Return the GPU products that at least one of the requests in ``asked`` can use."""
    return {product for _, by_product in asked for product in by_product}


def _needed(by_product: Mapping[str, float], product: str, capped: set[str]) -> float:
    """Return how many GPUs of a cap one request uses if it gets ``product``.

    A request that cannot use ``product`` gets another product that counts for the cap. Then the largest number of GPUs
    that it could need counts. The result is 0 if no product that counts for the cap can serve the request.

    Args:
        by_product: The GPUs that the request needs, by product that it can use.
        product: The product.
        capped: The products that count for the cap.
    """
    if product in by_product:
        return by_product[product]
    return max((by_product[other] for other in capped & by_product.keys()), default=0.0)


def _counting(asked: Sequence[tuple[int, dict[str, float]]], cap: Cap) -> dict[str, float]:
    """Return how many GPUs of a cap all requests in ``asked`` use together, by the product that they get."""
    capped = {product for product in _possible(asked) if _counts_for(cap, product)}
    return {
        product: sum(count * _needed(by_product, product, capped) for count, by_product in asked) for product in capped
    }


def _add(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add GPUs by product (``more``) to the sums by product (``total``)."""
    for product, gpus in more.items():
        total[product] = total.get(product, 0.0) + gpus


def _plain(gpus: float) -> str:
    return f"{round(gpus, 2):g}" if gpus < 1e5 else f"{gpus:.0f}"
