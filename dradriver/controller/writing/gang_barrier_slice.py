"""Keeps the ResourceSlice with the gang barrier devices while this replica leads.

These devices keep a gang's pods unbound until all have places. The module also checks whether that works.

A server before 1.36 silently drops the fields that make the barrier work. So the slice is stored only if a dry run has
returned all fields. The slice is owned by the chart's DeviceClass of gang barrier devices, so that both are deleted
together.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

from dradriver.api.base import gang_barrier_device
from dradriver.api.base.objects import MetadataOnly
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.controller import metrics
from dradriver.controller.writing.write_outcome import Outcome, outcome
from dradriver.errors import DriverError
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import ApiError, Client
from dradriver.kube.errors import asked_s
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.resources import DEVICE_CLASSES, RESOURCE_SLICES

logger = logging.getLogger(__name__)

AGAIN_S: Final = 60.0  # somebody may delete the slice, and a server may be upgraded
FIRST_RETRY_S: Final = 1.0
FIRST_LOOK_S: Final = 5.0  # that a new leader waits to know before it plans a gang: longer than a server in order takes

WITHOUT: Final = "The gang barrier is not available, so a pod of a gang can be bound without the others"
NO_CLASS: Final = f"DeviceClass {gang_barrier_device.CLASS} does not exist. Install the chart of this version"

Record = Callable[[str, str], Awaitable[None]]
"""Writes an Event about the DeviceClass of seats, given its uid, empty without one, and what to say."""


def recorder(client: Client, *, instance: str) -> Record:
    """Return the function that writes the Event that the gang barrier is not available.

    The barrier keeps a gang's pods unbound until all have places. ``instance`` is the name of this replica, which the
    Event shows.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(uid: str, message: str) -> None:
        about = Reference(DEVICE_CLASSES.kind, "", gang_barrier_device.CLASS, uid, DEVICE_CLASSES.api_version)
        await events.record(
            about=about, type="Warning", reason="GangBarrierUnavailable", message=message, action="Publishing"
        )

    return record


class SeatSlice:
    """Keeps the ResourceSlice with the gang barrier devices at the API server.

    It also sets ``Picture.barrier``: whether the gang barrier delays the binding of a gang's pods until all have
    places.
    """

    def __init__(self, client: Client, picture: Picture, record: Record | None = None) -> None:
        """Make an object that has not checked the slice.

        ``record`` writes an Event if the gang barrier does not work in this cluster; None for no Event.
        """
        self._client = client
        self._picture = picture
        self._record = record
        self._woken = asyncio.Event()  # set to have the slice looked at now
        self._looked = asyncio.Event()  # set once it is known whether seats work, while this replica leads
        self._asked_s = 0.0  # how long the server asked to be left alone
        self._class = ""  # the uid of the DeviceClass
        self._classless = False  # whether that was missing: Helm makes it a moment after the controller
        self._said: str | None = None  # the reason last logged why seats do not work: empty if they do, None at first

    def wake(self) -> None:
        """Start the check of the slice of gang barrier devices at once, because something changed."""
        self._woken.set()

    async def first_look(self) -> None:
        """Wait until the slice was checked once, at most ``FIRST_LOOK_S`` seconds.

        If it was not checked in this time, gangs start without the barrier: the scheduler may then bind some pods only.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._looked.wait()
        self._picture.find_out_no_more()

    async def run(self) -> NoReturn:
        """Check the slice regularly until cancelled; then set ``Picture.barrier`` to False."""
        failures = 0
        try:
            while True:
                self._woken.clear()
                failures = 0 if await self.look() else failures + 1
                if self._picture.barrier is not None:
                    self._looked.set()
                pause_s = wait_s(failures - 1, first_s=FIRST_RETRY_S, longest_s=AGAIN_S) if failures else AGAIN_S
                if self._asked_s:
                    await asyncio.sleep(self._asked_s)  # whatever changes meanwhile
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._woken.wait()
        finally:
            self._looked.clear()
            self._picture.barrier, self._said, self._classless = False, None, False
            metrics.BARRIER.set(0)

    async def look(self) -> bool:
        """Create or correct the slice, and set ``Picture.barrier``; return False after an error.

        If the server is in trouble, ``Picture.barrier`` stays unchanged. If the server refuses the slice,
        ``Picture.barrier`` becomes False.
        """
        self._asked_s = 0.0
        try:
            reason = await self._ensure()
        except DriverError as error:
            self._asked_s = asked_s(error, AGAIN_S)
            if outcome(error) is not Outcome.OBJECT:
                logger.warning(
                    "ResourceSlice %s of the gang barrier cannot be written: %s. The controller tries again.",
                    gang_barrier_device.SLICE,
                    error,
                )
                return False
            await self._learn(f"ResourceSlice {gang_barrier_device.SLICE} cannot be written: {error}")
            return False
        await self._learn(reason)
        return True

    async def _ensure(self) -> str:
        """Create or correct the slice; return why the gang barrier does not work.

        The text is empty if the barrier works: it then keeps a gang's pods unbound until all have places.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        self._class = ""
        try:
            self._class = (
                await self._client.get(DEVICE_CLASSES, gang_barrier_device.CLASS, type=MetadataOnly)
            ).metadata.uid
        except ApiError as error:
            if not error.not_found:
                raise
            return NO_CLASS
        lacking = gang_barrier_device.dropped(await self._stored(gang_barrier_device.resource_slice(self._class)))
        return (
            f"the API server drops {', '.join(lacking)} of ResourceSlices. Upgrade to Kubernetes 1.36 or later"
            if lacking
            else ""
        )

    async def _stored(self, desired: dict[str, Any]) -> dict[str, Any]:
        """Create or update the slice as desired; return it as the server has it.

        A server before 1.36 drops some fields. If a dry run shows that, no new slice is created, and the answer of the
        dry run is returned.
        """
        try:
            stored: dict[str, Any] = await self._client.get(RESOURCE_SLICES, gang_barrier_device.SLICE)
        except ApiError as error:
            if not error.not_found:
                raise
            # 1. There is none: create it if a dry run shows that the server keeps all fields.
            dry_run_answer: dict[str, Any] = await self._client.create(RESOURCE_SLICES, desired, dry_run=True)
            return dry_run_answer if gang_barrier_device.dropped(dry_run_answer) else await self._created(desired)
        # 2. It is there: compare it. A new generation would tell readers that older slices of the pool are out of date.
        #    This pool has one slice, so its generation never changes.
        generation = stored["spec"]["pool"].get("generation", 1)
        desired["spec"]["pool"]["generation"] = generation
        owners = desired["metadata"]["ownerReferences"]
        if stored["spec"] == desired["spec"] and stored["metadata"].get("ownerReferences") == owners:
            return stored
        # 3. It differs: update it, and keep its other metadata.
        new = copy.deepcopy(stored) | {"spec": desired["spec"]}
        new["metadata"]["ownerReferences"] = owners
        try:
            updated: dict[str, Any] = await self._client.update(RESOURCE_SLICES, new)
        except ApiError as error:
            if not error.invalid:
                raise
            # 4. Another program made it: its driver, pool or node cannot be updated. Replace it, if it is still the one
            #    that was read.
            logger.warning(
                "ResourceSlice %s was not written by this driver and is replaced: %s", gang_barrier_device.SLICE, error
            )
            versions = {"uid": stored["metadata"]["uid"], "resource_version": stored["metadata"]["resourceVersion"]}
            await self._client.delete(RESOURCE_SLICES, gang_barrier_device.SLICE, **versions)
            return await self._created(gang_barrier_device.resource_slice(self._class))
        if not gang_barrier_device.dropped(updated):
            logger.info("slice %s was not as it should be, and is again", gang_barrier_device.SLICE)
        return updated

    async def _created(self, wanted: dict[str, Any]) -> dict[str, Any]:
        stored: dict[str, Any] = await self._client.create(RESOURCE_SLICES, wanted)
        logger.info("slice %s made", gang_barrier_device.SLICE)
        return stored

    async def _learn(self, reason: str) -> None:
        """Set ``Picture.barrier``, and report once why the barrier does not work.

        ``reason`` says why; it is empty if the barrier works.
        """
        self._picture.barrier = not reason
        metrics.BARRIER.set(not reason)
        early, self._classless = reason == NO_CLASS and not self._classless, reason == NO_CLASS
        if reason != self._said and not early:
            self._said = reason
            if not reason:
                logger.info("seats keep pods of gangs from being bound before all have their places")
                return
            logger.warning("%s: %s", WITHOUT, reason)
            if self._record is not None:
                await self._record(self._class, f"{WITHOUT}: {reason}")
