"""Writes on pods why they wait, as annotation and Event: rarely, and only when no placement waits for a write.

A *placement* is the node and GPUs that were chosen for a pod.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Literal

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import seconds
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.controller.writing.pod_writer import PodWriter, cut
from dradriver.controller.writing.write_outcome import MovedOnError, Outcome, outcome
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.workqueue import WorkQueue
from dradriver.queue.write_lanes import Lanes
from dradriver.reason import Cause, Reason

logger = logging.getLogger(__name__)

FIRST_S: Final = 1.0  # most pods have their place sooner
# A look can be ten seconds old when it is written (``rechecks``), and the sum must stay below 30 s.
AGAIN_S: Final = 15.0  # between two writes on one pod
PATIENCE_S: Final = 4.0  # after so long a reason is written although placements go on
LOOK_S: Final = 0.1  # between two looks whether there is room

_REFUSALS: Final = frozenset((Cause.SCHEDULER, Cause.GANG))
"""Causes of a pod's own trouble that is the scheduler's: that it was not bound in time, or another pod of its gang."""

Record = Callable[[Pod, str], Awaitable[None]]
"""Writes an Event about a pod."""


class PodRecorders(msgspec.Struct, frozen=True, kw_only=True):
    """The functions that write Events about pods; None for no such Events.

    Attributes:
        waiting: Writes about a pod that waits.
        preempted: Writes about a pod that is evicted for another one.
        placed: Writes about a pod that has got its GPUs.
    """

    waiting: Record | None = None
    preempted: Record | None = None
    placed: Record | None = None


def recorder(
    client: Client,
    *,
    instance: str,
    reason: str = "WaitsForGPUs",
    action: str = "Placing",
    kind: Literal["Normal", "Warning"] = "Warning",
) -> Record:
    """Return the function that writes the reason of a pod as an Event.

    Args:
        client: An entered client.
        instance: The name of this replica, which the Event shows.
        reason: The reason field of the Event.
        action: The action field of the Event.
        kind: ``Warning`` if a user should look at the pod, else ``Normal``.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(pod: Pod, message: str) -> None:
        about = Reference("Pod", pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        await events.record(about=about, type=kind, reason=reason, message=message, action=action)

    return record


class _Told:
    """The reason that one waiting pod's annotation should show.

    Attributes:
        uid: The pod's uid.
        reason: Why the pod waits; None for nothing.
        own: The last reason that came from a failed write or placement of this pod; None for none.
        due: When the annotation may be written next, by the event loop's clock.
        hurried: Whether ``soon`` has already made ``due`` earlier.
    """

    __slots__ = ("due", "hurried", "own", "reason", "uid")

    def __init__(self, uid: str, due: float) -> None:
        self.uid = uid
        self.reason: Reason | None = None
        self.own: Reason | None = None
        self.due = due
        self.hurried = False


class Reasons:
    """The reasons of all waiting pods, and when they may be written.

    Reasons have no figures that change with every event. So most pods get only one write while they wait.
    """

    def __init__(
        self,
        writer: PodWriter,
        *,
        pods: Callable[[Key], Pod | None],
        lanes: Lanes,
        record: Record | None = None,
        first_s: float = FIRST_S,
        again_s: float = AGAIN_S,
    ) -> None:
        """Make an object without reasons.

        Args:
            writer: Writes annotations.
            pods: Returns the living pod of a key; None if there is none.
            lanes: The write lanes, which limit concurrent writes. Placements are written before reasons.
            record: Writes an Event about a pod; None for no Events.
            first_s: How many seconds a pod waits before its first reason is written.
            again_s: The least number of seconds between two reasons of a pod.
        """
        self._writer = writer
        self._pods = pods
        self._lanes = lanes
        self._record = record
        self._first_s = first_s
        self._again_s = again_s
        self._told: dict[Key, _Told] = {}  # by pod
        self._due = WorkQueue(self._work, pause_s=again_s)

    def want(self, pod: Pod, reason: Reason | None, *, own: bool = False) -> None:
        """Set the reason to write on a waiting pod; None removes it.

        ``own`` says that the reason comes from a failed write or placement of this pod. ``insist`` writes such a
        reason again.
        """
        key = pod.metadata.namespace, pod.metadata.name
        known = self._told.get(key)
        if known is None or known.uid != pod.metadata.uid:
            if reason is None and names.REASON not in pod.metadata.annotations:
                return
            # Somebody before us wrote what stands there, and nobody knows when.
            first_s = self._again_s if names.REASON in pod.metadata.annotations else self._first_s
            known = self._told[key] = _Told(pod.metadata.uid, asyncio.get_running_loop().time() + first_s)
        known.reason = reason
        if own:
            known.own = reason
        if pod.metadata.annotations.get(names.REASON) != _text(reason):
            self._due.put_at(key, known.due)

    def insist(self, pod: Pod, *, but: Collection[Cause] = ()) -> bool:
        """Set the reason of a pod to its last failed write or placement again.

        Returns False, and changes nothing, if there was no failure, or if the cause of that reason is in ``but``.
        """
        known = self._told.get((pod.metadata.namespace, pod.metadata.name))
        if known is None or known.uid != pod.metadata.uid or known.own is None or known.own.cause in but:
            return False
        self.want(pod, known.own)
        return True

    def forgive(self, key: Key) -> None:
        """Forget a pod's last failure, because its request has changed.

        The annotation stays until there is another reason.
        """
        if (known := self._told.get(key)) is not None:
            known.own = None

    def soon(self, key: Key) -> None:
        """Write a pod's next reason at most ``first_s`` seconds from now.

        Only the first call for a pod has this effect. It is used when the kind of reason changes, such as when a gang
        is complete.
        """
        if (known := self._told.get(key)) is not None and not known.hurried:
            known.hurried = True
            known.due = min(known.due, asyncio.get_running_loop().time() + self._first_s)

    def placed_again(self, pod: Pod) -> bool:
        """Return whether a newly placed pod should keep its annotation.

        It should if the annotation says why the scheduler refused the last placement. The scheduler may refuse this
        one, too. So the annotation stays until the pod is bound.
        """
        known = self._told.get((pod.metadata.namespace, pod.metadata.name))
        if known is None or known.uid != pod.metadata.uid:
            return False
        if known.own is None or known.own.cause not in _REFUSALS:
            known.reason = known.own = None
            return False
        self.want(pod, known.own)
        return pod.metadata.annotations.get(names.REASON) == _text(known.own)

    def taken_away(self, key: Key) -> None:
        """Note that another write removed a pod's annotation with the reason.

        The earliest time of the next reason stays unchanged.
        """
        if (known := self._told.get(key)) is not None:
            known.reason = known.own = None

    def forget(self, key: Key) -> None:
        """Forget the reason of a pod that no longer waits."""
        self._told.pop(key, None)
        self._due.drop(key)
        self._due.done(key)

    def counted(self) -> dict[Cause, int]:
        """Return the number of waiting pods by the cause of their reason.

        Reasons that are not written yet count, too. Each cause has a number, which can be 0.
        """
        counts = dict.fromkeys(Cause, 0)
        for known in self._told.values():
            if known.reason is not None:
                counts[known.reason.cause] += 1
        return counts

    def oldest(self) -> float | None:
        """Return when the oldest pod with a reason was created, in seconds since the epoch.

        None if no pod has a reason.
        """
        waiting = (self._pods(key) for key, known in self._told.items() if known.reason is not None)
        created = (pod.metadata.creation_timestamp for pod in waiting if pod is not None)
        return seconds(min(filter(None, created), default=None))  # the API server's texts sort as the moments do

    async def run(self) -> None:
        """Write the reasons of waiting pods until cancelled."""
        await self._due.run()

    async def flush(self) -> int:
        """Write all reasons that differ from the annotations now; return the number of writes."""
        written = 0
        for key in self._due.waiting():
            self._due.drop(key)
            self._due.done(key)
            written += await self._write(key)
        return written

    async def _work(self, key: Key) -> None:
        clock = asyncio.get_running_loop().time
        patient = clock() + PATIENCE_S
        while not self._lanes.room() or not (self._lanes.idle or clock() > patient):  # noqa: ASYNC110 - both are many
            await asyncio.sleep(LOOK_S)
        known = self._told.get(key)
        if known is not None and clock() < known.due:
            self._due.put_at(key, known.due)  # it was wanted while the one before was written
            return
        self._due.done(key)
        await self._write(key)

    async def _write(self, key: Key) -> int:
        """Write a pod's reason unless its annotation shows it; return the number of writes."""
        known, pod = self._told.get(key), self._pods(key)
        if known is None or pod is None or pod.metadata.uid != known.uid:
            self._told.pop(key, None)
            return 0
        text, written = _text(known.reason), False
        try:
            if pod.metadata.annotations.get(names.REASON) == text:
                return 0
            try:
                written = await self._writer.tell(pod, text)
            finally:
                known.due = asyncio.get_running_loop().time() + self._again_s
            if written and text is not None and self._record is not None:
                await self._record(pod, text)
        except MovedOnError as error:
            logger.debug("Pod %s/%s: the annotation gpu.topology/reason cannot be written: %s", *key, error)
        except DriverError as error:
            logger.warning("Pod %s/%s: the annotation gpu.topology/reason cannot be written: %s", *key, error)
            if outcome(error) is Outcome.SERVER:
                self._lanes.failed(error)
        finally:
            current = self._pods(key)
            if current is not None and current.metadata.annotations.get(names.REASON) != _text(known.reason):
                self._due.put_at(key, known.due)
        return int(written)


def _text(reason: Reason | None) -> str | None:
    """Return the annotation text of a reason; None if ``reason`` is None."""
    return None if reason is None else cut(reason.text)
