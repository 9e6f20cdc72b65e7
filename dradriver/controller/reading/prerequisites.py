"""What a pod needs before it can get a place: objects that it names, and its gang. The dispatcher calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.volumes import VolumeReader
from dradriver.controller.reading.template_reader import TemplateReader
from dradriver.reason import Cause, Reason

LEAVES_S: Final = 1.0  # between two looks whether a gang has to end still: whoever asked for it may do without
LEAVING: Final = Reason(Cause.GANG, "waits until its gang has been started anew")


class Missing(msgspec.Struct, frozen=True):
    """A pod stays at its gate, whatever is free.

    Attributes:
        reason: Why; None while something is read.
        look_after_s: After how many seconds to look again; None for an event.
    """

    reason: Reason | None
    look_after_s: float | None = None


class Prerequisites:
    """The template of a pod's claim, its claims of storage, and a gang that does not end."""

    def __init__(
        self, picture: Picture, templates: TemplateReader, volumes: VolumeReader, leaves: Callable[[Key], bool]
    ) -> None:
        """Make one that has requested nothing.

        Args:
            picture: The cluster cache.
            templates: Reads templates of claims.
            volumes: Reads claims of storage.
            leaves: Says whether all pods of a gang that runs have to end.
        """
        self._picture, self._templates, self._volumes, self._leaves = picture, templates, volumes, leaves

    def request(self, pod: Pod) -> None:
        """Have the prerequisites of a pod read that are not read yet; the pod is looked at again when they are."""
        for claim in self._picture.volumes.unread_of(pod):
            self._volumes.want(claim)
        if (template := self._picture.templates.unread_of(pod)) is not None:
            self._templates.want(template)

    def missing(self, key: Key, pod: Pod) -> Missing | None:
        """Return which prerequisite keeps a pod at its gate whatever is free; None if none does, or it has a claim."""
        if not pod.gated or (missing := self._missing(key, pod)) is None:
            return None
        return missing if self._picture.claim_of(pod) is None else None

    def _missing(self, key: Key, pod: Pod) -> Missing | None:
        gang = self._picture.gangs.of(key)
        if gang is not None and self._leaves(gang.gang):
            return Missing(LEAVING, LEAVES_S)
        if (reason := self._picture.gangs.waits(key)) is not None:
            return Missing(reason)
        if self._picture.volumes.unread_of(pod):
            return Missing(None)
        lacking = self._picture.lacking_of(pod)
        return None if lacking is None else Missing(lacking)
