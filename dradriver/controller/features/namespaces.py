"""Watches the labels of namespaces while the policies file chooses namespaces of tenants by labels.

A *tenant* is a group of namespaces in the policies file. It names its namespaces, or selects them by their labels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NoReturn

import msgspec

from dradriver.api.base.objects import Metadata
from dradriver.controller import metrics
from dradriver.errors import DriverError
from dradriver.kube.client import Client
from dradriver.kube.event_recorder import Recorder, Reference
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import NAMESPACES
from dradriver.queue.namespace_tenants import Tenants

logger = logging.getLogger(__name__)

Record = Callable[[str, str, str], Awaitable[None]]
"""Writes an Event about a namespace: its name, its uid, the message."""


class Namespace(msgspec.Struct):
    """The record of a namespace: its name, uid and labels."""

    metadata: Metadata


def recorder(client: Client, *, instance: str) -> Record:
    """Return the function that writes an Event about a namespace.

    ``instance`` is the name of this replica, which the Event shows.
    """
    events = Recorder(client, component="gpu-topology", instance=instance)

    async def record(name: str, uid: str, message: str) -> None:
        about = Reference(NAMESPACES.kind, "", name, uid)
        await events.record(about=about, type="Warning", reason="SeveralTenants", message=message, action="Assigning")

    return record


class Namespaces:
    """Reports labels of namespaces, by which the tenant of a namespace is found.

    It also writes Events about namespaces that several tenants claim.
    """

    def __init__(
        self,
        client: Client,
        tenants: Tenants,
        changed: Callable[[str, Mapping[str, str] | None], object],
        record: Record | None = None,
    ) -> None:
        """Begin without a watch.

        Args:
            client: The API server.
            tenants: The tenants of the policies in force.
            changed: Called with a namespace and its labels; None as the labels if the namespace is gone.
            record: Writes an Event about a namespace that several tenants claim; None for no Events.
        """
        self._client, self._tenants, self._tell, self._record = client, tenants, changed, record
        self._known: dict[str, Metadata] = {}
        self._several: dict[str, tuple[str, ...]] = {}
        self._told: dict[str, tuple[str, ...]] = {}
        self._woken, self._to_tell = asyncio.Event(), asyncio.Event()

    def follow(self) -> None:
        """Check again which namespaces several tenants claim, because the policies changed.

        The watch starts if the policies now choose namespaces by labels, and stops if they no longer do.
        """
        self._several = {}
        for name in self._known:
            self._look(name)
        self._woken.set()

    async def run(self) -> NoReturn:
        """Watch namespaces until cancelled, while any tenant chooses its namespaces by labels."""
        watching: asyncio.Task[Any] | None = None
        try:
            while True:
                if self._tenants.by_labels and watching is None:
                    watching = asyncio.ensure_future(
                        Reflector(self._client, NAMESPACES, Namespace, on_change=self._changed).run()
                    )
                elif not self._tenants.by_labels and watching is not None:
                    watching.cancel()
                    watching = None
                    for name in list(self._known):
                        self.shown(name, None)
                await self._woken.wait()
                self._woken.clear()
        finally:
            if watching is not None:
                watching.cancel()

    async def tell(self) -> NoReturn:
        """Write an Event about each namespace that several tenants claim, once each, until cancelled."""
        while True:
            await self._to_tell.wait()
            self._to_tell.clear()
            for name, claiming in list(self._several.items()):
                if self._told.get(name) == claiming or name not in self._known:
                    continue
                self._told[name] = claiming
                first, *others = claiming
                message = (
                    f"The labels of namespace {name} belong to several tenants of the policies file: "
                    f"{', '.join(claiming)}. The namespace is part of {first}, the first of them by name. Write "
                    f"its name into one of these tenants, or other labels into {', '.join(others)}."
                )
                logger.warning("%s", message)
                if self._record is not None:
                    try:
                        await self._record(name, self._known[name].uid, message)
                    except DriverError as error:
                        logger.warning("Namespace %s: the Event SeveralTenants cannot be written: %s", name, error)

    def _changed(self, change: Change[Namespace]) -> None:
        self.shown(change.key[1], None if change.new is None else change.new.metadata)

    def shown(self, name: str, metadata: Metadata | None) -> None:
        """Store the newest state of a namespace, and report its labels.

        ``metadata`` has the labels; it is None if the namespace is gone.
        """
        if metadata is None:
            self._known.pop(name, None)
            self._told.pop(name, None)
        else:
            self._known[name] = metadata
        self._tell(name, None if metadata is None else metadata.labels)
        self._look(name)

    def _look(self, name: str) -> None:
        known = self._known.get(name)
        claiming = () if known is None else tuple(self._tenants.claiming(name, known.labels))
        if len(claiming) > 1:
            self._several[name] = claiming
            self._to_tell.set()
        else:
            self._several.pop(name, None)
        metrics.SEVERAL_TENANTS.set(len(self._several))
