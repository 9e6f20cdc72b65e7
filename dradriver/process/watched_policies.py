"""Follows the policies of a process in their ConfigMap, through the API server.

The kubelet updates the mounted file more than a minute after the ConfigMap has changed. The controller keeps tenants
apart, so it cannot wait for the file, and uses this class. Only one source counts at a time. Until the API server has
answered for the first time, this is the mounted file. From then on it is the ConfigMap, and the file is never read.

The policies are the administrator's settings. ``trouble`` is the text that says why the ConfigMap's policies are not
used.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from dradriver.api.base.objects import Metadata
from dradriver.api.policies.policy_sections import Policies
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.reflector import Reflector
from dradriver.kube.resources import CONFIG_MAPS
from dradriver.process.policies_file import PoliciesFile

logger = logging.getLogger(__name__)

READ_S: Final = 5.0


class _ConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] | None = None


class WatchedPolicies(PoliciesFile):
    """Follows the policies in a ConfigMap while ``run`` runs.

    ``trouble`` is set if the ConfigMap is bad, absent or without the file's key, or if the API server does not allow to
    read it any more. The last good policies then stay in force. If the API server cannot be reached, ``trouble`` is not
    set: no newer policies can be known then.
    """

    def __init__(
        self,
        client: Client,
        path: Path,
        *,
        namespace: str,
        name: str,
        on_change: Callable[[Policies], None] | None = None,
        on_trouble: Callable[[str], Awaitable[None]] | None = None,
        on_recovery: Callable[[Policies], Awaitable[None]] | None = None,
    ) -> None:
        """Read the mounted policies file for the first time.

        Args:
            client: A client inside its ``async with`` block. Its account may list and watch the ConfigMap of this name.
            path: The mounted file. Its name is the key in the ConfigMap.
            namespace: The ConfigMap's namespace.
            name: The ConfigMap's name.
            on_change: Called with the new policies each time that new policies come into force. The call is made while
                the watch event of the ConfigMap is handled.
            on_trouble: Called while ``run`` runs, with each new ``trouble``.
            on_recovery: Called while ``run`` runs, with the policies in force, when ``trouble`` becomes None again.
        """
        self._file, self._key = path, (namespace, name)
        self._refusal: ApiError | None = None  # why the API server does not show the ConfigMap; None while it does
        # ``step`` of the base class reads ``contents`` and puts them into force if they changed.
        self._reflector = Reflector(
            client,
            CONFIG_MAPS,
            _ConfigMap,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            on_change=lambda _: self.step(),
            on_trouble=self._troubled,
        )
        # Last, because it reads the policies for the first time, by ``contents``, which asks the reflector.
        super().__init__(path, on_change=on_change, on_trouble=on_trouble, on_recovery=on_recovery)

    @property
    def source(self) -> str:
        """Return the name of the watched ConfigMap with policies, for messages."""
        if not self._reflector.synced.is_set():
            return super().source
        return f"{self._file.name} of ConfigMap {'/'.join(self._key)}"

    def contents(self) -> tuple[bytes, ...]:
        """Return the content of the watched ConfigMap, or of the mounted file.

        The mounted file counts until the API server has answered for the first time.

        Raises:
            FileNotFoundError: The ConfigMap does not exist, or does not have the file's key.
            OSError: The mounted file cannot be read, or the API server does not allow to read the ConfigMap.
        """
        if not self._reflector.synced.is_set():
            return super().contents()
        if self._refusal is not None:
            raise OSError(str(self._refusal))
        config_map = self._reflector.store.get(self._key)
        text = None if config_map is None else (config_map.data or {}).get(self._file.name)
        if text is None:
            raise FileNotFoundError(self.source)
        return (text.encode(),)

    async def first_read(self) -> None:
        """Return once the API server has sent the ConfigMap, or after a few seconds.

        ``run`` must be running.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await self._reflector.synced.wait()
        self.step()
        if not self._reflector.synced.is_set():
            name = "/".join(self._key)
            logger.warning(
                "ConfigMap %s: the API server has not answered yet. The file %s is in force until then.",
                name,
                self._file,
            )

    async def read_again(self) -> None:
        """Return once the policies in force are as new as the ConfigMap was at the call.

        Return after a few seconds in any case. A process calls this before it begins to act, because a watch with a
        dead connection can miss changes for more than a minute.
        """
        if not self._reflector.synced.is_set():
            return
        try:
            await self._reflector.refresh(READ_S)
        except Unreachable as error:
            logger.warning(
                "The policies in force, from %s, may be older than those of the API server: %s", self.source, error
            )

    def _troubled(self, error: DriverError | None) -> None:
        """Remember whether the API server refuses to send the ConfigMap (401 or 403).

        ``error`` is why the ConfigMap could not be followed; None if following works again. None and any other error
        end an earlier refusal.
        """
        self._refusal = error if isinstance(error, ApiError) and error.status in (401, 403) else None
        self.step()

    async def run(self) -> NoReturn:
        """Follow the watched ConfigMap until cancelled, and report trouble."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            while True:
                await super().run()
