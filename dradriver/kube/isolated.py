"""Reads the objects of one kind one by one: what cannot be read of one costs no other anything."""

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
    "Objects that could not be read whole, each time that they came, by how much of them is kept: part or nothing.",
    resource=PLURALS,
    kept=("part", "nothing"),
)
_MOST_LINES: Final = 16  # in the log, of one kind in a minute; one namespace can have thousands of such objects
_MINUTE_S: Final = 60.0


class Identity(msgspec.Struct, rename="camel", frozen=True):
    """Which object it is, and of which version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(msgspec.Struct):
    metadata: Identity


@dataclass(frozen=True, slots=True)
class Unread:
    """An object that could not be read whole.

    Attributes:
        identity: Which; with an empty name where not even that could be read.
        why: What could not be read.
    """

    identity: Identity
    why: str


def identity(data: msgspec.Raw) -> Identity:
    """Return which object some JSON is, read in isolation from the rest of it, as far as it says so."""
    try:
        named: _Named = codec.decode(data, _Named)
    except codec.BadJson as error:
        return Identity() if error.rest is None else error.rest.metadata
    return named.metadata


class Isolated(Generic[T]):
    """A reading that never raises."""

    def __init__(self, plural: str, read: codec.Reading[T], on_unread: Callable[[Unread], None] | None = None) -> None:
        """Make one of the resource of that plural; ``on_unread`` is told of what could not be read whole."""
        self._plural = plural
        self._read = codec.reader(read)
        self._on_unread = on_unread
        self._minute = 0.0  # when the current minute of log lines began, by the monotonic clock
        self._lines = 0  # objects that could not be read in this minute

    def __call__(self, data: msgspec.Raw) -> T | None:
        """Return what is kept of an object; None for nothing, also where it cannot be read."""
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
                "%s %s/%s cannot be read, and %s of it is kept: %s",
                self._plural, subject.namespace, subject.name, kept, why[:500],
            )  # fmt: skip
        if self._on_unread is not None:
            self._on_unread(Unread(subject, why))
