"""Stores GPU time in ConfigMaps while this replica leads, and reads it when the replica begins to lead.

The controller writes it when it begins to lead, then after pauses that grow to a minute, and when it stops. A ConfigMap
that a user deletes is written again within seconds. The next leader counts on from the last write. It adds the time
since then for claims that still exist. If this replica is killed, the time of claims that ended since the last write is
lost.

*Usage* is GPU time. A *bucket* is a namespace, owner, product and kind (whole GPU, share or MIG slice) for which it is
counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

from dradriver.api.base.errors import WordError
from dradriver.api.base.objects import MetadataOnly
from dradriver.api.claims import usage_config_maps
from dradriver.api.claims.pins import Key
from dradriver.api.claims.usage_config_maps import DAY_H, HOUR_S, Detail, Details, Hours
from dradriver.api.policies.fields import MOST_DAYS
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.derived.end_times import given_at
from dradriver.cluster.pods.gpu_time import decayed
from dradriver.controller import metrics
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.queue.namespace_tenants import Tenants

logger = logging.getLogger(__name__)

PERIOD_S: Final = 60.0
FIRST_PERIOD_S: Final = 5.0  # of a new leader, which may not live for long; twice as long each time
LOOK_S: Final = 5.0  # between two looks whether somebody has deleted a ConfigMap
LAST_WRITE_S: Final = 0.5  # that the last write may take: who has lost the lease must soon do nothing any more
FIRST_LOAD_S: Final = 5.0  # that a new leader waits to know what tenants have had
FIRST_RETRY_S: Final = 1.0
_LATE_H: Final = 6  # earlier hours at most in the current hour's ConfigMap, while those of days cannot be written
_CONFLICT: Final = 409
_SKEW_S: Final = float(HOUR_S)  # that another's clock may be ahead; what it has counted is not counted again
_SLACK_S: Final = 0.01  # what is written is rounded


class _Overtaken(Exception):  # noqa: N818 - a state of the world
    """Another replica has stored a later count than this one.

    ``_put`` handles errors of the server itself. This class carries one error past that handler to the caller.
    """

    def __init__(self, error: ApiError) -> None:
        super().__init__()
        self.error = error


class UsageStore:
    """Stores GPU time in ConfigMaps, and restores the tenants' past usage after a restart.

    Attributes:
        keep_days: For how many days usage counts.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        tenants: Tenants,
        *,
        namespace: str,
        owner: ReleaseOwner | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make a store that has not been read.

        Args:
            client: The API server.
            picture: The cluster cache, which counts the GPU time of claims.
            tenants: The tenants. What they have used decides their order in the queue.
            namespace: The driver's namespace, which has the ConfigMaps.
            owner: Finds the owner of the ConfigMaps: they are deleted together with it. None for ConfigMaps that stay.
            clock: Gives seconds since the epoch.
        """
        self._client = client
        self._picture = picture
        self._tenants = tenants
        self._namespace = namespace
        self._owner = owner or ReleaseOwner(client)
        self._clock = clock

        # One ConfigMap has the usage of the current hour. Each of the others has the past hours of one day.
        # An *hour* is counted from the epoch, and so is a day. ``picture.gpu_time.hours`` has GPU-seconds by hour.
        self._versions: dict[str, str] = {}  # by ConfigMap: the resource version last read or written
        self._until: dict[str, float] = {}  # by ConfigMap: until when its usage was counted, seconds since the epoch
        self._late: set[int] = set()  # hours of which the ConfigMap of their day does not have all usage yet
        self._due = False  # whether the ConfigMap of the current hour must be written
        self._warned: dict[str, str] = {}  # by ConfigMap: the error that was last logged; "" for reading all of them
        self._owners: list[dict[str, str]] = []  # ``ownerReferences`` of the ConfigMaps: they are deleted with them
        self._loaded = asyncio.Event()  # set once all ConfigMaps were read, while this replica leads
        self.keep_days = MOST_DAYS

    async def first_load(self) -> None:
        """Wait until the stored usage was read once, at most ``FIRST_LOAD_S`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOAD_S):
                await self._loaded.wait()

    async def run(self) -> NoReturn:
        """Store usage until cancelled.

        After an error, the stored usage is read again. One cause is that another replica has stored a later count.
        """
        failures = 0
        try:
            while True:
                try:
                    await self.load()
                    self._loaded.set()
                    period_s = FIRST_PERIOD_S
                    while True:
                        await self.write()
                        failures = 0
                        await self._pause(period_s)
                        period_s = min(2 * period_s, PERIOD_S)
                except DriverError as error:
                    self._warn("", error, "The controller reads them again.")
                await asyncio.sleep(wait_s(failures, first_s=FIRST_RETRY_S, longest_s=PERIOD_S))
                failures += 1
        finally:
            await self._write_last()
            self._loaded.clear()
            self._picture.gpu_time.end()
            metrics.TENANT_GPUS.set({})
            metrics.TENANT_USAGE.set({})
            metrics.TENANT_CAP.set({})

    async def _pause(self, period_s: float) -> None:
        """Wait ``period_s`` seconds, or until a ConfigMap is found deleted."""
        end = asyncio.get_running_loop().time() + period_s
        while (left_s := end - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left_s, LOOK_S))
            if await self._deleted():
                return

    async def _write_last(self) -> None:
        """Store the usage until now, because this replica stops leading.

        The write is given up after ``LAST_WRITE_S`` seconds.
        """
        if self._loaded.is_set():
            with contextlib.suppress(DriverError, TimeoutError):
                async with asyncio.timeout(LAST_WRITE_S):
                    await self.write()

    async def load(self) -> None:
        """Read all stored usage, and continue the count from there.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        self._owners = await self._owner.references()
        # 1. Read all ConfigMaps at once. ``_read`` returns None for one that does not exist or cannot be decoded.
        self._versions.clear()
        names_of = usage_config_maps.every_name()
        answers = await asyncio.gather(*map(self._read, names_of), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        kept_of = {  # by ConfigMap: its hours, their details, and until when they were counted
            name: kept for name, kept in zip(names_of, answers, strict=True) if isinstance(kept, usage_config_maps.Kept)
        }
        self._until = {name: kept.until for name, kept in kept_of.items()}

        # 2. Join their hours. An hour can stand in two: the one that was counted further has all of it. Hours that are
        #    too old, or later than the clock of any replica can be, are left out.
        now = self._clock()
        first_hour, last_hour = int(now // HOUR_S) - self.keep_days * DAY_H, int((now + _SKEW_S) // HOUR_S)
        hours: Hours = {}
        details: Details = {}
        for kept in sorted(kept_of.values(), key=lambda kept: kept.until):
            valid = {hour: rows for hour, rows in kept.hours.items() if first_hour <= hour <= last_hour}
            hours |= valid
            details |= {hour: kept.details.get(hour, Detail()) for hour in valid}
        # What the ConfigMap of the current hour has is not all in the ConfigMaps of days yet.
        current = kept_of.get(usage_config_maps.name_of(None))  # None stands for the current hour
        self._late = set() if current is None else hours.keys() & current.hours.keys()

        # 3. Count on from when it was written last; from now if nothing is stored. The days from the first late hour on
        #    are written again as a whole, so all of their hours must be in memory. ``begin`` takes these hours,
        #    ``catch_up`` adds what each claim has held since ``counted_from``, or since it got its devices.
        until = min(max((kept.until for kept in kept_of.values()), default=0.0), now + _SKEW_S)
        rewritten_from = min([*self._late, int((until or now) // HOUR_S)]) // DAY_H * DAY_H
        counted_from = max(until, now - self.keep_days * DAY_H * HOUR_S) if until else now
        gpu_time = self._picture.gpu_time
        gpu_time.begin(
            {hour: rows for hour, rows in hours.items() if hour >= rewritten_from}, counted_from, self._given_at,
            details={hour: detail for hour, detail in details.items() if hour >= rewritten_from},
        )  # fmt: skip
        await gpu_time.catch_up()

        # 4. The shares of tenants begin with what all hours say, older ones with less weight, and with what namespaces
        #    hold now.
        used = decayed(hours | gpu_time.hours, self._clock(), half_life_s=self._tenants.shares.half_life_s)
        self._tenants.shares.restart(used, gpu_time.now())
        self._warned.pop("", None)

    async def write(self) -> None:
        """Store the hours whose usage has grown: the current hour, and past hours.

        If a ConfigMap cannot be written, the next call tries it again. The others are written nevertheless.

        Raises:
            ApiError: Another replica has stored a later count.
        """
        # 1. Count until now, and check the sums that the order of tenants uses: ``correct`` returns the wrong ones.
        gpu_time = self._picture.gpu_time
        gpu_time.settle()
        for namespace in self._tenants.shares.correct(gpu_time.now()):
            logger.error(
                "Namespace %s: the counted GPUs were not those of its claims. The controller corrected the count.",
                namespace,
            )
            metrics.DIFFERENCES.labels("shares").inc()
        # 2. Which hours must be written: those that grew, and those of ConfigMaps that somebody has deleted.
        current = int(gpu_time.until // HOUR_S)  # the clock's, where that does not go back
        await self._note_deleted()
        grown, gpu_time.book.grown = gpu_time.book.grown, set()
        self._late |= grown
        self._late &= gpu_time.hours.keys()
        self._due |= current in grown
        # 3. Write them. ``_put_days`` removes from ``_late`` what it writes. The ConfigMap of the current hour also has
        #    late hours, because writing it replaces what it had of the hour before. It says until when all usage was
        #    counted. Late hours that are too old for it must therefore be written to the ConfigMap of their day first.
        oldest = current - _LATE_H
        await self._put_days({hour // DAY_H for hour in self._late if hour < oldest}, current)
        if self._due:
            late = {h: gpu_time.hours[h] for h in sorted(self._late) if oldest <= h <= current}
            self._due = not await self._put(None, late)
        await self._put_days({hour // DAY_H for hour in self._late if oldest <= hour < current}, current)
        # 4. Claims that ended during the writes have grown hours again. Then forget what no ConfigMap needs any more.
        self._late |= gpu_time.book.grown
        gpu_time.book.forget_before((current // DAY_H - 1) * DAY_H)
        gpu_time.book.forget_pods_before(current)
        self._tell()

    async def _note_deleted(self) -> None:
        """Mark ConfigMaps that a user deleted, so that ``write`` creates them again.

        All hours since the beginning of yesterday are still in memory.
        """
        for day in await self._deleted():
            name = usage_config_maps.name_of(day)
            logger.warning("ConfigMap %s, which has GPU time, was deleted. The controller writes it again.", name)
            del self._versions[name]
            if day is None:
                self._due = True
            else:
                current = int(self._picture.gpu_time.until // HOUR_S)
                self._late |= {h for h in self._picture.gpu_time.hours if h // DAY_H == day and h < current}

    async def _deleted(self) -> list[int | None]:
        """Return the days, today and yesterday, whose ConfigMaps were deleted.

        Days are counted from the epoch. None stands for the ConfigMap of the current hour.
        """
        today, deleted = int(self._picture.gpu_time.until // (DAY_H * HOUR_S)), list[int | None]()
        for day in (None, today, today - 1):
            name = usage_config_maps.name_of(day)
            if name not in self._versions:
                continue
            try:
                await self._client.get(CONFIG_MAPS, name, namespace=self._namespace, type=MetadataOnly)
            except ApiError as error:
                if error.not_found:
                    deleted.append(day)
            except DriverError:
                continue  # the write says so
        return deleted

    async def _put_days(self, days: set[int], current: int) -> None:
        for day in sorted(days):
            over = {h: rows for h, rows in self._picture.gpu_time.hours.items() if h // DAY_H == day and h < current}
            if await self._put(day, over):
                self._late -= over.keys()

    def _tell(self) -> None:
        shares, named = self._tenants.shares, bool(self._tenants.named)
        tenants = [tenant for tenant in shares.tenants() if named]
        # All that a cap may be compared with.
        metrics.TENANT_GPUS.set({t: shares.held(t)[0] for t in tenants}, always=self._tenants.named)
        metrics.TENANT_USAGE.set({tenant: shares.used(tenant) / HOUR_S for tenant in tenants})
        caps = ((name, cap) for name, tenant in self._tenants.named.items() for cap in tenant.cap if not cap.products)
        metrics.TENANT_CAP.set({name: cap.gpus for name, cap in caps})

    async def _read(self, name: str) -> usage_config_maps.Kept | None:
        try:
            found: dict[str, Any] = await self._client.get(CONFIG_MAPS, name, namespace=self._namespace)
        except ApiError as error:
            if error.not_found:
                return None
            raise
        if (found["metadata"].get("ownerReferences") or []) != self._owners:
            found = await self._own(found)
        self._versions[name] = found["metadata"]["resourceVersion"]
        try:
            return usage_config_maps.read(found)
        except WordError as error:
            logger.warning("A ConfigMap of GPU time is not counted: %s", error)
            return None

    async def _own(self, found: dict[str, Any]) -> dict[str, Any]:
        """Set the owners of the ConfigMap ``found``; return it as the server then has it.

        The owners decide whether the ConfigMap is deleted by an uninstallation. The administrator may have changed this
        setting since the ConfigMap was written. ConfigMaps of earlier days are not written again, so their owners are
        set here. If this write fails, the ConfigMap is returned unchanged.
        """
        wanted = found | {"metadata": found["metadata"] | {"ownerReferences": self._owners}}
        try:
            stored: dict[str, Any] = await self._client.update(CONFIG_MAPS, wanted)
        except DriverError as error:
            self._warn(found["metadata"]["name"], error, "The ConfigMap's ownerReferences stay unchanged.")
            return found
        return stored

    async def _put(self, day: int | None, hours: Hours) -> bool:
        """Write the ConfigMap of a day; return whether that worked.

        Changes by other programs are overwritten.

        Args:
            day: The day, counted from the epoch; None for the ConfigMap of the current hour.
            hours: The GPU-seconds to write.

        Raises:
            ApiError: Another replica has stored a later count.
        """
        # If the clock went back, there may be no hours to write.
        if not hours:
            return True
        name = usage_config_maps.name_of(day)
        # Until when these hours are counted. It is noted before the write, and stays if the write fails: the ConfigMap
        # may be stored although no answer comes.
        until = min(self._picture.gpu_time.until, (max(hours) + 1.0) * HOUR_S)
        known_until = self._until.get(name, 0.0)
        self._until[name] = until
        try:
            try:
                await self._store(day, hours, until)  # creates the ConfigMap, or replaces the version in ``_versions``
            except ApiError as error:
                if error.not_found and name in self._versions:
                    del self._versions[name]  # somebody has deleted it a moment ago
                elif error.status != _CONFLICT:
                    raise
                else:
                    # ``_read`` also notes the version that is there now, which the second write replaces. If another
                    # leader has counted further than this replica, ``run`` must read all again.
                    kept = await self._read(name)
                    if kept is not None and kept.until > known_until + _SLACK_S:
                        raise _Overtaken(error) from None
                await self._store(day, hours, until)
        except _Overtaken as overtaken:
            raise overtaken.error from None
        except DriverError as error:
            self._warn(name, error, "The counted time stays in memory and is written later.")
            return False
        self._warned.pop(name, None)
        return True

    async def _store(self, day: int | None, hours: Hours, until: float) -> None:
        name = usage_config_maps.name_of(day)
        wanted = usage_config_maps.config_map(
            day, hours, until=until, namespace=self._namespace, owners=self._owners,
            version=self._versions.get(name, ""), details=self._picture.gpu_time.book.details,
        )  # fmt: skip
        if name in self._versions:
            stored = await self._client.update(CONFIG_MAPS, wanted)
        else:
            stored = await self._client.create(CONFIG_MAPS, wanted)
        self._versions[name] = stored["metadata"]["resourceVersion"]

    def _warn(self, name: str, error: DriverError, then: str) -> None:
        """Log a problem with a ConfigMap, but only once while its cause stays the same.

        ``then`` is a sentence that says what the controller does about it.
        """
        cause = f"{error.status} {error.api_reason}" if isinstance(error, ApiError) else error.reason
        if self._warned.get(name) != cause:
            self._warned[name] = cause
            logger.warning("The ConfigMaps of GPU time cannot be read or written: %s. %s", error, then)

    def _given_at(self, claim: Key) -> float:
        """Return when a claim got its devices, seconds since the epoch; now if unknown."""
        found = given_at(self._picture.claims.get(claim))
        return self._clock() if found is None else found


def count_gpu_seconds(bucket: usage_config_maps.Bucket, seconds: float) -> None:
    """Add GPU-seconds to the metric with the namespace, product and kind of a bucket.

    The kind is whole GPUs, shares or MIG slices.
    """
    metrics.GPU_SECONDS.add(seconds, bucket.namespace, bucket.product, bucket.kind)
