"""Decodes the objects of one kind one by one, so that an unreadable object does not affect the others.

An object's identity is its name, namespace, uid and version. It can often be decoded when the object itself cannot.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec
from prometheus_client import Counter

from dradriver.kube import codec
from dradriver.kube.labelled_metrics import Labelled
from dradriver.kube.resources import PLURALS

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNREAD: Final = Labelled(
    Counter,
    "gpu_topology_unread_objects_total",
    "Times that an object could not be read completely. kept: whether a part of it, or nothing, is used.",
    resource=PLURALS,
    kept=("part", "nothing"),
)
_MOST_LINES: Final = 16  # in the log, of one kind in a minute; one namespace can have thousands of such objects
_MINUTE_S: Final = 60.0


class Identity(msgspec.Struct, rename="camel", frozen=True):
    """The name, namespace, uid and version of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: Identity


@dataclass(frozen=True, slots=True)
class Unread:
    """An object that could not be decoded completely.

    Attributes:
        identity: The object's identity; its name is empty if even that could not be decoded.
        why: The error.
    """

    identity: Identity
    why: str


def identity(data: msgspec.Raw) -> Identity:
    """Return the identity of an object from its JSON, as far as it can be decoded."""
    try:
        named: _Named = codec.decode(data, _Named)
    except codec.BadJson as error:
        return Identity() if error.rest is None else error.rest.metadata
    return named.metadata


class Isolated(Generic[T]):
    """A decoder of the objects of one kind, which never raises an error."""

    def __init__(self, plural: str, read: codec.Reading[T], on_unread: Callable[[Unread], None] | None = None) -> None:
        """Make a decoder for one resource.

        Args:
            plural: The plural name of the resource.
            read: The type of an object, or a function that decodes one.
            on_unread: Called with each object that could not be decoded completely.
        """
        self._plural = plural
        self._read = codec.reader(read)
        self._on_unread = on_unread
        self._minute = 0.0  # when the current minute of log lines began, by the monotonic clock
        self._lines = 0  # objects that could not be read in this minute

    def __call__(self, data: msgspec.Raw) -> T | None:
        """Return the decoded object, or the part that could be decoded.

        The result is None if nothing could be decoded, or if the caller's ``read`` function returns None for the
        object.
        """
        try:
            return self._read(data)
        except codec.PartlyRead as error:
            self._tell(data, str(error), kept="part")
            kept: T | None = error.kept
            return kept
        except Exception as error:  # whatever an object's author wrote, a bug in reading it included
            self._tell(data, f"{type(error).__name__}: {error}", kept="nothing")
            return None

    def _tell(self, data: msgspec.Raw, why: str, *, kept: str) -> None:
        UNREAD.labels(self._plural, kept).inc()
        subject = identity(data)
        now = time.monotonic()
        if now - self._minute >= _MINUTE_S:
            self._minute, self._lines = now, 0
        self._lines += 1
        if self._lines <= _MOST_LINES:
            logger.warning(
                "%s %s/%s: the object cannot be decoded, and %s of it is used: %s",
                self._plural, subject.namespace, subject.name, kept, why[:500],
            )  # fmt: skip
        if self._on_unread is not None:
            self._on_unread(Unread(subject, why))
