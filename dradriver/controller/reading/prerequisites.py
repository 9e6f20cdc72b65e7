"""Checks what a pod needs before it can get a place: objects that it names, and its gang. ``Dispatcher`` calls it.

A *place* is a node and GPUs for one pod.
"""

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
LEAVING: Final = Reason(Cause.GANG, "Waiting until the gang has been restarted.")


class Missing(msgspec.Struct, frozen=True):
    """Why a pod keeps its scheduling gate, even if GPUs are free.

    Attributes:
        reason: The reason to show on the pod; None while an object is being read.
        look_after_s: After how many seconds to process the pod again; None if an event causes that.
    """

    reason: Reason | None
    look_after_s: float | None = None


class Prerequisites:
    """Checks and requests what a pod needs before it can get a place.

    That is the template of its claim and its PersistentVolumeClaims. A pod of a gang that is about to end gets no
    place.
    """

    def __init__(
        self, picture: Picture, templates: TemplateReader, volumes: VolumeReader, leaves: Callable[[Key], bool]
    ) -> None:
        """Make prerequisites that have requested no object.

        Args:
            picture: The cluster cache.
            templates: Reads ResourceClaimTemplates.
            volumes: Reads PersistentVolumeClaims.
            leaves: Returns whether a running gang is being restarted or preempted, so that all its pods end.
        """
        self._picture, self._templates, self._volumes, self._leaves = picture, templates, volumes, leaves

    def request(self, pod: Pod) -> None:
        """Request the objects that a pod names and that were not read yet.

        After they are read, the pod is processed again.
        """
        for claim in self._picture.volumes.unread_of(pod):
            self._volumes.want(claim)
        if (template := self._picture.templates.unread_of(pod)) is not None:
            self._templates.want(template)

    def missing(self, key: Key, pod: Pod) -> Missing | None:
        """Return what a gated pod without a claim lacks; None for nothing, or other pods."""
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
