# ruff: noqa: A002 - `type` is what msgspec and every caller call it
"""A client of the API server with one method for each verb.

Objects are dicts, or structs of a type that the caller names.
"""

from __future__ import annotations

import builtins
import enum
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

import msgspec

from dradriver.api.base.jsonpatch import Patch
from dradriver.kube import codec, isolated
from dradriver.kube.config import ServerConfig
from dradriver.kube.connection import Connection, TooLongError
from dradriver.kube.errors import ApiError, Unreachable, Unreadable
from dradriver.kube.resources import Resource
from dradriver.kube.stream_lines import Lines

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=dict[str, Any])
else:
    T = TypeVar("T")

__all__ = ["ApiError", "Client", "PatchKind", "Unreachable"]

PAGE: Final = 500  # objects a page, as client-go asks for
PAGE_BYTES: Final = 8 * 2**20  # what is read of a page; 500 pods with all the annotations they may have are 125 MB

Object = Mapping[str, Any]


class PatchKind(enum.Enum):
    """The content type of a patch."""

    JSON = "application/json-patch+json"
    MERGE = "application/merge-patch+json"
    APPLY = "application/apply-patch+yaml"  # JSON is YAML


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
    """A client of one API server over kept-alive connections; an async context manager.

    The client does not retry, except a request whose token was replaced while it was sent. Every method can raise:

    - ``ApiError`` if the server refuses (``Unreadable`` if it answers with an object that cannot be decoded),
    - ``Unreachable`` if it does not answer within ``timeout_s``,
    - ``ConfigError`` if the token's file cannot be read.

    Attributes:
        connection: Sends requests and streams answers.
    """

    def __init__(self, config: ServerConfig, *, user_agent: str, timeout_s: float = 30) -> None:
        self.connection = Connection(config, user_agent=user_agent, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        await self.connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.__aexit__()

    async def get(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Return one object from the API server, decoded into ``type``.

        If the object does not exist, an ``ApiError`` with ``not_found`` is raised.
        """
        return _decode(await self.connection.request("GET", resource.path(namespace, name)), type)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        type: codec.Reading[T] = dict,  # type: ignore[assignment]
    ) -> tuple[builtins.list[T], str]:
        """Return all objects of a kind from the API server, and the resourceVersion of the list.

        The list is read in pages. A page of more than ``PAGE_BYTES`` is not read to its end, but requested again with
        fewer objects. If the list's version expires between two pages (410), the whole list is read with one request.

        Args:
            resource: The kind.
            namespace: The namespace; None for all.
            label_selector: Only objects that match it.
            field_selector: Only objects that match it.
            type: The type of an object, or a function that decodes one. An object that cannot be decoded is logged and
                left out.
        """
        selectors = selection(label_selector, field_selector)
        path = resource.path(namespace)
        # Returns the decoded object, or None if it cannot be decoded. It never raises.
        decode_or_none = isolated.Isolated(resource.plural, type)
        items: builtins.list[T] = []
        continue_token = ""  # where the next page begins; empty for the first page
        page_size = PAGE  # objects to request; fewer if the objects are long
        while True:
            paging = {"limit": str(page_size)} | ({"continue": continue_token} if continue_token else {})
            try:
                # A single object is read whatever its length: it cannot be divided.
                max_bytes = PAGE_BYTES if page_size > 1 else None
                body = await self.connection.request("GET", path, params=selectors | paging, max_bytes=max_bytes)
            except TooLongError:
                page_size = max(1, page_size // 8)
                continue
            except ApiError as error:
                # 410: etcd no longer has the version that the token refers to. A list without a limit needs no token.
                if not (continue_token and error.gone):
                    raise
                items.clear()
                body = await self.connection.request("GET", path, params=selectors)
            page = _page(body)
            items += [item for raw in page.items or () if (item := decode_or_none(raw)) is not None]
            continue_token = page.metadata.continue_
            if not continue_token:
                return items, page.metadata.resource_version
            # The next page should have half of PAGE_BYTES if its objects are as long as the last ones. Those of other
            # namespaces can be far longer.
            page_size = max(1, min(PAGE, page_size * PAGE_BYTES // (2 * len(body))))

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server has a kind in this version."""
        try:
            body = await self.connection.request("GET", resource.group_path)
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
        """Create an object, and return it as stored; in a dry run, as it would be stored.

        The server's answer is decoded into ``type``.

        If no namespace is given, the object's own namespace is used. If a subresource is given, such as ``eviction``,
        this subresource is created for the object that ``obj`` names, and the server's answer is returned.
        """
        namespace = namespace or obj["metadata"].get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"a {resource.kind} needs a namespace")
        params = {"dryRun": "All"} if dry_run else {}
        # A subresource is created at its object's path, an object at the path of its collection.
        path = f"{resource.path(namespace, obj['metadata']['name'])}/{subresource}" if subresource else ""
        return _decode(
            await self.connection.request("POST", path or resource.path(namespace), params=params, body=obj), type
        )

    async def update(
        self,
        resource: Resource,
        obj: Object,
        *,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Replace an object, and return it as stored, decoded into ``type``.

        ``obj`` must be a dict as ``get`` returns it. A struct would drop the fields that it does not have.

        Raises:
            ApiError: With ``conflict`` if its resourceVersion is not the newest.
        """
        metadata = obj["metadata"]
        path = resource.path(metadata.get("namespace"), metadata["name"])
        return _decode(await self.connection.request("PUT", path, body=obj), type)

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
        dry_run: bool = False,
        type: type[T] = dict,  # type: ignore[assignment]
    ) -> T:
        """Change an object, and return it as stored; in a dry run, as it would be stored.

        Args:
            resource: The kind of the object.
            name: Name of the object.
            body: The patch; for ``APPLY`` all fields that the field manager wants.
            kind: The type of the patch.
            namespace: Namespace of the object.
            subresource: Subresource to change, such as ``status``; None for the object itself.
            field_manager: For ``APPLY``, the name of the field manager. If other managers own some of the fields, this
                manager takes the fields over (``force``).
            dry_run: Whether the server only checks the change.
            type: Type of the answer: the object as stored is decoded into it.
        """
        # A ``Patch`` is our builder of JSON Patches; its ``ops`` are the list of operations (RFC 6902).
        content = body.ops if isinstance(body, Patch) else body
        path = resource.path(namespace, name) + (f"/{subresource}" if subresource else "")
        # Server-side apply alone has field managers. ``force`` takes over fields that conflict.
        params = {"fieldManager": field_manager, "force": "true"} if field_manager else {}
        if dry_run:
            params["dryRun"] = "All"
        return _decode(
            await self.connection.request("PATCH", path, params=params, body=content, content_type=kind.value), type
        )

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bool:
        """Delete an object, and return whether it existed.

        If ``uid`` or ``resource_version`` is given, only an object with this value is deleted.

        Raises:
            ApiError: With ``conflict`` if the object has another uid or version.
        """
        # The server compares them before it deletes: another object of the same name is not deleted by mistake.
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in conditions.items() if value is not None},
        }
        try:
            await self.connection.request("DELETE", resource.path(namespace, name), body=options)
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    def stream(
        self, resource: Resource, *, namespace: str | None = None, params: Mapping[str, str], silence_s: float
    ) -> AbstractAsyncContextManager[Lines]:
        """Yield the lines of a watch; each line is the JSON of one event.

        Args:
            resource: The kind to watch.
            namespace: The namespace; None for all.
            params: The query, including ``watch``.
            silence_s: The stream counts as broken after this time without data, in seconds.

        Raises:
            ApiError: The server refused the watch.
            Unreachable: There is no connection, it broke, or it was silent. Reading the lines may raise it, too.
        """
        return self.connection.stream(resource.path(namespace), params=params, silence_s=silence_s)


def selection(label_selector: str | None, field_selector: str | None) -> dict[str, str]:
    """Return the query parameters for a list or watch of the selected objects only.

    A selector that is None selects all objects.
    """
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
