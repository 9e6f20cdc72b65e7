"""Specs of ResourceClaimTemplates, read when a waiting pod of ours names one: of all others nothing is kept but names.

A cluster can have 10,000 templates that are none of our business, of up to 16 KiB each, and anybody can make more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

import msgspec

from dradriver.api.pins import Key
from dradriver.controller import records
from dradriver.controller.picture import Picture
from dradriver.kube.client import ApiError, Client, Unreachable
from dradriver.kube.codec import BadJson
from dradriver.kube.resources import RESOURCE_CLAIM_TEMPLATES

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
MOST: Final = 16  # at once


class Specs:
    """Reads templates into the picture."""

    def __init__(self, client: Client, picture: Picture) -> None:
        self._client = client
        self._picture = picture
        self._wanted: dict[Key, None] = {}
        self._woken = asyncio.Event()

    def want(self, key: Key) -> None:
        """Have a template read; the pods that name it are looked at again then."""
        self._wanted[key] = None
        self._woken.set()

    async def run(self) -> None:
        """Read what is wanted until cancelled."""
        pause_s = FIRST_PAUSE_S
        while True:
            with contextlib.suppress(TimeoutError):  # one that cannot be read holds up no other
                async with asyncio.timeout(pause_s if self._wanted else None):
                    await self._woken.wait()
            self._woken.clear()
            await self.read()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if self._wanted else FIRST_PAUSE_S

    async def read(self) -> bool:
        """Read what is wanted now; what cannot be read stays wanted. Returns whether anything was read."""
        slots = asyncio.Semaphore(MOST)
        for key in [key for key in self._wanted if not self._picture.templates.pods(key)]:
            del self._wanted[key]
        return any(await asyncio.gather(*(self._read(key, slots) for key in list(self._wanted))))

    async def _read(self, key: Key, slots: asyncio.Semaphore) -> bool:
        known = self._picture.templates.known
        async with slots:
            asked = known.get(key)
            try:
                # As it came: JSON of any depth can be read, but not be written again.
                found = await self._client.get(RESOURCE_CLAIM_TEMPLATES, key[1], namespace=key[0], type=msgspec.Raw)
                template = records.read_template(found)
            except (ApiError, Unreachable, BadJson) as error:
                if not (isinstance(error, ApiError) and error.not_found):
                    logger.warning("template %s/%s cannot be read: %s; trying again", *key, error)
                    return False
                template = None  # its reflector is late
        if known.get(key) is not asked:
            return True  # or this answer is: it may be of the template that was there before
        self._wanted.pop(key, None)
        self._picture.template_read(key, template)
        return True
