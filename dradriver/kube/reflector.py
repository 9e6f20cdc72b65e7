"""A live copy of all objects of one kind.

The protocol is that of client-go: a WatchList, or a LIST in pages if that fails, then a WATCH from the resulting
version. The tests list the faults that it must survive. The store can keep less of an object than the server sends.

A read gets all objects, by a WatchList or LIST. A watch gets only changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar

import msgspec

from dradriver.errors import DriverError
from dradriver.kube import codec, metrics
from dradriver.kube.backoff import wait_s
from dradriver.kube.client import Client, selection
from dradriver.kube.errors import ApiError, Silent, Unreachable, asked_s, from_status
from dradriver.kube.isolated import Unread
from dradriver.kube.resources import Resource
from dradriver.kube.store import Change, HasMetadata, Key, Store, key_of

__all__ = ["Change", "Reflector"]

logger = logging.getLogger(__name__)

# The server sends a bookmark about every 60 s. Under load one can be late or missing, so two may be missed before the
# connection counts as lost.
SILENCE_S: Final = 130.0
FILL_S: Final = 60.0  # for all initial events of a WatchList; LIST is the way after that
FILL_SILENCE_S: Final = 10.0  # initial events come without a pause; LIST is the way too when they do not
WATCH_S: Final = (300, 600)  # asked of the server, at random, so that not all watches end at once
FIRST_WAIT_S: Final = 0.8
LONGEST_WAIT_S: Final = 30.0
LONGEST_ABSENCE_S: Final = 4.0  # where nobody is there to answer: its return is waited for, and asking burdens nobody
LONGEST_RETRY_AFTER_S: Final = 300.0
EOF_WAIT_S: Final = 0.1  # a server that ends every stream at once must not cause a hot loop
SHORT_S: Final = 1.0  # a stream that ends sooner counts as a failure, however clean its end
STABLE_S: Final = 60.0  # a stream that lived longer makes earlier failures history
# The server is in trouble or does not know us: a LIST would fare no better than the WatchList did.
NOT_ABOUT_WATCH_LIST: Final = frozenset({401, 404, 408, 429, 503, 504})
# Watching on from the same version would meet the same refusal again.
NOT_FROM_THIS_VERSION: Final = frozenset({400, 410, 422, 500})

T = TypeVar("T", bound=HasMetadata)


class Reflector(Generic[T]):
    """A store that follows the API server while ``run`` runs.

    Attributes:
        store: The objects by (namespace, name); read-only. While a new list is being read, it still has the old
            objects.
        synced: Set when the store is complete for the first time.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        read: codec.Reading[T],
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[Change[T]], None] | None = None,
        on_unread: Callable[[Unread], None] | None = None,
        on_trouble: Callable[[DriverError | None], None] | None = None,
    ) -> None:
        """Make a reflector that has read nothing yet.

        Args:
            client: A client inside its ``async with`` block.
            resource: The kind of objects to follow.
            read: A msgspec struct with the fields that are used, including ``metadata``. Or a function that makes such
                a struct from an object's JSON, and returns None for an object that the store should not have. Objects
                that cannot be decoded are left out, and do not affect others.
            namespace: Follow only objects of this namespace; None for all.
            label_selector: Follow only objects that match it.
            field_selector: Follow only objects that match it.
            on_change: Called after the store has changed; it should only put keys into a queue. Its errors are logged.
            on_unread: Called with each object that could not be decoded completely, each time it arrives.
            on_trouble: Called with the error each time following fails, and with None when it works again.
        """
        self._on_trouble = on_trouble
        self._is_in_trouble = False  # whether ``on_trouble`` was last called with an error
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selection = selection(label_selector, field_selector)  # the selectors as a query
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._version = ""  # where to watch from; empty when everything must be read
        self._may_use_watch_list = True  # whether the server is believed to support WatchList
        # Complete reads of all objects have numbers: the last one requested, and the one that the store shows. They
        # differ while a read is due. ``refresh`` requests one by raising the first number.
        self._requested_read = 1
        self._stored_read = 0
        self._replaced = asyncio.Event()  # set after each complete read, and then replaced by another
        self._turn_timeout: asyncio.Timeout | None = None  # the current read or watch, which ``refresh`` can end
        self._unknown_types: set[str] = set()  # types of watch events that the log has named
        self._last_heard_at = metrics.LAST_HEARD.labels(resource.plural)
        self._failures = self._absences = 0  # in a row: errors of a server, and attempts that reached no server
        self._version_had_expired = False  # whether the last turn ended with 410: everything must be read again
        # Decodes objects, keeps them, and calls ``on_change`` with each difference.
        self._content = Store(resource.plural, read, on_change, on_unread)
        self.store = self._content.objects
        self.synced = asyncio.Event()

    async def refresh(self, timeout_s: float) -> None:
        """Read all objects again, and return when the store has them.

        The store is then as fresh as the server was at the call: the answer never comes from an outdated cache. If
        ``run`` is reading or watching, even on a silent connection, that is interrupted.

        Raises:
            Unreachable: The read took more than ``timeout_s``. The reflector goes on trying.
        """
        self._requested_read += 1
        requested_read = self._requested_read
        if self._turn_timeout is not None and not self._turn_timeout.expired():
            self._turn_timeout.reschedule(asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(timeout_s):
                while self._stored_read < requested_read:
                    await self._replaced.wait()
        except TimeoutError:
            raise Unreachable(f"{self._resource.plural}: not read again in {timeout_s:g} s") from None

    async def run(self) -> NoReturn:
        """Follow the objects of one kind on the API server until cancelled."""
        reason = "start"
        while True:
            try:
                async with asyncio.timeout(None) as self._turn_timeout:  # refresh ends it
                    reason = await self._take_turn(reason)
            except TimeoutError:
                self._failures = self._absences = 0
                reason = "refresh"
            finally:
                self._turn_timeout = None

    async def _take_turn(self, reason: str) -> str:
        """Read or watch until one stream from the server ends, and wait before the next one.

        Args:
            reason: If all objects have to be read, the reason for it: ``start``, ``refresh``, ``expired`` or ``error``.
                It is a label of the metric.

        Returns:
            The reason for the next read.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        if self._must_read_all:
            metrics.RELISTS.labels(self._resource.plural, reason).inc()
        error = await self._read_and_watch()  # returns when the stream has ended; None for a normal end
        if error is not None:
            self._report_trouble(error)
        lived_s = clock() - began
        if lived_s > STABLE_S:
            self._failures = self._absences = 0

        # 1. A normal end: watch on at once.
        if error is None and lived_s >= SHORT_S:
            self._version_had_expired = False
            await asyncio.sleep(random.uniform(1, 2) * EOF_WAIT_S)  # noqa: S311
            return reason

        # 2. A failure, or a stream that ended too soon. If the version is the problem, read everything again.
        refusal = error if isinstance(error, ApiError) else None
        has_expired = refusal is not None and refusal.gone  # 410: the server no longer has this version
        if refusal is not None and (has_expired or refusal.status in NOT_FROM_THIS_VERSION):
            self._version = ""  # the next turn reads all objects
        if self._must_read_all:
            reason = "expired" if has_expired else "error"
        # An expired version is no failure, unless the server says so again right after everything was read.
        is_repeated = self._version_had_expired and lived_s < SHORT_S
        pause_s = self._wait_after_failure_s(error, must_read_again=has_expired and not is_repeated)
        self._version_had_expired = has_expired
        logger.log(
            logging.DEBUG if error is None else logging.WARNING,
            "The driver cannot watch %s and reads them again in %.1f s: %s",
            self._resource.plural,
            pause_s,
            error or "the watch ended at once",
        )
        await asyncio.sleep(pause_s)
        return reason

    def _report_trouble(self, trouble: DriverError | None) -> None:
        if self._on_trouble is not None and (trouble is not None or self._is_in_trouble):
            self._is_in_trouble = trouble is not None
            self._on_trouble(trouble)

    def _wait_after_failure_s(self, error: DriverError | None, *, must_read_again: bool) -> float:
        """Return the seconds to wait after a failed read or watch, and count the failure.

        If no server was there to accept the connection, the attempt is counted separately: it put no load on a server.

        Args:
            error: The error that ended the read or watch.
            must_read_again: Whether the server only reported that the version is too old to watch from. The server
                works then, so this does not count as a failure.
        """
        if must_read_again:
            self._failures = self._absences = 0
            return random.uniform(1, 2) * EOF_WAIT_S  # noqa: S311
        if isinstance(error, Unreachable) and error.absent:
            self._absences += 1
            return backoff_s(self._absences, error)
        self._failures += 1
        return backoff_s(self._failures, error)

    @property
    def _must_read_all(self) -> bool:
        """Return whether all objects must be read, and not only watched.

        The result is True if there is no version to watch from, or if ``refresh`` requested a read.
        """
        return not self._version or self._stored_read < self._requested_read

    async def _read_and_watch(self) -> DriverError | None:
        """Read all objects if necessary, then watch until the stream ends.

        Returns:
            The error that ended the stream; None for a normal end.
        """
        try:
            if self._must_read_all and self._may_use_watch_list:
                await self._try_watch_list()
                if not self._must_read_all:
                    return None
            if self._must_read_all:
                await self._list()
            await self._follow(self._version)
        except DriverError as error:
            return error
        return None

    async def _try_watch_list(self) -> None:
        """Follow a WatchList, a watch that begins with all objects, until it ends.

        If the store still lacks a complete list afterwards, the caller reads a LIST at once.
        """
        try:
            await self._follow("")
        except ApiError as error:
            if not self._must_read_all or error.status in NOT_ABOUT_WATCH_LIST:
                raise
            self._may_use_watch_list = False
            logger.info("%s: WatchList is not served (%s). LIST is used.", self._resource.plural, error)
        except Unreachable as error:
            if not self._must_read_all:
                raise
            logger.info("%s: WatchList was cut short (%s). LIST is tried.", self._resource.plural, error)

    async def _list(self) -> None:
        metrics.LISTS.labels(self._resource.plural).inc()
        number, began = self._requested_read, asyncio.get_running_loop().time()
        items, version = await self._client.list(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            type=self._content.read,
        )
        self._replace({key_of(item): item for item in items}, version, number, began)

    async def _follow(self, version: str) -> None:
        """Watch until the stream ends, and apply its events to the store.

        Args:
            version: The resourceVersion to watch from. If it is empty, the watch is a WatchList, which begins with all
                objects.

        Raises:
            ApiError: The server refuses, or ended the stream with an error.
            Unreachable: The stream broke, was silent, or did not give all objects within a minute (``FILL_S``).
        """
        params = self._selection | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_S)),  # noqa: S311
        }
        if version:
            params["resourceVersion"] = version
        else:
            params |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        metrics.WATCHES.labels(self._resource.plural).inc()
        # A WatchList's objects are collected here, and replace the store's when all have arrived; then it is None.
        fresh: dict[Key, T] | None = None if version else {}
        # ``refresh`` may request another read meanwhile. This one must not count for that request.
        read_number, read_began = self._requested_read, asyncio.get_running_loop().time()
        has_heard = False
        try:
            async with (
                asyncio.timeout(None if version else FILL_S) as filling,
                self._client.stream(
                    self._resource,
                    namespace=self._namespace,
                    params=params,
                    silence_s=SILENCE_S if version else FILL_SILENCE_S,
                ) as lines,
            ):
                async for line in lines:
                    has_heard = True
                    self._report_trouble(None)  # the server answers: earlier trouble is over
                    event_type, data = _decode_event(line)
                    if fresh is None:
                        self._apply(event_type, data)
                    else:
                        # A bookmark marks the end of the initial objects, and has the version of the whole.
                        complete_at_version = self._collect(fresh, event_type, data)
                        if complete_at_version is not None:
                            self._replace(fresh, complete_at_version, read_number, read_began)
                            fresh = None
                            # From here on it is a plain watch: no time limit, and a longer silence is normal.
                            filling.reschedule(None)
                            lines.silence_s = SILENCE_S
                    self._last_heard_at.set(time.time())
        except Silent:
            # A server whose store was restored from a backup never reaches this version, and sends nothing. Read all
            # objects in the next turn.
            if not has_heard:
                self._version = ""
            raise
        except TimeoutError:
            raise Unreachable(f"WATCH {self._resource.plural}: initial events not complete in {FILL_S:g} s") from None
        except codec.BadJson as error:
            raise Unreachable(f"WATCH {self._resource.plural}: a line is no event: {error}") from error

    def _apply(self, kind: str, data: msgspec.Raw) -> None:
        """Apply one watch event to the store; ``kind`` is its type, such as ``ADDED``."""
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            key, version, new = self._content.read_event(kind, data)
            self._version = version or self._version
            if key is not None:
                self._content.put(key, new)
        elif kind == "BOOKMARK":
            self._version = codec.decode(data, _Bookmark).metadata.resource_version or self._version
        else:
            self._handle_unusual(kind, data)

    def _collect(self, fresh: dict[Key, T], kind: str, data: msgspec.Raw) -> str | None:
        """Add one of the first events of a WatchList, which give all objects, to ``fresh``.

        ``kind`` is the event's type, such as ``ADDED``.

        Returns:
            The version of the complete list, once the last initial event has arrived; else None.
        """
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            key, _, new = self._content.read_event(kind, data)
            if key is not None and new is not None:
                fresh[key] = new
            elif key is not None:
                fresh.pop(key, None)
        elif kind == "BOOKMARK":
            bookmark: _Bookmark = codec.decode(data, _Bookmark)
            if bookmark.metadata.annotations.get("k8s.io/initial-events-end") == "true":
                return bookmark.metadata.resource_version
        else:
            self._handle_unusual(kind, data)
        return None

    def _handle_unusual(self, kind: str, data: msgspec.Raw) -> None:
        if kind == "ERROR":
            raise from_status(data, request=f"WATCH {self._resource.plural}")
        if kind not in self._unknown_types and len(self._unknown_types) < 16:
            self._unknown_types.add(kind)
            logger.warning(
                "%s: the watch sent an event of the unknown type %r. It is skipped.", self._resource.plural, kind
            )

    def _replace(self, fresh: dict[Key, T], version: str, number: int, began: float) -> None:
        """Replace the store's content with the result of a read, and report the differences.

        Args:
            fresh: The objects that were read.
            version: The resourceVersion of the read.
            number: How many reads ``refresh`` had requested when this one began. Requests up to this number are now
                answered.
            began: When the read began, by the loop's clock. The read is consistent: it has all changes before that
                time.
        """
        self._version = version
        self._stored_read = number
        self._last_heard_at.set(time.time())
        self.synced.set()
        self._report_trouble(None)
        self._content.replace(fresh, began)
        self._replaced.set()
        self._replaced = asyncio.Event()


def backoff_s(failures: int, error: DriverError | None) -> float:
    """Return the seconds that a reflector waits after failures in a row: exponential, with full jitter.

    If the server names a time (Retry-After), the wait is at least that long. Of that time, at most
    ``LONGEST_RETRY_AFTER_S`` seconds count.
    """
    longest = LONGEST_ABSENCE_S if isinstance(error, Unreachable) and error.absent else LONGEST_WAIT_S
    wait = random.uniform(0, wait_s(failures - 1, first_s=FIRST_WAIT_S, longest_s=longest))  # noqa: S311
    return max(wait, EOF_WAIT_S, asked_s(error, LONGEST_RETRY_AFTER_S))


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


def _decode_event(line: bytes) -> tuple[str, msgspec.Raw]:
    event: _Event = codec.decode(line, _Event)
    return event.type, event.object
