"""Finds the topmost owner of some pods, if all of them have the same one.

The controller suspends this owner to end the pods. ``owner_suspension``, ``owner_restarts`` and ``idle_writer`` call
this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.api.base.objects import OwnerReference
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspendable_owners
from dradriver.api.gangs.suspendable_owners import Suspendable, shown
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import Resource

DEEPEST: Final = 4  # owners above one another


class Top(msgspec.Struct, frozen=True):
    """A suspendable owner that has no suspendable owner itself.

    For example, a JobSet owns Jobs, which own pods: the JobSet is the topmost owner.

    Attributes:
        resource: The owner's API resource.
        owner: The owner, as it was read from the server.
    """

    resource: Resource
    owner: Suspendable

    @property
    def key(self) -> Key:
        """Return the topmost owner's key: namespace, and a text with kind and name.

        The key differs from the keys of all pods and gangs.
        """
        return self.owner.metadata.namespace, f"{self.resource.plural}.{self.resource.group}/{self.owner.metadata.name}"

    def __str__(self) -> str:
        return shown(self.resource.kind, self.owner.metadata.name)


def maker(pod: Pod) -> OwnerReference:
    """Return the owner reference to the controller that creates a pod again when it ends.

    Raises:
        RefusedError: The pod has no such owner.
    """
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    if owner is None:
        raise RefusedError("The pods of the gang have no owner that would create them again. Delete and create them.")
    return owner


async def top_of(client: Client, kinds: OwnerKinds, pods: Sequence[Pod]) -> Top:
    """Return the topmost owner of some pods of one namespace.

    ``kinds`` has the API versions in which the server has kinds of owners. The owner may be one that must not be
    suspended; ``suspendable_owners.obstacle`` says that.

    Raises:
        RefusedError: The pods have no owner or several, or the owner cannot be read.
        ApiError: The server refuses for another reason than a missing permission.
        Unreachable: No answer.
    """
    owner = maker(pods[0])
    for _ in range(DEEPEST):
        top = await _read(client, kinds, pods[0].metadata.namespace, owner)
        parent = top.owner.parent
        if parent is None or parent.kind not in suspendable_owners.FIELDS or top.owner.kueues:
            if not all(suspendable_owners.belongs(pod, owner.kind, top.owner.metadata) for pod in pods):
                raise RefusedError(
                    f"The pods of the gang have more than one owner, {top} and others. Suspend and resume each."
                )
            return top
        owner = parent
    raise RefusedError(
        f"The pods of the gang have more than {DEEPEST} levels of owners. Suspend and resume the topmost."
    )


async def _read(client: Client, kinds: OwnerKinds, namespace: str, owner: OwnerReference) -> Top:
    one = shown(owner.kind, owner.name)
    if owner.kind not in suspendable_owners.FIELDS:
        raise RefusedError(f"The driver does not know how to suspend {one}. Restart it yourself.")
    resource = await kinds.resource(owner.kind, owner.api_version)
    if resource is None or not owner.api_version.startswith(f"{resource.group}/"):
        raise RefusedError(f"The cluster has no objects of the kind of {one}, which created the pods.")
    try:
        found = await client.get(resource, owner.name, namespace=namespace, type=Suspendable)
    except ValueError:
        raise RefusedError(f"No object can have the name of {one}, which created the pods.") from None
    except ApiError as error:
        if error.not_found:
            raise RefusedError(f"{one}, which created the pods, does not exist any more.") from None
        if error.forbidden:
            right = suspendable_owners.grant(owner.kind, "suspend")
            raise RefusedError(
                f"The controller cannot read {one}: {right}, or suspend and resume it yourself."
            ) from None
        raise
    if found.metadata.uid != owner.uid:
        raise RefusedError(f"{one} was deleted and created again since it created the pods.")
    return Top(resource, found)
