"""Events on pods whose containers requested information, such as NCCL's files, that they do not get."""

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
    """Writes an event for every claim and reason once, in addition to what the kubelet waits for.

    The claims are told side by side: the webhook of one namespace may hang on Events.
    """

    def __init__(self, events: Recorder) -> None:
        """Tell nobody yet."""
        self._events = events
        self._queue: asyncio.Queue[tuple[ResourceClaim, str]] = asyncio.Queue()
        self._waiting = 0
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()

    def put(self, claim: ResourceClaim, said: str) -> None:
        """Have an Event written on the claim's pods about information that their containers do not get.

        Where too many wait to be told it is in the log alone.
        """
        key = claim.metadata.uid, said
        if key in self._said:
            return
        self._said[key] = None
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        logger.warning("claim %s/%s: %s", claim.metadata.namespace, claim.metadata.name, said)
        if self._waiting < _WAITING:
            self._waiting += 1
            self._queue.put_nowait((claim, said))

    async def run(self) -> None:
        """Write Events about missing information until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                claim, said = await self._queue.get()
                group.create_task(self._tell(claim, said))

    async def _tell(self, claim: ResourceClaim, said: str) -> None:
        try:
            users = [user for user in claim.status.reserved_for if user.resource == "pods"]
            for user in users[:_MOST_PODS]:
                await self._events.record(
                    about=Reference("Pod", claim.metadata.namespace, user.name, user.uid),
                    type="Warning",
                    reason="NoNearNICs",
                    message=said,
                    action="Preparing",
                )
        finally:
            self._waiting -= 1
