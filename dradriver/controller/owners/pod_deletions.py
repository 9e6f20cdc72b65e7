"""Deletes the pods of gangs whose owner creates them again: StatefulSets and LeaderWorkerSets, with pauses.

``OwnerRestarts`` calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspendable_owners
from dradriver.controller.owners.evict_pods import delete
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import Client

logger = logging.getLogger(__name__)

MOST_REMEMBERED: Final = 4096  # gangs


class PodDeletions:
    """Deletes pods of gangs, and remembers when the pods of each gang may be deleted again."""

    def __init__(self, client: Client, pods: Mapping[Key, Pod]) -> None:
        """Begin with no deletions; ``pods`` are all current pods that request GPUs."""
        self._client, self._pods = client, pods
        # By gang: when its pods may be deleted again, and how often they were without a long time in between.
        self._pauses: dict[Key, tuple[float, int]] = {}

    async def delete(self, gang: Key, pods: Sequence[Pod], reason: str) -> float | None:
        """Delete the pods of a gang, unless the last deletion was too recent.

        Returns None if the pods were deleted. Else it returns when to call again, by the event loop's clock. Each pause
        is twice as long as the one before, up to ``suspendable_owners.LONGEST_PAUSE_S``.

        Raises:
            RefusedError: The pods have several owners, or may not be deleted.
            ApiError: The server refuses for another reason.
            Unreachable: No answer.
        """
        if len({suspendable_owners.set_of(pod) for pod in pods}) > 1:
            raise RefusedError("The pods of the gang have more than one owner. Delete them yourself.")
        now = asyncio.get_running_loop().time()
        pause_until, times = self._pauses.get(gang, (0.0, 0))
        if now < pause_until:
            return pause_until
        await delete(self._client, [pod for pod in pods if self._lives(pod)])
        logger.info("%s/%s: its pods are deleted, so that their owner creates them again: %s", *gang, reason)

        if now > pause_until + suspendable_owners.LONGEST_PAUSE_S:
            times = 0
        pause_s = min(suspendable_owners.FIRST_PAUSE_S * 2.0 ** min(times, 16), suspendable_owners.LONGEST_PAUSE_S)
        # Inserted at the end: the oldest entry is forgotten if there are too many.
        self._pauses.pop(gang, None)
        self._pauses[gang] = now + pause_s, times + 1
        if len(self._pauses) > MOST_REMEMBERED:
            del self._pauses[next(iter(self._pauses))]
        return None

    def _lives(self, pod: Pod) -> bool:
        """Return whether a pod still exists and is not being deleted."""
        current = self._pods.get((pod.metadata.namespace, pod.metadata.name))
        if current is None or current.metadata.uid != pod.metadata.uid:
            return False
        return current.metadata.deletion_timestamp is None
