"""Leader election with a Lease, so that only one of several replicas works.

The rules are those of client-go (tools/leaderelection). A lease counts as expired if this process has seen no change of
it for its duration, by this process's monotonic clock. Clocks of different machines are never compared.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.errors import ApiError
from dradriver.kube.resources import CONFIG_MAPS, LEASES

logger = logging.getLogger(__name__)

LEAST_GRACE_S: Final = 1.0  # for cancelled work to stop, even where the loss was noticed late
JITTER: Final = 1.2  # client-go's JitterFactor: candidates wait between one and 2.2 periods


class _LostError(DriverError):
    """Another candidate took the lease, or it could not be renewed in time."""

    reason = "LeadershipLost"


class ElectionLease(msgspec.Struct, frozen=True):
    """The Lease of an election.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        config_map: A ConfigMap of the namespace. If the elector creates the Lease, it makes the ConfigMap its owner, so
            that both are deleted together. Empty for no owner.
    """

    namespace: str
    name: str
    config_map: str = ""

    def __str__(self) -> str:
        return f"lease {self.namespace}/{self.name}"


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """The times of an election, in seconds.

    Attributes:
        lease_duration_s: How long others wait after the last renewal that they saw; whole seconds.
        renew_deadline_s: How long after its last renewal a leader stops leading.
        retry_period_s: Pause between two renewals, and longest duration of one.

    Raises:
        ValueError: The lease duration is not longer than the deadline, or the deadline not longer than ``JITTER`` times
            the retry period.
    """

    lease_duration_s: float = 15
    renew_deadline_s: float = 10
    retry_period_s: float = 2

    def __post_init__(self) -> None:
        if not 0 < self.retry_period_s * JITTER < self.renew_deadline_s < self.lease_duration_s:
            raise ValueError(
                f"retry period {self.retry_period_s:g} s, renew deadline {self.renew_deadline_s:g} s and lease duration"
                f" {self.lease_duration_s:g} s must grow in this order, the first by more than {JITTER} times"
            )


class LeaderElector:
    """A candidate for a Lease.

    A leader that could not renew for ``renew_deadline_s`` cancels its work. Another candidate may lead
    ``lease_duration_s`` after the last renewal. So the process is ended if its work has not stopped at that time.
    """

    def __init__(
        self,
        client: Client,
        lease: ElectionLease,
        *,
        identity: str,
        timings: Timings | None = None,
        end_process: Callable[[int], object] = os._exit,
        makes_progress: Callable[[], bool] = lambda: True,
        annotations: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Make a candidate; no request is sent before ``run``.

        Args:
            client: A client inside its ``async with`` block.
            lease: The Lease.
            identity: Name of this candidate; no two live processes may have the same.
            timings: The times of the election; those of client-go by default.
            end_process: Called with status 1 if cancelled work does not stop in time.
            makes_progress: Returns whether this process works. While it does not, the lease is neither taken nor
                renewed.
            annotations: Returns annotations of the leader, written to the Lease with each renewal.
        """
        self._client = client
        self._lease = lease
        self._identity = identity
        self._timings = timings or Timings()
        self._end_process = end_process
        self._makes_progress = makes_progress
        self._annotations = annotations
        self._observed: tuple[Any, ...] = ()  # holder, renewTime, acquireTime and leaseTransitions, as last read
        self._observed_at = 0.0  # when these changed, by the loop's clock
        self._renewed_at: float | None = None  # when the last successful renewal was sent; None while not the leader
        # Runs after the lease was lost: it ends the process if the work has not ended in time.
        self._watchdog: asyncio.TimerHandle | None = None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease, and do the work as leader. Return when the work returns.

        If the lease is lost, the work is cancelled. When it has ended, the candidate waits for the lease again. However
        this method ends, it releases the lease, so that another candidate need not wait. Errors of the work are passed
        on.
        """
        try:
            while True:
                await self._acquire()
                logger.info("leading: %s is held by %s", self._lease, self._identity)
                if await self._lead(work):
                    return
        finally:
            self._renewed_at = None
            await self._release()

    async def _acquire(self) -> None:
        while not await self._attempt():  # noqa: ASYNC110 - what is waited for happens on the server
            await asyncio.sleep(self._timings.retry_period_s * random.uniform(1, 1 + JITTER))  # noqa: S311

    async def _lead(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do the work as leader.

        Return True if it is done, False if the lease was lost and the work has stopped.
        """
        # The group cancels the work if the renewal raises, and waits for it.
        try:
            async with asyncio.TaskGroup() as group:
                renewing = group.create_task(self._renew_until_lost())
                await work()
                renewing.cancel()
        except BaseExceptionGroup as raised:
            _, other_errors = raised.split(_LostError)
            if other_errors is not None:  # an error of the work itself
                raise other_errors.exceptions[0] from None
            # Whoever cancelled this task while the lease was lost must see the cancellation.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from None
            logger.warning("This replica does not lead any more: %s", raised.exceptions[0])
            return False
        finally:
            if self._watchdog is not None:
                self._watchdog.cancel()
                self._watchdog = None
        return True

    async def _renew_until_lost(self) -> None:
        """Renew the lease until it is lost, then raise an error, which makes the task group cancel the work."""
        try:
            while True:
                await asyncio.sleep(self._timings.retry_period_s)
                assert self._renewed_at is not None
                async with asyncio.timeout_at(self._renewed_at + self._timings.renew_deadline_s):
                    while not await self._attempt():  # noqa: ASYNC110
                        await asyncio.sleep(self._timings.retry_period_s * random.uniform(0.5, 1))  # noqa: S311
        except (TimeoutError, _LostError) as error:
            loop = asyncio.get_running_loop()
            assert self._renewed_at is not None
            # Another candidate may lead when the lease has expired: by then the work must have stopped.
            stop_by = max(self._renewed_at + self._timings.lease_duration_s, loop.time() + LEAST_GRACE_S)
            self._watchdog = loop.call_at(stop_by, self._end_overdue_work)
            self._renewed_at = None
            if isinstance(error, _LostError):
                raise
            raise _LostError(f"{self._lease} was not renewed in {self._timings.renew_deadline_s:g} s") from None

    def _end_overdue_work(self) -> None:
        logger.critical("The work did not stop in time after the lease was lost. This process ends now.")
        self._end_process(1)

    async def _attempt(self) -> bool:
        """Try to take or renew the lease, and return whether this candidate holds it now.

        Raises:
            _LostError: This process was the leader, and another candidate holds the lease.
        """
        # A leader that hangs must not keep others from leading, though the thread that renews for it is well.
        if not self._makes_progress():
            logger.warning("%s is not renewed, because this process makes no progress.", self._lease)
            return False
        try:
            async with asyncio.timeout(self._timings.retry_period_s):
                return await self._take()
        except _LostError:
            raise
        except (DriverError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and (error.conflict or error.already_exists)):
                logger.warning(
                    "%s cannot be renewed: %s", self._lease, str(error) or "the API server did not answer in time"
                )
            return False

    async def _take(self) -> bool:
        """Create, take or renew the lease with one write; return False if another candidate holds it.

        Raises:
            _LostError: This process was the leader, and another candidate holds the lease.
            ApiError: The server refuses; a conflict if another candidate wrote first.
        """
        clock = asyncio.get_running_loop().time
        # 1. Create the lease if there is none. The renewal counts from before the write: it may take effect at once.
        try:
            lease = await self._client.get(LEASES, self._lease.name, namespace=self._lease.namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            metadata = {"name": self._lease.name, "namespace": self._lease.namespace} | await self._owner_references()
            metadata = self._with_annotations(metadata)
            new_lease = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
            sent_at = clock()
            await self._client.create(LEASES, new_lease | {"spec": self._renewed_spec({})})
            self._renewed_at = sent_at
            return True

        # 2. If another candidate holds it, wait until it has not changed for its duration. Only this process's clock
        # counts: the times in the lease are those of another machine, and are compared for equality alone.
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        record = tuple(spec.get(key) for key in ("holderIdentity", "renewTime", "acquireTime", "leaseTransitions"))
        if record != self._observed:
            self._observed, self._observed_at = record, clock()
        if holder not in ("", self._identity):
            if self._renewed_at is not None:  # this process was the leader
                raise _LostError(f"{self._lease} was taken by {holder}")
            duration_s = max(self._timings.lease_duration_s, float(spec.get("leaseDurationSeconds") or 0))
            if clock() < self._observed_at + duration_s:
                return False

        # 3. Take or renew it. The resourceVersion that was read lets only one of several candidates succeed.
        sent_at = clock()
        metadata = self._with_annotations(lease["metadata"])
        await self._client.update(LEASES, lease | {"metadata": metadata, "spec": spec | self._renewed_spec(spec)})
        self._renewed_at = sent_at
        return True

    async def _owner_references(self) -> dict[str, Any]:
        """Return the ``ownerReferences`` of a new Lease: the ConfigMap, if it exists.

        The Helm chart contains the ConfigMap but not the Lease. So an uninstallation deletes the Lease only through its
        owner.
        """
        if not self._lease.config_map:
            return {}
        try:
            config_map = await self._client.get(CONFIG_MAPS, self._lease.config_map, namespace=self._lease.namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return {}
        uid = config_map["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": self._lease.config_map, "uid": uid}
        return {"ownerReferences": [owner]}

    def _with_annotations(self, metadata: dict[str, Any]) -> dict[str, Any]:
        """Return the Lease's metadata with the leader's annotations."""
        annotations = self._annotations()
        if not annotations:
            return metadata
        return metadata | {"annotations": {**(metadata.get("annotations") or {}), **annotations}}

    def _renewed_spec(self, old: dict[str, Any]) -> dict[str, Any]:
        """Return the Lease's spec with this candidate as the holder, renewed now.

        ``old`` is the spec as it was read; it is empty for a new Lease.
        """
        now = _micro_time()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._timings.lease_duration_s),
            "renewTime": now,
        }
        if old.get("holderIdentity") != self._identity:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(old.get("leaseTransitions") or 0) + 1 if old else 0
        return spec

    async def _release(self) -> None:
        """Release the lease if this candidate holds it.

        If that fails, other candidates only wait longer.
        """
        try:
            async with asyncio.timeout(self._timings.retry_period_s):
                lease = await self._client.get(LEASES, self._lease.name, namespace=self._lease.namespace)
                spec = lease.get("spec") or {}
                if spec.get("holderIdentity") == self._identity:
                    now = _micro_time()
                    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": now, "acquireTime": now}
                    await self._client.update(LEASES, lease | {"spec": spec | free})
                    logger.info("%s is given back", self._lease)
        except (DriverError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.not_found):
                logger.warning("%s cannot be released: %s", self._lease, error)


def _micro_time() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
