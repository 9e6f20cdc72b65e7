"""Objects of the API server that the page follows by watches, if its user may list them.

``Mirror`` can replace a client in the code of other commands. It answers lists of followed objects from memory, so that
explaining a pod asks the server only for objects of that pod. Objects that the user may not list in all namespaces are
followed in the user's own namespace. ``Mirror.said`` reports objects that the user may not list at all.
"""

from __future__ import annotations

import asyncio
import builtins
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, TypeVar

import msgspec

from dradriver.api.base import names
from dradriver.api.base.allocating_driver import LEDGERS
from dradriver.api.base.dra_objects import ResourceSlice
from dradriver.cli.cluster import cluster_reading
from dradriver.cluster.records import pod_records, records, slice_records
from dradriver.errors import DriverError
from dradriver.kube import codec, isolated
from dradriver.kube.client import ApiError, Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.reflector import Reflector
from dradriver.kube.resources import (
    CONFIG_MAPS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from dradriver.kube.store import Key
from dradriver.view.terminal_text import plain

T = TypeVar("T")

REST_S: Final = 30.0  # between lists of what may not be watched

Changed = Callable[[Resource, Key | None], None]


class Source(msgspec.Struct, frozen=True, eq=False):
    """A list that is followed.

    Attributes:
        resource: The kind of objects.
        read: Reads the part of an object that is kept in memory.
        namespace: The only namespace to follow; None for all.
        fields: A field selector.
        labels: A label selector.
        made: Functions that convert the kept part, by the type that a caller of ``Mirror.list`` asks for. Other types
            are not converted.
    """

    resource: Resource
    read: codec.Reading[Any]
    namespace: str | None = None
    fields: str | None = None
    labels: str | None = None
    made: Mapping[Any, Callable[[Any], Any]] = {}


class Whole(msgspec.Struct, frozen=True):
    """An object that is kept completely, as JSON text."""

    metadata: isolated.Identity
    text: bytes


def whole(data: msgspec.Raw) -> Whole:
    """Return an object unchanged, for kinds that are kept completely."""
    return Whole(isolated.identity(data), bytes(data))


def sources(driver_namespace: str) -> tuple[Source, ...]:
    """Return the lists of objects that the page follows by watches.

    If the driver's namespace is known, its ConfigMaps are among them.
    """
    sliced: dict[Any, Callable[[Any], Any]] = {slice_records.read_slice: slice_records.slice_record}
    found = [
        *(
            Source(RESOURCE_SLICES, ResourceSlice, fields=cluster_reading.of_driver(one), made=sliced)
            for one in LEDGERS.values()
        ),
        Source(RESOURCE_CLAIMS, cluster_reading.read_claim),
        Source(NODES, records.read_node),
        Source(DEVICE_CLASSES, records.read_class),
        Source(PODS, pod_records.read, labels=names.LABEL),
    ]
    if driver_namespace:
        said: dict[Any, Callable[[Any], Any]] = {dict: lambda kept: codec.decode(kept.text, dict)}
        found.append(Source(CONFIG_MAPS, whole, namespace=driver_namespace, made=said))
    return tuple(found)


class _Followed:
    """The state of one source (a list of objects) while it is followed."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.trouble: DriverError | None = None
        self.narrowed = False
        self.reflector: Reflector[Any] | None = None
        self.settled = asyncio.Event()  # whole, or known why not
        self.refused = asyncio.Event()  # as long as the last answer was that
        self.again = asyncio.Event()  # all namespaces are to be tried


class Mirror(Client):
    """A client that answers lists of followed objects from memory while ``run`` runs.

    Attributes:
        unauthorized: Set when the server refuses the user's credentials: the caller must log in again.
    """

    def __init__(
        self,
        server: ServerConfig,
        wanted: tuple[Source, ...],
        changed: Changed,
        wake: Callable[[], None],
        *,
        user_agent: str,
    ) -> None:
        """Prepare the lists to follow; ``run`` follows them.

        Args:
            server: The API server.
            wanted: The lists to follow.
            changed: Called with the kind and key of a changed object, or without a key if the readable objects of the
                kind changed.
            wake: Called when the messages of ``said`` may have changed.
            user_agent: The user agent for requests.
        """
        super().__init__(server, user_agent=user_agent)
        self._config, self._user_agent = server, user_agent
        self.unauthorized = asyncio.Event()
        self._changed = changed
        self._wake = wake
        self._followed = [_Followed(source) for source in wanted]

    async def run(self) -> None:
        """Follow the objects that the user may list, by watches, until cancelled."""
        async with Client(self._config, user_agent=self._user_agent) as client, asyncio.TaskGroup() as tasks:
            for one in self._followed:
                tasks.create_task(self._follow(client, one))

    def widen(self) -> None:
        """Try to follow the objects of all namespaces again if only the user's own namespace is followed."""
        for one in self._followed:
            if one.narrowed:
                one.again.set()

    async def settled(self) -> None:
        """Wait until each list has been read, or the reason is known why it cannot be read."""
        for one in self._followed:
            await one.settled.wait()

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        type: codec.Reading[T] = dict,  # type: ignore[assignment]  # noqa: A002
    ) -> tuple[builtins.list[T], str]:
        """Return objects as ``Client.list`` does, from memory if exactly this query is followed.

        Other queries are sent to the server.

        Raises:
            ApiError: The query is followed and was not read yet, or may not be read.
        """
        # A source is a list that the page follows by a watch. Its reflector keeps the objects in memory.
        query = (resource, namespace, label_selector, field_selector)
        for followed in self._followed:
            source = followed.source
            if query == (source.resource, source.namespace, source.labels, source.fields):
                if followed.reflector is None or not followed.reflector.synced.is_set():
                    trouble = followed.trouble
                    raise trouble if isinstance(trouble, ApiError) else ApiError(503, "", "not read yet")
                # The caller may want another type than the one that is kept.
                convert = _conversion(source, type)
                objects = (convert(item) for item in followed.reflector.store.values())
                # Objects of which the caller's reader keeps nothing are left out. No resourceVersion: nobody watches.
                return [item for item in objects if item is not None], ""
        return await super().list(
            resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            type=type,
        )

    def find(self, resource: Resource, key: Key) -> Any:
        """Return the followed object with this namespace and name (``key``); None if there is none."""
        for one in self._followed:
            if one.source.resource == resource and one.reflector is not None and key in one.reflector.store:
                return one.reflector.store[key]
        return None

    def every(self, resource: Resource) -> Iterator[Any]:
        """Yield all followed objects of a kind."""
        for one in self._followed:
            if one.source.resource == resource and one.reflector is not None:
                yield from one.reflector.store.values()

    def said(self) -> Iterator[str]:
        """Yield messages about objects that cannot be followed: not allowed, or the API server does not answer."""
        for one in self._followed:
            resource, own = one.source.resource, self._config.namespace
            if one.narrowed and one.reflector is not None and one.reflector.synced.is_set():
                hidden = ". GPUs that look free can be allocated to claims that you cannot see"
                yield (
                    f"only {resource.plural} of namespace {plain(own)} are shown, because you may not list those of "
                    "all namespaces" + (hidden if resource == RESOURCE_CLAIMS else "")
                )
            if isinstance(one.trouble, ApiError) and one.trouble.forbidden:
                yield str(cluster_reading.refused(one.trouble, self._config, resource, namespace=one.source.namespace))
            elif one.trouble is not None:
                yield plain(
                    f"{resource.plural} are not up to date, because the API server does not answer ({one.trouble})"
                )

    async def _follow(self, client: Client, followed: _Followed) -> NoReturn:
        # If the user may list a kind and not watch it, following ends at once: it must not be listed all the time.
        rest_s = 0.0
        while True:
            began = time.monotonic()
            await self._follow_once(client, followed)
            await asyncio.sleep(rest_s)
            rest_s = REST_S if time.monotonic() - began < REST_S else 0.0

    async def _follow_once(self, client: Client, followed: _Followed) -> None:
        """Follow a source in all namespaces, or in the user's own if all namespaces are forbidden.

        The function returns if the server refuses objects that it allowed before, or if all namespaces are to be tried
        again. The known objects stay until the next call has read them or is refused.
        """
        # ``source.namespace`` is None for all namespaces. The second choice is the namespace of the user's context.
        source = followed.source
        namespaces = [source.namespace, self._config.namespace] if self._can_narrow(source) else [source.namespace]
        for namespace in namespaces:
            followed.trouble = None
            followed.refused.clear()
            followed.again.clear()
            reflector = self._reflector(client, followed, namespace)
            # ``synced``: the objects are read. ``refused``: the server said 403, and has not answered otherwise since.
            running = asyncio.create_task(reflector.run())
            tasks: list[asyncio.Task[Any]] = [running]
            tasks += [asyncio.create_task(event.wait()) for event in (reflector.synced, followed.refused)]
            try:
                # 1. Wait until the objects are read, or refused. If all namespaces are refused, try the user's own.
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not reflector.synced.is_set() and namespace != namespaces[-1]:
                    continue

                # 2. This reflector counts from now on, even if the last namespace is refused, too: rights may come.
                followed.reflector, followed.narrowed = reflector, namespace != source.namespace
                followed.settled.set()
                self._changed(source.resource, None)

                # 3. Follow until the reads are refused, or ``widen`` asks for another try.
                endings = [
                    asyncio.create_task(_until_refused(followed, reflector)),
                    asyncio.create_task(followed.again.wait()),
                ]
                tasks += endings
                await asyncio.wait((running, *endings), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()  # it never ends by itself: this raises its error
                return
            finally:
                for task in tasks:
                    task.cancel()

    def _reflector(self, client: Client, followed: _Followed, namespace: str | None) -> Reflector[Any]:
        """Return a reflector of a source that reports changes and errors.

        ``namespace`` is the namespace to follow; None for all.
        """
        source = followed.source

        def on_trouble(trouble: DriverError | None) -> None:
            """Record the error because of which the objects cannot be read.

            ``trouble`` is None when they can be read again.
            """
            # 401: the credentials have expired. 403: the user may not list the kind.
            before, followed.trouble = followed.trouble, trouble
            if isinstance(trouble, ApiError) and trouble.status == 401:
                self.unauthorized.set()
            if _forbidden(trouble):
                followed.refused.set()
            else:
                followed.refused.clear()
            if _forbidden(before) != _forbidden(trouble):
                self._changed(source.resource, None)  # all objects of the kind appear, or are in doubt
            elif str(before) != str(trouble):
                self._wake()  # only the message on the page changes

        return Reflector(
            client,
            source.resource,
            source.read,
            namespace=namespace,
            label_selector=source.labels,
            field_selector=source.fields,
            on_change=lambda change: self._changed(source.resource, change.key),
            on_trouble=on_trouble,
        )

    def _can_narrow(self, source: Source) -> bool:
        return source.resource.namespaced and source.namespace is None and bool(self._config.namespace)


async def _until_refused(followed: _Followed, reflector: Reflector[Any]) -> None:
    """Wait until the server refuses objects of a followed list that it allowed before.

    Objects that it refused from the beginning do not count.
    """
    await reflector.synced.wait()
    await followed.refused.wait()


def _forbidden(trouble: DriverError | None) -> bool:
    return isinstance(trouble, ApiError) and trouble.forbidden


def _conversion(source: Source, wanted: Any) -> Callable[[Any], Any]:
    """Return the function that converts objects of a followed list to the wanted type.

    ``source`` is this list. Its objects are kept in memory in another type.
    """
    if wanted == source.read:
        return lambda item: item
    return source.made[wanted]
