"""GPU time: which claims use how many GPUs, and the GPU-seconds of each hour.

All claims count, whichever scheduler or controller chose their devices, from the allocation until other claims can get
the devices. A fraction counts as the fraction of the GPU that others cannot use. Quotas, fair share and metrics use it.

A *tentative placement* is the node and GPUs that are chosen for a pod whose claim the scheduler has not allocated yet.
A *pool* is all ResourceSlices of a node, and has the node's name.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Device, Key, Usage
from dradriver.api.claims.usage_config_maps import DAY_H, HOUR_S, Bucket, Details, Hours
from dradriver.api.policies.fields import MOST_DAYS
from dradriver.cluster.gpus.gpu_parts import gpus_of
from dradriver.cluster.gpus.pools import Pool
from dradriver.cluster.pods.gpu_hours import Gap, GpuHours
from dradriver.cluster.records.records import ClaimRecord
from dradriver.event import Event

_LONGEST_S: Final = MOST_DAYS * DAY_H * HOUR_S
_CLAIMS: Final = 256  # counted before others have their turn
_WRONG: Final = 1e-3  # GPUs; what adding up fractions may lose is far less
_LEAST: Final = 1e-9  # GPUs; less is what adding up fractions has lost
_LONGEST_OWNER: Final = 320  # a kind of 63 characters and a name of 253
_LONGEST_NAME: Final = 253


class Who(NamedTuple):
    """The owner and the pod to which a claim's GPU time is charged.

    Attributes:
        owner: The owner of its pod (``owner_of``).
        pod: The name of its pod, or of one of the pods that share it.
        idle_since: Since when all its devices are idle, seconds since the epoch; None if they are not known to be idle.
    """

    owner: str = ""
    pod: str = ""
    idle_since: float | None = None


class _Hold(msgspec.Struct):
    """The devices of a claim, as they are counted.

    Attributes:
        holds: The devices, with the fraction of each.
        given: Whether the scheduler allocated them. If False, they are a tentative placement.
        gpus: The number of GPUs that they count as, by bucket (namespace, owner, product and kind).
        since: The time up to which the claim's GPU time is already counted, seconds since the epoch.
        who: The owner and pod that the time is charged to.
        idle_until: The time up to which its idle time is already counted, seconds since the epoch.
        sure: Whether ``gpus`` and ``who`` are final. When the claim is first seen, its pod or the slices of its nodes
            may not be known yet. So both values are computed again some time later.
    """

    holds: Mapping[Device, Usage]
    given: bool
    gpus: dict[Bucket, float]
    since: float
    who: Who
    idle_until: float
    sure: bool = False

    @property
    def charged(self) -> float:
        return math.fsum(self.gpus.values())


def owner_of(pod: Pod | None) -> str:
    """Return the owner that a pod's GPU time is charged to, such as ``Job/train``; empty without one.

    The pod's author can write any text as its owner. Long or unprintable texts are dropped, because no object has such
    a name, and they would fill the stored table.
    """
    owner = "" if pod is None else pod.metadata.replacing_owner
    return owner if len(owner) <= _LONGEST_OWNER and owner.isascii() and owner.isprintable() else ""


def whose(claim: ClaimRecord | None, pods: Mapping[Key, Pod | None]) -> Who:
    """Return the owner and the pod that a claim's GPU time is charged to, and since when its devices are idle.

    The owner is such as ``Job/train`` (``owner_of``). If several pods share the claim, the result has the first name of
    a pod, and the owner of any of them. Unknown parts of the result are empty.

    Args:
        claim: The claim; None if it does not exist.
        pods: The claim's pods; None for a pod that is not known.
    """
    owner = next((owner for pod in pods.values() if (owner := owner_of(pod))), "")
    named = [name for _, name in pods] or ([] if claim is None else [name for name, _ in claim.owners])
    idle = None if claim is None or claim.idle is None else claim.idle.since
    return Who(owner, _name_kept(min(named, default="")), idle)


def _name_kept(name: str) -> str:
    """Return a pod's name; empty if no pod can have such a name, which is then not stored."""
    return name if len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable() else ""


def decayed(hours: Hours, now: float, *, half_life_s: float) -> dict[str, float]:
    """Return each namespace's usage in GPU-seconds, in which older usage counts less.

    The usage of an hour is treated as spread evenly over the hour. Usage without a known namespace is left out.

    Args:
        hours: The GPU-seconds by hour and bucket (namespace, owner, product and kind).
        now: The time, seconds since the epoch.
        half_life_s: The time after which usage counts half, in seconds.
    """
    by_namespace: dict[str, float] = {}
    for hour, buckets in hours.items():
        middle = (hour * HOUR_S + min((hour + 1) * HOUR_S, now)) / 2
        weight = 0.5 ** (max(now - middle, 0.0) / half_life_s)
        for bucket, seconds in buckets.items():
            if bucket.namespace:
                by_namespace[bucket.namespace] = by_namespace.get(bucket.namespace, 0.0) + seconds * weight
    return by_namespace


class GpuTime:
    """The GPUs that claims use now, and the GPU-seconds of each hour.

    Time is settled when it has been added to the GPU-seconds of its hours.

    Attributes:
        changed: Is called with a namespace, the change of its allocated GPUs, and the change of its allocated and
            tentative GPUs together.
        charges: The allocated and tentative GPUs of each namespace, by product. The product is empty on nodes without
            slices.
        charged: Is called with a namespace and the change of its charges, by product.
        book: The GPU-seconds that are settled, since ``begin``.
        until: The time up to which all GPU time is settled, seconds since the epoch. It does not go back if the clock
            does.
    """

    def __init__(
        self,
        pool: Callable[[str], Pool | None],
        who: Callable[[Key], Who],
        results: Callable[[Key], Mapping[Device, Usage] | None] = lambda _claim: None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make an object that counts no claims yet.

        Args:
            pool: Returns a node's pool of GPUs.
            who: Returns the owner, the pod and the idleness of a claim.
            results: Returns exactly the devices that another driver allocated to a claim; None if this driver
                allocates. Only these are charged, even if other claims cannot get more devices because of the claim.
            clock: Returns seconds since the epoch.
        """
        self._pool = pool
        self._who = who
        self._results = results
        self._clock = clock
        self._holds: dict[Key, _Hold] = {}  # by claim: what it holds now, and since when
        self.changed: Event[[str, float, float]] = Event()
        self.charges: dict[str, dict[str, float]] = {}
        self.charged: Event[[str, Mapping[str, float]]] = Event()
        self._unknown: dict[str, set[Key]] = {}  # by node without a pool: claims to count again once it has one
        self.book = GpuHours()
        self.until = 0.0

    @property
    def hours(self) -> Hours:
        """Return the GPU-seconds that are counted so far, by hour and by bucket.

        A bucket is a namespace, owner, product and kind of usage.
        """
        return self.book.hours

    def holds(self, claim: Key, holds: Mapping[Device, Usage], *, given: bool) -> None:
        """Count a claim's GPU time from now on for these devices.

        Args:
            claim: The claim.
            holds: Its devices, with its usage of each; empty once it has none.
            given: Whether the scheduler has allocated them; else they are a tentative placement.
        """
        former = self._holds.get(claim)
        who = self._who(claim)
        if self.counts(claim, holds, given=given):  # the same as before, except perhaps that its pods are idle now
            if former is not None and who.idle_since != former.who.idle_since:
                self._settle_one(former)
                former.who = former.who._replace(idle_since=who.idle_since)
            return
        if former is not None:
            self._settle_one(former)  # the time until now counts by what it held
        current = None
        if holds:
            now = self._clock()
            current = self._holds[claim] = _Hold(holds, given, self._weighed(claim, holds, who.owner), now, who, now)
        else:
            del self._holds[claim]
            if former is not None:
                self._forget_unknown(claim, {node for node, _ in former.holds})
        self._tell(claim[0], former, current)

    def _forget_unknown(self, claim: Key, nodes: Collection[str]) -> None:
        """Forget that a claim must be counted again once some nodes' GPUs are known.

        ``nodes`` are these nodes.
        """
        for node in self._unknown.keys() & nodes:
            self._unknown[node].discard(claim)
            if not self._unknown[node]:
                del self._unknown[node]

    def pool_known(self, node: str) -> None:
        """Count again the claims on a node whose GPUs have become known from its slices."""
        for claim in self._unknown.pop(node, ()):
            if (hold := self._holds.get(claim)) is not None:
                self._weigh_again(claim, hold, sure=False)

    def claims(self) -> tuple[Key, ...]:
        """Return the claims whose GPU time is counted."""
        return tuple(self._holds)

    def of(self, claim: Key) -> dict[Bucket, float]:
        """Return the number of allocated or tentative GPUs of a claim.

        The keys are buckets: namespace, owner, product and kind.
        """
        hold = self._holds.get(claim)
        return {} if hold is None else hold.gpus

    def given(self, claim: Key) -> dict[Bucket, float]:
        """Return the number of allocated GPUs of a claim; empty for a tentative placement.

        The keys are buckets: namespace, owner, product and kind.
        """
        hold = self._holds.get(claim)
        return hold.gpus if hold is not None and hold.given else {}

    def recharge(self) -> list[str]:
        """Compute the allocated and tentative GPUs of all namespaces (``charges``) again.

        Returns:
            The namespaces whose charges were wrong.
        """
        by_namespace: dict[str, dict[str, float]] = {}
        for (namespace, _), hold in self._holds.items():
            _add_up(by_namespace.setdefault(namespace, {}), _by_product(hold))
        wrong = {}
        for namespace in self.charges.keys() | by_namespace.keys():
            counted, right = self.charges.get(namespace, {}), by_namespace.get(namespace, {})
            more = {product: right.get(product, 0.0) - counted.get(product, 0.0) for product in counted.keys() | right}
            if any(abs(gpus) > _WRONG for gpus in more.values()):
                wrong[namespace] = more
        self.charges = by_namespace
        for namespace, more in wrong.items():
            self.charged(namespace, more)
        return sorted(wrong)

    def counts(self, claim: Key, holds: Mapping[Device, Usage], *, given: bool) -> bool:
        """Return whether a claim is already counted with exactly these devices (``holds``).

        ``given`` says that the scheduler has allocated them; else they are a tentative placement.
        """
        known = self._holds.get(claim)
        return not holds if known is None else (known.holds == holds and known.given == given)

    def settle(self) -> None:
        """Count the GPU time of all claims until now."""
        for _ in self._settling():
            pass

    async def catch_up(self) -> None:
        """Count the GPU time of all claims until now in small steps.

        A single step would block the event loop, because thousands of claims may have been in use for weeks.
        """
        for _ in self._settling():
            await asyncio.sleep(0)

    def _settling(self) -> Iterator[None]:
        """Count the GPU time of all claims until now in small steps; yields after each step.

        A claim that changes between two steps is counted at its change.
        """
        now, gaps = self._clock(), list[Gap]()
        for number, claim in enumerate(list(self._holds), 1):
            hold = self._holds.get(claim)
            if hold is not None:
                self._settle(hold if hold.sure else self._weigh_again(claim, hold, sure=True), now, gaps)
            if number % _CLAIMS == 0:
                yield
        yield from self.book.fill(gaps)
        if not now < self.until <= now + _LONGEST_S:
            self.until = now

    def _settle_one(self, hold: _Hold) -> None:
        gaps: list[Gap] = []
        self._settle(hold, self._clock(), gaps)
        for _ in self.book.fill(gaps):
            pass

    def begin(
        self, hours: Hours, until: float, given_at: Callable[[Key], float], *, details: Details | None = None
    ) -> None:
        """Continue counting from the GPU time that another replica counted.

        The time since then is added by the next ``catch_up`` or ``settle``.

        Args:
            hours: The GPU-seconds that the other replica counted.
            until: Until when they are counted, seconds since the epoch.
            given_at: Returns when a claim's devices were allocated, seconds since the epoch.
            details: Idle GPU-seconds, and GPU-seconds by pod, for each hour; None for none.
        """
        self.book.begin(hours, {} if details is None else details)
        now = self._clock()
        for claim, hold in self._holds.items():
            hold.since = hold.idle_until = max(until, min(given_at(claim), now))
        self.until = until

    def end(self) -> None:
        """Stop counting GPU time: another replica of the controller does it."""
        self.book.end()

    def now(self) -> dict[str, tuple[float, float]]:
        """Return for each namespace how many GPUs claims use now, as two numbers.

        The first counts allocated GPUs, the second allocated and tentative GPUs together.
        """
        by_namespace: dict[str, tuple[float, float]] = {}
        for (namespace, _), hold in self._holds.items():
            given, charged = by_namespace.get(namespace, (0.0, 0.0))
            by_namespace[namespace] = given + hold.charged * hold.given, charged + hold.charged
        return by_namespace

    def _weighed(self, claim: Key, holds: Mapping[Device, Usage], owner: str) -> dict[Bucket, float]:
        gpus: dict[Bucket, float] = {}
        results = self._results(claim) if holds else None
        for (node, device), usage in (holds if results is None else results).items():
            if (pool := self._pool(node)) is None:
                self._unknown.setdefault(node, set()).add(claim)
            for product, kind, part in gpus_of(pool, device, usage):
                bucket = Bucket(claim[0], owner, product, kind)
                gpus[bucket] = gpus.get(bucket, 0.0) + part
        return gpus

    def _weigh_again(self, claim: Key, hold: _Hold, *, sure: bool) -> _Hold:
        known = all(self._pool(node) is not None for node, _ in hold.holds)
        who = self._who(claim)
        gpus = self._weighed(claim, hold.holds, who.owner)
        new = msgspec.structs.replace(
            hold, gpus=gpus, sure=sure and known, who=who._replace(idle_since=hold.who.idle_since)
        )
        self._holds[claim] = new
        self._tell(claim[0], hold, new)
        return new

    def _tell(self, namespace: str, old: _Hold | None, new: _Hold | None) -> None:
        before, after = 0.0 if old is None else old.charged, 0.0 if new is None else new.charged
        had, has = before if old is not None and old.given else 0.0, after if new is not None and new.given else 0.0
        if (before, had) != (after, has):
            self.changed(namespace, has - had, after - before)
        gone, come = _by_product(old), _by_product(new)
        if gone != come:
            more = {product: come.get(product, 0.0) - gone.get(product, 0.0) for product in gone.keys() | come}
            _add_up(self.charges.setdefault(namespace, {}), more)
            if not self.charges[namespace]:
                del self.charges[namespace]
            self.charged(namespace, more)

    def _settle(self, hold: _Hold, now: float, gaps: list[Gap]) -> None:
        """Add a claim's GPU time since it was counted last. Whole hours are appended to ``gaps``.

        If the clock went back, nothing is added until it has caught up. If the clock jumped ahead, at most as many days
        are added as GPU time is kept for.

        A node agent reports some minutes late that a claim is idle. These minutes are then added as idle time, but only
        as far as this replica itself has counted the claim's time.

        Args:
            hold: The claim's devices, with the time up to which they are counted.
            now: The present time, seconds since the epoch.
            gaps: The list to which whole hours are appended. The caller must add them.
        """
        if now < hold.since <= now + _LONGEST_S:
            return
        since, hold.since = max(hold.since, now - _LONGEST_S), now
        if not (self.book.counts and hold.given):
            hold.idle_until = now
            return
        if since < now:
            self.book.add(since, now, hold.gpus, hold.who.pod, gaps)
        if (idle_since := hold.who.idle_since) is not None:
            idle = max(idle_since, hold.idle_until, now - _LONGEST_S)
            if idle < now:
                self.book.add(idle, now, hold.gpus, hold.who.pod, gaps, idle=True)
                hold.idle_until = now


def _by_product(hold: _Hold | None) -> dict[str, float]:
    by_product: dict[str, float] = {}
    for bucket, gpus in ({} if hold is None else hold.gpus).items():
        by_product[bucket.product] = by_product.get(bucket.product, 0.0) + gpus
    return by_product


def _add_up(total: dict[str, float], more: Mapping[str, float]) -> None:
    """Add the numbers of GPUs in ``more`` to ``total``, by product.

    An entry that becomes 0, except for rounding errors, is removed.
    """
    for product, gpus in more.items():
        total[product] = total.get(product, 0.0) + gpus
        if abs(total[product]) < _LEAST:
            del total[product]
