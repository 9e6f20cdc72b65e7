# ruff: noqa: A002 - `type` is what msgspec and every caller call it
"""A client of the API server: one method a verb, objects as dicts or as the structs that the caller names."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

import msgspec
import yarl

from dradriver.api.jsonpatch import Patch
from dradriver.kube import codec, isolated
from dradriver.kube.config import ServerConfig
from dradriver.kube.errors import ApiError, Unreachable, Unreadable, from_status
from dradriver.kube.http import aiohttp
from dradriver.kube.lines import Lines, cause
from dradriver.kube.resources import Resource

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=dict[str, Any])
else:
    T = TypeVar("T")

__all__ = ["ApiError", "Client", "PatchKind", "Unreachable"]

PAGE: Final = 500  # objects a page, as client-go asks for
PAGE_BYTES: Final = 8 * 2**20  # what is read of a page; 500 pods with all the annotations they may have are 125 MB
CONNECT_S: Final = 10.0
# Writes held by somebody's slow webhook must leave room for a lease's renewal and the watches.
CONNECTIONS: Final = 400

Object = Mapping[str, Any]


class PatchKind(enum.Enum):
    """A patch's content type."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    APPLY = "application/apply-patch+yaml"  # JSON is YAML


class _TooLongError(Exception):
    """The answer is longer than the caller wants to read."""


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Kind(msgspec.Struct):
    name: str = ""


class _Kinds(msgspec.Struct):
    resources: list[_Kind] | None = None


class Client:
    """An API server, spoken to over kept-alive connections; an async context manager.

    Nothing is retried here but a request whose token was replaced while it was under way. Every method may raise
    ``ApiError`` when the server refuses (``Unreadable`` when its answer is an object that cannot be read),
    ``Unreachable`` when it gives no answer within ``timeout_s`` and ``ConfigError`` when the token's file cannot be
    read. ``date`` is the header of that name of the last answer, by the server's own clock; empty without one.
    """

    def __init__(self, config: ServerConfig, *, user_agent: str, timeout_s: float = 30) -> None:
        self._config = config
        self._user_agent = user_agent
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._session: aiohttp.ClientSession | None = None
        self.date = ""

    async def __aenter__(self) -> Self:
        context = self._config.ssl_context()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=True if context is None else context),
            # Compression costs both sides more than the bytes inside a cluster.
            headers={"User-Agent": self._user_agent, "Accept": "application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Return one object."""
        return _decode(await self._request("GET", resource.path(namespace, name)), type)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        type: codec.Reading[T] = dict,  # type: ignore[assignment]
    ) -> tuple[builtins.list[T], str]:
        """Return what is read of all objects of a kind, and the resource version that they are of.

        One that cannot be read is left out (``Isolated``).
        The list is read in pages. One of more than ``PAGE_BYTES`` is left unread and asked for with fewer objects. When
        the server forgets the list's version between two pages (410), the whole list is read at once instead.
        """
        params = selection(label_selector, field_selector)
        path = resource.path(namespace)
        read = isolated.Isolated(resource.plural, type)
        items: builtins.list[T] = []
        token = ""
        limit = PAGE
        while True:
            paging = {"limit": str(limit)} | ({"continue": token} if token else {})
            try:
                most = PAGE_BYTES if limit > 1 else None
                body = await self._request("GET", path, params=params | paging, most=most)
            except _TooLongError:
                limit = max(1, limit // 8)
                continue
            except ApiError as error:
                if not (token and error.gone):
                    raise
                items.clear()
                body = await self._request("GET", path, params=params)
            page = _page(body)
            items += [item for raw in page.items or () if (item := read(raw)) is not None]
            token = page.metadata.continue_
            if not token:
                return items, page.metadata.resource_version
            # Half of what may be read, as far as the last page tells: those of other namespaces can be far longer.
            limit = max(1, min(PAGE, limit * PAGE_BYTES // (2 * len(body))))

    async def serves(self, resource: Resource) -> bool:
        """Return whether the server has a kind in this version, as it tells anybody."""
        try:
            body = await self._request("GET", resource.group_path)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return any(kind.name == resource.plural for kind in _decode(body, _Kinds).resources or ())

    async def create(
        self,
        resource: Resource,
        obj: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        subresource: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Create an object and return it as the server stored it, or, in a dry run, as it would.

        The object's own namespace counts where none is given. With a subresource, such as ``eviction``, that is made of
        the object of this name, and whatever the server answers is returned.
        """
        namespace = namespace or obj["metadata"].get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"a {resource.kind} needs a namespace")
        params = {"dryRun": "All"} if dry_run else {}
        path = f"{resource.path(namespace, obj['metadata']['name'])}/{subresource}" if subresource else ""
        return _decode(await self._request("POST", path or resource.path(namespace), params=params, body=obj), type)

    async def update(
        self,
        resource: Resource,
        obj: Object,
        *,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Replace an object and return it as stored; ``conflict`` when its resourceVersion is not the newest.

        Send what ``get`` returned as a dict: a struct would drop the fields that it does not name.
        """
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return _decode(await self._request("PUT", path, body=obj), type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Patch | Object | builtins.list[dict[str, Any]],
        *,
        kind: PatchKind,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Change an object and return it as stored.

        Args:
            resource: The object's kind.
            name: Its name.
            body: The patch; of ``APPLY`` all that the manager wants of the object.
            kind: How to read it.
            namespace: The object's.
            subresource: What of the object is changed: ``status``.
            field_manager: Who applies; what others have applied of the same fields is overwritten.
            type: What the answer is read as.
        """
        content = body.ops if isinstance(body, Patch) else body
        path = resource.path(namespace, name) + (f"/{subresource}" if subresource else "")
        params = {"fieldManager": field_manager, "force": "true"} if field_manager else {}
        return _decode(await self._request("PATCH", path, params=params, body=content, content_type=kind.value), type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bool:
        """Delete an object and return whether it was there; ``conflict`` when uid or version are not the given ones."""
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in conditions.items() if value is not None},
        }
        try:
            await self._request("DELETE", resource.path(namespace, name), body=options)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    @contextlib.asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str | None = None, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[Lines]:
        """Give the lines of a watch, each an event's JSON; the connection is closed at the end, however it comes.

        Args:
            resource: What to watch.
            namespace: Where; everywhere when None.
            params: The query, ``watch`` included.
            silence_s: The stream counts as dead when nothing came for so long.

        Raises:
            ApiError: The server refused to begin.
            Unreachable: Here or from the lines: no connection, or it broke, or nothing was heard.
        """
        path = resource.path(namespace)
        try:
            async with asyncio.timeout(silence_s):
                response = await self._open("GET", path, params=params, timeout=aiohttp.ClientTimeout(total=None))
        except TimeoutError:
            raise Unreachable(f"WATCH {path}: no answer for {silence_s:g} s") from None
        try:
            yield Lines(response, silence_s=silence_s)
        finally:
            _hang_up(response)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        most: int | None = None,
    ) -> bytes:
        """Return an answer's body; raise ``_TooLongError`` where it is longer than ``most`` bytes."""
        content = None if body is None else msgspec.json.encode(body)
        response = await self._open(method, path, params=params, content=content, content_type=content_type)
        try:
            if most is None:
                return await response.read()
            pieces: builtins.list[bytes] = []
            async for piece in response.content.iter_any():
                pieces.append(piece)
                most -= len(piece)
                if most < 0:
                    _hang_up(response)
                    raise _TooLongError
            return b"".join(pieces)
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{method} {path}: {cause(error)}", timed_out=_timed_out(error)) from error
        finally:
            response.release()

    async def _open(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
        content_type: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,  # noqa: ASYNC109 - aiohttp's own
    ) -> aiohttp.ClientResponse:
        """Return an answer of success whose body is not read yet."""
        if self._session is None:
            raise RuntimeError("use the Client as an async context manager")
        url = yarl.URL(self._config.url + path, encoded=True)
        headers = {"Content-Type": content_type} if content is not None else {}
        token = self._config.bearer()
        while True:
            if token:
                headers["Authorization"] = f"Bearer {token}"
            try:
                response = await self._session.request(
                    method,
                    url,
                    params=params,
                    data=content,
                    headers=headers,
                    timeout=timeout or self._timeout,
                    server_hostname=self._config.server_name,
                    allow_redirects=False,
                )
                self.date = response.headers.get("Date", "")
                if 200 <= response.status < 300:
                    return response
                async with response:
                    answer = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise Unreachable(
                    f"{method} {path}: {cause(error)}",
                    timed_out=_timed_out(error),
                    absent=not isinstance(error, TimeoutError),
                ) from error
            if response.status == 401 and (newer := self._config.bearer()) != token:
                token = newer
                continue
            raise from_status(
                answer,
                status=response.status,
                retry_after=response.headers.get("Retry-After"),
                request=f"{method} {path}",
            )


def _timed_out(error: Exception) -> bool:
    """Return whether a server took a request and did not answer it in time."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """End an answer that goes on, and its connection, at once.

    A plain close says TLS's farewell and waits up to 30 s for the server's, which is behind all that the server still
    has to say; nobody waits for it, and a loop that ends meanwhile leaves the socket open.
    """
    if response.connection is not None and (transport := response.connection.transport) is not None:
        transport.abort()
    response.close()


def selection(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """Return the query of the selectors that are given."""
    wanted = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {key: value for key, value in wanted.items() if value}


def _page(body: bytes) -> _Page:
    try:
        page: _Page = codec.decode(body, _Page)
    except codec.BadJson as error:
        raise Unreachable(f"the API server's answer is not what it should be: {error}") from error
    return page


def _decode(data: bytes, type: type[T]) -> T:
    try:
        return cast("T", codec.decode(data, type))
    except codec.BadJson as error:
        text = f"the API server's answer is not what it should be: {error}"
        if isolated.identity(msgspec.Raw(data)).name:
            raise Unreadable(200, "Unreadable", text) from error
        raise Unreachable(text) from error
