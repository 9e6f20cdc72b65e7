"""The topmost owner of some pods, which is suspended for them, if all of them have the same one."""

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
    """An owner that can be suspended and has no such owner above it.

    Attributes:
        resource: The owner's API resource.
        owner: The owner, as the server showed it.
    """

    resource: Resource
    owner: Suspendable

    @property
    def key(self) -> Key:
        """Return the topmost owner's key: namespace, and kind and name. No pod and no gang has such a key."""
        return self.owner.metadata.namespace, f"{self.resource.plural}.{self.resource.group}/{self.owner.metadata.name}"

    def __str__(self) -> str:
        return shown(self.resource.kind, self.owner.metadata.name)


def maker(pod: Pod) -> OwnerReference:
    """Return the owner that makes a pod again.

    Raises:
        RefusedError: Nothing does.
    """
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    if owner is None:
        raise RefusedError("nothing would make its pods anew, for they have no owner: delete and create them")
    return owner


async def top_of(client: Client, kinds: OwnerKinds, pods: Sequence[Pod]) -> Top:
    """Return the topmost owner of some pods of one namespace, which is suspended for them.

    Ask ``suspendable_owners.obstacle`` whether it may be.

    Raises:
        RefusedError: There is none, or not one of all of them, or it cannot be read.
        ApiError: The server refuses, other than for want of the right.
        Unreachable: No answer.
    """
    owner = maker(pods[0])
    for _ in range(DEEPEST):
        top = await _read(client, kinds, pods[0].metadata.namespace, owner)
        parent = top.owner.parent
        if parent is None or parent.kind not in suspendable_owners.FIELDS or top.owner.kueues:
            if not all(suspendable_owners.belongs(pod, owner.kind, top.owner.metadata) for pod in pods):
                raise RefusedError(f"its pods have more than one owner, {top} and others: suspend and resume each")
            return top
        owner = parent
    raise RefusedError(f"more than {DEEPEST} owners stand above its pods: suspend and resume the topmost")


async def _read(client: Client, kinds: OwnerKinds, namespace: str, owner: OwnerReference) -> Top:
    one = shown(owner.kind, owner.name)
    if owner.kind not in suspendable_owners.FIELDS:
        raise RefusedError(f"the driver does not know how to suspend {one}: start it anew yourself")
    resource = await kinds.resource(owner.kind, owner.api_version)
    if resource is None or not owner.api_version.startswith(f"{resource.group}/"):
        raise RefusedError(f"the cluster has no objects of the kind of {one}, which made its pods")
    try:
        found = await client.get(resource, owner.name, namespace=namespace, type=Suspendable)
    except ValueError:
        raise RefusedError(f"no object can have the name of {one}, which made its pods") from None
    except ApiError as error:
        if error.not_found:
            raise RefusedError(f"{one}, which made its pods, is gone") from None
        if error.forbidden:
            right = suspendable_owners.grant(owner.kind, "suspend")
            raise RefusedError(f"the controller may not read {one}: {right}, or suspend and resume it") from None
        raise
    if found.metadata.uid != owner.uid:
        raise RefusedError(f"{one} is another one by now than that which made its pods")
    return Top(resource, found)
