"""Pods are told once what their containers are not told, however often a claim is looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dradriver.kube.events import Recorder, Reference
from dradriver.node.claims import not_told
from dradriver.node.claims.not_told import NotTold
from tests.fakes.node import claim, eventually, typed


class Heard(Recorder):
    """What would be Events."""

    def __init__(self) -> None:
        """Have heard nothing."""
        self.heard: list[tuple[str, str, str]] = []

    async def record(self, *, about: Reference, message: str, **more: Any) -> None:
        """Keep whom it is about and the message."""
        self.heard.append((about.namespace, about.name, message))


async def test_each_pod_of_a_claim_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    told = NotTold(heard)
    obj = claim("c", [0])
    obj["status"]["reservedFor"] += [
        {"resource": "pods", "name": "other", "uid": "other-uid"},
        {"resource": "gangs", "name": "g", "uid": "gang-uid", "apiGroup": "x.io"},
    ]
    for said in ("why", "why", "and why", "why"):
        told.put(typed(obj), said)
    told.put(typed(claim("nobody", [0], used=False)), "why")
    task = asyncio.create_task(told.run())
    await eventually(lambda: len(heard.heard) == 4)
    task.cancel()
    assert heard.heard == [("default", name, said) for said in ("why", "and why") for name in ("pod", "other")]
    assert caplog.text.count("claim default/c: why") == 1


async def test_too_many_wait_in_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(not_told, "_REMEMBERED", 4)
    heard = Heard()
    told = NotTold(heard)
    for n in range(200):
        told.put(typed(claim(f"c{n}", [0])), "why")
    assert caplog.text.count("why") == 200
    assert len(told._said) == 4
    task = asyncio.create_task(told.run())
    await eventually(lambda: len(heard.heard) == 64)
    task.cancel()
