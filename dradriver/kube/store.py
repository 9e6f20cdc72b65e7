"""The objects of one kind as a reflector last saw them, and the reports of their changes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from dradriver.kube import codec, metrics
from dradriver.kube.isolated import Isolated, Unread, identity

logger = logging.getLogger(__name__)

Key = tuple[str, str]  # namespace (empty for none), name


class _Identity(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def uid(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


class HasMetadata(Protocol):
    """An object that a store can keep: anything with the ``metadata`` of a Kubernetes object."""

    @property
    def metadata(self) -> _Identity:
        """Return the stored object's identity and version."""


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """The change of one object: added (``old`` is None), modified, or removed (``new`` is None).

    ``old`` and ``new`` are the objects as they are stored. If the store stops keeping an object, the object counts as
    removed. If an object took the name of a deleted one, there are two changes, even if the deletion was not seen.
    ``old`` is always the object that the store had, so values derived from it can be undone exactly.

    Attributes:
        key: Namespace and name.
        old: The object before.
        new: The object now.
        read_at: None for a watch event. For a read of all objects, the time at which the read began, by the loop's
            clock. Such a read is the truth even if its version is older, because the server's store may have been
            restored.
    """

    key: Key
    old: T | None
    new: T | None
    read_at: float | None = None


class Store(Generic[T]):
    """The objects of one kind, by namespace and name.

    Attributes:
        objects: The stored objects; read-only, always complete.
    """

    def __init__(
        self,
        plural: str,
        read: codec.Reading[T],
        on_change: Callable[[Change[T]], None] | None = None,
        on_unread: Callable[[Unread], None] | None = None,
    ) -> None:
        """Make an empty store.

        Args:
            plural: The plural name of the objects' resource, such as ``pods``.
            read: A msgspec struct with the fields to store, or a function that makes one from an object's JSON.
            on_change: Called after the store has changed.
            on_unread: Called with each object that could not be decoded completely.
        """
        self._plural = plural
        self._reader = Isolated(plural, read, on_unread)
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._count = metrics.OBJECTS.labels(plural)
        self.objects: Mapping[Key, T] = MappingProxyType(self._objects)

    def read(self, data: msgspec.Raw) -> T | None:
        """Return the part of an object's JSON that the store keeps; None if it keeps nothing.

        If the stored object has equal content, that same object is returned, so that no change is reported. Equal
        versions are not enough, because a restored server can have other content under the same version.
        """
        new = self._reader(data)
        if new is None:
            return None
        old = self._objects.get(key_of(new))
        return old if old is not None and old == new else new

    def read_event(self, kind: str, data: msgspec.Raw) -> tuple[Key | None, str, T | None]:
        """Return a watch event's key, its version, and the object to store.

        ``kind`` is the event's type, such as ``DELETED``. The key is namespace and name; None if it cannot be decoded.
        For a deleted object there is nothing to store, whatever the event contains.
        """
        new = None if kind == "DELETED" else self.read(data)
        if new is not None:
            return key_of(new), new.metadata.resource_version, new
        subject = identity(data)
        return ((subject.namespace, subject.name) if subject.name else None), subject.resource_version, None

    def replace(self, fresh: Mapping[Key, T], read_at: float | None = None) -> None:
        """Replace all objects of the store by ``fresh``, and report the differences.

        ``read_at`` is the time at which the read of ``fresh`` began, by the loop's clock.
        """
        changes: list[tuple[Key, T | None, T | None]] = [
            (key, old, None) for key, old in self._objects.items() if key not in fresh
        ]
        changes += [(key, old, new) for key, new in fresh.items() if (old := self._objects.get(key)) is not new]
        for key, _, new in changes:
            self._set(key, new)
        self._count.set(len(self._objects))
        for change in changes:
            self._tell(*change, read_at)

    def put(self, key: Key, new: T | None) -> None:
        """Store an object's new state (None if it is gone), and report the change."""
        old = self._objects.get(key)
        self._set(key, new)
        self._count.set(len(self._objects))
        self._tell(key, old, new)

    def _set(self, key: Key, new: T | None) -> None:
        self._objects.pop(key, None)  # so that the new key's texts are the new object's own
        if new is not None:
            self._objects[key] = new

    def _tell(self, key: Key, old: T | None, new: T | None, read_at: float | None = None) -> None:
        if self._on_change is None or old is new:
            return
        changes = [Change(key, old, new, read_at)]
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            changes = [Change(key, old, None, read_at), Change(key, None, new, read_at)]
        for change in changes:
            try:
                self._on_change(change)
            except Exception:  # somebody else's code: the store goes on without it
                metrics.FAILED_HANDLERS.labels(self._plural).inc()
                logger.exception("Internal error: a handler of %s failed on %s.", self._plural, "/".join(key))


def key_of(obj: HasMetadata) -> Key:
    """Return the namespace and name of the stored object ``obj``."""
    return obj.metadata.namespace, obj.metadata.name
