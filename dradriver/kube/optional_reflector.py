"""A reflector for a kind that not every API server has. It follows the newest version that the server has."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, NoReturn, TypeVar

from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import Client
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import Resource
from dradriver.kube.store import HasMetadata

logger = logging.getLogger(__name__)

LOOK_S: Final = 600.0  # a server that has the kind from now on is another one, or was started anew

T = TypeVar("T", bound=HasMetadata)


class OptionalReflector(Generic[T]):
    """A reflector that follows a kind while the server has it.

    While the server does not have the kind, the reflector has no objects.
    """

    def __init__(
        self,
        client: Client,
        versions: Sequence[Resource],
        read: codec.Reading[T],
        *,
        on_change: Callable[[Change[T]], None],
        look_s: float = LOOK_S,
    ) -> None:
        """Make a reflector that follows nothing before ``run``.

        Args:
            client: A client inside its ``async with`` block.
            versions: The versions of the kind, the preferred one first.
            read: A msgspec struct with the fields that are used, or a function that makes one from an object's JSON.
            on_change: Called after the store has changed. If the server stops serving the kind, it is called for all
                objects as gone.
            look_s: How often to ask which versions the server has, in seconds; a quarter of that while the server does
                not answer.
        """
        self._client = client
        self._versions = versions
        self._read = read
        self._on_change = on_change
        self._look_s = look_s
        self._asked = asyncio.Event()  # set once the server was asked which versions it has
        self._reflector: Reflector[T] | None = None  # follows the version that the server has; None for none

    async def synced(self) -> None:
        """Wait until all objects of the kind are known.

        The method also returns if the server does not have the kind, or does not answer.
        """
        await self._asked.wait()
        if self._reflector is not None:
            await self._reflector.synced.wait()

    async def run(self) -> NoReturn:
        """Follow the kind on the API server until cancelled."""
        followed: Resource | None = None  # the version that is followed; None for none
        following: asyncio.Task[Any] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                # If the server does not answer, the followed version is kept.
                wait_s = self._look_s
                try:
                    newest = await self._newest_served()
                except DriverError as error:
                    logger.warning(
                        "The driver cannot find out which versions of %s the API server has: %s",
                        self._versions[0].plural,
                        error,
                    )
                    newest, wait_s = followed, self._look_s / 4
                # Another version, after an upgrade of the server, or none: its objects are read anew.
                if newest != followed:
                    if following is not None:
                        following.cancel()
                    self._report_all_gone()
                    followed = newest
                    if newest is not None:
                        logger.info("following %s %s", newest.api_version, newest.plural)
                        self._reflector = Reflector(self._client, newest, self._read, on_change=self._on_change)
                        following = tasks.create_task(self._reflector.run())
                self._asked.set()
                await asyncio.sleep(wait_s * random.uniform(0.9, 1.1))  # noqa: S311

    async def _newest_served(self) -> Resource | None:
        for version in self._versions:
            if await self._client.serves(version):
                return version
        return None

    def _report_all_gone(self) -> None:
        gone, self._reflector = self._reflector, None
        for key, old in dict(gone.store).items() if gone is not None else ():
            self._on_change(Change(key, old, None))
