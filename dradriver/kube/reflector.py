"""A live copy of all objects of one kind.

The protocol is client-go's: WatchList, or a LIST in pages where that fails, then a WATCH from the version that came
with it. What it must survive is listed, line by line, in the tests.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

import msgspec

from dradriver.api.objects import Metadata
from dradriver.errors import DriverError
from dradriver.kube import codec, metrics
from dradriver.kube.client import Client, selection
from dradriver.kube.errors import ApiError, Unreachable, from_status
from dradriver.kube.resources import Resource

logger = logging.getLogger(__name__)

SILENCE_S: Final = 70.0  # the server sends a bookmark about every 60 s
FILL_S: Final = 60.0  # for all initial events of a WatchList; LIST is the way after that
WATCH_S: Final = (300, 600)  # asked of the server, at random, so that not all watches end at once
FIRST_WAIT_S: Final = 0.8
LONGEST_WAIT_S: Final = 30.0
LONGEST_RETRY_AFTER_S: Final = 300.0
EOF_WAIT_S: Final = 0.1  # a server that ends every stream at once must not cause a hot loop
SHORT_S: Final = 1.0  # a stream that ends sooner counts as a failure, however clean its end
STABLE_S: Final = 60.0  # a stream that lived longer makes earlier failures history
# The server is in trouble or does not know us: a LIST would fare no better than the WatchList did.
NOT_ABOUT_WATCH_LIST: Final = frozenset({401, 404, 408, 429, 503, 504})
# Watching on from the same version would meet the same refusal again.
NOT_FROM_THIS_VERSION: Final = frozenset({400, 410, 422, 500})

Key = tuple[str, str]  # namespace (empty for none), name


class _HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=_HasMetadata)


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object came (``old`` is None), changed, or went (``new`` is None).

    An object that took the name of a deleted one is two changes, even if the deletion was not seen. ``old`` is always
    what the store held, so what was derived from it can be undone exactly.
    """

    key: Key
    old: T | None
    new: T | None


class Reflector(Generic[T]):
    """A store that follows the API server while ``run`` runs.

    Attributes:
        store: The objects by (namespace, name); read-only, always whole, never a half-read list.
        synced: Set when the store is whole for the first time.
        last_heard: The loop's clock when the server last said anything, or None.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        type: type[T],  # noqa: A002 - what msgspec calls it
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[Change[T]], None] | None = None,
    ) -> None:
        """Make a reflector that has read nothing yet.

        Args:
            client: An entered client.
            resource: What to follow.
            type: A msgspec struct with the fields that are used; ``metadata`` is one.
            namespace: Only this one.
            label_selector: Only objects that match.
            field_selector: Only objects that match.
            on_change: Called after the store has changed; it should do no more than put keys into a queue. What it
                raises is logged.
        """
        self._client = client
        self._resource = resource
        self._type = type
        self._namespace = namespace
        self._selection = selection(label_selector, field_selector)
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_change = on_change
        self._objects: dict[Key, T] = {}
        self._version = ""  # where to watch from; empty when everything must be read
        self._watch_list = True
        self._unknown_types: set[str] = set()
        self._count = metrics.OBJECTS.labels(resource.plural)
        self._last_heard_at = metrics.LAST_HEARD.labels(resource.plural)
        self.store: Mapping[Key, T] = MappingProxyType(self._objects)
        self.synced = asyncio.Event()
        self.last_heard: float | None = None

    def healthy(self, max_age_s: float) -> bool:
        """Return whether the store is whole and the server was heard within ``max_age_s``."""
        if self.last_heard is None or not self.synced.is_set():
            return False
        return asyncio.get_running_loop().time() - self.last_heard <= max_age_s

    async def run(self) -> NoReturn:
        """Follow the server until cancelled."""
        clock = asyncio.get_running_loop().time
        failures = 0
        reason = "start"
        while True:
            began = clock()
            if not self._version:
                metrics.RELISTS.labels(self._resource.plural, reason).inc()
            error = await self._round()
            lived = clock() - began
            if lived > STABLE_S:
                failures = 0
            if error is None and lived >= SHORT_S:
                await asyncio.sleep(random.uniform(1, 2) * EOF_WAIT_S)  # noqa: S311
                continue
            failures += 1
            if isinstance(error, ApiError) and (error.gone or error.status in NOT_FROM_THIS_VERSION):
                self._version = ""
            if not self._version:
                reason = "expired" if isinstance(error, ApiError) and error.gone else "error"
            wait = backoff_s(failures, error)
            logger.log(
                logging.DEBUG if error is None else logging.WARNING,
                "reading %s again in %.1f s: %s",
                self._resource.plural,
                wait,
                error or "the watch ended at once",
            )
            await asyncio.sleep(wait)

    async def _round(self) -> DriverError | None:
        """Read everything if need be, then watch until the stream ends; return why, None for a clean end."""
        try:
            if not self._version and self._watch_list:
                await self._try_watch_list()
                if self._version:
                    return None
            if not self._version:
                await self._list()
            await self._follow(self._version)
        except DriverError as error:
            return error
        return None

    async def _try_watch_list(self) -> None:
        """Follow a WatchList to its end; return without a version where a LIST should be tried at once."""
        try:
            await self._follow("")
        except ApiError as error:
            if self._version or error.status in NOT_ABOUT_WATCH_LIST:
                raise
            self._watch_list = False
            logger.info("%s: WatchList is not served (%s); using LIST", self._resource.plural, error)
        except Unreachable as error:
            if self._version:
                raise
            logger.info("%s: WatchList was cut short (%s); trying LIST", self._resource.plural, error)

    async def _list(self) -> None:
        metrics.LISTS.labels(self._resource.plural).inc()
        items, version = await self._client.list(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            type=self._type,
        )
        self._replace({_key(item): item for item in items}, version)

    async def _follow(self, version: str) -> None:
        """Watch from a version; from nothing, as a WatchList, when it is empty. Returns at the end of the stream."""
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
        fresh: dict[Key, T] = {}
        try:
            async with (
                asyncio.timeout(None if version else FILL_S) as filling,
                self._client.stream(
                    self._resource, namespace=self._namespace, params=params, silence_s=SILENCE_S
                ) as lines,
            ):
                async for line in lines:
                    kind, data = _event(line)
                    if self._version:
                        self._apply(kind, data)
                    elif (whole_at := self._collect(fresh, kind, data)) is not None:
                        self._replace(fresh, whole_at)
                        fresh = {}
                        filling.reschedule(None)
                    self._heard()
        except TimeoutError:
            raise Unreachable(f"WATCH {self._resource.plural}: initial events not complete in {FILL_S:g} s") from None
        except codec.BadJson as error:
            raise Unreachable(f"WATCH {self._resource.plural}: a line is no event: {error}") from error

    def _apply(self, kind: str, data: msgspec.Raw) -> None:
        """Bring an event into the store."""
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            new: T = codec.decode(data, self._type)
            self._version = new.metadata.resource_version or self._version
            self._store(_key(new), None if kind == "DELETED" else new)
        elif kind == "BOOKMARK":
            self._version = codec.decode(data, _Bookmark).metadata.resource_version or self._version
        else:
            self._strange(kind, data)

    def _collect(self, fresh: dict[Key, T], kind: str, data: msgspec.Raw) -> str | None:
        """Bring an event of a WatchList's beginning into ``fresh``; return the version at which that is whole."""
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            new: T = codec.decode(data, self._type)
            if kind == "DELETED":
                fresh.pop(_key(new), None)
            else:
                fresh[_key(new)] = new
        elif kind == "BOOKMARK":
            bookmark: _Bookmark = codec.decode(data, _Bookmark)
            if bookmark.metadata.annotations.get("k8s.io/initial-events-end") == "true":
                return bookmark.metadata.resource_version
        else:
            self._strange(kind, data)
        return None

    def _strange(self, kind: str, data: msgspec.Raw) -> None:
        if kind == "ERROR":
            raise from_status(data, request=f"WATCH {self._resource.plural}")
        if kind not in self._unknown_types and len(self._unknown_types) < 16:
            self._unknown_types.add(kind)
            logger.warning("%s: skipping watch events of unknown type %r", self._resource.plural, kind)

    def _replace(self, fresh: dict[Key, T], version: str) -> None:
        """Swap the store's content at once and tell the differences."""
        before = dict(self._objects)
        self._objects.clear()
        self._objects.update(fresh)
        self._version = version
        self._heard()
        self._count.set(len(fresh))
        self.synced.set()
        for key, old in before.items():
            if key not in fresh:
                self._tell(key, old, None)
        for key, new in fresh.items():
            self._tell(key, before.get(key), new)

    def _store(self, key: Key, new: T | None) -> None:
        old = self._objects.get(key)
        if new is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = new
        self._count.set(len(self._objects))
        self._tell(key, old, new)

    def _tell(self, key: Key, old: T | None, new: T | None) -> None:
        if self._on_change is None or (old is None and new is None):
            return
        changes = [Change(key, old, new)]
        if old is not None and new is not None:
            if old.metadata.uid != new.metadata.uid:
                changes = [Change(key, old, None), Change(key, None, new)]
            elif old.metadata.resource_version == new.metadata.resource_version:
                return
        for change in changes:
            try:
                self._on_change(change)
            except Exception:  # somebody else's code: the store goes on without it
                logger.exception("a handler of %s failed on %s", self._resource.plural, "/".join(key))

    def _heard(self) -> None:
        self.last_heard = asyncio.get_running_loop().time()
        self._last_heard_at.set(time.time())


def backoff_s(failures: int, error: DriverError | None) -> float:
    """Return the seconds to wait after so many failures in a row: exponential with full jitter.

    A server that names a time (Retry-After) is not asked sooner.
    """
    wait = random.uniform(0, min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(failures - 1, 32)))  # noqa: S311
    asked = error.retry_after_s if isinstance(error, ApiError) else None
    return max(wait, EOF_WAIT_S, min(asked or 0.0, LONGEST_RETRY_AFTER_S))


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _BookmarkMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] = {}


class _Bookmark(msgspec.Struct):
    metadata: _BookmarkMeta


def _event(line: bytes) -> tuple[str, msgspec.Raw]:
    event: _Event = codec.decode(line, _Event)
    return event.type, event.object


def _key(obj: Any) -> Key:
    return obj.metadata.namespace, obj.metadata.name
