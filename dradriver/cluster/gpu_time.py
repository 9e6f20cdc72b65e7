"""GPU time: who has how much of which GPUs, and what that came to in each hour.

It is the sum over what claims hold, whoever chose it: each claim counts from its allocation until its devices are free
for others. Parts count as the part of the GPU that they keep from others.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from dradriver.allocator.request import Amount
from dradriver.api import slices
from dradriver.api.pins import ALL_CORES, Device, Key, MigSlice, Usage
from dradriver.api.pods import Pod
from dradriver.api.policies.model import MOST_DAYS
from dradriver.api.usage import DAY_H, HOUR_S, MOST_ROWS, OTHERS, Bucket, Hours, Kind, bounded
from dradriver.cluster.pools import Pool
from dradriver.topology.machine import Gpu

_SLICES: Final = 8  # memory slices of a GPU whose profiles nobody knows
_LONGEST_S: Final = MOST_DAYS * DAY_H * HOUR_S
_CLAIMS: Final = 256  # counted before others have their turn
_HOURS: Final = 4
_LEAST: Final = 1e-9  # GPUs; less is what adding up fractions has lost
_HASH: Final = "pod-template-hash"
_LONGEST_OWNER: Final = 320  # a kind of 63 characters and a name of 253


_Gap = tuple[int, int, dict[Bucket, float]]
"""From which hour to before which something was held, and how many GPUs."""


class _Hold(msgspec.Struct):
    """What a claim has.

    Attributes:
        holds: Of which devices it has what.
        given: Whether the scheduler gave it that; else it is promised.
        gpus: How many GPUs that comes to, by bucket.
        since: When it was counted last, seconds since the epoch.
        sure: Whether it was weighed again a while after it was seen, and with its nodes: by then its pod is known, if
            ever.
    """

    holds: Mapping[Device, Usage]
    given: bool
    gpus: dict[Bucket, float]
    since: float
    sure: bool = False

    @property
    def charged(self) -> float:
        return math.fsum(self.gpus.values())


def owner_of(pod: Pod | None) -> str:
    """Return what made a pod, as ``Job/train``, of a Deployment's pod the Deployment; empty for a pod alone.

    It is a pod's author's word: what no object can be called is not kept, for its length would take others their rows.
    """
    owner = "" if pod is None else _said_owner(pod)
    return owner if len(owner) <= _LONGEST_OWNER and owner.isascii() and owner.isprintable() else ""


def _said_owner(pod: Pod) -> str:
    for owner in pod.metadata.owner_references:
        if owner.controller:
            revision = f"-{pod.metadata.labels.get(_HASH, '')}"
            if owner.kind == "ReplicaSet" and len(revision) > 1 and owner.name.endswith(revision):
                return f"Deployment/{owner.name.removesuffix(revision)}"
            return f"{owner.kind}/{owner.name}"
    return ""


def gpus_of(pool: Pool | None, device: str, usage: Usage) -> list[tuple[str, Kind, float]]:
    """Return what is taken of one device: the product, whether it is whole, and how many GPUs that is.

    A share is the larger of its parts of compute and memory, a MIG slice its part of the memory slices: so much of the
    GPU nobody else can have. That is so also of a slice that is a device of its own.

    Args:
        pool: The node's; None where its slices are not known, and neither is the product.
        device: The device's name.
        usage: What is taken of it.
    """
    gpu = None if pool is None else _gpu(pool, device)
    product = "" if gpu is None else gpu.product
    if usage is None and gpu is not None and (size := _size_of(gpu, device)):
        return [(product, "slice", size / _memory_slices(gpu))]
    if usage is None:
        return [(product, "whole", 1.0)]
    return [
        (product, "slice", part.size / _memory_slices(gpu))
        if isinstance(part, MigSlice)
        else (product, "share", _fraction(part, gpu))
        for part in usage
    ]


def _gpu(pool: Pool, device: str) -> Gpu | None:
    """Return the GPU that a device is or is a MIG slice of."""
    for gpu in pool.machine.gpus:
        name = slices.device_name(gpu.uuid)
        if device == name or device.startswith(f"{name}-"):
            return gpu
    return None


def _size_of(gpu: Gpu, device: str) -> int:
    """Return how many memory slices a device has that is a MIG slice of a GPU; 0 for the GPU itself."""
    named = (
        profile.size
        for profile in gpu.profiles
        for start in profile.starts
        if slices.part_name(gpu.uuid, profile.id, start) == device
    )
    return 0 if device == slices.device_name(gpu.uuid) else next(named, 0)


def _memory_slices(gpu: Gpu | None) -> int:
    return max((profile.size for profile in gpu.profiles), default=_SLICES) if gpu is not None else _SLICES


def _fraction(part: Amount, gpu: Gpu | None) -> float:
    memory = part.memory_mib / gpu.memory_mib if gpu is not None and gpu.memory_mib else 0.0
    return min(max(part.cores / ALL_CORES, memory), 1.0)


def decayed(hours: Hours, now: float, *, half_life_s: float) -> dict[str, float]:
    """Return what each namespace used by hours, GPU-seconds, decayed until now; in each hour as if used evenly.

    What is not known whose it was is nobody's.
    """
    found: dict[str, float] = {}
    for hour, buckets in hours.items():
        middle = (hour * HOUR_S + min((hour + 1) * HOUR_S, now)) / 2
        weight = 0.5 ** (max(now - middle, 0.0) / half_life_s)
        for bucket, seconds in buckets.items():
            if bucket.namespace:
                found[bucket.namespace] = found.get(bucket.namespace, 0.0) + seconds * weight
    return found


class GpuTime:
    """What claims hold now, and the GPU-seconds of each hour.

    Attributes:
        changed: Told the namespace, how many GPUs more it is given, and how many more it is given or promised.
        hours: GPU-seconds as far as they are settled, from ``begin`` on.
        grown: Hours of these that have grown; whoever writes them down takes them out.
    """

    def __init__(
        self,
        pool: Callable[[str], Pool | None],
        owner: Callable[[Key], str],
        results: Callable[[Key], Mapping[Device, Usage] | None] = lambda _claim: None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin with nothing.

        Args:
            pool: Gives a node's pool.
            owner: Gives what made a claim's pod (``owner_of``).
            results: Gives what another driver gave a claim, where that is less than it keeps from others; else None.
            clock: Gives seconds since the epoch.
        """
        self._pool = pool
        self._owner = owner
        self._results = results
        self._clock = clock
        self._holds: dict[Key, _Hold] = {}
        self.changed: Callable[[str, float, float], object] = lambda _namespace, _given, _charged: None
        self.hours: Hours = {}
        self.grown: set[int] = set()
        self._counts = False

    def holds(self, claim: Key, holds: Mapping[Device, Usage], *, given: bool) -> None:
        """Take in what a claim holds from now on.

        Args:
            claim: The claim.
            holds: Of which devices it has what, or was promised.
            given: Whether the scheduler gave it that.
        """
        known = self._holds.get(claim)
        if self.counts(claim, holds, given=given):
            return
        if known is not None:
            gaps: list[_Gap] = []
            self._settle(known, self._clock(), gaps)
            for _ in self._fill(gaps):
                pass
        if holds:
            new = self._holds[claim] = _Hold(holds, given, self._weighed(claim, holds), self._clock())
        else:
            new = None
            del self._holds[claim]
        self._tell(claim[0], known, new)

    def claims(self) -> tuple[Key, ...]:
        """Return the claims that are counted."""
        return tuple(self._holds)

    def counts(self, claim: Key, holds: Mapping[Device, Usage], *, given: bool) -> bool:
        """Return whether a claim is counted with what it holds."""
        known = self._holds.get(claim)
        return not holds if known is None else (known.holds == holds and known.given == given)

    def settle(self) -> None:
        """Count all that is held until now."""
        for _ in self._settling():
            pass

    async def catch_up(self) -> None:
        """Count all that is held until now, and give way: thousands of claims may have been held for weeks."""
        for _ in self._settling():
            await asyncio.sleep(0)

    def _settling(self) -> Iterator[None]:
        """Count all that is held until now, a slice at a time; what changes meanwhile counts by itself."""
        now, gaps = self._clock(), list[_Gap]()
        for number, claim in enumerate(list(self._holds), 1):
            hold = self._holds.get(claim)
            if hold is not None:
                self._settle(hold if hold.sure else self._weigh_again(claim, hold), now, gaps)
            if number % _CLAIMS == 0:
                yield
        yield from self._fill(gaps)

    def begin(self, hours: Hours, until: float, given_at: Callable[[Key], float]) -> None:
        """Go on from what another replica counted; what claims held since then counts, as far as they are there still.

        It counts with the next ``catch_up`` or ``settle``.

        Args:
            hours: What it counted.
            until: Until when, seconds since the epoch.
            given_at: Gives when a claim got its devices.
        """
        self.hours, self.grown, self._counts = hours, set(), True
        now = self._clock()
        for claim, hold in self._holds.items():
            hold.since = min(max(until, given_at(claim)), now)

    def end(self) -> None:
        """Count no more: another replica does."""
        self.hours, self.grown, self._counts = {}, set(), False

    def forget_before(self, hour: int) -> None:
        """Forget what is older than an hour."""
        for old in [each for each in self.hours if each < hour]:
            del self.hours[old]

    def now(self) -> dict[str, tuple[float, float]]:
        """Return how many GPUs each namespace is given now, and how many it is given or promised."""
        found: dict[str, tuple[float, float]] = {}
        for (namespace, _), hold in self._holds.items():
            given, charged = found.get(namespace, (0.0, 0.0))
            found[namespace] = given + hold.charged * hold.given, charged + hold.charged
        return found

    def _weighed(self, claim: Key, holds: Mapping[Device, Usage]) -> dict[Bucket, float]:
        owner = self._owner(claim)
        gpus: dict[Bucket, float] = {}
        results = self._results(claim) if holds else None
        for (node, device), usage in (holds if results is None else results).items():
            for product, kind, part in gpus_of(self._pool(node), device, usage):
                bucket = Bucket(claim[0], owner, product, kind)
                gpus[bucket] = gpus.get(bucket, 0.0) + part
        return gpus

    def _weigh_again(self, claim: Key, hold: _Hold) -> _Hold:
        known = all(self._pool(node) is not None for node, _ in hold.holds)
        new = msgspec.structs.replace(hold, gpus=self._weighed(claim, hold.holds), sure=known)
        self._holds[claim] = new
        self._tell(claim[0], hold, new)
        return new

    def _tell(self, namespace: str, old: _Hold | None, new: _Hold | None) -> None:
        before, after = 0.0 if old is None else old.charged, 0.0 if new is None else new.charged
        had, has = before if old is not None and old.given else 0.0, after if new is not None and new.given else 0.0
        if (before, had) != (after, has):
            self.changed(namespace, has - had, after - before)

    def _settle(self, hold: _Hold, now: float, gaps: list[_Gap]) -> None:
        """Add what was held since it was counted last, to each hour its part; all of an hour is left in ``gaps``.

        A clock that goes back counts nothing, and one that leaps ahead no more than there are days of.
        """
        since, hold.since = max(hold.since, now - _LONGEST_S), now
        if not (self._counts and hold.given and since < now):
            return
        first, last = int(since // HOUR_S), int(now // HOUR_S)
        if first == last:
            self._add(first, hold.gpus, now - since)
            return
        self._add(first, hold.gpus, (first + 1) * HOUR_S - since)
        if first + 1 < last:
            gaps.append((first + 1, last, hold.gpus))
        if last * HOUR_S < now:
            self._add(last, hold.gpus, now - last * HOUR_S)

    def _fill(self, gaps: list[_Gap]) -> Iterator[None]:
        """Add what was held for hours, each hour and bucket once, a slice at a time; the largest alone have owners."""
        if not gaps or not self._counts:
            return
        gpus: dict[Bucket, float] = {}
        for _, _, held in gaps:
            for bucket, count in held.items():
                gpus[bucket] = gpus.get(bucket, 0.0) + count
        alone = bounded(gpus, MOST_ROWS, len(gpus))
        changes: dict[int, dict[Bucket, float]] = {}
        for first, end, held in gaps:
            for hour, sign in ((first, 1.0), (end, -1.0)):
                change = changes.setdefault(hour, {})
                for bucket, count in held.items():
                    row = bucket if bucket in alone else Bucket(bucket.namespace, OTHERS, "", bucket.kind)
                    change[row] = change.get(row, 0.0) + sign * count
        yield
        now: dict[Bucket, float] = {}
        for hour in range(min(changes), max(changes)):
            for bucket, count in changes.get(hour, {}).items():
                now[bucket] = now.get(bucket, 0.0) + count
                if now[bucket] < _LEAST:
                    del now[bucket]
            if not self._counts:
                return
            if now:
                self._add(hour, now, float(HOUR_S))
            if hour % _HOURS == 0:
                yield

    def _add(self, hour: int, gpus: Mapping[Bucket, float], seconds: float) -> None:
        buckets = self.hours.setdefault(hour, {})
        self.grown.add(hour)
        for bucket, count in gpus.items():
            buckets[bucket] = buckets.get(bucket, 0.0) + count * seconds
