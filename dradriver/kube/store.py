"""The objects of one kind as a reflector last saw them, and the changes that somebody is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

import msgspec

from dradriver.kube import codec, metrics

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
        """Its identity and version."""


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object came (``old`` is None), changed, or went (``new`` is None); both as they are stored.

    An object of which nothing is kept any more went. An object that took the name of a deleted one is two changes, even
    if the deletion was not seen. ``old`` is always what the store held, so what was derived from it can be undone
    exactly.
    """

    key: Key
    old: T | None
    new: T | None


class Store(Generic[T]):
    """The objects, by key.

    Attributes:
        objects: What is stored; read-only, always whole.
    """

    def __init__(
        self, plural: str, read: codec.Reading[T], on_change: Callable[[Change[T]], None] | None = None
    ) -> None:
        """Make an empty store of the resource of that plural; see ``Reflector`` for the others."""
        self._plural = plural
        self._reader = codec.reader(read)
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._count = metrics.OBJECTS.labels(plural)
        self.objects: Mapping[Key, T] = MappingProxyType(self._objects)

    def read(self, data: msgspec.Raw) -> T | None:
        """Return what is kept of an object's JSON: what is stored already where that is of the same version.

        Raises:
            BadJson: It is not what is expected.
        """
        new = self._reader(data)
        if new is None:
            return None
        old = self._objects.get(key_of(new))
        return old if old is not None and _version(old) == _version(new) else new

    def read_event(self, data: msgspec.Raw) -> tuple[Key, str, T | None]:
        """Return an event's object: its key, its version and what is kept of it.

        Raises:
            BadJson: It is not what is expected.
        """
        new = self.read(data)
        named: HasMetadata = codec.decode(data, _Named) if new is None else new
        return key_of(named), named.metadata.resource_version, new

    def replace(self, fresh: Mapping[Key, T]) -> None:
        """Swap the content at once and tell the differences."""
        changes: list[tuple[Key, T | None, T | None]] = [
            (key, old, None) for key, old in self._objects.items() if key not in fresh
        ]
        changes += [(key, old, new) for key, new in fresh.items() if (old := self._objects.get(key)) is not new]
        for key, _, new in changes:
            self._set(key, new)
        self._count.set(len(self._objects))
        for change in changes:
            self._tell(*change)

    def put(self, key: Key, new: T | None) -> None:
        """Store an object's new state, None when it went, and tell it."""
        old = self._objects.get(key)
        self._set(key, new)
        self._count.set(len(self._objects))
        self._tell(key, old, new)

    def _set(self, key: Key, new: T | None) -> None:
        self._objects.pop(key, None)  # so that the new key's texts are the new object's own
        if new is not None:
            self._objects[key] = new

    def _tell(self, key: Key, old: T | None, new: T | None) -> None:
        if self._on_change is None or old is new:
            return
        changes = [Change(key, old, new)]
        if old is not None and new is not None:
            if old.metadata.uid != new.metadata.uid:
                changes = [Change(key, old, None), Change(key, None, new)]
            elif _version(old) == _version(new):
                return
        for change in changes:
            try:
                self._on_change(change)
            except Exception:  # somebody else's code: the store goes on without it
                logger.exception("a handler of %s failed on %s", self._plural, "/".join(key))


class _Name(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: _Name


def key_of(obj: HasMetadata) -> Key:
    """Return an object's namespace and name."""
    return obj.metadata.namespace, obj.metadata.name


def _version(obj: HasMetadata) -> tuple[str, str]:
    return obj.metadata.uid, obj.metadata.resource_version
