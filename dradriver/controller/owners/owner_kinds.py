"""Finds the API version in which the server has a kind of owner, such as JobSet. Most clusters lack most kinds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Final

from dradriver.api.gangs import suspendable_owners
from dradriver.kube.client import Client
from dradriver.kube.resources import Resource

KNOWN_S: Final = 600.0  # a server that has a kind in another version is another one, or was started anew
UNKNOWN_S: Final = 30.0  # what it lacks may be installed

# What is wanted first stands first. Of scheduling.k8s.io: PodGroup is in v1alpha2 of Kubernetes 1.36, v1beta1 of 1.37.
_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "batch": ("v1",),
    "apps": ("v1",),
    "scheduling.k8s.io": ("v1", "v1beta1", "v1alpha2"),
    "jobset.x-k8s.io": ("v1", "v1alpha2"),
    "leaderworkerset.x-k8s.io": ("v1",),
    "kubeflow.org": ("v2beta1", "v1"),  # the MPI operator's, the training operator's
    "trainer.kubeflow.org": ("v1", "v1beta1", "v1alpha1"),
}
_VERSION: Final = re.compile(r"v[1-9][0-9]?((alpha|beta)[1-9][0-9]?)?", re.ASCII)


class OwnerKinds:
    """Finds the API version in which the server has a kind of owner, and remembers it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # By kind: until when the answer counts, and the resource; None if the server has none.
        self._answers: dict[str, tuple[float, Resource | None]] = {}

    async def resource(self, kind: str, api_version: str = "") -> Resource | None:
        """Return the API resource of a kind of owner; None if the server lacks it.

        Args:
            kind: A kind that the driver can suspend, such as ``Job``: a key of ``suspendable_owners.OBJECTS``.
            api_version: The version in an owner reference. It is tried after the versions that this driver knows.

        Raises:
            ApiError: The server refuses to list its resources.
            Unreachable: No answer.
        """
        now = asyncio.get_running_loop().time()
        until, resource = self._answers.get(kind, (now, None))
        if resource is not None and now < until:
            return resource
        group, plural = suspendable_owners.OBJECTS[kind]
        # While it is remembered that the server has none of the known versions, only the reference's own is tried.
        known_versions = _VERSIONS[group] if now >= until else ()
        reference_group, _, reference_version = api_version.rpartition("/")
        is_valid = reference_group == group and _VERSION.fullmatch(reference_version)
        versions = (*known_versions, reference_version) if is_valid else known_versions
        for version in dict.fromkeys(versions):
            resource = Resource(group, version, plural, kind, namespaced=True)
            if await self._client.serves(resource):
                self._answers[kind] = now + KNOWN_S, resource
                return resource
        if known_versions:
            self._answers[kind] = now + UNKNOWN_S, None
        return None
