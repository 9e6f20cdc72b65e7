"""GPU time: who has how much of which GPUs, and what that came to in each hour.

It is the sum over what claims hold, whoever chose it: each claim counts from its allocation until its devices are free
for others. Parts count as the part of the GPU that they keep from others.
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
_HASH: Final = "pod-template-hash"
_LONGEST_OWNER: Final = 320  # a kind of 63 characters and a name of 253
_LONGEST_NAME: Final = 253


class Who(NamedTuple):
    """Whose a claim is.

    Attributes:
        owner: What made its pod (``owner_of``).
        pod: Its pod's name; of several that share it one's.
        idle_since: Since when all that it has does nothing, seconds since the epoch; None where nobody says so.
    """

    owner: str = ""
    pod: str = ""
    idle_since: float | None = None


class _Hold(msgspec.Struct):
    """What a claim has.

    Attributes:
        holds: Of which devices it has what.
        given: Whether the scheduler gave it that; else it is promised.
        gpus: How many GPUs that comes to, by bucket.
        since: When it was counted last, seconds since the epoch.
        who: Whose it is.
        idle_until: Until when it was counted what did nothing.
        sure: Whether it was weighed again a while after it was seen, and with its nodes: by then its pod is known, if
            ever.
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
    """Return whom GPU time is counted for as a pod's owner, such as ``Job/train`` or the Deployment; empty without one.

    It is a pod's author's word: what no object can be called is not kept, for its length would take others their rows.
    """
    owner = "" if pod is None else _said_owner(pod)
    return owner if len(owner) <= _LONGEST_OWNER and owner.isascii() and owner.isprintable() else ""


def whose(claim: ClaimRecord | None, pods: Mapping[Key, Pod | None]) -> Who:
    """Return whose GPU time a claim counts as.

    Args:
        claim: The claim; None where it is not there.
        pods: Its pods, those that are known.
    """
    owner = next((owner for pod in pods.values() if (owner := owner_of(pod))), "")
    named = [name for _, name in pods] or ([] if claim is None else [name for name, _ in claim.owners])
    idle = None if claim is None or claim.idle is None else claim.idle.since
    return Who(owner, _name_kept(min(named, default="")), idle)


def _name_kept(name: str) -> str:
    """Return a pod's name as it is kept: one that no pod can have is not."""
    return name if len(name) <= _LONGEST_NAME and name.isascii() and name.isprintable() else ""


def _said_owner(pod: Pod) -> str:
    for owner in pod.metadata.owner_references:
        if owner.controller:
            revision = f"-{pod.metadata.labels.get(_HASH, '')}"
            if owner.kind == "ReplicaSet" and len(revision) > 1 and owner.name.endswith(revision):
                return f"Deployment/{owner.name.removesuffix(revision)}"
            return f"{owner.kind}/{owner.name}"
    return ""


def decayed(hours: Hours, now: float, *, half_life_s: float) -> dict[str, float]:
    """Return what each namespace used by hours, GPU-seconds, decayed until now; in each hour as if used evenly.

    What is not known whose it was is nobody's.
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
    """What claims hold now, and the GPU-seconds of each hour.

    Attributes:
        changed: A namespace is given so many more GPUs, and is given or promised so many more; negative for fewer.
        charges: How many GPUs each namespace is given or promised, by product; by none those on nodes without slices.
        charged: A namespace is given or promised so many more GPUs, by product; negative for fewer.
        book: GPU-seconds as far as they are settled, from ``begin`` on.
        until: Until when all is settled, seconds since the epoch; it does not go back where the clock does.
    """

    def __init__(
        self,
        pool: Callable[[str], Pool | None],
        who: Callable[[Key], Who],
        results: Callable[[Key], Mapping[Device, Usage] | None] = lambda _claim: None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin without claims.

        Args:
            pool: Returns a node's pool of GPUs.
            who: Returns the owner, the pod and the idleness of a claim.
            results: Returns what another driver allocated to a claim, if that is less than the claim keeps from
                others; else None.
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
        """Return GPU-seconds by hour, as far as they are settled."""
        return self.book.hours

    def holds(self, claim: Key, holds: Mapping[Device, Usage], *, given: bool) -> None:
        """Count the GPU time of a claim from now on by what it holds.

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
        """Do not count a claim again when the pools of these nodes become known."""
        for node in self._unknown.keys() & nodes:
            self._unknown[node].discard(claim)
            if not self._unknown[node]:
                del self._unknown[node]

    def pool_known(self, node: str) -> None:
        """Count GPU time on a node by its pool, which is known now."""
        for claim in self._unknown.pop(node, ()):
            if (hold := self._holds.get(claim)) is not None:
                self._weigh_again(claim, hold, sure=False)

    def claims(self) -> tuple[Key, ...]:
        """Return the claims whose GPU time is counted."""
        return tuple(self._holds)

    def of(self, claim: Key) -> dict[Bucket, float]:
        """Return how many GPUs a claim is given or promised, by bucket of GPU time."""
        hold = self._holds.get(claim)
        return {} if hold is None else hold.gpus

    def given(self, claim: Key) -> dict[Bucket, float]:
        """Return how many GPUs a claim is given, by bucket; none while they are only promised."""
        hold = self._holds.get(claim)
        return hold.gpus if hold is not None and hold.given else {}

    def recharge(self) -> list[str]:
        """Add up again how many GPUs namespaces are given or promised. Returns those that were wrong."""
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
        """Return whether a claim's GPU time is counted with what it holds."""
        known = self._holds.get(claim)
        return not holds if known is None else (known.holds == holds and known.given == given)

    def settle(self) -> None:
        """Count the GPU time of all claims until now."""
        for _ in self._settling():
            pass

    async def catch_up(self) -> None:
        """Count the GPU time of all claims until now in small steps: thousands may have been held for weeks."""
        for _ in self._settling():
            await asyncio.sleep(0)

    def _settling(self) -> Iterator[None]:
        """Count all that is held until now, a slice at a time; what changes meanwhile counts by itself."""
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
        """Continue counting GPU time from what another replica counted.

        It counts with the next ``catch_up`` or ``settle``.

        Args:
            hours: What it counted.
            until: Until when, seconds since the epoch.
            given_at: Gives when a claim got its devices.
            details: What else it knew.
        """
        self.book.begin(hours, {} if details is None else details)
        now = self._clock()
        for claim, hold in self._holds.items():
            hold.since = hold.idle_until = max(until, min(given_at(claim), now))
        self.until = until

    def end(self) -> None:
        """Stop counting GPU time: another replica does it."""
        self.book.end()

    def now(self) -> dict[str, tuple[float, float]]:
        """Return how many GPUs each namespace is given now, and how many it is given or promised."""
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
        """Add what was held since it was counted last, to each hour its part; all of an hour is left in ``gaps``.

        A clock that goes back counts nothing until it is where it was, and one that leaps ahead no more than there are
        days of. An agent says some minutes later since when a claim does nothing; that counts, too, as far as this
        replica has counted what the claim holds.
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
    """Add so many GPUs by product, and keep no rounding errors of those that are gone."""
    for product, gpus in more.items():
        total[product] = total.get(product, 0.0) + gpus
        if abs(total[product]) < _LEAST:
            del total[product]
