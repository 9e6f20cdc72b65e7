"""A controller's client on the server in memory, with a fate for every request."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from dradriver.kube.client import ApiError, Unreachable
from dradriver.kube.resources import PODS, RESOURCE_CLAIMS, Resource
from tests.fakes.storeclient import Call, StoreClient, answer
from tests.simulator.faults import Fate, Plan
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


class SimClient(StoreClient):
    """One process's way to the server. After ``dead`` is set nothing goes out and nothing comes in."""

    def __init__(self, replica: int, server: Server, feed: Feed, plan: Plan, outside: Outside) -> None:
        super().__init__(server)
        self.replica = replica
        self.dead = False
        self._server = server
        self._feed = feed
        self._plan = plan
        self._outside = outside

    async def serves(self, resource: Resource) -> bool:
        """Say whether the server has a kind."""
        return resource in self._server.serves

    async def list(self, resource: Resource, **how: Any) -> tuple[builtins.list[Any], str]:
        try:
            return await super().list(resource, **how)
        except (ApiError, Unreachable):
            self._feed.missed(resource)
            raise

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
        call = super()._call(verb, resource, namespace, name, body)
        call.replica, call.seen = self.replica, self._feed.seen.get(RESOURCE_CLAIMS.plural, 0)
        call.seen_pods, call.version = self._feed.seen.get(PODS.plural, 0), self._server.version
        call.at = self._feed.loop.now
        return call

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
        given: Any = None
        refused: ApiError | None = None
        try:
            self._server.acting = call
            given = answer(act)
            if call.verb == "list":
                self._feed.seen[call.plural] = self._server.version
        except ApiError as error:
            refused = error
        finally:
            self._server.acting = None
        if fate.how == "kill-after":
            await self._die()
        if fate.how in ("lost", "timeout"):
            await asyncio.sleep(fate.back_s if fate.how == "lost" else TIMEOUT_S)
            raise _unanswered(call, fate)
        await asyncio.sleep(HANG_S if fate.how == "hang" and fate.done else fate.back_s)
        if refused is not None:
            raise refused
        return given

    async def _die(self) -> None:
        """The process ends here, as by kill -9."""
        self._outside.kill(self.replica)
        await self._feed.loop.create_future()


def _unanswered(call: Call, fate: Fate) -> Unreachable:
    error = Unreachable(f"{call}: {'timed out' if fate.how == 'timeout' else 'the connection broke'}")
    vars(error)["timed_out"] = fate.how == "timeout"
    return error
