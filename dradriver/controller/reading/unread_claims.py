"""Writes an Event on a claim that cannot be read completely. The unreadable part counts as allocating no GPU."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.isolated import Unread
from dradriver.kube.resources import RESOURCE_CLAIMS

MOST: Final = 256  # claims that wait for their Event; the metric and the log have those beyond, too
_REMEMBERED: Final = 4096

Record = Callable[[Unread], Awaitable[None]]
"""Writes an Event about a claim."""


def recorder(client: Client, *, instance: str) -> Record:
    """Return the function that writes Events about claims that cannot be read.

    ``instance`` is the name of this replica, which the Event shows.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(unread: Unread) -> None:
        identity = unread.identity
        about = Reference(
            RESOURCE_CLAIMS.kind, identity.namespace, identity.name, identity.uid, RESOURCE_CLAIMS.api_version
        )
        what = "The controller cannot read a part of this claim, and assumes that this part allocates no GPU"
        message = f"{what}: {unread.why}"
        await events.record(about=about, type="Warning", reason="ClaimNotUnderstood", message=message, action="Reading")

    return record


class UnreadClaims:
    """The claims that cannot be read completely and still need an Event."""

    def __init__(self, record: Record | None) -> None:
        """Make a list without claims; ``record`` writes an Event, None for no Events."""
        self._record = record
        self._waiting: OrderedDict[str, Unread] = OrderedDict()
        self._told: OrderedDict[str, str] = OrderedDict()  # what was told last, by uid
        self._woken = asyncio.Event()

    def tell(self, unread: Unread) -> None:
        """Request an Event about ``unread``, a claim that cannot be read completely.

        Nothing is done if the last Event about this claim had the same error, or if ``MOST`` other claims wait for an
        Event.
        """
        uid = unread.identity.uid
        if uid and self._told.get(uid) != unread.why and (uid in self._waiting or len(self._waiting) < MOST):
            self._waiting[uid] = unread
            self._woken.set()

    async def run(self) -> NoReturn:
        """Write Events about claims that cannot be read, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._waiting:
                uid, unread = self._waiting.popitem(last=False)
                self._told[uid] = unread.why
                self._told.move_to_end(uid)
                if len(self._told) > _REMEMBERED:
                    self._told.popitem(last=False)
                if self._record is not None:
                    await self._record(unread)
