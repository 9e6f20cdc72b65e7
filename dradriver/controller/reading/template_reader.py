"""Reads the spec of a ResourceClaimTemplate when a waiting pod names it.

The cluster cache has only the names of all other templates. A cluster can have 10,000 of them, of up to 16 KiB each,
and any user can create more. ``Prerequisites`` calls it.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.records import records
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.codec import BadJson
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES
from dradriver.kube.workqueue import WorkQueue

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0


class TemplateReader:
    """Reads templates into the cluster cache, one at a time in each namespace.

    So many or large templates delay only their own namespace.
    """

    def __init__(self, client: Client, picture: Picture) -> None:
        self._client = client
        self._picture = picture
        self._wanted: dict[Key, None] = {}
        self._rounds = WorkQueue(self._work, pause_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)

    def want(self, key: Key) -> None:
        """Request a ResourceClaimTemplate, which ``run`` then reads.

        After that, the pods that name it are processed again.
        """
        self._wanted[key] = None
        self._rounds.put(key)

    async def run(self) -> None:
        """Read the requested templates until cancelled; after an error try again with a pause."""
        await self._rounds.run()

    async def read(self) -> bool:
        """Read all requested templates now, without pauses; return whether any was read."""
        return any([await self._read(key) for key in list(self._wanted)])

    async def _work(self, key: Key) -> None:
        if await self._read(key) or key not in self._wanted:
            self._rounds.done(key)
        else:
            self._rounds.fail(key)

    async def _read(self, key: Key) -> bool:
        """Read a template if a pod still needs it; return whether it was read.

        False if no pod needs it, or if it cannot be read now. A template that does not exist counts as read. So does
        one that another reader has stored meanwhile.
        """
        if not self._picture.templates.pods(key):
            self._wanted.pop(key, None)
        if key not in self._wanted:
            return False
        known = self._picture.templates.known
        asked = known.get(key)
        try:
            # As it came: JSON of any depth can be read, but not be written again.
            raw = await self._client.get(RESOURCE_CLAIM_TEMPLATES, key[1], namespace=key[0], type=msgspec.Raw)
            template = records.read_template(raw)
        except (ApiError, Unreachable, BadJson) as error:
            if not (isinstance(error, ApiError) and error.not_found):
                logger.warning(
                    "ResourceClaimTemplate %s/%s cannot be read: %s. The controller tries again.", *key, error
                )
                return False
            template = None  # its reflector is late
        if known.get(key) is not asked:
            return True  # or this answer is: it may be of the template that was there before; the pods want the next
        self._wanted.pop(key, None)
        self._picture.template_read(key, template)
        return True
