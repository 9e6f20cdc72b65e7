"""A reflector of pods at work, and what it saw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from dradriver.api.base.objects import Metadata
from dradriver.kube.client import Client
from dradriver.kube.config import ServerConfig
from dradriver.kube.reflector import Change, Reflector
from dradriver.kube.resources import PODS
from tests.fakes.apiserver import FakeApiServer, Request


class Tiny(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata


@dataclass
class Following:
    reflector: Reflector[Tiny]
    changes: list[Change[Tiny]]

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.reflector.store}

    def told(self) -> list[str]:
        """What the handler was told since the last call: +added, -deleted, ~changed."""
        marks = ["+" if c.old is None else "-" if c.new is None else "~" for c in self.changes]
        told = [mark + change.key[1] for mark, change in zip(marks, self.changes, strict=True)]
        self.changes.clear()
        return told


@contextlib.asynccontextmanager
async def following(
    api: FakeApiServer, *, config: ServerConfig | None = None, **options: Any
) -> AsyncIterator[Following]:
    """Run a reflector of pods; it has had a second's time."""
    changes: list[Change[Tiny]] = []
    options = {"on_change": changes.append} | options
    async with Client(config or api.config, user_agent="t") as client, asyncio.TaskGroup() as group:
        reflector = Reflector(client, PODS, Tiny, **options)
        running = group.create_task(reflector.run())
        await asyncio.sleep(1)
        yield Following(reflector, changes)
        running.cancel()


def put(api: FakeApiServer, name: str, **metadata: Any) -> dict[str, Any]:
    return api.put(PODS, {"metadata": {"name": name, "namespace": "a"} | metadata})


def event(kind: str, name: str, version: str, **more: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "a", "uid": name, "resourceVersion": version}
    return {"type": kind, "object": {"metadata": metadata} | more}


def lists(api: FakeApiServer) -> list[Request]:
    return [request for request in api.requests if not request.watch]


def watches(api: FakeApiServer) -> list[Request]:
    return [request for request in api.requests if request.watch]
