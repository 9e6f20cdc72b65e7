"""Which object is suspended for some pods: the topmost of their owners, where all of them have one and it may be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.objects import OwnerReference
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspends
from dradriver.api.gangs.suspends import Suspendable, shown
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.writing.outcome import RefusedError
from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client
from dradriver.kube.resources import Resource

logger = logging.getLogger(__name__)

ANSWER_S: Final = 30.0  # for the list of one kind
DEEPEST: Final = 4  # owners above one another


class Top(msgspec.Struct, frozen=True):
    """An object that can be suspended, none above it."""

    resource: Resource
    found: Suspendable

    @property
    def key(self) -> Key:
        """Its namespace, and kind and name: no pod and no gang has such a key."""
        return self.found.metadata.namespace, f"{self.resource.plural}.{self.resource.group}/{self.found.metadata.name}"

    def __str__(self) -> str:
        return shown(self.resource.kind, self.found.metadata.name)


def maker(pod: Pod) -> OwnerReference:
    """Return what makes a pod anew.

    Raises:
        RefusedError: Nothing does.
    """
    owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    if owner is None:
        raise RefusedError("nothing would make its pods anew, for they have no owner: delete and create them")
    return owner


async def top_of(client: Client, kinds: OwnerKinds, pods: Sequence[Pod]) -> Top:
    """Return the object to be suspended for pods of one namespace; ask ``suspends.obstacle`` whether it may be.

    Raises:
        RefusedError: There is none, or not one of all of them, or it cannot be read.
        ApiError: The server refuses, other than for want of the right.
        Unreachable: No answer.
    """
    owner = maker(pods[0])
    for _ in range(DEEPEST):
        top = await _read(client, kinds, pods[0].metadata.namespace, owner)
        parent = top.found.parent
        if parent is None or parent.kind not in suspends.FIELDS or top.found.kueues:
            if not all(suspends.belongs(pod, owner.kind, top.found.metadata) for pod in pods):
                raise RefusedError(f"its pods have more than one owner, {top} and others: suspend and resume each")
            return top
        owner = parent
    raise RefusedError(f"more than {DEEPEST} owners stand above its pods: suspend and resume the topmost")


async def _read(client: Client, kinds: OwnerKinds, namespace: str, owner: OwnerReference) -> Top:
    one = shown(owner.kind, owner.name)
    if owner.kind not in suspends.FIELDS:
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
            right = suspends.grant(owner.kind, "suspend")
            raise RefusedError(f"the controller may not read {one}: {right}, or suspend and resume it") from None
        raise
    if found.metadata.uid != owner.uid:
        raise RefusedError(f"{one} is another one by now than that which made its pods")
    return Top(resource, found)


async def left_suspended(client: Client, kinds: OwnerKinds) -> tuple[list[Top], bool]:
    """Return what was suspended here and not resumed, of all kinds that may be listed; and whether that is all."""
    left: list[Top] = []
    whole = True
    for kind in suspends.FIELDS:
        try:
            async with asyncio.timeout(ANSWER_S):
                if (resource := await kinds.resource(kind)) is not None:
                    found, _ = await client.list(resource, label_selector=names.RESTARTING, type=_under_way)
                    left += [Top(resource, each) for each in found]
        except (DriverError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.forbidden):
                logger.warning("which %ss were left suspended is not known: %s", kind, str(error) or "no answer")
                whole = False
    return left, whole


def _under_way(raw: msgspec.Raw) -> Suspendable | None:
    found: Suspendable = codec.decode(raw, Suspendable)
    return None if suspends.under_way(found) is None else found
