"""Suspends owners of gangs: checks, writes, and lists suspended owners.

``OwnerRestarts`` calls it.

An *owner* is the object that creates a gang's pods, such as a Job. The *record* of a suspension is an annotation on the
owner: which pods were lost, when, and why.
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
DONE: Final = "The gang was restarted, but these pods of it still exist."
PAUSED: Final = "The gang was restarted a short time ago. It is restarted again after a pause."


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
        RefusedError: The owner cannot be suspended; the text says why.
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
    """Suspend an owner, and write a record of the suspension on it.

    In a dry run the server only checks the write.

    Args:
        client: The API server.
        top: The owner.
        gang: The gang that is restarted.
        loss: The digest of the lost pods, from ``digest``.
        reason: The text for the record.
        dry_run: Whether nothing is stored.

    Raises:
        RefusedError: The controller has no permission.
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
    """Change the owner ``top`` by a JSON merge patch.

    With ``dry_run`` the server only checks the change.
    """
    metadata = top.owner.metadata
    await client.patch(
        top.resource, metadata.name, body, kind=PatchKind.MERGE, namespace=metadata.namespace, dry_run=dry_run,
        type=msgspec.Raw,
    )  # fmt: skip


def digest(pods: Sequence[Pod]) -> str:
    """Return a digest of the uids of some pods, 32 hexadecimal digits.

    The record of a suspension has the digest of the lost pods. So a leader sees whether the owner was restarted for
    these pods.
    """
    return hashlib.sha256(",".join(sorted(pod.metadata.uid for pod in pods)).encode()).hexdigest()[:32]


def refuse_kueues(pods: Sequence[Pod]) -> None:
    """Raise ``RefusedError`` if Kueue has admitted one of these pods.

    Then only Kueue may suspend the owner.
    """
    if any(suspendable_owners.of_kueue(pod.metadata) for pod in pods):
        raise RefusedError("Kueue has admitted the pods of the gang and restarts them itself. Leave them to Kueue.")


def is_done(top: Top, loss: str) -> bool:
    """Return whether the owner ``top`` was already restarted for the loss of the same pods.

    ``loss`` is the digest of their uids (``digest``). The owner's record has the digest of its last restart.
    """
    record = suspendable_owners.record_of(top.owner)
    return record is not None and record.over and record.loss == loss


def pause_s(top: Top) -> float:
    """Return the seconds until the owner ``top`` may be suspended; at most 0 for now."""
    record = suspendable_owners.record_of(top.owner)
    return 0.0 if record is None else record.due_in_s(datetime.datetime.now(datetime.UTC))


async def left_suspended(client: Client, kinds: OwnerKinds) -> tuple[list[Top], bool]:
    """Return the owners that the controller suspended and has not resumed.

    ``kinds`` has the API versions in which the server has kinds of owners. The second value is False if some kind of
    owner could not be listed. Kinds that the controller has no permission to list are left out.
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
                logger.warning(
                    "The controller cannot list the %ss that it suspended and did not resume: %s",
                    kind,
                    str(error) or "no answer",
                )
                whole = False
    return left, whole


def _under_way(raw: msgspec.Raw) -> Suspendable | None:
    """Return the owner in ``raw`` (JSON); None without a record that it must be resumed."""
    owner: Suspendable = codec.decode(raw, Suspendable)
    return None if suspendable_owners.under_way(owner) is None else owner
