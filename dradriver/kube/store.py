"""The objects of one kind as a reflector last saw them, and the changes that somebody is told."""

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
    """What every stored object can say of itself."""

    @property
    def metadata(self) -> _Identity:
        """Return the stored object's identity and version."""


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object came (``old`` is None), changed, or went (``new`` is None); both as they are stored.

    An object of which nothing is kept any more went. An object that took the name of a deleted one is two changes, even
    if the deletion was not seen. ``old`` is always what the store held, so what was derived from it can be undone
    exactly.

    Attributes:
        key: Namespace and name.
        old: What it was.
        new: What it is.
        read_at: None for an event. Else, by the loop's clock, when a read of everything began that showed it, which is
            the truth even where its version is an older one: the server's store may have been put back.
    """

    key: Key
    old: T | None
    new: T | None
    read_at: float | None = None


class Store(Generic[T]):
    """The objects, by key.

    Attributes:
        objects: What is stored; read-only, always whole.
    """

    def __init__(
        self,
        plural: str,
        read: codec.Reading[T],
        on_change: Callable[[Change[T]], None] | None = None,
        on_unread: Callable[[Unread], None] | None = None,
    ) -> None:
        """Make an empty store of the resource of that plural; see ``Reflector`` for the others."""
        self._plural = plural
        self._reader = Isolated(plural, read, on_unread)
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._count = metrics.OBJECTS.labels(plural)
        self.objects: Mapping[Key, T] = MappingProxyType(self._objects)

    def read(self, data: msgspec.Raw) -> T | None:
        """Return what the store keeps of an object's JSON, None for nothing.

        An older state of the server's store that was put back can have other content under the same version.
        """
        new = self._reader(data)
        if new is None:
            return None
        old = self._objects.get(key_of(new))
        return old if old is not None and old == new else new

    def read_event(self, kind: str, data: msgspec.Raw) -> tuple[Key | None, str, T | None]:
        """Return the key of a watch event's object (None if unreadable), its version, and what the store keeps of it.

        The store keeps nothing of an object that was deleted, whatever the event says of the object.
        """
        new = None if kind == "DELETED" else self.read(data)
        if new is not None:
            return key_of(new), new.metadata.resource_version, new
        subject = identity(data)
        return ((subject.namespace, subject.name) if subject.name else None), subject.resource_version, None

    def replace(self, fresh: Mapping[Key, T], read_at: float | None = None) -> None:
        """Replace all objects of the store and tell the differences; ``read_at`` is when their read began."""
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
        """Store an object's new state, None when it is gone, and tell subscribers."""
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
                logger.exception("a handler of %s failed on %s", self._plural, "/".join(key))


def key_of(obj: HasMetadata) -> Key:
    """Return a stored object's namespace and name."""
    return obj.metadata.namespace, obj.metadata.name
