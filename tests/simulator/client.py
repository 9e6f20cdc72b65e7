"""A controller's client: the methods of ``Client`` on the server in memory, with a fate for every request."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from dradriver.kube import codec
from dradriver.kube.client import ApiError, PatchKind, Unreachable
from dradriver.kube.isolated import Isolated
from dradriver.kube.resources import Resource
from tests.fakes.apistore import Object, Refused, selector
from tests.resources import DEVICE_TAINT_RULES
from tests.simulator.faults import Call, Fate, Plan
from tests.simulator.server import Server
from tests.simulator.watching import Feed, Watch

HANG_S: Final = 10.0
TIMEOUT_S: Final = 30.0  # of the real client


class Outside(Protocol):
    """Who is told of requests, and says whether the server can be reached."""

    down_until: float

    def sent(self, call: Call) -> None: ...
    def answered(self, call: Call, error: Exception | None) -> None: ...
    def kill(self, replica: int) -> None: ...


class SimClient:
    """One process's way to the server. After ``dead`` is set nothing goes out and nothing comes in."""

    def __init__(self, replica: int, server: Server, feed: Feed, plan: Plan, outside: Outside) -> None:
        self.replica = replica
        self.dead = False
        self._server = server
        self._feed = feed
        self._plan = plan
        self._outside = outside

    async def serves(self, resource: Resource) -> bool:
        """Say whether the server has a kind; of rules of administrators it has one version."""
        return resource == DEVICE_TAINT_RULES

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, type: Any = dict) -> Any:  # noqa: A002
        call = self._call("get", resource, namespace, name)
        return _typed(await self._send(call, lambda: self._server.get(resource, call.key)), type)

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
            found = [obj for obj in self._server.all(resource) if _within(obj, namespace) and chosen(obj)]
            self._feed.seen[resource.plural] = self._server.version
            return found, str(self._server.version)

        try:
            found, version = await self._send(self._call("list", resource, namespace, ""), act)
        except (ApiError, Unreachable):
            self._feed.missed(resource)
            raise
        read = Isolated(resource.plural, type)  # as the client does
        items = [read(msgspec.Raw(msgspec.json.encode(obj))) for obj in found]
        return [item for item in items if item is not None], version

    async def create(self, resource: Resource, obj: Mapping[str, Any], *, namespace: str | None = None, type: Any = dict) -> Any:  # noqa: A002, E501 # fmt: skip
        body = msgspec.json.decode(msgspec.json.encode(obj))
        namespace = namespace or body["metadata"].get("namespace")
        if resource.namespaced and not namespace:
            raise ValueError(f"a {resource.kind} needs a namespace")
        call = self._call("create", resource, namespace, body["metadata"].get("name", ""), body)
        return _typed(await self._send(call, lambda: self._server.create(resource, call.namespace, body)), type)

    async def update(
        self,
        resource: Resource,
        obj: Mapping[str, Any],
        *,
        subresource: str | None = None,
        type: Any = dict,  # noqa: A002
    ) -> Any:
        body = msgspec.json.decode(msgspec.json.encode(obj))
        call = self._call("update", resource, body["metadata"].get("namespace"), body["metadata"]["name"], body)
        return _typed(await self._send(call, lambda: self._server.update(resource, call.key, body, subresource)), type)

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
        type: Any = dict,  # noqa: A002
    ) -> Any:
        sent = msgspec.json.decode(msgspec.json.encode(getattr(body, "ops", body)))
        call = self._call("patch", resource, namespace, name, sent)
        return _typed(
            await self._send(call, lambda: self._server.patch(resource, call.key, kind.value, sent, subresource)), type
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
        conditions = {"uid": uid, "resourceVersion": resource_version}
        given = {key: value for key, value in conditions.items() if value is not None}
        call = self._call("delete", resource, namespace, name, given)
        try:
            await self._send(call, lambda: self._server.delete(resource, call.key, given))
        except ApiError as error:
            if error.not_found:
                return False
            raise
        return True

    @contextlib.asynccontextmanager
    async def stream(
        self, resource: Resource, *, namespace: str | None = None, params: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[Watch]:
        call = self._call("watch", resource, namespace, "")
        try:
            watch: Watch = await self._send(call, lambda: self._feed.watch(resource, namespace, params, silence_s))
        except (ApiError, Unreachable):
            self._feed.missed(resource)
            raise
        try:
            yield watch
        finally:
            self._feed.forget(watch)

    def _call(self, verb: str, resource: Resource, namespace: str | None, name: str, body: Any = None) -> Call:
        seen = self._feed.seen.get("resourceclaims", 0)
        return Call(self.replica, verb, resource.plural, namespace or "", name, seen=seen, body=body)

    async def _send(self, call: Call, act: Callable[[], Any]) -> Any:
        if self.dead:
            raise asyncio.CancelledError
        self._outside.sent(call)
        error: Exception | None = None
        try:
            return await self._answer(call, act)
        except (ApiError, Unreachable) as why:
            error = why
            raise
        finally:
            self._outside.answered(call, error)

    async def _answer(self, call: Call, act: Callable[[], Any]) -> Any:
        fate = self._plan.fate(call, self._feed.loop.now)
        await asyncio.sleep(fate.there_s)
        if self._feed.loop.now < self._outside.down_until:
            raise Unreachable(f"{call}: connection refused")
        if fate.how == "kill-before":
            await self._die()
        if fate.error is not None:
            await asyncio.sleep(fate.back_s)
            raise fate.error
        if fate.how in ("lost", "timeout") and not fate.done:
            await asyncio.sleep(fate.back_s if fate.how == "lost" else TIMEOUT_S)
            raise _unanswered(call, fate)
        if fate.how == "hang" and not fate.done:
            await asyncio.sleep(HANG_S)
        try:
            self._server.acting = call
            answer = act()
        except Refused as refused:
            answer = ApiError(refused.status, refused.reason, refused.message, refused.details)
        finally:
            self._server.acting = None
        if fate.how == "kill-after":
            await self._die()
        if fate.how in ("lost", "timeout"):
            await asyncio.sleep(fate.back_s if fate.how == "lost" else TIMEOUT_S)
            raise _unanswered(call, fate)
        await asyncio.sleep(HANG_S if fate.how == "hang" and fate.done else fate.back_s)
        if isinstance(answer, ApiError):
            raise answer
        return answer

    async def _die(self) -> None:
        """The process ends here, as by kill -9."""
        self._outside.kill(self.replica)
        await self._feed.loop.create_future()


def _unanswered(call: Call, fate: Fate) -> Unreachable:
    error = Unreachable(f"{call}: {'timed out' if fate.how == 'timeout' else 'the connection broke'}")
    vars(error)["timed_out"] = fate.how == "timeout"
    return error


def _within(obj: Object, namespace: str | None) -> bool:
    return not namespace or obj["metadata"].get("namespace") == namespace


def _typed(obj: Any, type: Any) -> Any:  # noqa: A002
    """Return what is read of an object: by a type, or by a function that takes its JSON."""
    encoded = msgspec.json.encode(obj)
    return codec.decode(encoded, type) if isinstance(type, builtins.type) else type(msgspec.Raw(encoded))
