"""The methods of ``Client`` on a store, without a network: objects go over as JSON all the same, and so do types."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dradriver.kube import codec
from dradriver.kube.client import ApiError, PatchKind
from dradriver.kube.isolated import Isolated
from dradriver.kube.resources import PODS, Resource
from tests.fakes.apirequests import patched, selector
from tests.fakes.apistore import Key, Object, Refused, Store
from tests.fakes.control_plane.evicting import evict


@dataclass(slots=True)
class Call:
    """One request. ``dry`` is only tried; ``version`` is the store's when it was sent, at ``at``.

    ``seen`` and ``seen_pods`` are the versions up to which its sender had seen claims, and pods.
    """

    verb: str
    plural: str
    namespace: str
    name: str
    body: Any = None
    dry: bool = False
    replica: int = 0
    seen: int = 0
    seen_pods: int = 0
    version: int = 0
    at: float = 0.0

    @property
    def writes(self) -> bool:
        """Whether it may be one of a test's writes: a dry run of a change of what is there changes nothing."""
        return self.verb in ("create", "update", "delete") or (self.verb in ("patch", "evict") and not self.dry)

    @property
    def key(self) -> Key:
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.verb} {self.plural} {self.namespace}/{self.name}"


class StoreClient:
    """A client of the store's. Every request passes ``_send``, where those that inherit let something happen to it."""

    def __init__(self, store: Store, *, ends: Callable[[Key], object] | None = None) -> None:
        self.store = store
        self.ends = ends  # how a pod goes that is evicted, if not at once

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, type: Any = dict) -> Any:  # noqa: A002
        call = self._call("get", resource, namespace, name)
        return _typed(await self._send(call, lambda: self.store.get(self.store.of(resource), call.key)), type)

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        type: Any = dict,  # noqa: A002
    ) -> tuple[builtins.list[Any], str]:
        chosen = selector(resource.plural, labels=label_selector or "", fields=field_selector or "")

        def act() -> tuple[builtins.list[Object], str]:
            found = [obj for obj in self.store.all(resource) if _within(obj, namespace) and chosen(obj)]
            return found, str(self.store.version)

        found, version = await self._send(self._call("list", resource, namespace, ""), act)
        read = Isolated(resource.plural, type)  # as the client does
        items = [read(msgspec.Raw(msgspec.json.encode(obj))) for obj in found]
        return [item for item in items if item is not None], version

    async def serves(self, resource: Resource) -> bool:
        """Return whether there has ever been such an object: the store knows no kinds."""
        return bool(await self._send(Call("discover", resource.plural, "", ""), lambda: self.store.of(resource).log))

    async def create(
        self,
        resource: Resource,
        obj: Object,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        subresource: str | None = None,
        type: Any = dict,  # noqa: A002
    ) -> Any:
        body = _sent(obj)
        if subresource == "eviction":
            return await self._evict(body, dry=dry_run)
        namespace = namespace or body["metadata"].get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"a {resource.kind} needs a namespace")
        call = self._call("create", resource, namespace, body["metadata"].get("name", ""), body)
        call.dry = dry_run

        def act() -> Object:
            return self.store.create(self.store.of(resource), call.namespace, body, dry=dry_run)

        return _typed(await self._send(call, act), type)

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        subresource: str | None = None,
        type: Any = dict,  # noqa: A002
    ) -> Any:
        body = _sent(obj)
        call = self._call("update", resource, body["metadata"].get("namespace"), body["metadata"]["name"], body)

        def act() -> Object:
            return self.store.replace(self.store.of(resource), call.key, body, subresource=subresource or "")

        return _typed(await self._send(call, act), type)

    async def update_status(self, resource: Resource, obj: Mapping[str, Any], *, type: Any = dict) -> Any:  # noqa: A002
        return await self.update(resource, obj, subresource="status", type=type)

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        kind: PatchKind,
        namespace: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        type: Any = dict,  # noqa: A002
    ) -> Any:
        sent = _sent(getattr(body, "ops", body))
        call = self._call("patch", resource, namespace, name, sent)
        call.dry = dry_run

        def act() -> Object:
            where = self.store.of(resource)
            new = patched(self.store.get(where, call.key), kind.value, sent)
            return self.store.replace(where, call.key, new, subresource=subresource or "", dry=dry_run)

        return _typed(await self._send(call, act), type)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> bool:
        wanted = {"uid": uid, "resourceVersion": resource_version}
        conditions = {key: value for key, value in wanted.items() if value is not None}
        call = self._call("delete", resource, namespace, name, conditions)
        try:
            await self._send(call, lambda: self.store.delete(self.store.of(resource), call.key, conditions))
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    async def _evict(self, body: Object, *, dry: bool) -> Any:
        metadata, wanted = body["metadata"], body["deleteOptions"]["preconditions"]
        call = self._call("evict", PODS, metadata["namespace"], metadata["name"], wanted)
        call.dry = dry

        def act() -> Object:
            evict(self.store, call.key, wanted, delete=self.ends, dry=dry)
            return {"kind": "Status", "status": "Success"}

        return await self._send(call, act)

    def _call(self, verb: str, resource: Resource, namespace: str | None, name: str, body: Any = None) -> Call:
        if verb in ("get", "patch", "delete", "evict"):
            resource.path(namespace, name)  # as the client does, which raises for what is no name
        return Call(verb, resource.plural, namespace or "", name, body)

    async def _send(self, call: Call, act: Callable[[], Any]) -> Any:
        """Return what a request is answered.

        Raises:
            ApiError: It is refused.
        """
        return answer(act)


def answer(act: Callable[[], Any]) -> Any:
    """Return what the store answers, or raise its refusal as the client does."""
    try:
        return act()
    except Refused as refused:
        raise ApiError(refused.status, refused.reason, refused.message, refused.details) from None


def _sent(body: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body))


def _within(obj: Object, namespace: str | None) -> bool:
    return not namespace or obj["metadata"].get("namespace") == namespace


def _typed(obj: Any, type: Any) -> Any:  # noqa: A002
    """Return what is read of an object: by a type, or by a function that takes its JSON."""
    encoded = msgspec.json.encode(obj)
    return codec.decode(encoded, type) if isinstance(type, builtins.type) else type(msgspec.Raw(encoded))
