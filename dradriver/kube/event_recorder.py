"""Writes Events about objects, as ``kubectl describe`` shows them.

It uses core/v1, not events.k8s.io/v1, because every tool shows and sorts by ``count`` and ``lastTimestamp``. Only the
rights to create and to patch Events are needed.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
from collections import OrderedDict
from typing import Any, Final, Literal

import msgspec

from dradriver.counted import shortened
from dradriver.errors import DriverError
from dradriver.kube import codec
from dradriver.kube.client import ApiError, Client, PatchKind
from dradriver.kube.resources import EVENTS

logger = logging.getLogger(__name__)

LONGEST_MESSAGE: Final = 1024
LONGEST_NAME: Final = 253
REMEMBERED: Final = 4096  # Events whose count is known; of another one it is asked for first
CLUSTER_NAMESPACE: Final = "default"  # of Events about objects that have none, as everywhere


class Reference(msgspec.Struct, frozen=True):
    """The object that an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    api_version: str = "v1"


class _Counted(msgspec.Struct):
    count: int = 1


class Recorder:
    """Writes Events. A repeated text about the same object is one Event, whose count and last time grow."""

    def __init__(self, client: Client, *, component: str, instance: str) -> None:
        """Make a recorder.

        Args:
            client: A client inside its ``async with`` block.
            component: The reporting component, shown by ``kubectl describe`` under "From".
            instance: The replica of the component.
        """
        self._client = client
        self._component = component
        self._instance = instance
        self._counts: OrderedDict[str, int] = OrderedDict()  # by the Event's name; ``_remember`` fills it

    async def record(
        self,
        *,
        about: Reference,
        type: Literal["Normal", "Warning"],  # noqa: A002 - the field's name
        reason: str,
        message: str,
        action: str,
    ) -> None:
        """Write a Kubernetes Event; if it exists already, increase its count.

        A failure is logged and has no other effect.

        Args:
            about: The object.
            type: ``Warning`` if a person should look at it, else ``Normal``.
            reason: The reason, as one word in CamelCase.
            message: The reason for people; cut to 1,024 characters.
            action: The action that was done or tried, as one word in CamelCase.
        """
        message = shortened(message, LONGEST_MESSAGE)
        namespace = about.namespace or CLUSTER_NAMESPACE
        # The name has a hash of all arguments: each replica finds the Event that has the same text.
        name = self._event_name(about, type, reason, message, action)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            # Count an Event that this process knows. If it is gone (they expire after an hour), create it again.
            count = self._counts.get(name)
            if count is not None and await self._write_count(namespace, name, now, count + 1):
                return
            await self._create(namespace, name, now, about, type, reason, message, action)
        except DriverError as error:
            logger.warning(
                "Event %s about %s %s/%s cannot be written: %s", reason, about.kind, about.namespace, about.name, error
            )

    def _event_name(self, about: Reference, *texts: str) -> str:
        """Return the Event's name, which is the same for equal texts about an object in all replicas."""
        content = codec.encode([self._component, about, *texts])
        digest = hashlib.sha256(content).hexdigest()[:16]
        return f"{about.name[: LONGEST_NAME - 1 - len(digest)].rstrip('-.')}.{digest}"

    async def _create(
        self,
        namespace: str,
        name: str,
        now: str,
        about: Reference,
        type: str,  # noqa: A002
        reason: str,
        message: str,
        action: str,
    ) -> None:
        """Create an Event; if it exists already, increase its count.

        ``namespace`` and ``name`` are those of the Event, ``now`` is its time. It is an Event about the object
        ``about``; the other arguments are its fields.
        """
        event: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": about.api_version,
                "kind": about.kind,
                "name": about.name,
                "uid": about.uid,
            }
            | ({"namespace": about.namespace} if about.namespace else {}),
            "type": type,
            "reason": reason,
            "message": message,
            "action": action,
            "count": 1,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
        try:
            await self._client.create(EVENTS, event)
        except ApiError as error:
            if not error.already_exists:
                raise
            # Another replica wrote it, or this one forgot it. The answer to a first patch has the present count.
            count = await self._patch(namespace, name, {"lastTimestamp": now})
            # The second patch adds this occurrence. Two replicas may lose one: the count is information only.
            await self._write_count(namespace, name, now, count + 1)
        else:
            self._remember(name, 1)

    async def _write_count(self, namespace: str, name: str, now: str, count: int) -> bool:
        """Write an Event's new count, and return whether the Event still exists.

        The API server deletes Events after an hour. ``now`` is the time of the last occurrence.
        """
        try:
            self._remember(name, await self._patch(namespace, name, {"count": count, "lastTimestamp": now}))
        except ApiError as error:
            if not error.not_found:
                raise
            self._counts.pop(name, None)
            return False
        return True

    async def _patch(self, namespace: str, name: str, changes: dict[str, Any]) -> int:
        """Change the fields ``changes`` of an Event, and return the Event's count."""
        patch = PatchKind.MERGE
        return (await self._client.patch(EVENTS, name, changes, kind=patch, namespace=namespace, type=_Counted)).count

    def _remember(self, name: str, count: int) -> None:
        self._counts[name] = count
        self._counts.move_to_end(name)
        if len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
