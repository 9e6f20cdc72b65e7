"""Stores reservations in a ConfigMap of the driver's namespace, so that the next leader continues them.

``Reservations`` calls it.

A reservation has *failed* if it ended without a place for its workload and kept GPUs idle for long.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from dradriver.api.base.errors import WordError
from dradriver.api.claims import reservation_config_map
from dradriver.api.claims.evicted_workloads import Evicted
from dradriver.controller.writing.release_owner import ReleaseOwner
from dradriver.errors import DriverError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import CONFIG_MAPS

logger = logging.getLogger(__name__)

_CONFLICT: Final = 409


class ReservationStore:
    """Reads and writes the ConfigMap with reservations. Only the leader writes it."""

    def __init__(self, client: Client, *, namespace: str, owner: ReleaseOwner | None = None) -> None:
        """Make a store of reservations.

        Args:
            client: The API server.
            namespace: The driver's namespace.
            owner: Finds the ConfigMap's owner; None for no owner.
        """
        self._client, self._namespace = client, namespace
        self._owner = owner or ReleaseOwner(client)
        self._owners: list[dict[str, str]] = []
        # The ConfigMap's resource version (empty if there is none), and the error that was last logged.
        self._version = self._warned = ""

    async def load(self) -> reservation_config_map.Written:
        """Return the stored reservations.

        The result is empty if there is no ConfigMap, or if its contents cannot be decoded.

        Raises:
            ApiError: The server refuses.
            Unreachable: No answer.
        """
        self._owners = await self._owner.references()
        found = await self._read()
        if found is None:
            return reservation_config_map.Written()
        try:
            return reservation_config_map.read(found)
        except WordError as error:
            logger.warning("%s. The controller writes it again.", str(error).removesuffix("."))
            return reservation_config_map.Written()

    async def save(
        self,
        kept: Sequence[reservation_config_map.Kept],
        blocked: Sequence[reservation_config_map.Since],
        failed: Sequence[reservation_config_map.Since] = (),
        evicted: Sequence[Evicted] = (),
    ) -> bool:
        """Write reservations with their waiting times and evictions; return whether it worked.

        A failure is logged, but only once while its cause stays the same.

        Args:
            kept: The reservations in force.
            blocked: Since when workloads wait for a reservation.
            failed: For each tenant, or namespace without a tenant: how many reservations failed, and when the last one
                did.
            evicted: Workloads that were evicted for other workloads.
        """
        written = reservation_config_map.Written(
            kept=list(kept), blocked=list(blocked), failed=list(failed), evicted=list(evicted)
        )
        try:
            try:
                await self._write(written)
            except ApiError as error:
                if error.status != _CONFLICT and not error.not_found:
                    raise
                # Another replica or a person changed, made or deleted the ConfigMap. ``_read`` notes the version that
                # is there now, and the second write replaces it: only the leader knows the reservations.
                await self._read()
                await self._write(written)
        except DriverError as error:
            cause = f"{error.status} {error.api_reason}" if isinstance(error, ApiError) else error.reason
            if cause != self._warned:
                self._warned = cause
                logger.warning(
                    "The ConfigMap of reservations cannot be written: %s. A new leader would not know the last change.",
                    error,
                )
            return False
        self._warned = ""
        return True

    async def _read(self) -> dict[str, Any] | None:
        self._version = ""
        try:
            found: dict[str, Any] = await self._client.get(
                CONFIG_MAPS, reservation_config_map.NAME, namespace=self._namespace
            )
        except ApiError as error:
            if error.not_found:
                return None
            raise
        self._version = found["metadata"]["resourceVersion"]
        return found

    async def _write(self, written: reservation_config_map.Written) -> None:
        wanted = reservation_config_map.config_map(
            written.kept, written.blocked, written.failed, written.evicted,
            namespace=self._namespace, owners=self._owners, version=self._version,
        )  # fmt: skip
        write = self._client.update if self._version else self._client.create
        self._version = (await write(CONFIG_MAPS, wanted))["metadata"]["resourceVersion"]
