"""A fake API server on loopback: any kind of object, with watches, and with every way to fail that matters.

``async with FakeApiServer() as api: async with Client(api.config, user_agent="test") as client: ...``
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email.utils
import json
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from dradriver.kube.config import ServerConfig
from dradriver.kube.resources import Resource
from tests.fakes.apirequests import Selector, patched, selector, status_object
from tests.fakes.apistore import Collection, Event, Object, Refused, Store, Stored, told
from tests.fakes.control_plane.evicting import evict
from tests.fakes.faults import Fault, Mode, Request

__all__ = ["FakeApiServer", "Fault", "Request"]


@dataclass
class _Target:
    where: Collection
    namespace: str
    name: str | None
    subresource: str


@dataclass
class FakeApiServer(Stored):
    """The server; see the module. Its attributes may be changed at any time.

    ``token``: what clients must present, anything where None. ``watch_list``: whether sendInitialEvents is served.
    ``watch_list_ends``: whether the bookmark after the initial events says that they are all.
    ``optional``: the kinds that it tells of, whoever asks for them; it has all others without a word.
    ``bookmark_s``: how often watches get bookmarks. ``watchers``: number of watches being served.
    ``ahead_s``: how far its clock is ahead of this machine's, by the header ``Date`` of its answers.
    """

    token: str | None = None
    tls: ssl.SSLContext | None = None
    watch_list: bool = True
    watch_list_ends: bool = True
    bookmark_s: float = 60.0
    optional: set[Resource] = field(default_factory=set)
    requests: list[Request] = field(default_factory=list)
    watchers: int = 0
    ahead_s: float = 0.0
    store: Store = field(default_factory=Store)
    _faults: list[Fault] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.on_response_prepare.append(self._dated)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls).start()
        self.store.listeners.append(self._wake)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.store.listeners.remove(self._wake)
        self._closing.set()
        self._wake()
        await self._runner.cleanup()

    @property
    def config(self) -> ServerConfig:
        """How a client reaches this server."""
        scheme = "http" if self.tls is None else "https"
        return ServerConfig(url=f"{scheme}://127.0.0.1:{self._runner.addresses[0][1]}", token=self.token or "")

    # What a test does behind the clients' backs.

    def compact(self) -> None:
        """Forget the past: watches and paged lists from before now get 410."""
        self.store.oldest = self.store.version

    def disconnect(self) -> None:
        """End all watches that are being served, cleanly."""
        self._closing.set()
        self._wake()
        self._closing = asyncio.Event()

    def fail(
        self,
        *,
        times: float = 1,
        method: str | None = None,
        path: str = "",
        watch: bool | None = None,
        status: int = 200,
        reason: str = "",
        message: str = "injected",
        details: Object | None = None,
        retry_after: int | None = None,
        body: bytes | None = None,
        mode: Mode | None = None,
        lines: list[bytes | Object] | None = None,
        until: asyncio.Event | None = None,
    ) -> Fault:
        """Let the next requests that match fail in one way; the earliest fault that matches counts.

        Args:
            times: How many requests; ``math.inf`` until the fault's ``stop()``.
            method: Only of this method.
            path: Only where this regular expression is found in the path.
            watch: Only watches, or only others.
            status: Answer with this status and a Status object.
            reason: The Status object's.
            message: The Status object's.
            details: The Status object's.
            retry_after: Seconds for a Retry-After header.
            body: Answer with these bytes (and the status) instead.
            mode: ``eof`` ends a 200 answer at once, ``silence`` begins one and says no more, ``half-line`` ends within
                a line, ``hang`` never answers, ``drop`` closes the connection, ``hold`` waits for ``until`` and then
                does what was asked.
            lines: Answer with these lines (bytes, or events to encode), then end.
            until: See mode.
        """
        answer: Object | bytes = body if body is not None else status_object(status, reason, message, details)
        fault = Fault(
            times=times,
            method=method,
            path=path,
            watch=watch,
            status=status,
            answer=answer,
            headers={} if retry_after is None else {"Retry-After": str(retry_after)},
            mode=mode,
            lines=None if lines is None else [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines],
            until=until,
        )
        self._faults.append(fault)
        return fault

    # Serving.

    async def _dated(self, _: web.Request, response: web.StreamResponse) -> None:
        if self.ahead_s:
            response.headers["Date"] = email.utils.formatdate(time.time() + self.ahead_s, usegmt=True)

    async def _handle(self, raw: web.Request) -> web.StreamResponse:
        content = await raw.read()
        request = Request(
            method=raw.method,
            path=raw.path,
            query=dict(raw.query),
            headers=dict(raw.headers),
            body=json.loads(content) if content else None,
            time=asyncio.get_running_loop().time(),
        )
        self.requests.append(request)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _json(401, status_object(401, "Unauthorized", "Unauthorized"))
        for fault in self._faults:
            if fault.matches(request):
                fault.hits += 1
                if fault.mode != "hold":
                    return await self._fail(raw, fault)
                assert fault.until is not None
                await fault.until.wait()
                break
        try:
            return await self._answer(raw, request)
        except Refused as refused:
            answer = status_object(refused.status, refused.reason, refused.message, refused.details)
            return _json(refused.status, answer)

    async def _fail(self, raw: web.Request, fault: Fault) -> web.StreamResponse:
        if fault.mode == "hang":
            await self._closing.wait()
        if fault.mode in ("drop", "hang"):
            assert raw.transport is not None
            raw.transport.abort()
            return web.Response()
        if fault.mode is None and fault.lines is None:
            if isinstance(fault.answer, bytes):
                return web.Response(
                    status=fault.status, body=fault.answer, headers=fault.headers, content_type="application/json"
                )
            return _json(fault.status, fault.answer, fault.headers)
        async with self._streaming(raw) as response:
            if fault.mode == "half-line":
                await response.write(b'{"type":"ADDED","obj')
            for line in fault.lines or ():
                await response.write(line + b"\n")
            if fault.mode == "silence":
                await self._closing.wait()
        return response

    async def _answer(self, raw: web.Request, request: Request) -> web.StreamResponse:
        told = [{"name": one.plural} for one in self.optional if one.group_path == raw.path]
        if told:
            return _json(200, {"kind": "APIResourceList", "resources": told})
        target = _target(self.store, raw.match_info["path"])
        match request.method, target.name:
            case "GET", None if request.watch:
                return await self._watch(raw, request, target)
            case "GET", None:
                return _json(200, self._list(request, target))
            case "GET", str(name):
                return _json(200, self.store.get(target.where, (target.namespace, name)))
            case "POST", str(name) if target.subresource == "eviction":
                wanted, dry = request.body["deleteOptions"]["preconditions"], request.query.get("dryRun") == "All"
                evict(self.store, (target.namespace, name), wanted, dry=dry)
                return _json(201, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
            case "POST", None:
                dry = request.query.get("dryRun") == "All"
                return _json(201, self.store.create(target.where, target.namespace, request.body, dry=dry))
            case "PUT", str(name):
                key = (target.namespace, name)
                return _json(200, self.store.replace(target.where, key, request.body, subresource=target.subresource))
            case "PATCH", str(name):
                return _json(200, self._patch(request, target, name))
            case "DELETE", str(name):
                conditions = (request.body or {}).get("preconditions")
                self.store.delete(target.where, (target.namespace, name), conditions)
                return _json(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
        raise Refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _patch(self, request: Request, target: _Target, name: str) -> Object:
        key = (target.namespace, name)
        kind = request.headers["Content-Type"]
        new = patched(self.store.get(target.where, key), kind, request.body)
        dry = request.query.get("dryRun") == "All"
        return self.store.replace(target.where, key, new, subresource=target.subresource, dry=dry)

    def _list(self, request: Request, target: _Target) -> Object:
        chosen = _selector(request, target)
        limit = int(request.query.get("limit", "0"))
        start, version = ["", ""], self.store.version
        if token := request.query.get("continue"):
            version, start = json.loads(base64.urlsafe_b64decode(token))
            if version < self.store.oldest:
                raise Refused(410, "Expired", "The provided continue parameter is too old to display a consistent list")
        found = [(key, obj) for key, obj in sorted(target.where.objects.items()) if list(key) > start and chosen(obj)]
        metadata: Object = {"resourceVersion": str(version)}
        if limit and len(found) > limit:
            found = found[:limit]
            metadata["continue"] = base64.urlsafe_b64encode(json.dumps([version, found[-1][0]]).encode()).decode()
        # The real server leaves kind and apiVersion out of a list's items.
        items = [{k: v for k, v in obj.items() if k not in ("kind", "apiVersion")} for _, obj in found]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    async def _watch(self, raw: web.Request, request: Request, target: _Target) -> web.StreamResponse:
        chosen = _selector(request, target)
        asked = request.query.get("resourceVersion", "")
        initial = request.query.get("sendInitialEvents") == "true"
        if initial and not (self.watch_list and request.query.get("resourceVersionMatch") == "NotOlderThan"):
            raise Refused(422, "Invalid", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch")
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        loop = asyncio.get_running_loop()
        end = loop.time() + float(request.query.get("timeoutSeconds", "1800"))
        closing = self._closing
        async with self._streaming(raw) as response:
            self.watchers += 1
            try:
                if initial or asked in ("", "0"):
                    version = self.store.version
                    for obj in [obj for obj in target.where.objects.values() if chosen(obj)]:
                        await _send(response, "ADDED", obj)
                    if initial and bookmarks and self.watch_list_ends:
                        await _send(response, "BOOKMARK", _bookmark(version, {"k8s.io/initial-events-end": "true"}))
                else:
                    version = int(asked)
                    if version < self.store.oldest:
                        gone = status_object(410, "Expired", f"too old resource version: {asked}")
                        await _send(response, "ERROR", gone)
                        return response
                while not closing.is_set():
                    changed = self._changed
                    for event in [event for event in target.where.log if event.version > version]:
                        version = event.version
                        if (news := told(event, target.namespace, chosen)) is not None:
                            await _send(response, *news)
                    if changed.is_set():
                        continue
                    try:
                        async with asyncio.timeout_at(min(loop.time() + self.bookmark_s, end)):
                            await changed.wait()
                    except TimeoutError:
                        if loop.time() >= end:
                            return response
                        if bookmarks and version <= self.store.version:
                            version = self.store.version
                            await _send(response, "BOOKMARK", _bookmark(version, {}))
            finally:
                self.watchers -= 1
        return response

    @contextlib.asynccontextmanager
    async def _streaming(self, raw: web.Request) -> AsyncIterator[web.StreamResponse]:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(raw)
        yield response
        await response.write_eof()

    def _wake(self, event: Event | None = None) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _target(store: Store, path: str) -> _Target:
    first, *parts = path.split("/")
    if first == "apis" and len(parts) >= 3:
        group, version, *rest = parts
    elif first == "api" and len(parts) >= 2:
        group, (version, *rest) = "", parts
    else:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = (*rest, None, None, None)[:3]
    assert plural is not None
    return _Target(store.collection(group, version, plural), namespace, name, subresource or "")


def _selector(request: Request, target: _Target) -> Selector:
    chosen = selector(
        target.where.plural,
        labels=request.query.get("labelSelector", ""),
        fields=request.query.get("fieldSelector", ""),
    )
    return lambda obj: chosen(obj) and target.namespace in ("", obj["metadata"].get("namespace"))


def _bookmark(version: int, annotations: dict[str, str]) -> Object:
    return {"metadata": {"resourceVersion": str(version), "annotations": annotations}}


async def _send(response: web.StreamResponse, kind: str, obj: Object) -> None:
    await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")


def _json(status: int, obj: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(obj, status=status, headers=headers)
