"""Events on pods about information, such as NCCL's files, that their containers requested and do not get."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from dradriver.api.base.dra_objects import ResourceClaim
from dradriver.kube.event_recorder import Recorder, Reference

logger = logging.getLogger(__name__)

_WAITING: Final = 64  # to be told or being told
_REMEMBERED: Final = 256
_MOST_PODS: Final = 8  # of one claim


class NotTold:
    """Writes Events on pods about information that their containers requested and do not get.

    There is one Event for each claim and reason, written in its own task, so that the kubelet's call does not wait.
    Events of several claims are written at the same time, because an admission webhook may delay the Events of one
    namespace.
    """

    def __init__(self, events: Recorder) -> None:
        """Store the arguments; write no Event yet."""
        self._events = events
        self._queue: asyncio.Queue[tuple[ResourceClaim, str]] = asyncio.Queue()
        self._waiting = 0
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()

    def put(self, claim: ResourceClaim, reason: str) -> None:
        """Queue an Event for a claim's pods about information that their containers do not get, and log it.

        The same text for the same claim is queued once. If too many Events wait already, the text is only logged.

        Args:
            claim: The claim whose pods get the Event.
            reason: The text of the Event: which information is missing, and why.
        """
        key = claim.metadata.uid, reason
        if key in self._said:
            return
        self._said[key] = None
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        logger.warning("Claim %s/%s: %s", claim.metadata.namespace, claim.metadata.name, reason)
        if self._waiting < _WAITING:
            self._waiting += 1
            self._queue.put_nowait((claim, reason))

    async def run(self) -> None:
        """Write Events about missing information until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                claim, reason = await self._queue.get()
                group.create_task(self._tell(claim, reason))

    async def _tell(self, claim: ResourceClaim, reason: str) -> None:
        try:
            users = [user for user in claim.status.reserved_for if user.resource == "pods"]
            for user in users[:_MOST_PODS]:
                await self._events.record(
                    about=Reference("Pod", claim.metadata.namespace, user.name, user.uid),
                    type="Warning",
                    reason="NoNearNICs",
                    message=reason,
                    action="Preparing",
                )
        finally:
            self._waiting -= 1
