"""Suspends owners for the pods of a gang: whether it is possible, the write, and which owners are suspended now.

``OwnerRestarts`` calls it.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dradriver.api.base import names
from dradriver.api.base.pods import Pod
from dradriver.api.claims.pins import Key
from dradriver.api.gangs import suspendable_owners
from dradriver.api.gangs.suspendable_owners import Suspendable
from dradriver.controller.owners.evict_pods import cannot_be_tried, not_permitted
from dradriver.controller.owners.owner_kinds import OwnerKinds
from dradriver.controller.owners.topmost_owner import Top, top_of
from dradriver.controller.writing.write_outcome import RefusedError
from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client, PatchKind

logger = logging.getLogger(__name__)

ANSWER_S: Final = 30.0  # for the list of one kind
DONE: Final = "it was started anew, and these pods of it are there still"
PAUSED: Final = "it was started anew a short time ago: it is again after a pause"


async def try_to_suspend(client: Client, kinds: OwnerKinds, gang: Key, pods: Sequence[Pod], reason: str) -> None:
    """Raise unless the owner of a gang's pods can be suspended now. Nothing is written.

    Disruption budgets are not checked: the caller checks them for all pods that must end.

    Args:
        client: The API server.
        kinds: The versions in which the server has kinds of owners.
        gang: The gang.
        pods: Its living pods.
        reason: The text that would be written on the owner.

    Raises:
        RefusedError: It cannot; the text says why.
        ApiError: The server refuses for another reason than a missing permission.
        Unreachable: No answer.
    """
    refuse_kueues(pods)
    top, loss = await top_of(client, kinds, pods), digest(pods)
    if suspendable_owners.under_way(top.owner) is not None:
        return
    if is_done(top, loss):
        raise RefusedError(DONE)
    if why := suspendable_owners.obstacle(top.resource.kind, top.owner):
        raise RefusedError(why)
    if pause_s(top) > 0:
        raise RefusedError(PAUSED)
    await suspend(client, top, gang=gang, loss=loss, reason=reason, dry_run=True)


async def suspend(client: Client, top: Top, *, gang: Key, loss: str, reason: str, dry_run: bool = False) -> None:
    """Suspend an owner with a record, or only have the server check that.

    Raises:
        RefusedError: The controller may not.
        ApiError: The server refuses; ``conflict`` if the object has changed.
        Unreachable: No answer.
    """
    now = datetime.datetime.now(datetime.UTC)
    record = suspendable_owners.record(top.owner, gang=gang[1], loss=loss, why=reason, now=now)
    try:
        await patch(client, top, suspendable_owners.suspend(top.resource.kind, top.owner, record), dry_run=dry_run)
    except ApiError as error:
        if dry_run and cannot_be_tried(error):
            return
        if not error.forbidden:
            raise
        right = suspendable_owners.grant(top.resource.kind, "suspend")
        raise not_permitted(error, f"suspend {top}", f"{right}, or suspend and resume it") from None


async def patch(client: Client, top: Top, body: dict[str, Any], *, dry_run: bool = False) -> None:
    """Send a merge patch of an owner."""
    metadata = top.owner.metadata
    await client.patch(
        top.resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, dry_run=dry_run,
        type=msgspec.Raw,
    )  # fmt: skip


def digest(pods: Sequence[Pod]) -> str:
    """Return the digest of the lost pods in the record of an owner's suspension."""
    return hashlib.sha256(",".join(sorted(pod.metadata.uid for pod in pods)).encode()).hexdigest()[:32]


def refuse_kueues(pods: Sequence[Pod]) -> None:
    """Raise ``RefusedError`` if Kueue has admitted one of these pods, so that only Kueue may suspend its owner."""
    if any(suspendable_owners.of_kueue(pod.metadata) for pod in pods):
        raise RefusedError("Kueue has admitted its pods, and starts them anew itself: leave them to it")


def is_done(top: Top, loss: str) -> bool:
    """Return whether an owner was suspended and resumed for these very pods."""
    record = suspendable_owners.record_of(top.owner)
    return record is not None and record.over and record.loss == loss


def pause_s(top: Top) -> float:
    """Return the seconds until an owner may be suspended again; 0 or less for now."""
    record = suspendable_owners.record_of(top.owner)
    return 0.0 if record is None else record.due_in_s(datetime.datetime.now(datetime.UTC))


async def left_suspended(client: Client, kinds: OwnerKinds) -> tuple[list[Top], bool]:
    """Return the owners that were suspended here and not resumed, and whether all kinds could be listed.

    Kinds that may not be listed are left out.
    """
    left: list[Top] = []
    whole = True
    for kind in suspendable_owners.FIELDS:
        try:
            async with asyncio.timeout(ANSWER_S):
                if (resource := await kinds.resource(kind)) is not None:
                    owners, _ = await client.list(resource, label_selector=names.RESTARTING, type=_under_way)
                    left += [Top(resource, owner) for owner in owners]
        except (DriverError, TimeoutError) as error:
            if not (isinstance(error, ApiError) and error.forbidden):
                logger.warning("which %ss were left suspended is not known: %s", kind, str(error) or "no answer")
                whole = False
    return left, whole


def _under_way(raw: msgspec.Raw) -> Suspendable | None:
    """Decode an owner; None if its record does not say that it has to be resumed."""
    owner: Suspendable = codec.decode(raw, Suspendable)
    return None if suspendable_owners.under_way(owner) is None else owner
