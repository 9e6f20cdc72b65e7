"""The policies in force in a process that watches their ConfigMap through the API server.

The kubelet brings a changed ConfigMap into its mounted file more than a minute late. A process that keeps tenants
apart cannot wait for that: the controller uses this class. There is one source at a time. Until the API server has
answered for the first time, the mounted file counts. From then on the ConfigMap counts, and the file is never read.
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
    """Follows the ConfigMap while ``run`` runs.

    A ConfigMap that is bad, absent or without the file's key is trouble, and the last good policies stay in force. The
    same holds if the API server refuses to show the ConfigMap any more. An API server that cannot be reached is no
    trouble: the last good policies are the newest ones that anybody can know.
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
    ) -> None:
        """Read the mounted file.

        Args:
            client: An entered client, whose account may list and watch the ConfigMap of this name.
            path: The mounted file. Its name is the key in the ConfigMap.
            namespace: The ConfigMap's namespace.
            name: The ConfigMap's name.
            on_change: Called with other policies that came into force, in the watch event that brought them.
            on_trouble: See ``PoliciesFile``.
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
        super().__init__(path, on_change=on_change, on_trouble=on_trouble)

    @property
    def source(self) -> str:
        """Return the name of the watched ConfigMap with policies, for messages."""
        if not self._reflector.synced.is_set():
            return super().source
        return f"{self._file.name} of ConfigMap {'/'.join(self._key)}"

    def contents(self) -> tuple[bytes, ...]:
        """Return what the watched ConfigMap holds, or the mounted file before the API server's first answer.

        Raises:
            FileNotFoundError: There is no such ConfigMap, or it has no such key.
            OSError: The mounted file cannot be read, or the API server refuses to show the ConfigMap.
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
        """Return once the watch of the ConfigMap was answered while ``run`` runs, or after a few seconds without."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await self._reflector.synced.wait()
        self.step()
        if not self._reflector.synced.is_set():
            name = "/".join(self._key)
            logger.warning("ConfigMap %s: no answer of the API server yet; %s counts until then", name, self._file)

    async def read_again(self) -> None:
        """Return once the watched policies are at least as new as the ConfigMap at the call, or after a few seconds.

        A watch that fell silent shows nothing for more than a minute. A process that begins to act calls this first.
        """
        if not self._reflector.synced.is_set():
            return
        try:
            await self._reflector.refresh(READ_S)
        except Unreachable as error:
            logger.warning("%s may be older than the API server's: %s", self.source, error)

    def _troubled(self, error: DriverError | None) -> None:
        """Note whether the API server refuses to show the ConfigMap; None if it shows it."""
        self._refusal = error if isinstance(error, ApiError) and error.status in (401, 403) else None
        self.step()

    async def run(self) -> NoReturn:
        """Follow the watched ConfigMap with the policies until cancelled, and tell of trouble."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            while True:
                await super().run()
