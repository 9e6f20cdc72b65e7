"""Requests the objects that a waiting pod names and that are read only then. The dispatcher calls it."""

from __future__ import annotations

from dradriver.api.base.pods import Pod
from dradriver.cluster.cache.cluster_cache import Picture
from dradriver.cluster.pods.volumes import VolumeReader
from dradriver.controller.reading.template_reader import TemplateReader


class Prerequisites:
    """The template of a pod's claim, and its claims of storage."""

    def __init__(self, picture: Picture, templates: TemplateReader, volumes: VolumeReader) -> None:
        """Make one that has requested nothing."""
        self._picture, self._templates, self._volumes = picture, templates, volumes

    def request(self, pod: Pod) -> None:
        """Request what is not read yet of what a pod names; the pod is looked at again when it is read."""
        for claim in self._picture.volumes.unread_of(pod):
            self._volumes.want(claim)
        if (template := self._picture.templates.unread_of(pod)) is not None:
            self._templates.want(template)
